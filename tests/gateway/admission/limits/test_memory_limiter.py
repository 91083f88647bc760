import math
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.limits import Admission, InProcessRateLimiter


class FakeClock:
    def __init__(self, now: float = 1000.25) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


async def test_key_is_admitted_up_to_its_limit_and_then_refused():
    limits = InProcessRateLimiter(FakeClock(0.0))
    assert [await limits.admit("k", 2) for _ in range(4)] == [
        Admission(True, 2, 1, 3601),
        Admission(True, 2, 0, 3601),
        Admission(False, 2, 0, 3601),
        Admission(False, 2, 0, 3601),
    ]
    assert (await limits.admit("another", 2)).is_admitted


async def test_refused_requests_are_not_counted():
    clock = FakeClock()
    limits = InProcessRateLimiter(clock)
    await limits.admit("k", 1)
    for _ in range(3600):
        clock.now += 1
        assert not (await limits.admit("k", 1)).is_admitted
    clock.now += 1
    assert (await limits.admit("k", 1)).is_admitted


gaps = st.one_of(st.just(0.0), st.floats(0, 2), st.floats(0, 1000), st.floats(3590, 3610))
traffic = st.lists(gaps, max_size=120)


@given(traffic, st.integers(1, 12), st.floats(0, 1e9))
async def test_admissions_per_hour_stay_between_bounds(gaps: list[float], limit: int, start: float):
    clock = FakeClock(start)
    limits = InProcessRateLimiter(clock)
    admission_times: list[float] = []
    for gap in gaps:
        clock.now += gap
        admission = await limits.admit("k", limit)
        recent_times = [
            admission_time
            for admission_time in admission_times
            if clock.now - admission_time < 3601
        ]
        if admission.is_admitted:
            admission_times.append(clock.now)
            assert admission.remaining >= limit - len(recent_times) - 1
        else:
            assert len(recent_times) >= limit
            assert 1 <= admission.reset_seconds <= 3601
        times_in_hour = [
            admission_time
            for admission_time in admission_times
            if clock.now - admission_time <= 3600
        ]
        assert len(times_in_hour) <= limit


@given(traffic, st.integers(1, 6), st.floats(0, 1e9))
async def test_client_that_waits_for_retry_after_is_admitted(gaps, limit, start):
    clock = FakeClock(start)
    limits = InProcessRateLimiter(clock)
    for gap in gaps:
        clock.now += gap
        admission = await limits.admit("k", limit)
        if not admission.is_admitted:
            clock.now += admission.reset_seconds
            assert (await limits.admit("k", limit)).is_admitted


async def test_changed_limit_takes_effect_immediately():
    clock = FakeClock()
    limits = InProcessRateLimiter(clock)
    for _ in range(10):
        await limits.admit("k", 10)
        clock.now += 1
    decision = await limits.admit("k", 3)
    assert (decision.is_admitted, decision.remaining) == (False, 0)
    clock.now += decision.reset_seconds
    assert (await limits.admit("k", 3)).remaining == 0
    assert (await limits.admit("k", 20)).remaining == 16
    assert not (await limits.admit("k", 0)).is_admitted


async def test_remaining_grows_when_reset_seconds_have_passed():
    clock = FakeClock()
    limits = InProcessRateLimiter(clock)
    await limits.admit("k", 5)
    clock.now += 100
    second = await limits.admit("k", 5)
    assert (second.remaining, second.reset_seconds) == (3, 3501)
    clock.now += second.reset_seconds
    assert (await limits.admit("k", 5)).remaining == 3


async def test_keys_idle_for_an_hour_are_dropped():
    clock = FakeClock()
    limits = InProcessRateLimiter(clock)
    for key in range(1000):
        await limits.admit(str(key), 5)
    clock.now += 3602
    await limits.admit("k", 5)
    assert list(limits._windows) == ["k"]


@pytest.mark.parametrize("limit", [10_000, 1_000_000])
async def test_key_uses_less_than_100_kb_for_any_limit(limit: int):
    clock = FakeClock()
    limits = InProcessRateLimiter(clock)
    per_second = math.ceil(limit / 3600)
    tracemalloc.start()
    try:
        for _ in range(3 * 3600):
            clock.now += 1
            for _ in range(min(per_second, 3)):
                await limits.admit("k", limit)
        current_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    tally = limits._windows["k"]
    assert sys.getsizeof(tally._seconds) + sys.getsizeof(tally.counts) < 80_000
    assert current_bytes < 100_000
    assert peak_bytes < 150_000  # while an array is resized, its old and its new memory count


async def test_usage_of_a_key_can_be_read_without_counting():
    clock = FakeClock()
    limits = InProcessRateLimiter(clock)
    for _ in range(3):
        await limits.admit("k", 10)
        clock.now += 1
    await limits.admit("full", 1)
    await limits.admit("full", 1)
    for _ in range(2):
        assert await limits.list_window_request_counts(["k", "nobody", "full"]) == [3, 0, 1]
    clock.now += 3598
    assert await limits.list_window_request_counts(["k", "full"]) == [2, 1]
    clock.now += 10
    assert await limits.list_window_request_counts(["k", "full"]) == [0, 0]
