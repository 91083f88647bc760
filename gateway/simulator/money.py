"""Amounts: exact Decimals in memory, text with two decimals in JSON (section 2.1); exchange rates."""

import re
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import reduce
from typing import Any

from babel.numbers import get_currency_name

# At most 30 digits, so that a sum of many amounts stays within the context's precision.
AMOUNT_PATTERN = re.compile(r"[0-9]{1,30}(\.[0-9]{2})?")
EXACT_CONTEXT = Context(prec=100, rounding=ROUND_HALF_UP)
CENT = Decimal("0.01")
ZERO = Decimal("0.00")


def find_amount_problem(value: Any) -> str | None:
    # A JSON number is refused, because the document says that an amount is a string.
    if isinstance(value, str) and AMOUNT_PATTERN.fullmatch(value) and Decimal(value) > 0:
        return None
    return "Must be a positive number in a string, with two decimals or none"


def round_to_cents(value: Decimal) -> Decimal:
    """Rounds half up."""
    return value.quantize(CENT, context=EXACT_CONTEXT)


def format_amount(value: Decimal) -> str:
    return str(round_to_cents(value))


def sum_amounts(amounts: Iterable[Decimal]) -> Decimal:
    # Not ``sum``: Python's default context rounds to 28 digits.
    return reduce(EXACT_CONTEXT.add, amounts, ZERO)


# Rates are fixed and invented.
_RATES_TEXT = """
AED=3.6725 AOA=850 ARS=890 AUD=1.52 AZN=1.7 BDT=117 BGN=1.8 BHD=0.376 BMD=1 BOB=6.91 BRL=5.1
BZD=2 CAD=1.36 CHF=0.88 CLP=915 CNY=7.24 COP=3890 CRC=512 CZK=23.1 DKK=6.86 DOP=59 EGP=47.6
ETB=57.2 EUR=0.92 FJD=2.25 GBP=0.79 GEL=2.7 GHS=14.2 GTQ=7.77 GYD=209 HKD=7.82 HTG=132.5
HUF=358.5 IDR=16150 ILS=3.7 INR=83.4 ISK=137.5 JMD=156 JOD=0.709 JPY=155.2 KES=131 KHR=4080
KRW=1370 KWD=0.307 KZT=445 LKR=300 MAD=10.05 MNT=3450 MXN=16.8 MYR=4.71 MZN=63.85 NGN=1480
NOK=10.65 NPR=133.5 NZD=1.66 PEN=3.72 PHP=57.8 PKR=278 PLN=3.95 PYG=7500 QAR=3.64 RON=4.58
RUB=90.5 SAR=3.75 SEK=10.45 SGD=1.35 THB=36.6 TOP=2.35 TRY=32.4 TWD=32.3 TZS=2590 UAH=39.7
UGX=3790 USD=1 UYU=38.6 UZS=12650 VND=25400 ZAR=18.6 ZMW=25.9
"""
CURRENCIES = dict(entry.split("=") for entry in _RATES_TEXT.split())
"""How many units of a currency one US dollar buys."""

RATE_PRECISION = Decimal("1e-10")
QUOTE_STEP = Decimal("0.0005")


def look_up_currency_name(code: str) -> str:
    return str(get_currency_name(code, locale="en"))


def compute_exchange_rate(source: str, target: str, quotes: int) -> Decimal:
    """Returns how much of the target currency one unit of the source buys, to ten decimals.

    Each quote raises the rate by 0.05 %, so that a test can see that a quote was made.
    """
    if source == target:
        return Decimal(1)
    # Both rates are per US dollar, so their quotient is the cross rate.
    base_rate = EXACT_CONTEXT.divide(Decimal(CURRENCIES[target]), Decimal(CURRENCIES[source]))
    quoted_rate = EXACT_CONTEXT.multiply(base_rate, 1 + quotes * QUOTE_STEP)
    # Ten decimals are exact enough that the other amount is right to the cent.
    return quoted_rate.quantize(RATE_PRECISION, context=EXACT_CONTEXT)


def format_rate(rate: Decimal) -> str:
    """Formats without trailing zeros: 0.92, not 0.9200000000."""
    return f"{rate.normalize(EXACT_CONTEXT):f}"
