"""Payment terms, and quotes that renew them (current interface, section 1, item 8)."""

from datetime import timedelta
from decimal import Decimal

from gateway.simulator import money, rates, views
from gateway.simulator.account_rules import BANK_TRANSFER
from gateway.simulator.state import Batch, Payment, PaymentTerms, Recipient, Tenant


def generate_quote(tenant: Tenant, batch: Batch) -> None:
    """Generates a quote that replaces the previous one. Raises ApiError after the start."""
    batch.check_open()
    batch.quote_count += 1
    # The count first: it is part of the rate.
    for payment in batch.payments.values():
        renew_payment_terms(tenant, payment)
    now = tenant.now()
    batch.quote_expires_at = now + timedelta(seconds=tenant.options.quote_seconds)
    batch.updated_at = now


def renew_payment_terms(tenant: Tenant, payment: Payment) -> None:
    payment.terms = compute_payment_terms(
        tenant, payment.batch, payment.recipient, payment.amount, payment.currency
    )


def compute_payment_terms(
    tenant: Tenant, batch: Batch, payee: Recipient, amount: Decimal, currency: str
) -> PaymentTerms:
    """Computes a payment's terms.

    An amount in the batch's currency is the source amount, which arrives in the currency of the
    recipient's primary account. In another currency it is the target amount. Quotes change the
    rates of bank transfers only.
    """
    # A recipient without an account can be in a batch; only the start requires one.
    method = payee.primary_account.type if payee.primary_account else None
    quotes = batch.quote_count if method == BANK_TRANSFER else 0
    source, fee = batch.currency, views.compute_payment_fee(tenant, payee)
    if currency == source:
        target = _select_account_currency(payee, source)
        rate = rates.compute_exchange_rate(source, target, quotes)
        return PaymentTerms(
            method, amount, source, money.multiply_by_rate(amount, rate), target, rate, fee
        )
    rate = rates.compute_exchange_rate(source, currency, quotes)
    # The target amount is fixed; the rate decides what the merchant pays.
    return PaymentTerms(
        method, money.divide_by_rate(amount, rate), source, amount, currency, rate, fee
    )


def _select_account_currency(payee: Recipient, default: str) -> str:
    account = payee.primary_account
    is_supported = account is not None and account.fields["currency"] in rates.CURRENCIES
    return str(account.fields["currency"]) if account and is_supported else default
