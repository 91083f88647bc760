"""Buffers a request body until it is complete: in memory if small, otherwise in a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from tempfile import SpooledTemporaryFile

MAX_MEMORY_BYTES = 1024 * 1024
"""Size up to which a body is in memory. The file has no name and vanishes when it is closed."""

CHUNK_BYTES = 256 * 1024


class Spool:
    """A buffered body of ``size`` bytes; must be closed."""

    def __init__(self) -> None:
        self.size = 0
        self._file = SpooledTemporaryFile(max_size=MAX_MEMORY_BYTES)  # noqa: SIM115 - closed by ``close``

    async def append(self, part: bytes) -> None:
        self.size += len(part)
        # From this size the data is in a file, and a write could block the event loop.
        if self.size > MAX_MEMORY_BYTES:
            await asyncio.to_thread(self._file.write, part)
        else:
            self._file.write(part)

    async def iter_chunks(self) -> AsyncIterator[bytes]:
        """Yields the body from its beginning; only one reader at a time."""
        self._file.seek(0)
        while part := await self._read_chunk():
            yield part

    async def _read_chunk(self) -> bytes:
        if self.size > MAX_MEMORY_BYTES:
            return await asyncio.to_thread(self._file.read, CHUNK_BYTES)
        return self._file.read(CHUNK_BYTES)

    def close(self) -> None:
        self._file.close()
