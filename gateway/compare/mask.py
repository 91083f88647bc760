"""Masks values for display.

By default, values that may be personal data are masked: type and shape stay visible, letters and
digits do not (``a***@e***``, ``****47``). The API keys of both sides are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from urllib.parse import unquote

from gateway.compare import paths
from gateway.compare.operations import is_public_path_part
from gateway.compare.paths import Path
from gateway.compare.pii import (
    LABEL_WORDS,
    MESSAGE_WORDS,
    PiiClass,
    classify_text,
    is_non_personal_key,
    is_non_personal_number,
)
from gateway.compare.strict_json import ABSENT, Number, describe_json_type

MAX_VALUE_CHARS = 160
"""Longer values are cut off."""

API_KEY_PLACEHOLDER = "(an API key)"

MIN_API_KEY_CHARS = 6
"""A shorter text is not an API key, and replacing it would garble ordinary words."""

_PLACEHOLDER = re.compile(r"(\$\{[\w-]+\})")
"""A placeholder for a captured value."""

_JSON_LITERALS = {True: "true", False: "false", None: "null"}


@dataclass(frozen=True, slots=True)
class TextSegment:
    """A part of a displayed value. ``differs``: the other side has something else here."""

    text: str
    differs: bool = False


@dataclass(frozen=True, slots=True)
class DisplayValue:
    """A value for display. ``kind`` is its JSON type, or ``nothing`` if it is absent."""

    kind: str
    segments: tuple[TextSegment, ...]

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Redactor:
    """Masks values and paths. ``api_keys`` are removed from every text."""

    api_keys: tuple[str, ...] = ()
    is_unmasked: bool = False

    def redact_value(self, path: Path, value: Any) -> DisplayValue:
        return DisplayValue(_describe_type(value), (TextSegment(self._format_value(path, value)),))

    def redact_pair_and_mark_differences(
        self, path: Path, control: Any, candidate: Any
    ) -> tuple[DisplayValue, DisplayValue]:
        """Redacts both values and marks the parts that differ."""
        control_display, candidate_display = (
            self.redact_value(path, control),
            self.redact_value(path, candidate),
        )
        if isinstance(control, str) and isinstance(candidate, str):
            return _mark_differences(control_display, candidate_display, control, candidate)
        return _mark_differences(
            control_display, candidate_display, control_display.text, candidate_display.text
        )

    def redact_path(self, path: Path) -> str:
        return paths.format_path(tuple(map(self._redact_part, path)))

    def redact_normal_path(self, path: Path) -> str:
        return paths.normalize_path(tuple(map(self._redact_part, path)))

    def _redact_part(self, part: str | int) -> str | int:
        return part if isinstance(part, int | paths.PseudoKey) else self.redact_object_key(part)

    def redact_object_key(self, key: str) -> str:
        return key if self._can_show(key, is_non_personal_key(key)) else self._mask_text((), key)

    def redact_target(self, target: str) -> str:
        """Redacts the path and query of a request."""
        path, separator, query = target.partition("?")
        parts = [
            part
            if self._can_show(part, is_public_path_part(part) or bool(_PLACEHOLDER.fullmatch(part)))
            else "…"
            for part in path.split("/")
        ]
        return "/".join(parts) + separator + "&".join(map(self._redact_parameter, query.split("&")))

    def remove_api_keys(self, text: str) -> str:
        """Replaces API keys in a text that needs no other masking."""
        for key in self.api_keys:
            if len(key) >= MIN_API_KEY_CHARS:
                text = text.replace(key, API_KEY_PLACEHOLDER)
        return text

    def _redact_parameter(self, parameter: str) -> str:
        name, separator, value = parameter.partition("=")
        if not separator:
            return self.redact_object_key(name)
        parts = [
            part
            if _PLACEHOLDER.fullmatch(part)
            else self._redact_text((name,), _decode_parameter(part))
            for part in _PLACEHOLDER.split(value)
        ]
        return f"{self.redact_object_key(name)}={''.join(parts)}"

    def _can_show(self, text: str, is_clear: bool) -> bool:
        is_allowed = is_clear or self.is_unmasked
        # A key stays hidden in its percent-encoded form too.
        return is_allowed and all(
            self.remove_api_keys(spelling) == spelling for spelling in (text, unquote(text))
        )

    def _format_value(self, path: Path, value: Any) -> str:
        if value is ABSENT:
            return "nothing"
        if isinstance(value, str):
            return self._redact_text(_list_field_names(path), value)
        if isinstance(value, Number):
            is_clear = is_non_personal_number(_list_field_names(path), value.text)
            return value.text if self._can_show(value.text, is_clear) else _mask_number(value.text)
        if isinstance(value, dict):
            return _format_size(len(value), "field", "{…}")
        if isinstance(value, list):
            return _format_size(len(value), "item", "[…]")
        return str(value) if type(value) is int else str(_JSON_LITERALS[value])

    def _redact_text(self, fields: tuple[str, ...], text: str) -> str:
        # JSON may hold lone surrogates, which no output encoding accepts.
        text = text.encode("utf-8", "backslashreplace").decode()
        # Also if values are shown: API keys never are.
        if self.remove_api_keys(text) != text:
            return API_KEY_PLACEHOLDER
        display_text = text if self.is_unmasked else self._mask_text(fields, text)
        return (
            display_text
            if len(display_text) <= MAX_VALUE_CHARS
            else f"{display_text[:MAX_VALUE_CHARS]}…"
        )

    def _mask_text(self, fields: tuple[str, ...], text: str) -> str:
        if self.remove_api_keys(text) != text:
            return API_KEY_PLACEHOLDER
        return _MASK_BY_CLASS[classify_text(fields, text)](text)


def _decode_parameter(value: str) -> str:
    """Decodes the value of a query parameter."""
    return unquote(value.replace("+", " "))


def _describe_type(value: Any) -> str:
    return (
        "nothing"
        if value is ABSENT
        else "number"
        if type(value) is int
        else describe_json_type(value)
    )


def _list_field_names(path: Path) -> tuple[str, ...]:
    return tuple(part for part in path if isinstance(part, str) and part != "@header")


def _format_size(count: int, noun: str, brackets: str) -> str:
    return f"{brackets} {count} {noun}{'' if count == 1 else 's'}"


def _mask_words(text: str) -> str:
    """Masks all letters and digits except ids and the first letter of longer words."""
    return _WORD_OR_ID.sub(lambda word: word[0] if word["id"] else _mask_word(word[0]), text)


_WORD_OR_ID = re.compile(r"(?P<id>\b(?:OP|[RBPTA])-(?=\w*[A-Za-z])[A-Za-z0-9]{1,64}\b)|\w+")
"""A word or an id. An id of digits alone does not count: it may be an account number."""


def _mask_word(word: str) -> str:
    if len(word) > 3 and word[0].isalpha():
        return word[0] + "*" * (len(word) - 1)
    return "*" * len(word)


def _mask_number(text: str) -> str:
    digits = sum(map(str.isdigit, text))
    # Two digits would be most of a short number.
    visible_digits = 2 if digits >= 6 else 0
    position = 0

    def mask_digit(digit: re.Match[str]) -> str:
        nonlocal position
        position += 1
        return digit[0] if position > digits - visible_digits else "*"

    return re.sub(r"\d", mask_digit, text)


def _mask_email(text: str) -> str:
    user, _, domain = text.rpartition("@")
    return f"{user[:1]}***@{domain[:1]}***"


def _mask_iban(text: str) -> str:
    # Country and last digits: enough to see that two IBANs differ, too little to pay one.
    return text[:2] + re.sub(r"\w", "*", text[2:-2]) + text[-2:]


def _mask_message(text: str) -> str:
    """Masks all words of an error message that do not belong to its usual vocabulary."""
    first_word = re.search(r"\w", text)

    def mask_unknown_word(match: re.Match[str]) -> str:
        word = match[0]
        is_first = first_word is not None and match.start() == first_word.start()
        is_known = (word.lower() if is_first else word) in MESSAGE_WORDS
        return word if is_known or match["id"] else _mask_word(word)

    return _WORD_OR_ID.sub(mask_unknown_word, text)


def _mask_label(text: str) -> str:
    return re.sub(
        r"\w+", lambda match: match[0] if match[0] in LABEL_WORDS else _mask_word(match[0]), text
    )


_MASK_BY_CLASS: dict[PiiClass, Callable[[str], str]] = {
    "clear": lambda text: text,
    "email": _mask_email,
    "iban": _mask_iban,
    "number": _mask_number,
    "message": _mask_message,
    "label": _mask_label,
    "text": _mask_words,
}


def _mark_differences(
    control_display: DisplayValue, candidate_display: DisplayValue, control: str, candidate: str
) -> tuple[DisplayValue, DisplayValue]:
    """Marks where the values differ, in their displayed texts."""
    # Masking keeps most lengths; then positions in the values hold for the displayed texts too.
    is_same_length = len(control_display.text) == len(control) and len(
        candidate_display.text
    ) == len(candidate)
    texts = (
        (control, candidate) if is_same_length else (control_display.text, candidate_display.text)
    )
    if texts[0] == texts[1]:  # same text after masking, or different types
        differs = (
            control_display.text != candidate_display.text
            or control != candidate
            or control_display.kind != candidate_display.kind
        )
        return _mark_range(control_display, 0, 0, differs), _mark_range(
            candidate_display, 0, 0, differs
        )
    start = end = 0
    if control_display.kind == candidate_display.kind:
        start = _count_common_prefix(*texts)
        end = _count_common_prefix(*(text[start:][::-1] for text in texts))
    return _mark_range(control_display, start, end, True), _mark_range(
        candidate_display, start, end, True
    )


def _count_common_prefix(left: str, right: str) -> int:
    """Returns the length of the common prefix."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))
    )


def _mark_range(display: DisplayValue, start: int, end: int, differs: bool) -> DisplayValue:
    text, stop = display.text, len(display.text) - end
    segments = (
        TextSegment(text[:start]),
        TextSegment(text[start:stop], differs),
        TextSegment(text[stop:]),
    )
    return DisplayValue(
        display.kind, tuple(segment for segment in segments if segment.text or segment.differs)
    )
