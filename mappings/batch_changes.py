"""PATCH of a batch: one request adds, changes and removes payments, either all or none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from mappings import batch_bodies, payment_bodies
from mappings.banking import build_empty_field_problem, build_invalid_field_problem
from mappings.batch_bodies import SentPayment, collect_sent_payments
from mappings.batch_locks import finish_without_change
from mappings.batch_reads import WRONG_STATUS
from mappings.batch_views import Batch, PaymentRef
from mappings.drafts import Edit, edit_batch
from mappings.effects import JSON, Call, Request, SubFlow
from mappings.failures import Invalid, Problem
from mappings.ids import derive_deterministic_id
from mappings.lazy_sequences import (
    LazySequence,
    chain_rows,
    filter_rows,
    map_rows,
    materialize_rows,
)
from mappings.matching import Entry
from mappings.summary_lag import require_payments_shown


def edit_batch_payments(batch: Batch, request: Request) -> SubFlow:
    changes = _BatchChanges.from_request(request, batch)
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    require_payments_shown(batch, changes.iterate_unknown_ids(), request.now)
    request.raise_if_invalid(_validate_batch_changes(batch, changes))
    if not changes:
        yield from finish_without_change(batch)
        return
    currency = changes.facts.get("currency") or batch.currency
    find_recipient = yield from batch_bodies.resolve_recipients(changes.added_payments, currency)

    def build_entry(payment: SentPayment, position: int) -> Entry:
        # The id is derived, so that a resumed flow gives the payment the same one again.
        id_ = derive_deterministic_id("P", request.seed, batch.id, str(position))
        return batch_bodies.build_entry_from_body(find_recipient, payment.body, id_=id_)

    positions = range(len(changes.added_payments))
    added_entries = materialize_rows(map_rows(build_entry, changes.added_payments, positions))
    build_call = _build_patch_call(request, batch, changes, added_entries)
    build_changes = partial(_map_payment_changes_by_id, changes)
    removed_ids = map_rows(
        lambda payment: changes.find_payment_ref(payment).id, changes.removed_payments
    )
    edit = Edit(added_entries, changes.added_payments, build_changes, removed_ids, changes.facts)
    yield from edit_batch(batch, request, edit, build_call)


def list_payment_ids_to_load(request: Request) -> Collection[str] | None:
    """Lists the payments of a draft that its edit needs: None for all, () for none."""
    names = ("payments", "update_payments", "remove_payments")
    lists = [request.body.get(name) or () for name in names]
    # Only a batch without payments may get another currency.
    if request.body.get("sourceCurrency") or any(isinstance(each, LazySequence) for each in lists):
        return None
    return dict.fromkeys(str(entry["id"]) for entry in chain(*lists) if entry.get("id"))


class _BatchChanges(NamedTuple):
    """The changes that one request makes to a batch and its payments.

    ``payment_refs`` are the existing payments that the request names, by the id used there.
    ``facts`` are the batch's new ``description`` and ``currency``, if they change.
    """

    added_payments: Sequence[SentPayment]
    changed_payments: Sequence[SentPayment]
    removed_payments: Sequence[SentPayment]
    payment_refs: Mapping[str, PaymentRef]
    facts: Mapping[str, JSON]

    @classmethod
    def from_request(cls, request: Request, batch: Batch) -> _BatchChanges:
        body = request.body
        payments = collect_sent_payments(body.get("payments"), problems=request.problems)
        updates = collect_sent_payments(body.get("update_payments"), "update_payments")
        # An entry with an id under ``payments`` is an update, never an addition (contract, section
        # 5).
        named_payments = chain_rows(filter_rows(payments, _has_payment_id), updates)
        removed_payments = collect_sent_payments(body.get("remove_payments"), "remove_payments")
        added_payments = filter_rows(payments, lambda payment: not _has_payment_id(payment))
        payment_refs: Mapping[str, PaymentRef] = {}
        # The request names so many payments that indexing the whole batch takes less memory.
        if isinstance(named_payments, LazySequence) or isinstance(removed_payments, LazySequence):
            payment_refs = batch.map_payment_refs_by_id(None)
        elif ids := frozenset(
            str(payment.body.get("id")) for payment in chain(named_payments, removed_payments)
        ):
            payment_refs = batch.map_payment_refs_by_id(ids)

        def drop_unchanged_payment_fields(change: SentPayment) -> SentPayment:
            ref = payment_refs.get(str(change.body.get("id")))
            return batch_bodies.drop_unchanged_fields(change, ref and batch.payments[ref.position])

        return cls(
            added_payments,
            materialize_rows(map_rows(drop_unchanged_payment_fields, named_payments)),
            removed_payments,
            payment_refs,
            _extract_batch_changes(body, batch),
        )

    def __bool__(self) -> bool:
        """Whether anything changes."""
        has_changes = self.added_payments or self.removed_payments or self.facts
        return bool(has_changes) or any(map(_has_payment_changes, self.changed_payments))

    @property
    def effective_changes(self) -> Sequence[SentPayment]:
        """The changed payments, without those that the client sent back unchanged."""
        return filter_rows(self.changed_payments, _has_payment_changes)

    def iterate_unknown_ids(self) -> Iterator[str]:
        """Returns the ids of payments that the batch does not have."""
        for payment in chain(self.changed_payments, self.removed_payments):
            id_ = str(payment.body.get("id"))
            if id_ not in self.payment_refs:
                yield id_

    def find_payment_ref(self, payment: SentPayment) -> PaymentRef:
        return self.payment_refs[str(payment.body.get("id"))]


def _extract_batch_changes(body: Mapping[str, JSON], batch: Batch) -> dict[str, JSON]:
    """Returns the changed fields of the batch itself; an empty description clears it."""
    batch_changes: dict[str, JSON] = {}
    # Stored as text: a batch without a description is shown with an empty one, not with null
    # (legacy interface, section 2).
    description = body.get("description") or ""
    if "description" in body and description != (batch.description or ""):
        batch_changes["description"] = description
    if body.get("sourceCurrency") and body["sourceCurrency"] != batch.currency:
        batch_changes["currency"] = body["sourceCurrency"]
    return batch_changes


def _has_payment_changes(payment: SentPayment) -> bool:
    return bool(batch_bodies.extract_payment_changes(payment.body))


def _map_payment_changes_by_id(batch_changes: _BatchChanges) -> Mapping[str, Mapping[str, JSON]]:
    extract, find_ref = batch_bodies.extract_payment_changes, batch_changes.find_payment_ref
    changes = batch_changes.effective_changes
    return {find_ref(payment).id: extract(payment.body) for payment in changes}


def _has_payment_id(payment: SentPayment) -> bool:
    return bool(payment.body.get("id"))


def _validate_batch_changes(batch: Batch, changes: _BatchChanges) -> Iterator[Problem]:
    # No document shows how the service would convert existing payments.
    if "currency" in changes.facts and (len(batch.merged_payments) or not batch.has_known_payments):
        yield build_invalid_field_problem(
            "sourceCurrency", "can be changed only while the batch has no payments"
        )
    # One byte per payment: a set of very many ids would be far larger.
    is_seen = bytearray(len(batch.payments))
    for payment in chain(changes.changed_payments, changes.removed_payments):
        if not payment.body.get("id"):
            yield build_empty_field_problem(f"{payment.field_prefix}id")
            continue
        ref = changes.payment_refs.get(str(payment.body["id"]))
        field = f"{payment.field_prefix}id"
        if ref is None:
            yield build_invalid_field_problem(field, "is not a payment of this batch")
            continue
        if is_seen[ref.position]:
            yield build_invalid_field_problem(field, "is named more than once")
        is_seen[ref.position] = True
    for payment in changes.changed_payments:
        checked_payment, faults = batch_bodies.drop_malformed_amounts(payment)
        yield from faults
        yield from batch_bodies.validate_amount_combination(checked_payment)
    currency = changes.facts.get("currency") or batch.currency
    for payment in changes.added_payments:
        checked_payment, faults = batch_bodies.drop_malformed_amounts(payment)
        yield from faults
        yield from batch_bodies.validate_added_payment(checked_payment, currency)


def _build_patch_call(
    request: Request, batch: Batch, batch_changes: _BatchChanges, added_entries: Sequence[Entry]
) -> Callable[..., Call]:
    """Builds the call, which only lacks the rule ``reconcile``."""
    memo = request.options.send_memo

    def build_payment_update(change: SentPayment) -> dict[str, JSON]:
        changes = batch_bodies.extract_payment_changes(change.body, memo=memo)
        return {"id": batch_changes.find_payment_ref(change).upstream_id, **changes}

    def build_removal(payment: SentPayment) -> dict[str, JSON]:
        return {"id": batch_changes.find_payment_ref(payment).upstream_id}

    changed_payments = batch_changes.effective_changes
    # The currency is not sent: for another one, ``drafts`` creates a new batch.
    description = batch_changes.facts.get("description")
    # Null clears it; an empty text would leave it as it is (contract, section 5).
    fields = {} if description is None else {"description": description or None}
    lists = {
        "payments": batch_changes.added_payments,
        "update_payments": changed_payments,
        "remove_payments": batch_changes.removed_payments,
    }
    return partial(
        Call,
        "PATCH",
        f"/batches/{batch.upstream_id}",
        {
            "payments": map_rows(partial(_build_legacy_payment_to_add, memo=memo), added_entries),
            "update_payments": map_rows(build_payment_update, changed_payments),
            "remove_payments": map_rows(build_removal, batch_changes.removed_payments),
            **fields,
        },
        field_map=payment_bodies.FieldNames(
            {name: name for name in (*lists, *fields)},
            lists,
            payment_bodies.map_change_field_names_to_client,
        ),
        probe_ids=(batch.upstream_id,),
        # Sent twice, it would add its payments twice.
        is_idempotent=not added_entries,
    )


def _build_legacy_payment_to_add(entry: Entry, *, memo: bool) -> dict[str, JSON]:
    """Builds a payment to add in the legacy shape, which the inferred PATCH is assumed to take."""
    return {
        "recipient": {"id": entry["recipient"]["id"]},
        **batch_bodies.extract_payment_changes(entry, memo=memo),
    }
