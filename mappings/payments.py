"""Payments (legacy interface, section 4.4): five operations, and two that clients use besides."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mappings import batch_bodies, legacy
from mappings.batch_bodies import Sent
from mappings.batch_views import (
    EDITABLE,
    Batch,
    Entry,
    Payment,
    as_asked,
    listed_answer,
)
from mappings.drafts import WRONG_STATUS, edited, entries_of, free, loaded, moved, tried
from mappings.errors import NOT_FOUND, in_body
from mappings.grammar import (
    Answer,
    Call,
    Failure,
    Flow,
    Invalid,
    Operation,
    Recall,
    Record,
    Refused,
    Request,
)
from mappings.ids import made
from mappings.objects import payment_answer, recipient_answer
from mappings.paging import meta, page_of
from mappings.payment_lists import payment_in
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
    batch = yield from loaded(request.ids["id"])
    told = frozenset(problem.field for problem in request.problems)
    sent = Sent(request.body, "", told)
    request.refuse(*batch_bodies.added_problems(sent, batch.currency))
    if batch.status not in EDITABLE:
        raise Invalid(WRONG_STATUS)
    (recipient,) = yield from batch_bodies.recipients_of([sent], batch.currency)
    entry = batch_bodies.entry_of(sent, recipient)
    given: Payment = {}
    if batch.is_draft:
        entry = yield from _with_recipient(entry)
        entry["id"] = made("P", request.seed, batch.id)
        yield from edited(batch, request, _NO_CALL, lambda those: [*those, entry])
        payment_id = entry["id"]
    else:
        given = yield from _added(batch, request, sent, entry)
        payment_id = given.get("id")
    try:
        batch = yield from loaded(batch.id)
        payment = batch.payment(payment_id) if payment_id else _newest(batch, entry)
    except Failure:
        payment = None  # it is added: a client told otherwise would add it again
    return Answer(
        {"payment": (yield from _shown(payment or as_asked(batch, given, entry), request))}
    )


_NO_CALL = Call("GET", "/balance")
"""A draft is edited in the ledger alone."""


def _added(batch: Batch, request: Request, sent: Sent, entry: Entry) -> Sub:
    """Adds a payment to the batch that the service has; returns what it told of it."""
    yield from moved(batch, "editing", request.now)
    body = batch_bodies.to_send(entry, str(batch.currency), memo=request.manners.send_memo)
    names = batch_bodies.sent_as([sent], "")
    call = Call("POST", f"/batches/{batch.upstream}/payments", body, sent_as=names)
    answered = yield from tried(batch, call, in_body)
    given = payment_in(answered)
    id_ = given.get("id")
    kept = [*entries_of(batch), {**entry, **({"id": id_, "upstream": id_} if id_ else {})}]
    entries = Record("payments", batch.id, {"entries": kept})
    yield Record("batch", batch.id, free(batch, "sent"), also=(entries,))
    return given


def _newest(batch: Batch, entry: Entry) -> Payment | None:
    """The payment that an answer without an id was about: the one that is not known by its id."""
    known = {one["id"] for one in batch.entries if one.get("id")}
    new = [one for one in batch.payments if one["id"] not in known]
    same = [
        one for one in new if (one.get("recipient") or {}).get("id") == entry["recipient"]["id"]
    ]
    return next(iter([*same[-1:], *new[-1:]]), None)


def _with_recipient(entry: Entry) -> Sub:
    """An entry with what listings show of its recipient."""
    if "email" in entry["recipient"]:
        return entry
    id_ = entry["recipient"]["id"]
    given = (yield Call("GET", f"/recipients/{id_}", keeps=batch_bodies.CACHE_SECONDS))["recipient"]
    return {**entry, "recipient": batch_bodies.kept_of(given)}


# Read


def read_payment(request: Request) -> Flow:
    """GET /batches/:id/payments/:payment

    GET /batch/:id/summary  a payment of another batch is not found
    GET /recipients/:id
    """
    batch = yield from loaded(request.ids["id"])
    return Answer({"payment": (yield from _shown(_found(batch, request), request))})


def _found(batch: Batch, request: Request) -> Payment:
    payment = batch.payment(request.ids["payment"])
    if payment is None:
        raise Invalid(NOT_FOUND)
    return payment


def _shown(payment: Payment, request: Request) -> Sub:
    """A payment with its recipient in full."""
    id_ = (payment.get("recipient") or {}).get("id")
    if id_ is None:
        return payment_answer(payment, None)
    facts = yield Recall("recipient", str(id_))
    try:
        recipient = (yield Call("GET", f"/recipients/{id_}", keeps=batch_bodies.CACHE_SECONDS))[
            "recipient"
        ]
    except Failure:
        recipient = payment.get("recipient") or {}
    return payment_answer(payment, recipient_answer(recipient, facts, request.manners))


def list_batch_payments(request: Request) -> Flow:
    """GET /batches/:id/payments

    GET /batch/:id/summary  paged and searched here
    """
    batch = yield from loaded(request.ids["id"])
    return Answer((yield from _page(batch.payments, request)))


def _page(payments: Sequence[Payment], request: Request) -> Sub:
    words, names = (yield Recall("recipient")), (yield Recall("legacy id"))
    wanted = request.query.get("search", "").casefold()
    found = [one for one in payments if _mentions(one, wanted, names.get(one["id"], one["id"]))]
    page = page_of(request.query)
    start = (page.number - 1) * page.size
    rows = [listed_answer(one, words) for one in found[start : start + page.size]]
    counts = meta(page.number, math.ceil(len(found) / page.size), len(found))
    return {"payments": rows, "meta": counts}


def _mentions(payment: Payment, wanted: str, known_as: str) -> bool:
    """Whether its recipient, its memo or its id, as the client knows that, holds the text."""
    recipient = payment.get("recipient") or {}
    texts = [recipient.get(name) for name in ("name", "email", "referenceId")]
    return any(
        wanted in str(text).casefold() for text in (*texts, known_as, payment.get("memo")) if text
    )


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
        given = payment_in((yield Call("GET", f"/payments/{id_}")))
        batch_id = (given.get("batch") or {}).get("id")
    if batch_id is None:
        return Answer({"payment": (yield from _shown(given, request))})
    payment = (yield from loaded(batch_id)).payment(alias.get("id", id_))
    if payment is None:
        raise Invalid(NOT_FOUND)
    return Answer({"payment": (yield from _shown(payment, request))})


def list_payments(request: Request) -> Flow:
    """GET /payments

    GET /batch/:id/summary  each batch that the ledger knows, the newest first
    """
    known = yield Recall("batch")
    newest = sorted(known, key=lambda id_: str(known[id_].get("createdAt")), reverse=True)
    payments: list[Payment] = []
    for id_ in newest:
        try:
            payments += (yield from loaded(id_)).payments
        except Invalid:  # deleted here
            continue
        except Refused as refused:
            if refused.status != 404:  # deleted elsewhere
                raise
    return Answer((yield from _page(payments, request)))


# Change


def update_payment(request: Request) -> Flow:
    """PATCH /batches/:id/payments/:payment

    GET   /batch/:id/summary
    PATCH /batches/:id/payments/:payment  where the service has it, else the batch becomes a draft
    """
    batch = yield from loaded(request.ids["id"])
    payment = _found(batch, request)
    sent = Sent(request.body, "")
    request.refuse(*batch_bodies.amount_problems(sent))
    changed = batch_bodies.changes(request.body)
    sent_on = batch_bodies.changes(request.body, memo=request.manners.send_memo)
    if batch.status not in EDITABLE:
        raise Invalid(WRONG_STATUS)
    if not changed:
        return Answer({"object": "updated"})
    call = Call(
        "PATCH",
        f"/batches/{batch.upstream}/payments/{payment['upstream'] or payment['id']}",
        sent_on,
        sent_as={name: name for name in changed} | batch_bodies.sent_as([sent], ""),
        witness=(batch.upstream, str(payment["upstream"])),
    )

    def apply(those: Sequence[Entry]) -> list[Entry]:
        return [
            batch_bodies.with_changes(one, changed) if one.get("id") == payment["id"] else one
            for one in those
        ]

    yield from edited(batch, request, call, apply)
    return Answer({"object": "updated"})


def delete_payment(request: Request) -> Flow:
    """DELETE /batches/:id/payments/:payment

    GET    /batch/:id/summary
    DELETE /batches/:id/payments/:payment  where the service has it, else the batch becomes a draft
    """
    batch = yield from loaded(request.ids["id"])
    payment = _found(batch, request)
    if batch.status not in EDITABLE:
        raise Invalid(WRONG_STATUS)
    call = Call(
        "DELETE",
        f"/batches/{batch.upstream}/payments/{payment['upstream'] or payment['id']}",
        witness=(batch.upstream, str(payment["upstream"])),
    )

    def apply(those: Sequence[Entry]) -> list[Entry]:
        return [one for one in those if one.get("id") != payment["id"]]

    yield from edited(batch, request, call, apply)
    return Answer({"object": "deleted"})


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
        query=legacy.PageQuery,
    ),
    Operation(
        "GET",
        _ONE,
        read_payment,
        "4.4",
        "emulated",
        "found in the summary of its batch",
        gives=legacy.PaymentAnswer,
    ),
    Operation(
        "PATCH",
        _ONE,
        update_payment,
        "4.4",
        "inferred",
        _INFERRED,
        takes=legacy.PaymentBody,
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
        f"{_UNLISTED}; payments of batches made through the gateway",
        gives=legacy.ListedPaymentsAnswer,
        query=legacy.PageQuery,
    ),
)
