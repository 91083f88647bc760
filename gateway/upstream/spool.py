"""A body, kept whole before its first byte goes on: in memory while it is small, then in a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from tempfile import SpooledTemporaryFile

IN_MEMORY = 1024 * 1024
"""Bytes up to which a body is in memory. The file has no name, and is gone when it is closed."""

PART = 256 * 1024


class Spool:
    """To be closed; ``size`` in bytes."""

    def __init__(self) -> None:
        self.size = 0
        self._file = SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - it is closed by who made it

    async def add(self, part: bytes) -> None:
        self.size += len(part)
        if self.size > IN_MEMORY:
            await asyncio.to_thread(self._file.write, part)
        else:
            self._file.write(part)

    async def parts(self) -> AsyncIterator[bytes]:
        """From the beginning; one reader at a time."""
        self._file.seek(0)
        while part := await self._read():
            yield part

    async def _read(self) -> bytes:
        if self.size > IN_MEMORY:
            return await asyncio.to_thread(self._file.read, PART)
        return self._file.read(PART)

    def close(self) -> None:
        self._file.close()
