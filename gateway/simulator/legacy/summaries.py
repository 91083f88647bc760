"""Batch summaries (section 2, Batch summary).

Amounts are exact JSON numbers in the batch's currency, without trailing zeros: 15.5, not 15.50.
"""

from collections.abc import Iterable
from decimal import Decimal

from gateway.simulator import balances, money
from gateway.simulator.accounts import BANK_TRANSFER, CHECK, MOBILE_WALLET
from gateway.simulator.batch_views import build_timestamps
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import batch_views, payout_views
from gateway.simulator.legacy.legacy_request import LegacyRequest
from gateway.simulator.state import (
    Batch,
    Payment,
    Tenant,
    format_optional_timestamp,
    format_timestamp,
)


def build_summary(request: LegacyRequest, batch: Batch) -> JsonObject:
    """Builds a summary; it lists bank and wallet always, other methods only if used."""
    tenant, payments = request.tenant, list(batch.payments.values())
    wallet, service_total = tenant.vocabulary.wallet, tenant.vocabulary.legacy.service_total
    used = {payment.terms.account_type for payment in payments}
    account_types = [BANK_TRANSFER, wallet, *(t for t in (CHECK, MOBILE_WALLET) if t in used)]
    return {
        "id": request.build_client_id(batch.id),
        "processed_by": "API",
        "errors": [],
        "serverTime": format_timestamp(tenant.now()),
        "status": batch_views.translate_batch_status(request, batch),
        "currency": batch.currency,
        "description": batch.description,
        **build_timestamps(batch),
        "quoteExpiredAt": format_optional_timestamp(batch.quote_expires_at),
        "methods": {
            str(
                payout_views.translate_account_type(tenant, account_type)
            ): _build_payout_method_summary(tenant, account_type, payments)
            for account_type in account_types
        },
        service_total: _build_totals(
            payment for payment in payments if payment.terms.account_type != wallet
        ),
        "GatewayTotal": _build_totals(
            payment for payment in payments if payment.terms.account_type == wallet
        ),
        "total": _build_totals(payments),
        "merchantBalances": {
            "GatewayTotal": _read_wallet_balance(tenant, batch.currency),
            service_total: _convert_to_json_number(tenant.read_balance(batch.currency)),
        },
        "enoughFunds": balances.has_balance_for_batch(tenant, batch),
    }


def _build_payout_method_summary(
    tenant: Tenant, account_type: str, payments: Iterable[Payment]
) -> JsonObject:
    # A payment to a recipient without a payout method counts as a bank transfer, the default.
    legacy_words, is_wallet = tenant.vocabulary.legacy, account_type == tenant.vocabulary.wallet
    return {
        **_build_totals(
            payment
            for payment in payments
            if (payment.terms.account_type or BANK_TRANSFER) == account_type
        ),
        "accountType": legacy_words.wallet_account_type
        if is_wallet
        else legacy_words.service_account_type,
        "displayName": payout_views.find_account_type_label(tenant, account_type, in_summary=True),
    }


def _build_totals(payments: Iterable[Payment]) -> JsonObject:
    """Sums up payments; `net` is the total cost for the merchant."""
    payment_list = list(payments)
    value = money.sum_amounts(payment.terms.source_amount for payment in payment_list)
    fees = money.sum_amounts(payment.terms.fee for payment in payment_list)
    return {
        "count": len(payment_list),
        "value": _convert_to_json_number(value),
        "fees": _convert_to_json_number(fees),
        "recipientFees": _convert_to_json_number(money.ZERO),
        "merchantFees": _convert_to_json_number(fees),
        "net": _convert_to_json_number(money.sum_amounts((value, fees))),
    }


def _convert_to_json_number(amount: Decimal) -> int | Decimal:
    # Normalizing turns 100 into 1E+2, so whole numbers become integers.
    normalized = money.round_to_cents(amount).normalize(money.EXACT_CONTEXT)
    return int(normalized) if normalized == normalized.to_integral_value() else normalized


def _read_wallet_balance(tenant: Tenant, currency: str) -> int | Decimal:
    # A wallet in another currency cannot pay for this batch.
    wallet_currency, amount = tenant.wallet_balance or ("", money.ZERO)
    return _convert_to_json_number(amount if wallet_currency == currency else money.ZERO)
