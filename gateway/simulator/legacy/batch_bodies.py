"""Parsing of batches in request bodies (section 4.3)."""

from dataclasses import replace
from functools import partial

from gateway.simulator.batches import BatchEdit, iter_referenced_payments
from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import lenient, payment_bodies
from gateway.simulator.legacy.legacy_request import LegacyRequest
from gateway.simulator.payments import (
    PaymentOrder,
    iter_array_objects,
    parse_currency,
    parse_text,
)
from gateway.simulator.state import Batch
from gateway.simulator.values import is_blank


def parse_new_batch(request: LegacyRequest, body: JsonObject) -> tuple[Batch, list[PaymentOrder]]:
    """Parses a new batch, which has no id yet, and its payments. Raises ApiError."""
    problems = Problems()
    now = request.tenant.now()
    currency = _parse_or_infer_batch_currency(problems, body)
    description = parse_text(problems, body, "description")
    batch = Batch("", currency, description, created_at=now, updated_at=now)
    payment_orders = [
        payment_bodies.parse_payment_order(request, nested_problems, entry, batch)
        for nested_problems, entry in iter_array_objects(problems, body, "payments")
    ]
    problems.raise_if_any()
    return batch, [order for order in payment_orders if order is not None]


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
    description = parse_text(problems, {"description": batch.description, **body}, "description")
    currency = lenient.normalize_currency(body.get("sourceCurrency"))
    currency = batch.currency if is_blank(currency) else currency
    parse_currency(problems, {"sourceCurrency": currency}, "sourceCurrency")
    if currency != batch.currency and batch.payments:
        problems.add_invalid_field(
            "sourceCurrency", "Can be changed only while there are no payments"
        )
    # A copy: new payments get the new currency, and a refused request changes nothing.
    batch = replace(batch, currency=currency)
    entries = list(iter_array_objects(problems, body, "payments"))
    added_orders = [
        payment_bodies.parse_payment_order(request, nested_problems, entry, batch)
        for nested_problems, entry in entries
        if entry.get("id") is None
    ]
    # One set for all arrays: a request cannot change and remove the same payment.
    find_payments = partial(
        iter_referenced_payments, batch, seen_ids=set(), resolve_id=request.resolve_id
    )
    updates = [each for each in entries if each[1].get("id") is not None]
    updates += iter_array_objects(problems, body, "update_payments")
    changed_orders = [
        (payment, payment_bodies.parse_payment_change(request, nested_problems, entry, payment))
        for nested_problems, entry, payment in find_payments(updates)
    ]
    removals = iter_array_objects(problems, body, "remove_payments")
    removed = [payment for _, _, payment in find_payments(removals)]
    problems.raise_if_any()
    orders = [order for order in added_orders if order is not None]
    return BatchEdit(description, orders, changed_orders, removed, currency)


def _unwrap_payment_page(value: object) -> object:
    """Returns the payments of a page object, which a client may send back as it was read."""
    return value["payments"] if isinstance(value, dict) and "payments" in value else value
