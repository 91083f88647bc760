"""Requests per second of one worker and of two on one database, measured alternately.

It also measures the CPU time of all processes of the gateway per request, which shows the overhead of several
workers even if they share cores with the load.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from redis import Redis
from redis.exceptions import RedisError

from tests.bench import contestant_processes, load, machine
from tests.bench.workloads import WORKLOADS

READ = WORKLOADS[0]
CLIENTS = 32
WORKERS = (1, 2)
ENOUGH = 4
"""Cores: two for workers, and two for load and service."""

LIMITS_SECTION = """[limits]
url = "{redis}"
requests_per_hour = 1_000_000_000
"""


@dataclass(slots=True)
class WorkerResult:
    """Per round: requests per second, and CPU microseconds per request."""

    per_second: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def _select_cores() -> tuple[set[int], set[int]]:
    """Cores for workers, and for load and service; None if there are too few to separate them."""
    if not hasattr(os, "sched_getaffinity"):
        return set(), set()
    available_cores = sorted(os.sched_getaffinity(0))
    return (
        (set(available_cores[:2]), set(available_cores[2:]))
        if len(available_cores) >= ENOUGH
        else (set(), set())
    )


def _is_redis_available(redis: str) -> bool:
    try:
        return bool(Redis.from_url(redis).ping())
    except RedisError:
        return False


@asynccontextmanager
async def _start_gateway(
    folder: Path, configuration: str, workers: int
) -> AsyncIterator[tuple[int, int]]:
    """Port and process of a gateway with some workers, on the database in another gateway's ``folder``."""
    (folder / "gateway.toml").write_text(
        configuration.replace("[server]", f"[server]\nworkers = {workers}")
    )
    async with contestant_processes.run_gateway(folder) as running:
        yield running.port, running.process.pid


async def run_bench(folder: Path, rounds: int, seconds: float, redis: str) -> str:
    """Lines for the report; ``folder`` belongs to a gateway on PostgreSQL that has ended."""
    if not _is_redis_available(redis):
        return f"left out: several workers: there is no Redis at {redis}; --redis names another"
    server_cores, client_cores = _select_cores()
    configuration = (folder / "gateway.toml").read_text().partition("[limits]")[
        0
    ] + LIMITS_SECTION.format(redis=redis)
    results = {workers: WorkerResult() for workers in WORKERS}
    with machine.pin_to_cores(client_cores):
        async with AsyncExitStack() as stack:
            service_port = await stack.enter_async_context(contestant_processes.start_service())
            configuration = contestant_processes.point_at_service(service_port, configuration)
            gateways = {}
            for workers in WORKERS:
                with machine.pin_to_cores(server_cores):
                    gateway_context = _start_gateway(folder, configuration, workers)
                    gateways[workers] = await stack.enter_async_context(gateway_context)
            for port, _pid in gateways.values():
                await load.run_clients(port, READ, CLIENTS, 1, min_requests=2 * READ.number_count)
            for number in range(1, rounds + 1):
                print(f"round {number} of {rounds}: workers", flush=True)
                for workers, (port, pid) in gateways.items():
                    cpu_before = machine.read_cpu_seconds(pid)
                    result = await load.run_clients(port, READ, CLIENTS, seconds)
                    cpu_seconds = machine.read_cpu_seconds(pid) - cpu_before
                    results[workers].per_second.append(len(result.durations) / result.seconds)
                    results[workers].cpu.append(1e6 * cpu_seconds / len(result.durations))
    return format_table(results, is_apart=bool(server_cores))


def format_table(results: dict[int, WorkerResult], *, is_apart: bool) -> str:
    single_worker = results[WORKERS[0]]
    title = f"{READ.name}, PostgreSQL"
    lines = [f"{title:<28}{'requests/s':>24}{'':9}{'CPU µs/request':>22}"]
    for workers, result in results.items():
        name = f"{workers} worker{'s' if workers > 1 else ''}"
        times = median(result.per_second) / median(single_worker.per_second)
        lines.append(
            f"  {name:<26}{_format_result(result.per_second):>24}{times:>8.2f}×{_format_result(result.cpu):>22}"
        )
    if not is_apart:
        lines.append(
            f"  {os.cpu_count()} cores, which workers, load and service share: a second worker can "
            f"only take what\n  these leave, and this is no measure of how it scales; {ENOUGH} would be."
        )
    return "\n".join(lines)


def _format_result(values: Sequence[float]) -> str:
    return f"{median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"
