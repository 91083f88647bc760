"""Drafts: batches that are edited in the gateway and submitted to the service later.

From the first edit that the service has no path for, the batch exists in the gateway only, and the
service's batch is superseded (contract, section 5).
"""

import re
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from msgspec import structs

from mappings import money
from mappings.batch_bodies import BATCH_FIELD_NAMES, build_batch_body
from mappings.batch_edits import Edit, build_batch_edit_outcome_rule
from mappings.batch_locks import (
    acquire_batch_lock,
    build_finished_change_facts,
    build_no_new_signed_change_guards,
    call_service_under_lock,
    is_signed_change_recent,
    release_batch_lock,
)
from mappings.batch_outcomes import build_batch_creation_call
from mappings.batch_reads import (
    WRONG_STATUS,
    build_entries_from_batch,
    build_payment_entry,
    build_read_lag_failure,
    has_last_changes,
    list_unrequested_payments,
    reload_batch,
)
from mappings.batch_views import SIGNED_ADDS, Batch, build_batch_record
from mappings.change_releases import build_batch_id_redirect
from mappings.dates import format_timestamp
from mappings.effects import JSON, Call, CompareAndSet, LoadFacts, Request, SubFlow
from mappings.errors import convert_not_found_if_field_named, convert_not_found_to_invalid_field
from mappings.failures import Invalid, NoSuchOperation, Problem, Refused
from mappings.ids import derive_deterministic_id
from mappings.lazy_sequences import chain_rows, filter_rows, map_rows
from mappings.matching import Entry, Payment, extract_recipient_id
from mappings.objects import AMOUNT_FIELDS, RATE_FIELDS
from mappings.outcome_matching import ShownPayments
from mappings.payloads import extract_batch
from mappings.payment_recipients import add_recipient_details, add_recipients_of_draft_payments

INFERRED_REASON = "assumes the legacy path; without it the batch becomes a draft of the gateway"

CURRENCY_UNKNOWN = Problem(
    "invalid_status", "The batch cannot be changed: nothing tells in which currency it is."
)
PAYEE_UNKNOWN = Problem(
    "invalid_status", "The batch cannot be changed: nothing tells whom all of its payments pay."
)


def edit_batch(
    batch: Batch, request: Request, edit: Edit, build_call: Callable[..., Call] | None = None
) -> SubFlow:
    """Makes an edit with an inferred call, or in a draft if the service has no such operation.

    ``build_call`` takes the rule ``reconcile``; an edit that only drafts get has none. The first edit of
    the second kind turns the batch into a draft and supersedes the service's batch, which is never
    started through the gateway from then on.
    """
    if batch.is_draft:
        edit = yield from _add_recipients(edit)
    guards = build_no_new_signed_change_guards(batch)
    yield from acquire_batch_lock(batch, "editing", request, guards)
    now = format_timestamp(request.now)
    # A draft takes any currency: it has no batch at the service yet.
    if batch.is_draft or build_call is None:
        changes = edit.build_changes()
        changed_entries = filter_rows(batch.entries, lambda entry: entry["id"] in changes)
        yield from _save_draft(batch, request, edit.apply_to_entries(changed_entries, now), edit)
        return
    call = build_call(reconcile=build_batch_edit_outcome_rule(batch, edit, request.now))
    if "currency" in edit.facts:
        yield from _require_up_to_date_summary(batch, request)
        yield from _recreate_in_currency(batch, request, call, edit)
        return
    try:
        if edit.is_sent(memo=request.options.send_memo):
            release = release_batch_lock(batch)
            yield from call_service_under_lock(call, release, convert_not_found_if_field_named)
    except NoSuchOperation:
        yield from _edit_without_service(batch, request, edit, now)
        return
    facts = {**build_finished_change_facts(batch.facts, "sent"), **edit.facts}
    facts |= {"changed_at": now} | ({"removed_at": now} if edit.removed_ids else {})
    facts |= {"description_was": None} if edit.facts else {}
    entries = edit.apply_to_entries(build_entries_from_batch(batch, request.now), None)
    yield build_batch_record(batch.id, facts, entries, edit.list_created_ids(batch))


def _edit_without_service(batch: Batch, request: Request, edit: Edit, now: str) -> SubFlow:
    """Makes the first edit that the service has no path for."""
    if not (edit.added_entries or edit.removed_ids or edit.build_changes()):
        # A description changes nothing that is paid, so the service's batch need not be superseded.
        shown = batch.service_fields
        service_text = shown.get("description_told", shown.get("description")) or ""
        facts = {**build_finished_change_facts(batch.facts, "sent"), **edit.facts}
        facts |= {"description_was": service_text, "updatedAt": now}
        yield CompareAndSet("batch", batch.id, facts)
        return
    signed_adds = yield from _require_up_to_date_summary(batch, request)
    if batch.currency is None:
        # Such a draft could never be submitted.
        raise Invalid(CURRENCY_UNKNOWN)
    edit = yield from _add_recipients(edit)
    # Stored now, because a later edit loads, and stores, only the payments that it names.
    entries_before = yield from add_recipient_details(
        _build_draft_entries(batch, request, [*signed_adds.values()])
    )
    entries = edit.apply_to_entries(entries_before, now)
    # The draft has their payments. A batch made of it shows these, but not as added by them.
    removals = [CompareAndSet(SIGNED_ADDS, batch.id, dict.fromkeys(signed_adds))]
    superseded_id = batch.upstream_id
    yield from _save_draft(
        batch, request, entries, edit, superseded_id, *(removals if signed_adds else ())
    )


def _add_recipients(edit: Edit) -> SubFlow:
    """Adds their recipients to the entries that a draft gets; raises Invalid for unknown ones."""
    entries = yield from add_recipients_of_draft_payments(edit.added_payments, edit.added_entries)
    return replace(edit, added_entries=entries)


def _require_up_to_date_summary(batch: Batch, request: Request) -> SubFlow:
    """Raises if the batch is started, or a draft made of its summary may lack changes.

    Returns the payments that signed requests have added, by name. A service may show a change later
    than it confirms it.
    """
    require_not_started(batch)
    signed_adds = yield LoadFacts(SIGNED_ADDS, batch.id)
    # A draft is submitted as new payments, each of which needs the id of its recipient.
    if not all(map(extract_recipient_id, batch.payments)):
        raise Invalid(PAYEE_UNKNOWN)
    # What a signed request has changed is not known, so the summary cannot be compared with it.
    if is_signed_change_recent(batch, request.now) or not has_last_changes(
        batch, [*signed_adds.values()], request.now
    ):
        raise build_read_lag_failure()
    if not batch.has_known_payments:
        raise Invalid(PAYEE_UNKNOWN)
    return signed_adds


def require_not_started(batch: Batch) -> None:
    """Raises Invalid if the batch is started, although the service shows it as open.

    Its client would be told that a batch is changed or deleted that is being paid.
    """
    if batch.facts.get("started"):
        raise Invalid(WRONG_STATUS)


def _recreate_in_currency(batch: Batch, request: Request, edit_call: Call, edit: Edit) -> SubFlow:
    """Creates the batch again in another currency (POST /batches), with the added payments.

    The batch has no payments yet.

    No document shows how a service would change the currency of an existing batch, so the new batch
    supersedes it. ``edit_call`` maps field names to the client's.
    """
    # If this operation is given up, ``build_change_release`` records a batch created in this
    # phase.
    phase = {"phase": "making"}
    yield CompareAndSet("batch", batch.id, phase)
    batch.lock = {**(batch.lock or {}), **phase}
    entries = edit.apply_to_entries((), format_timestamp(request.now))
    description = edit.facts.get("description", batch.description)
    currency, memo = str(edit.facts["currency"]), request.options.send_memo
    body = build_batch_body(currency, description, entries, memo=memo)
    field_map: Mapping[str, str] = ChainMap(BATCH_FIELD_NAMES, edit_call.field_map)  # type: ignore[arg-type] # it is only read
    call = build_batch_creation_call(body, field_map)
    release = release_batch_lock(batch)
    response = yield from call_service_under_lock(call, release, convert_not_found_to_invalid_field)
    upstream_id = extract_batch(response)["id"]
    facts = {"phase": "sent", "upstream": upstream_id, "is_new": True}
    redirect = build_batch_id_redirect(batch.id, batch.facts, upstream_id)
    yield from _save_draft(batch, request, entries, edit, batch.upstream_id, redirect, **facts)


def _save_draft(
    batch: Batch,
    request: Request,
    entries: Sequence[Entry],
    edit: Edit,
    superseded_id: str | None = None,
    *other_records: CompareAndSet,
    **facts: JSON,
) -> SubFlow:
    """Stores a draft's facts, and its new or changed entries.

    If the batch was none before, these are all of its entries, and the service's batch is
    superseded.
    """
    # A search for memos skips the entries of batches without any.
    has_memos = any(entry.get("memo") for entry in entries) or (
        batch.is_draft and batch.facts.get("has_memos", True)
    )
    facts = {
        **build_finished_change_facts(batch.facts, "draft"),
        "upstream": None,
        "elsewhere": None,
        "abandoned": [*batch.facts.get("abandoned", []), *filter(None, [superseded_id])],
        "currency": batch.currency,
        "description": batch.description,
        "description_was": None,
        "createdAt": batch.created_at,
        "updatedAt": format_timestamp(request.now),
        **edit.facts,
        **facts,
        "has_memos": has_memos,
    }
    # Because of this record any later write to a superseded batch is refused, above all its start.
    if superseded_id:
        other_records += (CompareAndSet("alias", superseded_id, {"abandoned": True}),)
    changes = chain_rows(
        map_rows(lambda entry: (str(entry["id"]), entry), entries),
        map_rows(lambda id_: (str(id_), None), edit.removed_ids),
    )

    def build_record(change: tuple[str, Entry | None]) -> CompareAndSet:
        id_, entry = change
        # By the redirect a payment is found by its id alone, or found to be deleted.
        redirect = {"batch": batch.id, "gone": None} if entry else {"gone": True}
        linked = (CompareAndSet("alias", id_, redirect),)
        return CompareAndSet("draft payments", batch.id, {id_: entry}, linked=linked)

    records = map_rows(build_record, changes)
    if not batch.is_draft:
        old_entries = CompareAndSet("payments", batch.id, {"entries": None}, linked=records)
        records = (old_entries, *other_records)
    yield CompareAndSet(
        "batch", batch.id, facts, linked=records, created_ids=edit.list_created_ids(batch)
    )


def _build_draft_entries(
    batch: Batch, request: Request, signed_adds: Sequence[Mapping[str, JSON]]
) -> Sequence[Entry]:
    """Builds the entries of a new draft.

    The gateway generates an id if the service shows none, or one of an earlier payment.
    ``told`` has what the service shows of a payment and its entry does not. A draft still shows
    it, because to its client the batch is the same, and an edit changes only the payments that it
    names. ``apply_payment_changes`` drops what an edit makes wrong.
    """
    target_ids = _list_ids_with_signed_target_amount(batch, signed_adds)

    def build_entry(payment: Payment) -> Entry:
        is_target = payment["id"] in target_ids
        return build_payment_entry({**payment, "asked_side": "target"} if is_target else payment)

    entries = map_rows(build_entry, batch.payments)
    seen_ids, nameless_positions = set[JSON](), set[int]()
    for position, entry in enumerate(entries):
        if not entry.get("id") or entry["id"] in seen_ids:
            nameless_positions.add(position)
        seen_ids.add(entry.get("id"))

    def add_id_and_shown_fields(entry: Entry, payment: Payment, position: int) -> Entry:
        if shown_fields := _select_shown_fields(payment, entry):
            entry = {**entry, "told": shown_fields}
        if position in nameless_positions:
            id_ = derive_deterministic_id("P", request.seed, batch.id, f"kept {position}")
            entry = {**entry, "id": id_}
        return entry

    return map_rows(add_id_and_shown_fields, entries, batch.payments, range(len(entries)))


def _list_ids_with_signed_target_amount(
    batch: Batch, signed_adds: Sequence[Mapping[str, JSON]]
) -> frozenset[JSON]:
    """Lists the payments of which signed requests have fixed the amount that the recipient gets."""
    others = list_unrequested_payments(batch) if signed_adds else ()
    shown_payments = ShownPayments(others, batch.currency)
    rows = [
        shown_payments.take_added(added)
        for added in signed_adds
        if added.get("targetAmount") or added.get("currency") not in (None, batch.currency)
    ]
    return frozenset(row["id"] for row in rows if row and row["id"])


def _select_shown_fields(payment: Payment, entry: Entry) -> dict[str, JSON]:
    """Returns the fields that the service shows of a payment and that its entry does not show."""
    shown = {name: payment.get(name) for name in ("targetCurrency", "compliance")}
    shown |= {name: money.format_amount_unless_text(payment.get(name)) for name in AMOUNT_FIELDS}
    shown |= {name: money.format_rate(payment.get(name)) for name in RATE_FIELDS}
    # What the service shows if there is none.
    shown["memo"] = None if payment.get("memo") is None else ""
    # An entry's amount is shown with cents, the service's text as it is.
    return {
        name: value
        for name, value in shown.items()
        if value is not None and value != money.normalize_amount(entry.get(name))
    }


# Submitting drafts


def submit_draft(batch: Batch, request: Request) -> SubFlow:
    """Submits a draft with POST /batches, once, when a quote, a summary or the start needs it.

    Returns the submitted batch, which keeps its ids for clients; a batch that is not a draft is
    returned as it is. Raises Conflict if another request is submitting it.
    """
    if not batch.is_draft:
        return batch
    yield from acquire_batch_lock(batch, "making", request)
    description = batch.facts.get("description")
    # Built from the stored entries, because answers may show computed values.
    body = build_batch_body(
        str(batch.currency), description, batch.entries, memo=request.options.send_memo
    )
    call = build_batch_creation_call(body)
    convert_refusal = partial(_add_payment_ids_to_refusal, batch.entries)
    release = release_batch_lock(batch)
    response = yield from call_service_under_lock(call, release, convert_refusal)
    upstream_id = extract_batch(response)["id"]
    facts = {
        **build_finished_change_facts(batch.facts, "sent"),
        "upstream": upstream_id,
        "is_new": True,
        "changed_at": format_timestamp(request.now),
    }
    redirect = build_batch_id_redirect(batch.id, batch.facts, upstream_id)
    yield CompareAndSet("batch", batch.id, facts, linked=(redirect,))
    # Built from this request's data: an edit may have changed the stored state already. A caller
    # that then acquires the lock conflicts with that edit.
    batch.facts = {**batch.facts, **facts}
    return (yield from reload_batch(batch))


_PAYMENT_FIELD_PATTERN = re.compile(r"payments[.\[](\d+)")


def _add_payment_ids_to_refusal(entries: Sequence[Entry], refusal: Refused) -> Refused:
    """Prefixes the problems of a refused draft with the payment's id.

    The request that submits a draft has no payments, so a field of it could not name one.
    """

    def add_payment_id(problem: Problem) -> Problem:
        match = _PAYMENT_FIELD_PATTERN.match(problem.field or "")
        if match is None or int(match[1]) >= len(entries):
            return problem
        id_ = entries[int(match[1])]["id"]
        return structs.replace(problem, message=f"{id_}: {problem.message}")

    refusal = convert_not_found_to_invalid_field(refusal)
    return Refused(
        refusal.status, [*map(add_payment_id, refusal.problems)], retry_after=refusal.retry_after
    )
