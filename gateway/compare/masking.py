"""Masks values for display: letters and digits of values that are not on the allow-list become ``*``.

Type and length stay visible. The API keys of both sides are never shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from urllib.parse import unquote

from gateway.compare import paths
from gateway.compare.allowlist import AllowList
from gateway.compare.paths import Path
from gateway.compare.report_schema import Value
from gateway.compare.strict_json import ABSENT, Number, describe_json_type

MAX_VALUE_CHARS = 160
"""Longer values are cut off."""

API_KEY_PLACEHOLDER = "(an API key)"

MIN_API_KEY_CHARS = 6
"""A shorter text is not an API key, and replacing it would garble ordinary words."""

_PLACEHOLDER = re.compile(r"(\$\{[\w-]+\})")
"""A placeholder for a captured value."""

_JSON_LITERALS = {True: "true", False: "false", None: "null"}

_HIDDEN_CHARACTER = re.compile(r"[^\s!-/:-@\[-`{-~]")
"""All characters except white space and ASCII punctuation."""

_ALLOW_LIST = AllowList()


def mask_text(text: str) -> str:
    return _HIDDEN_CHARACTER.sub("*", text)


@dataclass(frozen=True, slots=True)
class Redactor:
    """Masks values and paths. ``api_keys`` are removed from every text."""

    api_keys: tuple[str, ...] = ()
    is_unmasked: bool = False

    def redact_value(self, path: Path, value: Any) -> Value:
        text = self._format_value(path, value)
        return {
            "type": describe_json_type(value),
            "text": text,
            "parts": [{"text": text, "differs": False}],
        }

    def redact_pair_and_mark_differences(
        self, path: Path, control: Any, candidate: Any
    ) -> tuple[Value, Value]:
        """Redacts both values and marks the parts that differ."""
        displays = self.redact_value(path, control), self.redact_value(path, candidate)
        texts = displays[0]["text"], displays[1]["text"]
        start = end = 0
        if displays[0]["type"] == displays[1]["type"] and control != candidate:
            # Masking keeps lengths; then positions in the values hold for the displayed texts too.
            if isinstance(control, str) and tuple(map(len, texts)) == (
                len(control),
                len(candidate),
            ):
                texts = control, candidate
            if texts[0] != texts[1]:
                start = _count_common_prefix(*texts)
                end = _count_common_prefix(*(text[start:][::-1] for text in texts))
        for display in displays:
            _mark_range(display, start, end, differs=control != candidate)
        return displays

    def redact_path(self, path: Path) -> str:
        return paths.format_path(tuple(map(self._redact_part, path)))

    def redact_normal_path(self, path: Path) -> str:
        return paths.normalize_path(tuple(map(self._redact_part, path)))

    def _redact_part(self, part: str | int) -> str | int:
        return part if isinstance(part, int | paths.PseudoKey) else self.redact_object_key(part)

    def redact_object_key(self, key: str) -> str:
        return key if self._can_show(key, _ALLOW_LIST.allows_key(key)) else self._mask((), key)

    def redact_target(self, target: str) -> str:
        """Redacts the path and query of a request."""
        path, separator, query = target.partition("?")
        parts = [
            part
            if self._can_show(
                part, _ALLOW_LIST.allows_path_part(part) or bool(_PLACEHOLDER.fullmatch(part))
            )
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
            else self._redact_text((name,), unquote(part.replace("+", " ")))
            for part in _PLACEHOLDER.split(value)
        ]
        return f"{self.redact_object_key(name)}={''.join(parts)}"

    def _can_show(self, text: str, is_allowed: bool) -> bool:
        # A key stays hidden in its percent-encoded form too.
        return (is_allowed or self.is_unmasked) and all(
            self.remove_api_keys(spelling) == spelling for spelling in (text, unquote(text))
        )

    def _format_value(self, path: Path, value: Any) -> str:
        fields = tuple(part for part in path if isinstance(part, str) and part != "@header")
        if isinstance(value, str):
            return self._redact_text(fields, value)
        if isinstance(value, Number):
            is_allowed = _ALLOW_LIST.allows_number(fields, value.text)
            return value.text if self._can_show(value.text, is_allowed) else mask_text(value.text)
        if isinstance(value, dict):
            return f"{{…}} {len(value)} field{'' if len(value) == 1 else 's'}"
        if isinstance(value, list):
            return f"[…] {len(value)} item{'' if len(value) == 1 else 's'}"
        if value is ABSENT:
            return "nothing"
        return str(value) if type(value) is int else _JSON_LITERALS[value]

    def _redact_text(self, fields: tuple[str, ...], text: str) -> str:
        # JSON may hold lone surrogates, which no output encoding accepts.
        text = text.encode("utf-8", "backslashreplace").decode()
        # Also if values are shown: API keys never are.
        if self.remove_api_keys(text) != text:
            return API_KEY_PLACEHOLDER
        display_text = text if self.is_unmasked else self._mask(fields, text)
        is_long = len(display_text) > MAX_VALUE_CHARS
        return f"{display_text[:MAX_VALUE_CHARS]}…" if is_long else display_text

    def _mask(self, fields: tuple[str, ...], text: str) -> str:
        if self.remove_api_keys(text) != text:
            return API_KEY_PLACEHOLDER
        return _ALLOW_LIST.replace_text(fields, text, mask_text)


def _mark_range(display: Value, start: int, end: int, *, differs: bool) -> None:
    text, stop = display["text"], len(display["text"]) - end
    display["parts"] = [
        {"text": part, "differs": is_marked}
        for part, is_marked in (
            (text[:start], False),
            (text[start:stop], differs),
            (text[stop:], False),
        )
        if part or is_marked
    ]


def _count_common_prefix(left: str, right: str) -> int:
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
