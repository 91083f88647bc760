"""Operations on payments (section 4.4)."""

from functools import partial

from gateway.simulator import payment_lists, payments
from gateway.simulator.legacy import filters, orders, payment_views
from gateway.simulator.legacy.asked import Asked
from gateway.simulator.legacy.batches import DELETED, UPDATED, editable
from gateway.simulator.payment_lists import matches
from gateway.simulator.refusals import Problems
from gateway.simulator.state import Payment
from gateway.simulator.wire import JsonObject


def create(asked: Asked) -> JsonObject:
    batch, problems = editable(asked, asked.batch()), Problems()
    order = orders.read(asked.names, problems, asked.body, batch)
    problems.refuse_if_any()
    assert order is not None  # noqa: S101  # nothing was found wrong
    made = payments.add(asked.world, batch, order)
    return {"payment": payment_views.payment(asked.names, made)}


def read(asked: Asked) -> JsonObject:
    return {"payment": payment_views.payment(asked.names, _payment(asked))}


def _payment(asked: Asked) -> Payment:
    """Raises ApiError `not_found`, also for a payment of another batch."""
    return payments.of(asked.batch(), asked.names.real(asked.ids[1]))


def update(asked: Asked) -> JsonObject:
    payment, problems = _payment(asked), Problems()
    editable(asked, payment.batch)
    order = orders.read_change(asked.names, problems, asked.body, payment)
    problems.refuse_if_any()
    assert order is not None  # noqa: S101  # nothing was found wrong
    payments.change(asked.world, payment, order)
    return UPDATED


def delete(asked: Asked) -> JsonObject:
    payment = _payment(asked)
    editable(asked, payment.batch)
    payments.remove(asked.world, payment)
    return DELETED


def list_of_batch(asked: Asked) -> JsonObject:
    """List the payments of a batch in the order in which they were added."""
    search = asked.query.get("search", "")
    listed = payment_lists.of_batch(asked.world, asked.batch(), "")
    found = [each for each in listed if matches(each, search, asked.names.shown(each.id))]
    made = [each.source for each in found if isinstance(each.source, Payment)]
    return asked.page("payments", made, lambda each: payment_views.in_batch(asked.names, each))


def read_any(asked: Asked) -> JsonObject:
    found = payment_lists.one(asked.world, asked.names.real(asked.ids[0]))
    return {"payment": payment_views.whole(asked.names, found)}


def list_any(asked: Asked) -> JsonObject:
    """List the payments of all batches, newest first, as the lists of batches show them."""
    show = partial(payment_views.listed, asked.names)
    found = filters.payments(asked, payment_lists.of_all(asked.world, ""), show)
    return asked.page("payments", found, show)
