"""Changes of payments in a batch (current interface, section 4.3)."""

from gateway.simulator.errors import Problems, build_not_found_error
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.payment_rules import PaymentOrder, parse_payment_change, parse_payment_order
from gateway.simulator.state import Batch, Payment, Tenant


def create_payment(tenant: Tenant, batch: Batch, body: JsonObject) -> Payment:
    batch.check_open()
    problems = Problems()
    order = parse_payment_order(tenant, problems, body, batch)
    problems.raise_if_any()
    assert order is not None  # noqa: S101  # nothing was found wrong
    return insert_payment(tenant, batch, order)


def insert_payment(tenant: Tenant, batch: Batch, order: PaymentOrder) -> Payment:
    now = tenant.now()
    payment = Payment(
        _generate_payment_id(tenant),
        batch,
        order.recipient,
        order.amount,
        order.currency,
        order.memo,
        order.terms,
        created_at=now,
        updated_at=now,
    )
    # In two indexes: payments are also read by their id alone.
    batch.payments[payment.id] = tenant.payments[payment.id] = payment
    tenant.register_legacy_id(payment.id)
    batch.updated_at = now
    tenant.effects.creation_counts["payment"] += 1
    return payment


def _generate_payment_id(tenant: Tenant) -> str:
    while (
        payment_id := tenant.generate_id("P-", tenant.options.payment_id_length)
    ) in tenant.payments:
        pass
    return payment_id


def update_payment(tenant: Tenant, payment: Payment, body: JsonObject) -> None:
    payment.batch.check_open()
    problems = Problems()
    order = parse_payment_change(tenant, problems, body, payment)
    problems.raise_if_any()
    assert order is not None  # noqa: S101  # nothing was found wrong
    apply_payment_order(tenant, payment, order)


def apply_payment_order(tenant: Tenant, payment: Payment, order: PaymentOrder) -> None:
    payment.amount, payment.currency = order.amount, order.currency
    payment.memo, payment.terms = order.memo, order.terms
    payment.updated_at = payment.batch.updated_at = tenant.now()


def delete_payment(tenant: Tenant, payment: Payment) -> None:
    payment.batch.check_open()
    remove_payment(tenant, payment)


def remove_payment(tenant: Tenant, payment: Payment) -> None:
    # A payment is in two indexes: of its batch, and of its tenant.
    del payment.batch.payments[payment.id], tenant.payments[payment.id]
    payment.batch.updated_at = tenant.now()


def require_payment(batch: Batch, payment_id: str) -> Payment:
    """Raises ApiError `not_found`, also for a payment of another batch."""
    if payment_id not in batch.payments:
        raise build_not_found_error("Payment")
    return batch.payments[payment_id]
