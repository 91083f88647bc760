"""Parsing of batches in request bodies (section 4.3)."""

from collections.abc import Iterable
from dataclasses import replace

from gateway.simulator.batches import BatchEdit
from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import lenient, payment_bodies
from gateway.simulator.legacy.id_mapper import IdMapper
from gateway.simulator.payment_rules import (
    PaymentOrder,
    iter_array_objects,
    parse_currency,
    parse_text,
)
from gateway.simulator.state import Batch, Payment
from gateway.simulator.values import is_blank


def parse_new_batch(id_mapper: IdMapper, body: JsonObject) -> tuple[Batch, list[PaymentOrder]]:
    """Parses a new batch, which has no id yet, and its payments. Raises ApiError."""
    problems = Problems()
    now = id_mapper.tenant.now()
    currency = _parse_or_infer_batch_currency(problems, body)
    description = parse_text(problems, body, "description")
    batch = Batch("", currency, description, created_at=now, updated_at=now)
    payment_orders = [
        payment_bodies.parse_payment_order(id_mapper, nested_problems, entry, batch)
        for nested_problems, entry in iter_array_objects(problems, body, "payments")
    ]
    problems.raise_if_any()
    return batch, [order for order in payment_orders if order is not None]


def _parse_or_infer_batch_currency(problems: Problems, body: JsonObject) -> str:
    """Parses the batch's currency, or takes it from the first payment that has one."""
    currency = lenient.normalize_currency(body.get("sourceCurrency"))
    if not is_blank(currency):
        return parse_currency(problems, {"sourceCurrency": currency}, "sourceCurrency") or ""
    payment_currencies = [
        (nested_problems, lenient.normalize_currency(entry.get("sourceCurrency")))
        for nested_problems, entry in iter_array_objects(Problems(), body, "payments")
    ]
    # Payments that disagree are reported with each payment, when it is parsed.
    given_currencies = [
        (nested_problems, code)
        for nested_problems, code in payment_currencies
        if not is_blank(code)
    ]
    if not given_currencies:
        problems.add_empty_field("sourceCurrency")
        return ""
    first_problems, code = given_currencies[0]
    nested_problems = Problems(problems.collected, first_problems.prefix)
    return parse_currency(nested_problems, {"sourceCurrency": code}, "sourceCurrency") or ""


def parse_batch_edit(id_mapper: IdMapper, body: JsonObject, batch: Batch) -> BatchEdit:
    """Parses all changes of a batch; clients may send back a whole batch. Raises ApiError."""
    problems = Problems()
    # A batch that is read has its payments as a page object.
    body = {**body, "payments": _unwrap_payment_page(body.get("payments"))}
    sent_description = {name: body[name] for name in ("description",) if name in body}
    description = parse_text(
        problems, {"description": batch.description, **sent_description}, "description"
    )
    currency = lenient.normalize_currency(body.get("sourceCurrency"))
    currency = batch.currency if is_blank(currency) else currency
    parse_currency(problems, {"sourceCurrency": currency}, "sourceCurrency")
    if currency != batch.currency and batch.payments:
        problems.add_invalid_field(
            "sourceCurrency", "Can be changed only while there are no payments"
        )
    # A copy: new payments get the new currency, and a refused request changes nothing.
    batch = replace(batch, currency=currency)
    payment_entries = list(iter_array_objects(problems, body, "payments"))
    new_entries = [
        (nested_problems, entry)
        for nested_problems, entry in payment_entries
        if entry.get("id") is None
    ]
    existing_entries = [
        (nested_problems, entry)
        for nested_problems, entry in payment_entries
        if entry.get("id") is not None
    ]
    added_orders = [
        payment_bodies.parse_payment_order(id_mapper, nested_problems, entry, batch)
        for nested_problems, entry in new_entries
    ]
    # One set for all arrays: a request cannot change and remove the same payment.
    seen_ids: set[str] = set()
    updates = [*existing_entries, *iter_array_objects(problems, body, "update_payments")]
    changed_orders = [
        (payment, payment_bodies.parse_payment_change(id_mapper, nested_problems, entry, payment))
        for nested_problems, entry, payment in _iter_referenced_payments(
            id_mapper, updates, batch, seen_ids
        )
    ]
    removals = iter_array_objects(problems, body, "remove_payments")
    removed_payments = [
        payment for _, _, payment in _iter_referenced_payments(id_mapper, removals, batch, seen_ids)
    ]
    problems.raise_if_any()
    return BatchEdit(
        description,
        [order for order in added_orders if order is not None],
        changed_orders,
        removed_payments,
        currency,
    )


def _unwrap_payment_page(value: object) -> object:
    """Returns the payments of a page object, which a client may send back as it was read."""
    return value["payments"] if isinstance(value, dict) and "payments" in value else value


def _iter_referenced_payments(
    id_mapper: IdMapper,
    entries: Iterable[tuple[Problems, JsonObject]],
    batch: Batch,
    seen_ids: set[str],
) -> Iterable[tuple[Problems, JsonObject, Payment]]:
    """Yields the entries that refer to payments of the batch, each at most once."""
    for nested_problems, entry in entries:
        payment_id = entry.get("id")
        if is_blank(payment_id):
            nested_problems.add_empty_field("id")
            continue
        service_id = id_mapper.resolve_id(payment_id) if isinstance(payment_id, str) else ""
        if service_id not in batch.payments:
            nested_problems.add_invalid_field("id", "Payment does not exist in this batch")
        elif service_id in seen_ids:
            nested_problems.add_invalid_field("id", "Named twice")
        else:
            seen_ids.add(service_id)
            yield nested_problems, entry, batch.payments[service_id]
