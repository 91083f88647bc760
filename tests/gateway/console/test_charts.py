"""Charts over time: axis and labels."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gateway.console.traffic import (
    Bar,
    BarChart,
    format_axis_time_labels,
    list_time_span_starts,
    round_up_axis,
)

amounts = st.one_of(st.just(0.0), st.floats(1e-3, 1e9))
"""Counts, and milliseconds in the mean."""


@given(amounts)
def test_axis_maximum_is_a_short_number_near_the_data(value: float) -> None:
    axis_maximum = round_up_axis(value)
    assert axis_maximum >= value * (1 - 1e-6)
    assert axis_maximum <= max(value * 2.01, 1)
    assert len(f"{axis_maximum:.2e}".partition("e")[0].rstrip("0").rstrip(".")) <= 3


def test_axis_fits_the_highest_bar() -> None:
    bars = [Bar("a", {"x": 7, "y": 3}), Bar("b", {"x": 0, "y": 13}), Bar("c", {"x": 0, "y": 0})]
    chart = BarChart("a title", bars, [])
    assert (chart.highest_bar, chart.top) == (bars[1], 15)


def test_bars_and_labels_are_evenly_spaced() -> None:
    period_start = datetime(2026, 1, 1, tzinfo=UTC)
    span_starts = list_time_span_starts(
        period_start, period_start + timedelta(hours=24), timedelta(minutes=15)
    )
    assert len(span_starts) == 96
    assert format_axis_time_labels(span_starts) == [
        "00:00",
        "04:00",
        "08:00",
        "12:00",
        "16:00",
        "20:00",
    ]
