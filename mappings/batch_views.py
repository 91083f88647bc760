"""Batches as they are known here: what the service says, filled in from what was asked.

The ledger keeps of a batch its *facts* (kind ``batch``) and its *entries* (kind ``payments``): each
payment as the client asked for it. The id of a batch or payment is the one it had first; ``upstream``
is the one that it has at the service now.

    phase     sent: the service has it
              draft: edited here; the service has none, or none that counts
              editing, starting, making: a change is under way
              deleted
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mappings import current, legacy, money, objects
from mappings.fields import Fields, by_hand, read_only
from mappings.grammar import JSON
from mappings.objects import method_display, payment_answer

Facts = Mapping[str, JSON]
Entry = dict[str, JSON]
Payment = dict[str, JSON]

STATUSES = frozenset({"open", "pending", "processing", "accepted", "complete"})
ENDED = frozenset({"processed", "failed"})
EDITABLE = frozenset({"open", "pending"})

BATCH = Fields(
    (legacy.Batch,),
    (current.BatchFields,),
    read_only("id", "description", "sentAt", "completedAt", why="the service's own"),
    read_only("createdAt", "updatedAt", why="the service's own"),
    by_hand("status", why="words that the legacy document lacks"),
    by_hand("amount", why="the sum of the source amounts"),
    by_hand("totalPayments", why="counted"),
    by_hand("currency", why="the source currency"),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch: ``given`` is what the service says of it, empty for a draft."""

    id: str
    facts: Facts
    entries: Sequence[Entry]
    given: Mapping[str, JSON]
    payments: Sequence[Payment]

    @property
    def upstream(self) -> str:
        return str(self.facts.get("upstream") or self.id)

    @property
    def is_draft(self) -> bool:
        return is_draft(self.facts)

    @property
    def currency(self) -> JSON:
        given = self.given.get("currency") or self.given.get("sourceCurrency")
        return given or self.facts.get("currency")

    @property
    def status(self) -> str | None:
        return shown_status(self.given.get("status") or self.facts.get("status"))

    def payment(self, payment_id: str) -> Payment | None:
        """By the id that clients know, or the service's."""
        for payment in self.payments:
            if payment_id in (payment["id"], payment.get("upstream")):
                return payment
        return None


def is_draft(facts: Facts) -> bool:
    """Whether a batch is the ledger's alone: known here, and the service has none that counts."""
    return bool(facts) and facts.get("upstream") is None


def shown_status(status: JSON) -> str | None:
    """A batch's status in the legacy document's words."""
    if status is None:
        return None
    if status in STATUSES:
        return str(status)
    return "complete" if status in ENDED else "processing"


def batch_of(
    batch_id: str,
    facts: Facts,
    entries: Sequence[Entry],
    given: Mapping[str, JSON],
    payments: Sequence[Payment],
) -> Batch:
    """A batch with its payments filled in."""
    bare = Batch(batch_id, facts, entries, given, ())
    pairs = matched(payments, entries) if given else [({}, entry) for entry in entries]
    filled = [_filled(payment, entry, bare) for payment, entry in pairs]
    return Batch(batch_id, facts, entries, given, filled)


def matched(
    payments: Sequence[Payment], entries: Sequence[Entry]
) -> list[tuple[Payment, Entry | None]]:
    """Each payment of the service with what was asked: by id, else by what it pays to whom."""
    by_id = {
        id_: entry for entry in entries for id_ in (entry.get("id"), entry.get("upstream")) if id_
    }
    unnamed: dict[tuple[JSON, ...], list[Entry]] = {}
    for entry in entries:
        if not entry.get("id") and not entry.get("upstream"):
            unnamed.setdefault(_entry_key(entry), []).append(entry)
    pairs: list[tuple[Payment, Entry | None]] = []
    for payment in payments:
        found: Entry | None = by_id.get(str(payment.get("id")))
        if found is None:
            found = next(
                (unnamed[key].pop(0) for key in _payment_keys(payment) if unnamed.get(key)), None
            )
        pairs.append((payment, found))
    return pairs


def as_asked(batch: Batch, given: Payment, entry: Entry) -> Payment:
    """A payment as the client asked for it, where its summary cannot be read."""
    return _filled(given, entry, batch)


def _entry_key(entry: Entry) -> tuple[JSON, ...]:
    side = "source" if entry.get("sourceAmount") else "target"
    return side, entry["recipient"]["id"], money.amount_of(entry.get(f"{side}Amount"))


def _payment_keys(payment: Payment) -> list[tuple[JSON, ...]]:
    recipient = (payment.get("recipient") or {}).get("id")
    return [
        (side, recipient, money.amount_of(payment.get(name)))
        for side, name in (
            ("source", "sourceAmount"),
            ("target", "targetAmount"),
            ("source", "amount"),
            ("target", "amount"),
        )
        if payment.get(name) is not None
    ]


def _filled(payment: Payment, entry: Entry | None, batch: Batch) -> Payment:
    """A payment with what the service leaves out: as asked, or computed where it can be."""
    asked = entry or {}
    filled = {**payment}
    filled["id"] = asked.get("id") or payment.get("id")
    filled["upstream"] = payment.get("id") or asked.get("upstream")
    filled["recipient"] = {**(asked.get("recipient") or {}), **(payment.get("recipient") or {})}
    if filled.get("amount") is not None:  # as a create names it
        side = "source" if filled.get("currency") in (None, batch.currency) else "target"
        filled.setdefault(f"{side}Amount", filled["amount"])
        filled.setdefault(f"{side}Currency", filled.get("currency"))
    for name in (
        "memo",
        "sourceAmount",
        "targetAmount",
        "targetCurrency",
        "createdAt",
        "updatedAt",
    ):
        if filled.get(name) is None:
            filled[name] = asked.get(name)
    if filled.get("sourceCurrency") is None:
        filled["sourceCurrency"] = batch.currency
    if filled.get("targetCurrency") in (None, filled["sourceCurrency"]):
        _fill_same_currency(filled)
    filled["batch"] = {**_batch_times(batch), **(payment.get("batch") or {}), "id": batch.id}
    return filled


def _fill_same_currency(filled: Payment) -> None:
    """Without another currency, both sides are the same amount."""
    if filled.get("targetCurrency") is None:
        return
    for side, other in (("sourceAmount", "targetAmount"), ("targetAmount", "sourceAmount")):
        if filled.get(side) is None:
            filled[side] = filled.get(other)


def _batch_times(batch: Batch) -> dict[str, JSON]:
    known = {**batch.facts, **batch.given}
    return {name: known.get(name) for name in ("createdAt", "updatedAt", "sentAt", "completedAt")}


# As answers show them


def batch_answer(batch: Batch) -> dict[str, JSON]:
    """``Batch`` of the legacy interface, section 2."""
    shown = BATCH.to_legacy({**batch.facts, **_present(batch.given), "id": batch.id})
    sum_ = money.total(payment.get("sourceAmount") for payment in batch.payments)
    given = batch.given.get("amount")
    shown["status"] = batch.status
    shown["amount"] = money.text(sum_) if sum_ is not None else given
    shown["totalPayments"] = len(batch.payments)
    shown["currency"] = batch.currency
    return shown


def listed_batch(batch: Batch) -> dict[str, JSON]:
    """A batch of the list, which may be known without its payments."""
    shown = batch_answer(batch)
    if batch.payments or batch.given.get("totalPayments") is None:
        return shown
    amount = money.amount_of(batch.given.get("amount"))
    shown["amount"] = money.text(amount) if amount is not None else shown["amount"]
    shown["totalPayments"] = batch.given["totalPayments"]
    return shown


def _present(given: Mapping[str, JSON]) -> dict[str, JSON]:
    return {name: value for name, value in given.items() if value is not None}


def whole_answer(batch: Batch, words: Mapping[str, JSON]) -> dict[str, JSON]:
    """A batch retrieved by id: all of its payments on one page."""
    listed = [listed_answer(payment, words) for payment in batch.payments]
    meta = {"page": 1, "pages": 1, "records": len(listed)}
    return {**batch_answer(batch), "payments": {"payments": listed, "meta": meta}}


def listed_answer(payment: Payment, words: Mapping[str, JSON]) -> dict[str, JSON]:
    """A payment in a batch listing, with its reduced recipient.

    ``words`` are the remembered facts of recipients, by id: their status may have a word here.
    """
    method = (payment.get("recipient") or {}).get("payoutMethod") or payment.get("method")
    return {
        **payment_answer(payment, reduced(payment.get("recipient") or {}, words)),
        "method": method,
        "methodDisplay": method_display(method),
        "isSupplyPayment": bool(payment.get("isSupplyPayment")),
    }


def reduced(recipient: Mapping[str, JSON], words: Mapping[str, JSON]) -> dict[str, JSON]:
    """The reduced recipient of batch listings."""
    country = recipient.get("country") or recipient.get("countryCode")
    country = country or (recipient.get("address") or {}).get("country")
    return {
        "id": recipient.get("id"),
        "referenceId": recipient.get("referenceId"),
        "email": recipient.get("email"),
        "name": recipient.get("name"),
        "status": objects.shown_status(recipient, words.get(str(recipient.get("id")), {})),
        "country": country,
        "countryCode": country,
    }
