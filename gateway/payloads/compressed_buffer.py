"""A text as it comes, or is made, kept folded: a long one takes a fraction of its bytes.

It is read from its beginning, a window at a time, as often as is wanted.
"""

from __future__ import annotations

import asyncio
import io
import zlib
from collections.abc import Iterable, Iterator
from typing import Self

PART = 256 * 1024
"""Bytes that are folded together."""

WINDOW = 64 * 1024
"""Bytes that a reader is given at a time. TLS encrypts as many while others wait."""

_QUICKLY = 1


class CompressedBuffer:
    """``bytes`` of it are all of it, in hand. One is made again of the ``parts`` and the length of another."""

    def __init__(self, parts: Iterable[bytes] = (), size: int = 0) -> None:
        self._folded = [*parts]
        self._last = io.BytesIO()
        self._size = size

    @classmethod
    def of(cls, those: Iterable[bytes]) -> Self:
        """Folded while it is made."""
        folded = cls()
        for one in those:
            folded.put(one)
        return folded

    def put(self, part: bytes) -> None:
        if full := self._full_with(part):
            self._folded.append(zlib.compress(full, _QUICKLY))

    async def add(self, part: bytes) -> None:
        """The same, from the loop: it is folded in a thread beside it.

        Not ``aside``, where it would have to wait for others while the service waits for it.
        """
        if full := self._full_with(part):
            self._folded.append(await asyncio.to_thread(zlib.compress, full, _QUICKLY))

    def _full_with(self, part: bytes) -> bytes:
        """What is to be folded now; mostly nothing."""
        self._last.write(part)
        self._size += len(part)
        if self._last.tell() < PART:
            return b""
        full, self._last = self._last.getvalue(), io.BytesIO()
        return full

    def __len__(self) -> int:
        return self._size

    def parts(self) -> Iterator[bytes]:
        """As it is kept."""
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
    """Of what is in hand, or folded."""
    if isinstance(text, CompressedBuffer):
        return text.windows()
    view = memoryview(text)
    return (view[start : start + WINDOW] for start in range(0, len(view), WINDOW))
