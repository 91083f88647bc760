"""Matches the service's payments to the payments that clients requested.

The service gives payments their ids, and a response may show no more of one than its recipient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mappings import money
from mappings.grammar import JSON
from mappings.rows import map_rows

Entry = dict[str, JSON]
"""A requested payment, as stored."""

Payment = dict[str, JSON]
"""A payment as the service shows it, perhaps completed with its entry."""


def match_payments(
    payments: Sequence[Payment], entries: Sequence[Entry], currency: JSON = None
) -> Sequence[tuple[Payment, Entry | None]]:
    """Pair each payment with its entry: by id, else by recipient and amount, else by recipient.

    ``currency`` is the batch's, None if unknown.
    """
    # The service mostly shows payments in the order sent. Pairing by position then keeps a lazy
    # sequence lazy; otherwise all entries are in memory until each has its payment.
    if _are_in_step(payments, entries, currency):
        return map_rows(_pair, payments, entries)
    return _found(payments, entries, currency)


def _pair(payment: Payment, entry: Entry | None) -> tuple[Payment, Entry | None]:
    return payment, entry


def _are_in_step(payments: Sequence[Payment], entries: Sequence[Entry], currency: JSON) -> bool:
    """Whether each entry may belong to the payment at the same position."""
    if len(payments) != len(entries) or not entries:
        return False
    both = zip(payments, entries, strict=True)
    # Entries with and without ids are matched individually.
    are_named = bool(_ids_of(entries[0]))
    return all(
        str(payment.get("id")) in _ids_of(entry)
        if are_named
        else not _ids_of(entry) and _may_be(payment, entry, currency)
        for payment, entry in both
    )


def _ids_of(entry: Entry) -> tuple[JSON, ...]:
    return tuple(id_ for id_ in (entry.get("id"), entry.get("upstream")) if id_)


def _may_be(payment: Payment, entry: Entry, currency: JSON) -> bool:
    asked = entry.get("sourceAmount")
    # The fast path, for most payments.
    if asked and asked == payment.get("sourceAmount") and money.parse_amount(asked) is not None:
        return bool(recipient_id(payment) == recipient_id(entry))
    pay, whom = _pay_of(entry, currency), recipient_id(payment)
    return any(
        (side, whom, amount) == pay and _is_in(entry, side, of)
        for side, amount, of in _told(payment, currency)
    )


def _is_in(entry: Entry, side: str, currency: JSON) -> bool:
    """Whether ``currency`` may be the entry's; a source amount always has the batch's currency."""
    return side == "source" or currency in (None, entry.get("targetCurrency"))


def _found(
    payments: Sequence[Payment], entries: Sequence[Entry], currency: JSON
) -> Sequence[tuple[Payment, Entry | None]]:
    entries = [*entries]
    by_id = {id_: entry for entry in entries for id_ in _ids_of(entry)}
    found = [by_id.get(str(payment.get("id"))) for payment in payments]
    unnamed = [one for one in entries if not _ids_of(one)]
    if unnamed:
        left = _by_what_they_pay(payments, found, unnamed, currency)
        _by_whom_they_pay(payments, found, left)
    return map_rows(_pair, payments, found)


def _by_what_they_pay(
    payments: Sequence[Payment],
    found: list[Entry | None],
    unnamed: Sequence[Entry],
    currency: JSON,
) -> list[Entry]:
    """Set the matches found, by recipient and amount, and return the entries without a match."""
    by_pay: dict[tuple[JSON, ...], list[Entry]] = {}
    for entry in unnamed:
        by_pay.setdefault(_pay_of(entry, currency), []).append(entry)
    for place, payment in enumerate(payments):
        if found[place] is None:
            found[place] = _taken(by_pay, payment, currency)
    return [entry for those in by_pay.values() for entry in those]


def _pay_of(entry: Entry, currency: JSON = None) -> tuple[JSON, ...]:
    """Return side, recipient and amount, by which payments and entries are compared.

    A target amount in the batch's own ``currency`` counts as a source amount.
    """
    side = "source" if entry.get("sourceAmount") else "target"
    amount = money.parse_amount(entry.get(f"{side}Amount"))
    is_paid = side == "target" and currency is not None and entry.get("targetCurrency") == currency
    return "source" if is_paid else side, recipient_id(entry), amount


def _taken(
    by_pay: Mapping[tuple[JSON, ...], list[Entry]], payment: Payment, currency: JSON
) -> Entry | None:
    for side, amount, of in _told(payment, currency):
        those = by_pay.get((side, recipient_id(payment), amount), [])
        for place, entry in enumerate(those):
            if _is_in(entry, side, of):
                return those.pop(place)
    return None


def _told(payment: Payment, currency: JSON) -> Iterator[tuple[str, JSON, JSON]]:
    """List how a payment may have been requested: the side, the amount and the target currency."""
    for side in ("source", "target"):
        if (amount := money.parse_amount(payment.get(f"{side}Amount"))) is not None:
            of = payment.get("targetCurrency")
            yield side, amount, of
            if side == "target" and of is not None and of == currency:
                yield "source", amount, None
    if (amount := money.parse_amount(payment.get("amount"))) is not None:
        of = payment.get("currency")
        if None in (of, currency) or of == currency:
            yield "source", amount, None
        yield "target", amount, of


def _by_whom_they_pay(
    payments: Sequence[Payment], found: list[Entry | None], left: Sequence[Entry]
) -> None:
    """Set the matches found by recipient alone."""
    # Only if a recipient has one entry left, or several equal ones: a wrong pair would show a
    # payment with another one's amount and memo.
    entries: dict[JSON, list[Entry]] = {}
    for entry in left:
        entries.setdefault(recipient_id(entry), []).append(entry)
    places: dict[JSON, list[int]] = {}
    for place, payment in enumerate(payments):
        if found[place] is None:
            places.setdefault(recipient_id(payment), []).append(place)
    for recipient, those in places.items():
        its = entries.get(recipient, [])
        if len(those) <= len(its) and len({_asked(entry) for entry in its}) == 1:
            for place, entry in zip(those, its, strict=False):
                found[place] = entry


def _asked(entry: Entry) -> tuple[JSON, ...]:
    return *_pay_of(entry), entry.get("targetCurrency"), entry.get("memo")


def recipient_id(payment: Mapping[str, JSON]) -> JSON:
    """Return the recipient's id of a payment or entry; None if it shows none."""
    return (payment.get("recipient") or {}).get("id")
