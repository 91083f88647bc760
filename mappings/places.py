"""Where marked values stand in a shape.

The shapes of ``legacy.py`` and ``current.py`` mark ids (``Id``) and the vocabulary's words (``Word``
for a value, ``Key`` for a field's name). A shape is read once; what has no mark in it is not
walked at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

from mappings.grammar import JSON
from mappings.kinds import Id, Key, Mentions, Word

Mark = Id | Mentions | Word


@dataclass(frozen=True, slots=True)
class Object:
    fields: Mapping[str, Place | None]
    keys: Mapping[str, str]
    """The fields whose names are words: field to word, no entry for any other."""


@dataclass(frozen=True, slots=True)
class Items:
    item: Place


@dataclass(frozen=True, slots=True)
class Value:
    mark: Mark


@dataclass(frozen=True, slots=True)
class Map:
    """An object whose field names are values, such as balances by currency."""

    name: Place | None
    item: Place | None


Place = Object | Items | Map | Value

Rewrite = Callable[[Mark, str], str]
Rename = Callable[[Object, str], tuple[str, str] | None]
"""A field's name as the shape has it, and as it is to be; None drops the field."""


def _as_it_is(_place: Object, name: str) -> tuple[str, str]:
    return name, name


def rewritten(
    place: Place | None, value: JSON, rewrite: Rewrite, rename: Rename = _as_it_is
) -> JSON:
    """The value with every marked text rewritten, and fields renamed."""
    match place, value:
        case Value(mark), str():
            return rewrite(mark, value)
        case Items(item), list():
            return [rewritten(item, one, rewrite, rename) for one in value]
        case Map(name, item), dict():
            return {
                rewritten(name, key, rewrite): rewritten(item, one, rewrite, rename)
                for key, one in value.items()
            }
        case Map(_, item), list():  # the same things, listed
            return [rewritten(item, one, rewrite, rename) for one in value]
        case Object(fields, _keys), dict():
            named = [(rename(place, name), one) for name, one in value.items()]
            return {
                new: rewritten(fields.get(name), one, rewrite, rename)
                for (name, new), one in ((both, one) for both, one in named if both)
            }
    return value


@cache
def place_of(shape: Any) -> Place | None:
    """Where marks stand in a shape; None where none does."""
    origin = get_origin(shape)
    if origin is Annotated:
        inner, *marks = get_args(shape)
        mark = next((mark for mark in marks if isinstance(mark, Id | Mentions | Word)), None)
        return Value(mark) if mark else place_of(inner)
    if origin in (Union, UnionType):
        return next((place for one in get_args(shape) if (place := place_of(one))), None)
    if origin is list:
        item = place_of(get_args(shape)[0])
        return Items(item) if item else None
    if origin is dict:
        name, item = map(place_of, get_args(shape))
        return Map(name, item) if name or item else None
    return _object(shape) if is_typeddict(shape) else None


def _object(shape: Any) -> Object | None:
    hints = get_type_hints(shape, include_extras=True)
    fields = {name: place_of(hint) for name, hint in hints.items()}
    keys = {name: key for name, hint in hints.items() if (key := _key(hint))}
    return Object(fields, keys) if keys or any(fields.values()) else None


def _key(hint: Any) -> str | None:
    if get_origin(hint) is not Annotated:
        return None
    return next((mark.name for mark in get_args(hint)[1:] if isinstance(mark, Key)), None)
