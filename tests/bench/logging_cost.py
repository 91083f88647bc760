"""Measures the share of a read's CPU time that the log and the metrics take."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from statistics import median

from tests.bench import contestant_processes, load, machine
from tests.bench.figures import Goal
from tests.bench.workloads import WORKLOADS

READ = WORKLOADS[0]
PAIRS, SECONDS = 10, 0.3
"""Short alternating measurements per round, so that other load on the machine affects both alike."""

HEARD_SECONDS = 0.1
"""Time for the process to handle a signal, which it does not confirm."""

GOAL = 15.0


async def measure_share(folder: Path, service_port: int, rounds: int) -> Goal:
    """In percent, the median of all pairs."""
    await contestant_processes.prepare_gateway(folder, service_port, "sqlite:///gateway.db")
    shares: list[float] = []
    with machine.pin_to_cores(machine.select_cores()[0]):
        gateway_context = contestant_processes.run_gateway(folder, "tests.bench.unlogged_gateway")
        running = await gateway_context.__aenter__()
    try:
        pid = running.process.pid
        await load.run_clients(
            running.port, READ, READ.clients, 1, min_requests=2 * READ.number_count
        )
        for number in range(1, rounds + 1):
            print(f"round {number} of {rounds}: log and metrics", flush=True)
            shares += await _measure_pairs(running.port, pid)
    finally:
        await gateway_context.__aexit__(None, None, None)
    description = f"{READ.name}: share of log and metrics in its CPU time"
    return Goal(description, median(shares), GOAL, at_most=True, unit=" %")


async def _measure_pairs(port: int, pid: int) -> list[float]:
    """The share for each pair of measurements, under constant load."""
    result, shares = load.LoadResult(), []
    load_seconds = (
        PAIRS * 2 * (SECONDS + HEARD_SECONDS) + 2
    )  # the load must outlast the measurements
    load_task = asyncio.ensure_future(
        load.run_clients(port, READ, READ.clients, load_seconds, result=result)
    )
    for _ in range(PAIRS):
        full_cost = await _measure_cpu(pid, result)
        shares.append(100 * (1 - await _measure_cpu(pid, result) / full_cost))
    await load_task
    return shares


async def _measure_cpu(pid: int, result: load.LoadResult) -> float:
    """CPU seconds per request; switches to the other variant afterwards."""
    count_before, cpu_before = len(result.durations), machine.read_precise_cpu_seconds(pid)
    await asyncio.sleep(SECONDS)
    cpu_seconds = (machine.read_precise_cpu_seconds(pid) - cpu_before) / max(
        1, len(result.durations) - count_before
    )
    os.kill(pid, signal.SIGUSR1)
    await asyncio.sleep(HEARD_SECONDS)
    return cpu_seconds
