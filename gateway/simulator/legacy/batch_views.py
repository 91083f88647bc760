"""JSON of batches and payments (section 2, Batch and Payment)."""

from gateway.simulator import batch_views
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import payout_views, recipient_views
from gateway.simulator.legacy.legacy_request import LegacyRequest
from gateway.simulator.payment_lists import ListedPayment
from gateway.simulator.state import Batch, Payment

LEGACY_STATUSES = frozenset({"pending", "processed", "failed", "returned"})


def build_full_payment(request: LegacyRequest, listed_payment: ListedPayment) -> JsonObject:
    """Builds a payment with the full recipient in its current state."""
    if isinstance(listed_payment.source, Payment):
        return build_payment(request, listed_payment.source)
    return _build_seeded_payment(request, listed_payment, listed_payment.source)


def build_payment_list_entry(request: LegacyRequest, listed_payment: ListedPayment) -> JsonObject:
    """Builds an entry of the list of all payments."""
    if isinstance(listed_payment.source, Payment):
        return build_batch_payment_entry(request, listed_payment.source)
    return _build_seeded_payment(request, listed_payment, listed_payment.source)


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
    view = batch_views.build_payment_fields(payment) | {
        "status": _translate_status(payment.overrides.get("status", payment.status)),
        "compliance": recipient_views.build_compliance(payment.recipient),
        "batch": {
            "id": request.build_client_id(payment.batch.id),
            **batch_views.build_timestamps(payment.batch),
        },
    }
    return recipient_views.apply_overrides(view, payment.overrides)


def _translate_status(word: object) -> object:
    # Tests set words of the current interface, which this document lacks.
    return word if word in LEGACY_STATUSES else "pending"


def _build_seeded_payment(
    request: LegacyRequest, listed_payment: ListedPayment, payment: JsonObject
) -> JsonObject:
    """Builds a seeded payment, whose fields already have the names of this document."""
    compliance = payment.get("compliance") or {}
    view = {
        "id": request.build_client_id(listed_payment.id),
        "recipient": recipient_views.build_recipient(request, listed_payment.payee),
        **{name: value for name, value in payment.items() if name not in ("id", "recipient")},
        "status": _translate_status(payment.get("status")),
    }
    if compliance:
        word = recipient_views.translate_compliance_word(str(compliance.get("status")))
        view["compliance"] = {**compliance, "status": word}
    if isinstance(batch := payment.get("batch"), dict) and "id" in batch:
        view["batch"] = {**batch, "id": request.build_client_id(str(batch["id"]))}
    return view


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
