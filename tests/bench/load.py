"""Clients that send one request after another, with minimal cost of their own."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from dataclasses import dataclass, field
from typing import cast

from tests.bench.workloads import Workload, insert_number

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
ANSWER_SECONDS = 60

_numbers = itertools.count(int(time.time()) % 10**4 * 10**4)
"""Never repeats a number within a run: see ``work``."""


class ContestantBroken(Exception):
    """The contestant answers wrongly, so that there is nothing to measure."""


@dataclass(slots=True)
class LoadResult:
    """Seconds of each response, and of the whole run."""

    took: list[float] = field(default_factory=list)
    seconds: float = 0.0


class LoadClient(asyncio.Protocol):
    """One connection; it sends the next request after each response, or one ``every`` so many seconds."""

    def __init__(
        self, work: Workload, heard: LoadResult, until: float, least: int, every: float = 0.0
    ) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last = b""
        self._template, self._among = work.request, work.among
        self._heard = heard
        self._until = until
        self._least = least
        self._every = every
        self._transport: asyncio.Transport
        self._answer = bytearray()
        self._whole = -1
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            "asyncio.Transport", transport
        )  # uvloop's transport is not a subclass
        self._send_next()

    def _send_next(self) -> None:
        data = insert_number(self._template, next(_numbers) % self._among)
        self._sent_at = time.perf_counter()
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if self._whole < 0 and (end := self._answer.find(b"\r\n\r\n")) >= 0:
            self._parse_head(bytes(self._answer[:end]), end + 4)
        if 0 <= self._whole <= len(self._answer):
            self._count_response()

    def _parse_head(self, head: bytes, begins: int) -> None:
        length = _LENGTH.search(head)
        if length is None:
            self._fail(f"an answer without a length: {head[:80]!r}")
        elif not head.startswith(b"HTTP/1.1 200"):
            self._fail(f"not answered 200: {bytes(self._answer[:600])!r}")
        else:
            self._whole = begins + int(length[1])

    def _count_response(self) -> None:
        now = time.perf_counter()
        self._heard.took.append(now - self._sent_at)
        self.last, self._whole = bytes(self._answer), -1
        self._answer.clear()
        if now >= self._until and len(self._heard.took) >= self._least:
            self._transport.close()
            self._finish(None)
        elif self._every:
            rest = max(0.0, self._sent_at + self._every - now)
            asyncio.get_running_loop().call_later(rest, self._send_next)
        else:
            self._send_next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection ended ({type(exc).__name__})")

    def _fail(self, why: str) -> None:
        self._finish(ContestantBroken(why))

    def _finish(self, failure: Exception | None) -> None:
        if not self.done.done() and failure:
            self.done.set_exception(failure)
        elif not self.done.done():
            self.done.set_result(None)


async def run_clients(
    port: int,
    work: Workload,
    clients: int,
    seconds: float,
    least: int = 1,
    *,
    every: float = 0.0,
    heard: LoadResult | None = None,
) -> LoadResult:
    """Runs clients for some time and at least some requests; raises Broken.

    Each waits for its answer, and where ``every`` is given until so many seconds have gone. What is
    heard is added to ``heard`` meanwhile.
    """
    heard = heard or LoadResult()
    began = time.perf_counter()
    await _wait_for_clients([(port, work, heard, began + seconds, least, every)] * clients, seconds)
    heard.seconds = time.perf_counter() - began
    return heard


async def fetch_once(port: int, work: Workload) -> bytes:
    """The body of one response."""
    (client,) = await _wait_for_clients([(port, work, LoadResult(), 0.0, 1, 0.0)], 0)
    return client.last.partition(b"\r\n\r\n")[2]


async def _wait_for_clients(
    asking: list[tuple[int, Workload, LoadResult, float, int, float]], seconds: float
) -> list[LoadClient]:
    loop, clients = asyncio.get_running_loop(), []
    for port, *rest in asking:
        made = LoadClient(*rest)  # type: ignore[arg-type]
        await loop.create_connection(lambda made=made: made, "127.0.0.1", port)  # type: ignore[misc]
        clients.append(made)
    async with asyncio.timeout(seconds + ANSWER_SECONDS):
        await asyncio.gather(*(client.done for client in clients))
    return clients
