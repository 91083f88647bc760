"""Lists of payments, those of batches and those that a test has seeded (section 4)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.simulator import batch_views, views
from gateway.simulator.refusals import not_found
from gateway.simulator.state import Batch, Payment, Recipient, World, iso
from gateway.simulator.wire import JsonObject


@dataclass(frozen=True)
class Listed:
    """`show` makes the entry of an answer: only of those that are on the page.

    `source` is what it is made of: a payment, or the fields of one that a test has seeded.
    """

    id: str
    memo: str
    created: str
    payee: Recipient
    source: Payment | JsonObject
    show: Callable[[], JsonObject]

    def shown(self) -> JsonObject:
        return self.show()


def of_recipient(world: World, payee: Recipient) -> list[Listed]:
    own = [each for each in world.payments.values() if each.recipient is payee]
    return _newest_first(world, own, _seeded(world, payee))


def of_all(world: World, search: str) -> list[Listed]:
    seeded = [each for payee in world.recipients.values() for each in _seeded(world, payee)]
    found = _newest_first(world, list(world.payments.values()), seeded)
    return [each for each in found if matches(each, search, each.id)]


def of_batch(world: World, batch: Batch, search: str) -> list[Listed]:
    """In the order in which they were added."""
    made = (_made(world, each, batch_views.listed_payment) for each in batch.payments.values())
    return [each for each in made if matches(each, search, each.id)]


def one(world: World, payment_id: str) -> Listed:
    """Raises Refusal `not_found`."""
    if payment_id in world.payments:
        return _made(world, world.payments[payment_id])
    for payee in world.recipients.values():
        for each in _seeded(world, payee):
            if each.id == payment_id:
                return each
    raise not_found("Payment")


def _made(
    world: World,
    payment: Payment,
    view: Callable[[World, Payment], JsonObject] = batch_views.payment,
) -> Listed:
    created = iso(payment.created_at)
    return Listed(
        payment.id, payment.memo, created, payment.recipient, payment, lambda: view(world, payment)
    )


def _seeded(world: World, payee: Recipient) -> Iterable[Listed]:
    """With the recipient as it is now, unless the seeded payment brought its own."""

    def shown(payment: JsonObject) -> Callable[[], JsonObject]:
        return lambda: {"recipient": views.recipient(world, payee), **payment}

    for each in payee.payments:
        memo, created = str(each.get("memo", "")), str(each.get("createdAt", ""))
        yield Listed(str(each.get("id")), memo, created, payee, each, shown(each))


def _newest_first(world: World, payments: list[Payment], seeded: Iterable[Listed]) -> list[Listed]:
    """Of those made in the same moment the last one comes first."""
    made = [_made(world, each) for each in reversed(payments)]
    return sorted([*made, *seeded], key=lambda each: each.created, reverse=True)


def matches(listed: Listed, search: str, known_as: str) -> bool:
    """What is searched is not shown: here anywhere in these, in any case."""
    fields = listed.payee.fields
    searched = (known_as, listed.memo, fields["name"], fields["email"], fields.get("referenceId"))
    return any(search.casefold() in str(text or "").casefold() for text in searched)
