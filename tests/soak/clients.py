"""Clients that send requests continuously, and clients that only hold connections."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

READ = "GET /v1/profile/balances HTTP/1.1\r\nHost: gateway\r\nX-API-Key: {key}\r\n\r\n"


@dataclass(slots=True)
class Tally:
    """Statuses that clients got, and after how many seconds."""

    statuses: Counter[int | str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    """For responses with status 200."""
    without_wait: int = 0
    """Refusals without Retry-After."""

    def compute_percentile(self, of_hundred: int) -> float:
        """A percentile, in milliseconds."""
        sorted_seconds = sorted(self.seconds) or [float("nan")]
        return (
            1000
            * sorted_seconds[min(len(sorted_seconds) - 1, len(sorted_seconds) * of_hundred // 100)]
        )

    @property
    def success_count(self) -> int:
        return self.statuses[200]

    @property
    def neither_count(self) -> int:
        """Requests that were neither answered nor given Retry-After."""
        return self.statuses.total() - self.statuses[200] - self.statuses[500] + self.without_wait


class LoadClients:
    """Clients of one merchant that send requests while the context is open."""

    def __init__(self, port: int, key: str, clients: int, *, pause: float = 0.0) -> None:
        self.tally = Tally()
        self._port = port
        self._data = READ.format(key=key).encode()
        self._clients = clients
        self._pause = pause
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Tally:
        self._tasks = [asyncio.ensure_future(self._run_client()) for _ in range(self._clients)]
        return self.tally

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run_client(self) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:
                self.tally.statuses["no connection"] += 1
                await asyncio.sleep(0.1)
                continue
            try:
                while await self._request(reader, writer):
                    await asyncio.sleep(self._pause)
            except (OSError, asyncio.IncompleteReadError):
                self.tally.statuses["cut off"] += 1
            finally:
                writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection may be used again."""
        start_time = time.monotonic()
        writer.write(self._data)
        status, head = await read_response(reader)
        self.tally.statuses[status] += 1
        if status == 200:
            self.tally.seconds.append(time.monotonic() - start_time)
        elif b"\r\nretry-after:" not in head:
            self.tally.without_wait += 1
            await asyncio.sleep(0.05)
        else:
            await asyncio.sleep(0.2)  # ignores Retry-After, as an impatient crowd does
        return b"\r\nconnection: close" not in head


async def read_response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
    await reader.readexactly(length)
    return int(head.split(b" ", 2)[1]), head


class IdleConnections:
    """Connections that send nothing, or send very slowly."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._slow_sender: asyncio.Task[None] | None = None

    async def connect(self, first_bytes: Iterable[bytes]) -> None:
        # In groups, so that they are accepted and do not wait in the kernel's queue.
        group: list[bytes] = []
        for data in [*first_bytes, None]:
            if data is not None:
                group.append(data)
            if len(group) == 100 or data is None:
                await asyncio.gather(*map(self._connect_one, group))
                group.clear()
        self._slow_sender = asyncio.ensure_future(self._send_slowly())

    async def _connect_one(self, data: bytes) -> None:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(data)
            self._connections.append((reader, writer))

    async def _send_slowly(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            for _reader, writer in self._connections:
                if not writer.is_closing():
                    writer.write(b"x")

    @property
    def count_open(self) -> int:
        return sum(not (reader.at_eof() or reader.exception()) for reader, _ in self._connections)

    async def wait_until_closed(self, seconds: float) -> float | None:
        """Seconds until all were closed; None if some were not."""
        start_time = time.monotonic()
        while self.count_open:
            if time.monotonic() - start_time > seconds:
                return None
            await asyncio.sleep(0.05)
        return time.monotonic() - start_time

    def disconnect(self) -> None:
        if self._slow_sender:
            self._slow_sender.cancel()
        for _, writer in self._connections:
            writer.transport.abort()
        self._connections.clear()
