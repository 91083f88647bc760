"""Values as the state keeps them: JSON, and where that is long, folded."""

from __future__ import annotations

import base64
import zlib
from itertools import chain

from gateway.payloads import json_codec
from gateway.payloads.compressed_buffer import CompressedBuffer
from mappings.effects import JSON

Text = str | CompressedBuffer

_PACKED = "z"
"""How a long text began, and no JSON does, before it was kept in pieces: packed as a whole, in base64."""


def encode_stored(value: JSON) -> Text:
    parts = json_codec.iterdumps(value)
    plain: list[bytes] = []
    size = 0
    for part in parts:
        plain.append(part)
        size += len(part)
        if size > json_codec.LARGE:
            return CompressedBuffer.of(chain(plain, parts))
    return b"".join(plain).decode()


def compress_if_large(text: str) -> Text:
    """A text that is there, as it is to be kept."""
    data = text.encode()
    return CompressedBuffer.of([data]) if len(data) > json_codec.LARGE else text


def plain(text: Text) -> str:
    return text if isinstance(text, str) else bytes(text).decode()


def is_starting_with(text: Text, character: str) -> bool:
    """Of a long one the rest is left folded."""
    if isinstance(text, str):
        return text.startswith(character)
    return bytes(next(text.windows(), b"")[:1]) == character.encode()


def value(text: Text) -> JSON:
    """Its long lists are Rows."""
    if isinstance(text, CompressedBuffer):
        return json_codec.read(text, json_codec.LONG)
    if is_long(text):
        return json_codec.read(zlib.decompress(base64.b64decode(text[1:])), json_codec.LONG)
    return json_codec.loads_trusted(text)


def is_long(text: Text) -> bool:
    """Whether to read it takes so long that others should not wait for it."""
    return isinstance(text, CompressedBuffer) or text.startswith(_PACKED)
