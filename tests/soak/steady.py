"""Runs a fresh gateway at half of its capacity and checks memory and latency.

First, clients that send as soon as they are answered measure the capacity. Then requests are sent at a fixed
rate, whether or not earlier ones were answered, and latency counts from the time at which a request was
due: the load does not wait for a gateway that falls behind.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import tempfile
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression, median
from typing import Protocol, cast

from tests.bench import contestant_processes
from tests.bench.workloads import WORKLOADS, insert_number
from tests.processes import Process, run_serve

CLIENTS = 16
TRIES = 3
MOST_CONNECTIONS = 256
SAMPLES = 400
PARTS = 10
"""Parts of the run, each with its own percentiles."""

MEGABYTE = 1024 * 1024
GROWN = 24
"""Megabytes by which the last quarter's median may exceed the first quarter's, in which caches fill."""

_READ, _LIST, _METHOD, _BATCH = (one.request for one in WORKLOADS[:4])
_AMONG = WORKLOADS[0].among
MIX = (_READ,) * 14 + (_LIST,) * 3 + (_METHOD,) + (_BATCH,) * 2
"""Of twenty requests three write: one payout method and two batches."""

_numbers = itertools.count(int(time.time()) % 10**4 * 10**4)


def _build_request() -> bytes:
    number = next(_numbers)
    asked = MIX[number % len(MIX)]
    return insert_number(asked, number % _AMONG if asked is _READ else number)


class Report(Protocol):
    def add_row(
        self, what: str, measured: float | None, unit: str, most: float | None = None
    ) -> None: ...


class LoadConnection(asyncio.Protocol):
    """Sends one request at a time and reports its status, or 0 if the connection ended."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._answer = bytearray()
        self._told: Callable[[int], None] | None = None
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def send(self, request: bytes, told: Callable[[int], None]) -> None:
        self._told = told
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, found, body = self._answer.partition(b"\r\n\r\n")
        if not found:
            return
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if len(body) >= int(length):
            self._answer.clear()
            self._report(int(head.split(b" ", 2)[1]))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._report(0)

    def _report(self, status: int) -> None:
        told, self._told = self._told, None
        if told:
            told(status)

    def close(self) -> None:
        self._transport.abort()


@dataclass(slots=True)
class LoadResult:
    statuses: Counter[int] = field(default_factory=Counter)
    took: list[list[float]] = field(default_factory=lambda: [[] for _ in range(PARTS)])
    """Seconds, for each part of the run."""

    @property
    def others(self) -> int:
        return self.statuses.total() - self.statuses[200]


class LoadGenerator:
    """Sends requests on as many connections as needed, up to a bound."""

    def __init__(self, port: int) -> None:
        self.heard = LoadResult()
        self._port = port
        self._idle: deque[LoadConnection] = deque()
        self._waiting: deque[tuple[float, int]] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._count = 0

    async def measure_capacity(self, seconds: float) -> float:
        """Requests per second with status 200 while a few clients send continuously."""
        until = time.monotonic() + seconds
        await asyncio.gather(*(self._client(until) for _ in range(CLIENTS)))
        return self.heard.statuses[200] / seconds

    async def _client(self, until: float) -> None:
        connection = await self._connected()
        while time.monotonic() < until and connection.is_open:
            status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            connection.send(_build_request(), status.set_result)
            self.heard.statuses[await status] += 1
        connection.close()

    async def run_at_rate(self, per_second: float, seconds: float) -> None:
        began, sent, whole = time.monotonic(), 0, int(per_second * seconds)
        while sent < whole:
            due = min(whole, int((time.monotonic() - began) * per_second) + 1)
            for number in range(sent, due):
                self._ask(began + number / per_second, PARTS * number // whole)
            sent = due
            await asyncio.sleep(max(0.0, began + sent / per_second - time.monotonic()))
        async with asyncio.timeout(60):
            while self.heard.statuses.total() < whole:
                await asyncio.sleep(0.05)
        for connection in self._idle:
            connection.close()

    def _ask(self, due: float, part: int) -> None:
        while self._idle:
            if (connection := self._idle.pop()).is_open:
                self._send_on(connection, due, part)
                return
            self._count -= 1
        self._waiting.append((due, part))
        if self._count < MOST_CONNECTIONS:
            self._count += 1
            opening = asyncio.ensure_future(self._opened())
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _opened(self) -> None:
        try:
            connection = await self._connected()
        except OSError:
            self._count -= 1
            if self._waiting:
                self._waiting.popleft()
                self.heard.statuses[0] += 1
        else:
            self._reuse(connection)

    async def _connected(self) -> LoadConnection:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(LoadConnection, "127.0.0.1", self._port))[1]

    def _send_on(self, connection: LoadConnection, due: float, part: int) -> None:
        def told(status: int) -> None:
            self.heard.statuses[status] += 1
            if status == 200:
                self.heard.took[part].append(time.monotonic() - due)
            if status:
                self._reuse(connection)
            else:
                self._count -= 1

        connection.send(_build_request(), told)

    def _reuse(self, connection: LoadConnection) -> None:
        if self._waiting:
            self._send_on(connection, *self._waiting.popleft())
        else:
            self._idle.append(connection)


@asynccontextmanager
async def _start_gateway(folder: Path) -> AsyncIterator[Process]:
    contestant_processes.INSTALLED.mkdir(exist_ok=True)
    async with contestant_processes.start_service() as port:
        await contestant_processes.prepare_gateway(folder, port, "sqlite:///gateway.db")
        async with run_serve(folder, seconds=contestant_processes.START_SECONDS) as gateway:
            yield gateway


def _read_memory_megabytes(pid: int) -> float:
    """Megabytes."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize() / MEGABYTE


async def _sample_memory(pid: int, every: float, samples: list[tuple[float, float]]) -> None:
    while True:
        samples.append((time.monotonic(), _read_memory_megabytes(pid)))
        await asyncio.sleep(every)


async def run_steady(seconds: float, report: Report) -> None:
    """For about so many seconds."""
    short = min(20.0, seconds / 10)
    with tempfile.TemporaryDirectory() as name:
        async with _start_gateway(Path(name) / "gateway") as gateway:
            await LoadGenerator(gateway.port).measure_capacity(short / 4)  # warm up
            tries = [
                await LoadGenerator(gateway.port).measure_capacity(short / TRIES)
                for _ in range(TRIES)
            ]
            capacity = median(tries)
            report.add_row(f"steady: capacity, {CLIENTS} clients", capacity, "a second")
            asking, samples = LoadGenerator(gateway.port), list[tuple[float, float]]()
            lasts = seconds - 1.25 * short
            sampling = asyncio.ensure_future(
                _sample_memory(gateway.process.pid, lasts / SAMPLES, samples)
            )
            await asking.run_at_rate(capacity / 2, lasts)
            sampling.cancel()
            with suppress(asyncio.CancelledError):
                await sampling
            code = await gateway.stop()
    _report(asking.heard, capacity / 2, lasts, samples, report)
    report.add_row("steady: exit code", code, "", 0)


def _report(
    heard: LoadResult,
    asked: float,
    seconds: float,
    samples: Sequence[tuple[float, float]],
    report: Report,
) -> None:
    report.add_row(f"steady: asked for {seconds:,.0f} s, half of it", asked, "a second")
    report.add_row("steady: answered", heard.statuses[200], "")
    report.add_row("steady: not answered", heard.others, "", 0)
    whole = [one for part in heard.took for one in part]
    for percent in (50, 99):
        report.add_row(f"steady: p{percent}", _compute_percentile(whole, percent), "ms")
    told = "  ".join(f"{_compute_percentile(part, 99):,.0f}" for part in heard.took)
    print(f"steady: p99 of each tenth of the time, ms: {told}", flush=True)
    quarter = max(1, len(samples) // 4)
    first = median(size for _, size in samples[:quarter])
    last = median(size for _, size in samples[-quarter:])
    report.add_row("steady: memory, median of the first quarter", first, "MB")
    report.add_row("steady: memory, median of the last quarter", last, "MB", first + GROWN)
    # From the second quarter on, because caches fill in the first.
    later = samples[quarter:]
    line = linear_regression([at for at, _ in later], [size for _, size in later])
    report.add_row("steady: memory, a line through what follows", 3600 * line.slope, "MB an hour")


def _compute_percentile(took: Sequence[float], of_hundred: int) -> float:
    """A percentile, in milliseconds."""
    ordered = sorted(took) or [float("nan")]
    return 1000 * ordered[min(len(ordered) - 1, len(ordered) * of_hundred // 100)]
