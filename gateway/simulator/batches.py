"""Changes of batches before the start (current interface, sections 1 and 4.3).

Editing and deleting follow the other document (legacy interface, sections 4.3 and 4.4).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from gateway.simulator import payments
from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.payments import (
    PaymentOrder,
    iter_array_objects,
    parse_currency,
    parse_payment_change,
    parse_payment_order,
    parse_text,
)
from gateway.simulator.state import Batch, Payment, Tenant
from gateway.simulator.values import is_blank

ParseOrder = Callable[[Problems, JsonObject, Batch], PaymentOrder | None]
ParseChange = Callable[[Problems, JsonObject, Payment], PaymentOrder | None]


def create_batch(tenant: Tenant, body: JsonObject) -> Batch:
    problems = Problems()
    currency = parse_currency(problems, body, tenant.vocabulary.batch_currency) or ""
    parse_order = partial(parse_payment_order, tenant)
    return validate_and_insert_batch(tenant, problems, body, currency, parse_order)


def validate_and_insert_batch(
    tenant: Tenant, problems: Problems, body: JsonObject, currency: str, parse_order: ParseOrder
) -> Batch:
    """Creates a batch with its payments. Raises ApiError for `problems` and those of the body."""
    description = parse_text(problems, body, "description")
    now = tenant.now()
    # Without an id yet: payments are checked against a batch that may never come to exist.
    batch = Batch("", currency, description, created_at=now, updated_at=now)
    orders = [
        parse_order(nested_problems, entry, batch)
        for nested_problems, entry in iter_array_objects(problems, body, "payments")
    ]
    problems.raise_if_any()
    insert_batch(tenant, batch, filter(None, orders))
    return batch


def insert_batch(tenant: Tenant, batch: Batch, orders: Iterable[PaymentOrder]) -> None:
    """Gives a validated batch its id, and inserts it with its payments."""
    batch.id = tenant.generate_unused_id("B-", tenant.options.batch_id_length, tenant.batches)
    tenant.batches[batch.id] = batch
    tenant.register_legacy_id(batch.id)
    tenant.effects.creation_counts["batch"] += 1
    for order in orders:
        payments.insert_payment(tenant, batch, order)


def update_batch(tenant: Tenant, batch: Batch, body: JsonObject) -> None:
    """Applies all changes of a request, or none. Raises ApiError."""
    batch.check_open()
    problems = Problems()
    currency_field = tenant.vocabulary.batch_currency
    # The terms of the payments depend on the currency.
    if body.get(currency_field, batch.currency) != batch.currency:
        problems.add_invalid_field(currency_field, "Cannot be changed")
    parse_order = partial(parse_payment_order, tenant)
    apply_batch_edit(
        tenant, batch, parse_batch_edit(problems, body, batch, parse_order, parse_payment_change)
    )


def parse_batch_edit(
    problems: Problems,
    body: JsonObject,
    batch: Batch,
    parse_order: ParseOrder,
    parse_change: ParseChange,
    *,
    resolve_id: Callable[[str], str] = str,
) -> "BatchEdit":
    """Parses the changes of a batch. Raises ApiError for `problems` and those of the body.

    An entry of `payments` with an id changes that payment.
    """
    description = parse_text(problems, {"description": batch.description, **body}, "description")
    entries = list(iter_array_objects(problems, body, "payments"))
    added_orders = [
        parse_order(nested_problems, entry, batch)
        for nested_problems, entry in entries
        if entry.get("id") is None
    ]
    # One set for all arrays: a request cannot change and remove the same payment.
    find_payments = partial(_iter_referenced_payments, batch, seen_ids=set(), resolve_id=resolve_id)
    updates = [each for each in entries if each[1].get("id") is not None]
    updates += iter_array_objects(problems, body, "update_payments")
    changed_orders = [
        (payment, parse_change(nested_problems, entry, payment))
        for nested_problems, entry, payment in find_payments(updates)
    ]
    removals = iter_array_objects(problems, body, "remove_payments")
    removed = [payment for _, _, payment in find_payments(removals)]
    problems.raise_if_any()
    orders = [order for order in added_orders if order is not None]
    return BatchEdit(description, orders, changed_orders, removed, batch.currency)


@dataclass(frozen=True)
class BatchEdit:
    """Validated changes of a batch; an order is None if its payment does not change."""

    description: str
    added_orders: list[PaymentOrder]
    changed_orders: list[tuple[Payment, PaymentOrder | None]]
    removed_payments: list[Payment]
    currency: str


def apply_batch_edit(tenant: Tenant, batch: Batch, edit: BatchEdit) -> None:
    batch.currency = edit.currency
    for payment, order in edit.changed_orders:
        if order is not None:
            payments.apply_payment_order(tenant, payment, order)
    for payment in edit.removed_payments:
        payments.remove_payment(tenant, payment)
    for order in edit.added_orders:
        payments.insert_payment(tenant, batch, order)
    batch.description = edit.description
    batch.updated_at = tenant.now()


def _iter_referenced_payments(
    batch: Batch,
    entries: Iterable[tuple[Problems, JsonObject]],
    seen_ids: set[str],
    resolve_id: Callable[[str], str],
) -> Iterator[tuple[Problems, JsonObject, Payment]]:
    """Yields the entries that refer to payments of the batch, each at most once."""
    for problems, entry in entries:
        payment_id = entry.get("id")
        id_ = resolve_id(payment_id) if isinstance(payment_id, str) else ""
        if is_blank(payment_id):
            problems.add_empty_field("id")
        elif id_ not in batch.payments:
            problems.add_invalid_field("id", "Payment does not exist in this batch")
        elif id_ in seen_ids:
            problems.add_invalid_field("id", "Named twice")
        else:
            seen_ids.add(id_)
            yield problems, entry, batch.payments[id_]


def delete_batches(tenant: Tenant, batches: list[Batch]) -> None:
    """Deletes all of the batches, or none if one has been started. Raises ApiError."""
    # All are checked before the first one is deleted.
    for batch in batches:
        batch.check_open()
    for batch in batches:
        tenant.batches.pop(batch.id, None)
        for payment_id in batch.payments:
            tenant.payments.pop(payment_id, None)
