"""Translation between the neutral words of the documents and the configured words of each side.

Flows use the neutral words. The shapes in ``legacy.py`` and ``current.py`` mark every word, as a
value (``Word``) or as a field name (``WordKey``). Unmarked values are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mappings.grammar import JSON, Vocabulary
from mappings.kinds import Word
from mappings.places import Items, Mark, Object, locate_marks, rewrite_marked_texts

_NEUTRAL = {
    "wallet": "wallet",
    "service": "service",
    "service_total": "ServiceTotal",
    "avatar_url": "avatarUrl",
    "batch_currency": "currency",
    "wallet_method_display": "Wallet",
    "bank_method_display": "Bank Transfer",
    "wallet_display_name": "Wallet",
    "bank_display_name": "Bank Transfer",
    "wallet_account_type": "wallet",
    "service_account_type": "service",
    "wallet_label": "wallet",
}


class Spelling:
    """Translates the words of one side; ``words`` maps each word's name to the side's own word.

    With ``rejects_neutral_words``, a neutral word is unknown if the side has its own word for it: a
    name that the client's real service does not know must not be accepted by the gateway either.
    """

    def __init__(self, words: Mapping[str, str], *, knows_no_other: bool = False) -> None:
        # Only words that differ are kept: in the default configuration nothing is translated.
        self._words = {name: word for name, word in words.items() if word != _NEUTRAL[name]}
        self._knows_no_other = knows_no_other

    def inward(self, shape: Any, value: JSON) -> JSON:
        if not self._words:
            return value
        return rewrite_marked_texts(
            locate_marks(shape), value, self._neutral_word, self._neutral_field
        )

    def outward(self, shape: Any, value: JSON) -> JSON:
        if not self._words:
            return value
        return rewrite_marked_texts(locate_marks(shape), value, self._own_word, self._own_field)

    def field(self, shape: Any, name: str) -> str:
        """Translates a field path (``payout.accounts.wallet.address``) to this side's words."""
        place = locate_marks(shape) if self._words else None
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
        return self._reworded(mark, value, _NEUTRAL, self._words)

    def _neutral_word(self, mark: Mark, value: str) -> str:
        word = self._reworded(mark, value, self._words, _NEUTRAL)
        is_other = (
            word == value and isinstance(mark, Word) and self._is_spelled_otherwise(mark, value)
        )
        # This text equals no word, so flows treat the value like any other unknown word.
        return f"not {value}" if is_other and self._knows_no_other else word

    def _is_spelled_otherwise(self, mark: Word, value: str) -> bool:
        return any(name in self._words and value == _NEUTRAL[name] for name in mark.names)

    def _reworded(
        self, mark: Mark, value: str, from_: Mapping[str, str], to: Mapping[str, str]
    ) -> str:
        if not isinstance(mark, Word):
            return value
        for name in mark.names:
            if name in self._words and (
                value == from_[name]
                or (mark.any_case and value.casefold() == from_[name].casefold())
            ):
                return to[name]
        return value

    def _own_field(self, place: Object, name: str) -> tuple[str, str]:
        return name, self._words.get(place.keys.get(name, ""), name)

    def _neutral_field(self, place: Object, spelled: str) -> tuple[str, str] | None:
        """Returns None for a neutral word if the side has its own: such a field is unknown."""
        for name, word in place.keys.items():
            if self._words.get(word) == spelled:
                return name, name
        return None if place.keys.get(spelled, "") in self._words else (spelled, spelled)


def map_legacy_words(vocabulary: Vocabulary) -> dict[str, str]:
    """Maps the name of each word to the word of the legacy side."""
    wallet, service = vocabulary.legacy_wallet, vocabulary.legacy_service
    display = wallet[:1].upper() + wallet[1:]
    return {
        "wallet": wallet,
        "service": service,
        "service_total": vocabulary.legacy_service_total,
        "avatar_url": vocabulary.legacy_avatar_url,
        "wallet_method_display": vocabulary.legacy_wallet_method_display or display,
        "bank_method_display": vocabulary.legacy_bank_method_display,
        "wallet_display_name": vocabulary.legacy_wallet_display_name or display,
        "bank_display_name": vocabulary.legacy_bank_display_name,
        "wallet_account_type": vocabulary.legacy_wallet_account_type or wallet,
        "service_account_type": vocabulary.legacy_service_account_type or service,
    }


def build_legacy_spelling(vocabulary: Vocabulary) -> Spelling:
    return Spelling(map_legacy_words(vocabulary), knows_no_other=True)


def build_current_spelling(vocabulary: Vocabulary) -> Spelling:
    words = {
        "wallet": vocabulary.current_wallet,
        "avatar_url": vocabulary.current_avatar_url,
        "batch_currency": vocabulary.current_batch_currency,
    }
    # If the legacy side uses the same wallet word and configures no label, the labels of a summary
    # pass unchanged, with the capitalization of the service.
    if (
        vocabulary.legacy_wallet_display_name
        or vocabulary.legacy_wallet_account_type
        or vocabulary.legacy_wallet != vocabulary.current_wallet
    ):
        words["wallet_label"] = vocabulary.current_wallet
    return Spelling(words)
