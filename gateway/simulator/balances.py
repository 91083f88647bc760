"""Balances of a merchant (current interface, sections 1, 4.3; legacy interface, section 2)."""

from decimal import Decimal

from gateway.simulator import money
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.state import Batch, Tenant


def has_balance_for_batch(tenant: Tenant, batch: Batch) -> bool:
    return tenant.read_balance(batch.currency) >= batch.cost


def build_balances(tenant: Tenant) -> JsonObject:
    """Builds the response: an object by currency as in the legacy interface, or a list.

    The document does not show it. The wallet balance is present once a test has set one. No
    payment debits it, because the document does not say which balance funds payments to wallets.
    """
    words = tenant.vocabulary
    entries = build_currency_balances(tenant, words.service)
    entries |= build_wallet_balance(tenant, words.wallet)
    return {
        "balances": list(entries.values()) if tenant.options.balance_shape == "list" else entries
    }


def build_currency_balances(tenant: Tenant, service_word: str) -> JsonObject:
    # The document marks one balance as primary and does not say which: here the first one.
    return {
        currency: _build_balance(amount, currency, service_word, position == 0, None)
        for position, (currency, amount) in enumerate(tenant.balances.items())
    }


def build_wallet_balance(tenant: Tenant, wallet_word: str) -> JsonObject:
    if tenant.wallet_balance is None:
        return {}
    currency, amount = tenant.wallet_balance
    number = f"{tenant.merchant}@example.com"
    return {wallet_word: _build_balance(amount, currency, wallet_word, False, number)}


def _build_balance(
    amount: Decimal, currency: str, type_: str, is_primary: bool, account_number: str | None
) -> JsonObject:
    return {
        "primary": is_primary,
        "amount": money.format_amount(amount),
        "currency": currency,
        "type": type_,
        "accountNumber": account_number,
    }
