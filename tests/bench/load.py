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
"""Never repeats a number within a run: see ``workload``."""


class ContestantBroken(Exception):
    """The contestant answers wrongly, and cannot be measured."""


@dataclass(slots=True)
class LoadResult:
    """Seconds of each response, and of the whole run."""

    durations: list[float] = field(default_factory=list)
    seconds: float = 0.0


class LoadClient(asyncio.Protocol):
    """One connection; it sends the next request after each response, or one every ``interval_seconds``."""

    def __init__(
        self,
        workload: Workload,
        result: LoadResult,
        end_time: float,
        min_requests: int,
        interval_seconds: float = 0.0,
    ) -> None:
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last = b""
        self._template, self._number_count = workload.request, workload.number_count
        self._result = result
        self._end_time = end_time
        self._min_requests = min_requests
        self._interval_seconds = interval_seconds
        self._transport: asyncio.Transport
        self._response = bytearray()
        self._response_size = -1
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            "asyncio.Transport", transport
        )  # uvloop's transport is not a subclass
        self._send_next()

    def _send_next(self) -> None:
        data = insert_number(self._template, next(_numbers) % self._number_count)
        self._sent_at = time.perf_counter()
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._response += data
        if self._response_size < 0 and (head_end := self._response.find(b"\r\n\r\n")) >= 0:
            self._parse_head(bytes(self._response[:head_end]), head_end + 4)
        if 0 <= self._response_size <= len(self._response):
            self._count_response()

    def _parse_head(self, head: bytes, body_start: int) -> None:
        length = _LENGTH.search(head)
        if length is None:
            self._fail(f"an answer without a length: {head[:80]!r}")
        elif not head.startswith(b"HTTP/1.1 200"):
            self._fail(f"not answered 200: {bytes(self._response[:600])!r}")
        else:
            self._response_size = body_start + int(length[1])

    def _count_response(self) -> None:
        now = time.perf_counter()
        self._result.durations.append(now - self._sent_at)
        self.last, self._response_size = bytes(self._response), -1
        self._response.clear()
        if now >= self._end_time and len(self._result.durations) >= self._min_requests:
            self._transport.close()
            self._finish(None)
        elif self._interval_seconds:
            remaining_seconds = max(0.0, self._sent_at + self._interval_seconds - now)
            asyncio.get_running_loop().call_later(remaining_seconds, self._send_next)
        else:
            self._send_next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection ended ({type(exc).__name__})")

    def _fail(self, reason: str) -> None:
        self._finish(ContestantBroken(reason))

    def _finish(self, failure: Exception | None) -> None:
        if not self.finished.done() and failure:
            self.finished.set_exception(failure)
        elif not self.finished.done():
            self.finished.set_result(None)


async def run_clients(
    port: int,
    workload: Workload,
    clients: int,
    seconds: float,
    min_requests: int = 1,
    *,
    interval_seconds: float = 0.0,
    result: LoadResult | None = None,
) -> LoadResult:
    """Runs clients for some time and at least some requests; raises ContestantBroken.

    Each client waits for its response and, if ``interval_seconds`` is not 0, until so many seconds have
    passed since its last request. Durations are added to ``result`` while the clients run.
    """
    result = result or LoadResult()
    start_time = time.perf_counter()
    await _wait_for_clients(
        [(port, workload, result, start_time + seconds, min_requests, interval_seconds)] * clients,
        seconds,
    )
    result.seconds = time.perf_counter() - start_time
    return result


async def fetch_once(port: int, workload: Workload) -> bytes:
    """The body of one response."""
    (client,) = await _wait_for_clients([(port, workload, LoadResult(), 0.0, 1, 0.0)], 0)
    return client.last.partition(b"\r\n\r\n")[2]


async def _wait_for_clients(
    client_arguments: list[tuple[int, Workload, LoadResult, float, int, float]], seconds: float
) -> list[LoadClient]:
    loop, clients = asyncio.get_running_loop(), []
    for port, *arguments in client_arguments:
        client = LoadClient(*arguments)  # type: ignore[arg-type]
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)  # type: ignore[misc]
        clients.append(client)
    async with asyncio.timeout(seconds + ANSWER_SECONDS):
        await asyncio.gather(*(client.finished for client in clients))
    return clients
