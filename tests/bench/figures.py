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


def list_goals(rounds_by_workload: RoundsByWorkload) -> list[Goal]:
    goals: list[Goal] = []
    for workload in WORKLOADS:
        for contestant, at_least in (
            (PASSING, 0.5 if workload.enters else 0.8),
            (FASTAPI, 10),
            (NODE, 0.5),
        ):
            if (workload.name, contestant) in rounds_by_workload:
                ratio = _compute_cpu(rounds_by_workload, workload, contestant) / _compute_cpu(
                    rounds_by_workload, workload, GATEWAY
                )
                description = f"{workload.name}: requests per CPU second, against {contestant}"
                goals.append(Goal(description, ratio, at_least))
    return [*goals, *_compute_added_latency(rounds_by_workload)]


def _compute_cpu(rounds_by_workload: RoundsByWorkload, workload: Workload, name: str) -> float:
    return summarize(rounds_by_workload[workload.name, name], "cpu").median


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
            1.3,
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
