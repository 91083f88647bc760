"""Histograms of request durations, with bucket bounds in steps of about 1.6.

Counts can be added up over time and processes, which percentiles cannot. A percentile that is read
from them is off by at most one bucket.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Literal

STEPS = (1.0, 1.6, 2.5, 4.0, 6.3)

BOUNDS = tuple(step * 10**power for power in range(5) for step in STEPS)[:-1]
"""Upper bounds of the buckets in milliseconds, 1 to 40,000; one more bucket has no upper bound."""

BUCKETS = len(BOUNDS) + 1

Part = Literal["gateway", "service"]

PARTS: tuple[Part, ...] = ("gateway", "service")
"""The measured parts of a request: the time in the gateway itself, and at the service."""


def columns_of(part: str) -> list[str]:
    """The names of the bucket columns, in order."""
    return [f"{part}_{bucket:02}" for bucket in range(BUCKETS)]


def _none() -> list[int]:
    return [0] * BUCKETS


@dataclass(slots=True)
class Durations:
    """A histogram: the number of requests in each bucket."""

    counts: list[int] = field(default_factory=_none)

    def count(self, ms: float) -> None:
        self.counts[bisect_left(BOUNDS, ms)] += 1

    def add(self, other: Durations) -> None:
        self.counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]

    @property
    def total(self) -> int:
        return sum(self.counts)

    def percentile(self, percent: float) -> float | None:
        """A percentile in milliseconds: None without requests, infinite above the last bound."""
        rank = self.total * percent / 100
        before = 0
        for bucket, counted in enumerate(self.counts):
            if counted and before + counted >= rank:
                return _within(bucket, (rank - before) / counted)
            before += counted
        return None


def _within(bucket: int, part: float) -> float:
    """Interpolates inside a bucket, on the logarithmic scale of the bounds."""
    if bucket == len(BOUNDS):
        return math.inf
    upper = BOUNDS[bucket]
    lower = BOUNDS[bucket - 1] if bucket else upper / 1.6
    return float(
        f"{lower * (upper / lower) ** part:.2g}"
    )  # more digits would suggest a precision that a histogram does not have
