"""Decodes a large JSON object one window at a time, and packs its long lists while it does.

Values are never all in memory at once. A text that this cannot decode, because it is invalid or too
much of it is in no long list, is left to the decoding of the whole text.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

from gateway.payloads.compressed_buffer import CompressedBuffer, iter_windows
from gateway.payloads.json_codec.encoding import iterdumps
from gateway.payloads.json_codec.text_decoding import (
    MAX_DEPTH,
    WHITESPACE,
    DuplicateKeyError,
    NeedsStrictDecode,
    decode_if_lossless,
    is_nested_deeper_than,
    scan_value,
)
from mappings.lazy_sequences import SLICE_SIZE, CompressedSequence

LARGE_BYTES = 256 * 1024
"""Larger texts are decoded in slices, and processed in a thread instead of the event loop."""

VALUE_BYTES = 80
"""Estimated memory of one value, in addition to its text."""

SLICE_BYTES = VALUE_BYTES * LARGE_BYTES
"""Estimated memory of the values of a text of ``LARGE_BYTES``, which needs no check for room."""

_MAX_LIST_DEPTH = 3
"""Maximum depth of the objects in which long lists are decoded in slices."""

_WHITESPACE_TEXT = WHITESPACE.decode()
_ITEM_BOUNDARIES = ("},{", "}, {")


def loads_in_slices(data: bytes | CompressedBuffer, packed_lists: Collection[str]) -> Any:
    """Like ``loads``, but never holds more than ``SLICE_BYTES`` of values at once.

    Raises NotSliceableError.
    """
    return _SliceReader(data, packed_lists).read_document()


def estimate_memory_bytes(data: bytes | CompressedBuffer) -> int:
    """Estimates the memory that the values of a JSON text need, without parsing it.

    Every value but the first follows a comma or opens an array or object, so that counting these
    bytes gives an upper bound. A hostile body is refused before it is parsed.
    """
    if isinstance(data, CompressedBuffer):
        return sum(estimate_memory_bytes(bytes(window)) for window in data.iter_windows())
    return VALUE_BYTES * sum(map(data.count, (b",", b"[", b"{")))


class _SliceReader:
    """Decodes an object and packs its long lists while they are decoded."""

    def __init__(self, data: bytes | CompressedBuffer, packs: Collection[str]) -> None:
        self._size = len(data)
        self._windows = iter_windows(data)
        self._packed_lists = packs
        # In bytes, unlike the position: a window may end within a character.
        self._decoded = 0
        self._decoder = getincrementaldecoder("utf-8")()
        self._text = ""
        self._position = 0
        self._may_have_lone_surrogates = False

    def read_document(self) -> Any:
        """Decodes the whole text; raises NeedsStrictDecode."""
        if self._peek() != "{":
            raise NeedsStrictDecode
        value = self._read_object(1)
        if self._peek():
            raise NeedsStrictDecode
        # Rows were checked as they were decoded; this is for everything outside of long lists.
        if self._may_have_lone_surrogates:
            self._check_no_lone_surrogates(value)
        if is_nested_deeper_than(value, MAX_DEPTH):
            raise NeedsStrictDecode
        return value

    def _read_object(self, depth: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        self._position += 1
        if self._peek() == "}":
            self._position += 1
            return fields
        while True:
            if self._peek() != '"':
                raise NeedsStrictDecode
            name = self._read_value()
            if name in fields:
                raise NeedsStrictDecode
            self._consume_character(":")
            fields[name] = self._read_field_value(name, depth)
            if self._peek() == "}":
                self._position += 1
                return fields
            self._consume_character(",")

    def _read_field_value(self, name: str, depth: int) -> Any:
        first_character = self._peek()
        if first_character == "[" and name in self._packed_lists:
            rows = CompressedSequence(self._iter_checked_items(depth))
            # Most lists are short; as plain lists they take the simple path everywhere.
            return rows if len(rows) > SLICE_SIZE else [*rows]
        if first_character == "{" and depth < _MAX_LIST_DEPTH:
            return self._read_object(depth + 1)
        return self._read_value()

    def _iter_checked_items(self, depth: int) -> Iterator[Any]:
        """Yields the items of a list, checked against the limits of the whole text."""
        for items in self._iter_item_groups():
            if self._may_have_lone_surrogates:
                self._check_no_lone_surrogates(items)
            if is_nested_deeper_than(items, MAX_DEPTH - depth):
                raise NeedsStrictDecode
            yield from items

    def _iter_item_groups(self) -> Iterator[list[Any]]:
        self._position += 1
        if self._peek() == "]":
            self._position += 1
            return
        odd_until, single_count = -1, 0
        while True:
            if odd_until < self._decoded:
                if items := self._read_many_items():
                    yield items
                else:
                    odd_until = self._decoded  # the rest of the decoded text goes item by item
            # The item that the end of the decoded text cuts, or one that cannot be decoded in bulk.
            self._peek()
            yield [self._read_value()]
            # Objects of the service are longer, in any formatting: this is a hostile body.
            if (single_count := single_count + 1) > LARGE_BYTES:
                raise NeedsStrictDecode
            if self._peek() == "]":
                self._position += 1
                return
            self._consume_character(",")

    def _read_many_items(self) -> list[Any]:
        """Decodes the items up to the last complete one in the decoded text, at once.

        Returns an empty list if there is none. If the boundary is inside of an item or a string,
        the text before it is not a valid list and is not used.
        """
        self._peek()
        end = max(self._text.rfind(boundary, self._position) for boundary in _ITEM_BOUNDARIES)
        if end < 0:
            return []
        items = f"[{self._text[self._position : end + 1]}]"
        with suppress(NeedsStrictDecode):
            values = decode_if_lossless(items.encode())
            self._position = end + 2
            return values  # type: ignore[no-any-return] # it begins as a list
        try:
            values, end_position = scan_value(items, 0)
        except (StopIteration, ValueError, ArithmeticError, RecursionError, DuplicateKeyError):
            return []
        if end_position < len(items):
            return []
        self._position = end + 2
        return values  # type: ignore[no-any-return] # it begins as a list

    def _check_no_lone_surrogates(self, value: Any) -> None:
        try:
            for _ in iterdumps(value):
                pass
        except UnicodeEncodeError:
            raise NeedsStrictDecode from None

    def _read_value(self) -> Any:
        """Decodes the value at the current position."""
        while True:
            try:
                value, end = scan_value(self._text, self._position)
            except (StopIteration, ValueError, ArithmeticError, RecursionError, DuplicateKeyError):
                end = None
            # A number at the end of the decoded text may continue in the next window.
            if end is not None and (end < len(self._text) or not self._has_undecoded_bytes):
                self._position = end
                return value
            self._decode_more()

    def _peek(self) -> str:
        """Skips whitespace and returns the next character; empty at the end."""
        while True:
            while self._position < len(self._text):
                if (character := self._text[self._position]) not in _WHITESPACE_TEXT:
                    return character
                self._position += 1
            if not self._has_undecoded_bytes:
                return ""
            self._decode_more()

    def _consume_character(self, character: str) -> None:
        if self._peek() != character:
            raise NeedsStrictDecode
        self._position += 1

    @property
    def _has_undecoded_bytes(self) -> bool:
        return self._decoded < self._size

    def _decode_more(self) -> None:
        """Decodes another window, or doubles the text if one window was not enough."""
        if not self._has_undecoded_bytes:
            raise NeedsStrictDecode
        remaining_text, new_text = self._text[self._position :], ""
        # Doubling keeps the cost linear for a value that is longer than a window.
        while self._has_undecoded_bytes and (not new_text or len(new_text) < len(remaining_text)):
            window = next(self._windows)
            self._decoded += len(window)
            try:
                new_text += self._decoder.decode(window, final=not self._has_undecoded_bytes)
            except UnicodeDecodeError:
                raise NeedsStrictDecode from None
        self._text, self._position = remaining_text + new_text, 0
        # A value longer than a window is decoded again with each window, so its cost must be
        # bounded.
        if (
            len(self._text) > LARGE_BYTES
            and estimate_memory_bytes(self._text.encode()) > SLICE_BYTES
        ):
            raise NeedsStrictDecode
        # Escaped surrogates are rare, and searching for them is much faster than encoding each
        # value.
        self._may_have_lone_surrogates = (
            self._may_have_lone_surrogates or "\\ud" in self._text or "\\uD" in self._text
        )
