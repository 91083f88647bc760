"""JSON of payments (section 2, Payment)."""

from gateway.simulator import money, rates
from gateway.simulator.legacy import payout_views, recipient_views
from gateway.simulator.legacy.names import Names
from gateway.simulator.payment_lists import Listed
from gateway.simulator.state import Batch, Payment, iso
from gateway.simulator.wire import JsonObject

STATUSES = frozenset({"pending", "processed", "failed", "returned"})


def whole(names: Names, listed: Listed) -> JsonObject:
    """Build a payment with the full recipient in its current state."""
    if isinstance(listed.source, Payment):
        return payment(names, listed.source)
    return _seeded(names, listed, listed.source)


def listed(names: Names, shown: Listed) -> JsonObject:
    """Build an entry of the list of all payments."""
    if isinstance(shown.source, Payment):
        return in_batch(names, shown.source)
    return _seeded(names, shown, shown.source)


def payment(names: Names, shown: Payment) -> JsonObject:
    return {
        "id": names.shown(shown.id),
        "recipient": recipient_views.recipient(names, shown.recipient),
        **_fields(names, shown),
    }


def in_batch(names: Names, shown: Payment) -> JsonObject:
    """Build an entry of a batch's list: with a reduced recipient and three more fields."""
    method = shown.terms.method
    view = {
        "id": names.shown(shown.id),
        "recipient": recipient_views.reduced(names, shown.recipient),
        **_fields(names, shown),
        "method": payout_views.filter_word(names.world, method),
        "methodDisplay": payout_views.method_display(names.world, method),
        "isSupplyPayment": False,
    }
    return recipient_views.laid_over(view, shown.extra)


def _fields(names: Names, shown: Payment) -> JsonObject:
    terms = shown.terms
    view = {
        "status": _status(shown.extra.get("status", shown.status)),
        "sourceAmount": money.text(terms.source),
        "targetAmount": money.text(terms.target),
        "exchangeRate": rates.text(terms.rate),
        "fxRate": rates.text(terms.rate),
        "fees": money.text(terms.fee),
        "recipientFees": money.text(money.ZERO),
        "merchantFees": money.text(terms.fee),
        "memo": shown.memo,
        "sourceCurrency": terms.source_currency,
        "sourceCurrencyName": rates.name(terms.source_currency),
        "targetCurrency": terms.target_currency,
        "targetCurrencyName": rates.name(terms.target_currency),
        "compliance": recipient_views.compliance(shown.recipient),
        "processedAt": iso(shown.processed_at) if shown.processed_at else None,
        "createdAt": iso(shown.created_at),
        "updatedAt": iso(shown.updated_at),
        "batch": _batch(names, shown.batch),
    }
    return recipient_views.laid_over(view, shown.extra)


def _status(word: object) -> object:
    return word if word in STATUSES else "pending"


def _batch(names: Names, batch: Batch) -> JsonObject:
    return {
        "id": names.shown(batch.id),
        "createdAt": iso(batch.created_at),
        "updatedAt": iso(batch.updated_at),
        "sentAt": iso(batch.sent_at) if batch.sent_at else None,
        "completedAt": iso(batch.completed_at) if batch.completed_at else None,
    }


def _seeded(names: Names, listed: Listed, payment: JsonObject) -> JsonObject:
    """Build a seeded payment, whose fields already have the names of this document."""
    compliance = payment.get("compliance") or {}
    view = {
        "id": names.shown(listed.id),
        "recipient": recipient_views.recipient(names, listed.payee),
        **{name: value for name, value in payment.items() if name not in ("id", "recipient")},
        "status": _status(payment.get("status")),
    }
    if compliance:
        word = recipient_views.compliance_word(str(compliance.get("status")))
        view["compliance"] = {**compliance, "status": word}
    if isinstance(batch := payment.get("batch"), dict) and "id" in batch:
        view["batch"] = {**batch, "id": names.shown(str(batch["id"]))}
    return view
