"""Payments (legacy interface, section 4.4): five operations, and two that clients use besides."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mappings import batch_bodies, legacy, settling
from mappings.banking import invalid
from mappings.batch_bodies import Sent
from mappings.batch_reads import WRONG_STATUS, load_batch
from mappings.batch_views import (
    Batch,
    build_payment_list_item,
    build_requested_payment,
    drop_nulls,
    iterate_payee_ids,
)
from mappings.drafts import (
    BEING_CHANGED,
    Edit,
    begin_add,
    changed,
    confirm_add,
    drop_add,
    edit_batch,
    is_open_to_adds,
    leave_unchanged,
)
from mappings.errors import NOT_FOUND, convert_not_found, is_transient
from mappings.grammar import (
    Answer,
    Call,
    Conflict,
    Failure,
    Flow,
    Halted,
    Invalid,
    Operation,
    Recall,
    Refused,
    Request,
    Unreachable,
)
from mappings.ids import derive_id
from mappings.list_filters import Filters, filter_payments, search_payments
from mappings.matching import Entry, Payment, match_payments
from mappings.newest import newest
from mappings.objects import build_payment_answer, build_recipient_answer
from mappings.paging import parse_page_params
from mappings.payment_lists import extract_payment
from mappings.payouts import Sub

# Create


def create_payment(request: Request) -> Flow:
    """POST /batches/:id/payments

    GET  /batch/:id/summary      the batch, its currency and status
    GET  /recipients?email=      where the recipient is named by address
    POST /batches/:id/payments   a draft takes it without a call
    GET  /batch/:id/summary      the payment as the service has it
    GET  /recipients/:id         shown in full
    """
    batch, given, entry = yield from changed(
        request, lambda batch: _with_one_more(batch, request), is_open_to_adds
    )
    payment_id = given.get("id")
    try:
        batch = yield from load_batch(batch.id)
        payment = batch.payment(payment_id) if payment_id else _newest(batch, entry)
    except Failure:
        payment = None  # it is added: a client told otherwise would add it again
    payment = payment or build_requested_payment(batch, given, entry)
    return Answer({"payment": (yield from _shown(payment, request, is_added=True))})


def _with_one_more(batch: Batch, request: Request) -> Sub:
    """Adds it; returns the batch, what the service told of the payment, and its entry."""
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    told = frozenset(problem.field for problem in request.problems)
    sent = Sent(request.body, "", told)
    request.refuse(*batch_bodies.validate_added_payment(sent, batch.currency))
    (recipient,) = yield from batch_bodies.resolve_recipients([sent], batch.currency)
    entry = batch_bodies.build_entry(sent, recipient)
    if not batch.is_draft:
        return batch, (yield from _added(batch, request, sent, entry)), entry
    entry = yield from _with_recipient(entry)
    entry["id"] = derive_id("P", request.seed, batch.id)
    yield from edit_batch(batch, request, _NO_CALL, Edit(added=[entry]))
    return batch, {"id": entry["id"]}, entry


_NO_CALL = Call("GET", "/balance")
"""A draft is edited in the ledger alone."""


def _added(batch: Batch, request: Request, sent: Sent, entry: Entry) -> Sub:
    """Adds a payment to the batch that the service has; returns what it told of it."""
    body = batch_bodies.build_payment_body(entry, batch.currency, memo=request.manners.send_memo)
    add = yield from begin_add(batch, request, body)
    call = Call(
        "POST",
        f"/batches/{batch.upstream}/payments",
        body,
        sent_as=batch_bodies.map_payments_fields([sent], ""),
        settle=settling.settle_added_payment(
            batch.upstream, body, batch.currency, batch.upstream_ids, add.others
        ),
        known_by=settling.select_payment_match_fields(body),
        in_doubt=add.in_doubt,
    )
    try:
        answered = yield call
    except (Refused, Unreachable, Conflict) as failure:
        yield from drop_add(add)
        if isinstance(failure, Refused):
            raise convert_not_found(failure) from None
        if isinstance(failure, Conflict):  # the service's batch was superseded meanwhile
            raise Halted(BEING_CHANGED, retry_after=1) from None
        raise
    given = extract_payment(answered)
    id_ = given.get("id")
    yield from confirm_add(add, {**entry, **({"id": id_, "upstream": id_} if id_ else {})})
    return given


def _newest(batch: Batch, entry: Entry) -> Payment | None:
    """The payment that an answer without an id was about: the one that is not known by its id."""
    known = {one["id"] for one in batch.entries if one.get("id")}
    new = [one for one in batch.payments if one["id"] not in known]
    same = [
        one for one in new if (one.get("recipient") or {}).get("id") == entry["recipient"]["id"]
    ]
    paying = [one for one, its in match_payments(new, [entry], batch.currency) if its is not None]
    return next(iter([*paying, *same[-1:], *new[-1:]]), None)


def _with_recipient(entry: Entry) -> Sub:
    """An entry with what listings show of its recipient."""
    if "email" in entry["recipient"]:
        return entry
    id_ = entry["recipient"]["id"]
    call = Call("GET", f"/recipients/{id_}", keeps=batch_bodies.CACHE_SECONDS)
    try:
        given = (yield call)["recipient"]
    except Refused as refused:
        if refused.status != 404:
            raise
        raise Invalid(invalid("recipient.id", "names no recipient")) from None
    return {**entry, "recipient": batch_bodies.extract_listed_recipient(given)}


# Read


def read_payment(request: Request) -> Flow:
    """GET /batches/:id/payments/:payment

    GET /batch/:id/summary  a payment of another batch is not found
    GET /payments/:id       where the summary does not tell all of it
    GET /recipients/:id
    """
    batch = yield from load_batch(request.ids["id"])
    payment = _found(batch, request)
    if not _is_told(payment) and payment.get("upstream") and not batch.is_draft:
        payment = _with(payment, (yield from _told(payment["upstream"])))
    return Answer({"payment": (yield from _shown(payment, request))})


_TELLS = ("status", "sourceAmount", "targetAmount", "targetCurrency", "exchangeRate", "fees")


def _is_told(payment: Payment) -> bool:
    """Whether a summary told what there is to tell of a payment: the documents show no reduced one."""
    return all(payment.get(name) is not None for name in _TELLS)


def _told(upstream: str) -> Sub:
    """GET /payments/:id; nothing where it cannot be read, for the summary is answer enough."""
    try:
        return extract_payment((yield Call("GET", f"/payments/{upstream}")))
    except Failure:
        return {}


def _with(payment: Payment, told: Payment) -> Payment:
    """A payment with what the service tells of it elsewhere, and the ids that clients know."""
    return {**drop_nulls(told), **drop_nulls(payment)}


def _found(batch: Batch, request: Request) -> Payment:
    payment = batch.payment(request.ids["payment"])
    if payment is None:
        raise Invalid(NOT_FOUND)
    return payment


def _shown(payment: Payment, request: Request, *, is_added: bool = False) -> Sub:
    """A payment with its recipient in full, or as the payment tells of one that the service does not show.

    A service that fails for the moment has shown nothing: a client that was answered all the same took a
    recipient for one without a payout method. Only what ``is_added`` is answered, or it would be added again.
    """
    id_ = (payment.get("recipient") or {}).get("id")
    if id_ is None:
        return build_payment_answer(payment, None)
    facts = yield Recall("recipient", str(id_))
    try:
        recipient = (yield Call("GET", f"/recipients/{id_}", keeps=batch_bodies.CACHE_SECONDS))[
            "recipient"
        ]
    except Failure as failure:
        if not is_added and is_transient(failure):
            raise
        recipient = payment.get("recipient") or {}
    return build_payment_answer(payment, build_recipient_answer(recipient, facts, request.manners))


def list_batch_payments(request: Request) -> Flow:
    """GET /batches/:id/payments

    GET /batch/:id/summary  paged and searched here
    """
    batch = yield from load_batch(request.ids["id"])
    search = request.query.get("search")
    found = batch.payments
    if search:
        found = yield from search_payments(search, found)
    return Answer((yield from _page(request, found, len(found))))


def _page(request: Request, payments: Sequence[Payment], records: int) -> Sub:
    """The page asked for, of the first of so many payments."""
    shown, counts = parse_page_params(request.query).of(payments, records)
    words = yield batch_bodies.recall_recipient_facts(iterate_payee_ids(shown))
    rows = [build_payment_list_item(one, words) for one in shown]
    return {"payments": rows, "meta": counts}


def read_any_payment(request: Request) -> Flow:
    """GET /payments/:id

    GET /payments/:id       where the ledger does not know its batch
    GET /batch/:id/summary
    GET /recipients/:id
    """
    id_ = request.ids["id"]
    alias = yield Recall("alias", id_)
    if alias.get("gone"):
        raise Invalid(NOT_FOUND)
    batch_id, given = alias.get("batch"), {}
    if batch_id is None:
        given = extract_payment((yield Call("GET", f"/payments/{id_}")))
        batch_id = (given.get("batch") or {}).get("id")
    if batch_id is None:
        return Answer({"payment": (yield from _shown(given, request))})
    payment = (yield from load_batch(batch_id)).payment(alias.get("id", id_))
    if payment is None:
        raise Invalid(NOT_FOUND)
    return Answer({"payment": (yield from _shown(_with(payment, given), request))})


def list_payments(request: Request) -> Flow:
    """GET /payments

    GET /batch/:id/summary  of the batches that the ledger knows, side by side, each that may have a payment
                            of the page, and with a filter all of them, but for those that are complete and
                            have no payment since ``startDate``; the newest payment first
    GET /recipients/:id     with ``country``, of each recipient whose country no summary tells
    """
    page, filters = parse_page_params(request.query), Filters.of(request.query)
    wanted = partial(filter_payments, filters) if filters else None
    found = yield from newest(page.number * page.size, wanted, filters.since)
    return Answer((yield from _page(request, found.payments, found.records)))


# Change


def update_payment(request: Request) -> Flow:
    """PATCH /batches/:id/payments/:payment

    GET   /batch/:id/summary
    PATCH /batches/:id/payments/:payment  where the service has it, else the batch becomes a draft
    """
    yield from changed(request, lambda batch: _with_other_pay(batch, request))
    return Answer({"object": "updated"})


def _with_other_pay(batch: Batch, request: Request) -> Sub:
    payment = _found(batch, request)
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    sent, faults = batch_bodies.drop_malformed_amounts(
        batch_bodies.drop_unchanged_fields(Sent(request.body, ""), payment)
    )
    request.refuse(*faults, *batch_bodies.validate_amounts(sent))
    changes = batch_bodies.extract_changes(sent.body)
    sent_on = batch_bodies.extract_changes(sent.body, memo=request.manners.send_memo)
    if not changes:
        yield from leave_unchanged(batch)
        return
    call = Call(
        "PATCH",
        f"/batches/{batch.upstream}/payments/{payment['upstream'] or payment['id']}",
        sent_on,
        sent_as={name: name for name in changes} | batch_bodies.map_payments_fields([sent], ""),
        witness=(batch.upstream, str(payment["upstream"])),
        settle=settling.settle_edited_batch(
            batch.upstream,
            batch.payments,
            batch.currency,
            changed=lambda: {str(payment["upstream"]): changes},
        ),
    )
    yield from edit_batch(batch, request, call, Edit(changes=lambda: {payment["id"]: changes}))


def delete_payment(request: Request) -> Flow:
    """DELETE /batches/:id/payments/:payment

    GET    /batch/:id/summary
    DELETE /batches/:id/payments/:payment  where the service has it, else the batch becomes a draft
    """
    yield from changed(request, lambda batch: _without(batch, request))
    return Answer({"object": "deleted"})


def _without(batch: Batch, request: Request) -> Sub:
    payment = _found(batch, request)
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    call = Call(
        "DELETE",
        f"/batches/{batch.upstream}/payments/{payment['upstream'] or payment['id']}",
        witness=(batch.upstream, str(payment["upstream"])),
        settle=settling.settle_edited_batch(
            batch.upstream,
            batch.payments,
            batch.currency,
            removed=lambda: [str(payment["upstream"])],
        ),
    )
    yield from edit_batch(batch, request, call, Edit(gone=[payment["id"]]))


_OF_BATCH = "/batches/{id}/payments"
_ONE = "/batches/{id}/payments/{payment}"
_INFERRED = "the path is presumed to be the legacy one; without it the batch becomes a draft here"
_UNLISTED = "clients in the field use it; the legacy document does not list it"

OPERATIONS = (
    Operation(
        "POST",
        _OF_BATCH,
        create_payment,
        "4.4",
        "emulated",
        "the payload is presumed, and filled in from the summary",
        takes=legacy.PaymentBody,
        gives=legacy.PaymentAnswer,
        rests_on="the payload of a payment in POST /batches (current interface, section 4.3)",
    ),
    Operation(
        "GET",
        _OF_BATCH,
        list_batch_payments,
        "4.4",
        "emulated",
        "paged here, over the summary",
        gives=legacy.ListedPaymentsAnswer,
        query=legacy.SearchQuery,
    ),
    Operation(
        "GET",
        _ONE,
        read_payment,
        "4.4",
        "emulated",
        "found in the summary of its batch, and filled in from the payment itself",
        gives=legacy.PaymentAnswer,
    ),
    Operation(
        "PATCH",
        _ONE,
        update_payment,
        "4.4",
        "inferred",
        _INFERRED,
        takes=legacy.PaymentChangeBody,
        gives=legacy.DoneAnswer,
        rests_on="an open batch can be edited (current interface, section 1.8)",
    ),
    Operation(
        "DELETE",
        _ONE,
        delete_payment,
        "4.4",
        "inferred",
        _INFERRED,
        gives=legacy.DoneAnswer,
        rests_on="an open batch can be edited (current interface, section 1.8)",
    ),
)

UNLISTED = (
    Operation(
        "GET",
        "/payments/{id}",
        read_any_payment,
        "4.4",
        "exact",
        _UNLISTED,
        gives=legacy.PaymentAnswer,
    ),
    Operation(
        "GET",
        "/payments",
        list_payments,
        "4.4",
        "lossy",
        f"{_UNLISTED}; payments of batches made through the gateway, filtered here",
        gives=legacy.ListedPaymentsAnswer,
        query=legacy.FilteredQuery,
    ),
)
