"""Buffer for a request body until it is complete: in memory if small, otherwise in a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from tempfile import SpooledTemporaryFile

IN_MEMORY = 1024 * 1024
"""Size up to which a body is in memory. The file has no name and vanishes when it is closed."""

PART = 256 * 1024


class Spool:
    """A buffered body of ``size`` bytes; must be closed."""

    def __init__(self) -> None:
        self.size = 0
        self._file = SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - closed by ``close``

    async def add(self, part: bytes) -> None:
        self.size += len(part)
        if self.size > IN_MEMORY:
            await asyncio.to_thread(self._file.write, part)
        else:
            self._file.write(part)

    async def parts(self) -> AsyncIterator[bytes]:
        """Yields the body from its beginning; only one reader at a time."""
        self._file.seek(0)
        while part := await self._read():
            yield part

    async def _read(self) -> bytes:
        if self.size > IN_MEMORY:
            return await asyncio.to_thread(self._file.read, PART)
        return self._file.read(PART)

    def close(self) -> None:
        self._file.close()
