"""Route tables, and the operations that both interfaces answer alike, those on payments included.

The document of the current interface does not show the responses of section 4.3: they are those of
the legacy interface, sections 4.3 to 4.5. What differs is in the request (`AcceptedRequest`).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from gateway.simulator import batches, recipients
from gateway.simulator.batches import parse_text
from gateway.simulator.requests import AcceptedRequest, Operation
from gateway.simulator.state import Batch, Payment
from gateway.simulator.validation import JsonObject, Problems, build_not_found_error, is_blank


class Route(NamedTuple):
    method: str
    path_pattern: re.Pattern[str]
    operation: Operation


Routes = tuple[Route, ...]


def compile_routes(*routes: tuple[str, str, Operation], suffix: str = "") -> Routes:
    """Compiles paths below `/v1` with placeholders, ``:id``; nothing is decoded before matching."""
    return tuple(
        Route(method, re.compile(rf"/v1{pattern}{suffix}\Z"), operation)
        for method, path, operation in routes
        for pattern in [re.sub(":[a-z]+", "([^/]+)", re.escape(path))]
    )


def require_route(table: Routes, method: str, path: str) -> tuple[Operation, tuple[str, ...]]:
    """Returns the operation and the ids in the path. Raises ApiError `not_found`."""
    for route in table:
        if route.method == method and (match := route.path_pattern.match(path)):
            return route.operation, match.groups()
    raise build_not_found_error("Path")


UPDATED: JsonObject = {"object": "updated"}
DELETED: JsonObject = {"object": "deleted"}


def read_recipient(request: AcceptedRequest) -> JsonObject:
    return {"recipient": request.build_recipient(request.require_path_recipient())}


def delete_recipient(request: AcceptedRequest) -> JsonObject:
    recipients.archive_recipients(request.tenant, [request.require_path_recipient()])
    return dict(request.answer_to_deleted_recipients)


def delete_recipients(request: AcceptedRequest) -> JsonObject:
    """Deletes several recipients, or none if one id is unknown."""
    # All are looked up before the first one is archived.
    found_recipients = [request.require_recipient(each) for each in request.parse_ids()]
    request.logged_recipients.extend(found_recipients)
    recipients.archive_recipients(request.tenant, found_recipients)
    return dict(request.answer_to_deleted_recipients)


def list_activities(request: AcceptedRequest) -> JsonObject:
    """Lists the activity log, newest first."""
    # Not `require_path_recipient`, which would enter this request in the log.
    recipient = request.require_recipient(request.path_ids[0])
    return request.build_page(
        "activities",
        list(reversed(recipient.activities)),
        lambda activity: request.build_activity(recipient, activity),
    )


def create_batch(request: AcceptedRequest) -> JsonObject:
    tenant, problems = request.tenant, Problems()
    currency = request.parse_batch_currency(problems)
    description = parse_text(problems, request.body, "description")
    now = tenant.now()
    # Without an id yet: payments are checked against a batch that may never come to exist.
    batch = Batch("", currency, description, created_at=now, updated_at=now)
    drafts = [
        request.parse_payment(nested_problems, entry, batch)
        for nested_problems, entry in problems.iter_objects(request.body, "payments")
    ]
    problems.raise_if_any()
    batches.insert_batch(tenant, batch, filter(None, drafts))
    return {"batch": request.build_batch(batch)}


def read_batch(request: AcceptedRequest) -> JsonObject:
    return {"batch": request.build_batch_with_payments(request.require_path_batch())}


def update_batch(request: AcceptedRequest) -> JsonObject:
    """Applies all changes of a batch, or none; an entry of `payments` with an id changes that payment."""
    batch, problems = request.require_path_batch(), Problems()
    batch.check_open()
    # Clients may send back a whole batch, which has its payments as a page object.
    page = request.body.get("payments")
    if isinstance(page, dict) and "payments" in page:
        request.body = {**request.body, "payments": page["payments"]}
    currency = request.parse_changed_currency(problems, batch)
    description = parse_text(
        problems, {"description": batch.description, **request.body}, "description"
    )
    entries = list(problems.iter_objects(request.body, "payments"))
    # A copy: new payments get the new currency, and a refused request changes nothing.
    edited_batch = replace(batch, currency=currency)
    if currency != batch.currency:  # there was nothing to quote before
        edited_batch.quote_count, edited_batch.quote_expires_at = 0, None
    added_payments = [
        request.parse_payment(nested_problems, entry, edited_batch)
        for nested_problems, entry in entries
        if entry.get("id") is None
    ]
    # One set for all arrays: a request cannot change and remove the same payment.
    find_payments = partial(_iter_referenced_payments, batch, set(), request)
    updates = [each for each in entries if each[1].get("id") is not None]
    updates += problems.iter_objects(request.body, "update_payments")
    changed_copies = [
        (payment, request.parse_payment_change(nested_problems, entry, payment))
        for nested_problems, entry, payment in find_payments(updates)
    ]
    removals = problems.iter_objects(request.body, "remove_payments")
    removed_payments = [payment for _, _, payment in find_payments(removals)]
    problems.raise_if_any()
    batch.currency, batch.description = currency, description
    batch.quote_count = edited_batch.quote_count
    batch.quote_expires_at = edited_batch.quote_expires_at
    batch.updated_at = request.tenant.now()
    for payment, changed_copy in changed_copies:
        batches.replace_payment(request.tenant, payment, changed_copy)
    for payment in removed_payments:
        batches.remove_payment(request.tenant, payment)
    for payment in filter(None, added_payments):
        batches.insert_payment(request.tenant, batch, payment)
    return UPDATED


def _iter_referenced_payments(
    batch: Batch,
    seen_ids: set[str],
    request: AcceptedRequest,
    entries: Iterable[tuple[Problems, JsonObject]],
) -> Iterator[tuple[Problems, JsonObject, Payment]]:
    """Yields the entries that refer to payments of the batch, each at most once."""
    for problems, entry in entries:
        payment_id = entry.get("id")
        id_ = request.resolve_id(payment_id) if isinstance(payment_id, str) else ""
        if is_blank(payment_id):
            problems.add_empty_field("id")
        elif id_ not in batch.payments:
            problems.add_invalid_field("id", "Payment does not exist in this batch")
        elif id_ in seen_ids:
            problems.add_invalid_field("id", "Named twice")
        else:
            seen_ids.add(id_)
            yield problems, entry, batch.payments[id_]


def delete_batch(request: AcceptedRequest) -> JsonObject:
    batches.delete_batches(request.tenant, [request.require_path_batch()])
    return DELETED


def delete_batches(request: AcceptedRequest) -> JsonObject:
    """Deletes several batches, or none if one is unknown or has been started."""
    found_batches = [request.require_batch(each) for each in request.parse_ids()]
    batches.delete_batches(request.tenant, found_batches)
    return DELETED


def start_processing(request: AcceptedRequest) -> JsonObject:
    batch = request.require_path_batch()
    batches.start_batch(request.tenant, batch)
    return {"batch": request.build_batch(batch)}


def create_payment(request: AcceptedRequest) -> JsonObject:
    batch, problems = request.require_path_batch(), Problems()
    batch.check_open()
    payment = request.parse_payment(problems, request.body, batch)
    problems.raise_if_any()
    assert payment is not None  # noqa: S101  # nothing was found wrong
    batches.insert_payment(request.tenant, batch, payment)
    return {"payment": request.build_payment(payment)}


def read_payment(request: AcceptedRequest) -> JsonObject:
    return {"payment": request.build_payment(request.require_path_payment())}


def list_payments_of_batch(request: AcceptedRequest) -> JsonObject:
    """Lists the payments of a batch in the order in which they were added."""
    search = request.query.get("search", "")
    matches = [
        payment
        for payment in request.require_path_batch().payments.values()
        if batches.matches_search(payment, search, request.build_client_id(payment.id))
    ]
    return request.build_page("payments", matches, request.build_listed_payment)


def update_payment(request: AcceptedRequest) -> JsonObject:
    payment, problems = request.require_path_payment(), Problems()
    payment.batch.check_open()
    changed_copy = request.parse_payment_change(problems, request.body, payment)
    problems.raise_if_any()
    batches.replace_payment(request.tenant, payment, changed_copy)
    return UPDATED


def delete_payment(request: AcceptedRequest) -> JsonObject:
    payment = request.require_path_payment()
    payment.batch.check_open()
    batches.remove_payment(request.tenant, payment)
    return DELETED


SHARED_ROUTES: tuple[tuple[str, str, Operation], ...] = (
    ("GET", "/recipients/:id", read_recipient),
    ("DELETE", "/recipients/:id", delete_recipient),
    ("DELETE", "/recipients", delete_recipients),
    ("GET", "/recipients/:id/logs", list_activities),
    ("POST", "/batches", create_batch),
    ("POST", "/batches/:id/payments", create_payment),
    ("GET", "/payments/:id", read_payment),
)
EDIT_ROUTES: tuple[tuple[str, str, Operation], ...] = (
    ("DELETE", "/batches", delete_batches),
    ("GET", "/batches/:id", read_batch),
    ("PATCH", "/batches/:id", update_batch),
    ("DELETE", "/batches/:id", delete_batch),
    ("GET", "/batches/:id/payments", list_payments_of_batch),
    ("PATCH", "/batches/:id/payments/:payment", update_payment),
    ("DELETE", "/batches/:id/payments/:payment", delete_payment),
)
