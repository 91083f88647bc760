"""A byte buffer that is compressed while it is filled, for large payloads.

It is read from its start, one window at a time, any number of times.
"""

from __future__ import annotations

import asyncio
import io
import zlib
from collections.abc import Iterable, Iterator
from typing import Self

COMPRESSED_PART_BYTES = 256 * 1024
"""Bytes that are compressed together."""

WINDOW_BYTES = 64 * 1024
"""Bytes that are read at a time; TLS encryption of a window blocks the event loop."""

_COMPRESSION_LEVEL = 1
"""The fastest level, because a request waits for the compression."""


class CompressedBuffer:
    """An append-only buffer of compressed parts.

    ``bytes(buffer)`` decompresses all of it. ``parts`` and ``size`` restore a buffer from the parts
    of another one and its length.
    """

    def __init__(self, parts: Iterable[bytes] = (), size: int = 0) -> None:
        self._compressed_parts = [*parts]
        self._open_part = io.BytesIO()
        self._size = size

    @classmethod
    def from_chunks(cls, chunks: Iterable[bytes]) -> Self:
        """Compresses chunks while they are produced."""
        buffer = cls()
        for chunk in chunks:
            buffer.append(chunk)
        return buffer

    def append(self, chunk: bytes) -> None:
        if full_part := self._append_and_take_full_part(chunk):
            self._compressed_parts.append(zlib.compress(full_part, _COMPRESSION_LEVEL))

    async def append_in_thread(self, chunk: bytes) -> None:
        """Appends a chunk from the event loop; the compression runs in a thread.

        It does not use ``run_in_thread``: there it would queue behind other work, while the sender
        waits for this body to be read.
        """
        if full_part := self._append_and_take_full_part(chunk):
            self._compressed_parts.append(
                await asyncio.to_thread(zlib.compress, full_part, _COMPRESSION_LEVEL)
            )

    def _append_and_take_full_part(self, chunk: bytes) -> bytes:
        """Appends to the open part; returns the part if it is full, else no bytes."""
        self._open_part.write(chunk)
        self._size += len(chunk)
        if self._open_part.tell() < COMPRESSED_PART_BYTES:
            return b""
        full_part, self._open_part = self._open_part.getvalue(), io.BytesIO()
        return full_part

    def __len__(self) -> int:
        return self._size

    def iter_compressed_parts(self) -> Iterator[bytes]:
        """Yields the compressed parts, which can be stored and restored."""
        yield from self._compressed_parts
        # Compressed for this call only, because the buffer may still be appended to.
        if open_part := self._open_part.getvalue():
            yield zlib.compress(open_part, _COMPRESSION_LEVEL)

    def iter_windows(self) -> Iterator[memoryview]:
        for part in self._compressed_parts:
            yield from iter_windows(zlib.decompress(part))
        yield from iter_windows(self._open_part.getvalue())

    def __bytes__(self) -> bytes:
        return b"".join(self.iter_windows())


def iter_windows(text: bytes | CompressedBuffer) -> Iterator[memoryview]:
    """Yields the bytes of a plain or compressed text, one window at a time."""
    if isinstance(text, CompressedBuffer):
        return text.iter_windows()
    view = memoryview(text)
    return (view[start : start + WINDOW_BYTES] for start in range(0, len(view), WINDOW_BYTES))
