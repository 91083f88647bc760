"""Field types of the legacy request bodies: each validates a value and normalizes it.

The shapes in ``legacy.py`` give each field a type, and ``request_bodies`` calls its validator.
Existing clients are lax: they send numbers for text, ``"False"`` for a boolean, a three-letter
country code. Such values are accepted and normalized; all others are rejected. Error messages never
repeat the value, because it may be personal data.
"""

import re
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Literal

import pycountry
from pydantic import BeforeValidator

WordName = Literal[
    "wallet",
    "wallet_label",
    "service",
    "wallet_method_display",
    "bank_method_display",
    "wallet_display_name",
    "bank_display_name",
    "wallet_account_type",
    "service_account_type",
]


class Word:
    """Marks a value that may be one of these vocabulary words.

    ``any_case`` ignores case, for labels, which services capitalize differently.
    """

    def __init__(self, *names: WordName, any_case: bool = False) -> None:
        self.names = names
        self.any_case = any_case


@dataclass(frozen=True, slots=True)
class WordKey:
    """Marks a field whose *name* is a vocabulary word."""

    name: Literal["wallet", "service", "service_total", "avatar_url", "batch_currency"]


@dataclass(frozen=True, slots=True)
class Id:
    """Marks an id. Legacy clients get an alias id for one that is too long for them."""

    kind: Literal["recipient", "batch", "payment"]


@dataclass(frozen=True, slots=True)
class TextWithIds:
    """Marks free text that may mention ids; known ids in it are translated."""


class InvalidValue(ValueError):
    """A value is refused; ``code`` is the error code, and the text says what the value must be."""

    def __init__(self, fault: str, code: str = "invalid_field") -> None:
        super().__init__(fault)
        self.code = code


def build_missing_error() -> InvalidValue:
    return InvalidValue("is required", "empty_field")


def _parse_text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    # A bool is an int in Python, but no client sends one as text.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InvalidValue("must be text")


def _parse_recipient_type(value: Any) -> Any:
    if value is None:
        raise build_missing_error()
    if value in ("individual", "business"):
        return value
    raise InvalidValue("must be one of: individual, business")


@lru_cache(maxsize=1024)
def find_country_alpha_2_code(code: str) -> str | None:
    """Returns the ISO 3166-1 alpha-2 code for a code of two or three letters, or None."""
    code = code.strip().upper()
    if not re.fullmatch("[A-Z]{2,3}", code):
        return None
    if code in ("XK", "XKX"):  # Kosovo: a user-assigned code that banks use, not in the ISO table.
        return "XK"
    countries = pycountry.countries
    country = countries.get(alpha_2=code) if len(code) == 2 else countries.get(alpha_3=code)
    return str(country.alpha_2) if country else None


def _parse_country(value: Any) -> Any:
    if isinstance(value, str) and (code := find_country_alpha_2_code(value)):
        return code
    raise InvalidValue("must be a two-letter country code (ISO 3166-1 alpha-2)")


_CURRENCY_CODE = re.compile("[A-Za-z]{3}")


def _parse_currency(value: Any) -> Any:
    value = _unwrap_currency(value)
    if isinstance(value, str) and _CURRENCY_CODE.fullmatch(value):
        return value.upper()
    raise InvalidValue("must be a three-letter currency code (ISO 4217)")


def _parse_optional_currency(value: Any) -> Any:
    is_empty_object = isinstance(value, dict) and not _unwrap_currency(value)
    return None if value is None or is_empty_object else _parse_currency(value)


def _parse_primary_currency(value: Any) -> Any:
    """Like ``_parse_optional_currency``; returns both codes if the two forms of answers differ."""
    code = _parse_optional_currency(value)
    nested = _unwrap_currency(value.get("currency")) if isinstance(value, dict) else None
    if isinstance(nested, str) and _CURRENCY_CODE.fullmatch(nested) and nested.upper() != code:
        return [code, nested.upper()]
    return code


def _unwrap_currency(value: Any) -> Any:
    # Clients that send a whole object back send the currency in the form of the answers.
    while isinstance(value, dict):
        value = value.get("code") or value.get("currency")
    return value


def _parse_email(value: Any) -> Any:
    if value is None:
        raise build_missing_error()
    # The pattern is deliberately loose: the service decides which addresses it accepts.
    if isinstance(value, str) and re.fullmatch(r"[^@\s]{1,256}@[^@\s]{1,256}", value):
        return value
    raise InvalidValue("must be an email address")


def _parse_day(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value[:10]):
        try:
            date.fromisoformat(value[:10])
        except ValueError:
            pass
        else:
            # Answers show full timestamps, which clients send back.
            if len(value) == 10 or value[10] == "T":
                return value[:10]
    raise InvalidValue("must be a date written YYYY-MM-DD")


def _parse_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    # Clients of one library send ``"True"`` and ``"False"`` (contract, section 0).
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise InvalidValue("must be true or false")


def _parse_integer(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value):
        return int(value)
    raise InvalidValue("must be a whole number")


# The bound on the digits keeps conversions to decimals cheap for hostile input.
_AMOUNT_PATTERN = re.compile(r"[0-9]{1,1000}(\.[0-9]{2})?")


def _parse_amount(value: Any) -> Any:
    """Parses a positive amount: digits, optionally followed by a point and exactly two digits."""
    # The amount remains text, so that it is sent exactly as written.
    text = value
    if not isinstance(value, str | bool) and isinstance(value, int | Decimal):
        text = str(value)
    if fault := validate_amount(text):
        raise InvalidValue(fault)
    return text


def validate_amount(text: Any) -> str | None:
    """Returns the fault of an amount to be paid, or None if it is valid."""
    if not isinstance(text, str) or not _AMOUNT_PATTERN.fullmatch(text):
        return "must be an amount: digits, and either two decimals or none"
    # An amount of zero consists of zeros and a point only; comparing text avoids a conversion.
    return None if text.strip("0.") else "must be more than zero"


def _parse_amount_with_any_decimals(value: Any) -> Any:
    """Parses an amount that may come from an answer; the caller validates it if it is changed."""
    text = str(value) if isinstance(value, int | Decimal) else value
    if isinstance(text, str) and re.fullmatch(r"[0-9]{1,1000}(\.[0-9]{1,1000})?", text):
        return text
    return _parse_amount(value)


def _parse_ssn(value: Any) -> Any:
    """Parses any text: one that is only sent back is written as the service shows it."""
    return _parse_text(value)


_OTHER_MASK = re.compile(r"[Xx#.\u2022-]{3,}([0-9]{2,4})")
"""The current document does not say with which characters a service masks: ``XXX-XX-6789``."""


def is_masked_value(value: Any) -> bool:
    """Whether a value is a masked identifier as answers show it (``****47``)."""
    return isinstance(value, str) and extract_visible_end(value) is not None


def extract_visible_end(text: str) -> str | None:
    """Returns the last characters, which a mask shows; None if the text is no mask."""
    if "*" in text:
        return text.rpartition("*")[2]
    return mask[1] if (mask := _OTHER_MASK.fullmatch(text)) else None


Text = Annotated[str, BeforeValidator(_parse_text)]
Country = Annotated[str, BeforeValidator(_parse_country)]
ShownCurrency = Annotated[str | None, BeforeValidator(_parse_optional_currency)]
PrimaryCurrency = Annotated[str | list[str] | None, BeforeValidator(_parse_primary_currency)]
Email = Annotated[str, BeforeValidator(_parse_email)]
Day = Annotated[str, BeforeValidator(_parse_day)]
Flag = Annotated[bool, BeforeValidator(_parse_boolean)]
Integer = Annotated[int, BeforeValidator(_parse_integer)]
Ssn = Annotated[str, BeforeValidator(_parse_ssn)]
Amount = Annotated[str, BeforeValidator(_parse_amount)]
ShownAmount = Annotated[str, BeforeValidator(_parse_amount_with_any_decimals)]
RecipientType = Annotated[Literal["individual", "business"], BeforeValidator(_parse_recipient_type)]
