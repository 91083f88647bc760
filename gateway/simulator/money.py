"""Amounts: exact Decimals in memory, text with two decimals in JSON (section 2.1)."""

import re
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import reduce
from typing import Any

# At most 30 digits, so that a sum of many amounts stays within the context's precision.
AMOUNT_PATTERN = re.compile(r"[0-9]{1,30}(\.[0-9]{2})?")
EXACT_CONTEXT = Context(prec=100, rounding=ROUND_HALF_UP)
CENT = Decimal("0.01")
ZERO = Decimal("0.00")


def validate_amount(value: Any) -> str | None:
    # A JSON number is refused, because the document says that an amount is a string.
    if isinstance(value, str) and AMOUNT_PATTERN.fullmatch(value) and Decimal(value) > 0:
        return None
    return "Must be a positive number in a string, with two decimals or none"


def round_to_cents(value: Decimal) -> Decimal:
    return value.quantize(CENT, context=EXACT_CONTEXT)


def format_amount(value: Decimal) -> str:
    return str(round_to_cents(value))


def sum_amounts(amounts: Iterable[Decimal]) -> Decimal:
    # Not ``sum``: Python's default context rounds to 28 digits.
    return reduce(EXACT_CONTEXT.add, amounts, ZERO)


def multiply_by_rate(value: Decimal, rate: Decimal) -> Decimal:
    """Multiplies and rounds half up to cents, as `divide_by_rate` does."""
    return round_to_cents(EXACT_CONTEXT.multiply(value, rate))


def divide_by_rate(value: Decimal, rate: Decimal) -> Decimal:
    return round_to_cents(EXACT_CONTEXT.divide(value, rate))
