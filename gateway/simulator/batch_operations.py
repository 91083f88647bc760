"""Operations on batches, payments and balances (current interface, section 4.3).

The document does not show the responses: they are those of the earlier interface, sections 4.3 to
4.5.
"""

from gateway.simulator import (
    balances,
    batch_views,
    batches,
    payment_lists,
    payments,
    processing,
    quotes,
)
from gateway.simulator.arrived import Arrived
from gateway.simulator.payment_lists import Listed
from gateway.simulator.state import Batch
from gateway.simulator.wire import JsonObject


def _bare(arrived: Arrived) -> bool:
    return arrived.world.switches.answers == "bare"


def _changed(arrived: Arrived, batch: Batch) -> JsonObject:
    return {} if _bare(arrived) else {"batch": batch_views.batch(arrived.world, batch)}


def _done(arrived: Arrived, what: str) -> JsonObject:
    return {} if _bare(arrived) else {"object": what}


def create_batch(arrived: Arrived) -> JsonObject:
    made = batches.create(arrived.world, arrived.body)
    return {"batch": {"id": made.id}} if _bare(arrived) else _changed(arrived, made)


def add_payment(arrived: Arrived) -> JsonObject:
    made = payments.create(arrived.world, arrived.batch(), arrived.body)
    shown = {"id": made.id} if _bare(arrived) else batch_views.payment(arrived.world, made)
    return {"payment": shown}


def generate_quote(arrived: Arrived) -> JsonObject:
    batch = arrived.batch()
    quotes.generate(arrived.world, batch)
    return _changed(arrived, batch)


def start_processing(arrived: Arrived) -> JsonObject:
    batch = arrived.batch()
    processing.start(arrived.world, batch)
    return _changed(arrived, batch)


def read_summary(arrived: Arrived) -> JsonObject:
    shown = batch_views.summary(arrived.world, arrived.batch())
    return {arrived.world.words.summary: shown}


def read_payment(arrived: Arrived) -> JsonObject:
    return {"payment": payment_lists.one(arrived.world, arrived.ids[0]).show()}


def list_payments(arrived: Arrived) -> JsonObject:
    found = payment_lists.of_all(arrived.world, arrived.query.get("search", ""))
    return arrived.page("payments", found, Listed.shown)


def read_balance(arrived: Arrived) -> JsonObject:
    return balances.shown(arrived.world)


# The document has no paths for the operations below; `operations` says how they were inferred.


def list_batches(arrived: Arrived) -> JsonObject:
    """List batches, newest first; `search` matches any part of the id."""
    search = arrived.query.get("search", "").casefold()
    found = [each for each in arrived.world.batches.values() if search in each.id.casefold()]
    shown = reversed(found)
    return arrived.page("batches", list(shown), lambda each: batch_views.batch(arrived.world, each))


def read_batch(arrived: Arrived) -> JsonObject:
    """Return a batch with one page of its payments."""
    batch = arrived.batch()
    page = arrived.page("payments", payment_lists.of_batch(arrived.world, batch, ""), Listed.shown)
    return {"batch": {**batch_views.batch(arrived.world, batch), "payments": page}}


def update_batch(arrived: Arrived) -> JsonObject:
    batches.update(arrived.world, arrived.batch(), arrived.body)
    return _done(arrived, "updated")


def delete_batch(arrived: Arrived) -> JsonObject:
    batches.delete(arrived.world, [arrived.batch()])
    return _done(arrived, "deleted")


def delete_batches(arrived: Arrived) -> JsonObject:
    """Delete several batches, or none if one id is unknown."""
    batches.delete(arrived.world, [arrived.world.batch(each) for each in arrived.wanted_ids()])
    return _done(arrived, "deleted")


def list_batch_payments(arrived: Arrived) -> JsonObject:
    search = arrived.query.get("search", "")
    found = payment_lists.of_batch(arrived.world, arrived.batch(), search)
    return arrived.page("payments", found, Listed.shown)


def update_payment(arrived: Arrived) -> JsonObject:
    payment = payments.of(arrived.batch(), arrived.ids[1])
    payments.update(arrived.world, payment, arrived.body)
    return _done(arrived, "updated")


def delete_payment(arrived: Arrived) -> JsonObject:
    payments.delete(arrived.world, payments.of(arrived.batch(), arrived.ids[1]))
    return _done(arrived, "deleted")
