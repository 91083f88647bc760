"""Translation between the neutral words of the documents and the configured words of each side.

Flows use the neutral words. The shapes in ``legacy.py`` and ``current.py`` mark every word, as a
value (``Word``) or as a field name (``WordKey``). Unmarked values are never changed.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from mappings.effects import JSON, Vocabulary
from mappings.failures import Problem
from mappings.field_types import Word
from mappings.shape_index import WORD_MARKS, ListNode, ObjectNode, index_shape, rewrite_marked_texts


def map_legacy_words(vocabulary: Vocabulary) -> dict[str, str]:
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


_NEUTRAL_WORDS = {
    **map_legacy_words(Vocabulary()),
    "batch_currency": "currency",
    "wallet_label": "wallet",
}


class VocabularyTranslator:
    """Translates the words of one side; ``words`` maps each word's name to the side's own word.

    With ``rejects_neutral_words``, a neutral word is unknown if the side has its own word for it: a
    name that the client's real service does not know must not be accepted by the gateway either.
    """

    def __init__(self, words: Mapping[str, str], *, rejects_neutral_words: bool = False) -> None:
        # Only differing words are stored, so in the default configuration nothing is translated.
        self._words = {name: word for name, word in words.items() if word != _NEUTRAL_WORDS[name]}
        self.is_identity = not self._words
        """Whether nothing is translated, so that a body need not be passed through at all."""
        self._rejects_neutral_words = rejects_neutral_words

    def translate_to_neutral(self, shape: Any, value: JSON) -> JSON:
        if not self._words:
            return value
        rename = self._translate_field_name_to_neutral
        return rewrite_marked_texts(
            index_shape(shape, WORD_MARKS), value, self._translate_word_to_neutral, rename
        )

    def translate_from_neutral(self, shape: Any, value: JSON) -> JSON:
        if not self._words:
            return value
        rewrite = partial(self._replace_word, source=_NEUTRAL_WORDS, target=self._words)
        rename = self._translate_field_name_from_neutral
        return rewrite_marked_texts(index_shape(shape, WORD_MARKS), value, rewrite, rename)

    def translate_field_path(self, shape: Any, name: str) -> str:
        """Translates a field path (``payout.accounts.wallet.address``) to this side's words."""
        node = index_shape(shape, WORD_MARKS) if self._words else None
        parts = []
        for part in name.split("."):
            key, bracket, index = part.partition("[")
            if isinstance(node, ListNode):
                node = node.item
            # A part below a field without marks has the same name on both sides.
            if isinstance(node, ObjectNode):
                part = self._translate_field_name_from_neutral(node, key)[1] + bracket + index  # noqa: PLW2901
                node = node.fields.get(key)
            parts.append(part)
        return ".".join(parts)

    def translate_problem(self, shape: Any, problem: Problem) -> Problem:
        """Translates the field of a problem, also within its message."""
        if problem.field is None:
            return problem
        name = self.translate_field_path(shape, problem.field)
        return Problem(problem.code, problem.message.replace(problem.field, name), name)

    def _translate_word_to_neutral(self, mark: Word, value: str) -> str:
        word = self._replace_word(mark, value, self._words, _NEUTRAL_WORDS)
        if self._rejects_neutral_words and word == value:
            replaced_words = {_NEUTRAL_WORDS[name] for name in mark.names if name in self._words}
            # This text equals no word, so that flows treat the value like any other unknown word.
            return f"not {value}" if value in replaced_words else value
        return word

    def _replace_word(
        self, mark: Word, value: str, source: Mapping[str, str], target: Mapping[str, str]
    ) -> str:
        for name in mark.names:
            if name in self._words and (
                value == source[name]
                or (mark.any_case and value.casefold() == source[name].casefold())
            ):
                return target[name]
        return value

    def _translate_field_name_from_neutral(self, node: ObjectNode, name: str) -> tuple[str, str]:
        return name, self._words.get(node.word_keys.get(name, ""), name)

    def _translate_field_name_to_neutral(
        self, node: ObjectNode, own_name: str
    ) -> tuple[str, str] | None:
        """Returns None for a neutral word if the side has its own: such a field is unknown."""
        for name, word in node.word_keys.items():
            if self._words.get(word) == own_name:
                return name, name
        return None if node.word_keys.get(own_name, "") in self._words else (own_name, own_name)


def build_legacy_translator(vocabulary: Vocabulary) -> VocabularyTranslator:
    return VocabularyTranslator(map_legacy_words(vocabulary), rejects_neutral_words=True)


def build_current_translator(vocabulary: Vocabulary) -> VocabularyTranslator:
    words = {
        "wallet": vocabulary.current_wallet,
        "avatar_url": vocabulary.current_avatar_url,
        "batch_currency": vocabulary.current_batch_currency,
        # The current document shows no summary: its payload is the legacy one (section 4.3).
        "service_total": vocabulary.legacy_service_total,
    }
    # If the legacy side uses the same wallet word and configures no label, the labels of a summary
    # pass unchanged, with the capitalization of the service.
    if (
        vocabulary.legacy_wallet_display_name
        or vocabulary.legacy_wallet_account_type
        or vocabulary.legacy_wallet != vocabulary.current_wallet
    ):
        words["wallet_label"] = vocabulary.current_wallet
    return VocabularyTranslator(words)
