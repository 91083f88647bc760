"""Amounts: exact, from text to text."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal, InvalidOperation

from mappings.grammar import JSON

CENT = Decimal("0.01")


def amount_of(value: JSON) -> Decimal | None:
    """An amount as services write it, text or number; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        return None
    try:
        read = Decimal(str(value))
    except InvalidOperation:
        return None
    return read if read.is_finite() else None


def total(amounts: Iterable[JSON]) -> Decimal | None:
    """The exact sum; None where one of them is not known."""
    read = [amount_of(amount) for amount in amounts]
    known = [amount for amount in read if amount is not None]
    return sum(known, Decimal(0)) if len(known) == len(read) else None


def text(amount: Decimal) -> str:
    """With two decimals, as the legacy interface writes amounts."""
    return f"{amount:.2f}"


def number(amount: Decimal) -> Decimal | int:
    """As a JSON number: whole ones without decimals, others with two."""
    return int(amount) if amount == amount.to_integral_value() else amount.quantize(CENT)
