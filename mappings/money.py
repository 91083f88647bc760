"""Amounts: exact decimal arithmetic on values of any practical length."""

from collections.abc import Iterable
from decimal import Context, Decimal, InvalidOperation
from functools import reduce

from mappings.effects import JSON

CENT = Decimal("0.01")
MAX_DIGITS = 1000
"""The longest amount accepted, equal to the limit for clients (``field_types.Amount``)."""

EXACT_CONTEXT = Context(prec=2 * MAX_DIGITS)
"""The context for all arithmetic: Python's default context silently rounds to 28 digits."""


def parse_amount(value: JSON) -> Decimal | None:
    """Parses an amount that a service wrote as text or number; None if it is not an amount."""
    if type(value) is not str and (
        isinstance(value, bool) or not isinstance(value, str | int | Decimal)
    ):
        return None
    try:
        amount = Decimal(str(value))
    except (InvalidOperation, ValueError):
        return None
    # Text such as 1E999999 is short, but formatting it would take a megabyte.
    return amount if amount.is_finite() and abs(amount.adjusted()) <= MAX_DIGITS else None


def sum_decimals(amounts: Iterable[Decimal]) -> Decimal:
    """Returns the exact sum; ``+`` would round it to 28 digits."""
    return reduce(EXACT_CONTEXT.add, amounts, Decimal(0))


def format_amount(amount: Decimal) -> str:
    """Formats with at least two decimals, as the legacy interface does, without rounding."""
    # Only zeros are appended: an amount with more decimals is shown in full, not rounded.
    cents = EXACT_CONTEXT.quantize(amount, CENT)
    return f"{cents if cents == amount else amount:f}"


def format_amount_unless_text(value: JSON) -> JSON:
    """Formats an amount for clients: text stays as the service wrote it, a number is formatted."""
    return value if isinstance(value, str) else normalize_amount(value)


def normalize_amount(value: JSON) -> JSON:
    """Formats an amount given as text or number; any other value is returned unchanged."""
    return value if (amount := parse_amount(value)) is None else format_amount(amount)


def format_rate(value: JSON) -> JSON:
    """Formats a rate for clients: as text, with the service's number of decimals."""
    rate = None if isinstance(value, str) else parse_amount(value)
    return value if rate is None else f"{rate:f}"


def convert_to_json_number(amount: Decimal) -> Decimal | int:
    """Converts to a JSON number without trailing zeros: 12, 12.5, 12.05."""
    whole = amount.to_integral_value(context=EXACT_CONTEXT)
    return int(amount) if amount == whole else amount.normalize(EXACT_CONTEXT)
