"""A body on its way out: a part at a time, so that a large one holds nobody up, and never copied."""

from __future__ import annotations

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from gateway import large

PART = 256 * 1024


class Body(Payload):
    """Bytes that are there already; more than one part waits for the other side to take them."""

    _autoclose = True

    def __init__(self, *parts: bytes) -> None:
        super().__init__(parts, content_type="application/json")
        self._size = sum(map(len, parts))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        went, size = 0, sum(map(len, self._value))
        for whole in self._value:
            part = memoryview(whole)
            for start in range(0, len(part), PART):
                await writer.write(part[start : start + PART])
                went += len(part[start : start + PART])
                if size > PART:
                    large.told("answers", went, size)
