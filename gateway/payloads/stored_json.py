"""JSON values as they are stored in the database; large ones are compressed."""

from __future__ import annotations

import base64
import zlib
from itertools import chain

from gateway.payloads import json_codec
from gateway.payloads.compressed_buffer import CompressedBuffer
from mappings.effects import JSON

StoredText = str | CompressedBuffer

_COMPRESSED_PREFIX = "z"
"""Prefix of the older format, compressed as a whole and in base64; no JSON starts with it."""


def encode_value(value: JSON) -> StoredText:
    parts = json_codec.iterdumps(value)
    encoded_parts: list[bytes] = []
    size = 0
    for part in parts:
        encoded_parts.append(part)
        size += len(part)
        # Most values are small, so compression starts only once the text exceeds this size.
        if size > json_codec.LARGE_BYTES:
            return CompressedBuffer.from_chunks(chain(encoded_parts, parts))
    return b"".join(encoded_parts).decode()


def compress_if_large(text: str) -> StoredText:
    """Compresses a JSON text for storage if it is large."""
    data = text.encode()
    return CompressedBuffer.from_chunks([data]) if len(data) > json_codec.LARGE_BYTES else text


def decompress_text(text: StoredText) -> str:
    return text if isinstance(text, str) else bytes(text).decode()


def starts_with(text: StoredText, character: str) -> bool:
    """Whether a text starts with a character; a large one is decompressed only so far."""
    if isinstance(text, str):
        return text.startswith(character)
    return zlib.decompressobj().decompress(text.parts[0], 1) == character.encode()


def decode_value(text: StoredText) -> JSON:
    """Decodes a stored value; long lists become lazy sequences."""
    if isinstance(text, CompressedBuffer):
        return json_codec.loads(bytes(text), json_codec.LONG_LISTS)
    # Stored by an older version; a database that it wrote must stay readable.
    if is_large(text):
        return json_codec.loads(zlib.decompress(base64.b64decode(text[1:])), json_codec.LONG_LISTS)
    return json_codec.loads_trusted(text)


def is_large(text: StoredText) -> bool:
    """Whether decoding the text takes so long that it should not block the event loop."""
    return isinstance(text, CompressedBuffer) or text.startswith(_COMPRESSED_PREFIX)
