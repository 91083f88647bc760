"""Decoding and checks of what requests contain, and the errors of the service (section 7).

A check of a single value returns None, or a message that says what the value must be.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

import simplejson

JsonObject = dict[str, Any]


def encode_json(value: Any) -> bytes:
    text = simplejson.dumps(value, use_decimal=True, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


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


find_email_problem = create_pattern_check(r"[^@\s]+@[^@\s]+\.[^@\s]+", "Must be an email address")
find_language_problem = create_pattern_check("[a-z]{2}(-[A-Za-z]{2})?", "Must be a language code")
find_phone_problem = create_pattern_check(r"\+?[0-9 ().-]{5,24}", "Must be a phone number")
find_currency_problem = create_pattern_check("[A-Z]{3}", "Must be an ISO 4217 code")


def mask_value(value: str | None) -> str | None:
    """Hides all but the last two characters (current interface, section 2.6)."""
    return None if value is None else f"****{value[-2:]}"


STATUS_BY_CODE = {
    "invalid_status": 400, "expired_quote": 400, "invalid_api_key": 401, "not_authorized": 403,
    "not_found": 404, "internal_server_error": 500,
}  # fmt: skip

# A response has one status, so problems of different statuses cannot be reported together: fields
# first, then objects that do not exist, then objects in the wrong state.
REPORTED_TOGETHER = (
    frozenset({"empty_field", "invalid_field"}),
    frozenset({"not_found"}),
    frozenset({"invalid_status"}),
)


@dataclass(frozen=True)
class Problem:
    code: str
    message: str
    field: str | None = None


class ApiError(Exception):
    """An error response, `{ok: false, errors}`."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*(problem.code for problem in problems))
        self.problems = problems

    def build_body(self) -> JsonObject:
        errors = [
            {name: value for name, value in vars(problem).items() if value is not None}
            for problem in self.problems
        ]
        return {"ok": False, "errors": errors}


def decode_json_object(data: bytes, parse_float: Callable[[str], Decimal] = Decimal) -> JsonObject:
    """Decodes a request body; numbers with a point or exponent become `Decimal`. Raises ApiError."""
    try:
        body = simplejson.loads(data.decode(), parse_float=parse_float)
        # A lone surrogate decodes but cannot be encoded: refuse it before it is stored.
        encode_json(body)
    except (ValueError, RecursionError):
        raise ApiError(Problem("invalid_field", "Body is not JSON")) from None
    if not isinstance(body, dict):
        raise ApiError(Problem("invalid_field", "Body is not an object"))
    return body


def build_not_found_error(object_name: str) -> ApiError:
    return ApiError(Problem("not_found", f"{object_name} does not exist"))


def build_invalid_status_error(message: str) -> ApiError:
    return ApiError(Problem("invalid_status", message))


@dataclass
class Problems:
    """Collects the problems of one request, so that one response reports them all."""

    collected: list[Problem] = field(default_factory=list)
    prefix: str = ""

    def create_nested_view(self, prefix: str) -> "Problems":
        """Returns a view of this collection for nested fields: `address.`, `governmentIds[0].`"""
        return Problems(self.collected, self.prefix + prefix)

    def check(self, name: str, value: object, find_problem: Check) -> None:
        if error := find_problem(value):
            self.add_invalid_field(name, error)

    def check_required(self, name: str, value: object, find_problem: Check) -> None:
        if is_blank(value):
            self.add_empty_field(name)
        else:
            self.check(name, value, find_problem)

    def add_empty_field(self, name: str) -> None:
        self.add_problem("empty_field", name, "Required field is missing or empty")

    def add_invalid_field(self, name: str, message: str) -> None:
        self.add_problem("invalid_field", name, message)

    def add_problem(self, code: str, name: str, message: str) -> None:
        self.collected.append(Problem(code, message, self.prefix + name))

    def iter_objects(
        self, body: JsonObject, field_name: str
    ) -> Iterator[tuple["Problems", JsonObject]]:
        """Yields the objects of an array in a body; a missing array counts as empty."""
        entries = body.get(field_name)
        if not isinstance(entries, list | None):
            self.add_invalid_field(field_name, "Must be an array")
            return
        for position, entry in enumerate(entries or []):
            if isinstance(entry, dict):
                yield self.create_nested_view(f"{field_name}[{position}]."), entry
            else:
                self.add_invalid_field(f"{field_name}[{position}]", "Must be an object")

    def raise_if_any(self) -> None:
        # The first group that has a problem decides the status; the others would contradict it.
        for codes in REPORTED_TOGETHER:
            # Without duplicates: one value may be checked for each account that it applies to.
            unique = dict.fromkeys(self.collected)
            if reported := [problem for problem in unique if problem.code in codes]:
                raise ApiError(*reported)
