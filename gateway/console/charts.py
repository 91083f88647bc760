"""Computes the geometry of bar and line charts over time, for SVG templates.

A drawing is ``WIDTH`` by ``HEIGHT`` units and is stretched to its container, so text cannot be part of
it. A table with the same values is below each plot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

WIDTH, HEIGHT = 1000, 200

BAR_GAP = 0.2
"""Empty share of a bar's width."""

MAX_LABELS = 6

AXIS_STEPS = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
"""Upper ends of an axis; half of each is a short number too."""


@dataclass(frozen=True, slots=True)
class BarSegment:
    """A segment of a bar. ``kind`` is its CSS class."""

    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A stacked bar, ``total`` high. ``values`` are by kind; ``x`` and ``width`` include the gap."""

    label: str
    x: float
    width: float
    segments: tuple[BarSegment, ...]
    values: Mapping[str, float]
    total: float


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot. ``ticks`` are the values at the upper edge, in the middle and at the lower edge.

    ``labels`` are evenly spaced below. ``lines`` are SVG paths by CSS class, with gaps if values are
    missing.
    """

    bars: tuple[Bar, ...]
    ticks: tuple[float, float, float]
    labels: tuple[str, ...]
    lines: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not any(bar.total for bar in self.bars)

    @property
    def highest_bar(self) -> Bar:
        return max(self.bars, key=lambda bar: bar.total)


def build_stacked_bar_plot(
    rows: Sequence[tuple[str, Mapping[str, float]]], labels: Sequence[str]
) -> Plot:
    """Builds stacked bars from rows of a label and non-negative values by kind."""
    top = round_up_axis(max((sum(values.values()) for _, values in rows), default=0))
    slot_width = WIDTH / max(len(rows), 1)
    return Plot(
        tuple(
            _build_stacked_bar(index * slot_width, slot_width, row, top)
            for index, row in enumerate(rows)
        ),
        (top, top / 2, 0.0),
        tuple(labels),
    )


def build_line_plot(rows: Sequence[tuple[str, Mapping[str, float]]], labels: Sequence[str]) -> Plot:
    """Builds a line for each kind, on a logarithmic axis of whole powers of ten.

    A value of 0 is a gap. The bars are without segments: they are the places to point at.
    """
    values = [value for _, row in rows for value in row.values() if value > 0] or [1.0]
    low = math.floor(math.log10(min(values)))
    high = max(math.ceil(math.log10(max(values))), low + 1)
    high += (high - low) % 2  # so that the tick in the middle is a power of ten too
    slot_width = WIDTH / max(len(rows), 1)

    def compute_point(index: int, value: float) -> str:
        y = HEIGHT * (1 - (math.log10(value) - low) / (high - low))
        return f"{(index + 0.5) * slot_width:.1f} {y:.1f}"

    def build_path(kind: str) -> str:
        parts, has_previous = [], False
        for index, (_, row) in enumerate(rows):
            if row[kind] > 0:
                point = compute_point(index, row[kind])
                # The line of no length makes a value between two gaps visible.
                parts.append(f"L{point}" if has_previous else f"M{point}h0")
            has_previous = row[kind] > 0
        return "".join(parts)

    return Plot(
        tuple(
            Bar(label, index * slot_width, slot_width, (), row, max(row.values(), default=0.0))
            for index, (label, row) in enumerate(rows)
        ),
        (10.0**high, 10.0 ** ((high + low) / 2), 10.0**low),
        tuple(labels),
        {kind: build_path(kind) for kind in (rows[0][1] if rows else ())},
    )


def _build_stacked_bar(
    x: float, slot_width: float, row: tuple[str, Mapping[str, float]], top: float
) -> Bar:
    label, values = row
    segments, y = [], float(HEIGHT)
    for kind, value in values.items():
        if value > 0:
            # A minimum height keeps small values visible, above all few failures.
            height = max(value / top * HEIGHT, 1.5)
            y -= height
            width = round(slot_width * (1 - BAR_GAP), 2)
            segments.append(
                # Minimum heights can add up to more than the plot is high, hence the 0.
                BarSegment(kind, round(x, 2), round(max(y, 0), 2), width, round(height, 2))
            )
    total = sum(values.values())
    return Bar(label, round(x, 2), round(slot_width, 2), tuple(segments), values, total)


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


def format_axis_time_labels(moments: Sequence[datetime], form: str = "%H:%M") -> list[str]:
    """Formats a few of the moments, evenly spaced from the first."""
    step = max(1, math.ceil(len(moments) / MAX_LABELS))
    return [f"{moment:{form}}" for moment in moments[::step]]
