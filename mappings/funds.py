"""Compares a batch's payments with the merchant's balances.

A payment to a wallet is paid from the wallet account, every other from service accounts, both in
the batch's currency. It takes its source amount and the merchant's fees, as far as these are known.
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
    """Parse the entries of a balance response: a list, an object by currency, or a single entry."""
    # The document shows no payload for this call.
    given = extract_raw_balances(body)
    if isinstance(given, dict) and money.parse_amount(given.get("amount")) is not None:
        return [given]
    if isinstance(given, dict):
        named = {name: one for name, one in given.items() if isinstance(one, dict)}
        return [{**_named(name), **one} for name, one in named.items()]
    return [one for one in given or [] if isinstance(one, dict)]


def extract_raw_balances(body: Mapping[str, JSON]) -> JSON:
    """Return the balances of a response, in whatever shape the service uses."""
    return body.get("balances", body.get("balance"))


def _named(name: str) -> dict[str, JSON]:
    """Parse the key of an entry, which is a currency or the name of the wallet account."""
    return {"type": current.WALLET} if name == current.WALLET else {"currency": name}


def determine_payment_method(payment: Mapping[str, JSON]) -> str:
    recipient = payment.get("recipient") or {}
    return str(payment.get("method") or recipient.get("payoutMethod") or current.BANK_TRANSFER)


def partition_by_wallet(payments: Payments) -> tuple[Payments, Payments]:
    """Split payments into those to wallets and all others."""
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
    """Sum the balances in a currency, of the wallet account or of the service accounts."""
    return sum_field(
        [
            entry
            for entry in balances
            if (entry.get("type") == current.WALLET) is wallet and entry.get("currency") == currency
        ],
        "amount",
    )


def sum_field(those: Sequence[Mapping[str, JSON]], name: str) -> Decimal:
    """Return the exact sum of a field over the rows that have an amount in it."""
    read = (money.parse_amount(one.get(name)) for one in those)
    return money.sum_decimals(amount for amount in read if amount is not None)
