"""Measures how shadow traffic affects the client's latency, whatever the other service does.

A client asks for a recipient every few milliseconds; its key is translated, or compared with a
legacy service that answers at once, late, or not at all. All are asked in turns, so that what else
the machine does meets each of them.
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
from tests.processes import find_free_port, run_serve

READ = WORKLOADS[0]
EVERY = 0.01
LATE = 1.0
GOAL_MS = 1.0

COMPARED = """legacy_base_url = "http://127.0.0.1:{port}"
[comparing]
answers = "current"
"""


@dataclass(slots=True)
class MeasuredGateway:
    """A gateway, and a client's latency percentiles in milliseconds for each round."""

    gateway: Contestant
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)

    async def ask(self, seconds: float) -> None:
        heard = await load.run_clients(self.gateway.port, READ, 1, seconds, every=EVERY)
        self.p50.append(compute_percentile(heard.took, 50))
        self.p99.append(compute_percentile(heard.took, 99))


@asynccontextmanager
async def _start_gateway(
    name: str, folder: Path, service_port: int, other: int | None
) -> AsyncIterator[Contestant]:
    more = "" if other is None else COMPARED.format(port=other)
    await contestant_processes.prepare_gateway(folder, service_port, "sqlite:///gateway.db", more)
    if other is not None:
        await contestant_processes.run_command(
            folder, "modes", "set", "--merchant", "bench", "--yes", "compare"
        )
    with machine.pin_to_cores(machine.select_cores()[0]):
        async with run_serve(folder, seconds=contestant_processes.START_SECONDS) as running:
            yield Contestant(name, running.port, running.process.pid)


async def run_bench(rounds: int, seconds: float) -> None:
    print(f"load before: {os.getloadavg()[0]:.2f}", flush=True)
    with tempfile.TemporaryDirectory() as folder, machine.pin_to_cores(machine.select_cores()[1]):
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(contestant_processes.start_service())
            others = {
                "without a comparison": None,
                "compared with one that answers at once": port,
                f"compared with one that answers after {LATE:g} s": (
                    await stack.enter_async_context(contestant_processes.start_service(LATE))
                ),
                "compared with one that is not there": find_free_port(),
            }
            sides = []
            for name, other in others.items():
                opening = _start_gateway(name, Path(folder, str(len(sides))), port, other)
                sides.append(MeasuredGateway(await stack.enter_async_context(opening)))
            for side in sides:
                await load.run_clients(side.gateway.port, READ, 1, 0, least=READ.among)
            for number in range(1, rounds + 1):
                print(f"round {number} of {rounds}", flush=True)
                for side in sides:
                    await side.ask(seconds)
    print(f"\n{format_table(sides)}")


def format_table(sides: list[MeasuredGateway]) -> str:
    """Medians of the rounds, and how far each p99 exceeds the first contestant's."""
    lines = [f"{'':<44}{'p50 ms':>9}{'p99 ms':>9}{'added to p99':>15}"]
    without = median(sides[0].p99)
    for side in sides:
        p50, p99 = median(side.p50), median(side.p99)
        line = f"{side.gateway.name:<44}{p50:>9.2f}{p99:>9.2f}"
        if side is not sides[0]:
            mark = "met" if p99 - without <= GOAL_MS else "NOT MET"
            line += f"{p99 - without:>12.2f} ms  (goal: ≤ {GOAL_MS:g} ms)  {mark}"
        lines.append(line)
    return "\n".join(lines)
