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

from mappings.grammar import MAX_ERRORS, Invalid, Problem
from mappings.rows import SLICE, Packed, Rows

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

    ``any_case`` ignores case: it is for labels, which services capitalize differently.
    """

    names: tuple[str, ...]
    any_case: bool

    def __init__(self, *names: WordName, any_case: bool = False) -> None:
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "any_case", any_case)


@dataclass(frozen=True, slots=True)
class Key:
    """Marks a field whose *name* is a vocabulary word."""

    name: Literal["wallet", "service", "service_total", "avatar_url", "batch_currency"]


@dataclass(frozen=True, slots=True)
class Id:
    """Marks an id. Legacy clients get an alias id for one that is too long for them."""

    kind: Literal["recipient", "batch", "payment"]


@dataclass(frozen=True, slots=True)
class Mentions:
    """Marks free text that may mention ids; known ids in it are translated."""


def wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError("invalid_field", "{message}", {"message": message})


def missing() -> PydanticCustomError:
    return PydanticCustomError("empty_field", "is required")


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    # A bool is an int in Python, but is never meant as text.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise wrong("must be text")


def _object(value: Any) -> Any:
    if isinstance(value, dict):
        return value
    raise wrong("must be an object")


def _list(value: Any) -> Any:
    if value is None:
        raise missing()
    if isinstance(value, list):
        return value
    raise wrong("must be a list")


def _one_of(*words: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if value is None:
            raise missing()
        if isinstance(value, str) and value in words:
            return value
        raise wrong(f"must be one of: {', '.join(words)}")

    return check


@lru_cache(maxsize=1024)
def to_alpha_2(code: str) -> str | None:
    """Returns the ISO 3166-1 alpha-2 code for a code of two or three letters, or None."""
    code = code.strip().upper()
    if not re.fullmatch("[A-Z]{2,3}", code):
        return None
    if code in ("XK", "XKX"):  # Kosovo: a user-assigned code that banks use, not in the ISO table.
        return "XK"
    countries = pycountry.countries
    found = countries.get(alpha_2=code) if len(code) == 2 else countries.get(alpha_3=code)
    return str(found.alpha_2) if found else None


def _country(value: Any) -> Any:
    if isinstance(value, str) and (found := to_alpha_2(value)):
        return found
    raise wrong("must be a two-letter country code (ISO 3166-1 alpha-2)")


def _currency(value: Any) -> Any:
    # Clients that send a whole object back send the currency in the form of the answers.
    while isinstance(value, dict):
        value = value.get("code") or value.get("currency")
    if isinstance(value, str) and re.fullmatch("[A-Za-z]{3}", value):
        return value.upper()
    raise wrong("must be a three-letter currency code (ISO 4217)")


def _currency_or_none(value: Any) -> Any:
    if value is None or (isinstance(value, dict) and not _code_of(value)):
        return None
    return _currency(value)


def _code_of(value: Any) -> Any:
    while isinstance(value, dict):
        value = value.get("code") or value.get("currency")
    return value


def _email(value: Any) -> Any:
    if value is None:
        raise missing()
    # Deliberately loose: the service decides which addresses it accepts.
    if isinstance(value, str) and re.fullmatch(r"[^@\s]{1,256}@[^@\s]{1,256}", value):
        return value
    raise wrong("must be an email address")


def _day(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value[:10]):
        try:
            date.fromisoformat(value[:10])
        except ValueError:
            pass
        else:
            # Answers show full timestamps, which clients send back.
            if len(value) == 10 or value[10] == "T":
                return value[:10]
    raise wrong("must be a date written YYYY-MM-DD")


def _flag(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise wrong("must be true or false")


def _whole(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value):
        return int(value)
    raise wrong("must be a whole number")


# The bound on the digits keeps conversions to decimals cheap for hostile input.
_AN_AMOUNT = re.compile(r"[0-9]{1,1000}(\.[0-9]{2})?")


def _amount(value: Any) -> Any:
    """Parses a positive amount: digits, optionally followed by a point and exactly two digits."""
    # The amount stays text, so that it is sent exactly as written.
    text = value
    if not isinstance(value, str):
        if value is None:
            raise missing()
        if isinstance(value, int | Decimal) and not isinstance(value, bool):
            text = str(value)
    if fault := check_amount(text):
        raise wrong(fault)
    return text


def check_amount(text: Any) -> str | None:
    """Returns the fault of an amount to be paid, or None if it is valid."""
    if not isinstance(text, str) or not _AN_AMOUNT.fullmatch(text):
        return "must be an amount: digits, and either two decimals or none"
    # An amount of zero consists of zeros and a point only; comparing text avoids a conversion.
    return None if text.strip("0.") else "must be more than zero"


def _shown_amount(value: Any) -> Any:
    """Parses an amount that may come from an answer; the caller validates it if it is changed."""
    text = str(value) if isinstance(value, int | Decimal) else value
    if isinstance(text, str) and re.fullmatch(r"[0-9]{1,1000}(\.[0-9]{1,1000})?", text):
        return text
    return _amount(value)


def _ssn(value: Any) -> Any:
    value = _text(value)
    if re.fullmatch("[0-9]{9}", value) or is_mask(value):
        return value
    raise wrong("must be nine digits, without spaces or hyphens")


def is_mask(value: Any) -> bool:
    """Tells if a value is a masked identifier as answers show it (``****47``)."""
    return isinstance(value, str) and "*" in value


# The JSON schemas describe the legacy document's rules, for the OpenAPI description. The lax forms
# (numbers for text, `"False"`) are accepted for existing clients and deliberately not documented.

Text = Annotated[str, BeforeValidator(_text), WithJsonSchema({"type": "string"})]
Country = Annotated[
    str,
    BeforeValidator(_country),
    WithJsonSchema({"type": "string", "pattern": "^[A-Z]{2}$", "examples": ["US"]}),
]
_CURRENCY = {"pattern": "^[A-Z]{3}$", "examples": ["USD"]}
Currency = Annotated[
    str, BeforeValidator(_currency), WithJsonSchema({"type": "string", **_CURRENCY})
]
ShownCurrency = Annotated[
    str | None,
    BeforeValidator(_currency_or_none),
    WithJsonSchema({"type": ["string", "null"], **_CURRENCY}),
]
Email = Annotated[
    str,
    BeforeValidator(_email),
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
    BeforeValidator(_day),
    WithJsonSchema({"type": "string", "format": "date", "examples": ["1990-12-10"]}),
]
Flag = Annotated[bool, BeforeValidator(_flag), WithJsonSchema({"type": "boolean"})]
Whole = Annotated[int, BeforeValidator(_whole), WithJsonSchema({"type": "integer"})]
Ssn = Annotated[
    str,
    BeforeValidator(_ssn),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]{9}$", "examples": ["900000001"]}),
]
Amount = Annotated[
    str,
    BeforeValidator(_amount),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 1003,
            "pattern": r"^(0*[1-9][0-9]*(\.[0-9]{2})?|0+\.(0[1-9]|[1-9][0-9]))$",
            "examples": ["100.00"],
        }
    ),
]
ShownAmount = Annotated[str, BeforeValidator(_shown_amount), Amount.__metadata__[1]]
RecipientType = Annotated[
    Literal["individual", "business"],
    BeforeValidator(_one_of("individual", "business")),
]
An_object = BeforeValidator(_object)
A_list = BeforeValidator(_list)


# Validation of a body against a shape.

MAY_BE_EMPTY = frozenset({"street2"})
"""Fields in which an empty string is a value (legacy interface, section 2, address)."""


_NESTS = (dict, list)
"""A tuple, because `dict | list` would build a new union for each field."""


def drop_empty_fields(body: Any) -> Any:
    """Drops fields with ``""``, which clients send for fields that they leave out."""
    if isinstance(body, dict):
        kept = body.copy()
        for name, value in body.items():
            if isinstance(value, _NESTS):
                kept[name] = drop_empty_fields(value)
            elif value == "" and name not in MAY_BE_EMPTY:
                del kept[name]
        return kept
    if isinstance(body, list):
        return [*map(drop_empty_fields, body)]
    return body


@cache
def build_type_adapter(shape: Any) -> TypeAdapter[Any]:
    """Returns the validator of a shape; those of all operations are built at import."""
    return TypeAdapter(shape)


def read(shape: Any, body: Any) -> tuple[Any, tuple[Problem, ...]]:
    """Returns the normalized body without its invalid values, and a problem for each of these.

    Problems name the client's own fields. Raises Invalid if the body is not an object, if a
    required field is missing, or if there are more than ``MAX_ERRORS`` problems.
    """
    if not isinstance(body, dict):
        raise Invalid(Problem("invalid_field", "The body must be a JSON object."))
    found = _Found(shape)
    value = found.read(body)
    problems = tuple(dict.fromkeys(one for those in found.rounds for one in those))
    # Beyond the limit the rest was not validated, so the body must not reach a flow.
    if found.is_full:
        raise Invalid(*problems, more=found.uncounted)
    if found.missing:
        # A field that was invalid and therefore removed is missing now, but already reported.
        told = {problem.field: problem for problem in found.missing}
        named = {re.split(r"[.\[]", problem.field or "")[0] for problem in problems}
        absent = [problem for name, problem in told.items() if name not in named]
        raise Invalid(*problems, *absent)
    return value, problems


def _is_long(value: Any) -> bool:
    return isinstance(value, Rows) or (isinstance(value, list) and len(value) > SLICE)


def _slices(items: list[Any]) -> Iterator[list[Any]]:
    return (items[start : start + SLICE] for start in range(0, len(items), SLICE))


def _unpaged(name: str, value: Any) -> Any:
    """Returns the list inside a page: clients that send an object back send lists as pages."""
    if isinstance(value, dict) and isinstance(value.get(name), list | Rows):
        return value[name]
    return value


@dataclass(slots=True)
class _Found:
    """Validates a body repeatedly, each time without the invalid values of the previous round.

    ``problem_rounds`` collects the problems of each round, over all slices of the long lists.
    """

    shape: Any
    rounds: list[list[Problem]] = field(default_factory=list)
    missing: list[Problem] = field(default_factory=list)
    uncounted: int = 0
    """Problems found after ``MAX_ERRORS``: counted, but not built."""

    @property
    def is_full(self) -> bool:
        return sum(map(len, self.rounds)) + len(self.missing) > MAX_ERRORS

    def read(self, body: dict[str, Any]) -> Any:
        """Returns the normalized body; long lists are validated in slices to bound the memory."""
        body = {name: _unpaged(name, value) for name, value in body.items()}
        long = {name: value for name, value in body.items() if _is_long(value)}
        # An empty list takes the place of each long one, so that its presence is still validated.
        value = self._taken(self.shape, drop_empty_fields({**body, **{name: [] for name in long}}))
        for name, rows in long.items():
            if value and name in value:
                found = self._rows(name, rows)
                read = Packed(found) if isinstance(rows, Rows) else [*found]
                value |= {name: read} if len(read) == len(rows) else {name: None}
        return value

    def _rows(self, name: str, rows: Rows | list[Any]) -> Iterator[Any]:
        shape, start = get_type_hints(self.shape, include_extras=True)[name], 0
        slices = rows.slices() if isinstance(rows, Rows) else _slices(rows)
        for some in slices:
            yield from self._taken(shape, drop_empty_fields(some), (name, start)) or []
            start += len(some)

    def _taken(self, shape: Any, body: Any, at: tuple[str, int] | None = None) -> Any:
        """Normalizes a body, or a slice of a list at ``offset``; None if it cannot be repaired."""
        told: set[Problem] = set()
        number = 0
        is_counted_only = self.is_full
        while True:
            try:
                return build_type_adapter(shape).validate_python(body)
            except ValidationError as error:
                if is_counted_only:
                    self.uncounted += error.error_count()
                    return None
                found = error.errors(include_url=False, include_context=False, include_input=False)
            wrong_ones = [one for one in found if one["type"] != "missing"]
            if not wrong_ones:
                self.missing += [_problem(one, at) for one in found]
                return None
            places = [one["loc"] for one in wrong_ones]
            problems = [_problem(one, at) for one in wrong_ones]
            # No new problem: removing these values did not help, so a larger part must go.
            if told.issuperset(problems):
                if at:
                    return None  # An item that is not an object cannot be replaced by an empty one.
                # The emptied value was still invalid: remove the whole top-level field.
                places = [place[:1] for place in places]
            told.update(problems)
            self.rounds += [[]] if number == len(self.rounds) else []
            self.rounds[number] += problems
            number += 1
            body = _without(body, places)


def _without(value: Any, places: list[tuple[int | str, ...]]) -> Any:
    """Removes the values at these places; replaces list items by ``{}`` to keep the positions."""
    if not isinstance(value, dict | list):
        return value
    inside: dict[int | str, list[tuple[int | str, ...]]] = {}
    for place in places:
        if place:
            inside.setdefault(place[0], []).append(place[1:])
    if isinstance(value, list):
        return [_cleaned(one, inside.get(number, []), {}) for number, one in enumerate(value)]
    cleaned = {name: _cleaned(one, inside.get(name, []), _GONE) for name, one in value.items()}
    return {name: one for name, one in cleaned.items() if one is not _GONE}


_GONE = object()


def _cleaned(value: Any, inner: list[tuple[int | str, ...]], gone: Any) -> Any:
    if not inner:
        return value
    return _without(value, inner) if all(inner) and isinstance(value, dict | list) else gone


def _problem(error: Mapping[str, Any], at: tuple[str, int] | None = None) -> Problem:
    """Builds the problem of a pydantic error; ``offset`` is the list and the start of the slice."""
    place = error["loc"]
    if at:
        place = (at[0], place[0] + at[1], *place[1:])
    named = format_field_path(place)
    if error["type"] in ("missing", "empty_field"):
        return Problem("empty_field", f"{named} is required.", named)
    what = error["msg"] if error["type"] == "invalid_field" else "has a value of the wrong type"
    return Problem("invalid_field", f"{named} {what}.", named)


def format_field_path(place: tuple[str | int, ...]) -> str:
    """Formats ``("payments", 3, "sourceAmount")`` as ``payments[3].sourceAmount``."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
