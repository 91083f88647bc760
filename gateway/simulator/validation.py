"""Checks of single values. Each returns None, or a message that says what the value must be."""

import re
from collections.abc import Callable
from datetime import date
from typing import Any

Check = Callable[[Any], str | None]

PO_BOX_PATTERN = re.compile(r"\bp\.?\s*o\.?\s*box\b", re.IGNORECASE)


def is_blank(value: object) -> bool:
    return value is None or value == ""


def find_text_problem(value: Any) -> str | None:
    return None if isinstance(value, str) else "Must be a string"


def create_nullable_check(validate: Check) -> Check:
    return lambda value: None if value is None else validate(value)


def create_pattern_check(pattern: str, message: str) -> Check:
    return lambda value: (
        None if isinstance(value, str) and re.fullmatch(pattern, value) else message
    )


def create_choice_check(*choices: str) -> Check:
    return lambda value: None if value in choices else f"Must be one of: {', '.join(choices)}"


def find_mask_problem(value: Any) -> str | None:
    # Responses show masked values: a client that sends one back would overwrite the real value.
    return find_text_problem(value) or ("Must not be masked" if "*" in value else None)


def find_date_problem(value: Any) -> str | None:
    try:
        # Compared, because ``fromisoformat`` accepts other ISO 8601 forms too.
        is_date = date.fromisoformat(value).isoformat() == value
    except (TypeError, ValueError):
        is_date = False
    return None if is_date else "Must be a date, YYYY-MM-DD"


def find_street_problem(value: Any) -> str | None:
    return find_text_problem(value) or (
        "PO boxes are not accepted" if PO_BOX_PATTERN.search(value) else None
    )


def find_array_problem(value: Any) -> str | None:
    return None if isinstance(value, list) else "Must be an array"


def find_emails_problem(value: Any) -> str | None:
    return find_array_problem(value) or next(
        (error for address in value if (error := find_email_problem(address))), None
    )


find_email_problem = create_pattern_check(r"[^@\s]+@[^@\s]+\.[^@\s]+", "Must be an email address")
find_language_problem = create_pattern_check("[a-z]{2}(-[A-Za-z]{2})?", "Must be a language code")
find_phone_problem = create_pattern_check(r"\+?[0-9 ().-]{5,24}", "Must be a phone number")
find_currency_problem = create_pattern_check("[A-Z]{3}", "Must be an ISO 4217 code")


def mask_value(value: str | None) -> str | None:
    """Hides all but the last two characters (current interface, section 2.6)."""
    return None if value is None else f"****{value[-2:]}"
