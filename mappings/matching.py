"""Matches the service's payments to the payments that clients requested.

The service gives payments their ids, and a response may show no more of one than its recipient.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from mappings import money
from mappings.effects import JSON
from mappings.lazy_sequences import iterate_field, map_rows

Entry = dict[str, JSON]
"""A requested payment, as stored."""

Payment = dict[str, JSON]
"""A payment as the service shows it, perhaps completed with its entry."""


def match_payments_with_entries(
    payments: Sequence[Payment], entries: Sequence[Entry], currency: JSON
) -> Sequence[tuple[Payment, Entry | None]]:
    """Pairs each payment with its entry: by id, else by recipient and amount, else by recipient.

    ``currency`` is the batch's, None if unknown.
    """
    # The service mostly shows payments in the order sent. Pairing by position then keeps a lazy
    # sequence lazy; otherwise all entries are in memory until each has its payment.
    if _is_pairable_by_position(payments, entries, currency):
        return map_rows(lambda *pair: pair, payments, entries)
    return _match_payments_individually(payments, entries, currency)


def list_unmatched_entries(
    payments: Sequence[Payment], entries: Sequence[Entry], currency: JSON
) -> list[Entry]:
    """Lists the entries that belong to none of the payments."""
    if _is_pairable_by_position(payments, entries, currency):
        return []
    entries = [*entries]
    pairs = _match_payments_individually(payments, entries, currency)
    matched_ids = {id(entry) for _payment, entry in pairs}
    return [entry for entry in entries if id(entry) not in matched_ids]


def _is_pairable_by_position(
    payments: Sequence[Payment], entries: Sequence[Entry], currency: JSON
) -> bool:
    """Whether each entry may belong to the payment at the same position."""
    if len(payments) != len(entries) or not entries:
        return False
    # Entries with and without ids are matched individually.
    if list_entry_ids(entries[0]):
        return is_paired_by_id(payments, entries)
    return all(
        not list_entry_ids(entry) and _is_possible_pair(payment, entry, currency)
        for payment, entry in zip(payments, entries, strict=True)
    )


def is_paired_by_id(payments: Sequence[Payment], entries: Sequence[Entry]) -> bool:
    """Whether the entries have the ids of the payments, in the same order."""
    return len(payments) == len(entries) and all(
        str(id_) in list_entry_ids(entry)
        for id_, entry in zip(iterate_field(payments, "id"), entries, strict=True)
    )


def list_entry_ids(entry: Entry) -> tuple[JSON, ...]:
    """Returns the client's id of an entry and the service's, as far as they are known."""
    return tuple(id_ for id_ in (entry.get("id"), entry.get("upstream")) if id_)


def _is_possible_pair(payment: Payment, entry: Entry, currency: JSON) -> bool:
    amount = entry.get("sourceAmount")
    # The fast path, for most payments.
    if amount and amount == payment.get("sourceAmount") and money.parse_amount(amount) is not None:
        return bool(extract_recipient_id(payment) == extract_recipient_id(entry))
    pay_key, payee_id = _build_payment_match_key(entry, currency), extract_recipient_id(payment)
    return any(
        (side, payee_id, amount) == pay_key
        and _is_target_currency_possible(entry, side, target_currency)
        for side, amount, target_currency in _list_possible_requested_amounts(payment, currency)
    )


def _is_target_currency_possible(entry: Entry, side: str, currency: JSON) -> bool:
    """Whether ``currency`` may be the entry's; a source amount always has the batch's currency."""
    return side == "source" or currency in (None, entry.get("targetCurrency"))


def _match_payments_individually(
    payments: Sequence[Payment], entries: Sequence[Entry], currency: JSON
) -> Sequence[tuple[Payment, Entry | None]]:
    entries = [*entries]
    # Ids come first: they are proof, while the other criteria only make a match likely.
    by_id = {id_: entry for entry in entries for id_ in list_entry_ids(entry)}
    matches = [by_id.get(str(payment.get("id"))) for payment in payments]
    if without_id := [entry for entry in entries if not list_entry_ids(entry)]:
        unmatched_entries = _match_payments_by_amount(payments, matches, without_id, currency)
        _match_payments_by_recipient(payments, matches, unmatched_entries)
    return map_rows(lambda *pair: pair, payments, matches)


def _match_payments_by_amount(
    payments: Sequence[Payment],
    matches: list[Entry | None],
    entries_without_id: Sequence[Entry],
    currency: JSON,
) -> list[Entry]:
    """Sets the matches found, by recipient and amount, and returns the entries without a match."""
    entries_by_pay: dict[tuple[JSON, ...], dict[JSON, deque[Entry]]] = {}
    for entry in entries_without_id:
        by_currency = entries_by_pay.setdefault(_build_payment_match_key(entry, currency), {})
        by_currency.setdefault(entry.get("targetCurrency"), deque()).append(entry)
    for position, payment in enumerate(payments):
        if matches[position] is None:
            matches[position] = _take_matching_entry(entries_by_pay, payment, currency)
    unmatched = chain.from_iterable(each.values() for each in entries_by_pay.values())
    return [*chain.from_iterable(unmatched)]


def _build_payment_match_key(entry: Entry, currency: JSON = None) -> tuple[JSON, ...]:
    """Returns side, recipient and amount, by which payments and entries are compared.

    A target amount in the batch's own ``currency`` counts as a source amount.
    """
    side = "source" if entry.get("sourceAmount") else "target"
    amount = money.parse_amount(entry.get(f"{side}Amount"))
    if currency is not None and entry.get("targetCurrency") == currency:
        side = "source"
    return side, extract_recipient_id(entry), amount


def _take_matching_entry(
    entries_by_pay: Mapping[tuple[JSON, ...], Mapping[JSON, deque[Entry]]],
    payment: Payment,
    currency: JSON,
) -> Entry | None:
    for side, amount, target_currency in _list_possible_requested_amounts(payment, currency):
        by_currency = entries_by_pay.get((side, extract_recipient_id(payment), amount), {})
        for entries in by_currency.values():
            if entries and _is_target_currency_possible(entries[0], side, target_currency):
                # Each entry matches once, because a batch may have several equal payments.
                return entries.popleft()
    return None


def _list_possible_requested_amounts(
    payment: Payment, currency: JSON
) -> Iterator[tuple[str, JSON, JSON]]:
    """Lists how a payment may have been requested: the side, the amount and the target currency."""
    for side in ("source", "target"):
        if (amount := money.parse_amount(payment.get(f"{side}Amount"))) is not None:
            amount_currency = payment.get("targetCurrency")
            yield side, amount, amount_currency
            if side == "target" and amount_currency is not None and amount_currency == currency:
                yield "source", amount, None
    if (amount := money.parse_amount(payment.get("amount"))) is not None:
        amount_currency = payment.get("currency")
        if None in (amount_currency, currency) or amount_currency == currency:
            yield "source", amount, None
        # Both forms are possible: a service may show an amount as it was sent, not as it is paid.
        yield "target", amount, amount_currency


def _match_payments_by_recipient(
    payments: Sequence[Payment], matches: list[Entry | None], unmatched_entries: Sequence[Entry]
) -> None:
    """Sets the matches found by recipient alone."""
    # This requires one remaining entry of the recipient, or several equal ones: a wrong pair would
    # show a payment with another one's amount and memo.
    entries_by_recipient: dict[JSON, list[Entry]] = {}
    for entry in unmatched_entries:
        entries_by_recipient.setdefault(extract_recipient_id(entry), []).append(entry)
    positions_by_recipient: dict[JSON, list[int]] = {}
    for position, payment in enumerate(payments):
        if matches[position] is None:
            positions_by_recipient.setdefault(extract_recipient_id(payment), []).append(position)
    for recipient, positions in positions_by_recipient.items():
        recipient_entries = entries_by_recipient.get(recipient, [])
        keys = {_build_identical_entry_key(entry) for entry in recipient_entries}
        if len(positions) <= len(recipient_entries) and len(keys) == 1:
            for position, entry in zip(positions, recipient_entries, strict=False):
                matches[position] = entry


def _build_identical_entry_key(entry: Entry) -> tuple[JSON, ...]:
    return *_build_payment_match_key(entry), entry.get("targetCurrency"), entry.get("memo")


def extract_recipient_id(payment: Mapping[str, JSON]) -> JSON:
    """Returns the recipient's id of a payment or entry; None if it shows none."""
    return (payment.get("recipient") or {}).get("id")
