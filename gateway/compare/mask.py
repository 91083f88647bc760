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
    Nature,
    classify_text,
    is_clear_key,
    is_clear_number,
)
from gateway.compare.strict_json import ABSENT, Number, describe_json_type

LONGEST = 160
"""Longer values are cut off."""

KEY = "(an API key)"

SHORTEST_KEY = 6
"""A shorter text is not an API key, and replacing it would garble ordinary words."""

_PLACE = re.compile(r"(\$\{[\w-]+\})")
"""A placeholder for a captured value."""

_LITERALS = {True: "true", False: "false", None: "null"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a displayed value. ``differs``: the other side has something else here."""

    text: str
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """A value for display. ``kind`` is its JSON type, or ``nothing`` if it is absent."""

    kind: str
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Redactor:
    """Masks values and paths. ``keys`` are the API keys to remove from every text."""

    keys: tuple[str, ...] = ()
    sees_all: bool = False

    def value(self, path: Path, value: Any) -> Shown:
        return Shown(_kind(value), (Piece(self._text(path, value)),))

    def both(self, path: Path, control: Any, candidate: Any) -> tuple[Shown, Shown]:
        """Redacts both values and marks the parts that differ."""
        one, other = self.value(path, control), self.value(path, candidate)
        if isinstance(control, str) and isinstance(candidate, str):
            return _marked(one, other, control, candidate)
        return _marked(one, other, one.text, other.text)

    def path(self, path: Path) -> str:
        return paths.format_path(tuple(map(self._part, path)))

    def place(self, path: Path) -> str:
        return paths.normalize_path(tuple(map(self._part, path)))

    def _part(self, part: str | int) -> str | int:
        return part if isinstance(part, int | paths.Outside) else self.key(part)

    def key(self, key: str) -> str:
        return key if self._is_open(key, is_clear_key(key)) else self._masked((), key)

    def target(self, target: str) -> str:
        """Redacts the path and query of a request."""
        path, mark, query = target.partition("?")
        parts = [
            part
            if self._is_open(part, is_public_path_part(part) or bool(_PLACE.fullmatch(part)))
            else "…"
            for part in path.split("/")
        ]
        return "/".join(parts) + mark + "&".join(map(self._parameter, query.split("&")))

    def plain(self, text: str) -> str:
        """Replaces API keys in a text that needs no other masking."""
        for key in self.keys:
            if len(key) >= SHORTEST_KEY:
                text = text.replace(key, KEY)
        return text

    def _parameter(self, parameter: str) -> str:
        name, mark, value = parameter.partition("=")
        if not mark:
            return self.key(name)
        shown = [
            piece if _PLACE.fullmatch(piece) else self._shown_text((name,), _plain(piece))
            for piece in _PLACE.split(value)
        ]
        return f"{self.key(name)}={''.join(shown)}"

    def _is_open(self, text: str, clear: bool) -> bool:
        is_open = clear or self.sees_all
        # A key stays hidden in its percent-encoded form too.
        return is_open and all(self.plain(one) == one for one in (text, unquote(text)))

    def _text(self, path: Path, value: Any) -> str:
        if value is ABSENT:
            return "nothing"
        if isinstance(value, str):
            return self._shown_text(_fields(path), value)
        if isinstance(value, Number):
            clear = is_clear_number(_fields(path), value.text)
            return value.text if self._is_open(value.text, clear) else _hidden_number(value.text)
        if isinstance(value, dict):
            return _counted(len(value), "field", "{…}")
        if isinstance(value, list):
            return _counted(len(value), "item", "[…]")
        return str(value) if type(value) is int else str(_LITERALS[value])

    def _shown_text(self, fields: tuple[str, ...], text: str) -> str:
        # JSON may hold lone surrogates, which no output encoding accepts.
        text = text.encode("utf-8", "backslashreplace").decode()
        if self.plain(text) != text:
            return KEY
        shown = text if self.sees_all else self._masked(fields, text)
        return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"

    def _masked(self, fields: tuple[str, ...], text: str) -> str:
        if self.plain(text) != text:
            return KEY
        return _MASKS[classify_text(fields, text)](text)


def _plain(value: str) -> str:
    """Decodes the value of a query parameter."""
    return unquote(value.replace("+", " "))


def _kind(value: Any) -> str:
    return (
        "nothing"
        if value is ABSENT
        else "number"
        if type(value) is int
        else describe_json_type(value)
    )


def _fields(path: Path) -> tuple[str, ...]:
    return tuple(part for part in path if isinstance(part, str) and part != "@header")


def _counted(number: int, of_what: str, brackets: str) -> str:
    return f"{brackets} {number} {of_what}{'' if number == 1 else 's'}"


def _hidden(text: str) -> str:
    """Masks all letters and digits except ids and the first letter of longer words."""
    return _WORD.sub(lambda word: word[0] if word["id"] else _hidden_word(word[0]), text)


_WORD = re.compile(r"(?P<id>\b(?:OP|[RBPTA])-(?=\w*[A-Za-z])[A-Za-z0-9]{1,64}\b)|\w+")
"""A word or an id. An id of digits alone does not count: it may be an account number."""


def _hidden_word(word: str) -> str:
    if len(word) > 3 and word[0].isalpha():
        return word[0] + "*" * (len(word) - 1)
    return "*" * len(word)


def _hidden_number(text: str) -> str:
    digits = sum(map(str.isdigit, text))
    kept = 2 if digits >= 6 else 0
    seen = 0

    def hide(digit: re.Match[str]) -> str:
        nonlocal seen
        seen += 1
        return digit[0] if seen > digits - kept else "*"

    return re.sub(r"\d", hide, text)


def _hidden_email(text: str) -> str:
    user, _, domain = text.rpartition("@")
    return f"{user[:1]}***@{domain[:1]}***"


def _hidden_iban(text: str) -> str:
    return text[:2] + re.sub(r"\w", "*", text[2:-2]) + text[-2:]


def _hidden_message(text: str) -> str:
    """Masks all words of an error message that do not belong to its usual vocabulary."""
    first = re.search(r"\w", text)

    def hide(found: re.Match[str]) -> str:
        word = found[0]
        begins = first is not None and found.start() == first.start()
        is_known = (word.lower() if begins else word) in MESSAGE_WORDS
        return word if is_known or found["id"] else _hidden_word(word)

    return _WORD.sub(hide, text)


def _hidden_label(text: str) -> str:
    return re.sub(
        r"\w+", lambda one: one[0] if one[0] in LABEL_WORDS else _hidden_word(one[0]), text
    )


_MASKS: dict[Nature, Callable[[str], str]] = {
    "clear": lambda text: text,
    "email": _hidden_email,
    "iban": _hidden_iban,
    "number": _hidden_number,
    "message": _hidden_message,
    "label": _hidden_label,
    "text": _hidden,
}


def _marked(one: Shown, other: Shown, control: str, candidate: str) -> tuple[Shown, Shown]:
    """Marks where the values differ, in their displayed texts."""
    # Masking keeps most lengths; then positions in the values hold for the displayed texts too.
    as_long = len(one.text) == len(control) and len(other.text) == len(candidate)
    texts = (control, candidate) if as_long else (one.text, other.text)
    if texts[0] == texts[1]:  # same text after masking, or different types
        whole = one.text != other.text or control != candidate or one.kind != other.kind
        return _cut(one, 0, 0, whole), _cut(other, 0, 0, whole)
    start = end = 0
    if one.kind == other.kind:
        start = _shared(*texts)
        end = _shared(*(text[start:][::-1] for text in texts))
    return _cut(one, start, end, True), _cut(other, start, end, True)


def _shared(one: str, other: str) -> int:
    """The length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _cut(shown: Shown, start: int, end: int, differs: bool) -> Shown:
    text, stop = shown.text, len(shown.text) - end
    pieces = (Piece(text[:start]), Piece(text[start:stop], differs), Piece(text[stop:]))
    return Shown(shown.kind, tuple(piece for piece in pieces if piece.text or piece.differs))
