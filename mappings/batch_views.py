"""Batches and payments for answers: the service's data, completed with the client's.

The gateway stores for each batch its *facts* (kind ``batch``) and its *entries* (kind
``payments``), the payments as the client requested them. ``id`` is the id that a batch or payment
had first, and clients keep using it; ``upstream`` is its present id at the service, which changes
when an edited batch is submitted again. The fact ``phase`` is the batch's state:

    sent      the service has the batch
    draft     the batch is edited in the gateway; the service has none, or a superseded one
    deleted
    editing, quoting, starting, making, deleting
              a request has locked the batch for this change
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

from mappings import legacy, money, paging
from mappings.dates import EARLIEST_INSTANT, parse_instant_or_earliest
from mappings.effects import JSON, CompareAndSet
from mappings.fields import FieldTable
from mappings.lazy_sequences import iterate_field, map_rows, materialize_rows
from mappings.matching import Entry, Payment, match_payments_with_entries
from mappings.objects import (
    SENT_FIELDS,
    UPSTREAM_STATUS,
    Facts,
    build_legacy_payment,
    choose_legacy_recipient_status,
    drop_nulls,
    format_payout_method_display,
)
from mappings.payloads import has_more_payments

LEGACY_STATUSES = frozenset({"open", "pending", "processing", "accepted", "complete"})
ENDED_STATUSES = frozenset({"processed", "failed"})
EDITABLE_STATUSES = frozenset({"open", "pending"})

BATCH = FieldTable(
    (legacy.Batch,),
    (legacy.Batch,),
    read_only={
        **dict.fromkeys(("id", "createdAt", "updatedAt"), "set by the service"),
        "description": "stored here too if the service has no path to change it",
        "completedAt": "set by the service; if a complete batch has none, the latest `processedAt` "
        "of its payments if these are read, which a list does not do",
    },
    set_in_code={
        "status": "statuses that the legacy document lacks are translated",
        "sentAt": "if the service gives none, the time of the start through the gateway",
        "amount": "the sum of the source amounts",
        "totalPayments": "the number of payments",
        "currency": "the source currency",
    },
)


SIGNED_ADDS = "signed adds"
"""Kind of the payments that clients have added to a batch by signed requests, by change name."""


class PaymentRef(NamedTuple):
    """The ids of a payment, for clients and at the service, and its position in the batch."""

    id: JSON
    upstream_id: JSON
    position: int


@dataclass(eq=False, slots=True)
class Batch:
    """A batch: its stored state, the service's data and its payments.

    ``service_fields`` is the service's batch object, empty for a draft. ``rows`` are the payments
    as the service shows them, until they are read; None if it does not show them.
    ``computed_status`` is the status by the merchant's balance, set if neither service nor gateway
    knows one. ``has_known_payments`` is False for a batch created elsewhere whose payments the
    service does not show, and for one that has more payments than are known. ``lock`` are the facts
    of the batch's lock if this request holds it.
    ``signed_changes`` are the changes with a client's own signature, or for an add the payments that
    they have added; loaded before the batch. ``requested_id`` is the id by which the request names the
    batch, empty if it names none.
    """

    id: str
    facts: Facts
    entries: Sequence[Entry]
    service_fields: Mapping[str, JSON] = field(default_factory=dict)
    rows: Sequence[Payment] | None = None
    computed_status: str | None = None
    has_known_payments: bool = True
    lock: Facts | None = None
    signed_changes: Facts = field(default_factory=dict)
    requested_id: str = ""
    _is_merged: bool = False

    @property
    def payments(self) -> Sequence[Payment]:
        """The payments of the service merged with the stored entries, on first use."""
        if not self._is_merged:
            # Replaced, which frees the memory of what the service has shown.
            self.rows, self._is_merged = materialize_rows(self.merge_payments()), True
        return self.rows  # type: ignore[return-value] # merged

    def merge_payments(self) -> Sequence[Payment]:
        """Merges each payment when it is read, which takes less if few are; before ``payments``."""
        shared = self.common_payment_fields
        if self.rows is None:
            return map_rows(
                lambda entry: merge_payment_with_request(entry.get("told") or {}, entry, shared),
                self.entries,
            )
        pairs = match_payments_with_entries(self.rows, self.entries, shared.currency)
        return map_rows(lambda pair: merge_payment_with_request(pair[0], pair[1], shared), pairs)

    @property
    def payment_count(self) -> int:
        return len(self.entries if self.rows is None else self.rows)

    @property
    def amount(self) -> Decimal | None:
        """The sum of the source amounts; None if one of them is not known."""
        # Merging all payments is expensive, so the service's own amounts are tried first.
        total = None if self.rows is None else _sum_source_amounts(self.rows)
        return _sum_source_amounts(self.payments) if total is None else total

    @property
    def common_payment_fields(self) -> _SharedFields:
        fields = {**self.facts, **drop_nulls(self.service_fields), "sentAt": self.send_time}
        times = ("createdAt", "updatedAt", "sentAt", "completedAt")
        batch_object = {**{name: fields.get(name) for name in times}, "id": self.answer_id}
        return _SharedFields(self.currency, batch_object, bool(self.facts.get("abandoned")))

    @property
    def answer_id(self) -> str:
        """The id in answers, which spell an id as its request did (contract, section 5)."""
        return self.requested_id or self.id

    @property
    def upstream_id(self) -> str:
        """The batch's id at the service; empty for a draft."""
        # The draft's own id is not used: at the service it may name a superseded batch.
        return "" if self.is_draft else str(self.facts.get("upstream") or self.id)

    @property
    def is_draft(self) -> bool:
        return is_draft(self.facts)

    @property
    def is_created_by_gateway(self) -> bool:
        return bool(self.facts.get("createdAt")) and not self.facts.get("elsewhere")

    @property
    def currency(self) -> JSON:
        """The source currency; None if a batch was created elsewhere and the service omits it."""
        service_currency = self.service_fields.get("currency") or self.service_fields.get(
            "sourceCurrency"
        )
        return service_currency or self.facts.get("currency")

    @property
    def description(self) -> JSON:
        return self._find_field("description")

    @property
    def created_at(self) -> JSON:
        return self._find_field("createdAt")

    @property
    def status(self) -> str | None:
        return derive_batch_status(self._find_field) or self.computed_status

    def _find_field(self, name: str) -> JSON:
        """Returns a field's value at the service, else the stored one; null is no value."""
        value = self.service_fields.get(name)
        return self.facts.get(name) if value is None else value

    @property
    def is_editable(self) -> bool:
        """Whether the batch is open or pending."""
        # Only the balance can distinguish open from pending, and either one is editable.
        status = self.status
        return status is None or status in EDITABLE_STATUSES

    @property
    def send_time(self) -> JSON:
        """Start of processing: the service's time, else that of the start through the gateway."""
        started_at = self.facts.get("started")
        is_started = started_at is not None and not self.is_editable
        return self.service_fields.get("sentAt") or (started_at if is_started else None)

    def map_payment_refs_by_id(self, ids: Container[str] | None) -> Mapping[str, PaymentRef]:
        """Indexes the payments with these ids by id; each may be any by which it is found.

        None indexes all payments, which takes less memory than a very large set of ids.
        """
        return {
            str(id_): PaymentRef(payment["id"], payment.get("upstream"), position)
            for position, payment in enumerate(self.payments)
            for id_ in {payment.get("upstream"), payment["id"], payment["added_as"]}  # mostly one
            if id_ and (ids is None or str(id_) in ids)
        }

    def find_payment(self, payment_id: str) -> Payment | None:
        """Finds a payment by the client's id, the service's, or the one it was added as."""
        names = ("id", "upstream", "added_as")
        found = (each for each in self.payments if payment_id in map(each.get, names))
        return next(found, None)


def is_draft(facts: Facts) -> bool:
    """Whether the batch exists in the gateway only; a superseded upstream batch does not count."""
    return bool(facts) and facts.get("upstream") is None


def derive_batch_status(find_field: Callable[[str], JSON]) -> str | None:
    """Derives a batch's legacy status from the service's status, or else from its times.

    None means open or pending, which only the merchant's balance can tell apart.
    """
    status = find_field("status")
    if status in LEGACY_STATUSES:
        return str(status)
    if status:
        # An unknown status counts as a stage of processing, so that the batch is neither edited nor
        # started.
        return "complete" if status in ENDED_STATUSES else "processing"
    if find_field("completedAt"):
        return "complete"
    return "processing" if find_field("sentAt") or find_field("started") else None


class _SharedFields(NamedTuple):
    """The fields that a batch's payments take from it, computed once for all of them."""

    currency: JSON
    batch_object: Mapping[str, JSON]
    is_recreated: bool


def _sum_source_amounts(payments: Sequence[Payment]) -> Decimal | None:
    amounts: list[Any] = [*map(money.parse_amount, iterate_field(payments, "sourceAmount"))]
    return None if None in amounts else money.sum_decimals(amounts)


def build_batch(
    batch_id: str,
    facts: Facts,
    entries: Sequence[Entry],
    fields: Mapping[str, JSON],
    payments: Sequence[Payment] | None,
    *,
    requested_id: str = "",
) -> Batch:
    """Builds a batch from its stored state, the service's batch object and the service's payments.

    If the service does not show its payments (``payments`` is None), they are the requested ones.
    """
    service_fields = restore_original_batch_fields(facts, fields)
    batch = Batch(batch_id, facts, entries, service_fields, payments, requested_id=requested_id)
    is_shown_or_stored = payments is not None or bool(facts and not facts.get("elsewhere"))
    batch.has_known_payments = is_shown_or_stored and not has_more_payments(
        fields, batch.payment_count
    )
    # Some services give the currency only in the payments.
    if payments and batch.currency is None:
        currency = _derive_source_currency(payments)
        batch.service_fields = {**batch.service_fields, "currency": currency}
    has_time = batch.service_fields.get("completedAt") or facts.get("completedAt")
    if batch.status == "complete" and not has_time:
        completed_at = _find_latest_processed_time(payments or ())
        batch.service_fields = {**batch.service_fields, "completedAt": completed_at}
    return batch


def _find_latest_processed_time(payments: Sequence[Payment]) -> JSON:
    """Returns the latest ``processedAt`` of the payments, as the service wrote it, or None."""
    times = iterate_field(payments, "processedAt")
    latest = max(times, key=parse_instant_or_earliest, default=None)
    return None if parse_instant_or_earliest(latest) == EARLIEST_INSTANT else latest


def restore_original_batch_fields(facts: Facts, fields: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Returns the service's batch fields with the original ``createdAt`` and a stored description.

    A batch that was edited as a draft and submitted again has a new date at the service. A
    description changed only in the gateway counts as long as the service shows the one it replaced.
    """
    replaced_text, service_text = facts.get("description_was"), fields.get("description")
    if replaced_text is not None and replaced_text == (service_text or ""):
        description = facts.get("description")
        fields = {**fields, "description": description, "description_told": service_text}
    if fields and facts.get("abandoned") and facts.get("createdAt"):
        return {**fields, "createdAt": facts["createdAt"]}
    return fields


def _derive_source_currency(payments: Sequence[Payment]) -> JSON:
    """Returns the source currency of the payments if they agree on one, else None."""
    currencies = {currency for currency in iterate_field(payments, "sourceCurrency") if currency}
    return currencies.pop() if len(currencies) == 1 else None


def merge_payment_with_request(
    payment: Payment, entry: Entry | None, batch: _SharedFields
) -> Payment:
    """Completes the service's payment with requested values, and with computed ones if possible."""
    requested = _relabel_target_as_source_amount(entry or {}, payment, batch)
    merged = {**payment}
    # The first id that the client got, even if the payment was submitted again since.
    merged["id"] = requested.get("id") or payment.get("id")
    merged["upstream"] = payment.get("id") or requested.get("upstream")
    merged["added_as"] = requested.get("added_as")
    # The side whose amount the client fixed.
    side = next((side for side in ("source", "target") if requested.get(f"{side}Amount")), None)
    merged["asked_side"] = side
    # The service may not show the last change yet.
    merged["asked_amount"] = requested.get(f"{side}Amount")
    merged["asked_currency"] = requested.get("targetCurrency") if side == "target" else None
    # Field by field: summaries often show no more of a recipient than the id.
    shown_recipient = payment.get("recipient") or {}
    merged["recipient"] = {**(requested.get("recipient") or {}), **shown_recipient}
    merged["has_shown_status"] = shown_recipient.get("status") is not None
    _set_source_or_target_amount(merged, requested, batch)
    # The memo was not sent (``send_memo``), or the service does not store memos.
    if requested.get("memo") and not merged.get("memo"):
        merged["memo"] = requested["memo"]
    for name in (*SENT_FIELDS, "createdAt", "updatedAt"):
        if merged.get(name) is None:
            merged[name] = requested.get(name)
            if name.endswith("Amount"):
                merged[name] = money.normalize_amount(merged[name])
    if merged.get("sourceCurrency") is None:
        merged["sourceCurrency"] = batch.currency
    # Without a target currency, the received amount is not known.
    if (
        merged["targetCurrency"] is not None
        and merged["targetCurrency"] == merged["sourceCurrency"]
    ):
        for name, other in (("sourceAmount", "targetAmount"), ("targetAmount", "sourceAmount")):
            if merged[name] is None:
                merged[name] = merged[other]
    extra, shared = payment.get("batch"), batch.batch_object
    merged["batch"] = {**shared, **drop_nulls(extra), "id": shared["id"]} if extra else shared
    # The service's dates of a batch that was submitted again are those of the last submission.
    if batch.is_recreated:
        merged["createdAt"] = requested.get("createdAt") or merged["createdAt"]
        merged["batch"] = {**merged["batch"], "createdAt": shared["createdAt"]}
    return merged


def _relabel_target_as_source_amount(entry: Entry, payment: Payment, batch: _SharedFields) -> Entry:
    """Turns a target amount in the batch's own currency into a source amount.

    Exactly this amount is paid, but the recipient may receive another currency. The target amount
    that the service shows is then computed, and is not the one that the client requested.
    """
    currency, target = entry.get("targetCurrency"), payment.get("targetCurrency")
    if not entry.get("targetAmount") or currency != batch.currency or target in (None, currency):
        return entry
    source = {"sourceAmount": entry["targetAmount"], "targetAmount": None, "targetCurrency": None}
    return {**entry, **source}


def _set_source_or_target_amount(payment: Payment, entry: Entry, batch: _SharedFields) -> None:
    """Assigns ``amount`` and ``currency`` (current interface, section 4.3) to source or target."""
    amount, currency = payment.get("amount"), payment.get("currency")
    if amount is None:
        return
    is_target = currency not in (None, batch.currency or currency)
    # An amount without a currency that equals the requested target amount counts as the target
    # amount.
    if currency is None and entry.get("targetAmount"):
        is_target = money.parse_amount(amount) == money.parse_amount(entry["targetAmount"])
    side = "target" if is_target else "source"
    for name, value in ((f"{side}Amount", amount), (f"{side}Currency", currency)):
        if payment.get(name) is None:
            payment[name] = value


# Stored form


def build_batch_record(
    batch_id: str, facts: Facts, entries: Sequence[Entry], created_ids: Sequence[str] = ()
) -> CompareAndSet:
    """Builds the record that stores a batch's facts and entries atomically."""
    # A search for memos skips the entries of batches without any.
    has_memos = any(entry.get("memo") for entry in entries)
    build = partial(CompareAndSet, created_ids=created_ids)
    entries_record = build("payments", batch_id, {"entries": entries})
    return build("batch", batch_id, {**facts, "has_memos": has_memos}, linked=(entries_record,))


# Answers


def build_legacy_batch(batch: Batch) -> dict[str, JSON]:
    """Builds a ``Batch`` (legacy interface, section 2)."""
    answer = BATCH.translate_to_legacy(
        {**batch.facts, **drop_nulls(batch.service_fields), "id": batch.answer_id}
    )
    shown = batch.service_fields
    amount = money.normalize_amount(shown.get("amount"))
    count = paging.parse_count_or_default(shown.get("totalPayments"), None)
    if batch.has_known_payments:
        # The sum agrees with the payments that the client sees; the service's total may not.
        count, total = batch.payment_count, batch.amount
        amount = amount if total is None else money.format_amount(total)
    answer |= {"status": batch.status, "sentAt": batch.send_time, "currency": batch.currency}
    return {**answer, "amount": amount, "totalPayments": count}


def build_batch_list_item(batch: Batch) -> dict[str, JSON]:
    """Builds a ``ListedBatch``, whose payments may not have been read."""
    answer, shown = build_legacy_batch(batch), batch.service_fields
    if (deal_id := shown.get("dealId")) is not None:
        answer["dealId"] = deal_id
    # A list shows only totals; no payments here means that none were read.
    count = paging.parse_count_or_default(shown.get("totalPayments"), None)
    if not batch.payment_count and count is not None:
        answer["totalPayments"] = count
        if (amount := money.parse_amount(shown.get("amount"))) is not None:
            answer["amount"] = money.format_amount(amount)
    return answer


def build_legacy_batch_with_payments(
    batch: Batch, recipient_facts: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Builds the answer to a batch read by id, with all of its payments on one page."""
    items = materialize_rows(
        map_rows(lambda payment: build_payment_list_item(payment, recipient_facts), batch.payments)
    )
    meta = paging.build_meta(1, min(len(items), 1), len(items))
    return {**build_legacy_batch(batch), "payments": {"payments": items, "meta": meta}}


def build_payment_list_item(
    payment: Payment, recipient_facts: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Builds a payment of a batch listing, with its reduced recipient.

    ``recipient_facts`` are the stored facts of recipients, by id: their status derives from them.
    """
    recipient = payment.get("recipient") or {}
    # The stored recipient is as it was when the payment was requested, so it comes second.
    method = payment.get("method") or recipient.get("payoutMethod")
    has_shown_status = payment["has_shown_status"]
    reduced_recipient = build_reduced_recipient(
        recipient, recipient_facts, has_shown_status=has_shown_status
    )
    return {
        **build_legacy_payment(payment, reduced_recipient),
        "method": method,
        "methodDisplay": format_payout_method_display(method),
        "isSupplyPayment": bool(payment.get("isSupplyPayment")),
    }


def iterate_recipient_ids(payments: Sequence[Payment]) -> Iterator[str]:
    """Iterates over the recipient ids of the payments that show one."""
    recipients = (recipient or {} for recipient in iterate_field(payments, "recipient"))
    return (str(recipient["id"]) for recipient in recipients if recipient.get("id"))


def build_reduced_recipient(
    recipient: Mapping[str, JSON], recipient_facts: Mapping[str, JSON], *, has_shown_status: bool
) -> dict[str, JSON]:
    """Builds the reduced recipient of batch listings.

    Without ``has_shown_status``, the recipient's status is the stored one, if there is any.
    """
    country = extract_recipient_country(recipient)
    facts = recipient_facts.get(str(recipient.get("id")), {})
    # The stored status is as old as the payment: a client may have set another one since.
    if not has_shown_status and (word := facts.get("status")):
        recipient = {**recipient, "status": UPSTREAM_STATUS.get(word, word)}
    return {
        **{name: recipient.get(name) for name in ("id", "referenceId", "email", "name")},
        "status": choose_legacy_recipient_status(recipient, facts),
        "country": country,
        "countryCode": country,
    }


def extract_recipient_country(recipient: Mapping[str, JSON]) -> JSON:
    """Returns the country of a recipient, reduced or in full; None if it has none."""
    country = recipient.get("country") or recipient.get("countryCode")
    return country or (recipient.get("address") or {}).get("country")
