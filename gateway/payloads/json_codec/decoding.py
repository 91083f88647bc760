"""Decodes JSON texts of any size."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any

from gateway.payloads.json_codec.slice_decoding import (
    LARGE_BYTES,
    NotSliceableError,
    estimate_memory_bytes,
    loads_in_slices,
)
from gateway.payloads.json_codec.text_decoding import decode_with_refusal_reason

LONG_LISTS = frozenset({"payments", "update_payments", "remove_payments", "entries"})
"""Fields whose lists may be very long: the documents set no maximum of payments in a batch."""


class JsonError(Exception):
    """The bytes are not JSON, or JSON that cannot be represented exactly.

    The message has the reason, but never the input.
    """


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
    reason, (value, _) = decode_with_refusal_reason(data)
    if reason:  # raised outside an except block, because a cause's text would hold the input
        raise JsonError(reason)
    return value
