import math
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.limits import Admission, InProcess


class Clock:
    def __init__(self, now: float = 1000.25) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


async def test_a_key_is_admitted_up_to_its_limit_and_then_refused():
    limits = InProcess(Clock(0.0))
    assert [await limits.admit("k", 2) for _ in range(4)] == [
        Admission(True, 2, 1, 3601, None),
        Admission(True, 2, 0, 3601, None),
        Admission(False, 2, 0, 3601, 3601),
        Admission(False, 2, 0, 3601, 3601),
    ]
    assert (await limits.admit("another", 2)).admitted


async def test_refused_requests_do_not_count():
    clock = Clock()
    limits = InProcess(clock)
    await limits.admit("k", 1)
    for _ in range(3600):
        clock.now += 1
        assert not (await limits.admit("k", 1)).admitted
    clock.now += 1
    assert (await limits.admit("k", 1)).admitted


gaps = st.one_of(st.just(0.0), st.floats(0, 2), st.floats(0, 1000), st.floats(3590, 3610))
traffic = st.lists(gaps, max_size=120)


@given(traffic, st.integers(1, 12), st.floats(0, 1e9))
async def test_never_more_than_the_limit_in_any_hour_and_never_fewer_than_the_bound_says(
    gaps: list[float], limit: int, start: float
):
    clock = Clock(start)
    limits = InProcess(clock)
    admitted: list[float] = []
    for gap in gaps:
        clock.now += gap
        admission = await limits.admit("k", limit)
        recent = [stamp for stamp in admitted if clock.now - stamp < 3601]
        if admission.admitted:
            admitted.append(clock.now)
            assert admission.remaining >= limit - len(recent) - 1
        else:
            assert len(recent) >= limit
            assert admission.reset_seconds == admission.retry_after
            assert 1 <= (admission.retry_after or 0) <= 3601
        hour = [stamp for stamp in admitted if clock.now - stamp <= 3600]
        assert len(hour) <= limit


@given(traffic, st.integers(1, 6), st.floats(0, 1e9))
async def test_a_client_that_waits_exactly_as_long_as_told_is_admitted(gaps, limit, start):
    clock = Clock(start)
    limits = InProcess(clock)
    for gap in gaps:
        clock.now += gap
        admission = await limits.admit("k", limit)
        if admission.retry_after is not None:
            clock.now += admission.retry_after
            assert (await limits.admit("k", limit)).admitted


async def test_a_limit_that_is_lowered_or_raised_takes_effect_at_once():
    clock = Clock()
    limits = InProcess(clock)
    for _ in range(10):
        await limits.admit("k", 10)
        clock.now += 1
    lowered = await limits.admit("k", 3)
    assert (lowered.admitted, lowered.remaining) == (False, 0)
    clock.now += lowered.retry_after or 0
    assert (await limits.admit("k", 3)).remaining == 0
    assert (await limits.admit("k", 20)).remaining == 16
    assert not (await limits.admit("k", 0)).admitted


async def test_remaining_grows_after_exactly_the_seconds_that_reset_says():
    clock = Clock()
    limits = InProcess(clock)
    await limits.admit("k", 5)
    clock.now += 100
    second = await limits.admit("k", 5)
    assert (second.remaining, second.reset_seconds) == (3, 3501)
    clock.now += second.reset_seconds
    assert (await limits.admit("k", 5)).remaining == 3


async def test_keys_that_are_idle_for_an_hour_are_forgotten():
    clock = Clock()
    limits = InProcess(clock)
    for key in range(1000):
        await limits.admit(str(key), 5)
    clock.now += 3602
    await limits.admit("k", 5)
    assert list(limits._tallies) == ["k"]


@pytest.mark.parametrize("limit", [10_000, 1_000_000])
async def test_a_key_takes_less_than_100_kb_whatever_its_limit(limit: int):
    clock = Clock()
    limits = InProcess(clock)
    per_second = math.ceil(limit / 3600)
    tracemalloc.start()
    try:
        for _ in range(3 * 3600):
            clock.now += 1
            for _ in range(min(per_second, 3)):
                await limits.admit("k", limit)
        current, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    tally = limits._tallies["k"]
    assert sys.getsizeof(tally._seconds) + sys.getsizeof(tally._counts) < 80_000
    assert current < 100_000
    assert peak < 150_000  # while an array is resized, its old and its new memory count


async def test_what_counts_of_a_key_can_be_looked_at_and_is_not_counted_by_looking():
    clock = Clock()
    limits = InProcess(clock)
    for _ in range(3):
        await limits.admit("k", 10)
        clock.now += 1
    await limits.admit("full", 1)
    await limits.admit("full", 1)
    for _ in range(2):
        assert await limits.counted(["k", "nobody", "full"]) == [3, 0, 1]
    clock.now += 3598
    assert await limits.counted(["k", "full"]) == [2, 1]
    clock.now += 10
    assert await limits.counted(["k", "full"]) == [0, 0]
