"""A JSON decoder for comparisons that normalizes nothing.

Numbers keep their text, so ``1.0`` and ``1.00`` differ; an object with duplicate keys keeps all
their values.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn

JSON = Any
"""``str``, ``Number``, ``bool``, ``None``, ``dict`` (or ``DuplicateKeyObject``) or ``list``."""


DEPTH = 100
"""Maximum nesting of objects and lists; the documents have five levels at most."""


class NotJson(Exception):
    """The bytes are not one JSON text, or it is nested deeper than ``MAX_DEPTH``."""


class Absent:
    """The type of ``ABSENT``: a value that one side does not have; unlike None, which is null."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT = Absent()


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its text as written."""

    text: str

    @property
    def value(self) -> Decimal:
        return Decimal(self.text)


class Doubled(dict[str, JSON]):
    """An object with duplicate keys. ``again`` maps these to all their values, in order."""

    __slots__ = ("again",)
    again: dict[str, list[JSON]]


def loads_strict(data: bytes) -> JSON:
    """Decodes one JSON text; raises InvalidJson."""
    try:
        value = _DECODER.decode(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        value = ABSENT
    if value is ABSENT or _is_deep(data, value):
        raise NotJson  # outside the handler: the text of a cause would contain the input
    return value


def describe_json_type(value: JSON) -> str:
    """The JSON type of a value for people: ``text``, ``number``, ``object``…"""
    return _KINDS.get(type(value), "object")


def _is_deep(data: bytes, value: JSON) -> bool:
    if data.count(b"[") + data.count(b"{") <= DEPTH:
        return False
    # Breadth first and without recursion: hostile input must not exhaust the stack.
    level = [value]
    for _ in range(DEPTH):
        nests = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for nest in nests for one in nest if isinstance(one, dict | list)]
        if not level:
            return False
    return True


def _object(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    doubled = Doubled(pairs)
    keys = [key for key, _ in pairs]
    doubled.again = {
        key: [item for other, item in pairs if other == key] for key in value if keys.count(key) > 1
    }
    return doubled


def _constant(_text: str) -> NoReturn:
    raise ValueError  # NaN and Infinity are not JSON


_KINDS = {str: "text", Number: "number", bool: "boolean", type(None): "null", list: "list"}

_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=Number, parse_int=Number, parse_constant=_constant
)


def dumps_strict(value: JSON) -> str:
    """Encodes a value of ``loads_strict`` as compact JSON, with numbers and duplicate keys unchanged."""
    if isinstance(value, Number):
        return value.text
    if isinstance(value, list):
        return f"[{','.join(map(dumps_strict, value))}]"
    if isinstance(value, dict):
        pairs = [(key, one) for key in value for one in _every(value, key)]
        return f"{{{','.join(f'{_text(key)}:{dumps_strict(one)}' for key, one in pairs)}}}"
    return _text(value)


def _every(value: dict[str, JSON], key: str) -> list[JSON]:
    if isinstance(value, Doubled) and key in value.again:
        return value.again[key]
    return [value[key]]


def _text(value: str | bool | None) -> str:
    return json.dumps(value, ensure_ascii=False)
