"""Bar charts over time: the drawing agrees with the numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gateway.console.charts import (
    HEIGHT,
    WIDTH,
    build_plot,
    list_span_starts,
    round_up_axis,
    select_axis_labels,
)

amounts = st.one_of(st.just(0.0), st.floats(1e-3, 1e9))
"""Counts, and milliseconds in the mean."""

rows = st.lists(st.fixed_dictionaries({"a": amounts, "b": amounts}), min_size=1, max_size=50)


@given(amounts)
def test_axis_maximum_is_a_short_number_near_the_data(value: float) -> None:
    top = round_up_axis(value)
    assert top >= value * (1 - 1e-6)
    assert top <= max(value * 2.01, 1)
    assert len(f"{top:.2e}".partition("e")[0].rstrip("0").rstrip(".")) <= 3


@given(rows)
def test_bars_are_stacked_inside_the_chart(given: list[dict[str, float]]) -> None:
    drawn = build_plot([(str(at), one) for at, one in enumerate(given)], [])
    assert len(drawn.bars) == len(given)
    for bar, values in zip(drawn.bars, given, strict=True):
        assert bar.total == sum(values.values())
        assert [part.kind for part in bar.segments] == [name for name in values if values[name] > 0]
        below = HEIGHT
        for part in bar.segments:
            assert 0 <= part.y <= HEIGHT
            assert 0 <= part.x <= part.x + part.width <= WIDTH + 0.01
            assert part.y <= below
            below = part.y
            exact = values[part.kind] / drawn.top * HEIGHT
            assert abs(part.height - max(exact, 1.5)) < 0.01


def test_no_data_gives_an_empty_chart() -> None:
    assert build_plot([("0", {"a": 0})], []).is_empty
    assert build_plot([], []).is_empty


def test_bars_and_labels_are_evenly_spaced() -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    found = list_span_starts(begin, begin + timedelta(hours=24), timedelta(minutes=15))
    assert len(found) == 96
    assert select_axis_labels(found) == ["00:00", "04:00", "08:00", "12:00", "16:00", "20:00"]
