"""Changes of batches before the start (current interface, sections 1 and 4.3).

Editing and deleting follow the earlier interface's document, sections 4.3 and 4.4.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.simulator import payments
from gateway.simulator.payment_rules import (
    Order,
    entries,
    read,
    read_change,
    read_currency,
    read_text,
)
from gateway.simulator.refusals import Problems
from gateway.simulator.state import Batch, Payment, World
from gateway.simulator.values import blank
from gateway.simulator.wire import JsonObject


def create(world: World, body: JsonObject) -> Batch:
    problems = Problems()
    currency = read_currency(problems, body, world.words.batch_currency) or ""
    description = read_text(problems, body, "description")
    now = world.now()
    batch = Batch("", currency, description, created_at=now, updated_at=now)
    orders = _read_orders(world, problems, body, batch)
    problems.refuse_if_any()
    enter(world, batch, orders)
    return batch


def enter(world: World, batch: Batch, orders: Iterable[Order]) -> None:
    """Give a validated batch its id, and insert it with its payments."""
    batch.id = _new_id(world)
    world.batches[batch.id] = batch
    world.know(batch.id)
    world.books.created["batch"] += 1
    for order in orders:
        payments.add(world, batch, order)


def _new_id(world: World) -> str:
    while (made := world.new_id("B-", world.switches.batch_id_length)) in world.batches:
        pass
    return made


def _read_orders(world: World, problems: Problems, body: JsonObject, batch: Batch) -> list[Order]:
    found = [
        read(world, inside, entry, batch) for inside, entry in entries(problems, body, "payments")
    ]
    return [order for order in found if order is not None]


def update(world: World, batch: Batch, body: JsonObject) -> None:
    """Apply all changes of a request, or none. Raises ApiError."""
    batch.must_be_open()
    problems = Problems()
    word = world.words.batch_currency
    # The terms of the payments depend on the currency.
    if body.get(word, batch.currency) != batch.currency:
        problems.invalid(word, "Cannot be changed")
    description = read_text(problems, {"description": batch.description, **body}, "description")
    added = _read_orders(world, problems, body, batch)
    # One set for both arrays: a request cannot change and remove the same payment.
    named: set[str] = set()
    changes = [
        (payment, read_change(world, inside, entry, payment))
        for inside, entry, payment in _named(problems, batch, body, "update_payments", named)
    ]
    removed = [each for _, _, each in _named(problems, batch, body, "remove_payments", named)]
    problems.refuse_if_any()
    change(world, batch, Edit(description, added, changes, removed, batch.currency))


@dataclass(frozen=True)
class Edit:
    """Validated changes of a batch; an order is None if its payment does not change."""

    description: str
    added: list[Order]
    changed: list[tuple[Payment, Order | None]]
    removed: list[Payment]
    currency: str


def change(world: World, batch: Batch, edit: Edit) -> None:
    batch.currency = edit.currency
    for payment, order in edit.changed:
        if order is not None:
            payments.change(world, payment, order)
    for payment in edit.removed:
        payments.remove(world, payment)
    for order in edit.added:
        payments.add(world, batch, order)
    batch.description = edit.description
    batch.updated_at = world.now()


def _named(
    problems: Problems, batch: Batch, body: JsonObject, name: str, named: set[str]
) -> Iterable[tuple[Problems, JsonObject, Payment]]:
    """Yield the entries of an array that refers to payments of the batch, each at most once."""
    for inside, entry in entries(problems, body, name):
        wanted = entry.get("id")
        if blank(wanted):
            inside.empty("id")
        elif not isinstance(wanted, str) or wanted not in batch.payments:
            inside.invalid("id", "Payment does not exist in this batch")
        elif wanted in named:
            inside.invalid("id", "Named twice")
        else:
            named.add(wanted)
            yield inside, entry, batch.payments[wanted]


def delete(world: World, found: list[Batch]) -> None:
    """Delete all of the batches, or none if one has been started. Raises ApiError."""
    for batch in found:
        batch.must_be_open()
    for batch in found:
        world.batches.pop(batch.id, None)
        for payment_id in batch.payments:
            world.payments.pop(payment_id, None)
