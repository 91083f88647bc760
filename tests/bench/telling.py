"""Measures the share of a read's CPU time that the log and the metrics take."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from statistics import median

from tests.bench import load, machine, starting
from tests.bench.figures import Goal
from tests.bench.work import WORKS
from tests.processes import serving

READ = WORKS[0]
PAIRS, SECONDS = 10, 0.3
"""Short alternating measurements per round, so that other load on the machine affects both alike."""

HEARD_SECONDS = 0.1
"""Time for the process to handle a signal, which it does not confirm."""

GOAL = 15.0


async def share(folder: Path, service_port: int, rounds: int) -> Goal:
    """In percent, the median of all pairs."""
    await starting.prepare(folder, service_port, "sqlite:///gateway.db")
    found: list[float] = []
    with machine.on(machine.cores()[0]):
        opening = serving(
            folder,
            seconds=starting.START_SECONDS,
            command=[sys.executable, "-m", "tests.bench.quiet"],
            variables={"PYTHONPATH": str(starting.PROJECT)},
        )
        running = await opening.__aenter__()
    try:
        pid = running.running.pid
        await load.ask(running.port, READ, READ.clients, 1, least=2 * READ.among)
        for number in range(1, rounds + 1):
            print(f"round {number} of {rounds}: log and metrics", flush=True)
            found += await _pairs(running.port, pid)
    finally:
        await opening.__aexit__(None, None, None)
    what = f"{READ.name}: share of log and metrics in its CPU time"
    return Goal(what, median(found), GOAL, at_most=True, unit=" %")


async def _pairs(port: int, pid: int) -> list[float]:
    """The share for each pair of measurements, under constant load."""
    heard, found = load.Heard(), []
    lasts = PAIRS * 2 * (SECONDS + HEARD_SECONDS) + 2  # the load must outlast the measurements
    asking = asyncio.ensure_future(load.ask(port, READ, READ.clients, lasts, heard=heard))
    for _ in range(PAIRS):
        whole = await _cpu(pid, heard)
        found.append(100 * (1 - await _cpu(pid, heard) / whole))
    await asking
    return found


async def _cpu(pid: int, heard: load.Heard) -> float:
    """CPU seconds per request; switches to the other variant afterwards."""
    count, before = len(heard.took), machine.cpu_exactly(pid)
    await asyncio.sleep(SECONDS)
    used = (machine.cpu_exactly(pid) - before) / max(1, len(heard.took) - count)
    os.kill(pid, signal.SIGUSR1)
    await asyncio.sleep(HEARD_SECONDS)
    return used
