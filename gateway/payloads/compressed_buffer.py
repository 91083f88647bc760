"""A byte buffer that is compressed while it is filled, for large payloads.

It is read from its start, one window at a time, any number of times.
"""

from __future__ import annotations

import asyncio
import io
import zlib
from collections.abc import Iterable, Iterator
from typing import Self

PART = 256 * 1024
"""Bytes that are compressed together."""

WINDOW = 64 * 1024
"""Bytes that are read at a time; TLS encryption of a window blocks the event loop."""

_QUICKLY = 1


class CompressedBuffer:
    """An append-only buffer of compressed parts.

    ``bytes(buffer)`` decompresses all of it. ``parts`` and ``size`` restore a buffer from the parts of
    another one and its length.
    """

    def __init__(self, parts: Iterable[bytes] = (), size: int = 0) -> None:
        self._folded = [*parts]
        self._last = io.BytesIO()
        self._size = size

    @classmethod
    def of(cls, those: Iterable[bytes]) -> Self:
        """Compress chunks while they are produced."""
        folded = cls()
        for one in those:
            folded.put(one)
        return folded

    def put(self, part: bytes) -> None:
        if full := self._full_with(part):
            self._folded.append(zlib.compress(full, _QUICKLY))

    async def add(self, part: bytes) -> None:
        """Append a chunk from the event loop; the compression runs in a thread.

        It does not use ``run_in_thread``: there it would queue behind other work, while the sender
        waits for this body to be read.
        """
        if full := self._full_with(part):
            self._folded.append(await asyncio.to_thread(zlib.compress, full, _QUICKLY))

    def _full_with(self, part: bytes) -> bytes:
        """Append to the open part; return it if it is full, else nothing."""
        self._last.write(part)
        self._size += len(part)
        if self._last.tell() < PART:
            return b""
        full, self._last = self._last.getvalue(), io.BytesIO()
        return full

    def __len__(self) -> int:
        return self._size

    def parts(self) -> Iterator[bytes]:
        """Yield the compressed parts, which can be stored and restored."""
        yield from self._folded
        if last := self._last.getvalue():
            yield zlib.compress(last, _QUICKLY)

    def windows(self) -> Iterator[memoryview]:
        for folded in self._folded:
            yield from iter_windows(zlib.decompress(folded))
        yield from iter_windows(self._last.getvalue())

    def __bytes__(self) -> bytes:
        return b"".join(self.windows())


def iter_windows(text: bytes | CompressedBuffer) -> Iterator[memoryview]:
    """Yield the bytes of a plain or compressed text, one window at a time."""
    if isinstance(text, CompressedBuffer):
        return text.windows()
    view = memoryview(text)
    return (view[start : start + WINDOW] for start in range(0, len(view), WINDOW))
