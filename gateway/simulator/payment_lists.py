"""Lists of payments of batches and of seeded payments (section 4)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.simulator import batch_views, views
from gateway.simulator.refusals import not_found
from gateway.simulator.state import Batch, Payment, Recipient, World, iso
from gateway.simulator.wire import JsonObject


@dataclass(frozen=True)
class Listed:
    """A payment in a list.

    `build_view` builds its JSON and is called only for entries of the requested page. `source` is a
    payment of a batch, or the fields of a seeded one.
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
    """List the payments of a batch in the order in which they were added."""
    made = (_made(world, each, batch_views.listed_payment) for each in batch.payments.values())
    return [each for each in made if matches(each, search, each.id)]


def one(world: World, payment_id: str) -> Listed:
    """Return a payment of a batch or a seeded one. Raises ApiError `not_found`."""
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
    """Yield a recipient's seeded payments; they show the current recipient or their own."""

    def shown(payment: JsonObject) -> Callable[[], JsonObject]:
        return lambda: {"recipient": views.recipient(world, payee), **payment}

    for each in payee.payments:
        memo, created = str(each.get("memo", "")), str(each.get("createdAt", ""))
        yield Listed(str(each.get("id")), memo, created, payee, each, shown(each))


def _newest_first(world: World, payments: list[Payment], seeded: Iterable[Listed]) -> list[Listed]:
    # Reversed before a stable sort: of payments with equal dates, the last created comes first.
    made = [_made(world, each) for each in reversed(payments)]
    return sorted([*made, *seeded], key=lambda each: each.created, reverse=True)


def matches(listed: Listed, search: str, known_as: str) -> bool:
    # The document does not say which fields `search` covers.
    fields = listed.payee.fields
    searched = (known_as, listed.memo, fields["name"], fields["email"], fields.get("referenceId"))
    return any(search.casefold() in str(text or "").casefold() for text in searched)
