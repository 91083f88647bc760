"""Operations on payments (section 4.4)."""

from functools import partial

from gateway.simulator import payment_lists, payments
from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import filters, payment_bodies, payment_views
from gateway.simulator.legacy.batches import DELETED, UPDATED, require_editable
from gateway.simulator.legacy.legacy_request import LegacyRequest
from gateway.simulator.payment_lists import matches_search
from gateway.simulator.state import Payment


def create_payment(request: LegacyRequest) -> JsonObject:
    batch, problems = require_editable(request, request.require_path_batch()), Problems()
    order = payment_bodies.parse_payment_order(request.id_mapper, problems, request.body, batch)
    problems.raise_if_any()
    assert order is not None  # noqa: S101  # nothing was found wrong
    payment = payments.insert_payment(request.tenant, batch, order)
    return {"payment": payment_views.build_payment(request.id_mapper, payment)}


def get_payment(request: LegacyRequest) -> JsonObject:
    return {"payment": payment_views.build_payment(request.id_mapper, _require_payment(request))}


def _require_payment(request: LegacyRequest) -> Payment:
    """Raises ApiError `not_found`, also for a payment of another batch."""
    return payments.require_payment(
        request.require_path_batch(), request.id_mapper.resolve_id(request.path_ids[1])
    )


def update_payment(request: LegacyRequest) -> JsonObject:
    payment, problems = _require_payment(request), Problems()
    require_editable(request, payment.batch)
    order = payment_bodies.parse_payment_change(request.id_mapper, problems, request.body, payment)
    problems.raise_if_any()
    assert order is not None  # noqa: S101  # nothing was found wrong
    payments.apply_payment_order(request.tenant, payment, order)
    return UPDATED


def delete_payment(request: LegacyRequest) -> JsonObject:
    payment = _require_payment(request)
    require_editable(request, payment.batch)
    payments.remove_payment(request.tenant, payment)
    return DELETED


def list_batch_payments(request: LegacyRequest) -> JsonObject:
    """Lists the payments of a batch in the order in which they were added."""
    search = request.query.get("search", "")
    listed_payments = payment_lists.list_batch_payments(
        request.tenant, request.require_path_batch(), ""
    )
    matches = [
        listed_payment
        for listed_payment in listed_payments
        if matches_search(
            listed_payment, search, request.id_mapper.build_client_id(listed_payment.id)
        )
    ]
    batch_payments_found = [
        listed_payment.source
        for listed_payment in matches
        if isinstance(listed_payment.source, Payment)
    ]
    return request.build_page(
        "payments",
        batch_payments_found,
        lambda payment: payment_views.build_batch_payment_entry(request.id_mapper, payment),
    )


def get_payment_of_any_batch(request: LegacyRequest) -> JsonObject:
    listed_payment = payment_lists.require_payment(
        request.tenant, request.id_mapper.resolve_id(request.path_ids[0])
    )
    return {"payment": payment_views.build_full_payment(request.id_mapper, listed_payment)}


def list_all_payments(request: LegacyRequest) -> JsonObject:
    """Lists the payments of all batches, newest first, as the lists of batches show them."""
    build_entry = partial(payment_views.build_payment_list_entry, request.id_mapper)
    matches = filters.filter_payments(
        request, payment_lists.list_all_payments(request.tenant, ""), build_entry
    )
    return request.build_page("payments", matches, build_entry)
