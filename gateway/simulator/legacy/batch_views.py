"""JSON of batches (section 2, Batch)."""

from gateway.simulator import batch_views, money
from gateway.simulator.legacy.names import Names
from gateway.simulator.legacy.recipient_views import laid_over
from gateway.simulator.state import Batch, iso
from gateway.simulator.wire import JsonObject

# Section 3. A finished batch is complete, regardless of the outcome of its payments.
STATUSES = frozenset({"open", "pending", "processing", "accepted", "complete"})
ENDED = frozenset({"processed", "failed"})


def status(names: Names, shown: Batch) -> str:
    word = str(shown.extra.get("status", batch_views.status(names.world, shown)))
    if word in STATUSES:
        return word
    return "complete" if word in ENDED else "processing"


def batch(names: Names, shown: Batch) -> JsonObject:
    view = {
        "id": names.shown(shown.id),
        "status": status(names, shown),
        "amount": money.text(shown.amount),
        "totalPayments": len(shown.payments),
        "currency": shown.currency,
        "description": shown.description,
        **moments(shown),
    }
    return laid_over(view, shown.extra)


def moments(shown: Batch) -> JsonObject:
    return {
        "sentAt": iso(shown.sent_at) if shown.sent_at else None,
        "completedAt": iso(shown.completed_at) if shown.completed_at else None,
        "createdAt": iso(shown.created_at),
        "updatedAt": iso(shown.updated_at),
    }
