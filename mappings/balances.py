"""The three balance operations (legacy interface, section 4.5), and the balances that batches need.

A payment to a wallet is paid from the wallet account, and every other one from service accounts,
both in the batch's currency. It needs its source amount and the merchant's fees, if these are
known.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal

from mappings import current, legacy, money
from mappings.current import BALANCE_PATH
from mappings.effects import JSON, Answer, Call, Flow, Operation, Request, SubFlow
from mappings.errors import NOT_FOUND
from mappings.failures import Invalid
from mappings.lazy_sequences import filter_rows
from mappings.payloads import parse_balances

Payments = Sequence[Mapping[str, JSON]]
Balances = Sequence[Mapping[str, JSON]]


def determine_payment_method(payment: Mapping[str, JSON]) -> str:
    recipient = payment.get("recipient") or {}
    return str(payment.get("method") or recipient.get("payoutMethod") or current.BANK_TRANSFER)


def split_off_wallet_payments(payments: Payments) -> tuple[Payments, Payments]:
    """Splits payments into those to wallets and all others."""

    def is_to_wallet(payment: Mapping[str, JSON]) -> bool:
        return determine_payment_method(payment) == current.WALLET

    others = filter_rows(payments, lambda payment: not is_to_wallet(payment))
    return filter_rows(payments, is_to_wallet), others


def has_sufficient_funds(balances: Balances, payments: Payments, currency: JSON) -> bool:
    funds = compute_available_funds(balances, currency)
    return all(
        money.sum_decimals(
            sum_amount_field(rows, name) for name in ("sourceAmount", "merchantFees")
        )
        <= available
        for rows, available in zip(split_off_wallet_payments(payments), funds, strict=True)
    )


def compute_available_funds(balances: Balances, currency: JSON) -> tuple[Decimal, Decimal]:
    """Sums the balances in a currency: of the wallet account, and of the service accounts."""
    entries = [entry for entry in balances if entry.get("currency") == currency]
    in_wallet = [entry for entry in entries if entry.get("type") == current.WALLET]
    in_accounts = [entry for entry in entries if entry.get("type") != current.WALLET]
    return sum_amount_field(in_wallet, "amount"), sum_amount_field(in_accounts, "amount")


def sum_amount_field(rows: Sequence[Mapping[str, JSON]], name: str) -> Decimal:
    """Returns the exact sum of a field over the rows that have an amount in it."""
    # Rows without an amount are left out: the sum informs, and never blocks a start (contract,
    # section 5).
    amounts = (money.parse_amount(row.get(name)) for row in rows)
    return money.sum_decimals(amount for amount in amounts if amount is not None)


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
    balances.pop(current.WALLET, None)
    return Answer({"balances": balances})


def read_wallet_balance(_request: Request) -> Flow:
    """Answers GET /profile/balances/wallet.

    GET /balance  not found if the merchant has no wallet account
    """
    balances = yield from _fetch_balances_by_currency()
    if current.WALLET not in balances:
        raise Invalid(NOT_FOUND)
    return Answer({"balances": {current.WALLET: balances[current.WALLET]}})


def _fetch_balances_by_currency() -> SubFlow:
    """Calls GET /balance; returns service accounts by currency, the wallet's as ``wallet``.

    The documents do not say what a merchant with two accounts in one currency sees. The primary one
    is shown, or else the first, because legacy clients read one balance per currency.
    """
    balances: dict[str, dict[str, JSON]] = {}
    entries = parse_balances((yield Call("GET", BALANCE_PATH)))
    has_primary = any(entry.get("primary") for entry in entries)
    for entry in entries:
        is_wallet = entry.get("type") == current.WALLET
        currency = entry.get("currency")
        # Clients read balances by currency; the wallet account has its own key (legacy interface,
        # section 2).
        name = current.WALLET if is_wallet else str(currency)
        is_primary = entry.get("primary")
        if name in balances and not is_primary:
            continue
        # If the service marks no account as primary, the first one is.
        if is_primary is None:
            is_primary = not (has_primary or balances)
        balances[name] = {
            "primary": bool(is_primary),
            "amount": money.format_amount_unless_text(entry.get("amount")),
            "currency": currency,
            "type": current.WALLET if is_wallet else SERVICE,
            "accountNumber": entry.get("accountNumber"),
        }
    return balances


_REASON = "one call; the document shows no payload, so an object and a list of entries are accepted"

OPERATIONS = tuple(
    Operation(
        "GET",
        f"/profile/balances{suffix}",
        flow,
        "emulated",
        _REASON,
        answer_shape=legacy.BalancesAnswer,
    )
    for suffix, flow in (
        ("", read_balances),
        ("/<service>", read_service_balances),
        ("/<wallet>", read_wallet_balance),
    )
)
