"""Lenient parsing of values that clients send although the document is stricter."""

import re
from decimal import Decimal
from typing import Any, Self

import pycountry

from gateway.simulator.refusals import Problems
from gateway.simulator.wire import JsonObject

TRUTHS = {"true": True, "false": False}


# The text is needed because 10.0 and 10.00 are equal numbers, but only 10.00 is a valid amount.
class Number(Decimal):
    """A JSON number with a point or an exponent; `written` is its original text."""

    written: str

    def __new__(cls, written: str) -> Self:
        made = super().__new__(cls, written)
        made.written = written
        return made


MAY_BE_EMPTY = "street2"  # section 2, Recipient


def tidied(value: Any) -> Any:
    """Normalize a body: remove empty texts, and convert whole numbers to text.

    An empty text counts as a missing field. Clients send account numbers and similar fields as
    numbers or as text.
    """
    if isinstance(value, dict):
        return {
            name: tidied(each) for name, each in value.items() if each != "" or name == MAY_BE_EMPTY
        }
    if isinstance(value, list):
        return [tidied(each) for each in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def inside(problems: Problems, sent: JsonObject, name: str) -> JsonObject:
    """Return an object in a body; null counts as missing, and a missing one as empty."""
    value = sent.get(name)
    if isinstance(value, dict | None):
        return value or {}
    problems.invalid(name, "Must be an object")
    return {}


def truth(value: Any) -> bool | None:
    """Return None if the value is neither true nor false."""
    if isinstance(value, str):
        return TRUTHS.get(value.lower())
    return value if isinstance(value, bool) else None


def whole(value: Any) -> int | None:
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}", value) else None


def country(value: Any) -> Any:
    """Return an upper-case alpha-2 code; alpha-3 is accepted, as in an example of section 2."""
    if not isinstance(value, str):
        return value
    code = value.upper()
    found = pycountry.countries.get(alpha_3=code) if len(code) == 3 else None
    return code if found is None else found.alpha_2


def currency(value: Any) -> Any:
    """Return an upper-case currency code, from a code or from the object that responses have."""
    code = value.get("code") if isinstance(value, dict) else value
    return code.upper() if isinstance(code, str) else code
