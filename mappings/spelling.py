"""The vocabulary's words, spelled where they stand.

Flows use the documents' neutral words. The shapes of ``legacy.py`` and ``current.py`` mark each
place where a word stands, as a value (``Word``) or as a field's name (``Key``); here a value of
such a shape is brought from a side's own spelling to the neutral one (``inward``) or back
(``outward``). Nothing that is not marked is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

from mappings.grammar import JSON, Vocabulary
from mappings.kinds import Key, Word

_NEUTRAL = {
    "wallet": "wallet",
    "service": "service",
    "service_total": "ServiceTotal",
    "avatar_url": "avatarUrl",
}


@dataclass(frozen=True, slots=True)
class _Object:
    fields: Mapping[str, _Place | None]
    keys: Mapping[str, str]
    """The fields whose names are words: field to word, empty for every other field."""


@dataclass(frozen=True, slots=True)
class _List:
    item: _Place


@dataclass(frozen=True, slots=True)
class _Value:
    word: str


_Place = _Object | _List | _Value


class Spelling:
    """One side's spelling of the words; ``words`` maps each word's name to its spelling."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self._outward = {name: word for name, word in words.items() if word != _NEUTRAL[name]}

    def inward(self, shape: Any, value: JSON) -> JSON:
        place = _place(shape) if self._outward else None
        return self._into(place, value) if place else value

    def outward(self, shape: Any, value: JSON) -> JSON:
        place = _place(shape) if self._outward else None
        return self._out(place, value) if place else value

    def field(self, shape: Any, name: str) -> str:
        """A field's full name (``payout.accounts.wallet.address``) in this side's spelling."""
        place = _place(shape) if self._outward else None
        return self._spelled(place, name) if place else name

    def _spelled(self, place: _Place | None, name: str) -> str:
        parts = []
        for part in name.split("."):
            key, bracket, index = part.partition("[")
            if isinstance(place, _List):
                place = place.item
            if not isinstance(place, _Object):
                parts.append(part)
                continue
            word = self._outward.get(place.keys.get(key, ""), key)
            parts.append(word + bracket + index)
            place = place.fields.get(key)
        return ".".join(parts)

    def _out(self, place: _Place | None, value: JSON) -> JSON:
        match place, value:
            case _Value(word), str() if word in self._outward:
                return _reworded(value, _NEUTRAL[word], self._outward[word])
            case _List(item), list():
                return [self._out(item, one) for one in value]
            case _Object(fields, keys), dict():
                return {
                    self._outward.get(keys.get(name, ""), name): self._out(fields.get(name), one)
                    for name, one in value.items()
                }
        return value

    def _into(self, place: _Place | None, value: JSON) -> JSON:
        match place, value:
            case _Value(word), str() if word in self._outward:
                return _reworded(value, self._outward[word], _NEUTRAL[word])
            case _List(item), list():
                return [self._into(item, one) for one in value]
            case _Object(fields, _keys), dict():
                neutral = [(self._neutral(place, name), one) for name, one in value.items()]
                return {name: self._into(fields.get(name), one) for name, one in neutral if name}
        return value

    def _neutral(self, place: _Object, spelled: str) -> str | None:
        """The field that a name stands for; None for a neutral word where this side has its own."""
        for name, word in place.keys.items():
            if self._outward.get(word) == spelled:
                return name
        return None if place.keys.get(spelled, "") in self._outward else spelled


def _reworded(value: str, from_: str, to: str) -> str:
    """A word as it is, or as it begins a display text."""
    if value == from_:
        return to
    if value == _display(from_):
        return _display(to)
    return value


def _display(word: str) -> str:
    return word[:1].upper() + word[1:]


def of_legacy(vocabulary: Vocabulary) -> Spelling:
    return Spelling(
        {
            "wallet": vocabulary.legacy_wallet,
            "service": vocabulary.legacy_service,
            "service_total": vocabulary.legacy_service_total,
            "avatar_url": vocabulary.legacy_avatar_url,
        }
    )


def of_current(vocabulary: Vocabulary) -> Spelling:
    return Spelling(
        {"wallet": vocabulary.current_wallet, "avatar_url": vocabulary.current_avatar_url}
    )


@cache
def _place(shape: Any) -> _Place | None:
    """Where words stand in a shape; None where none does."""
    origin = get_origin(shape)
    if origin is Annotated:
        inner, *marks = get_args(shape)
        word = next((mark.name for mark in marks if isinstance(mark, Word)), None)
        return _Value(word) if word else _place(inner)
    if origin in (Union, UnionType):
        return next((place for one in get_args(shape) if (place := _place(one))), None)
    if origin is list:
        item = _place(get_args(shape)[0])
        return _List(item) if item else None
    return _object(shape) if is_typeddict(shape) else None


def _object(shape: Any) -> _Object | None:
    hints = get_type_hints(shape, include_extras=True)
    fields = {name: _place(hint) for name, hint in hints.items()}
    keys = {name: key for name, hint in hints.items() if (key := _key(hint))}
    return _Object(fields, keys) if keys or any(fields.values()) else None


def _key(hint: Any) -> str | None:
    if get_origin(hint) is not Annotated:
        return None
    return next((mark.name for mark in get_args(hint)[1:] if isinstance(mark, Key)), None)
