"""The five payment operations (legacy interface, section 4.4), and two undocumented ones."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from mappings import batch_bodies, legacy
from mappings.batch_adds import Add, build_payment_add_outcome_rule, finish_add, lock_batch_for_add
from mappings.batch_bodies import SentPayment
from mappings.batch_edits import Edit
from mappings.batch_lists import load_newest_payments
from mappings.batch_locks import (
    call_service_under_lock,
    change_batch,
    is_signed_change_recent,
    release_batch_lock,
)
from mappings.batch_outcomes import select_payment_match_fields
from mappings.batch_reads import WRONG_STATUS, load_batch, load_batch_again, require_payments_shown
from mappings.batch_views import (
    Batch,
    build_payment_list_item,
    iterate_recipient_ids,
    merge_payment_with_request,
)
from mappings.drafts import INFERRED_REASON, edit_batch
from mappings.effects import JSON, Answer, Call, Flow, LoadFacts, Operation, Request, SubFlow
from mappings.errors import NOT_FOUND, convert_not_found_to_invalid_field
from mappings.failures import Failure, Invalid, Refused, is_retryable_read_failure
from mappings.ids import derive_deterministic_id
from mappings.list_filters import Filters, search_payments
from mappings.matching import Entry, Payment, extract_recipient_id
from mappings.objects import Facts, build_legacy_payment, build_legacy_recipient, drop_nulls
from mappings.paging import parse_page_params
from mappings.payloads import extract_payment
from mappings.payment_recipients import load_recipient_facts, resolve_recipients

# Create


def create_payment(request: Request) -> Flow:
    """Answers POST /batches/:id/payments.

    GET  /batch/:id/summary      the batch, its currency and status
    GET  /recipients?email=      if the request names the recipient by address
    POST /batches/:id/payments   unless the batch is a draft
    GET  /payments/:id           if the response does not show the payment in full
    GET  /batch/:id/summary      if neither does
    GET  /recipients/:id         to show the recipient in full
    """
    batch, service_payment, entry = yield from change_batch(
        request, lambda batch: _add_payment(batch, request), payment_ids=(), is_add=True
    )
    payment = yield from _load_added_payment(batch, service_payment, entry)
    return Answer({"payment": (yield from _build_full_payment(payment, request, is_added=True))})


def _load_added_payment(batch: Batch, service_payment: Payment, entry: Entry) -> SubFlow:
    """Loads an added payment, and not the whole batch if possible, which may be large.

    Raises no failure: the payment is added, and after an error the client would add it again.
    """
    is_shown = bool(service_payment.get("batch")) and not _is_reduced(service_payment)
    if "upstream" in entry and not is_shown:
        found = yield from _fetch_payment_if_possible(entry["upstream"])
        service_payment = {**service_payment, **drop_nulls(found)}
        is_shown = bool(found)
    payment_id = entry.get("id") or entry["added_as"]
    if not is_shown:
        with suppress(Failure):
            batch = yield from load_batch_again(batch, (payment_id,))
            if payment := batch.find_payment(payment_id):
                return payment
    entry = {**entry, "id": payment_id}  # by which the batch will find the payment, too
    return merge_payment_with_request(service_payment, entry, batch.common_payment_fields)


def _add_payment(batch: Batch, request: Request) -> SubFlow:
    """Adds the payment; returns the batch, the payment in the service's response, and its entry."""
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    refused_fields = frozenset(problem.field for problem in request.problems)
    payment = SentPayment(request.body, "", refused_fields)
    request.raise_if_invalid(batch_bodies.validate_added_payment(payment, batch.currency))
    find_recipient = yield from resolve_recipients([payment], batch.currency)
    entry = batch_bodies.build_entry_from_body(find_recipient, request.body)
    # The id is derived, so that a resumed flow gives the payment the same one again.
    own_id = derive_deterministic_id("P", request.seed, batch.id)
    if batch.is_draft:
        entry["id"] = own_id
        yield from edit_batch(batch, request, Edit([entry], [payment]))
        return batch, {"id": own_id}, entry
    body = batch_bodies.build_payment_body(entry, batch.currency, memo=request.options.send_memo)
    add = Add(batch, request, body)
    yield from lock_batch_for_add(add)
    call = Call(
        "POST",
        f"/batches/{batch.upstream_id}/payments",
        body,
        field_map=batch_bodies.map_payment_field_names_to_client(payment, ""),
        reconcile=build_payment_add_outcome_rule(add),
        match_fields=select_payment_match_fields(body),
        in_doubt=add.in_doubt_change,
    )
    convert_refusal = partial(convert_not_found_to_invalid_field, field="recipient.id")
    response = yield from call_service_under_lock(call, finish_add(add), convert_refusal)
    created = extract_payment(response)
    # Some services give no id in the response. The next load of the batch finds the payment.
    id_ = created.get("id")
    entry |= {"id": id_, "upstream": id_} if id_ else {"added_as": own_id}
    yield from finish_add(add, entry)
    return batch, created, entry


# Read


def read_payment(request: Request) -> Flow:
    """Answers GET /batches/:id/payments/:payment.

    GET /payments/:id       if the batch was started through the gateway
    GET /batch/:id/summary  unless that shows the payment in full; one of another batch is not found
    GET /payments/:id       if the summary shows the payment incompletely
    GET /recipients/:id
    """
    batch_id, id_ = request.ids["id"], request.ids["payment"]
    facts = yield LoadFacts("batch", batch_id)
    service_payment: Payment = {}
    if _may_be_read_alone(facts):
        service_payment = yield from _fetch_payment_if_possible(id_)
        payment = _complete_without_batch(service_payment, id_, batch_id, facts)
        if payment is not None:
            return Answer({"payment": (yield from _build_full_payment(payment, request))})
    batch = yield from load_batch(batch_id, (id_,), facts=facts)
    payment = {**_require_payment(batch, request), "id": id_}
    known = service_payment if _is_reduced(payment) else {}
    return (yield from _answer_payment(request, batch, payment, known))


def _may_be_read_alone(facts: Facts) -> bool:
    """Whether a payment may be read without its batch, of which a client may read very many.

    The service may still show a payment that was removed from the batch, or from one superseded.
    """
    return bool(facts.get("started")) and not (facts.get("removed_at") or facts.get("abandoned"))


def _complete_without_batch(
    payment: Payment, id_: str, batch_id: str, facts: Facts
) -> Payment | None:
    """Completes the service's payment; None unless it shows all that the batch would add."""
    shown_batch = payment.get("batch") or {}
    is_pending = payment.get("status") == "pending"
    times = ("createdAt", "updatedAt", "sentAt", *(() if is_pending else ("completedAt",)))
    has_memo = payment.get("memo") or facts.get("has_memos") is False
    is_complete = has_memo and all(map(shown_batch.get, times)) and not _is_reduced(payment)
    is_of_batch = shown_batch.get("id") == facts.get("upstream", batch_id)
    if not (_may_be_read_alone(facts) and is_complete and is_of_batch):
        return None
    shared = Batch(batch_id, facts, ()).common_payment_fields
    return {**merge_payment_with_request(payment, None, shared), "id": id_}


def _answer_payment(
    request: Request, batch: Batch, payment: Payment, service_payment: Payment
) -> Flow:
    """Answers a payment of a batch; ``service_payment`` is that of GET /payments/:id, if known."""
    # Drafts are excluded: their upstream payments are those of a superseded batch.
    is_shown_elsewhere = bool(payment.get("upstream")) and not batch.is_draft
    if not service_payment and is_shown_elsewhere and _is_reduced(payment):
        service_payment = yield from _fetch_payment_if_possible(payment["upstream"])
    # The fields of the batch take precedence.
    payment = {**drop_nulls(service_payment), **drop_nulls(payment)}
    return Answer({"payment": (yield from _build_full_payment(payment, request))})


_PAYMENT_DETAIL_FIELDS = (
    "status",
    "sourceAmount",
    "targetAmount",
    "targetCurrency",
    "exchangeRate",
    "fees",
)


def _is_reduced(payment: Payment) -> bool:
    """Whether details are missing: the documents show no reduced form, but services use one."""
    return any(payment.get(name) is None for name in _PAYMENT_DETAIL_FIELDS)


def _fetch_payment_if_possible(id_: JSON) -> SubFlow:
    """Calls GET /payments/:id; empty if it fails, as what else is known suffices for an answer."""
    with suppress(Failure):
        return extract_payment((yield Call("GET", f"/payments/{id_}")))
    return {}


def _require_payment(batch: Batch, request: Request) -> Payment:
    id_ = request.ids["payment"]
    payment = batch.find_payment(id_)
    if payment is None:
        require_payments_shown(batch, (id_,), request.now)
        raise Invalid(NOT_FOUND)
    return payment


def _build_full_payment(payment: Payment, request: Request, *, is_added: bool = False) -> SubFlow:
    """Builds the answer for a payment, with its recipient in full.

    If the service refuses to show the recipient, its fields in the payment are used.
    """
    id_ = extract_recipient_id(payment)
    if id_ is None:
        return build_legacy_payment(payment, None)
    facts = yield LoadFacts("recipient", str(id_))
    try:
        recipient = (yield Call("GET", f"/recipients/{id_}"))["recipient"]
    except Failure as failure:
        # After a transient failure the reduced recipient would look like one without a payout
        # method. A payment just added is answered in any case, or the client would add it again.
        if not is_added and is_retryable_read_failure(failure):
            raise
        recipient = payment.get("recipient") or {}
    return build_legacy_payment(payment, build_legacy_recipient(recipient, facts, request.options))


def list_batch_payments(request: Request) -> Flow:
    """Answers GET /batches/:id/payments.

    GET /batch/:id/summary  the gateway searches and pages its payments
    """
    batch = yield from load_batch(request.ids["id"])
    if search := request.query.get("search"):
        payments = yield from search_payments(search, batch.payments)
    else:
        payments = batch.merge_payments()
    return Answer((yield from _build_payments_page(request, payments, len(payments))))


def _build_payments_page(request: Request, payments: Sequence[Payment], records: int) -> SubFlow:
    """Builds the requested page; ``payments`` are the first of ``records`` payments."""
    page_payments, meta = parse_page_params(request.query).select_rows(payments, records)
    recipient_facts = yield from load_recipient_facts(iterate_recipient_ids(page_payments))
    rows = [build_payment_list_item(payment, recipient_facts) for payment in page_payments]
    return {"payments": rows, "meta": meta}


def read_any_payment(request: Request) -> Flow:
    """Answers GET /payments/:id.

    GET /payments/:id       if the gateway has not stored which batch it is in
    GET /batch/:id/summary  unless the batch was started, and that shows the payment in full
    GET /recipients/:id
    """
    id_ = request.ids["id"]
    redirect = yield LoadFacts("alias", id_)
    # The service may still have it, in a superseded batch.
    if redirect.get("gone"):
        raise Invalid(NOT_FOUND)
    batch_id, facts = redirect.get("batch"), None
    service_payment: Payment = {}
    if batch_id is None:
        try:
            service_payment = extract_payment((yield Call("GET", f"/payments/{id_}")))
            batch_id = (service_payment.get("batch") or {}).get("id")
        except Refused as refusal:
            if refusal.status == 404:
                batch_id = yield from _find_batch_of_added_payment(id_)
            if batch_id is None:
                raise
    payment: Payment | None = None
    if batch_id is None:
        # Nothing is stored about it, so the service's payment is all there is.
        payment = service_payment
    elif service_payment:
        facts = yield LoadFacts("batch", batch_id)
        payment = _complete_without_batch(service_payment, id_, batch_id, facts)
    if payment is not None:
        return Answer({"payment": (yield from _build_full_payment(payment, request))})
    first_id = redirect.get("id", id_)
    batch = yield from load_batch(batch_id, (first_id,), facts=facts)
    # The request names no batch, so the answer has the id that clients know it by.
    batch.requested_id = ""
    payment = batch.find_payment(first_id)
    if payment is None:
        raise Invalid(NOT_FOUND)
    return (yield from _answer_payment(request, batch, {**payment, "id": id_}, service_payment))


def _find_batch_of_added_payment(payment_id: str) -> SubFlow:
    """Returns the batch to which a payment was added so recently that it need not be shown yet."""
    for path, (created_id, *_) in (yield LoadFacts("changed", ids=(payment_id,))).items():
        if created_id == payment_id:
            return path.split("/")[2]
    return None


def list_payments(request: Request) -> Flow:
    """Answers GET /payments.

    GET /batches            all pages, if the service has this path, else the stored batches
    GET /batch/:id/summary  in parallel, for each batch that may have a payment of the page; with a
                            filter for all batches, except complete ones without a payment since
                            startDate; the newest payment comes first
    GET /recipients/:id     with country, for each recipient whose country no summary shows
    """
    page, filters = parse_page_params(request.query), Filters.from_query(request.query)
    # All payments up to the end of the page: which are on it is known only once they are sorted.
    newest, records = yield from load_newest_payments(page.number * page.size, filters)
    return Answer((yield from _build_payments_page(request, newest, records)))


# Change


def update_payment(request: Request) -> Flow:
    """Answers PATCH /batches/:id/payments/:payment.

    GET   /batch/:id/summary
    PATCH /batches/:id/payments/:payment  if the service has it, else the batch becomes a draft
    """
    yield from change_batch(
        request, partial(_change_payment, request), payment_ids=(request.ids["payment"],)
    )
    return Answer({"object": "updated"})


def _require_editable_payment(
    batch: Batch, request: Request, method: str
) -> tuple[Payment, Callable[..., Call]]:
    """Returns the payment, and the call that edits it, without its body and the outcome rule."""
    payment = _require_payment(batch, request)
    if not batch.is_editable:
        raise Invalid(WRONG_STATUS)
    path = f"/batches/{batch.upstream_id}/payments/{payment['upstream'] or payment['id']}"
    probe_ids = (batch.upstream_id, str(payment["upstream"]))
    return payment, partial(Call, method, path, probe_ids=probe_ids)


def _change_payment(request: Request, batch: Batch) -> SubFlow:
    payment, build_call = _require_editable_payment(batch, request, "PATCH")
    change = batch_bodies.drop_unchanged_fields(
        SentPayment(request.body, ""),
        payment,
        is_shown_late=is_signed_change_recent(batch, request.now),
    )
    validate = batch_bodies.validate_amount_combination
    request.raise_if_invalid(batch_bodies.validate_with_amounts(change, validate))
    changes = batch_bodies.extract_payment_changes(change.body)
    if not changes:
        yield from release_batch_lock(batch)
        return
    body = batch_bodies.extract_payment_changes(change.body, memo=request.options.send_memo)
    # The service's refusal may name the legacy fields sent, or those of the current document.
    field_map = {name: name for name in changes}
    field_map |= batch_bodies.map_payment_field_names_to_client(change, "")
    edit = Edit(build_changes=lambda: {payment["id"]: changes})
    build_call = partial(build_call, body=body, field_map=field_map)
    yield from edit_batch(batch, request, edit, build_call)


def delete_payment(request: Request) -> Flow:
    """Answers DELETE /batches/:id/payments/:payment.

    GET    /batch/:id/summary
    DELETE /batches/:id/payments/:payment  if the service has it, else the batch becomes a draft
    """

    def remove(batch: Batch) -> SubFlow:
        payment, build_call = _require_editable_payment(batch, request, "DELETE")
        return edit_batch(batch, request, Edit(removed_ids=[payment["id"]]), build_call)

    yield from change_batch(request, remove, payment_ids=(request.ids["payment"],))
    return Answer({"object": "deleted"})


_PAYMENTS_PATH = "/batches/{id}/payments"
_PAYMENT_PATH = "/batches/{id}/payments/{payment}"
_UNLISTED_REASON = "clients use it, though the legacy document does not list it"

OPERATIONS = (
    Operation(
        "POST",
        _PAYMENTS_PATH,
        create_payment,
        "emulated",
        "assumes the payload; the response is completed from the summary",
        body_shape=legacy.PaymentBody,
        answer_shape=legacy.PaymentAnswer,
        assumption="the payload of a payment in POST /batches (current interface, section 4.3)",
    ),
    Operation(
        "GET",
        _PAYMENTS_PATH,
        list_batch_payments,
        "emulated",
        "the gateway pages the payments of the summary",
        answer_shape=legacy.ListedPaymentsAnswer,
        query_shape=legacy.SearchQuery,
    ),
    Operation(
        "GET",
        _PAYMENT_PATH,
        read_payment,
        "emulated",
        "found in the summary of its batch, or after its start read itself",
        answer_shape=legacy.PaymentAnswer,
    ),
    Operation(
        "PATCH",
        _PAYMENT_PATH,
        update_payment,
        "inferred",
        INFERRED_REASON,
        body_shape=legacy.PaymentChangeBody,
        answer_shape=legacy.ObjectAnswer,
        assumption="an open batch can be edited (current interface, section 1, item 8)",
    ),
    Operation(
        "DELETE",
        _PAYMENT_PATH,
        delete_payment,
        "inferred",
        INFERRED_REASON,
        answer_shape=legacy.ObjectAnswer,
        assumption="an open batch can be edited (current interface, section 1, item 8)",
    ),
)

UNLISTED = (
    Operation(
        "GET",
        "/payments/{id}",
        read_any_payment,
        "exact",
        _UNLISTED_REASON,
        answer_shape=legacy.PaymentAnswer,
    ),
    Operation(
        "GET",
        "/payments",
        list_payments,
        "lossy",
        f"{_UNLISTED_REASON}; has the payments of all listed batches, which the gateway filters",
        answer_shape=legacy.ListedPaymentsAnswer,
        query_shape=legacy.FilteredQuery,
    ),
)
