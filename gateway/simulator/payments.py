"""Changes of payments in a batch (current interface, section 4.3)."""

from gateway.simulator.payment_rules import Order, read, read_change
from gateway.simulator.refusals import Problems, not_found
from gateway.simulator.state import Batch, Payment, World
from gateway.simulator.wire import JsonObject


def create(world: World, batch: Batch, body: JsonObject) -> Payment:
    batch.must_be_open()
    problems = Problems()
    order = read(world, problems, body, batch)
    problems.refuse_if_any()
    assert order is not None  # noqa: S101  # nothing was found wrong
    return add(world, batch, order)


def add(world: World, batch: Batch, order: Order) -> Payment:
    now = world.now()
    payment = Payment(
        _new_id(world),
        batch,
        order.recipient,
        order.amount,
        order.currency,
        order.memo,
        order.terms,
        created_at=now,
        updated_at=now,
    )
    batch.payments[payment.id] = world.payments[payment.id] = payment
    world.know(payment.id)
    batch.updated_at = now
    world.books.created["payment"] += 1
    return payment


def _new_id(world: World) -> str:
    while (made := world.new_id("P-", world.switches.payment_id_length)) in world.payments:
        pass
    return made


def update(world: World, payment: Payment, body: JsonObject) -> None:
    payment.batch.must_be_open()
    problems = Problems()
    order = read_change(world, problems, body, payment)
    problems.refuse_if_any()
    assert order is not None  # noqa: S101  # nothing was found wrong
    change(world, payment, order)


def change(world: World, payment: Payment, order: Order) -> None:
    payment.amount, payment.currency = order.amount, order.currency
    payment.memo, payment.terms = order.memo, order.terms
    payment.updated_at = payment.batch.updated_at = world.now()


def delete(world: World, payment: Payment) -> None:
    payment.batch.must_be_open()
    remove(world, payment)


def remove(world: World, payment: Payment) -> None:
    # A payment is in two indexes: of its batch, and of its tenant.
    del payment.batch.payments[payment.id], world.payments[payment.id]
    payment.batch.updated_at = world.now()


def of(batch: Batch, payment_id: str) -> Payment:
    """Raises ApiError `not_found`, also for a payment of another batch."""
    if payment_id not in batch.payments:
        raise not_found("Payment")
    return batch.payments[payment_id]
