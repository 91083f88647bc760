"""Operations on batches (section 4.3)."""

from gateway.simulator import batches, payments, processing
from gateway.simulator.errors import ApiError, Problem
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import batch_bodies, batch_views, filters
from gateway.simulator.legacy.legacy_request import DELETED, UPDATED, LegacyRequest
from gateway.simulator.legacy.summaries import build_summary
from gateway.simulator.state import Batch, Payment


def create_batch(request: LegacyRequest) -> JsonObject:
    batch = batch_bodies.create_batch(request, request.body)
    return {"batch": batch_views.build_batch(request, batch)}


def get_batch(request: LegacyRequest) -> JsonObject:
    return _build_batch_with_payments(request, request.require_path_batch())


def _build_batch_with_payments(request: LegacyRequest, batch: Batch) -> JsonObject:
    payments = list(batch.payments.values())
    page = request.build_page(
        "payments",
        payments,
        lambda payment: batch_views.build_batch_payment_entry(request, payment),
    )
    return {"batch": {**batch_views.build_batch(request, batch), "payments": page}}


def update_batch(request: LegacyRequest) -> JsonObject:
    batch = request.require_path_batch()
    batch.check_open()
    batches.apply_batch_edit(
        request.tenant, batch, batch_bodies.parse_batch_edit(request, request.body, batch)
    )
    return UPDATED


def delete_batch(request: LegacyRequest) -> JsonObject:
    batches.delete_batches(request.tenant, [request.require_path_batch()])
    return DELETED


def delete_batches(request: LegacyRequest) -> JsonObject:
    """Deletes several batches, or none if one is unknown or has been started."""
    found_batches = [request.require_batch(batch_id) for batch_id in request.parse_ids()]
    batches.delete_batches(request.tenant, found_batches)
    return DELETED


def list_batches(request: LegacyRequest) -> JsonObject:
    """Lists batches, newest first; ties are sorted by id."""
    matches = filters.filter_batches(request, request.tenant.batches.values())
    # Two stable sorts, so that `reverse` does not reverse the order of ties.
    matches.sort(key=lambda batch: request.build_client_id(batch.id))
    matches.sort(key=lambda batch: batch.created_at, reverse=True)
    return request.build_page(
        "batches", matches, lambda batch: batch_views.build_batch(request, batch)
    )


def generate_quote(request: LegacyRequest) -> JsonObject:
    """Generates a quote; the response contains the payments, because they have the rates."""
    batch = request.require_path_batch()
    payments.generate_quote(request.tenant, batch)
    return _build_batch_with_payments(request, batch)


def get_summary(request: LegacyRequest) -> JsonObject:
    return {"batchSummary": build_summary(request, request.require_path_batch())}


def start_processing(request: LegacyRequest) -> JsonObject:
    batch = request.require_path_batch()
    try:
        processing.start_batch(request.tenant, batch)
    except ApiError as error:
        # The rules of the current interface report fields that legacy clients did not send.
        raise _translate_start_error(request, error, list(batch.payments.values())) from None
    return {"batch": batch_views.build_batch(request, batch)}


def _translate_start_error(
    request: LegacyRequest, error: ApiError, payments: list[Payment]
) -> ApiError:
    # The client sent no fields, so the message and not `field` names the payment.
    problems = []
    for problem in error.problems:
        if problem.field is None:
            problems.append(problem)
            continue
        position = problem.field.removeprefix("payments[").partition("]")[0]
        payment_label = f"Payment {request.build_client_id(payments[int(position)].id)}"
        reason = (
            "recipient cannot be paid"
            if problem.code == "invalid_status"
            else "is less than the least amount"
        )
        problems.append(Problem(problem.code, f"{payment_label}: {reason}"))
    return ApiError(*problems)
