"""A large text as it is stored: in parts that are compressed each by itself."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

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
