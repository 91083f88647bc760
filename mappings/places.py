"""Index of the marked values in a shape, so that translating a body visits only those.

The shapes in ``legacy.py`` and ``current.py`` mark ids (``Id``) and vocabulary words (``Word`` for
a value, ``WordKey`` for a field name). The index is built once for each shape. Parts of a body
without marks are neither walked nor copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from types import UnionType
from typing import Annotated, Any, TypeGuard, Union, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

from mappings.grammar import JSON
from mappings.kinds import Id, Key, Mentions, Word
from mappings.rows import Rows, map_rows

Mark = Id | Mentions | Word


@dataclass(frozen=True, slots=True)
class Object:
    fields: Mapping[str, Place | None]
    keys: Mapping[str, str]
    """Field name to vocabulary word, for the fields whose names are words."""
    marked: tuple[tuple[str, Place], ...]
    """The fields that contain marks."""


@dataclass(frozen=True, slots=True)
class Items:
    item: Place


@dataclass(frozen=True, slots=True)
class Value:
    mark: Mark


@dataclass(frozen=True, slots=True)
class Map:
    """An object with arbitrary keys, such as balances by currency."""

    name: Place | None
    item: Place | None


Marks = tuple[type[Mark] | type[Key], ...]
"""The marks to index: a search for ids need not visit words."""

Place = Object | Items | Map | Value

Rewrite = Callable[[Mark, str], str]
Rename = Callable[[Object, str], tuple[str, str] | None]
"""Returns a field's name in the shape and its new name, or None to drop the field."""


def rewrite_marked_texts(
    place: Place | None, value: JSON, rewrite: Rewrite, rename: Rename | None = None
) -> JSON:
    """Returns the value with all marked texts rewritten and fields renamed."""
    if place is None:
        return value
    if isinstance(value, str):
        return rewrite(place.mark, value) if isinstance(place, Value) else value
    if isinstance(value, list | Rows):
        # Some services send a list of the items instead of the map.
        item = place.item if isinstance(place, Items | Map) else None
        return (
            map_rows(lambda one: rewrite_marked_texts(item, one, rewrite, rename), value)
            if item
            else value
        )
    if not isinstance(value, dict):
        return value
    if isinstance(place, Map):
        return {
            rewrite_marked_texts(place.name, key, rewrite): rewrite_marked_texts(
                place.item, one, rewrite, rename
            )
            for key, one in value.items()
        }
    if not isinstance(place, Object):
        return value
    # Without renaming, unmarked fields keep their place, so copying the dict is enough.
    if rename is None:
        return _in_fields(place, value, rewrite)
    named = [(rename(place, name), one) for name, one in value.items()]
    return {
        new: rewrite_marked_texts(place.fields.get(name), one, rewrite, rename)
        for (name, new), one in ((both, one) for both, one in named if both)
    }


def _in_fields(place: Object, value: dict[str, JSON], rewrite: Rewrite) -> dict[str, JSON]:
    changed = value.copy()
    for name, its in place.marked:
        one = value.get(name)
        if isinstance(its, Value) and isinstance(one, str):  # The common case, without a call.
            changed[name] = rewrite(its.mark, one)
        elif one is not None:
            changed[name] = rewrite_marked_texts(its, one, rewrite)
    return changed


def iterate_marked_texts(place: Place | None, value: JSON) -> Iterator[tuple[Mark, str]]:
    """Iterates over the marked texts of a value, with their marks; lazy lists stay lazy."""
    if place is None:
        return iter(())
    found: list[tuple[Mark, str]] = []
    long: list[tuple[Place, Rows]] = []
    _collect(place, value, found, long)
    return chain(found, _in_rows(long)) if long else iter(found)


def _in_rows(long: list[tuple[Place, Rows]]) -> Iterator[tuple[Mark, str]]:
    for place, rows in long:
        # Collecting may append nested lazy lists to the list that is iterated over: they follow.
        for some in rows.slices():
            found: list[tuple[Mark, str]] = []
            _collect(Items(place), some, found, long)
            yield from found


def _collect(
    place: Place, value: JSON, found: list[tuple[Mark, str]], long: list[tuple[Place, Rows]]
) -> None:
    """Appends the marked texts to ``texts``, and lazy lists, unread, to ``lazy_lists``."""
    # Appending is faster than nested generators, and every response passes through here.
    if isinstance(place, Object):
        if isinstance(value, dict):
            _collect_fields(place, value, found, long)
    elif isinstance(value, str):
        if isinstance(place, Value):
            found.append((place.mark, value))
    elif isinstance(place, Items | Map):
        if isinstance(value, list | dict):
            for its_place, one in _within(place, value):
                if its_place is not None:
                    _collect(its_place, one, found, long)
        elif isinstance(value, Rows) and place.item is not None:
            long.append((place.item, value))


def _collect_fields(
    place: Object,
    value: dict[str, JSON],
    found: list[tuple[Mark, str]],
    long: list[tuple[Place, Rows]],
) -> None:
    for name, its in place.marked:
        one = value.get(name)
        if isinstance(its, Value):
            if isinstance(one, str):
                found.append((its.mark, one))
        elif one is not None:
            _collect(its, one, found, long)


def _within(
    place: Items | Map, value: list[JSON] | dict[str, JSON]
) -> Iterator[tuple[Place | None, JSON]]:
    """Iterates over the direct children of a list or map, with their nodes."""
    if isinstance(value, list):
        yield from ((place.item, one) for one in value)
    elif isinstance(place, Map):
        yield from ((place.name, name) for name in value)
        yield from ((place.item, one) for one in value.values())


WORDS: Marks = (Word, Key)
IDS: Marks = (Id, Mentions)


@cache
def locate_marks(shape: Any, marks: Marks = WORDS + IDS) -> Place | None:
    """Builds the index of these marks in a shape; None if the shape contains none."""
    origin = get_origin(shape)
    if origin is Annotated:
        inner, *all_marks = get_args(shape)
        mark = next(
            (one for one in all_marks if isinstance(one, marks) and _is_of_value(one)), None
        )
        return Value(mark) if mark else locate_marks(inner, marks)
    # The unions are optional types: at most one member contains marks.
    if origin in (Union, UnionType):
        return next((place for one in get_args(shape) if (place := locate_marks(one, marks))), None)
    if origin is list:
        item = locate_marks(get_args(shape)[0], marks)
        return Items(item) if item else None
    if origin is dict:
        name, item = (locate_marks(one, marks) for one in get_args(shape))
        return Map(name, item) if name or item else None
    return _object(shape, marks) if is_typeddict(shape) else None


def _is_of_value(mark: object) -> TypeGuard[Mark]:
    return isinstance(mark, Id | Mentions | Word)


def _object(shape: Any, marks: Marks) -> Object | None:
    hints = get_type_hints(shape, include_extras=True)
    fields = {name: locate_marks(hint, marks) for name, hint in hints.items()}
    keys = {name: key for name, hint in hints.items() if Key in marks and (key := _key(hint))}
    marked = tuple((name, place) for name, place in fields.items() if place)
    return Object(fields, keys, marked) if keys or marked else None


def _key(hint: Any) -> str | None:
    if get_origin(hint) is not Annotated:
        return None
    return next((mark.name for mark in get_args(hint)[1:] if isinstance(mark, Key)), None)
