"""Measured figures, and how they are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tests.bench.contestant_processes import FASTAPI, GATEWAY, NODE, ON_POSTGRES, PASSING
from tests.bench.workloads import WORKLOADS, Workload

DIRECT = "the service itself"
"""Direct requests to the service: only their latency is measured."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one workload at one contestant; times in milliseconds, except ``cpu``."""

    alone_p50: float
    cpu: float = 0.0
    """CPU microseconds per request."""
    per_second: float = 0.0
    p50: float = 0.0
    p99: float = 0.0


Measured = Mapping[tuple[str, str], Sequence[Round]]
"""By workload and contestant."""


@dataclass(frozen=True, slots=True)
class Distribution:
    median: float
    least: float
    most: float


def summarize(rounds: Sequence[Round], what: str) -> Distribution:
    values = [getattr(one, what) for one in rounds]
    return Distribution(median(values), min(values), max(values))


def compute_percentile(took: Sequence[float], of_hundred: int) -> float:
    """A percentile, in milliseconds."""
    ordered = sorted(took)
    return 1000 * ordered[min(len(ordered) - 1, len(ordered) * of_hundred // 100)]


@dataclass(frozen=True, slots=True)
class Goal:
    what: str
    measured: float
    goal: float
    at_most: bool = False
    unit: str = "×"

    @property
    def is_met(self) -> bool:
        return self.measured <= self.goal if self.at_most else self.measured >= self.goal


def list_goals(measured: Measured) -> list[Goal]:
    held: list[Goal] = []
    for work in WORKLOADS:
        for other, at_least in ((PASSING, 0.5 if work.enters else 0.8), (FASTAPI, 10), (NODE, 0.5)):
            if (work.name, other) in measured:
                ratio = _compute_cpu(measured, work, other) / _compute_cpu(measured, work, GATEWAY)
                what = f"{work.name}: requests per CPU second, against {other}"
                held.append(Goal(what, ratio, at_least))
    return [*held, *_compute_added_latency(measured)]


def _compute_cpu(measured: Measured, work: Workload, name: str) -> float:
    return summarize(measured[work.name, name], "cpu").median


def _compute_added_latency(measured: Measured) -> Iterable[Goal]:
    """For reads only: a write waits for the disk."""
    for work in WORKLOADS:
        if work.enters or (work.name, DIRECT) not in measured:
            continue
        direct, passing, own = (
            summarize(measured[work.name, name], "alone_p50").median
            for name in (DIRECT, PASSING, GATEWAY)
        )
        what = f"{work.name}: p50 added to a client alone, against {PASSING}"
        yield Goal(what, (own - direct) / (passing - direct), 1.3, at_most=True)


def compute_durable_writes(measured: Measured) -> dict[str, float]:
    """Writes per second, each with a commit before it is sent and after its response."""
    found = {}
    for work in WORKLOADS:
        for name in (GATEWAY, ON_POSTGRES):
            if work.enters and (rounds := measured.get((work.name, name))):
                found[f"{work.name}, {name}"] = summarize(rounds, "per_second").median
    return found
