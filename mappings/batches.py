"""The nine batch operations (legacy interface, section 4.3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from mappings import batch_bodies, batch_lists, legacy, money, settling, summaries
from mappings.banking import empty
from mappings.batch_bodies import collect_sent_payments
from mappings.batch_changes import edit_batch_payments
from mappings.batch_reads import (
    WRONG_STATUS,
    load_batch,
    load_batches,
    reject_abandoned_batch,
    resolve_status,
    set_status_by_balance,
)
from mappings.batch_views import (
    Batch,
    build_batch,
    build_batch_answer,
    build_batch_record,
    build_full_batch_answer,
    drop_nulls,
    iterate_payee_ids,
    restore_original_fields,
)
from mappings.current import BALANCE, SUMMARY
from mappings.drafts import (
    BEING_CHANGED,
    ROUNDS,
    build_unlocked_facts,
    call_under_lock,
    changed,
    format_timestamp,
    lock_batch,
    release_batch_lock,
    reload_batch,
    submit_draft,
    taken,
)
from mappings.errors import NOT_FOUND, convert_not_found
from mappings.funds import parse_balances
from mappings.grammar import (
    JSON,
    Answer,
    Call,
    Conflict,
    Failure,
    Flow,
    Halted,
    Invalid,
    NoSuchOperation,
    Operation,
    Recall,
    Record,
    Refused,
    Request,
    Unreachable,
)
from mappings.ids import derive_id, recall_legacy_ids
from mappings.list_filters import Filters
from mappings.paging import parse_page_params
from mappings.payment_lists import extract_batch, extract_payments_if_told
from mappings.payouts import Sub
from mappings.rows import map_rows

# Create


def create_batch(request: Request) -> Flow:
    """POST /batches

    GET  /recipients?email=  once for each distinct address, in parallel; at most 1,000
    POST /batches
    GET  /batch/:id/summary  if the response to the create is incomplete
    """
    body = request.body
    payments = collect_sent_payments(body.get("payments"), problems=request.problems)
    request.refuse(
        chain(
            batch_bodies.validate_currency(body, request.problems),
            chain.from_iterable(map(batch_bodies.validate_payment, payments)),
            batch_bodies.validate_addresses(payments),
        )
    )
    currency = str(batch_bodies.batch_currency(body))
    recipients = yield from batch_bodies.resolve_recipients(payments, currency)
    entries = map_rows(batch_bodies.build_entry, payments, recipients)
    memo, description = request.manners.send_memo, body.get("description")
    sent = batch_bodies.build_batch_body(currency, description, entries, memo=memo)
    names = batch_bodies.Names(
        _OF_A_CREATE, {"payments": payments}, batch_bodies.map_payment_fields
    )
    call = Call(
        "POST",
        "/batches",
        sent,
        sent_as=names,
        settle=settling.settle_created_batch(sent),
        known_by=settling.select_batch_match_fields(sent),
    )
    try:
        answered = yield call
    except Refused as refused:
        raise convert_not_found(refused) from None
    given = extract_batch(answered)
    facts = {
        "phase": "sent",
        "version": 1,
        "upstream": given["id"],
        "currency": currency,
        "description": description,
        "createdAt": given.get("createdAt") or format_timestamp(request.now),
        "updatedAt": given.get("updatedAt") or format_timestamp(request.now),
    }
    yield build_batch_record(given["id"], facts, entries)
    id_, found = str(given["id"]), extract_payments_if_told(answered)
    batch = build_batch(id_, facts, entries, given, found)
    if not (given.get("status") and given.get("createdAt") and (found or not entries)):
        try:
            read = yield Call("GET", SUMMARY.format(id=id_))
        except Failure as failure:
            # The batch exists: after an error here the client would create, and pay, another.
            batch = replace(build_batch(id_, facts, entries, {}, None), given=given)
            if isinstance(failure, Unreachable):  # a read of the balance would time out as well
                batch = replace(batch, computed="open")
        else:
            told = {**given, **drop_nulls(extract_batch(read))}
            there = extract_payments_if_told(read)
            batch = build_batch(id_, facts, entries, told, found if there is None else there)
    return Answer({"batch": build_batch_answer((yield from resolve_status(batch)))})


_OF_A_CREATE = {
    "currency": "sourceCurrency",
    "description": "description",
    "payments": "payments",
}


# Read


def read_batch(request: Request) -> Flow:
    """GET /batches/:id

    GET /batch/:id/summary
    GET /balance            if the service gives no status, as for a draft
    """
    batch = yield from resolve_status((yield from load_batch(request.ids["id"])))
    words = yield from batch_bodies.load_facts_of_recipients(iterate_payee_ids(batch.payments))
    return Answer({"batch": build_full_batch_answer(batch, words)})


def list_batches(request: Request) -> Flow:
    """GET /batches

    GET /batches            all pages, several in parallel, if the service has this path; the stored
                            batches complete the list, or replace it
    GET /batch/:id/summary  for batches of the page that the list shows incompletely, and for those
                            that a filter needs it for: ``recipient``, ``country`` and
                            ``targetCurrency`` are properties of payments
    GET /balance            if the service gives no status, as for drafts
    GET /recipients/:id     with ``country``, for each recipient whose country no summary shows

    A missing ``completedAt`` alone causes no read, so a listed batch may lack it.
    """
    known = yield Recall("batch")
    rows = yield from batch_lists.listed(known)
    filters = Filters.of(request.query)
    if wanted := filters.search:
        # Clients search for the ids they know, which may not be the service's.
        names = yield recall_legacy_ids(rows)
        rows = [row for row in rows if wanted in names.get(row["id"], row["id"]).casefold()]
    if replace(filters, search=""):
        rows = yield from batch_lists.filter_batch_rows(rows, known, filters)
    # Newest first, ties by id: the second sort is stable.
    rows.sort(key=lambda row: str(row["id"]))
    rows.sort(key=lambda row: str(row.get("createdAt") or ""), reverse=True)
    those, counts = parse_page_params(request.query).of(rows)
    shown = yield from batch_lists.load_batch_page(those, known)
    return Answer({"batches": shown, "meta": counts})


def read_batch_summary(request: Request) -> Flow:
    """GET /batches/:id/summary

    POST /batches           for a draft, because the service can only summarize a batch it has
    GET  /batch/:id/summary
    GET  /balance
    """
    batch = yield from submit_draft((yield from load_batch(request.ids["id"])), request)
    balances = parse_balances((yield Call("GET", BALANCE)))
    shown = summaries.build_summary(
        set_status_by_balance(batch, balances), balances, format_timestamp(request.now)
    )
    return Answer({"batchSummary": shown})


# Change


def update_batch(request: Request) -> Flow:
    """PATCH /batches/:id

    GET   /batch/:id/summary  the existing payments
    GET   /recipients?email=  for payments to add, once for each distinct address; at most 1,000
    PATCH /batches/:id        if the service has this path; otherwise the batch becomes a draft, or,
                              if only the description changes, the gateway stores that
    POST  /batches            for another currency, allowed while the batch has no payments: the new
                              batch supersedes the service's
    """
    sent = collect_sent_payments(request.body.get("payments"), problems=request.problems)
    if found := batch_bodies.validate_addresses(one for one in sent if not one.body.get("id")):
        request.refuse(found)
    yield from changed(request, lambda batch: edit_batch_payments(batch, request))
    return Answer({"object": "updated"})


def generate_quote(request: Request) -> Flow:
    """POST /batches/:id/generate-quote

    POST /batches                     for a draft
    POST /batches/:id/generate-quote
    GET  /batch/:id/summary           for the current rates and amounts
    GET  /balance                     if the service gives no status
    """
    batch, is_taken = yield from _locked(request, "quoting", _may_be_quoted)
    settle = settling.settle_quote(batch.upstream, batch.given.get("quoteExpiredAt"))
    call = Call("POST", f"/batches/{batch.upstream}/generate-quote", settle=settle)
    if is_taken:
        quoted = extract_batch((yield from call_under_lock(batch, call)))
        yield from release_batch_lock(batch)
    else:
        # A batch that has left open and pending is sent on as well: the refusal is the service's.
        quoted = extract_batch((yield call))
    batch = yield from load_batch(batch.id)
    # The summary is newer than the response to the quote, so its fields take precedence.
    batch = replace(batch, given={**drop_nulls(quoted), **drop_nulls(batch.given)})
    batch = yield from resolve_status(batch)
    words = yield from batch_bodies.load_facts_of_recipients(iterate_payee_ids(batch.payments))
    return Answer({"batch": build_full_batch_answer(batch, words)})


def _may_be_quoted(batch: Batch) -> Sub:
    yield from ()
    return batch.is_editable


def _locked(request: Request, phase: str, check: Callable[[Batch], Sub]) -> Sub:
    """Submit the batch if it is a draft, lock it, and return it with ``check`` of this version.

    A batch that is no longer editable is not locked, because nothing can supersede it.
    """
    batch = yield from load_batch(request.ids["id"])
    for _ in range(ROUNDS):
        batch = yield from submit_draft(batch, request)
        checked = yield from check(batch)
        try:
            if batch.is_editable:
                yield from taken(batch, phase, request.now)
        except Conflict:
            batch = yield from reload_batch(batch.id)
        else:
            return batch, checked
    raise Halted(BEING_CHANGED, retry_after=1)


# Start


def start_batch(request: Request) -> Flow:
    """POST /batches/:id/start-processing

    GET  /batch/:id/summary            for the status, and to verify the payments
    POST /batches                      for a draft
    POST /batches/:id/start-processing once
    GET  /batch/:id/summary            if the response is incomplete or shows another amount
    """
    # Checked first, because loading a superseded batch says that it is not found.
    yield from reject_abandoned_batch(request.ids["id"])
    check = partial(_checked_for_start, request)
    batch, notices = yield from _locked(request, "starting", check)
    path, settle = (
        f"/batches/{batch.upstream}/start-processing",
        settling.settle_start(batch.upstream),
    )
    # Sent only while the client waits: one that has gone may start the batch in another way.
    call = Call("POST", path, settle=settle, prompt=True)
    answered = yield from call_under_lock(batch, call)
    facts = {**build_unlocked_facts(batch, "sent"), "started": format_timestamp(request.now)}
    yield Record("batch", batch.id, facts)
    given = restore_original_fields(batch.facts, drop_nulls(extract_batch(answered)))
    batch = replace(batch, facts={**batch.facts, **facts})
    # The status loaded before the start is out of date.
    started = replace(batch, given={**batch.given, "status": None, **given})
    tells_all = given.get("status") and given.get("sentAt")
    if not tells_all or _is_another(given.get("amount"), batch):
        try:
            batch = yield from load_batch(batch.id)
        except Failure:
            # The batch is started. After an error here the client would start it again.
            pass
        else:
            started = replace(batch, given={**given, **drop_nulls(batch.given)})
    return Answer({"batch": build_batch_answer(started)}, notices)


def _checked_for_start(request: Request, batch: Batch) -> Sub:
    """Return notices for the operator's log. Raises Invalid if the batch cannot be started."""
    # A batch whose payments are known to be none has nothing to pay.
    if not batch.is_editable or (batch.tells_payments and not batch.filling):
        raise Invalid(WRONG_STATUS)
    return (yield from _verified(batch, request))


def _is_another(amount: JSON, batch: Batch) -> bool:
    """Whether the start changed the batch's amount: the service may apply new exchange rates."""
    told, before = money.parse_amount(amount), money.parse_amount(batch.given.get("amount"))
    return None not in (told, before) and told != before


def _verified(batch: Batch, request: Request) -> Sub:
    """Compare the payments about to be made with those requested (``verify_before_start``)."""
    # The gateway does not know what was requested of a batch that was created elsewhere.
    made_here = batch.facts.get("createdAt") and not batch.facts.get("elsewhere")
    if request.manners.verify_before_start == "off" or not made_here:
        return ()
    if (yield from batch_bodies.is_as_asked(batch)):
        return ()
    if request.manners.verify_before_start == "refuse":
        raise Invalid(WRONG_STATUS)
    return ("started a batch whose payments differ from those requested through the gateway",)


# Delete


def delete_batch(request: Request) -> Flow:
    """DELETE /batches/:id

    GET    /batch/:id/summary
    DELETE /batches/:id        if the service has this path; otherwise its batch is superseded
    """
    batch = yield from load_batch(request.ids["id"])
    yield from _deleted(batch, request)
    return Answer({"object": "deleted"})


def delete_batches(request: Request) -> Flow:
    """DELETE /batches

    GET    /batch/:id/summary  for each, in parallel: all are checked before the first is deleted
    DELETE /batches/:id        for each

    If one deletion is refused, the batches before it stay deleted, and the same request sent again
    deletes the rest.
    """
    ids = list(dict.fromkeys(request.body["ids"]))
    request.refuse([] if ids else [empty("ids")])
    if not all(_BATCH_ID.fullmatch(id_) for id_ in ids):
        raise Invalid(NOT_FOUND)
    # The same ids make the same request, in any order: a repeated one skips what it has deleted.
    together = derive_id("D", *sorted(ids))
    batches = yield from load_batches((yield from _left(ids, together)) or ids)
    for batch in batches:
        if isinstance(batch, Exception):
            raise batch
    if not all(batch.is_editable for batch in batches):
        raise Invalid(WRONG_STATUS)
    for batch in batches:
        yield from _deleted(batch, request, together)
    return Answer({"object": "deleted"})


def _left(ids: Sequence[str], together: str) -> Sub:
    """Return the ids that no earlier request for the same set of batches has deleted."""
    left = []
    for id_ in ids:
        facts = yield Recall("batch", id_)
        if (facts.get("phase"), facts.get("together")) != ("deleted", together):
            left.append(id_)
    return left


def _deleted(batch: Batch, request: Request, together: str | None = None) -> Sub:
    batch = yield from lock_batch(batch, "deleting", request.now)
    abandoned = list(batch.facts.get("abandoned", []))
    if not batch.is_draft:
        id_ = batch.upstream
        settle = settling.settle_deleted_batch(id_)
        call = Call("DELETE", f"/batches/{id_}", witness=(id_,), settle=settle)
        try:
            yield from call_under_lock(batch, call)
        except NoSuchOperation:
            # The service keeps the batch, but a superseded one is never started.
            abandoned.append(batch.upstream)
    left = tuple(Record("alias", upstream, {"abandoned": True}) for upstream in abandoned)
    facts = {"phase": "deleted", "since": None, "abandoned": abandoned, "together": together}
    yield Record("batch", batch.id, facts, also=left)


_BATCH_ID = re.compile("B-[A-Za-z0-9]+")
_ALL, _ONE = "/batches", "/batches/{id}"
_INFERRED = "assumes the legacy path; without it the batch becomes a draft of the gateway"
_EDITABLE = "an open batch can be edited and deleted (current interface, section 1.8)"

OPERATIONS = (
    Operation(
        "POST",
        _ALL,
        create_batch,
        "4.3",
        "emulated",
        "fields that the response omits are read from the summary",
        takes=legacy.BatchBody,
        gives=legacy.BatchAnswer,
        rests_on="the service accepts a payment's memo; the document shows no response payload",
    ),
    Operation(
        "GET",
        _ALL,
        list_batches,
        "4.3",
        "inferred",
        "without the path, the stored batches are the list; the gateway applies the filters",
        gives=legacy.BatchesAnswer,
        query=legacy.FilteredQuery,
        rests_on="GET /batches, which the document does not list",
    ),
    Operation(
        "DELETE",
        _ALL,
        delete_batches,
        "4.3",
        "inferred",
        "checks all batches, then deletes one after another",
        takes=legacy.BatchIdsBody,
        gives=legacy.DoneAnswer,
        rests_on=_EDITABLE,
    ),
    Operation(
        "GET",
        _ONE,
        read_batch,
        "4.3",
        "emulated",
        "the summary, completed with the requested payments",
        gives=legacy.WholeBatchAnswer,
        rests_on="a summary has all payment details (section 4.3)",
    ),
    Operation(
        "PATCH",
        _ONE,
        update_batch,
        "4.3",
        "inferred",
        _INFERRED,
        takes=legacy.BatchChangeBody,
        gives=legacy.DoneAnswer,
        rests_on=_EDITABLE,
    ),
    Operation(
        "DELETE",
        _ONE,
        delete_batch,
        "4.3",
        "inferred",
        "without the path the service's batch is superseded and never started",
        gives=legacy.DoneAnswer,
        rests_on=_EDITABLE,
    ),
    Operation(
        "POST",
        f"{_ONE}/generate-quote",
        generate_quote,
        "4.3",
        "emulated",
        "the quote, then the summary",
        gives=legacy.WholeBatchAnswer,
    ),
    Operation(
        "GET",
        f"{_ONE}/summary",
        read_batch_summary,
        "4.3",
        "emulated",
        "fields that the service omits are computed from payments and balance",
        gives=legacy.SummaryAnswer,
        may_write=True,
    ),
    Operation(
        "POST",
        f"{_ONE}/start-processing",
        start_batch,
        "4.3",
        "emulated",
        "compares the payments with those requested, then starts the batch once",
        gives=legacy.BatchAnswer,
    ),
)
