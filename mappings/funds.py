"""Whether the merchant's balance covers what a batch pays.

A payment to a wallet is covered by the wallet account, every other by service accounts, both of
the batch's currency. It takes its source amount and the merchant's fees, as far as they are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

from mappings import current, money
from mappings.grammar import JSON
from mappings.rows import kept

Payments = Sequence[Mapping[str, JSON]]
Balances = Sequence[Mapping[str, JSON]]


def balances_in(body: Mapping[str, JSON]) -> list[dict[str, JSON]]:
    """The entries of a balance answer: an object of them by currency, a list, or the only one."""
    given = told_in(body)
    if isinstance(given, dict) and money.amount_of(given.get("amount")) is not None:
        return [given]
    if isinstance(given, dict):
        named = {name: one for name, one in given.items() if isinstance(one, dict)}
        return [{**_named(name), **one} for name, one in named.items()]
    return [one for one in given or [] if isinstance(one, dict)]


def told_in(body: Mapping[str, JSON]) -> JSON:
    """What a balance answer tells, whatever that is."""
    return body.get("balances", body.get("balance"))


def _named(name: str) -> dict[str, JSON]:
    """What the name of an entry tells: its currency, or that it is the wallet account's."""
    return {"type": current.WALLET} if name == current.WALLET else {"currency": name}


def method_of(payment: Mapping[str, JSON]) -> str:
    recipient = payment.get("recipient") or {}
    return str(payment.get("method") or recipient.get("payoutMethod") or current.BANK_TRANSFER)


def apart(payments: Payments) -> tuple[Payments, Payments]:
    """The payments to wallets, and all others."""
    to_wallets = kept(payments, lambda one: method_of(one) == current.WALLET)
    return to_wallets, kept(payments, lambda one: method_of(one) != current.WALLET)


def are_enough(balances: Balances, payments: Payments, currency: JSON) -> bool:
    to_wallets, others = apart(payments)
    return needed(to_wallets) <= held(balances, currency, wallet=True) and needed(others) <= held(
        balances, currency, wallet=False
    )


def needed(payments: Payments) -> Decimal:
    return money.plus(summed(payments, "sourceAmount"), summed(payments, "merchantFees"))


def held(balances: Balances, currency: JSON, *, wallet: bool) -> Decimal:
    """What the merchant has: on the wallet account, or on service accounts of the currency."""
    return summed(
        [
            entry
            for entry in balances
            if (entry.get("type") == current.WALLET) is wallet and entry.get("currency") == currency
        ],
        "amount",
    )


def summed(those: Sequence[Mapping[str, JSON]], name: str) -> Decimal:
    """The exact sum of what is known."""
    read = (money.amount_of(one.get(name)) for one in those)
    return money.sum_of(amount for amount in read if amount is not None)
