"""Amounts: exact decimal arithmetic on values of any practical length."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Context, Decimal, InvalidOperation
from functools import reduce

from mappings.grammar import JSON

CENT = Decimal("0.01")
DIGITS = 1000
"""The longest amount accepted, equal to the limit for clients (``kinds.Amount``)."""

EXACT = Context(prec=2 * DIGITS)
"""The context for all arithmetic: Python's default context silently rounds to 28 digits."""


def parse_amount(value: JSON) -> Decimal | None:
    """Parse an amount that a service wrote as text or number; None if it is not an amount."""
    if type(value) is not str and (
        isinstance(value, bool) or not isinstance(value, str | int | Decimal)
    ):
        return None
    try:
        read = Decimal(str(value))
    except (InvalidOperation, ValueError):
        return None
    # Text such as 1E999999 is short, but formatting it would take a megabyte.
    return read if read.is_finite() and abs(read.adjusted()) <= DIGITS else None


def sum_amounts(amounts: Iterable[JSON]) -> Decimal | None:
    """Return the exact sum; None if one of the values is not an amount."""
    sum_ = Decimal(0)
    for amount in amounts:
        if (read := parse_amount(amount)) is None:
            return None
        sum_ = EXACT.add(sum_, read)
    return sum_


def sum_decimals(amounts: Iterable[Decimal]) -> Decimal:
    """Return the exact sum."""
    return reduce(EXACT.add, amounts, Decimal(0))


def add_decimals(one: Decimal, other: Decimal) -> Decimal:
    """Return the exact sum; ``+`` would round it to 28 digits."""
    return EXACT.add(one, other)


def format_amount(amount: Decimal) -> str:
    """Format with at least two decimals, as the legacy interface does, without rounding."""
    return f"{_in_cents(amount):f}"


def format_numeric_amount(value: JSON) -> JSON:
    """Format an amount for clients: text stays as the service wrote it, a number is formatted."""
    return value if isinstance(value, str) else normalize_amount(value)


def normalize_amount(value: JSON) -> JSON:
    """Format an amount given as text or number; return a value that is not an amount unchanged."""
    return value if (read := parse_amount(value)) is None else format_amount(read)


def format_rate(value: JSON) -> JSON:
    """Format a rate for clients: as text, with the service's number of decimals."""
    read = None if isinstance(value, str) else parse_amount(value)
    return value if read is None else f"{read:f}"


def to_json_number(amount: Decimal) -> Decimal | int:
    """Convert to a JSON number without trailing zeros: 12, 12.5, 12.05."""
    whole = amount.to_integral_value(context=EXACT)
    return int(amount) if amount == whole else amount.normalize(EXACT)


def _in_cents(amount: Decimal) -> Decimal:
    cents = EXACT.quantize(amount, CENT)
    return cents if cents == amount else amount
