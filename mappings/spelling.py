"""The vocabulary's words, spelled where they stand.

Flows use the documents' neutral words. The shapes of ``legacy.py`` and ``current.py`` mark each
place where a word stands, as a value (``Word``) or as a field's name (``Key``); here a value of
such a shape is brought from a side's own spelling to the neutral one (``inward``) or back
(``outward``). Nothing that is not marked is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mappings.grammar import JSON, Vocabulary
from mappings.kinds import Word
from mappings.places import Items, Mark, Object, place_of, rewritten

_NEUTRAL = {
    "wallet": "wallet",
    "service": "service",
    "service_total": "ServiceTotal",
    "avatar_url": "avatarUrl",
    "batch_currency": "currency",
}


class Spelling:
    """One side's spelling of the words; ``words`` maps each word's name to its spelling."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = {name: word for name, word in words.items() if word != _NEUTRAL[name]}

    def inward(self, shape: Any, value: JSON) -> JSON:
        if not self._words:
            return value
        return rewritten(place_of(shape), value, self._neutral_word, self._neutral_field)

    def outward(self, shape: Any, value: JSON) -> JSON:
        if not self._words:
            return value
        return rewritten(place_of(shape), value, self._own_word, self._own_field)

    def field(self, shape: Any, name: str) -> str:
        """A field's full name (``payout.accounts.wallet.address``) in this side's spelling."""
        place = place_of(shape) if self._words else None
        parts = []
        for part in name.split("."):
            key, bracket, index = part.partition("[")
            if isinstance(place, Items):
                place = place.item
            if isinstance(place, Object):
                part = self._own_field(place, key)[1] + bracket + index  # noqa: PLW2901
                place = place.fields.get(key)
            parts.append(part)
        return ".".join(parts)

    def _own_word(self, mark: Mark, value: str) -> str:
        for name in self._changed(mark):
            value = _reworded(value, _NEUTRAL[name], self._words[name])
        return value

    def _neutral_word(self, mark: Mark, value: str) -> str:
        for name in self._changed(mark):
            value = _reworded(value, self._words[name], _NEUTRAL[name])
        return value

    def _changed(self, mark: Mark) -> list[str]:
        names = mark.names if isinstance(mark, Word) else ()
        return [name for name in names if name in self._words]

    def _own_field(self, place: Object, name: str) -> tuple[str, str]:
        return name, self._words.get(place.keys.get(name, ""), name)

    def _neutral_field(self, place: Object, spelled: str) -> tuple[str, str] | None:
        """None for a neutral word where this side has its own: there it is no field."""
        for name, word in place.keys.items():
            if self._words.get(word) == spelled:
                return name, name
        return None if place.keys.get(spelled, "") in self._words else (spelled, spelled)


def _reworded(value: str, from_: str, to: str) -> str:
    """A word as it is, or as it begins a display text."""
    if value == from_:
        return to
    if value == _display(from_):
        return _display(to)
    return value


def _display(word: str) -> str:
    return word[:1].upper() + word[1:]


def legacy_words(vocabulary: Vocabulary) -> dict[str, str]:
    """Each word's name to its spelling on the legacy side."""
    return {
        "wallet": vocabulary.legacy_wallet,
        "service": vocabulary.legacy_service,
        "service_total": vocabulary.legacy_service_total,
        "avatar_url": vocabulary.legacy_avatar_url,
    }


def of_legacy(vocabulary: Vocabulary) -> Spelling:
    return Spelling(legacy_words(vocabulary))


def of_current(vocabulary: Vocabulary) -> Spelling:
    return Spelling(
        {
            "wallet": vocabulary.current_wallet,
            "avatar_url": vocabulary.current_avatar_url,
            "batch_currency": vocabulary.current_batch_currency,
        }
    )
