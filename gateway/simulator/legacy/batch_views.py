"""JSON of batches and payments (section 2, Batch and Payment)."""

from gateway.simulator import batch_views
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import payout_views, recipient_views
from gateway.simulator.legacy.legacy_request import LegacyRequest
from gateway.simulator.state import Batch, Payment

LEGACY_STATUSES = frozenset({"pending", "processed", "failed", "returned"})


def build_payment(request: LegacyRequest, payment: Payment) -> JsonObject:
    return {
        "id": request.build_client_id(payment.id),
        "recipient": recipient_views.build_recipient(request, payment.recipient),
        **_build_fields(request, payment),
    }


def build_batch_payment_entry(request: LegacyRequest, payment: Payment) -> JsonObject:
    """Builds an entry of a batch's list: with a reduced recipient and three more fields."""
    account_type = payment.terms.account_type
    view = {
        "id": request.build_client_id(payment.id),
        "recipient": recipient_views.build_reduced_recipient(request, payment.recipient),
        **_build_fields(request, payment),
        "method": payout_views.translate_account_type(request.tenant, account_type),
        "methodDisplay": payout_views.find_account_type_label(request.tenant, account_type),
        "isSupplyPayment": False,
    }
    return recipient_views.apply_overrides(view, payment.overrides)


def _build_fields(request: LegacyRequest, payment: Payment) -> JsonObject:
    view = batch_views.build_payment_fields(payment)
    compliance: JsonObject = payment.overrides.get("compliance") or view["compliance"]
    view |= {
        "status": _translate_status(payment.overrides.get("status", payment.status)),
        "compliance": {
            **compliance,
            "status": recipient_views.translate_compliance_word(compliance["status"]),
        },
        "batch": {
            "id": request.build_client_id(payment.batch.id),
            **batch_views.build_timestamps(payment.batch),
        },
    }
    return recipient_views.apply_overrides(view, payment.overrides)


def _translate_status(word: object) -> object:
    # Tests set words of the current interface, which this document lacks.
    return word if word in LEGACY_STATUSES else "pending"


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
