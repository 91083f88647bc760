"""Payment terms, and quotes that renew them (current interface, section 1, item 8)."""

from datetime import timedelta
from decimal import Decimal

from gateway.simulator import money, rates, views
from gateway.simulator.account_rules import BANK
from gateway.simulator.state import Batch, Payment, Recipient, Terms, World


def generate(world: World, batch: Batch) -> None:
    """Generate a quote that replaces the previous one. Raises ApiError after the start."""
    batch.must_be_open()
    batch.quotes += 1
    for payment in batch.payments.values():
        renew(world, payment)
    now = world.now()
    batch.quote_expires_at = now + timedelta(seconds=world.switches.quote_seconds)
    batch.updated_at = now


def renew(world: World, payment: Payment) -> None:
    payment.terms = agree(world, payment.batch, payment.recipient, payment.amount, payment.currency)


def agree(world: World, batch: Batch, payee: Recipient, amount: Decimal, currency: str) -> Terms:
    """Compute a payment's terms.

    An amount in the batch's currency is the source amount, which arrives in the currency of the
    recipient's primary account. In another currency it is the target amount. Quotes change the
    rates of bank transfers only.
    """
    method = payee.primary.type if payee.primary else None
    quotes = batch.quotes if method == BANK else 0
    source, fee = batch.currency, views.fee(world, payee)
    if currency == source:
        target = _account_currency(payee, source)
        rate = rates.rate(source, target, quotes)
        return Terms(method, amount, source, money.times(amount, rate), target, rate, fee)
    rate = rates.rate(source, currency, quotes)
    # The target amount is fixed; the rate decides what the merchant pays.
    return Terms(method, money.over(amount, rate), source, amount, currency, rate, fee)


def _account_currency(payee: Recipient, otherwise: str) -> str:
    account = payee.primary
    known = account is not None and account.fields["currency"] in rates.CURRENCIES
    return str(account.fields["currency"]) if account and known else otherwise
