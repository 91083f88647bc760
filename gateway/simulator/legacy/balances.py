"""Operations on balances (sections 2 and 4.5), keyed by currency and by the wallet's word."""

from gateway.simulator import money
from gateway.simulator.errors import build_not_found_error
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy.legacy_request import LegacyRequest
from gateway.simulator.state import Tenant


def list_balances(request: LegacyRequest) -> JsonObject:
    return {
        "balances": _build_currency_balances(request.tenant) | _build_wallet_balance(request.tenant)
    }


def list_currency_balances(request: LegacyRequest) -> JsonObject:
    return {"balances": _build_currency_balances(request.tenant)}


def get_wallet_balance(request: LegacyRequest) -> JsonObject:
    balances = _build_wallet_balance(request.tenant)
    if not balances:
        raise build_not_found_error("Wallet account")
    return {"balances": balances}


def _build_currency_balances(tenant: Tenant) -> JsonObject:
    return {
        currency: {
            "primary": position == 0,
            "amount": money.format_amount(amount),
            "currency": currency,
            "type": tenant.vocabulary.legacy.service,
            "accountNumber": None,
        }
        for position, (currency, amount) in enumerate(tenant.balances.items())
    }


def _build_wallet_balance(tenant: Tenant) -> JsonObject:
    if tenant.wallet_balance is None:
        return {}
    currency, amount = tenant.wallet_balance
    wallet_word = tenant.vocabulary.legacy.wallet
    balance = {
        "primary": False,
        "amount": money.format_amount(amount),
        "currency": currency,
        "type": wallet_word,
        "accountNumber": f"{tenant.merchant}@example.com",
    }
    return {wallet_word: balance}
