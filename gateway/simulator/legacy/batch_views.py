"""JSON of batches (section 2, Batch)."""

from gateway.simulator import batch_views
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy.legacy_request import LegacyRequest
from gateway.simulator.state import Batch

FIELDS = (
    "id", "status", "amount", "totalPayments", "currency", "description", "sentAt", "completedAt",
    "createdAt", "updatedAt",
)  # fmt: skip

# Section 3. A finished batch is complete, regardless of the outcome of its payments.
STATUSES = frozenset({"open", "pending", "processing", "accepted", "complete"})
ENDED_STATUSES = frozenset({"processed", "failed"})


def translate_batch_status(request: LegacyRequest, batch: Batch) -> str:
    word = str(
        batch.overrides.get(
            "status", batch_views.determine_shown_batch_status(request.tenant, batch)
        )
    )
    if word in STATUSES:
        return word
    # An unknown word of the service is a stage of processing for legacy clients.
    return "complete" if word in ENDED_STATUSES else "processing"


def build_batch(request: LegacyRequest, batch: Batch) -> JsonObject:
    view = batch_views.build_batch(request.tenant, batch) | {
        "id": request.build_client_id(batch.id),
        "status": translate_batch_status(request, batch),
    }
    # An override that adds a field is one of the current interface.
    return {name: view[name] for name in FIELDS}
