"""Charts over time: the drawing agrees with the numbers."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gateway.console.charts import (
    HEIGHT,
    WIDTH,
    build_line_plot,
    build_stacked_bar_plot,
    format_axis_time_labels,
    list_time_span_starts,
    round_up_axis,
)

amounts = st.one_of(st.just(0.0), st.floats(1e-3, 1e9))
"""Counts, and milliseconds in the mean."""

span_lists = st.lists(st.fixed_dictionaries({"a": amounts, "b": amounts}), min_size=1, max_size=50)


@given(amounts)
def test_axis_maximum_is_a_short_number_near_the_data(value: float) -> None:
    axis_maximum = round_up_axis(value)
    assert axis_maximum >= value * (1 - 1e-6)
    assert axis_maximum <= max(value * 2.01, 1)
    assert len(f"{axis_maximum:.2e}".partition("e")[0].rstrip("0").rstrip(".")) <= 3


@given(span_lists)
def test_bars_are_stacked_inside_the_chart(values_by_span: list[dict[str, float]]) -> None:
    plot = build_stacked_bar_plot(
        [(str(index), span_values) for index, span_values in enumerate(values_by_span)], []
    )
    assert len(plot.bars) == len(values_by_span)
    for bar, values in zip(plot.bars, values_by_span, strict=True):
        assert bar.total == sum(values.values())
        assert [part.kind for part in bar.segments] == [name for name in values if values[name] > 0]
        previous_y = HEIGHT
        for part in bar.segments:
            assert 0 <= part.y <= HEIGHT
            assert 0 <= part.x <= part.x + part.width <= WIDTH + 0.01
            assert part.y <= previous_y
            previous_y = part.y
            exact_height = values[part.kind] / plot.ticks[0] * HEIGHT
            assert abs(part.height - max(exact_height, 1.5)) < 0.01


@given(span_lists)
def test_lines_are_inside_the_chart_with_gaps(values_by_span: list[dict[str, float]]) -> None:
    rows = [(str(index), span_values) for index, span_values in enumerate(values_by_span)]
    plot = build_line_plot(rows, [])
    for kind, path in plot.lines.items():
        values = [span_values[kind] for span_values in values_by_span]
        points = re.findall(r"([ML])([\d.]+) ([\d.]+)", path)
        assert len(points) == sum(value > 0 for value in values)
        starts = sum(
            value > 0 >= before for before, value in zip([0.0, *values], values, strict=False)
        )
        assert [command for command, _, _ in points].count("M") == starts
        assert all(0 <= float(y) <= HEIGHT and 0 <= float(x) <= WIDTH for _, x, y in points)


def test_no_data_gives_an_empty_chart() -> None:
    assert build_stacked_bar_plot([("0", {"a": 0})], []).is_empty
    assert build_stacked_bar_plot([], []).is_empty


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
