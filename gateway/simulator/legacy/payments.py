"""Operations on payments (section 4.4)."""

from functools import partial

from gateway.simulator import payments
from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import batch_views, filters, payment_bodies
from gateway.simulator.legacy.legacy_request import DELETED, UPDATED, LegacyRequest
from gateway.simulator.payments import matches_search
from gateway.simulator.state import Payment


def create_payment(request: LegacyRequest) -> JsonObject:
    batch, problems = request.require_path_batch(), Problems()
    batch.check_open()
    order = payment_bodies.parse_payment_order(request, problems, request.body, batch)
    problems.raise_if_any()
    assert order is not None  # noqa: S101  # nothing was found wrong
    payment = payments.insert_payment(request.tenant, batch, order)
    return {"payment": batch_views.build_payment(request, payment)}


def get_payment(request: LegacyRequest) -> JsonObject:
    return {"payment": batch_views.build_payment(request, _require_payment(request))}


def _require_payment(request: LegacyRequest) -> Payment:
    """Raises ApiError `not_found`, also for a payment of another batch."""
    return payments.require_payment(
        request.require_path_batch(), request.resolve_id(request.path_ids[1])
    )


def update_payment(request: LegacyRequest) -> JsonObject:
    payment, problems = _require_payment(request), Problems()
    payment.batch.check_open()
    order = payment_bodies.parse_payment_change(problems, request.body, payment)
    problems.raise_if_any()
    assert order is not None  # noqa: S101  # nothing was found wrong
    payments.apply_payment_order(request.tenant, payment, order)
    return UPDATED


def delete_payment(request: LegacyRequest) -> JsonObject:
    payments.delete_payment(request.tenant, _require_payment(request))
    return DELETED


def list_batch_payments(request: LegacyRequest) -> JsonObject:
    """Lists the payments of a batch in the order in which they were added."""
    search = request.query.get("search", "")
    payments = [
        each
        for each in request.require_path_batch().payments.values()
        if matches_search(each, search, request.build_client_id(each.id))
    ]
    build_entry = partial(batch_views.build_batch_payment_entry, request)
    return request.build_page("payments", payments, build_entry)


def get_payment_of_any_batch(request: LegacyRequest) -> JsonObject:
    payment = request.tenant.require_payment(request.resolve_id(request.path_ids[0]))
    return {"payment": batch_views.build_payment(request, payment)}


def list_all_payments(request: LegacyRequest) -> JsonObject:
    """Lists the payments of all batches, newest first, as the lists of batches show them."""
    build_entry = partial(batch_views.build_batch_payment_entry, request)
    matches = filters.filter_payments(request, request.tenant.list_newest_payments(), build_entry)
    return request.build_page("payments", matches, build_entry)
