"""Parsing of batches in request bodies (section 4.3)."""

from dataclasses import replace
from functools import partial

from gateway.simulator import batches
from gateway.simulator.batches import BatchEdit
from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import lenient, payment_bodies
from gateway.simulator.legacy.legacy_request import LegacyRequest
from gateway.simulator.payments import iter_array_objects, parse_currency
from gateway.simulator.state import Batch
from gateway.simulator.values import is_blank


def create_batch(request: LegacyRequest, body: JsonObject) -> Batch:
    """Creates a batch with its payments. Raises ApiError."""
    problems = Problems()
    currency = _parse_or_infer_batch_currency(problems, body)
    parse_order = partial(payment_bodies.parse_payment_order, request)
    return batches.validate_and_insert_batch(request.tenant, problems, body, currency, parse_order)


def _parse_or_infer_batch_currency(problems: Problems, body: JsonObject) -> str:
    """Parses the batch's currency, or takes it from the first payment that has one."""
    currency = lenient.normalize_currency(body.get("sourceCurrency"))
    if not is_blank(currency):
        return parse_currency(problems, {"sourceCurrency": currency}, "sourceCurrency") or ""
    # Payments that disagree are reported with each payment, when it is parsed.
    given_currencies = [
        (nested_problems, code)
        for nested_problems, entry in iter_array_objects(Problems(), body, "payments")
        if not is_blank(code := lenient.normalize_currency(entry.get("sourceCurrency")))
    ]
    if not given_currencies:
        problems.add_empty_field("sourceCurrency")
        return ""
    first_problems, code = given_currencies[0]
    nested_problems = Problems(problems.collected, first_problems.prefix)
    return parse_currency(nested_problems, {"sourceCurrency": code}, "sourceCurrency") or ""


def parse_batch_edit(request: LegacyRequest, body: JsonObject, batch: Batch) -> BatchEdit:
    """Parses all changes of a batch; clients may send back a whole batch. Raises ApiError."""
    problems = Problems()
    # A batch that is read has its payments as a page object.
    body = {**body, "payments": _unwrap_payment_page(body.get("payments"))}
    currency = lenient.normalize_currency(body.get("sourceCurrency"))
    currency = batch.currency if is_blank(currency) else currency
    parse_currency(problems, {"sourceCurrency": currency}, "sourceCurrency")
    if currency != batch.currency and batch.payments:
        problems.add_invalid_field(
            "sourceCurrency", "Can be changed only while there are no payments"
        )
    return batches.parse_batch_edit(
        problems,
        body,
        # A copy: new payments get the new currency, and a refused request changes nothing.
        replace(batch, currency=currency),
        partial(payment_bodies.parse_payment_order, request),
        payment_bodies.parse_payment_change,
        resolve_id=request.resolve_id,
    )


def _unwrap_payment_page(value: object) -> object:
    """Returns the payments of a page object, which a client may send back as it was read."""
    return value["payments"] if isinstance(value, dict) and "payments" in value else value
