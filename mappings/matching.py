"""Which payment of the service is which that a client asked for.

Payments get their ids from the service, and an answer may tell as little of one as whom it pays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mappings import money
from mappings.grammar import JSON
from mappings.rows import map_rows

Entry = dict[str, JSON]
"""A payment as it was asked for, as the ledger keeps it."""

Payment = dict[str, JSON]


def match_payments(
    payments: Sequence[Payment], entries: Sequence[Entry], currency: JSON = None
) -> Sequence[tuple[Payment, Entry | None]]:
    """Each payment with its entry: by id, else by what it pays to whom, else by whom alone.

    ``currency`` is the batch's, where it is known. Mostly they are shown in the order in which they
    were sent: of two that may be each other's the place decides. Of very many that are not, the
    entries are in hand until each has its payment.
    """
    if _are_in_step(payments, entries, currency):
        return map_rows(_pair, payments, entries)
    return _found(payments, entries, currency)


def _pair(payment: Payment, entry: Entry | None) -> tuple[Payment, Entry | None]:
    return payment, entry


def _are_in_step(payments: Sequence[Payment], entries: Sequence[Entry], currency: JSON) -> bool:
    """Whether each entry may be its payment's, in their order."""
    if len(payments) != len(entries) or not entries:
        return False
    both = zip(payments, entries, strict=True)
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
    if asked and asked == payment.get("sourceAmount") and money.parse_amount(asked) is not None:
        return bool(recipient_id(payment) == recipient_id(entry))  # as most are shown
    pay, whom = _pay_of(entry, currency), recipient_id(payment)
    return any(
        (side, whom, amount) == pay and _is_in(entry, side, of)
        for side, amount, of in _told(payment, currency)
    )


def _is_in(entry: Entry, side: str, currency: JSON) -> bool:
    """Whether what is told of one side may be its entry's currency; a source has the batch's."""
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
    """Sets what it finds in its place; returns the entries that are left."""
    by_pay: dict[tuple[JSON, ...], list[Entry]] = {}
    for entry in unnamed:
        by_pay.setdefault(_pay_of(entry, currency), []).append(entry)
    for place, payment in enumerate(payments):
        if found[place] is None:
            found[place] = _taken(by_pay, payment, currency)
    return [entry for those in by_pay.values() for entry in those]


def _pay_of(entry: Entry, currency: JSON = None) -> tuple[JSON, ...]:
    """A target amount in the batch's own ``currency`` is paid as a source amount is."""
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
    """What a payment may have been asked as: the side, the amount, and the target's currency."""
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
    """Only where that is certain: a recipient's one entry, or several that are the same."""
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
    """Whom a payment pays, or an entry; None where nobody has told."""
    return (payment.get("recipient") or {}).get("id")
