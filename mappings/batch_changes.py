"""PATCH of a batch: one request adds, changes and removes payments, either all or none."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from mappings import batch_bodies
from mappings.batch_bodies import (
    SentPayment,
    collect_sent_payments,
    extract_payment_changes,
    validate_with_amounts,
)
from mappings.batch_edits import Edit
from mappings.batch_locks import is_signed_change_recent, release_batch_lock
from mappings.batch_reads import WRONG_STATUS, require_payments_shown
from mappings.batch_views import Batch, PaymentRef
from mappings.drafts import edit_batch
from mappings.effects import JSON, Call, Request, SubFlow
from mappings.failures import Invalid, Problem, build_invalid_field_problem
from mappings.ids import derive_deterministic_id
from mappings.lazy_sequences import (
    LazySequence,
    chain_rows,
    filter_rows,
    map_rows,
    materialize_rows,
    pack_fields,
)
from mappings.matching import Entry
from mappings.payment_recipients import resolve_recipients


class _Changes:
    """The changes that one request makes to a batch and its payments.

    ``named`` are the changes of existing payments as sent, ``changed`` those that change anything.
    ``refs`` are the existing payments that the request names, by the id used there. ``facts`` are
    the batch's new ``description`` and ``currency``, if they change.
    """

    def __init__(self, request: Request, batch: Batch) -> None:
        body = request.body
        payments = collect_sent_payments(body.get("payments"), problems=request.problems)
        updates = collect_sent_payments(body.get("update_payments"), "update_payments")
        # An entry with an id under ``payments`` is an update, never an addition (contract, section 5).
        self.named = chain_rows(filter_rows(payments, _has_id), updates)
        self.added = filter_rows(payments, lambda payment: not _has_id(payment))
        self.removed = collect_sent_payments(body.get("remove_payments"), "remove_payments")
        ids: frozenset[str] | None = None
        # If the request names very many payments, indexing the whole batch takes less memory.
        if not (isinstance(self.named, LazySequence) or isinstance(self.removed, LazySequence)):
            ids = frozenset(str(each.body.get("id")) for each in chain(self.named, self.removed))
        self.refs = batch.map_payment_refs_by_id(ids) if ids is None or ids else {}
        self.facts = _extract_batch_changes(body, batch)
        # The request may name the payments in any order.
        read_payment = pack_fields(
            batch.payments if self.named else (), batch_bodies.COMPARED_FIELDS
        )
        is_shown_late = is_signed_change_recent(batch, request.now)

        def drop_unchanged_fields(change: SentPayment) -> SentPayment:
            ref = self.refs.get(str(change.body.get("id")))
            payment = ref and read_payment(ref.position)
            return batch_bodies.drop_unchanged_fields(change, payment, is_shown_late=is_shown_late)

        changed = materialize_rows(map_rows(drop_unchanged_fields, self.named))
        self.changed = filter_rows(
            changed, lambda change: bool(extract_payment_changes(change.body))
        )

    def find_ref(self, payment: SentPayment) -> PaymentRef:
        return self.refs[str(payment.body.get("id"))]

    def map_changes_by_id(self) -> Mapping[str, Mapping[str, JSON]]:
        return {self.find_ref(each).id: extract_payment_changes(each.body) for each in self.changed}


def edit_batch_payments(batch: Batch, request: Request) -> SubFlow:
    changes = _Changes(request, batch)
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    named_ids = (str(payment.body.get("id")) for payment in chain(changes.named, changes.removed))
    unknown_ids = (id_ for id_ in named_ids if id_ not in changes.refs)
    require_payments_shown(batch, unknown_ids, request.now)
    request.raise_if_invalid(_validate_changes(batch, changes))
    if not (changes.added or changes.changed or changes.removed or changes.facts):
        yield from release_batch_lock(batch)
        return
    currency = changes.facts.get("currency") or batch.currency
    find_recipient = yield from resolve_recipients(changes.added, currency)

    def build_entry(payment: SentPayment, position: int) -> Entry:
        # The id is derived, so that a resumed flow gives the payment the same one again.
        id_ = derive_deterministic_id("P", request.seed, batch.id, str(position))
        return batch_bodies.build_entry_from_body(find_recipient, payment.body, id_=id_)

    positions = range(len(changes.added))
    added_entries = materialize_rows(map_rows(build_entry, changes.added, positions))
    removed_ids = map_rows(lambda payment: changes.find_ref(payment).id, changes.removed)
    edit = Edit(added_entries, changes.added, changes.map_changes_by_id, removed_ids, changes.facts)
    build_call = _build_patch_call(request, batch, changes, added_entries)
    yield from edit_batch(batch, request, edit, build_call)


def list_payment_ids_to_load(request: Request) -> Collection[str] | None:
    """Lists the payments of a draft that its edit needs: None for all, () for none."""
    names = ("payments", "update_payments", "remove_payments")
    lists = [request.body.get(name) or () for name in names]
    # Only a batch without payments may get another currency.
    if request.body.get("sourceCurrency") or any(isinstance(each, LazySequence) for each in lists):
        return None
    return dict.fromkeys(str(entry["id"]) for entry in chain(*lists) if entry.get("id"))


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


def _has_id(payment: SentPayment) -> bool:
    return bool(payment.body.get("id"))


def _validate_changes(batch: Batch, changes: _Changes) -> Iterator[Problem]:
    # No document shows how the service would convert existing payments.
    if "currency" in changes.facts and (batch.payment_count or not batch.has_known_payments):
        yield build_invalid_field_problem(
            "sourceCurrency", "can be changed only while the batch has no payments"
        )
    # One byte per payment: a set of very many ids would be far larger.
    is_seen = bytearray(len(batch.payments))
    for payment in chain(changes.named, changes.removed):
        if not _has_id(payment):
            yield payment.build_empty("id")
        elif (ref := changes.refs.get(str(payment.body["id"]))) is None:
            yield payment.build_invalid("id", "is not a payment of this batch")
        else:
            if is_seen[ref.position]:
                yield payment.build_invalid("id", "is named more than once")
            is_seen[ref.position] = True
    for payment in changes.changed:
        yield from validate_with_amounts(payment, batch_bodies.validate_amount_combination)
    currency = changes.facts.get("currency") or batch.currency
    validate = partial(batch_bodies.validate_added_payment, currency=currency)
    for payment in changes.added:
        yield from validate_with_amounts(payment, validate)


def _build_patch_call(
    request: Request, batch: Batch, changes: _Changes, added_entries: Sequence[Entry]
) -> Callable[..., Call]:
    """Builds the call, which only lacks the rule ``reconcile``."""
    memo = request.options.send_memo
    # Memos that are not sent change nothing at the service.
    changed = filter_rows(
        changes.changed, lambda change: bool(extract_payment_changes(change.body, memo=memo))
    )

    def build_addition(entry: Entry) -> dict[str, JSON]:
        # In the legacy shape, which the inferred PATCH is assumed to take.
        recipient = {"id": entry["recipient"]["id"]}
        return {"recipient": recipient, **extract_payment_changes(entry, memo=memo)}

    def build_update(change: SentPayment) -> dict[str, JSON]:
        fields = extract_payment_changes(change.body, memo=memo)
        return {"id": changes.find_ref(change).upstream_id, **fields}

    def build_removal(payment: SentPayment) -> dict[str, JSON]:
        return {"id": changes.find_ref(payment).upstream_id}

    # The currency is not sent: for another one, ``drafts`` creates a new batch.
    description = changes.facts.get("description")
    # Null clears it; an empty text would leave it as it is (contract, section 5).
    fields = {} if description is None else {"description": description or None}
    lists = {
        "payments": changes.added,
        "update_payments": changed,
        "remove_payments": changes.removed,
    }
    return partial(
        Call,
        "PATCH",
        f"/batches/{batch.upstream_id}",
        {
            "payments": map_rows(build_addition, added_entries),
            "update_payments": map_rows(build_update, changed),
            "remove_payments": map_rows(build_removal, changes.removed),
            **fields,
        },
        field_map=batch_bodies.FieldNames(
            {name: name for name in (*lists, *fields)},
            lists,
            batch_bodies.map_change_field_names_to_client,
        ),
        probe_ids=(batch.upstream_id,),
        # Sent twice, it would add its payments twice.
        is_idempotent=not added_entries,
    )
