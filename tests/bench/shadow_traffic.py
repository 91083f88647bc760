"""Measures how shadow traffic affects the client's latency, whatever the other service does.

A client reads a recipient every few milliseconds; its key is translated, or compared with a legacy service that
responds at once, late, or not at all. All are measured in turns, so that other load of the machine affects
each of them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.bench import contestant_processes, load, machine
from tests.bench.contestant_processes import Contestant
from tests.bench.figures import compute_percentile
from tests.bench.workloads import WORKLOADS
from tests.processes import find_free_port

READ = WORKLOADS[0]
REQUEST_INTERVAL_SECONDS = 0.01
LEGACY_DELAY_SECONDS = 1.0
GOAL_MS = 1.0

COMPARING_SECTIONS = """legacy_base_url = "http://127.0.0.1:{port}"
[comparing]
answers = "current"
"""


@dataclass(slots=True)
class MeasuredGateway:
    """A gateway, and a client's latency percentiles in milliseconds for each round."""

    gateway: Contestant
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)

    async def measure_latency(self, seconds: float) -> None:
        result = await load.run_clients(
            self.gateway.port, READ, 1, seconds, interval_seconds=REQUEST_INTERVAL_SECONDS
        )
        self.p50.append(compute_percentile(result.durations, 50))
        self.p99.append(compute_percentile(result.durations, 99))


@asynccontextmanager
async def _start_gateway(
    name: str, folder: Path, service_port: int, legacy_port: int | None
) -> AsyncIterator[Contestant]:
    extra_sections = "" if legacy_port is None else COMPARING_SECTIONS.format(port=legacy_port)
    await contestant_processes.prepare_gateway(
        folder, service_port, "sqlite:///gateway.db", extra_sections
    )
    if legacy_port is not None:
        await contestant_processes.run_command(
            folder, "modes", "set", "--merchant", "bench", "--yes", "compare"
        )
    with machine.pin_to_cores(machine.select_cores()[0]):
        async with contestant_processes.run_gateway(folder) as running:
            yield Contestant(name, running.port, running.process.pid)


async def run_bench(rounds: int, seconds: float) -> None:
    print(f"load before: {os.getloadavg()[0]:.2f}", flush=True)
    with tempfile.TemporaryDirectory() as folder, machine.pin_to_cores(machine.select_cores()[1]):
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(contestant_processes.start_service())
            legacy_ports = {
                "without a comparison": None,
                "compared with one that answers at once": port,
                f"compared with one that answers after {LEGACY_DELAY_SECONDS:g} s": (
                    await stack.enter_async_context(
                        contestant_processes.start_service(LEGACY_DELAY_SECONDS)
                    )
                ),
                "compared with one that is not there": find_free_port(),
            }
            gateways = []
            for name, legacy_port in legacy_ports.items():
                gateway_context = _start_gateway(
                    name, Path(folder, str(len(gateways))), port, legacy_port
                )
                gateways.append(MeasuredGateway(await stack.enter_async_context(gateway_context)))
            for gateway in gateways:
                await load.run_clients(
                    gateway.gateway.port, READ, 1, 0, min_requests=READ.number_count
                )
            for number in range(1, rounds + 1):
                print(f"round {number} of {rounds}", flush=True)
                for gateway in gateways:
                    await gateway.measure_latency(seconds)
    print(f"\n{format_table(gateways)}")


def format_table(gateways: list[MeasuredGateway]) -> str:
    """Medians of the rounds, and how far each p99 exceeds the first contestant's."""
    lines = [f"{'':<44}{'p50 ms':>9}{'p99 ms':>9}{'added to p99':>15}"]
    baseline_p99 = median(gateways[0].p99)
    for gateway in gateways:
        p50, p99 = median(gateway.p50), median(gateway.p99)
        line = f"{gateway.gateway.name:<44}{p50:>9.2f}{p99:>9.2f}"
        if gateway is not gateways[0]:
            verdict = "met" if p99 - baseline_p99 <= GOAL_MS else "NOT MET"
            line += f"{p99 - baseline_p99:>12.2f} ms  (goal: ≤ {GOAL_MS:g} ms)  {verdict}"
        lines.append(line)
    return "\n".join(lines)
