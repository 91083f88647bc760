"""Field types of the legacy request bodies: each validates a value and normalizes it.

The shapes in ``legacy.py`` give each field a type. pydantic walks the shape, so the location of an
error is already the client's own field. Existing clients are lax: they send numbers for text,
``"False"`` for a boolean, a three-letter country code. Such values are accepted and normalized; all
others are rejected. Error messages never repeat the value, because it may be personal data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, get_type_hints

import pycountry
from pydantic import BeforeValidator, TypeAdapter, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from mappings.failures import MAX_ERRORS, Invalid, Problem
from mappings.json_levels import list_nested_items
from mappings.lazy_sequences import SLICE_SIZE, CompressedSequence, LazySequence

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


@dataclass(frozen=True, slots=True, init=False)
class Word:
    """Marks a value that may be one of these vocabulary words.

    ``any_case`` ignores case, for labels, which services capitalize differently.
    """

    names: tuple[str, ...]
    any_case: bool

    def __init__(self, *names: WordName, any_case: bool = False) -> None:
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "any_case", any_case)


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


def build_invalid_field_error(message: str) -> PydanticCustomError:
    return PydanticCustomError("invalid_field", "{message}", {"message": message})


def build_missing_error() -> PydanticCustomError:
    return PydanticCustomError("empty_field", "is required")


def _parse_text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    # A bool is an int in Python, but no client sends one as text.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise build_invalid_field_error("must be text")


def _require_object(value: Any) -> Any:
    if isinstance(value, dict):
        return value
    raise build_invalid_field_error("must be an object")


def _require_list(value: Any) -> Any:
    if value is None:
        raise build_missing_error()
    if isinstance(value, list):
        return value
    raise build_invalid_field_error("must be a list")


def _build_choice_parser(*words: str) -> Callable[[Any], Any]:
    def parse_choice(value: Any) -> Any:
        if value is None:
            raise build_missing_error()
        if isinstance(value, str) and value in words:
            return value
        raise build_invalid_field_error(f"must be one of: {', '.join(words)}")

    return parse_choice


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
    raise build_invalid_field_error("must be a two-letter country code (ISO 3166-1 alpha-2)")


def _parse_currency(value: Any) -> Any:
    value = _unwrap_currency(value)
    if isinstance(value, str) and re.fullmatch("[A-Za-z]{3}", value):
        return value.upper()
    raise build_invalid_field_error("must be a three-letter currency code (ISO 4217)")


def _parse_optional_currency(value: Any) -> Any:
    is_empty_object = isinstance(value, dict) and not _unwrap_currency(value)
    return None if value is None or is_empty_object else _parse_currency(value)


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
    raise build_invalid_field_error("must be an email address")


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
    raise build_invalid_field_error("must be a date written YYYY-MM-DD")


def _parse_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    # Clients of one library send ``"True"`` and ``"False"`` (contract, section 0).
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise build_invalid_field_error("must be true or false")


def _parse_integer(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value):
        return int(value)
    raise build_invalid_field_error("must be a whole number")


# The bound on the digits keeps conversions to decimals cheap for hostile input.
_AMOUNT_PATTERN = re.compile(r"[0-9]{1,1000}(\.[0-9]{2})?")


def _parse_amount(value: Any) -> Any:
    """Parses a positive amount: digits, optionally followed by a point and exactly two digits."""
    # The amount remains text, so that it is sent exactly as written.
    text = value
    if not isinstance(value, str):
        if value is None:
            raise build_missing_error()
        if isinstance(value, int | Decimal) and not isinstance(value, bool):
            text = str(value)
    if fault := validate_amount(text):
        raise build_invalid_field_error(fault)
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
    value = _parse_text(value)
    if re.fullmatch("[0-9]{9}", value) or is_masked_value(value):
        return value
    raise build_invalid_field_error("must be nine digits, without spaces or hyphens")


def is_masked_value(value: Any) -> bool:
    """Whether a value is a masked identifier as answers show it (``****47``)."""
    return isinstance(value, str) and "*" in value


# The JSON schemas describe the legacy document's rules, for the OpenAPI description. The lax forms
# (numbers for text, `"False"`) are accepted for existing clients and deliberately not documented.

Text = Annotated[str, BeforeValidator(_parse_text), WithJsonSchema({"type": "string"})]
Country = Annotated[
    str,
    BeforeValidator(_parse_country),
    WithJsonSchema({"type": "string", "pattern": "^[A-Z]{2}$", "examples": ["US"]}),
]
_CURRENCY_SCHEMA = {"pattern": "^[A-Z]{3}$", "examples": ["USD"]}
Currency = Annotated[
    str, BeforeValidator(_parse_currency), WithJsonSchema({"type": "string", **_CURRENCY_SCHEMA})
]
ShownCurrency = Annotated[
    str | None,
    BeforeValidator(_parse_optional_currency),
    WithJsonSchema({"type": ["string", "null"], **_CURRENCY_SCHEMA}),
]
Email = Annotated[
    str,
    BeforeValidator(_parse_email),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^[^@\s]{1,256}@[^@\s]{1,256}$",
            "examples": ["ada@example.com"],
        }
    ),
]
Day = Annotated[
    str,
    BeforeValidator(_parse_day),
    WithJsonSchema({"type": "string", "format": "date", "examples": ["1990-12-10"]}),
]
Flag = Annotated[bool, BeforeValidator(_parse_boolean), WithJsonSchema({"type": "boolean"})]
Integer = Annotated[int, BeforeValidator(_parse_integer), WithJsonSchema({"type": "integer"})]
Ssn = Annotated[
    str,
    BeforeValidator(_parse_ssn),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]{9}$", "examples": ["900000001"]}),
]
Amount = Annotated[
    str,
    BeforeValidator(_parse_amount),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 1003,
            "pattern": r"^(0*[1-9][0-9]*(\.[0-9]{2})?|0+\.(0[1-9]|[1-9][0-9]))$",
            "examples": ["100.00"],
        }
    ),
]
ShownAmount = Annotated[
    str, BeforeValidator(_parse_amount_with_any_decimals), Amount.__metadata__[1]
]
RecipientType = Annotated[
    Literal["individual", "business"],
    BeforeValidator(_build_choice_parser("individual", "business")),
]
ObjectValue = BeforeValidator(_require_object)
ListValue = BeforeValidator(_require_list)


# Validation of a body against a shape.

FIELDS_THAT_MAY_BE_EMPTY = frozenset({"street2"})
"""Fields in which an empty string is a value (legacy interface, section 2, address)."""


_NESTED_TYPES = (dict, list)
"""A tuple, because `dict | list` would build a new union for each field."""


def drop_empty_fields(body: Any) -> Any:
    """Drops fields with ``""``, which clients send for fields that they leave out."""
    level = [body]
    while level:
        if "" in level:
            return _copy_without_empty_fields(body)
        level = list_nested_items(level)
    return body


def _copy_without_empty_fields(body: Any) -> Any:
    if isinstance(body, dict):
        fields = body.copy()
        for name, value in body.items():
            # Only nested values need a function call, because most fields are text.
            if isinstance(value, _NESTED_TYPES):
                fields[name] = _copy_without_empty_fields(value)
            elif value == "" and name not in FIELDS_THAT_MAY_BE_EMPTY:
                del fields[name]
        return fields
    if isinstance(body, list):
        return [*map(_copy_without_empty_fields, body)]
    return body


@cache
def build_type_adapter(shape: Any) -> TypeAdapter[Any]:
    """Returns the validator of a shape; those of all operations are built at import."""
    return TypeAdapter(shape)


def parse_body(shape: Any, body: Any) -> tuple[Any, tuple[Problem, ...]]:
    """Returns the normalized body without its invalid values, and a problem for each of these.

    Problems name the client's own fields. Raises Invalid if the body is not an object, if a
    required field is missing, or if there are more than ``MAX_ERRORS`` problems.
    """
    if not isinstance(body, dict):
        raise Invalid(Problem("invalid_field", "The body must be a JSON object."))
    parser = _BodyParser(shape)
    value = parser.parse(body)
    problems = tuple(dict.fromkeys(problem for found in parser.problem_rounds for problem in found))
    # Beyond the limit the rest was not validated, so the body must not reach a flow.
    if parser.has_too_many_problems:
        raise Invalid(*problems, omitted_count=parser.omitted_count)
    if parser.missing_fields:
        # A field that was invalid and therefore removed is missing now, but already reported.
        missing_by_field = {missing.field: missing for missing in parser.missing_fields}
        reported_fields = {re.split(r"[.\[]", missing.field or "")[0] for missing in problems}
        absent = [
            missing for name, missing in missing_by_field.items() if name not in reported_fields
        ]
        raise Invalid(*problems, *absent)
    return value, problems


def _is_long_list(value: Any) -> bool:
    return isinstance(value, LazySequence) or (isinstance(value, list) and len(value) > SLICE_SIZE)


def _slice_list(items: list[Any]) -> Iterator[list[Any]]:
    return (items[start : start + SLICE_SIZE] for start in range(0, len(items), SLICE_SIZE))


def _extract_list_from_page(name: str, value: Any) -> Any:
    """Returns the list inside a page: clients that send an object back send lists as pages."""
    if isinstance(value, dict) and isinstance(value.get(name), list | LazySequence):
        return value[name]
    return value


@dataclass(slots=True)
class _BodyParser:
    """Validates a body repeatedly, each time without the invalid values of the previous round.

    ``problem_rounds`` collects the problems of each round, over all slices of the long lists.
    """

    shape: Any
    problem_rounds: list[list[Problem]] = field(default_factory=list)
    missing_fields: list[Problem] = field(default_factory=list)
    omitted_count: int = 0
    """Problems found after ``MAX_ERRORS``: counted, but not built."""

    @property
    def has_too_many_problems(self) -> bool:
        return sum(map(len, self.problem_rounds)) + len(self.missing_fields) > MAX_ERRORS

    def parse(self, body: dict[str, Any]) -> Any:
        """Returns the normalized body; long lists are validated in slices to bound the memory."""
        body = {name: _extract_list_from_page(name, value) for name, value in body.items()}
        long_lists = {name: value for name, value in body.items() if _is_long_list(value)}
        # An empty list takes the place of each long one, so that its presence is still validated.
        value = self._parse_slice(
            self.shape, drop_empty_fields({**body, **{name: [] for name in long_lists}})
        )
        for name, rows in long_lists.items():
            if value and name in value:
                items = self._parse_list_in_slices(name, rows)
                result = CompressedSequence(items) if isinstance(rows, LazySequence) else [*items]
                # A list with a part that could not be repaired is removed as a whole, like any
                # invalid value.
                value |= {name: result} if len(result) == len(rows) else {name: None}
        return value

    def _parse_list_in_slices(self, name: str, rows: LazySequence | list[Any]) -> Iterator[Any]:
        shape, start = get_type_hints(self.shape, include_extras=True)[name], 0
        slices = rows.iterate_slices() if isinstance(rows, LazySequence) else _slice_list(rows)
        for chunk in slices:
            yield from self._parse_slice(shape, drop_empty_fields(chunk), (name, start)) or []
            start += len(chunk)

    def _parse_slice(self, shape: Any, body: Any, offset: tuple[str, int] | None = None) -> Any:
        """Normalizes a body, or a slice of a list at ``offset``; None if it cannot be repaired."""
        reported: set[Problem] = set()
        round_number = 0
        # Problems beyond the limit are only counted, which keeps a hostile body cheap.
        is_counted_only = self.has_too_many_problems
        while True:
            try:
                return build_type_adapter(shape).validate_python(body)
            except ValidationError as error:
                if is_counted_only:
                    self.omitted_count += error.error_count()
                    return None
                errors = error.errors(include_url=False, include_context=False, include_input=False)
            invalid = [detail for detail in errors if detail["type"] != "missing"]
            if not invalid:
                self.missing_fields += [_build_problem(detail, offset) for detail in errors]
                return None
            places = [detail["loc"] for detail in invalid]
            problems = [_build_problem(detail, offset) for detail in invalid]
            # No new problem: removing these values did not help, so a larger part must go.
            if reported.issuperset(problems):
                if offset:
                    return None  # An item that is not an object cannot be replaced by an empty one.
                # The emptied value was still invalid: remove the whole top-level field.
                places = [place[:1] for place in places]
            reported.update(problems)
            self.problem_rounds += [[]] if round_number == len(self.problem_rounds) else []
            self.problem_rounds[round_number] += problems
            round_number += 1
            body = _remove_values_at_places(body, places)


def _remove_values_at_places(value: Any, places: list[tuple[int | str, ...]]) -> Any:
    """Removes the values at these places; replaces list items by ``{}`` to keep the positions."""
    if not isinstance(value, dict | list):
        return value
    inner: dict[int | str, list[tuple[int | str, ...]]] = {}
    for place in places:
        if place:
            inner.setdefault(place[0], []).append(place[1:])
    if isinstance(value, list):
        return [
            _remove_nested_places(item, inner.get(number, []), {})
            for number, item in enumerate(value)
        ]
    fields = {
        name: _remove_nested_places(item, inner.get(name, []), _REMOVED)
        for name, item in value.items()
    }
    return {name: item for name, item in fields.items() if item is not _REMOVED}


_REMOVED = object()


def _remove_nested_places(value: Any, paths: list[tuple[int | str, ...]], default: Any) -> Any:
    if not paths:
        return value
    return (
        _remove_values_at_places(value, paths)
        if all(paths) and isinstance(value, dict | list)
        else default
    )


def _build_problem(error: Mapping[str, Any], offset: tuple[str, int] | None = None) -> Problem:
    """Builds the problem of a pydantic error; ``offset`` is the list and the start of the slice."""
    place = error["loc"]
    if offset:
        place = (offset[0], place[0] + offset[1], *place[1:])
    name = format_field_path(place)
    if error["type"] in ("missing", "empty_field"):
        return Problem("empty_field", f"{name} is required.", name)
    fault = error["msg"] if error["type"] == "invalid_field" else "has a value of the wrong type"
    return Problem("invalid_field", f"{name} {fault}.", name)


def format_field_path(place: tuple[str | int, ...]) -> str:
    """Formats ``("payments", 3, "sourceAmount")`` as ``payments[3].sourceAmount``."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
