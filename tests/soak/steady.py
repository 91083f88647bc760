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
from tests.processes import Process

CLIENTS = 16
CAPACITY_RUNS = 3
MOST_CONNECTIONS = 256
SAMPLES = 400
PARTS = 10
"""Parts of the run, each with its own percentiles."""

MEGABYTE = 1024 * 1024
MAX_GROWTH_MEGABYTES = 24
"""Megabytes by which the last quarter's median may exceed the first quarter's, in which caches fill."""

_READ, _LIST, _METHOD, _BATCH = (workload.request for workload in WORKLOADS[:4])
_RECIPIENT_COUNT = WORKLOADS[0].number_count
MIX = (_READ,) * 14 + (_LIST,) * 3 + (_METHOD,) + (_BATCH,) * 2
"""Of twenty requests three write: one payout method and two batches."""

_numbers = itertools.count(int(time.time()) % 10**4 * 10**4)


def _build_request() -> bytes:
    number = next(_numbers)
    template = MIX[number % len(MIX)]
    return insert_number(template, number % _RECIPIENT_COUNT if template is _READ else number)


class Report(Protocol):
    def add_row(
        self, description: str, value: float | None, unit: str, max_value: float | None = None
    ) -> None: ...


class LoadConnection(asyncio.Protocol):
    """Sends one request at a time and reports its status, or 0 if the connection ended."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._response = bytearray()
        self._on_status: Callable[[int], None] | None = None
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def send(self, request: bytes, on_status: Callable[[int], None]) -> None:
        self._on_status = on_status
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._response += data
        head, separator, body = self._response.partition(b"\r\n\r\n")
        if not separator:
            return
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if len(body) >= int(length):
            self._response.clear()
            self._report(int(head.split(b" ", 2)[1]))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._report(0)

    def _report(self, status: int) -> None:
        on_status, self._on_status = self._on_status, None
        if on_status:
            on_status(status)

    def close(self) -> None:
        self._transport.abort()


@dataclass(slots=True)
class LoadResult:
    statuses: Counter[int] = field(default_factory=Counter)
    durations: list[list[float]] = field(default_factory=lambda: [[] for _ in range(PARTS)])
    """Seconds, for each part of the run."""

    @property
    def failure_count(self) -> int:
        return self.statuses.total() - self.statuses[200]


class LoadGenerator:
    """Sends requests on as many connections as needed, up to a bound."""

    def __init__(self, port: int) -> None:
        self.result = LoadResult()
        self._port = port
        self._idle: deque[LoadConnection] = deque()
        self._waiting: deque[tuple[float, int]] = deque()
        self._open_tasks: set[asyncio.Task[None]] = set()
        self._count = 0

    async def measure_capacity(self, seconds: float) -> float:
        """Requests per second with status 200 while a few clients send continuously."""
        end_time = time.monotonic() + seconds
        await asyncio.gather(*(self._client(end_time) for _ in range(CLIENTS)))
        return self.result.statuses[200] / seconds

    async def _client(self, end_time: float) -> None:
        connection = await self._connect()
        while time.monotonic() < end_time and connection.is_open:
            status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            connection.send(_build_request(), status.set_result)
            self.result.statuses[await status] += 1
        connection.close()

    async def run_at_rate(self, per_second: float, seconds: float) -> None:
        start_time, sent_count, total_count = time.monotonic(), 0, int(per_second * seconds)
        while sent_count < total_count:
            due_count = min(total_count, int((time.monotonic() - start_time) * per_second) + 1)
            for number in range(sent_count, due_count):
                self._send_request(start_time + number / per_second, PARTS * number // total_count)
            sent_count = due_count
            await asyncio.sleep(max(0.0, start_time + sent_count / per_second - time.monotonic()))
        async with asyncio.timeout(60):
            while self.result.statuses.total() < total_count:
                await asyncio.sleep(0.05)
        for connection in self._idle:
            connection.close()

    def _send_request(self, due_time: float, part: int) -> None:
        while self._idle:
            if (connection := self._idle.pop()).is_open:
                self._send_on(connection, due_time, part)
                return
            self._count -= 1
        self._waiting.append((due_time, part))
        if self._count < MOST_CONNECTIONS:
            self._count += 1
            open_task = asyncio.ensure_future(self._open_connection())
            self._open_tasks.add(open_task)
            open_task.add_done_callback(self._open_tasks.discard)

    async def _open_connection(self) -> None:
        try:
            connection = await self._connect()
        except OSError:
            self._count -= 1
            if self._waiting:
                self._waiting.popleft()
                self.result.statuses[0] += 1
        else:
            self._reuse(connection)

    async def _connect(self) -> LoadConnection:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(LoadConnection, "127.0.0.1", self._port))[1]

    def _send_on(self, connection: LoadConnection, due_time: float, part: int) -> None:
        def record_status(status: int) -> None:
            self.result.statuses[status] += 1
            if status == 200:
                self.result.durations[part].append(time.monotonic() - due_time)
            if status:
                self._reuse(connection)
            else:
                self._count -= 1

        connection.send(_build_request(), record_status)

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
        async with contestant_processes.run_gateway(folder) as gateway:
            yield gateway


def _read_memory_megabytes(pid: int) -> float:
    """Megabytes."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize() / MEGABYTE


async def _sample_memory(
    pid: int, interval_seconds: float, samples: list[tuple[float, float]]
) -> None:
    while True:
        samples.append((time.monotonic(), _read_memory_megabytes(pid)))
        await asyncio.sleep(interval_seconds)


async def run_steady(seconds: float, report: Report) -> None:
    """Runs for about ``seconds``."""
    short_seconds = min(20.0, seconds / 10)
    with tempfile.TemporaryDirectory() as name:
        async with _start_gateway(Path(name) / "gateway") as gateway:
            await LoadGenerator(gateway.port).measure_capacity(short_seconds / 4)  # warm up
            capacities = [
                await LoadGenerator(gateway.port).measure_capacity(short_seconds / CAPACITY_RUNS)
                for _ in range(CAPACITY_RUNS)
            ]
            capacity = median(capacities)
            report.add_row(f"steady: capacity, {CLIENTS} clients", capacity, "a second")
            generator, samples = LoadGenerator(gateway.port), list[tuple[float, float]]()
            run_seconds = seconds - 1.25 * short_seconds
            sampling = asyncio.ensure_future(
                _sample_memory(gateway.process.pid, run_seconds / SAMPLES, samples)
            )
            await generator.run_at_rate(capacity / 2, run_seconds)
            sampling.cancel()
            with suppress(asyncio.CancelledError):
                await sampling
            code = await gateway.stop()
    _report(generator.result, capacity / 2, run_seconds, samples, report)
    report.add_row("steady: exit code", code, "", 0)


def _report(
    result: LoadResult,
    rate: float,
    seconds: float,
    samples: Sequence[tuple[float, float]],
    report: Report,
) -> None:
    report.add_row(f"steady: asked for {seconds:,.0f} s, half of it", rate, "a second")
    report.add_row("steady: answered", result.statuses[200], "")
    report.add_row("steady: not answered", result.failure_count, "", 0)
    durations = [seconds_taken for part in result.durations for seconds_taken in part]
    for percent in (50, 99):
        report.add_row(f"steady: p{percent}", _compute_percentile(durations, percent), "ms")
    percentiles = "  ".join(f"{_compute_percentile(part, 99):,.0f}" for part in result.durations)
    print(f"steady: p99 of each tenth of the time, ms: {percentiles}", flush=True)
    quarter = max(1, len(samples) // 4)
    first_median = median(size for _, size in samples[:quarter])
    last_median = median(size for _, size in samples[-quarter:])
    report.add_row("steady: memory, median of the first quarter", first_median, "MB")
    report.add_row(
        "steady: memory, median of the last quarter",
        last_median,
        "MB",
        first_median + MAX_GROWTH_MEGABYTES,
    )
    # From the second quarter on, because caches fill in the first.
    later_samples = samples[quarter:]
    line = linear_regression(
        [sampled_at for sampled_at, _ in later_samples], [size for _, size in later_samples]
    )
    report.add_row("steady: memory, a line through what follows", 3600 * line.slope, "MB an hour")


def _compute_percentile(durations: Sequence[float], of_hundred: int) -> float:
    """A percentile, in milliseconds."""
    sorted_durations = sorted(durations) or [float("nan")]
    return (
        1000
        * sorted_durations[
            min(len(sorted_durations) - 1, len(sorted_durations) * of_hundred // 100)
        ]
    )
