"""Stacked bar charts over time. The template draws them, with a table of the same values below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

MAX_LABELS = 6

AXIS_STEPS = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
"""Upper ends of an axis; half of each is a short number too."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A stacked bar: values by kind, which is a CSS class."""

    label: str
    values: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.values.values())


@dataclass(frozen=True, slots=True)
class BarChart:
    """A chart of at least one bar. ``labels`` are evenly spaced below."""

    title: str
    bars: Sequence[Bar]
    labels: Sequence[str]

    @property
    def highest_bar(self) -> Bar:
        return max(self.bars, key=lambda bar: bar.total)

    @property
    def top(self) -> float:
        """The upper end of the axis."""
        return round_up_axis(self.highest_bar.total)


def round_up_axis(value: float) -> float:
    """Rounds up to a short number; 1 if there is no value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    # The tolerance is for rounding errors.
    return next(step * power for step in AXIS_STEPS if value <= step * power * (1 + 1e-9))


def list_time_span_starts(since: datetime, until: datetime, size: timedelta) -> list[datetime]:
    """Returns the starts of all spans from ``since`` to before ``until``."""
    return [since + number * size for number in range(math.ceil((until - since) / size))]


def format_axis_time_labels(moments: Sequence[datetime]) -> list[str]:
    """Formats a few of the moments, evenly spaced from the first."""
    step = max(1, math.ceil(len(moments) / MAX_LABELS))
    return [f"{moment:%H:%M}" for moment in moments[::step]]
