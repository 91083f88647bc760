"""Whether the merchant's balance covers what a batch pays.

A payment to a wallet is covered by the wallet account, every other by service accounts, both of
the batch's currency. It takes its source amount and the merchant's fees, as far as they are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

from mappings import current, money
from mappings.grammar import JSON
from mappings.rows import filter_rows

Payments = Sequence[Mapping[str, JSON]]
Balances = Sequence[Mapping[str, JSON]]


def parse_balances(body: Mapping[str, JSON]) -> list[dict[str, JSON]]:
    """The entries of a balance answer: an object of them by currency, a list, or the only one."""
    given = extract_raw_balances(body)
    if isinstance(given, dict) and money.parse_amount(given.get("amount")) is not None:
        return [given]
    if isinstance(given, dict):
        named = {name: one for name, one in given.items() if isinstance(one, dict)}
        return [{**_named(name), **one} for name, one in named.items()]
    return [one for one in given or [] if isinstance(one, dict)]


def extract_raw_balances(body: Mapping[str, JSON]) -> JSON:
    """What a balance answer tells, whatever that is."""
    return body.get("balances", body.get("balance"))


def _named(name: str) -> dict[str, JSON]:
    """What the name of an entry tells: its currency, or that it is the wallet account's."""
    return {"type": current.WALLET} if name == current.WALLET else {"currency": name}


def determine_payment_method(payment: Mapping[str, JSON]) -> str:
    recipient = payment.get("recipient") or {}
    return str(payment.get("method") or recipient.get("payoutMethod") or current.BANK_TRANSFER)


def partition_by_wallet(payments: Payments) -> tuple[Payments, Payments]:
    """The payments to wallets, and all others."""
    to_wallets = filter_rows(payments, lambda one: determine_payment_method(one) == current.WALLET)
    return to_wallets, filter_rows(
        payments, lambda one: determine_payment_method(one) != current.WALLET
    )


def has_sufficient_funds(balances: Balances, payments: Payments, currency: JSON) -> bool:
    to_wallets, others = partition_by_wallet(payments)
    return compute_required_funds(to_wallets) <= compute_available_funds(
        balances, currency, wallet=True
    ) and compute_required_funds(others) <= compute_available_funds(
        balances, currency, wallet=False
    )


def compute_required_funds(payments: Payments) -> Decimal:
    return money.add_decimals(
        sum_field(payments, "sourceAmount"), sum_field(payments, "merchantFees")
    )


def compute_available_funds(balances: Balances, currency: JSON, *, wallet: bool) -> Decimal:
    """What the merchant has: on the wallet account, or on service accounts of the currency."""
    return sum_field(
        [
            entry
            for entry in balances
            if (entry.get("type") == current.WALLET) is wallet and entry.get("currency") == currency
        ],
        "amount",
    )


def sum_field(those: Sequence[Mapping[str, JSON]], name: str) -> Decimal:
    """The exact sum of what is known."""
    read = (money.parse_amount(one.get(name)) for one in those)
    return money.sum_decimals(amount for amount in read if amount is not None)
