"""The three balance operations (legacy interface, section 4.5), each one call."""

from __future__ import annotations

from mappings import current, legacy, money
from mappings.current import BALANCE
from mappings.errors import NOT_FOUND
from mappings.funds import parse_balances
from mappings.grammar import JSON, Answer, Call, Flow, Invalid, Operation, Request
from mappings.payouts import Sub

SERVICE = "service"


def read_balances(_request: Request) -> Flow:
    """GET /profile/balances

    GET /balance
    """
    return Answer({"balances": (yield from _balances())})


def read_service_balances(_request: Request) -> Flow:
    """GET /profile/balances/service

    GET /balance
    """
    held = yield from _balances()
    of_service = {name: one for name, one in held.items() if one["type"] != current.WALLET}
    return Answer({"balances": of_service})


def read_wallet_balance(_request: Request) -> Flow:
    """GET /profile/balances/wallet

    GET /balance  not found if the merchant has no wallet account
    """
    held = yield from _balances()
    of_wallet = {name: one for name, one in held.items() if one["type"] == current.WALLET}
    if not of_wallet:
        raise Invalid(NOT_FOUND)
    return Answer({"balances": of_wallet})


def _balances() -> Sub:
    """GET /balance; service accounts by currency code, the wallet account under ``wallet``."""
    shown: dict[str, dict[str, JSON]] = {}
    for entry in parse_balances((yield Call("GET", BALANCE))):
        is_wallet = entry.get("type") == current.WALLET
        currency = entry.get("currency")
        name = current.WALLET if is_wallet else str(currency)
        shown[name] = {
            # If the service marks no account as primary, the first one is.
            "primary": bool(entry.get("primary", not shown)),
            "amount": money.format_numeric_amount(entry.get("amount")),
            "currency": currency,
            "type": current.WALLET if is_wallet else SERVICE,
            "accountNumber": entry.get("accountNumber"),
        }
    return shown


_PATH = "/profile/balances"
_WHY = "one call; the document shows no payload, so an object and a list of entries are accepted"

OPERATIONS = (
    Operation("GET", _PATH, read_balances, "4.5", "emulated", _WHY, gives=legacy.BalancesAnswer),
    Operation(
        "GET",
        f"{_PATH}/<service>",
        read_service_balances,
        "4.5",
        "emulated",
        _WHY,
        gives=legacy.BalancesAnswer,
    ),
    Operation(
        "GET",
        f"{_PATH}/<wallet>",
        read_wallet_balance,
        "4.5",
        "emulated",
        _WHY,
        gives=legacy.BalancesAnswer,
    ),
)
