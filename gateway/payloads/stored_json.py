"""JSON values as they are stored in the database; large ones are compressed."""

from __future__ import annotations

import base64
import zlib
from itertools import chain

from gateway.payloads import json_codec
from gateway.payloads.compressed_buffer import CompressedBuffer
from mappings.effects import JSON

Text = str | CompressedBuffer

_PACKED = "z"
"""Prefix of texts in an older format, compressed as a whole and in base64; no JSON starts with it."""


def encode_stored(value: JSON) -> Text:
    parts = json_codec.iterdumps(value)
    plain: list[bytes] = []
    size = 0
    for part in parts:
        plain.append(part)
        size += len(part)
        # Most values are small, so compression starts only once the text exceeds this size.
        if size > json_codec.LARGE:
            return CompressedBuffer.of(chain(plain, parts))
    return b"".join(plain).decode()


def compress_if_large(text: str) -> Text:
    """Compress a JSON text for storage if it is large."""
    data = text.encode()
    return CompressedBuffer.of([data]) if len(data) > json_codec.LARGE else text


def plain(text: Text) -> str:
    return text if isinstance(text, str) else bytes(text).decode()


def is_starting_with(text: Text, character: str) -> bool:
    """Return whether a text starts with a character; a large one is decompressed only so far."""
    if isinstance(text, str):
        return text.startswith(character)
    return bytes(next(text.windows(), b"")[:1]) == character.encode()


def value(text: Text) -> JSON:
    """Decode a stored value; long lists become ``Rows``."""
    if isinstance(text, CompressedBuffer):
        return json_codec.read(text, json_codec.LONG)
    if is_long(text):
        return json_codec.read(zlib.decompress(base64.b64decode(text[1:])), json_codec.LONG)
    return json_codec.loads_trusted(text)


def is_long(text: Text) -> bool:
    """Return whether decoding the text takes so long that it should not block the event loop."""
    return isinstance(text, CompressedBuffer) or text.startswith(_PACKED)
