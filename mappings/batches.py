"""Batches (legacy interface, section 4.3): nine operations."""

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

    GET  /recipients?email=  once for each distinct address, side by side; at most 1,000
    POST /batches
    GET  /batch/:id/summary  where the answer to the create does not tell all
    """
    body = request.body
    payments = collect_sent_payments(body.get("payments"), problems=request.problems)
    request.refuse(
        *batch_bodies.validate_currency(body, request.problems),
        *chain.from_iterable(map(batch_bodies.validate_payment, payments)),
        *batch_bodies.validate_addresses(payments),
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
            # It is made: a client told otherwise would make it again.
            batch = replace(build_batch(id_, facts, entries, {}, None), given=given)
            if isinstance(failure, Unreachable):  # nor is it kept waiting for one more read
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
    GET /balance            where no status is told, as for a draft
    """
    batch = yield from resolve_status((yield from load_batch(request.ids["id"])))
    words = yield from batch_bodies.load_facts_of_recipients(iterate_payee_ids(batch.payments))
    return Answer({"batch": build_full_batch_answer(batch, words)})


def list_batches(request: Request) -> Flow:
    """GET /batches

    GET /batches            where the service has it, all of it, several pages at a time; what the ledger
                            knows fills in, or is the list
    GET /batch/:id/summary  of the page's batches, those of which the list does not tell all; of any batch of
                            which it does not tell what a filter asks for: ``recipient``, ``country`` and
                            ``targetCurrency`` are those of its payments
    GET /balance            where no status is told, as for drafts
    GET /recipients/:id     with ``country``, of each recipient whose country no summary tells

    No summary is read for ``completedAt`` alone: a batch that the list tells all else of may lack it.
    """
    known = yield Recall("batch")
    rows = yield from batch_lists.listed(known)
    filters = Filters.of(request.query)
    if wanted := filters.search:
        names = yield recall_legacy_ids(rows)
        rows = [row for row in rows if wanted in names.get(row["id"], row["id"]).casefold()]
    if replace(filters, search=""):
        rows = yield from batch_lists.filter_batch_rows(rows, known, filters)
    rows.sort(key=lambda row: str(row["id"]))
    rows.sort(key=lambda row: str(row.get("createdAt") or ""), reverse=True)
    those, counts = parse_page_params(request.query).of(rows)
    shown = yield from batch_lists.load_batch_page(those, known)
    return Answer({"batches": shown, "meta": counts})


def read_batch_summary(request: Request) -> Flow:
    """GET /batches/:id/summary

    POST /batches           for a draft: a summary is of a batch that the service has
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

    GET   /batch/:id/summary  the payments that there are
    GET   /recipients?email=  for payments to add, once for each distinct address; at most 1,000
    PATCH /batches/:id        where the service has it, else the batch becomes a draft; a description alone
                              is then remembered here
    POST  /batches            for another currency, while there are no payments: the service's batch is
                              superseded
    """
    sent = collect_sent_payments(request.body.get("payments"), problems=request.problems)
    if found := batch_bodies.validate_addresses(one for one in sent if not one.body.get("id")):
        request.refuse(*found)
    yield from changed(request, lambda batch: edit_batch_payments(batch, request))
    return Answer({"object": "updated"})


def generate_quote(request: Request) -> Flow:
    """POST /batches/:id/generate-quote

    POST /batches                     for a draft
    POST /batches/:id/generate-quote
    GET  /batch/:id/summary           rates and amounts as they are now
    GET  /balance                     where no status is told
    """
    batch, is_taken = yield from _locked(request, "quoting", _may_be_quoted)
    settle = settling.settle_quote(batch.upstream, batch.given.get("quoteExpiredAt"))
    call = Call("POST", f"/batches/{batch.upstream}/generate-quote", settle=settle)
    if is_taken:
        quoted = extract_batch((yield from call_under_lock(batch, call)))
        yield from release_batch_lock(batch)
    else:  # the service says why not
        quoted = extract_batch((yield call))
    batch = yield from load_batch(batch.id)
    batch = replace(batch, given={**drop_nulls(quoted), **drop_nulls(batch.given)})
    batch = yield from resolve_status(batch)
    words = yield from batch_bodies.load_facts_of_recipients(iterate_payee_ids(batch.payments))
    return Answer({"batch": build_full_batch_answer(batch, words)})


def _may_be_quoted(batch: Batch) -> Sub:
    yield from ()
    return batch.is_editable


def _locked(request: Request, phase: str, check: Callable[[Batch], Sub]) -> Sub:
    """Takes a batch that the service has, made real if need be, so that no edit comes in between.

    Returns it, and what ``check`` said of it before. One that cannot be edited any more is returned as it
    is: nothing supersedes it.
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

    GET  /batch/:id/summary            the status, and what is compared with the ledger
    POST /batches                      for a draft
    POST /batches/:id/start-processing once
    GET  /batch/:id/summary            where the answer does not tell all, or another amount
    """
    yield from reject_abandoned_batch(request.ids["id"])
    check = partial(_checked_for_start, request)
    batch, notices = yield from _locked(request, "starting", check)
    path, settle = (
        f"/batches/{batch.upstream}/start-processing",
        settling.settle_start(batch.upstream),
    )
    call = Call("POST", path, settle=settle, prompt=True)
    answered = yield from call_under_lock(batch, call)
    facts = {**build_unlocked_facts(batch, "sent"), "started": format_timestamp(request.now)}
    yield Record("batch", batch.id, facts)
    given = restore_original_fields(batch.facts, drop_nulls(extract_batch(answered)))
    batch = replace(batch, facts={**batch.facts, **facts})
    started = replace(batch, given={**batch.given, "status": None, **given})
    tells_all = given.get("status") and given.get("sentAt")
    if not tells_all or _is_another(given.get("amount"), batch):
        try:
            batch = yield from load_batch(batch.id)
        except Failure:
            pass  # It is started: a client told otherwise would start it again.
        else:
            started = replace(batch, given={**given, **drop_nulls(batch.given)})
    return Answer({"batch": build_batch_answer(started)}, notices)


def _checked_for_start(request: Request, batch: Batch) -> Sub:
    """What to tell of a batch that is about to be started; raises Invalid if it cannot be."""
    if not batch.is_editable or (batch.tells_payments and not batch.filling):
        raise Invalid(WRONG_STATUS)
    return (yield from _verified(batch, request))


def _is_another(amount: JSON, batch: Batch) -> bool:
    """Whether a start has changed what the service told before: it may rate payments anew."""
    told, before = money.parse_amount(amount), money.parse_amount(batch.given.get("amount"))
    return None not in (told, before) and told != before


def _verified(batch: Batch, request: Request) -> Sub:
    """What the service is about to pay, against what was asked for through the gateway."""
    made_here = batch.facts.get("createdAt") and not batch.facts.get("elsewhere")
    if request.manners.verify_before_start == "off" or not made_here:
        return ()
    if (yield from batch_bodies.is_as_asked(batch)):
        return ()
    if request.manners.verify_before_start == "refuse":
        raise Invalid(WRONG_STATUS)
    return ("a batch was started whose payments are not those asked for through the gateway",)


# Delete


def delete_batch(request: Request) -> Flow:
    """DELETE /batches/:id

    GET    /batch/:id/summary
    DELETE /batches/:id        where the service has it, else its batch is abandoned
    """
    batch = yield from load_batch(request.ids["id"])
    yield from _deleted(batch, request)
    return Answer({"object": "deleted"})


def delete_batches(request: Request) -> Flow:
    """DELETE /batches

    GET    /batch/:id/summary  each, side by side: all are checked before the first is deleted
    DELETE /batches/:id        each

    When one is refused, those before it stay deleted; the same request again deletes the rest.
    """
    ids = list(dict.fromkeys(request.body["ids"]))
    request.refuse(*([] if ids else [empty("ids")]))
    if not all(_BATCH_ID.fullmatch(id_) for id_ in ids):
        raise Invalid(NOT_FOUND)
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
    """Those that a request to delete the same batches has not deleted before."""
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
            abandoned.append(batch.upstream)
    left = tuple(Record("alias", upstream, {"abandoned": True}) for upstream in abandoned)
    facts = {"phase": "deleted", "since": None, "abandoned": abandoned, "together": together}
    yield Record("batch", batch.id, facts, also=left)


_BATCH_ID = re.compile("B-[A-Za-z0-9]+")
_ALL, _ONE = "/batches", "/batches/{id}"
_INFERRED = "the path is presumed to be the legacy one; without it the batch becomes a draft here"
_EDITABLE = "an open batch can be edited and deleted (current interface, section 1.8)"

OPERATIONS = (
    Operation(
        "POST",
        _ALL,
        create_batch,
        "4.3",
        "emulated",
        "what the answer leaves out is read from the summary",
        takes=legacy.BatchBody,
        gives=legacy.BatchAnswer,
        rests_on="a payment's memo is taken; an answer's payload is not shown",
    ),
    Operation(
        "GET",
        _ALL,
        list_batches,
        "4.3",
        "inferred",
        "the ledger is the list where the service has none; filters are decided here",
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
        "each is deleted, once all were checked",
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
        "the summary, and what was asked for",
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
        "without the path the service's batch is abandoned and never started",
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
        "computed from payments and balance where the service does not give it",
        gives=legacy.SummaryAnswer,
        may_write=True,
    ),
    Operation(
        "POST",
        f"{_ONE}/start-processing",
        start_batch,
        "4.3",
        "emulated",
        "compared with what was asked for, then started once",
        gives=legacy.BatchAnswer,
    ),
)
