"""JSON of batches (section 2, Batch)."""

from gateway.simulator import batch_views, money
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy.id_mapper import IdMapper
from gateway.simulator.legacy.recipient_views import apply_overrides
from gateway.simulator.state import Batch, format_timestamp

# Section 3. A finished batch is complete, regardless of the outcome of its payments.
STATUSES = frozenset({"open", "pending", "processing", "accepted", "complete"})
ENDED_STATUSES = frozenset({"processed", "failed"})


def translate_batch_status(id_mapper: IdMapper, batch: Batch) -> str:
    word = str(
        batch.overrides.get(
            "status", batch_views.determine_shown_batch_status(id_mapper.tenant, batch)
        )
    )
    if word in STATUSES:
        return word
    # An unknown word of the service is a stage of processing for legacy clients.
    return "complete" if word in ENDED_STATUSES else "processing"


def build_batch(id_mapper: IdMapper, batch: Batch) -> JsonObject:
    view = {
        "id": id_mapper.build_client_id(batch.id),
        "status": translate_batch_status(id_mapper, batch),
        "amount": money.format_amount(batch.amount),
        "totalPayments": len(batch.payments),
        "currency": batch.currency,
        "description": batch.description,
        **build_timestamps(batch),
    }
    return apply_overrides(view, batch.overrides)


def build_timestamps(batch: Batch) -> JsonObject:
    return {
        "sentAt": format_timestamp(batch.sent_at) if batch.sent_at else None,
        "completedAt": format_timestamp(batch.completed_at) if batch.completed_at else None,
        "createdAt": format_timestamp(batch.created_at),
        "updatedAt": format_timestamp(batch.updated_at),
    }
