"""Amounts: exact Decimals in memory, text with two decimals in JSON (section 2.1)."""

import re
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import reduce
from typing import Any

# At most 30 digits, so that a sum of many amounts stays within the context's precision.
AMOUNT = re.compile(r"[0-9]{1,30}(\.[0-9]{2})?")
EXACT = Context(prec=100, rounding=ROUND_HALF_UP)
CENT = Decimal("0.01")
ZERO = Decimal("0.00")


def amount(value: Any) -> str | None:
    # A JSON number is refused, because the document says that an amount is a string.
    if isinstance(value, str) and AMOUNT.fullmatch(value) and Decimal(value) > 0:
        return None
    return "Must be a positive number in a string, with two decimals or none"


def cents(value: Decimal) -> Decimal:
    return value.quantize(CENT, context=EXACT)


def text(value: Decimal) -> str:
    return str(cents(value))


def total(amounts: Iterable[Decimal]) -> Decimal:
    return reduce(EXACT.add, amounts, ZERO)


def less(value: Decimal, spent: Decimal) -> Decimal:
    return EXACT.subtract(value, spent)


def times(value: Decimal, rate: Decimal) -> Decimal:
    """Multiply and round half up to cents, as `divide_by_rate` does."""
    return cents(EXACT.multiply(value, rate))


def over(value: Decimal, rate: Decimal) -> Decimal:
    return cents(EXACT.divide(value, rate))
