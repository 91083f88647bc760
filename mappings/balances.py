"""The three balance operations (legacy interface, section 4.5); each makes one call."""

from __future__ import annotations

from mappings import current, legacy, money
from mappings.current import BALANCE_PATH
from mappings.effects import JSON, Answer, Call, Flow, Operation, Request
from mappings.errors import NOT_FOUND
from mappings.failures import Invalid
from mappings.funds import parse_balances
from mappings.payouts import SubFlow

SERVICE = "service"


def read_balances(_request: Request) -> Flow:
    """Answers GET /profile/balances.

    GET /balance
    """
    return Answer({"balances": (yield from _fetch_balances_by_currency())})


def read_service_balances(_request: Request) -> Flow:
    """Answers GET /profile/balances/service.

    GET /balance
    """
    balances = yield from _fetch_balances_by_currency()
    service_balances = {
        name: balance for name, balance in balances.items() if balance["type"] != current.WALLET
    }
    return Answer({"balances": service_balances})


def read_wallet_balance(_request: Request) -> Flow:
    """Answers GET /profile/balances/wallet.

    GET /balance  not found if the merchant has no wallet account
    """
    balances = yield from _fetch_balances_by_currency()
    wallet_balances = {
        name: balance for name, balance in balances.items() if balance["type"] == current.WALLET
    }
    if not wallet_balances:
        raise Invalid(NOT_FOUND)
    return Answer({"balances": wallet_balances})


def _fetch_balances_by_currency() -> SubFlow:
    """Calls GET /balance; returns service accounts by currency, the wallet's as ``wallet``.

    The documents do not say what a merchant with two accounts in one currency sees. The primary one
    is shown, or else the first, because legacy clients read one balance per currency.
    """
    balances: dict[str, dict[str, JSON]] = {}
    for entry in parse_balances((yield Call("GET", BALANCE_PATH))):
        is_wallet = entry.get("type") == current.WALLET
        currency = entry.get("currency")
        # Clients read balances by currency; the wallet account has its own key (legacy interface,
        # section 2).
        name = current.WALLET if is_wallet else str(currency)
        if name in balances and not entry.get("primary"):
            continue
        balances[name] = {
            # If the service marks no account as primary, the first one is.
            "primary": bool(entry.get("primary", not balances)),
            "amount": money.format_amount_unless_text(entry.get("amount")),
            "currency": currency,
            "type": current.WALLET if is_wallet else SERVICE,
            "accountNumber": entry.get("accountNumber"),
        }
    return balances


_BALANCES_PATH = "/profile/balances"
_EMULATED_REASON = (
    "one call; the document shows no payload, so an object and a list of entries are accepted"
)

OPERATIONS = (
    Operation(
        "GET",
        _BALANCES_PATH,
        read_balances,
        "4.5",
        "emulated",
        _EMULATED_REASON,
        answer_shape=legacy.BalancesAnswer,
    ),
    Operation(
        "GET",
        f"{_BALANCES_PATH}/<service>",
        read_service_balances,
        "4.5",
        "emulated",
        _EMULATED_REASON,
        answer_shape=legacy.BalancesAnswer,
    ),
    Operation(
        "GET",
        f"{_BALANCES_PATH}/<wallet>",
        read_wallet_balance,
        "4.5",
        "emulated",
        _EMULATED_REASON,
        answer_shape=legacy.BalancesAnswer,
    ),
)
