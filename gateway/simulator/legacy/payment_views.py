"""JSON of payments (section 2, Payment)."""

from gateway.simulator import money, rates
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import payout_views, recipient_views
from gateway.simulator.legacy.id_mapper import IdMapper
from gateway.simulator.payment_lists import ListedPayment
from gateway.simulator.state import Batch, Payment, format_timestamp

LEGACY_STATUSES = frozenset({"pending", "processed", "failed", "returned"})


def build_full_payment(id_mapper: IdMapper, listed_payment: ListedPayment) -> JsonObject:
    """Builds a payment with the full recipient in its current state."""
    if isinstance(listed_payment.source, Payment):
        return build_payment(id_mapper, listed_payment.source)
    return _build_seeded_payment(id_mapper, listed_payment, listed_payment.source)


def build_payment_list_entry(id_mapper: IdMapper, listed_payment: ListedPayment) -> JsonObject:
    """Builds an entry of the list of all payments."""
    if isinstance(listed_payment.source, Payment):
        return build_batch_payment_entry(id_mapper, listed_payment.source)
    return _build_seeded_payment(id_mapper, listed_payment, listed_payment.source)


def build_payment(id_mapper: IdMapper, payment: Payment) -> JsonObject:
    return {
        "id": id_mapper.build_client_id(payment.id),
        "recipient": recipient_views.build_recipient(id_mapper, payment.recipient),
        **_build_fields(id_mapper, payment),
    }


def build_batch_payment_entry(id_mapper: IdMapper, payment: Payment) -> JsonObject:
    """Builds an entry of a batch's list: with a reduced recipient and three more fields."""
    account_type = payment.terms.account_type
    view = {
        "id": id_mapper.build_client_id(payment.id),
        "recipient": recipient_views.build_reduced_recipient(id_mapper, payment.recipient),
        **_build_fields(id_mapper, payment),
        "method": payout_views.translate_account_type(id_mapper.tenant, account_type),
        "methodDisplay": payout_views.find_account_type_label(id_mapper.tenant, account_type),
        "isSupplyPayment": False,
    }
    return recipient_views.apply_overrides(view, payment.overrides)


def _build_fields(id_mapper: IdMapper, payment: Payment) -> JsonObject:
    terms = payment.terms
    view = {
        "status": _translate_status(payment.overrides.get("status", payment.status)),
        "sourceAmount": money.format_amount(terms.source_amount),
        "targetAmount": money.format_amount(terms.target_amount),
        "exchangeRate": rates.format_rate(terms.rate),
        "fxRate": rates.format_rate(terms.rate),
        "fees": money.format_amount(terms.fee),
        "recipientFees": money.format_amount(money.ZERO),
        "merchantFees": money.format_amount(terms.fee),
        "memo": payment.memo,
        "sourceCurrency": terms.source_currency,
        "sourceCurrencyName": rates.look_up_currency_name(terms.source_currency),
        "targetCurrency": terms.target_currency,
        "targetCurrencyName": rates.look_up_currency_name(terms.target_currency),
        "compliance": recipient_views.build_compliance(payment.recipient),
        "processedAt": format_timestamp(payment.processed_at) if payment.processed_at else None,
        "createdAt": format_timestamp(payment.created_at),
        "updatedAt": format_timestamp(payment.updated_at),
        "batch": _build_batch(id_mapper, payment.batch),
    }
    return recipient_views.apply_overrides(view, payment.overrides)


def _translate_status(word: object) -> object:
    # Tests set words of the current interface, which this document lacks.
    return word if word in LEGACY_STATUSES else "pending"


def _build_batch(id_mapper: IdMapper, batch: Batch) -> JsonObject:
    return {
        "id": id_mapper.build_client_id(batch.id),
        "createdAt": format_timestamp(batch.created_at),
        "updatedAt": format_timestamp(batch.updated_at),
        "sentAt": format_timestamp(batch.sent_at) if batch.sent_at else None,
        "completedAt": format_timestamp(batch.completed_at) if batch.completed_at else None,
    }


def _build_seeded_payment(
    id_mapper: IdMapper, listed_payment: ListedPayment, payment: JsonObject
) -> JsonObject:
    """Builds a seeded payment, whose fields already have the names of this document."""
    compliance = payment.get("compliance") or {}
    view = {
        "id": id_mapper.build_client_id(listed_payment.id),
        "recipient": recipient_views.build_recipient(id_mapper, listed_payment.payee),
        **{name: value for name, value in payment.items() if name not in ("id", "recipient")},
        "status": _translate_status(payment.get("status")),
    }
    if compliance:
        word = recipient_views.translate_compliance_word(str(compliance.get("status")))
        view["compliance"] = {**compliance, "status": word}
    if isinstance(batch := payment.get("batch"), dict) and "id" in batch:
        view["batch"] = {**batch, "id": id_mapper.build_client_id(str(batch["id"]))}
    return view
