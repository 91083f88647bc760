"""JSON of batches and their payments, as legacy clients see them (legacy interface, section 2)."""

from gateway.simulator import balances, money, rates, views
from gateway.simulator.accounts import BANK_TRANSFER, CHECK, MOBILE_WALLET
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.state import (
    Batch,
    Payment,
    Recipient,
    Tenant,
    format_optional_timestamp,
    format_timestamp,
)

METHOD_LABELS = {BANK_TRANSFER: "Bank Transfer", CHECK: "Check", MOBILE_WALLET: "Mobile Wallet"}


def determine_shown_batch_status(tenant: Tenant, batch: Batch) -> str:
    """Returns the status to show: an open batch that the balance does not cover is pending."""
    is_unfunded = batch.state == "open" and not balances.has_balance_for_batch(tenant, batch)
    return "pending" if is_unfunded else batch.state


def build_batch(tenant: Tenant, batch: Batch) -> JsonObject:
    return {
        "id": batch.id,
        "status": determine_shown_batch_status(tenant, batch),
        "amount": money.format_amount(batch.amount),
        "totalPayments": len(batch.payments),
        "currency": batch.currency,
        "description": batch.description,
        **build_timestamps(batch),
        "quoteExpiredAt": format_optional_timestamp(batch.quote_expires_at),
        **batch.overrides,
    }


def build_timestamps(batch: Batch) -> JsonObject:
    return {
        "sentAt": format_optional_timestamp(batch.sent_at),
        "completedAt": format_optional_timestamp(batch.completed_at),
        "createdAt": format_timestamp(batch.created_at),
        "updatedAt": format_timestamp(batch.updated_at),
    }


def build_summary(tenant: Tenant, batch: Batch) -> JsonObject:
    """Builds a summary: the batch's status and all payment details (section 4.3)."""
    payments = [build_listed_payment(tenant, payment) for payment in batch.payments.values()]
    return {**build_batch(tenant, batch), "payments": payments, **batch.overrides}


def build_payment(tenant: Tenant, payment: Payment) -> JsonObject:
    """Builds a payment, with the recipient in its current state."""
    return {
        "id": payment.id,
        "recipient": views.build_recipient(tenant, payment.recipient),
        **build_payment_fields(payment),
        **payment.overrides,
    }


def build_listed_payment(tenant: Tenant, payment: Payment) -> JsonObject:
    """Builds a payment of a batch's list: with a reduced recipient and three more fields."""
    # As of the last quote: the recipient may have another primary account by now.
    method = payment.terms.account_type
    wallet = tenant.vocabulary.wallet
    return {
        "id": payment.id,
        "recipient": build_reduced_recipient(payment.recipient),
        "method": method,
        "methodDisplay": wallet.title() if method == wallet else METHOD_LABELS.get(str(method)),
        "isSupplyPayment": False,
        **build_payment_fields(payment),
        **payment.overrides,
    }


def build_reduced_recipient(payee: Recipient) -> JsonObject:
    return {
        "id": payee.id,
        "referenceId": payee.fields.get("referenceId"),
        "email": payee.fields["email"],
        "name": payee.fields["name"],
        "status": payee.status,
        "country": payee.address.get("country"),
        # Tests override fields by the service's names, also in this reduced form.
        **{name: payee.overrides[name] for name in REDUCED_FIELDS & payee.overrides.keys()},
    }


REDUCED_FIELDS = frozenset({"referenceId", "email", "name", "status", "country"})


def build_payment_fields(payment: Payment) -> JsonObject:
    terms, payee = payment.terms, payment.recipient
    return {
        "status": payment.status,
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
        "compliance": {
            "status": payee.compliance_status,
            "checkedAt": format_optional_timestamp(payee.compliance_checked_at),
        },
        "processedAt": format_optional_timestamp(payment.processed_at),
        "createdAt": format_timestamp(payment.created_at),
        "updatedAt": format_timestamp(payment.updated_at),
        "batch": {"id": payment.batch.id, **build_timestamps(payment.batch)},
    }
