"""Measured figures, and how they are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tests.bench.contestant_processes import FASTAPI, GATEWAY, NODE, ON_POSTGRES, PASSING
from tests.bench.workloads import WORKLOADS

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


RoundsByWorkload = Mapping[tuple[str, str], Sequence[Round]]
"""By workload and contestant."""


@dataclass(frozen=True, slots=True)
class Distribution:
    median: float
    least: float
    most: float


def summarize(rounds: Sequence[Round], figure: str) -> Distribution:
    values = [getattr(round_result, figure) for round_result in rounds]
    return Distribution(median(values), min(values), max(values))


def compute_percentile(durations: Sequence[float], of_hundred: int) -> float:
    """A percentile, in milliseconds."""
    sorted_durations = sorted(durations)
    return (
        1000
        * sorted_durations[
            min(len(sorted_durations) - 1, len(sorted_durations) * of_hundred // 100)
        ]
    )


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


MIN_CPU_RATIOS = {
    ("recipient", PASSING): 1.0,
    ("recipient", FASTAPI): 15,
    ("recipient", NODE): 1.0,
    ("list of 10", NODE): 1.0,
    ("payout method", PASSING): 0.28,
    ("batch of 1", PASSING): 0.28,
    ("batch of 10,000", NODE): 0.5,
}
"""Goals: requests per CPU second, relative to a contestant's."""

MAX_ADDED_LATENCY = 1.15


def list_goals(rounds_by_workload: RoundsByWorkload) -> list[Goal]:
    goals = [
        Goal(
            f"{name}: requests per CPU second, against {contestant}",
            _compute_cpu(rounds_by_workload, name, contestant)
            / _compute_cpu(rounds_by_workload, name, GATEWAY),
            at_least,
        )
        for (name, contestant), at_least in MIN_CPU_RATIOS.items()
        if (name, contestant) in rounds_by_workload
    ]
    return [*goals, *_compute_added_latency(rounds_by_workload)]


def _compute_cpu(rounds_by_workload: RoundsByWorkload, workload: str, name: str) -> float:
    return summarize(rounds_by_workload[workload, name], "cpu").median


def _compute_added_latency(rounds_by_workload: RoundsByWorkload) -> Iterable[Goal]:
    """For reads only: a write waits for the disk."""
    for workload in WORKLOADS:
        if workload.enters or (workload.name, DIRECT) not in rounds_by_workload:
            continue
        service_p50, passing_p50, gateway_p50 = (
            summarize(rounds_by_workload[workload.name, name], "alone_p50").median
            for name in (DIRECT, PASSING, GATEWAY)
        )
        description = f"{workload.name}: p50 added to a client alone, against {PASSING}"
        yield Goal(
            description,
            (gateway_p50 - service_p50) / (passing_p50 - service_p50),
            MAX_ADDED_LATENCY,
            at_most=True,
        )


def compute_durable_writes(rounds_by_workload: RoundsByWorkload) -> dict[str, float]:
    """Writes per second, each with a commit before it is sent and after its response."""
    rates = {}
    for workload in WORKLOADS:
        for name in (GATEWAY, ON_POSTGRES):
            if workload.enters and (rounds := rounds_by_workload.get((workload.name, name))):
                rates[f"{workload.name}, {name}"] = summarize(rounds, "per_second").median
    return rates
