"""The nine batch operations (legacy interface, section 4.3)."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from mappings import batch_bodies, batch_lists, legacy, money
from mappings.batch_bodies import collect_sent_payments
from mappings.batch_changes import edit_batch_payments, list_payment_ids_to_load
from mappings.batch_locks import (
    acquire_batch_lock,
    build_finished_change_facts,
    call_service_under_lock,
    change_batch,
    release_batch_lock,
    retry_on_conflict,
)
from mappings.batch_outcomes import (
    build_batch_creation_call,
    build_batch_deletion_call,
    build_batch_start_call,
    build_quote_call,
)
from mappings.batch_reads import (
    WRONG_STATUS,
    add_missing_statuses,
    fill_service_fields,
    load_batch,
    load_batch_again,
    load_batches,
    reload_batch,
    set_missing_status_by_balance,
    show_recent_start,
)
from mappings.batch_views import (
    EDITABLE_STATUSES,
    Batch,
    build_batch,
    build_batch_record,
    build_legacy_batch,
    build_legacy_batch_with_payments,
    iterate_recipient_ids,
    restore_original_batch_fields,
)
from mappings.current import BALANCE_PATH
from mappings.dates import format_timestamp
from mappings.drafts import INFERRED_REASON, require_not_started, submit_draft
from mappings.effects import Answer, CompareAndSet, Flow, LoadFacts, Operation, Request, SubFlow
from mappings.errors import NOT_FOUND, convert_not_found_to_invalid_field
from mappings.failures import (
    Failure,
    Halted,
    Invalid,
    NoSuchOperation,
    Problem,
    Refused,
    Unreachable,
    build_empty_field_problem,
)
from mappings.ids import derive_deterministic_id
from mappings.lazy_sequences import map_rows, materialize_rows
from mappings.objects import drop_nulls
from mappings.outcome_matching import fetch_if_exists
from mappings.paging import parse_page_params
from mappings.payloads import extract_batch, find_payments, parse_balances
from mappings.payment_recipients import collect_recipients, load_recipient_facts, resolve_recipients
from mappings.start_checks import check_start_and_list_notices, require_not_started_elsewhere
from mappings.summaries import build_summary, needs_balances

# Create


def create_batch(request: Request) -> Flow:
    """Answers POST /batches.

    GET  /recipients?email=  once for each distinct address, in parallel; at most 10,000
    POST /batches
    GET  /batch/:id/summary  if the response to the create is incomplete
    """
    body = request.body
    sent_payments = collect_sent_payments(body.get("payments"), problems=request.problems)
    request.raise_if_invalid(batch_bodies.validate_new_batch(body, sent_payments, request.problems))
    currency = str(batch_bodies.find_batch_currency(body))
    find_recipient = yield from resolve_recipients(sent_payments, currency)
    build_entry = partial(batch_bodies.build_entry_from_body, find_recipient)
    entries = materialize_rows(map_rows(build_entry, body.get("payments") or []))
    memo, description = request.options.send_memo, body.get("description")
    payload = batch_bodies.build_batch_body(currency, description, entries, memo=memo)
    field_names = batch_bodies.FieldNames(
        {**batch_bodies.BATCH_FIELD_NAMES, "payments": "payments"},
        {"payments": sent_payments},
        batch_bodies.map_payment_field_names_to_client,
    )
    try:
        response = yield build_batch_creation_call(payload, field_names)
    except Refused as refusal:
        field = "payments[0].recipient.id" if len(entries) == 1 else None
        raise convert_not_found_to_invalid_field(refusal, field) from None
    created, now = extract_batch(response), format_timestamp(request.now)
    facts = {
        "phase": "sent",
        "version": 1,
        "upstream": created["id"],
        "currency": currency,
        "description": description,
        "createdAt": created.get("createdAt") or now,
        "updatedAt": created.get("updatedAt") or now,
        "changed_at": now,
    }
    yield build_batch_record(created["id"], facts, entries, (created["id"],))
    batch = build_batch(created["id"], facts, entries, created, find_payments(response))
    # A create may be answered with no more than the id (contract, section 5).
    if not (created.get("status") and created.get("createdAt") and (batch.rows or not entries)):
        try:
            batch = yield from reload_batch(batch)
        except Failure as failure:
            # The batch exists: after an error here the client would create, and pay, another. A
            # read of the balance for the status would time out as well.
            batch.computed_status = "open" if isinstance(failure, Unreachable) else None
    yield from add_missing_statuses([batch])
    return Answer({"batch": build_legacy_batch(batch)})


# Read


def read_batch(request: Request) -> Flow:
    """Answers GET /batches/:id.

    GET /batch/:id/summary
    GET /balance            if the service gives no status, as for a draft
    """
    batch = yield from load_batch(request.ids["id"])
    show_recent_start(batch, request.now)
    return (yield from _answer_with_payments(batch))


def _answer_with_payments(batch: Batch) -> Flow:
    yield from add_missing_statuses([batch])
    facts = yield from load_recipient_facts(iterate_recipient_ids(batch.payments))
    return Answer({"batch": build_legacy_batch_with_payments(batch, facts)})


def list_batches(request: Request) -> Flow:
    """Answers GET /batches.

    GET /batches            all pages, several in parallel, if the service has this path; the stored
                            batches complete the list, or replace it
    GET /batch/:id/summary  for batches of the page that the list shows incompletely, and for those
                            that a filter needs it for: recipient, country and
                            targetCurrency are properties of payments
    GET /balance            if the service gives no status, as for drafts
    GET /recipients/:id     with country, for each recipient whose country no summary shows

    A missing ``completedAt`` alone causes no read, so a listed batch may lack it.
    """
    listed_batches = yield from batch_lists.load_listed_batches()
    for batch in listed_batches:
        show_recent_start(batch, request.now)
    batches = yield from batch_lists.filter_batches(listed_batches, request.query)
    page_batches, meta = parse_page_params(request.query).select_rows(batches)
    items = yield from batch_lists.load_batch_page(page_batches, request.now)
    return Answer({"batches": items, "meta": meta})


def read_batch_summary(request: Request) -> Flow:
    """Answers GET /batches/:id/summary.

    POST /batches           for a draft, because the service can only summarize a batch it has
    GET  /batch/:id/summary
    GET  /balance           unless the service gives a status and all that is computed from it
    """
    batch = yield from load_batch(request.ids["id"])
    batch = yield from retry_on_conflict(batch, lambda batch: submit_draft(batch, request))
    # A 404 is not about the batch, which exists.
    response = (yield from fetch_if_exists(BALANCE_PATH)) if needs_balances(batch) else None
    balances = None if response is None else parse_balances(response)
    set_missing_status_by_balance(batch, balances)
    show_recent_start(batch, request.now)
    summary = build_summary(batch, balances or (), format_timestamp(request.now))
    return Answer({"batchSummary": summary})


# Change


def update_batch(request: Request) -> Flow:
    """Answers PATCH /batches/:id.

    GET   /batch/:id/summary  the existing payments
    GET   /recipients?email=  for payments to add, once for each distinct address; at most 10,000
    PATCH /batches/:id        if the service has this path; otherwise the batch becomes a draft, or,
                              if only the description changes, the gateway stores that
    GET   /recipients/:id     for each recipient of a payment that is added to a draft; at most 1,000
    POST  /batches            for another currency, allowed while the batch has no payments: the new
                              batch supersedes the service's
    """
    # Before the first call, which too many addresses are not worth.
    collect_recipients(
        payment
        for payment in collect_sent_payments(request.body.get("payments"))
        if not payment.body.get("id")
    )
    yield from change_batch(
        request,
        lambda batch: edit_batch_payments(batch, request),
        payment_ids=list_payment_ids_to_load(request),
    )
    return Answer({"object": "updated"})


def generate_quote(request: Request) -> Flow:
    """Answers POST /batches/:id/generate-quote.

    POST /batches                     for a draft
    POST /batches/:id/generate-quote
    GET  /batch/:id/summary           for the current rates and amounts
    GET  /balance                     if the service gives no status
    """
    batch = yield from load_batch(request.ids["id"])
    batch, _ = yield from _submit_draft_and_lock_batch(batch, request, "quoting")
    call = build_quote_call(batch.upstream_id, batch.service_fields.get("quoteExpiredAt"))
    if batch.is_editable:
        quote_fields = extract_batch(
            (yield from call_service_under_lock(call, release_batch_lock(batch)))
        )
        yield from release_batch_lock(batch)
    else:
        # The quote of a batch that is no longer editable is sent as well, so that the service
        # refuses it.
        quote_fields = extract_batch((yield call))
    with suppress(Halted):  # the service does not show a submitted draft yet
        batch = yield from load_batch_again(batch)
    # The summary is newer than the response to the quote, so its fields take precedence.
    return (yield from _answer_with_payments(fill_service_fields(batch, quote_fields)))


def _submit_draft_and_lock_batch(
    batch: Batch, request: Request, phase: str, check: Callable[[Batch], SubFlow] | None = None
) -> SubFlow:
    """Submits the batch if it is a draft, locks it, and returns it with ``check`` of this version.

    A batch that is no longer editable is not locked, because nothing can supersede it.
    """

    def submit_and_lock(batch: Batch) -> SubFlow:
        batch = yield from submit_draft(batch, request)
        check_result = (yield from check(batch)) if check else None
        if batch.is_editable:
            yield from acquire_batch_lock(batch, phase, request)
        return batch, check_result

    return (yield from retry_on_conflict(batch, submit_and_lock))


# Start


def start_batch(request: Request) -> Flow:
    """Answers POST /batches/:id/start-processing.

    GET  /batch/:id/summary            for the status, and to verify the payments
    GET  /batch/:id/summary            of each batch that it supersedes, in parallel
    POST /batches                      for a draft, after which the superseded ones are read again
    POST /batches/:id/start-processing once
    GET  /batch/:id/summary            if the response is incomplete or shows another amount
    """
    # For any other operation a superseded batch, which must never be started, is not found.
    batch = yield from load_batch(request.ids["id"], superseded_problem=WRONG_STATUS)
    if batch.is_draft:  # which need not be submitted then
        yield from require_not_started_elsewhere(batch.facts)
    check = partial(check_start_and_list_notices, request)
    batch, notices = yield from _submit_draft_and_lock_batch(batch, request, "starting", check)
    call = build_batch_start_call(batch.upstream_id)
    response = yield from call_service_under_lock(call, release_batch_lock(batch))
    facts = {
        **build_finished_change_facts(batch.facts, "sent"),
        "started": format_timestamp(request.now),
    }
    yield CompareAndSet("batch", batch.id, facts)
    start_fields = restore_original_batch_fields(batch.facts, drop_nulls(extract_batch(response)))
    # Clients are shown a started batch (legacy interface, section 4.3), not the one before that.
    if start_fields.get("status") in EDITABLE_STATUSES:
        start_fields = {**start_fields, "status": None}
    has_all_fields = start_fields.get("status") and start_fields.get("sentAt")
    # The service may apply new exchange rates.
    amounts = {
        money.parse_amount(each.get("amount")) for each in (batch.service_fields, start_fields)
    }
    is_amount_changed = len(amounts - {None}) > 1
    batch.facts = {**batch.facts, **facts}
    # The status loaded before the start is out of date.
    batch.service_fields = {**batch.service_fields, "status": None, **start_fields}
    if not has_all_fields or is_amount_changed:
        # The batch is started. After an error here the client would start it again.
        with suppress(Failure):
            batch = fill_service_fields((yield from load_batch_again(batch)), start_fields)
            if batch.is_editable:  # as it was before the start
                status = start_fields.get("status")
                batch.service_fields = {**batch.service_fields, "status": status}
    return Answer({"batch": build_legacy_batch(batch)}, notices)


# Delete


def delete_batch(request: Request) -> Flow:
    """Answers DELETE /batches/:id.

    GET    /batch/:id/summary
    DELETE /batches/:id        if the service has this path; otherwise its batch is superseded
    """
    batch = yield from load_batch(request.ids["id"])
    yield from _delete_batch(batch, request)
    return Answer({"object": "deleted"})


def delete_batches(request: Request) -> Flow:
    """Answers DELETE /batches.

    GET    /batch/:id/summary  for each, in parallel: all are checked before the first is deleted
    DELETE /batches/:id        for each

    If one deletion is refused or not sent, the batches before it stay deleted, and the same request
    sent again deletes the rest.
    """
    ids = list(dict.fromkeys(request.body["ids"]))
    request.raise_if_invalid([] if ids else [build_empty_field_problem("ids")])
    if not all(_BATCH_ID_PATTERN.fullmatch(id_) for id_ in ids):
        raise Invalid(NOT_FOUND)
    # The same ids in any order are the same request; a repeated one skips the ids already deleted.
    request_id = derive_deterministic_id("D", *sorted(ids))
    batches = yield from load_batches((yield from _list_undeleted_ids(ids, request_id)) or ids)
    for batch in batches:
        if isinstance(batch, Exception):
            raise batch
    if not all(batch.is_editable for batch in batches):
        raise Invalid(WRONG_STATUS)
    for batch in batches:
        try:
            yield from _delete_batch(batch, request, request_id)
        except Unreachable as failure:
            if batch is batches[0]:
                raise
            raise Halted(PARTLY_DELETED, retry_after=failure.retry_after or 1) from None
    return Answer({"object": "deleted"})


def _list_undeleted_ids(ids: Sequence[str], request_id: str) -> SubFlow:
    """Returns the ids that no earlier request for the same set of batches has deleted."""
    remaining_ids = []
    for id_ in ids:
        facts = yield LoadFacts("batch", id_)
        if (facts.get("phase"), facts.get("together")) != ("deleted", request_id):
            remaining_ids.append(id_)
    return remaining_ids


def _delete_batch(batch: Batch, request: Request, request_id: str | None = None) -> SubFlow:
    batch = yield from retry_on_conflict(
        batch, lambda batch: acquire_batch_lock(batch, "deleting", request)
    )
    superseded_ids = list(batch.facts.get("abandoned", []))
    if not batch.is_draft:
        try:
            call = build_batch_deletion_call(batch.upstream_id)
            yield from call_service_under_lock(call, release_batch_lock(batch))
        except NoSuchOperation:
            if batch.facts.get("started"):
                yield from release_batch_lock(batch)
            require_not_started(batch)
            # The service keeps the batch, but a superseded one is never started.
            superseded_ids.append(batch.upstream_id)
    redirects = tuple(
        CompareAndSet("alias", upstream, {"abandoned": True}) for upstream in superseded_ids
    )
    facts = {"phase": "deleted", "since": None, "abandoned": superseded_ids, "together": request_id}
    yield CompareAndSet("batch", batch.id, facts, linked=redirects)


PARTLY_DELETED = Problem(
    "internal_server_error",
    "Some of the batches were deleted, and the others not yet. Send the same request again later.",
)
_BATCH_ID_PATTERN = re.compile("B-[A-Za-z0-9]+")
_BATCHES_PATH, _BATCH_PATH = "/batches", "/batches/{id}"
_EDITABLE_ASSUMPTION = (
    "an open batch can be edited and deleted (current interface, section 1, item 8)"
)

OPERATIONS = (
    Operation(
        "POST",
        _BATCHES_PATH,
        create_batch,
        "emulated",
        "fields that the response omits are read from the summary",
        body_shape=legacy.BatchBody,
        answer_shape=legacy.BatchAnswer,
        assumption="the service accepts a payment's memo; the document shows no response payload",
    ),
    Operation(
        "GET",
        _BATCHES_PATH,
        list_batches,
        "inferred",
        "without the path, the stored batches are the list; the gateway applies the filters",
        answer_shape=legacy.BatchesAnswer,
        query_shape=legacy.FilteredQuery,
        assumption="GET /batches, which the document does not list",
    ),
    Operation(
        "DELETE",
        _BATCHES_PATH,
        delete_batches,
        "inferred",
        "checks all batches, then deletes one after another",
        body_shape=legacy.BatchIdsBody,
        answer_shape=legacy.ObjectAnswer,
        assumption=_EDITABLE_ASSUMPTION,
    ),
    Operation(
        "GET",
        _BATCH_PATH,
        read_batch,
        "emulated",
        "the summary, completed with the requested payments",
        answer_shape=legacy.BatchWithPaymentsAnswer,
        assumption="a summary has all payment details (current interface, section 4.3)",
    ),
    Operation(
        "PATCH",
        _BATCH_PATH,
        update_batch,
        "inferred",
        INFERRED_REASON,
        body_shape=legacy.BatchChangeBody,
        answer_shape=legacy.ObjectAnswer,
        assumption=_EDITABLE_ASSUMPTION,
    ),
    Operation(
        "DELETE",
        _BATCH_PATH,
        delete_batch,
        "inferred",
        "without the path the service's batch is superseded and never started",
        answer_shape=legacy.ObjectAnswer,
        assumption=_EDITABLE_ASSUMPTION,
    ),
    Operation(
        "POST",
        f"{_BATCH_PATH}/generate-quote",
        generate_quote,
        "emulated",
        "the quote, then the summary",
        answer_shape=legacy.BatchWithPaymentsAnswer,
    ),
    Operation(
        "GET",
        f"{_BATCH_PATH}/summary",
        read_batch_summary,
        "emulated",
        "fields that the service omits are computed from payments and balance",
        answer_shape=legacy.SummaryAnswer,
        can_write=True,
    ),
    Operation(
        "POST",
        f"{_BATCH_PATH}/start-processing",
        start_batch,
        "emulated",
        "compares the payments with those requested, then starts the batch once",
        answer_shape=legacy.BatchAnswer,
    ),
)
