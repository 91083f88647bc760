"""Decodes JSON texts of any size: a large object in slices of its long lists.

msgspec splits an object or a list into the undecoded texts of its items, faster than it decodes
them, and then one slice of rows is decoded at a time. A text that this cannot decode, because it is
invalid or too much of it is in no long list, is left to the decoding of the whole text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from gateway.payloads.json_codec.text_decoding import (
    MAX_DEPTH,
    WHITESPACE,
    decode_if_lossless,
    decode_strictly,
)
from mappings.lazy_sequences import SLICE_SIZE, SerializedSequence, iterate_chunks

LONG_LISTS = frozenset({"payments", "update_payments", "remove_payments", "entries"})
"""Fields whose lists may be very long: the documents set no maximum of payments in a batch."""

LARGE_BYTES = 256 * 1024
"""Larger texts are decoded in slices, and processed in a thread instead of the event loop."""

VALUE_BYTES = 80
"""Estimated memory of one value, in addition to its text."""

SLICE_BYTES = VALUE_BYTES * LARGE_BYTES
"""Estimated memory of the values of a text of ``LARGE_BYTES``, which needs no check for room."""

_COUNTED_BYTES = 1024 * 1024
"""Bytes that are counted at once: counting blocks all other threads."""

_MAX_LIST_DEPTH = 3
"""Maximum depth of the objects in which long lists are decoded in slices."""


class JsonError(Exception):
    """The bytes are not JSON, or JSON that cannot be represented exactly.

    The message has the reason, but never the input.
    """


class NotSliceableError(Exception):
    """The text must be decoded at once: it is invalid, or too much of it is in no long list."""


def loads(
    data: bytes, packed_lists: Collection[str] = (), max_memory_bytes: int | None = None
) -> Any:
    """Decodes a JSON text, UTF-8 with or without a byte order mark; raises JsonError.

    Also refused: objects with a duplicate key, ``NaN`` and ``Infinity``, lone surrogates, more than
    ``MAX_DEPTH`` levels or ``MAX_DIGITS`` digits. ``-0`` becomes 0. Long lists in the fields
    ``packed_lists`` become lazy sequences. ``max_memory_bytes`` bounds the memory of a text that
    cannot be decoded in slices (``estimate_memory_bytes``).
    """
    if packed_lists and len(data) > LARGE_BYTES:
        with suppress(NotSliceableError):  # the decoding of the whole text below reports the error
            return loads_in_slices(data, packed_lists)
    if max_memory_bytes is not None and estimate_memory_bytes(data) > max_memory_bytes:
        raise JsonError("too many values")
    decoded = decode_if_lossless(data)
    if decoded is None:
        reason, decoded = decode_strictly(data)
        if reason:  # raised outside an except block, because a cause's text would hold the input
            raise JsonError(reason)
    return decoded[0]


def loads_in_slices(data: bytes, packed_lists: Collection[str]) -> dict[str, Any]:
    """Like ``loads`` of an object, but never holds more than ``SLICE_BYTES`` of values at once.

    Raises NotSliceableError.
    """
    return _decode_object(data, packed_lists, 1)


def estimate_memory_bytes(data: bytes) -> int:
    """Estimates the memory that the values of a JSON text need, without parsing it.

    Every value but the first follows a comma or opens an array or object, so that counting these
    bytes gives an upper bound. A hostile body is refused before it is parsed.
    """
    size = 0
    for start in range(0, len(data), _COUNTED_BYTES):
        part = data[start : start + _COUNTED_BYTES]
        # Removing these bytes is faster than counting each of them.
        size += len(part) - len(part.translate(None, b",[{"))
    return VALUE_BYTES * size


def _decode_object(text: bytes, packed_lists: Collection[str], depth: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in _split_object(text).items():
        is_list = bytes(memoryview(value)[:1]) == b"["
        if is_list and name in packed_lists:
            rows = SerializedSequence.from_texts(_iter_slices(value, depth))
            # Most lists are short; as plain lists they take the simple path everywhere.
            fields[name] = rows if len(rows) > SLICE_SIZE else [*rows]
        elif len(memoryview(value)) > LARGE_BYTES and not is_list and depth < _MAX_LIST_DEPTH:
            fields[name] = _decode_object(value, packed_lists, depth + 1)
        else:
            fields[name], _ = _decode_value(bytes(value), MAX_DEPTH - depth)
    return fields


def _split_object(text: bytes) -> Mapping[str, msgspec.Raw]:
    """Returns the texts of an object's fields; raises NotSliceableError for equal names."""
    try:
        fields = _OBJECT_DECODER.decode(text)
    except (ValueError, RecursionError):
        raise NotSliceableError from None
    # Of fields with equal names msgspec keeps one, so that the texts are too short together.
    parts = [part for field in fields.items() for part in (msgspec.json.encode(field[0]), field[1])]
    size = 1 + len(parts) + sum(len(memoryview(part)) for part in parts)
    if size != len(memoryview(text)):
        size -= sum(map(_count_whitespace, parts))
        if size != len(memoryview(text)) - _count_whitespace(text):
            raise NotSliceableError
    return fields


def _count_whitespace(text: bytes) -> int:
    data = bytes(text)
    return sum(map(data.count, WHITESPACE))


def _iter_slices(text: bytes, depth: int) -> Iterator[tuple[list[Any], bytes]]:
    """Yields slices of a list in an object at a depth, and their texts; raises NotSliceableError."""
    try:
        rows = _LIST_DECODER.decode(text)
    except (ValueError, RecursionError):
        raise NotSliceableError from None
    for some_rows in iterate_chunks(rows, SLICE_SIZE):
        yield _decode_value(b"[%b]" % b",".join(some_rows), MAX_DEPTH - depth)


def _decode_value(data: bytes, max_depth: int) -> tuple[Any, bytes]:
    """Decodes a value; returns it with its compact text. Raises NotSliceableError."""
    if len(data) > LARGE_BYTES and estimate_memory_bytes(data) > SLICE_BYTES:
        raise NotSliceableError
    if (decoded := decode_if_lossless(data, max_depth)) is None:
        reason, decoded = decode_strictly(data, max_depth)
        if reason:
            raise NotSliceableError
    return decoded


_OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
