"""Checks of single values. Each returns None, or a message that says what the value must be."""

import re
from collections.abc import Callable
from datetime import date
from typing import Any

Check = Callable[[Any], str | None]

EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
LANGUAGE = re.compile(r"[a-z]{2}(-[A-Za-z]{2})?")
PHONE = re.compile(r"\+?[0-9 ().-]{5,24}")
PO_BOX = re.compile(r"\bp\.?\s*o\.?\s*box\b", re.IGNORECASE)


def blank(value: object) -> bool:
    return value is None or value == ""


def text(value: Any) -> str | None:
    return None if isinstance(value, str) else "Must be a string"


def nullable(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def matching(pattern: re.Pattern[str], otherwise: str) -> Check:
    def check(value: Any) -> str | None:
        return None if isinstance(value, str) and pattern.fullmatch(value) else otherwise

    return check


def one_of(*words: str) -> Check:
    def check(value: Any) -> str | None:
        return None if value in words else f"Must be one of: {', '.join(words)}"

    return check


def unmasked(value: Any) -> str | None:
    # Responses show masked values: a client that sends one back would overwrite the real value.
    if not isinstance(value, str):
        return "Must be a string"
    return "Must not be masked" if "*" in value else None


def day(value: Any) -> str | None:
    try:
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
            date.fromisoformat(value)
            return None
    except (TypeError, ValueError):
        pass
    return "Must be a date, YYYY-MM-DD"


def street(value: Any) -> str | None:
    return text(value) or ("PO boxes are not accepted" if PO_BOX.search(value) else None)


def array(value: Any) -> str | None:
    return None if isinstance(value, list) else "Must be an array"


def emails(value: Any) -> str | None:
    return array(value) or next((wrong for each in value if (wrong := email(each))), None)


email = matching(EMAIL, "Must be an email address")
language = matching(LANGUAGE, "Must be a language code")
phone = matching(PHONE, "Must be a phone number")
currency = matching(re.compile(r"[A-Z]{3}"), "Must be an ISO 4217 code")


def mask(value: str | None) -> str | None:
    """Hide all but the last two characters (current interface, section 2.6)."""
    return None if value is None else f"****{value[-2:]}"
