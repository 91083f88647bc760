"""A JSON codec for comparisons that normalizes nothing.

Numbers keep their text, so ``1.0`` and ``1.00`` differ. Duplicate keys are refused.
"""

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from gateway.payloads import json_codec

JSON = Any
"""``str``, ``Number``, ``bool``, ``None``, ``dict`` or ``list``."""

MAX_DEPTH = 100
"""Maximum nesting of objects and lists; the documents have five levels at most."""


class InvalidJson(Exception):
    """The bytes are not one JSON text, or it has duplicate keys or is nested deeper than ``MAX_DEPTH``."""


ABSENT: Any = object()
"""A value that one side does not have; unlike None, which is null."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its text as written."""

    text: str


def loads_strict(data: bytes) -> JSON:
    """Decodes one JSON text; raises InvalidJson."""
    try:
        # Tolerates a byte order mark, as many clients do; its presence is compared separately.
        value = _DECODER.decode(data.decode("utf-8-sig"))
    except (ValueError, RecursionError, json_codec.DuplicateKeyError):
        value = ABSENT
    # Hostile input must not exhaust the stack.
    if value is ABSENT or json_codec.is_nested_deeper_than(value, MAX_DEPTH):
        raise InvalidJson  # outside the handler: the text of a cause would contain the input
    return value


def describe_json_type(value: JSON) -> str:
    """Returns the JSON type of a value for people: ``text``, ``number``, ``object``…"""
    return _TYPE_NAMES.get(type(value), "object")


def _reject_nan_and_infinity(_text: str) -> NoReturn:
    raise ValueError  # NaN and Infinity are not JSON


_TYPE_NAMES = {
    str: "text", Number: "number", int: "number", bool: "boolean", type(None): "null",
    list: "list", object: "nothing",
}  # fmt: skip

_DECODER = json.JSONDecoder(
    object_pairs_hook=json_codec.build_unique_object,
    parse_float=Number,
    parse_int=Number,
    parse_constant=_reject_nan_and_infinity,
)
