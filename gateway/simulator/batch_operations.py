"""Operations on batches, payments and balances (current interface, section 4.3).

The document does not show the responses: they are those of the legacy interface, sections 4.3 to
4.5.
"""

from collections.abc import Iterable
from functools import partial

from gateway.simulator import (
    balances,
    batch_views,
    batches,
    payments,
    processing,
)
from gateway.simulator.accepted_request import AcceptedRequest
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.state import Payment


def create_batch(request: AcceptedRequest) -> JsonObject:
    batch = batches.create_batch(request.tenant, request.body)
    return {"batch": batch_views.build_batch(request.tenant, batch)}


def add_payment(request: AcceptedRequest) -> JsonObject:
    payment = payments.create_payment(request.tenant, request.require_path_batch(), request.body)
    return {"payment": batch_views.build_payment(request.tenant, payment)}


def generate_quote(request: AcceptedRequest) -> JsonObject:
    batch = request.require_path_batch()
    payments.generate_quote(request.tenant, batch)
    return {"batch": batch_views.build_batch(request.tenant, batch)}


def start_processing(request: AcceptedRequest) -> JsonObject:
    batch = request.require_path_batch()
    processing.start_batch(request.tenant, batch)
    return {"batch": batch_views.build_batch(request.tenant, batch)}


def get_summary(request: AcceptedRequest) -> JsonObject:
    summary = batch_views.build_summary(request.tenant, request.require_path_batch())
    return {request.tenant.vocabulary.summary: summary}


def read_payment(request: AcceptedRequest) -> JsonObject:
    payment = request.tenant.require_payment(request.path_ids[0])
    return {"payment": batch_views.build_payment(request.tenant, payment)}


def list_payments(request: AcceptedRequest) -> JsonObject:
    matches = _filter_by_search(request, request.tenant.list_newest_payments())
    return request.build_page(
        "payments", matches, partial(batch_views.build_payment, request.tenant)
    )


def _filter_by_search(request: AcceptedRequest, candidates: Iterable[Payment]) -> list[Payment]:
    search = request.query.get("search", "")
    return [each for each in candidates if payments.matches_search(each, search, each.id)]


def read_balance(request: AcceptedRequest) -> JsonObject:
    return balances.build_balances(request.tenant)


# The document has no paths for the operations below; `operations` says how they were inferred.


def list_batches(request: AcceptedRequest) -> JsonObject:
    """Lists batches, newest first; `search` matches any part of the id."""
    search = request.query.get("search", "").casefold()
    matches = [batch for batch in request.tenant.batches.values() if search in batch.id.casefold()]
    # Dictionaries keep the order of insertion, which is that of creation.
    newest_first = reversed(matches)
    return request.build_page(
        "batches", list(newest_first), lambda batch: batch_views.build_batch(request.tenant, batch)
    )


def read_batch(request: AcceptedRequest) -> JsonObject:
    """Returns a batch with one page of its payments."""
    batch = request.require_path_batch()
    page = request.build_page(
        "payments",
        list(batch.payments.values()),
        partial(batch_views.build_listed_payment, request.tenant),
    )
    return {"batch": {**batch_views.build_batch(request.tenant, batch), "payments": page}}


def update_batch(request: AcceptedRequest) -> JsonObject:
    batches.update_batch(request.tenant, request.require_path_batch(), request.body)
    return {"object": "updated"}


def delete_batch(request: AcceptedRequest) -> JsonObject:
    batches.delete_batches(request.tenant, [request.require_path_batch()])
    return {"object": "deleted"}


def delete_batches(request: AcceptedRequest) -> JsonObject:
    """Deletes several batches, or none if one id is unknown."""
    batches.delete_batches(
        request.tenant, [request.tenant.require_batch(batch_id) for batch_id in request.parse_ids()]
    )
    return {"object": "deleted"}


def list_batch_payments(request: AcceptedRequest) -> JsonObject:
    matches = _filter_by_search(request, request.require_path_batch().payments.values())
    return request.build_page(
        "payments", matches, partial(batch_views.build_listed_payment, request.tenant)
    )


def update_payment(request: AcceptedRequest) -> JsonObject:
    payment = payments.require_payment(request.require_path_batch(), request.path_ids[1])
    payments.update_payment(request.tenant, payment, request.body)
    return {"object": "updated"}


def delete_payment(request: AcceptedRequest) -> JsonObject:
    payments.delete_payment(
        request.tenant, payments.require_payment(request.require_path_batch(), request.path_ids[1])
    )
    return {"object": "deleted"}
