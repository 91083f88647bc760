"""Batches as they are known here: what the service says, filled in from what was asked.

The ledger keeps of a batch its *facts* (kind ``batch``) and its *entries* (kind ``payments``): each
payment as the client asked for it. The id of a batch or payment is the one it had first; ``upstream``
is the one that it has at the service now.

    phase     sent: the service has it
              draft: edited here; the service has none, or none that counts
              editing, quoting, starting, making, deleting: a change is under way
              deleted
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import NamedTuple

from mappings import current, legacy, money, objects, paging
from mappings.fields import Fields, by_hand, read_only
from mappings.grammar import JSON, Record
from mappings.matching import Entry, Payment, match_payments
from mappings.objects import build_payment_answer, format_method_display
from mappings.rows import build_row_mapping, map_rows, packed

Facts = Mapping[str, JSON]

STATUSES = frozenset({"open", "pending", "processing", "accepted", "complete"})
ENDED = frozenset({"processed", "failed"})
EDITABLE = frozenset({"open", "pending"})

BATCH = Fields(
    (legacy.Batch,),
    (current.BatchFields,),
    read_only("id", why="the service's own"),
    read_only("description", why="remembered here too where the service has no path to change it"),
    read_only(
        "completedAt",
        why="the service's own; of a complete batch without one, the latest `processedAt` of its payments "
        "where these are read, which a list does not",
    ),
    read_only("createdAt", "updatedAt", why="the service's own"),
    by_hand("status", why="words that the legacy document lacks"),
    by_hand("sentAt", why="a start made here tells it where the service does not"),
    by_hand("amount", why="the sum of the source amounts"),
    by_hand("totalPayments", why="counted"),
    by_hand("currency", why="the source currency"),
)


class Called(NamedTuple):
    """A payment's id as clients know it, and the service's."""

    id: JSON
    upstream: JSON
    place: int
    """Among the payments of the batch."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch: ``given`` is what the service says of it, empty for a draft.

    ``computed`` is its status by the balance, set before it is shown where nothing else tells.
    ``tells_payments`` is whether its payments are known, as those of one that was made elsewhere
    need not be. ``is_held`` is whether an edit took it before it was read, ``signed`` what was known
    before that of changes that clients have signed.
    """

    id: str
    facts: Facts
    entries: Sequence[Entry]
    given: Mapping[str, JSON]
    filling: Filling
    computed: str | None = None
    tells_payments: bool = True
    is_held: bool = False
    signed: Facts = field(default_factory=dict)

    @property
    def payments(self) -> Sequence[Payment]:
        return self.filling.payments

    @property
    def upstream(self) -> str:
        """The service's batch; empty for a draft, whose own id may name one that is superseded."""
        return "" if self.is_draft else str(self.facts.get("upstream") or self.id)

    @property
    def is_draft(self) -> bool:
        return is_draft(self.facts)

    @property
    def currency(self) -> JSON:
        """None where nothing tells it: of a batch made elsewhere, in front of a bare service."""
        given = self.given.get("currency") or self.given.get("sourceCurrency")
        return given or self.facts.get("currency")

    @property
    def description(self) -> JSON:
        return {**self.facts, **drop_nulls(self.given)}.get("description")

    @property
    def status(self) -> str | None:
        return derive_batch_status({**self.facts, **drop_nulls(self.given)}) or self.computed

    @property
    def is_editable(self) -> bool:
        """Whether it is open or pending: which of the two needs no balance to be known here."""
        return self.status is None or self.status in EDITABLE

    @property
    def sent_at(self) -> JSON:
        """When processing began: the service's time, else that of the start made here."""
        return self.given.get("sentAt") or (None if self.is_editable else self.facts.get("started"))

    @property
    def upstream_ids(self) -> Iterator[str]:
        """The service's ids of its payments."""
        return (str(one["upstream"]) for one in self.payments if one.get("upstream"))

    def called(self, names: Container[str] | None) -> Mapping[str, Called]:
        """Its payments of these names, which are ids that clients know, or else the service's.

        Or all of them: to remember very many names takes more room than to keep all.
        """
        found = (
            (name, Called(one["id"], one.get("upstream"), place))
            for place, one in enumerate(self.payments)
            # Mostly they are one and the same.
            for name in dict.fromkeys(str(id_) for id_ in (one.get("upstream"), one["id"]) if id_)
            if names is None or name in names
        )
        return build_row_mapping(self.payments, found)

    def payment(self, payment_id: str) -> Payment | None:
        """By the id that clients know, or the service's."""
        for payment in self.payments:
            if payment_id in (payment["id"], payment.get("upstream")):
                return payment
        return None


def is_draft(facts: Facts) -> bool:
    """Whether a batch is the ledger's alone: known here, and the service has none that counts."""
    return bool(facts) and facts.get("upstream") is None


def derive_batch_status(known: Mapping[str, JSON]) -> str | None:
    """A batch's status in the legacy document's words: the service's, or what its times tell.

    None where only the balance can tell whether it is open or pending.
    """
    status = known.get("status")
    if status in STATUSES:
        return str(status)
    if status:
        return "complete" if status in ENDED else "processing"
    if known.get("completedAt"):
        return "complete"
    return "processing" if known.get("sentAt") or known.get("started") else None


class _OfBatch(NamedTuple):
    """What each of a batch's payments has of it: found out once, however many there are."""

    currency: JSON
    shown: Mapping[str, JSON]
    is_made_anew: bool = False

    @classmethod
    def of(cls, batch: Batch) -> _OfBatch:
        known = {**batch.facts, **drop_nulls(batch.given), "sentAt": batch.sent_at}
        times = ("createdAt", "updatedAt", "sentAt", "completedAt")
        shown = {**{name: known.get(name) for name in times}, "id": batch.id}
        return cls(batch.currency, shown, _is_made_anew(batch.facts))


class Filling:
    """A batch's payments: as they were told, and filled in once more of them is asked for."""

    __slots__ = ("_batch", "_entries", "_filled", "_told")

    def __init__(
        self, told: Sequence[Payment] | None, entries: Sequence[Entry], batch: _OfBatch
    ) -> None:
        self._told = told
        self._entries = entries
        self._batch = batch
        self._filled: Sequence[Payment] | None = None

    def __len__(self) -> int:
        if self._filled is not None:
            return len(self._filled)
        return len(self._entries if self._told is None else self._told)

    @property
    def payments(self) -> Sequence[Payment]:
        if self._filled is None:
            self._filled = packed(self._filling())
            self._told, self._entries = None, ()
        return self._filled

    def _filling(self) -> Sequence[Payment]:
        batch = self._batch
        if self._told is None:
            return map_rows(lambda entry: _filled({}, entry, batch), self._entries)
        pairs = match_payments(self._told, self._entries, batch.currency)
        return map_rows(lambda pair: _filled(pair[0], pair[1], batch), pairs)

    @property
    def amount(self) -> Decimal | None:
        """The sum of the source amounts; None where one is not known."""
        told = None if self._told is None else _sum_of(self._told)
        return _sum_of(self.payments) if told is None else told


def _sum_of(payments: Sequence[Payment]) -> Decimal | None:
    return money.sum_amounts(payment.get("sourceAmount") for payment in payments)


_EMPTY = Filling((), (), _OfBatch(None, {}))


def build_batch(
    batch_id: str,
    facts: Facts,
    entries: Sequence[Entry],
    given: Mapping[str, JSON],
    payments: Sequence[Payment] | None,
) -> Batch:
    """A batch with its payments filled in.

    ``payments`` is None where the service does not tell them: they are those that were asked for.
    """
    given = restore_original_fields(facts, given)
    bare = Batch(batch_id, facts, entries, given, _EMPTY)
    if payments and bare.currency is None and (paid_from := _paid_from(payments)):
        given = {**given, "currency": paid_from}
        bare = replace(bare, given=given)
    if bare.status == "complete" and not (given.get("completedAt") or facts.get("completedAt")):
        bare = replace(bare, given={**given, "completedAt": _last_processed(payments or ())})
    filling = Filling(payments, entries, _OfBatch.of(bare))
    tells = payments is not None or bool(facts and not facts.get("elsewhere"))
    return replace(bare, filling=filling, tells_payments=tells)


def _last_processed(payments: Sequence[Payment]) -> JSON:
    """The latest ``processedAt`` of payments, as the service wrote it; None where none tells one."""
    told = ((_moment(one.get("processedAt")), one.get("processedAt")) for one in payments)
    known = ((moment, text) for moment, text in told if moment is not None)
    return max(known, key=lambda one: one[0], default=(None, None))[1]


def _moment(text: JSON) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def restore_original_fields(facts: Facts, given: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """What the service says of a batch; one that was edited, and so made anew, keeps its date.

    A description that was changed here stands as long as the service shows the one that was then.
    """
    was, told = facts.get("description_was"), given.get("description")
    if was is not None and was == (told or ""):
        description = facts.get("description")
        given = {**given, "description": description, "description_told": told}
    if not (given and _is_made_anew(facts) and facts.get("createdAt")):
        return given
    return {**given, "createdAt": facts["createdAt"]}


def _is_made_anew(facts: Facts) -> bool:
    return bool(facts.get("abandoned"))


def _paid_from(payments: Sequence[Payment]) -> JSON:
    """The source currency of a batch's payments, where they tell one and agree."""
    told = {one["sourceCurrency"] for one in payments if one.get("sourceCurrency")}
    return told.pop() if len(told) == 1 else None


def build_requested_payment(batch: Batch, given: Payment, entry: Entry) -> Payment:
    """A payment as the client asked for it, where its summary cannot be read."""
    return _filled(given, entry, _OfBatch.of(batch))


def _filled(payment: Payment, entry: Entry | None, batch: _OfBatch) -> Payment:
    """A payment with what the service leaves out: as asked, or computed where it can be."""
    asked = _as_paid(entry or {}, payment, batch)
    filled = {**payment}
    filled["id"] = asked.get("id") or payment.get("id")
    filled["upstream"] = payment.get("id") or asked.get("upstream")
    filled["asked_side"] = _asked_side(asked)
    if told := asked.get("told"):
        filled["told"] = told
    filled["recipient"] = {**(asked.get("recipient") or {}), **(payment.get("recipient") or {})}
    _fill_side(filled, asked, batch)
    if asked.get("memo") and not filled.get("memo"):  # not sent, or not kept: a service has no memo
        filled["memo"] = asked["memo"]
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
            if name.endswith("Amount"):
                filled[name] = money.normalize_amount(filled[name])
    if filled.get("sourceCurrency") is None:
        filled["sourceCurrency"] = batch.currency
    if filled.get("targetCurrency") in (None, filled["sourceCurrency"]):
        _fill_same_currency(filled)
    told, shown = payment.get("batch"), batch.shown
    filled["batch"] = {**shown, **drop_nulls(told), "id": shown["id"]} if told else shown
    if batch.is_made_anew:
        filled["createdAt"] = asked.get("createdAt") or filled["createdAt"]
        filled["batch"] = {**filled["batch"], "createdAt": shown["createdAt"]}
    return filled


def _as_paid(asked: Entry, payment: Payment, batch: _OfBatch) -> Entry:
    """A target amount in the batch's own currency is what is paid, and may arrive in another.

    Then the target amount that the service shows is its reckoning, and not what the client fixed.
    """
    of, arrives_as = asked.get("targetCurrency"), payment.get("targetCurrency")
    if not asked.get("targetAmount") or of != batch.currency or arrives_as in (None, of):
        return asked
    fixed = {"sourceAmount": asked["targetAmount"], "targetAmount": None, "targetCurrency": None}
    return {**asked, **fixed}


def _asked_side(asked: Entry) -> str | None:
    """Which amount of a payment the client fixed; None where it is not known here."""
    if asked.get("sourceAmount"):
        return "source"
    return "target" if asked.get("targetAmount") else None


def _fill_side(filled: Payment, asked: Entry, batch: _OfBatch) -> None:
    """``amount`` and ``currency``, as a create names them, on the side that they are of."""
    amount, of = filled.get("amount"), filled.get("currency")
    if amount is None:
        return
    is_target = of not in (None, batch.currency or of)
    if of is None and asked.get("targetAmount"):
        is_target = money.parse_amount(amount) == money.parse_amount(asked["targetAmount"])
    side = "target" if is_target else "source"
    for name, value in ((f"{side}Amount", amount), (f"{side}Currency", of)):
        if filled.get(name) is None:
            filled[name] = value


def _fill_same_currency(filled: Payment) -> None:
    """Without another currency, both sides are the same amount."""
    if filled.get("targetCurrency") is None:
        return
    for side, other in (("sourceAmount", "targetAmount"), ("targetAmount", "sourceAmount")):
        if filled.get(side) is None:
            filled[side] = filled.get(other)


# As the ledger keeps them


def build_batch_record(
    batch_id: str, facts: Facts, entries: Sequence[Entry], aliases: Sequence[Record] = ()
) -> Record:
    """A batch's facts, its entries and the aliases of these, remembered together.

    ``has_memos`` spares whoever looks for memos the entries of batches that have none.
    """
    has_memos = any(one.get("memo") for one in entries)
    kept = Record("payments", batch_id, {"entries": entries}, also=aliases)
    return Record("batch", batch_id, {**facts, "has_memos": has_memos}, also=(kept,))


# As answers show them


def build_batch_answer(batch: Batch) -> dict[str, JSON]:
    """``Batch`` of the legacy interface, section 2."""
    shown = BATCH.to_legacy({**batch.facts, **drop_nulls(batch.given), "id": batch.id})
    sum_ = batch.filling.amount
    given = money.normalize_amount(batch.given.get("amount"))
    shown["status"] = batch.status
    shown["sentAt"] = batch.sent_at
    shown["amount"] = (
        money.format_amount(sum_) if sum_ is not None and batch.tells_payments else given
    )
    known = len(batch.filling) if batch.tells_payments else batch.given.get("totalPayments")
    shown["totalPayments"] = known
    shown["currency"] = batch.currency
    return shown


def build_batch_list_item(batch: Batch) -> dict[str, JSON]:
    """A batch of the list, which may be known without its payments."""
    shown = build_batch_answer(batch)
    if batch.filling or batch.given.get("totalPayments") is None:
        return shown
    amount = money.parse_amount(batch.given.get("amount"))
    shown["amount"] = money.format_amount(amount) if amount is not None else shown["amount"]
    shown["totalPayments"] = batch.given["totalPayments"]
    return shown


def drop_nulls(given: Mapping[str, JSON]) -> dict[str, JSON]:
    """What a service tells; a field that it gives as null it does not tell."""
    return {name: value for name, value in given.items() if value is not None}


def build_full_batch_answer(batch: Batch, words: Mapping[str, JSON]) -> dict[str, JSON]:
    """A batch retrieved by id: all of its payments on one page."""
    listed = packed(
        map_rows(lambda payment: build_payment_list_item(payment, words), batch.payments)
    )
    meta = paging.build_meta(1, min(len(listed), 1), len(listed))
    return {**build_batch_answer(batch), "payments": {"payments": listed, "meta": meta}}


def build_payment_list_item(payment: Payment, words: Mapping[str, JSON]) -> dict[str, JSON]:
    """A payment in a batch listing, with its reduced recipient.

    ``words`` are the remembered facts of recipients, by id: their status may have a word here.
    """
    # The service's own word first: what is remembered of the recipient is from when it was entered.
    method = payment.get("method") or (payment.get("recipient") or {}).get("payoutMethod")
    return {
        **build_payment_answer(
            payment, build_reduced_recipient(payment.get("recipient") or {}, words)
        ),
        "method": method,
        "methodDisplay": format_method_display(method),
        "isSupplyPayment": bool(payment.get("isSupplyPayment")),
    }


def iterate_payee_ids(payments: Sequence[Payment]) -> Iterator[str]:
    """The ids of those who are paid, where they are told."""
    recipients = (payment.get("recipient") or {} for payment in payments)
    return (str(one["id"]) for one in recipients if one.get("id"))


def build_reduced_recipient(
    recipient: Mapping[str, JSON], words: Mapping[str, JSON]
) -> dict[str, JSON]:
    """The reduced recipient of batch listings."""
    country = extract_country(recipient)
    return {
        "id": recipient.get("id"),
        "referenceId": recipient.get("referenceId"),
        "email": recipient.get("email"),
        "name": recipient.get("name"),
        "status": objects.derive_legacy_status(recipient, words.get(str(recipient.get("id")), {})),
        "country": country,
        "countryCode": country,
    }


def extract_country(recipient: Mapping[str, JSON]) -> JSON:
    """The country of a recipient, reduced or in full; None if it does not tell one."""
    country = recipient.get("country") or recipient.get("countryCode")
    return country or (recipient.get("address") or {}).get("country")
