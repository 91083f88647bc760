"""Amounts: exact, from text to text, however long they are."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Context, Decimal, InvalidOperation
from functools import reduce

from mappings.grammar import JSON

CENT = Decimal("0.01")
DIGITS = 1000
"""What is longer is no amount; as much is taken from clients (``kinds.Amount``)."""

EXACT = Context(prec=2 * DIGITS)
"""Python's own context rounds after 28 digits, without a word."""


def parse_amount(value: JSON) -> Decimal | None:
    """An amount as services write it, text or number; None where it is none."""
    if type(value) is not str and (
        isinstance(value, bool) or not isinstance(value, str | int | Decimal)
    ):
        return None
    try:
        read = Decimal(str(value))
    except (InvalidOperation, ValueError):
        return None
    # 1E999999 is short, until somebody writes it out.
    return read if read.is_finite() and abs(read.adjusted()) <= DIGITS else None


def sum_amounts(amounts: Iterable[JSON]) -> Decimal | None:
    """The exact sum; None where one of them is not known."""
    sum_ = Decimal(0)
    for amount in amounts:
        if (read := parse_amount(amount)) is None:
            return None
        sum_ = EXACT.add(sum_, read)
    return sum_


def sum_decimals(amounts: Iterable[Decimal]) -> Decimal:
    """The exact sum of amounts that are known."""
    return reduce(EXACT.add, amounts, Decimal(0))


def add_decimals(one: Decimal, other: Decimal) -> Decimal:
    """The exact sum; ``+`` would round it to 28 digits."""
    return EXACT.add(one, other)


def format_amount(amount: Decimal) -> str:
    """With two decimals, as the legacy interface writes amounts; more only where it has more."""
    return f"{_in_cents(amount):f}"


def format_numeric_amount(value: JSON) -> JSON:
    """An amount as clients have it: text stays as the service wrote it, a number gets ``format_amount``."""
    return value if isinstance(value, str) else normalize_amount(value)


def normalize_amount(value: JSON) -> JSON:
    """``format_amount`` of an amount that a service wrote, as text or as a number; what is none stays."""
    return value if (read := parse_amount(value)) is None else format_amount(read)


def format_rate(value: JSON) -> JSON:
    """A rate as clients have it: text, with the decimals that the service gave it."""
    read = None if isinstance(value, str) else parse_amount(value)
    return value if read is None else f"{read:f}"


def to_json_number(amount: Decimal) -> Decimal | int:
    """As a JSON number, in the way that they are mostly written: 12, 12.5, 12.05."""
    whole = amount.to_integral_value(context=EXACT)
    return int(amount) if amount == whole else amount.normalize(EXACT)


def _in_cents(amount: Decimal) -> Decimal:
    cents = EXACT.quantize(amount, CENT)
    return cents if cents == amount else amount
