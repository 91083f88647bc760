"""The five payment operations (legacy interface, section 4.4), and two undocumented ones."""

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
    GET  /recipients?email=      if the request names the recipient by address
    POST /batches/:id/payments   unless the batch is a draft
    GET  /batch/:id/summary      the payment as the service shows it
    GET  /recipients/:id         to show the recipient in full
    """
    batch, given, entry = yield from changed(
        request, lambda batch: _with_one_more(batch, request), is_open_to_adds
    )
    payment_id = given.get("id")
    try:
        batch = yield from load_batch(batch.id)
        payment = batch.payment(payment_id) if payment_id else _newest(batch, entry)
    except Failure:
        payment = None  # The payment is added. After an error here the client would add it again.
    payment = payment or build_requested_payment(batch, given, entry)
    return Answer({"payment": (yield from _shown(payment, request, is_added=True))})


def _with_one_more(batch: Batch, request: Request) -> Sub:
    """Add the payment; return the batch, the payment in the service's response, and its entry."""
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    told = frozenset(problem.field for problem in request.problems)
    sent = Sent(request.body, "", told)
    request.refuse(batch_bodies.validate_added_payment(sent, batch.currency))
    (recipient,) = yield from batch_bodies.resolve_recipients([sent], batch.currency)
    entry = batch_bodies.build_entry(sent, recipient)
    if not batch.is_draft:
        return batch, (yield from _added(batch, request, sent, entry)), entry
    entry = yield from _with_recipient(entry)
    entry["id"] = derive_id("P", request.seed, batch.id)
    yield from edit_batch(batch, request, _NO_CALL, Edit(added=[entry]))
    return batch, {"id": entry["id"]}, entry


_NO_CALL = Call("GET", "/balance")
"""An edit of a draft makes no call; this is a read, so that it needs no outcome rule."""


def _added(batch: Batch, request: Request, sent: Sent, entry: Entry) -> Sub:
    """POST /batches/:id/payments; returns the payment in the response."""
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
    # Some services give no id in the response. The next load of the batch finds the payment.
    id_ = given.get("id")
    yield from confirm_add(add, {**entry, **({"id": id_, "upstream": id_} if id_ else {})})
    return given


def _newest(batch: Batch, entry: Entry) -> Payment | None:
    """Find the payment just added if the response has no id: the one without a stored entry."""
    known = {one["id"] for one in batch.entries if one.get("id")}
    new = [one for one in batch.payments if one["id"] not in known]
    same = [
        one for one in new if (one.get("recipient") or {}).get("id") == entry["recipient"]["id"]
    ]
    paying = [one for one, its in match_payments(new, [entry], batch.currency) if its is not None]
    return next(iter([*paying, *same[-1:], *new[-1:]]), None)


def _with_recipient(entry: Entry) -> Sub:
    """GET /recipients/:id, for an entry without the recipient's fields that listings show."""
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
    GET /payments/:id       if the summary shows the payment incompletely
    GET /recipients/:id
    """
    batch = yield from load_batch(request.ids["id"])
    payment = _found(batch, request)
    if not _is_told(payment) and payment.get("upstream") and not batch.is_draft:
        payment = _with(payment, (yield from _told(payment["upstream"])))
    return Answer({"payment": (yield from _shown(payment, request))})


_TELLS = ("status", "sourceAmount", "targetAmount", "targetCurrency", "exchangeRate", "fees")


def _is_told(payment: Payment) -> bool:
    """Whether the summary shows all details of a payment."""
    # The documents show no reduced form of a payment, but services use one in summaries.
    return all(payment.get(name) is not None for name in _TELLS)


def _told(upstream: str) -> Sub:
    """GET /payments/:id; empty if that fails."""
    try:
        return extract_payment((yield Call("GET", f"/payments/{upstream}")))
    except Failure:
        return {}  # the summary suffices for an answer


def _with(payment: Payment, told: Payment) -> Payment:
    """Complete a payment with the service's payment object; its own fields take precedence."""
    return {**drop_nulls(told), **drop_nulls(payment)}


def _found(batch: Batch, request: Request) -> Payment:
    payment = batch.payment(request.ids["payment"])
    if payment is None:
        raise Invalid(NOT_FOUND)
    return payment


def _shown(payment: Payment, request: Request, *, is_added: bool = False) -> Sub:
    """Build the answer for a payment, with its recipient in full.

    If the service refuses to show the recipient, its fields in the payment are used.
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
        # After a transient failure the reduced recipient would look like one without a payout
        # method. A payment just added is answered all the same, or the client would add it again.
        if not is_added and is_transient(failure):
            raise
        recipient = payment.get("recipient") or {}
    return build_payment_answer(payment, build_recipient_answer(recipient, facts, request.manners))


def list_batch_payments(request: Request) -> Flow:
    """GET /batches/:id/payments

    GET /batch/:id/summary  the gateway searches and pages its payments
    """
    batch = yield from load_batch(request.ids["id"])
    search = request.query.get("search")
    found = batch.payments
    if search:
        found = yield from search_payments(search, found)
    return Answer((yield from _page(request, found, len(found))))


def _page(request: Request, payments: Sequence[Payment], records: int) -> Sub:
    """Build the requested page; ``payments`` are the first of ``records`` payments."""
    shown, counts = parse_page_params(request.query).of(payments, records)
    words = yield batch_bodies.recall_recipient_facts(iterate_payee_ids(shown))
    rows = [build_payment_list_item(one, words) for one in shown]
    return {"payments": rows, "meta": counts}


def read_any_payment(request: Request) -> Flow:
    """GET /payments/:id

    GET /payments/:id       if the gateway has not stored which batch it is in
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

    GET /batch/:id/summary  in parallel, for each stored batch that may have a payment of the page;
                            with a filter for all stored batches, except complete ones without a
                            payment since ``startDate``; the newest payment comes first
    GET /recipients/:id     with ``country``, for each recipient whose country no summary shows
    """
    page, filters = parse_page_params(request.query), Filters.of(request.query)
    wanted = partial(filter_payments, filters) if filters else None
    # All payments up to the end of the page: which are on it is known only once they are sorted.
    found = yield from newest(page.number * page.size, wanted, filters.since)
    return Answer((yield from _page(request, found.payments, found.records)))


# Change


def update_payment(request: Request) -> Flow:
    """PATCH /batches/:id/payments/:payment

    GET   /batch/:id/summary
    PATCH /batches/:id/payments/:payment  if the service has it, else the batch becomes a draft
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
    request.refuse([*faults, *batch_bodies.validate_amounts(sent)])
    changes = batch_bodies.extract_changes(sent.body)
    sent_on = batch_bodies.extract_changes(sent.body, memo=request.manners.send_memo)
    if not changes:
        yield from leave_unchanged(batch)
        return
    call = Call(
        "PATCH",
        f"/batches/{batch.upstream}/payments/{payment['upstream'] or payment['id']}",
        sent_on,
        # The service's refusal may name the legacy fields sent, or those of the current document.
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
    DELETE /batches/:id/payments/:payment  if the service has it, else the batch becomes a draft
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
_INFERRED = "assumes the legacy path; without it the batch becomes a draft of the gateway"
_UNLISTED = "clients use it, though the legacy document does not list it"

OPERATIONS = (
    Operation(
        "POST",
        _OF_BATCH,
        create_payment,
        "4.4",
        "emulated",
        "assumes the payload; the response is completed from the summary",
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
        "the gateway pages the payments of the summary",
        gives=legacy.ListedPaymentsAnswer,
        query=legacy.SearchQuery,
    ),
    Operation(
        "GET",
        _ONE,
        read_payment,
        "4.4",
        "emulated",
        "found in the summary of its batch, completed from the payment itself",
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
        f"{_UNLISTED}; has payments of batches created through the gateway, which filters them",
        gives=legacy.ListedPaymentsAnswer,
        query=legacy.FilteredQuery,
    ),
)
