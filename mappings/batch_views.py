"""Batches and payments as answers show them: the service's data, completed with the client's.

The gateway stores for each batch its *facts* (kind ``batch``) and its *entries* (kind
``payments``), which are the payments as the client requested them. ``id`` is the id that a batch or
payment had first, and clients keep using it; ``upstream`` is its present id at the service, which
changes when an edited batch is submitted again. The fact ``phase`` is the batch's state:

    sent      the service has the batch
    draft     the batch is edited in the gateway; the service has none, or a superseded one
    deleted
    editing, quoting, starting, making, deleting
              a request has locked the batch for this change
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
    read_only("id", why="set by the service"),
    read_only("description", why="stored here too if the service has no path to change it"),
    read_only(
        "completedAt",
        why="set by the service; if a complete batch has none, the latest `processedAt` of its "
        "payments if these are read, which a list does not do",
    ),
    read_only("createdAt", "updatedAt", why="set by the service"),
    by_hand("status", why="statuses that the legacy document lacks are translated"),
    by_hand("sentAt", why="if the service gives none, the time of the start through the gateway"),
    by_hand("amount", why="the sum of the source amounts"),
    by_hand("totalPayments", why="the number of payments"),
    by_hand("currency", why="the source currency"),
)


class Called(NamedTuple):
    """The ids of a payment, for clients and at the service, and its position in the batch."""

    id: JSON
    upstream: JSON
    place: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch: its stored state, the service's data and its payments.

    ``service_fields`` is the service's batch object, empty for a draft. ``computed_status`` is the
    status by the merchant's balance, set if neither service nor gateway knows one.
    ``has_known_payments`` is False for a batch created elsewhere whose payments the service does
    not show. ``has_lock`` says that this request acquired the batch's lock before it loaded the
    batch; ``signed_changes`` are the changes with a client's own signature as loaded before the
    batch.
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
        """The batch's id at the service; empty for a draft."""
        # Not the draft's own id: at the service that may name a superseded batch.
        return "" if self.is_draft else str(self.facts.get("upstream") or self.id)

    @property
    def is_draft(self) -> bool:
        return is_draft(self.facts)

    @property
    def currency(self) -> JSON:
        """The source currency; None if a batch was created elsewhere and the service omits it."""
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
        """Whether the batch is open or pending."""
        # Only the balance can tell open from pending, and here it does not matter which.
        return self.status is None or self.status in EDITABLE

    @property
    def sent_at(self) -> JSON:
        """When processing began, by the service, or else by the start through the gateway."""
        return self.given.get("sentAt") or (None if self.is_editable else self.facts.get("started"))

    @property
    def upstream_ids(self) -> Iterator[str]:
        """The payments' ids at the service."""
        return (str(one["upstream"]) for one in self.payments if one.get("upstream"))

    def called(self, names: Container[str] | None) -> Mapping[str, Called]:
        """Index the payments with these ids by id, be it the client's or the service's.

        None indexes all payments, which takes less memory than a very large set of ids.
        """
        found = (
            (name, Called(one["id"], one.get("upstream"), place))
            for place, one in enumerate(self.payments)
            # The two ids are mostly the same.
            for name in dict.fromkeys(str(id_) for id_ in (one.get("upstream"), one["id"]) if id_)
            if names is None or name in names
        )
        return build_row_mapping(self.payments, found)

    def payment(self, payment_id: str) -> Payment | None:
        """Find a payment by the client's id or the service's."""
        for payment in self.payments:
            if payment_id in (payment["id"], payment.get("upstream")):
                return payment
        return None


def is_draft(facts: Facts) -> bool:
    """Whether the batch exists in the gateway only; a superseded upstream batch does not count."""
    return bool(facts) and facts.get("upstream") is None


def derive_batch_status(known: Mapping[str, JSON]) -> str | None:
    """Derive a batch's legacy status from the service's status, or else from its times.

    None means open or pending, which only the merchant's balance can tell apart.
    """
    status = known.get("status")
    if status in STATUSES:
        return str(status)
    if status:
        # A status unknown to this program is taken for a stage of processing, so that the batch is
        # neither edited nor started.
        return "complete" if status in ENDED else "processing"
    if known.get("completedAt"):
        return "complete"
    return "processing" if known.get("sentAt") or known.get("started") else None


class _OfBatch(NamedTuple):
    """The fields that a batch's payments take from it, computed once for all of them."""

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
    """A batch's payments: the service's payments merged with the stored entries, on first use."""

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
            self._told, self._entries = None, ()  # frees the memory of both sources
        return self._filled

    def _filling(self) -> Sequence[Payment]:
        batch = self._batch
        if self._told is None:
            return map_rows(lambda entry: _filled({}, entry, batch), self._entries)
        pairs = match_payments(self._told, self._entries, batch.currency)
        return map_rows(lambda pair: _filled(pair[0], pair[1], batch), pairs)

    @property
    def amount(self) -> Decimal | None:
        """The sum of the source amounts; None if one of them is not known."""
        # Merging all payments is expensive, so the service's own amounts are tried first.
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
    """Build a batch from its stored state, the service's batch object and the service's payments.

    If the service does not show its payments (``payments`` is None), they are the requested ones.
    """
    given = restore_original_fields(facts, given)
    bare = Batch(batch_id, facts, entries, given, _EMPTY)
    # Some services give the currency only in the payments.
    if payments and bare.currency is None and (paid_from := _paid_from(payments)):
        given = {**given, "currency": paid_from}
        bare = replace(bare, given=given)
    if bare.status == "complete" and not (given.get("completedAt") or facts.get("completedAt")):
        bare = replace(bare, given={**given, "completedAt": _last_processed(payments or ())})
    filling = Filling(payments, entries, _OfBatch.of(bare))
    tells = payments is not None or bool(facts and not facts.get("elsewhere"))
    return replace(bare, filling=filling, tells_payments=tells)


def _last_processed(payments: Sequence[Payment]) -> JSON:
    """Return the latest ``processedAt`` of the payments, as the service wrote it, or None."""
    told = ((_moment(one.get("processedAt")), one.get("processedAt")) for one in payments)
    known = ((moment, text) for moment, text in told if moment is not None)
    return max(known, key=lambda one: one[0], default=(None, None))[1]


def _moment(text: JSON) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    # A time without an offset is taken as UTC, so that any two can be compared.
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def restore_original_fields(facts: Facts, given: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return the service's batch fields with the original ``createdAt`` and a stored description.

    A batch that was edited as a draft and submitted again has a new date at the service. A
    description changed only in the gateway counts as long as the service shows the one it replaced.
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
    """Return the source currency of the payments if they agree on one, else None."""
    told = {one["sourceCurrency"] for one in payments if one.get("sourceCurrency")}
    return told.pop() if len(told) == 1 else None


def build_requested_payment(batch: Batch, given: Payment, entry: Entry) -> Payment:
    """Build a payment from the client's request, for use if the summary cannot be read."""
    return _filled(given, entry, _OfBatch.of(batch))


def _filled(payment: Payment, entry: Entry | None, batch: _OfBatch) -> Payment:
    """Complete the service's payment with requested values, and with computed ones if possible."""
    asked = _as_paid(entry or {}, payment, batch)
    filled = {**payment}
    filled["id"] = asked.get("id") or payment.get("id")
    filled["upstream"] = payment.get("id") or asked.get("upstream")
    filled["asked_side"] = _asked_side(asked)
    if told := asked.get("told"):
        filled["told"] = told
    filled["recipient"] = {**(asked.get("recipient") or {}), **(payment.get("recipient") or {})}
    _fill_side(filled, asked, batch)
    # The memo was not sent (``send_memo``), or the service does not store memos.
    if asked.get("memo") and not filled.get("memo"):
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
    # The service's dates of a batch that was submitted again are those of the last submission.
    if batch.is_made_anew:
        filled["createdAt"] = asked.get("createdAt") or filled["createdAt"]
        filled["batch"] = {**filled["batch"], "createdAt": shown["createdAt"]}
    return filled


def _as_paid(asked: Entry, payment: Payment, batch: _OfBatch) -> Entry:
    """Turn a target amount in the batch's own currency into a source amount.

    Such an amount is paid as it is, but may be received in another currency. Then the target amount
    that the service shows is computed from it, and is not the one that the client requested.
    """
    of, arrives_as = asked.get("targetCurrency"), payment.get("targetCurrency")
    if not asked.get("targetAmount") or of != batch.currency or arrives_as in (None, of):
        return asked
    fixed = {"sourceAmount": asked["targetAmount"], "targetAmount": None, "targetCurrency": None}
    return {**asked, **fixed}


def _asked_side(asked: Entry) -> str | None:
    """Return the side whose amount the client fixed, ``source`` or ``target``; None if unknown."""
    if asked.get("sourceAmount"):
        return "source"
    return "target" if asked.get("targetAmount") else None


def _fill_side(filled: Payment, asked: Entry, batch: _OfBatch) -> None:
    """Assign ``amount`` and ``currency`` (current interface, section 4.3) to source or target."""
    amount, of = filled.get("amount"), filled.get("currency")
    if amount is None:
        return
    is_target = of not in (None, batch.currency or of)
    # Without a currency, an amount equal to the requested target amount is taken for that.
    if of is None and asked.get("targetAmount"):
        is_target = money.parse_amount(amount) == money.parse_amount(asked["targetAmount"])
    side = "target" if is_target else "source"
    for name, value in ((f"{side}Amount", amount), (f"{side}Currency", of)):
        if filled.get(name) is None:
            filled[name] = value


def _fill_same_currency(filled: Payment) -> None:
    """Copy an amount to the other side if both have the same currency."""
    # Without a target currency the amount that arrives is not known.
    if filled.get("targetCurrency") is None:
        return
    for side, other in (("sourceAmount", "targetAmount"), ("targetAmount", "sourceAmount")):
        if filled.get(side) is None:
            filled[side] = filled.get(other)


# Stored form


def build_batch_record(
    batch_id: str, facts: Facts, entries: Sequence[Entry], aliases: Sequence[Record] = ()
) -> Record:
    """Build the record that stores a batch's facts, entries and payment redirects atomically."""
    # A search for memos skips the entries of batches without any.
    has_memos = any(one.get("memo") for one in entries)
    kept = Record("payments", batch_id, {"entries": entries}, also=aliases)
    return Record("batch", batch_id, {**facts, "has_memos": has_memos}, also=(kept,))


# Answers


def build_batch_answer(batch: Batch) -> dict[str, JSON]:
    """Build a ``Batch`` (legacy interface, section 2)."""
    shown = BATCH.to_legacy({**batch.facts, **drop_nulls(batch.given), "id": batch.id})
    # The sum agrees with the payments that the client sees; the service's total may not.
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
    """Build a listed ``Batch``, whose payments may not have been read."""
    shown = build_batch_answer(batch)
    if batch.filling or batch.given.get("totalPayments") is None:
        return shown
    amount = money.parse_amount(batch.given.get("amount"))
    shown["amount"] = money.format_amount(amount) if amount is not None else shown["amount"]
    shown["totalPayments"] = batch.given["totalPayments"]
    return shown


def drop_nulls(given: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the fields that are not null: a null from the service means that it gives no value."""
    return {name: value for name, value in given.items() if value is not None}


def build_full_batch_answer(batch: Batch, words: Mapping[str, JSON]) -> dict[str, JSON]:
    """Build the answer to a batch read by id, with all of its payments on one page."""
    listed = packed(
        map_rows(lambda payment: build_payment_list_item(payment, words), batch.payments)
    )
    meta = paging.build_meta(1, min(len(listed), 1), len(listed))
    return {**build_batch_answer(batch), "payments": {"payments": listed, "meta": meta}}


def build_payment_list_item(payment: Payment, words: Mapping[str, JSON]) -> dict[str, JSON]:
    """Build a payment of a batch listing, with its reduced recipient.

    ``recipient_facts`` are the stored facts of recipients, by id: their status derives from them.
    """
    # The stored recipient is as it was when the payment was requested, so it comes second.
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
    """Iterate over the recipient ids of the payments that show one."""
    recipients = (payment.get("recipient") or {} for payment in payments)
    return (str(one["id"]) for one in recipients if one.get("id"))


def build_reduced_recipient(
    recipient: Mapping[str, JSON], words: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Build the reduced recipient of batch listings."""
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
    """Return the country of a recipient, reduced or in full; None if it has none."""
    country = recipient.get("country") or recipient.get("countryCode")
    return country or (recipient.get("address") or {}).get("country")
