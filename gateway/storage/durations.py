"""How long requests took: counted in buckets, each up to 1.6 times the one before, and read as percentiles.

Counts add up, over time and over processes, which percentiles do not. What is read of them is at
most a bucket off.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Literal

STEPS = (1.0, 1.6, 2.5, 4.0, 6.3)

BOUNDS = tuple(step * 10**power for power in range(5) for step in STEPS)[:-1]
"""The upper ends of the buckets in milliseconds, 1 to 40,000. Above is one more, which has none."""

BUCKETS = len(BOUNDS) + 1

Part = Literal["gateway", "service"]

PARTS: tuple[Part, ...] = ("gateway", "service")
"""Of what the durations are kept: a request's time in the gateway itself, and at the service."""


def columns_of(part: str) -> list[str]:
    """A column for each bucket, in their order."""
    return [f"{part}_{bucket:02}" for bucket in range(BUCKETS)]


def _none() -> list[int]:
    return [0] * BUCKETS


@dataclass(slots=True)
class Durations:
    """How many fell into each bucket."""

    counts: list[int] = field(default_factory=_none)

    def count(self, ms: float) -> None:
        self.counts[bisect_left(BOUNDS, ms)] += 1

    def add(self, other: Durations) -> None:
        self.counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]

    @property
    def total(self) -> int:
        return sum(self.counts)

    def percentile(self, percent: float) -> float | None:
        """Milliseconds that so many in a hundred took at most; infinite above the last bound."""
        rank = self.total * percent / 100
        before = 0
        for bucket, counted in enumerate(self.counts):
            if counted and before + counted >= rank:
                return _within(bucket, (rank - before) / counted)
            before += counted
        return None


def _within(bucket: int, part: float) -> float:
    """So far into a bucket, on the scale on which they are equally wide."""
    if bucket == len(BOUNDS):
        return math.inf
    upper = BOUNDS[bucket]
    lower = BOUNDS[bucket - 1] if bucket else upper / 1.6
    return float(f"{lower * (upper / lower) ** part:.2g}")  # more digits would not be known
