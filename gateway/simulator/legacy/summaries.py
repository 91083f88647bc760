"""Batch summaries (section 2, Batch summary).

Amounts are exact JSON numbers in the batch's currency, without trailing zeros: 15.5, not 15.50.
"""

from collections.abc import Iterable
from decimal import Decimal

from gateway.simulator import balances, money
from gateway.simulator.account_rules import BANK, CHECK, MOBILE_WALLET
from gateway.simulator.legacy import batch_views, payout_views
from gateway.simulator.legacy.names import Names
from gateway.simulator.state import Batch, Payment, World, iso
from gateway.simulator.wire import JsonObject


def summary(names: Names, shown: Batch) -> JsonObject:
    """Build a summary; it lists bank and wallet always, other methods only if used."""
    world, sent = names.world, list(shown.payments.values())
    wallet, service_total = world.words.wallet, world.words.legacy.service_total
    used = {each.terms.method for each in sent}
    kinds = [BANK, wallet, *(kind for kind in (CHECK, MOBILE_WALLET) if kind in used)]
    return {
        "id": names.shown(shown.id),
        "processed_by": "API",
        "errors": [],
        "serverTime": iso(world.now()),
        "status": batch_views.status(names, shown),
        "currency": shown.currency,
        "description": shown.description,
        **batch_views.moments(shown),
        "quoteExpiredAt": iso(shown.quote_expires_at) if shown.quote_expires_at else None,
        "methods": {
            str(payout_views.filter_word(world, kind)): _method(world, kind, sent) for kind in kinds
        },
        service_total: _figures(each for each in sent if each.terms.method != wallet),
        "GatewayTotal": _figures(each for each in sent if each.terms.method == wallet),
        "total": _figures(sent),
        "merchantBalances": {
            "GatewayTotal": _wallet_balance(world, shown.currency),
            service_total: _number(world.balance(shown.currency)),
        },
        "enoughFunds": balances.covers(world, shown),
    }


def _method(world: World, kind: str, sent: Iterable[Payment]) -> JsonObject:
    # A payment to a recipient without a payout method counts as a bank transfer, the default.
    legacy, is_wallet = world.words.legacy, kind == world.words.wallet
    return {
        **_figures(each for each in sent if (each.terms.method or BANK) == kind),
        "accountType": legacy.wallet_account_type if is_wallet else legacy.service_account_type,
        "displayName": payout_views.display_name(world, kind),
    }


def _figures(sent: Iterable[Payment]) -> JsonObject:
    """Sum up payments; `net` is the total cost for the merchant."""
    counted = list(sent)
    value = money.total(each.terms.source for each in counted)
    fees = money.total(each.terms.fee for each in counted)
    return {
        "count": len(counted),
        "value": _number(value),
        "fees": _number(fees),
        "recipientFees": _number(money.ZERO),
        "merchantFees": _number(fees),
        "net": _number(money.total((value, fees))),
    }


def _number(amount: Decimal) -> int | Decimal:
    plain = money.cents(amount).normalize(money.EXACT)
    return int(plain) if plain == plain.to_integral_value() else plain


def _wallet_balance(world: World, currency: str) -> int | Decimal:
    held, amount = world.wallet_balance or ("", money.ZERO)
    return _number(amount if held == currency else money.ZERO)
