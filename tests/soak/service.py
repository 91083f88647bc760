"""A service that answers at once, slowly for one merchant, or not at all, and counts requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

BALANCE = b'{"ok":true,"balances":{"EUR":{"primary":true,"amount":"1.00","currency":"EUR","type":"service","accountNumber":null}}}'
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(BALANCE),
    BALANCE,
)


class Service:
    def __init__(self) -> None:
        self.port = 0
        self.request_counts: Counter[str] = Counter()
        """Requests by access key."""
        self.slow: dict[str, float] = {}
        """Seconds that a response takes, by access key."""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Closes at once; ``open`` returns at the same address."""
        if self._server:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                key = head.partition(b"svcsign ")[2].partition(b":")[0].decode()
                self.request_counts[key] += 1
                if seconds := self.slow.get(key):
                    await asyncio.sleep(seconds)
                writer.write(RESPONSE)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()
