"""Operations on balances (sections 2 and 4.5), keyed by currency and by the wallet's word."""

from gateway.simulator.balances import build_currency_balances, build_wallet_balance
from gateway.simulator.errors import build_not_found_error
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy.legacy_request import LegacyRequest


def list_balances(request: LegacyRequest) -> JsonObject:
    words, tenant = request.tenant.vocabulary.legacy, request.tenant
    balances = build_currency_balances(tenant, words.service)
    return {"balances": balances | build_wallet_balance(tenant, words.wallet)}


def list_currency_balances(request: LegacyRequest) -> JsonObject:
    words = request.tenant.vocabulary.legacy
    return {"balances": build_currency_balances(request.tenant, words.service)}


def get_wallet_balance(request: LegacyRequest) -> JsonObject:
    balances = build_wallet_balance(request.tenant, request.tenant.vocabulary.legacy.wallet)
    if not balances:
        raise build_not_found_error("Wallet account")
    return {"balances": balances}
