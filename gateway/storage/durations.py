"""Histograms of request durations, with bucket bounds in steps of about 1.6.

Counts can be added up over time and processes, which percentiles cannot. A percentile that is read
from them is off by at most one bucket.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Literal

DECADE_STEPS = (1.0, 1.6, 2.5, 4.0, 6.3)

BUCKET_BOUNDS_MS = tuple(step * 10**power for power in range(5) for step in DECADE_STEPS)[:-1]
"""Upper bounds of the buckets in milliseconds, 1 to 40,000; one more bucket has no upper bound."""

BUCKET_COUNT = len(BUCKET_BOUNDS_MS) + 1

Part = Literal["gateway", "service"]

PARTS: tuple[Part, ...] = ("gateway", "service")
"""The measured parts of a request: the time in the gateway itself, and at the service."""


def list_bucket_columns(part: str) -> list[str]:
    """Lists the names of the bucket columns, in order."""
    return [f"{part}_{bucket:02}" for bucket in range(BUCKET_COUNT)]


def _build_empty_counts() -> list[int]:
    return [0] * BUCKET_COUNT


@dataclass(slots=True)
class Durations:
    """A histogram: the number of requests in each bucket."""

    counts: list[int] = field(default_factory=_build_empty_counts)

    def count(self, ms: float) -> None:
        self.counts[bisect_left(BUCKET_BOUNDS_MS, ms)] += 1

    def add(self, other: Durations) -> None:
        self.counts = [
            count + added for count, added in zip(self.counts, other.counts, strict=True)
        ]

    @property
    def total(self) -> int:
        return sum(self.counts)

    def percentile(self, percent: float) -> float | None:
        """Returns a percentile in milliseconds; None without requests, infinity if unbounded."""
        rank = self.total * percent / 100
        lower_count = 0
        for bucket, count in enumerate(self.counts):
            if count and lower_count + count >= rank:
                return _interpolate_in_bucket(bucket, (rank - lower_count) / count)
            lower_count += count
        return None


def _interpolate_in_bucket(bucket: int, fraction: float) -> float:
    """Interpolates inside a bucket, on the logarithmic scale of the bounds."""
    if bucket == len(BUCKET_BOUNDS_MS):
        return math.inf
    upper = BUCKET_BOUNDS_MS[bucket]
    lower = BUCKET_BOUNDS_MS[bucket - 1] if bucket else upper / 1.6
    # More digits would suggest a precision that a histogram does not have.
    return float(f"{lower * (upper / lower) ** fraction:.2g}")
