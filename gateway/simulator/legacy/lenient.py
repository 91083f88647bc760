"""Lenient parsing of values that clients send although the document is stricter, and its problems."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Self

import pycountry

from gateway.simulator.validation import JsonObject, Problems


# The text is needed because 10.0 and 10.00 are equal numbers, but only 10.00 is a valid amount.
class JsonNumber(Decimal):
    """A JSON number with a point or an exponent; `written` is its original text."""

    written: str

    def __new__(cls, written: str) -> Self:
        number = super().__new__(cls, written)
        number.written = written
        return number


EMPTY_TEXT_FIELD = "street2"  # section 2, Recipient


def drop_empty_and_stringify_integers(value: Any) -> Any:
    """Normalizes a body: removes empty texts, and converts whole numbers to text.

    An empty text counts as a missing field. Clients send account numbers and similar fields as
    numbers or as text.
    """
    if isinstance(value, dict):
        return {
            name: drop_empty_and_stringify_integers(item)
            for name, item in value.items()
            if item != "" or name == EMPTY_TEXT_FIELD
        }
    if isinstance(value, list):
        return [drop_empty_and_stringify_integers(item) for item in value]
    # A bool is an int in Python, but clients mean true and false.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def parse_object(problems: Problems, body: JsonObject, name: str) -> JsonObject:
    """Returns an object in a body; null counts as missing, and a missing one as empty."""
    value = body.get(name)
    if isinstance(value, dict | None):
        return value or {}
    problems.add_invalid_field(name, "Must be an object")
    return {}


def parse_boolean(value: Any) -> bool | None:
    """Parses true or false, also as a word; returns None for any other value."""
    return {"true": True, "false": False}.get(str(value).lower())


def parse_integer(value: Any) -> int | None:
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}", value) else None


def normalize_country(value: Any) -> Any:
    """Returns an upper-case alpha-2 code; alpha-3 is accepted, as in an example of section 2."""
    if not isinstance(value, str):
        return value
    code = value.upper()
    match = pycountry.countries.get(alpha_3=code) if len(code) == 3 else None
    return code if match is None else match.alpha_2


def normalize_currency(value: Any) -> Any:
    """Returns an upper-case currency code, from a code or from the object that responses have."""
    code = value.get("code") if isinstance(value, dict) else value
    return code.upper() if isinstance(code, str) else code


def translate_problems(
    problems: Problems, found_problems: Problems, client_names: Mapping[str, str], path: str = ""
) -> None:
    """Adds `found_problems` to `problems` under the client's field names.

    `client_names` maps the service's names to the client's; other fields get `path` as a prefix.
    """
    for problem in found_problems.collected:
        name = problem.field or ""
        problems.add_problem(problem.code, client_names.get(name, path + name), problem.message)
