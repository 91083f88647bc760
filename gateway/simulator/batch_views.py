"""JSON of batches and their payments, as in section 2 of the earlier interface's document."""

from gateway.simulator import balances, money, rates, views
from gateway.simulator.account_rules import BANK, CHECK, MOBILE_WALLET
from gateway.simulator.state import Batch, Payment, Recipient, World, iso
from gateway.simulator.wire import JsonObject

METHODS = {BANK: "Bank Transfer", CHECK: "Check", MOBILE_WALLET: "Mobile Wallet"}


def status(world: World, batch: Batch) -> str:
    """Return the status to show: an open batch that the balance does not cover is pending."""
    lacking = batch.state == "open" and not balances.covers(world, batch)
    return "pending" if lacking else batch.state


def batch(world: World, shown: Batch) -> JsonObject:
    return {
        "id": shown.id,
        "status": status(world, shown),
        "amount": money.text(shown.amount),
        "totalPayments": len(shown.payments),
        "currency": shown.currency,
        "description": shown.description,
        **_moments(shown),
        "quoteExpiredAt": iso(shown.quote_expires_at) if shown.quote_expires_at else None,
        **shown.extra,
    }


def _moments(shown: Batch) -> JsonObject:
    return {
        "sentAt": iso(shown.sent_at) if shown.sent_at else None,
        "completedAt": iso(shown.completed_at) if shown.completed_at else None,
        "createdAt": iso(shown.created_at),
        "updatedAt": iso(shown.updated_at),
    }


def summary(world: World, shown: Batch) -> JsonObject:
    """Build a summary: the batch's status and all payment details (section 4.3)."""
    details = [listed_payment(world, each) for each in shown.payments.values()]
    return {**batch(world, shown), "payments": details, **shown.extra}


def payment(world: World, shown: Payment) -> JsonObject:
    """Build a payment, with the recipient in its current state."""
    return {
        "id": shown.id,
        "recipient": views.recipient(world, shown.recipient),
        **_payment(shown),
        **shown.extra,
    }


def listed_payment(world: World, shown: Payment) -> JsonObject:
    """Build a payment of a batch's list: with a reduced recipient and three more fields."""
    method = shown.terms.method
    wallet = world.words.wallet
    return {
        "id": shown.id,
        "recipient": _reduced(shown.recipient),
        "method": method,
        "methodDisplay": wallet.title() if method == wallet else METHODS.get(str(method)),
        "isSupplyPayment": False,
        **_payment(shown),
        **shown.extra,
    }


def _reduced(payee: Recipient) -> JsonObject:
    return {
        "id": payee.id,
        "referenceId": payee.fields.get("referenceId"),
        "email": payee.fields["email"],
        "name": payee.fields["name"],
        "status": payee.status,
        "country": payee.address.get("country"),
        **{name: payee.extra[name] for name in REDUCED & payee.extra.keys()},
    }


REDUCED = frozenset({"referenceId", "email", "name", "status", "country"})


def _payment(shown: Payment) -> JsonObject:
    terms, payee = shown.terms, shown.recipient
    checked_at = payee.compliance_checked_at
    return {
        "status": shown.status,
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
        "compliance": {
            "status": payee.compliance_status,
            "checkedAt": iso(checked_at) if checked_at else None,
        },
        "processedAt": iso(shown.processed_at) if shown.processed_at else None,
        "createdAt": iso(shown.created_at),
        "updatedAt": iso(shown.updated_at),
        "batch": {"id": shown.batch.id, **_moments(shown.batch)},
    }
