"""CPU time of processes from the kernel, and the cores on which they may run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def read_cpu_seconds(pid: int) -> float:
    """User and system time of a process, its threads and its children, including ended ones."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    fields = stat.rpartition(")")[2].split()
    own_seconds = sum(map(int, fields[11:15])) / _TICK
    return own_seconds + sum(map(read_cpu_seconds, _list_children(pid)))


def read_precise_cpu_seconds(pid: int) -> float:
    """The same for running threads, more precise than ticks of 10 ms: for short measurements."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in threads) / 1e9


def _list_children(pid: int) -> list[int]:
    child_ids: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        child_ids += map(int, (task / "children").read_text().split())
    return child_ids


def select_cores() -> tuple[set[int], set[int]]:
    """Cores for the server, and for load and service; the same core if there is only one."""
    if not hasattr(os, "sched_getaffinity"):
        return set(), set()
    available_cores = sorted(os.sched_getaffinity(0))
    return {available_cores[0]}, set(available_cores[1:2] or available_cores)


@contextmanager
def pin_to_cores(cores: set[int]) -> Iterator[None]:
    """Pins processes that start within the context to these cores."""
    if not cores:
        yield
        return
    original_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, original_cores)


def is_pinned() -> bool:
    server, load = select_cores()
    return bool(server) and server != load
