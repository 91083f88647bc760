"""JSON values as they are stored in the database; large ones are compressed."""

import base64
import io
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

from gateway.payloads import json_codec
from mappings.effects import JSON

COMPRESSED_PART_BYTES = 256 * 1024
"""Bytes that are compressed together."""

_COMPRESSION_LEVEL = 1
"""The fastest level, because a request waits for the compression."""


@dataclass(frozen=True, slots=True)
class CompressedBuffer:
    """The compressed parts of a text of ``size`` bytes; ``bytes(buffer)`` decompresses all of it."""

    parts: Sequence[bytes]
    size: int

    @classmethod
    def from_chunks(cls, chunks: Iterable[bytes]) -> Self:
        """Compresses chunks while they are produced."""
        open_part, size = io.BytesIO(), 0
        parts: list[bytes] = []
        for chunk in chunks:
            size += open_part.write(chunk)
            if open_part.tell() >= COMPRESSED_PART_BYTES:
                parts.append(zlib.compress(open_part.getvalue(), _COMPRESSION_LEVEL))
                open_part = io.BytesIO()
        if rest := open_part.getvalue():
            parts.append(zlib.compress(rest, _COMPRESSION_LEVEL))
        return cls(parts, size)

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return b"".join(map(zlib.decompress, self.parts))


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
