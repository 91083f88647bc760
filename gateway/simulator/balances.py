"""Balances of a merchant (current interface, sections 1, 4.3; legacy interface, section 2)."""

from decimal import Decimal

from gateway.simulator import money
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.state import Batch, Tenant


def has_balance_for_batch(tenant: Tenant, batch: Batch) -> bool:
    return tenant.read_balance(batch.currency) >= batch.cost


def debit_balance(tenant: Tenant, currency: str, amount: Decimal) -> None:
    tenant.balances[currency] = money.subtract_amount(tenant.read_balance(currency), amount)


def credit_balance(tenant: Tenant, currency: str, amount: Decimal) -> None:
    tenant.balances[currency] = money.sum_amounts((tenant.read_balance(currency), amount))


def build_balances(tenant: Tenant) -> JsonObject:
    """Builds the response: an object by currency as in the legacy interface, or a list.

    The document does not show it. The wallet balance is present once a test has set one. No
    payment debits it, because the document does not say which balance funds payments to wallets.
    """
    words = tenant.vocabulary
    # The document marks one balance as primary and does not say which: here the first one.
    entries = {
        currency: _build_balance(amount, currency, words.service, position == 0)
        for position, (currency, amount) in enumerate(tenant.balances.items())
    }
    if tenant.wallet_balance is not None:
        currency, amount = tenant.wallet_balance
        number = f"{tenant.merchant}@example.com"
        entries[words.wallet] = _build_balance(
            amount, currency, words.wallet, account_number=number
        )
    if tenant.options.balance_shape == "list":
        return {"balances": list(entries.values())}
    return {"balances": entries}


def _build_balance(
    amount: Decimal,
    currency: str,
    account_type: str,
    is_primary: bool = False,
    account_number: str | None = None,
) -> JsonObject:
    return {
        "primary": is_primary,
        "amount": money.format_amount(amount),
        "currency": currency,
        "type": account_type,
        "accountNumber": account_number,
    }
