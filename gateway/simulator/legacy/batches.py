"""Operations on batches (section 4.3)."""

from gateway.simulator import batches, processing, quotes
from gateway.simulator.legacy import batch_bodies, batch_views, filters, payment_views
from gateway.simulator.legacy.asked import Asked
from gateway.simulator.legacy.summaries import summary
from gateway.simulator.refusals import Problem, Refusal, invalid_status
from gateway.simulator.state import Batch, Payment
from gateway.simulator.wire import JsonObject

UPDATED: JsonObject = {"object": "updated"}
DELETED: JsonObject = {"object": "deleted"}


def create(asked: Asked) -> JsonObject:
    made, orders = batch_bodies.read_new(asked.names, asked.body)
    batches.enter(asked.world, made, orders)
    return {"batch": batch_views.batch(asked.names, made)}


def read(asked: Asked) -> JsonObject:
    return _with_payments(asked, asked.batch())


def _with_payments(asked: Asked, batch: Batch) -> JsonObject:
    sent = list(batch.payments.values())
    page = asked.page("payments", sent, lambda each: payment_views.in_batch(asked.names, each))
    return {"batch": {**batch_views.batch(asked.names, batch), "payments": page}}


def editable(asked: Asked, batch: Batch) -> Batch:
    """Raises ApiError `invalid_status` unless the batch is open or pending (rules 1 and 2)."""
    if batch.state != "open":
        raise invalid_status(f"Batch is {batch_views.status(asked.names, batch)}")
    return batch


def update(asked: Asked) -> JsonObject:
    batch = editable(asked, asked.batch())
    batches.change(asked.world, batch, batch_bodies.read_edit(asked.names, asked.body, batch))
    return UPDATED


def delete(asked: Asked) -> JsonObject:
    batches.delete(asked.world, [editable(asked, asked.batch())])
    return DELETED


def delete_several(asked: Asked) -> JsonObject:
    """Delete several batches, or none if one is unknown or has been started."""
    found = [asked.find_batch(each) for each in asked.wanted_ids()]
    batches.delete(asked.world, [editable(asked, each) for each in found])
    return DELETED


def list_all(asked: Asked) -> JsonObject:
    """List batches, newest first; ties are sorted by id."""
    found = filters.batches(asked, asked.world.batches.values())
    found.sort(key=lambda each: asked.names.shown(each.id))
    found.sort(key=lambda each: each.created_at, reverse=True)
    return asked.page("batches", found, lambda each: batch_views.batch(asked.names, each))


def generate_quote(asked: Asked) -> JsonObject:
    """Generate a quote; the response contains the payments, because they have the rates."""
    batch = editable(asked, asked.batch())
    quotes.generate(asked.world, batch)
    return _with_payments(asked, batch)


def read_summary(asked: Asked) -> JsonObject:
    return {"batchSummary": summary(asked.names, asked.batch())}


def start_processing(asked: Asked) -> JsonObject:
    batch = editable(asked, asked.batch())
    try:
        processing.start(asked.world, batch)
    except Refusal as refusal:
        # The rules of the current interface report fields that legacy clients did not send.
        raise _said(asked, refusal, list(batch.payments.values())) from None
    return {"batch": batch_views.batch(asked.names, batch)}


def _said(asked: Asked, refusal: Refusal, sent: list[Payment]) -> Refusal:
    # The client sent no fields, so the message and not `field` names the payment.
    said = []
    for problem in refusal.problems:
        if problem.field is None:
            said.append(problem)
            continue
        position = problem.field.removeprefix("payments[").partition("]")[0]
        named = f"Payment {asked.names.shown(sent[int(position)].id)}"
        why = (
            "recipient cannot be paid"
            if problem.code == "invalid_status"
            else "is less than the least amount"
        )
        said.append(Problem(problem.code, f"{named}: {why}"))
    return Refusal(*said)
