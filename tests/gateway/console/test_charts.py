"""Charts over time: the axis."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.console.traffic import round_up_axis


@given(st.one_of(st.just(0.0), st.floats(1e-3, 1e9)))
def test_axis_maximum_is_a_short_number_near_the_data(value: float) -> None:
    axis_maximum = round_up_axis(value)
    assert axis_maximum >= value * (1 - 1e-6)
    assert axis_maximum <= max(value * 2.01, 2)
    assert len(f"{axis_maximum:.2e}".partition("e")[0].rstrip("0").rstrip(".")) <= 1
    assert (axis_maximum / 2).is_integer(), "the axis also has a label in its middle"
