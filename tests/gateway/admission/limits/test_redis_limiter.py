"""The rate limit in Redis: the same decisions as in memory, shared by all processes."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.admission.limits import Admission, InProcessRateLimiter, in_redis
from gateway.admission.limits.in_redis import ADMIT_SCRIPT, COUNT_ONLY, RedisRateLimiter
from tests.gateway.admission.limits.test_memory_limiter import FakeClock, gaps

LimiterFactory = Callable[..., RedisRateLimiter]

REDIS_TIME_EXPRESSION = "redis.call('TIME')[1]"
assert ADMIT_SCRIPT.count(REDIS_TIME_EXPRESSION) == 1
SCRIPT_WITH_TIME_ARGUMENT = ADMIT_SCRIPT.replace(REDIS_TIME_EXPRESSION, "ARGV[2]")
"""The script with the time, in seconds, as an argument."""

MANY_POLLS = 10_000
"""Enough polls for a response on a machine that may stall for longer than 90 ms."""


@pytest.fixture(autouse=True)
def wait_long_for_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_redis, "MAX_POLLS", MANY_POLLS)


def run_script(redis: Any, name: str, timed_limits: list[tuple[float, int]]) -> list[list[int]]:
    """Run the script for each (moment, limit) and return its answers."""
    pipe = redis.pipeline(transaction=False)
    for moment, limit in timed_limits:
        pipe.eval(SCRIPT_WITH_TIME_ARGUMENT, 1, name, limit, math.floor(moment))
    return [decision for (decision,) in pipe.execute()]


async def test_key_is_admitted_up_to_its_limit_and_then_refused(
    open_redis_limiter: LimiterFactory,
) -> None:
    async with open_redis_limiter() as limits:
        admissions = [await limits.admit("k", 2) for _ in range(3)]
        assert admissions[0] == Admission(True, 2, 1, 3601)
        assert [admission.is_admitted for admission in admissions] == [True, True, False]
        assert admissions[2].remaining == 0
        assert 3599 <= admissions[2].reset_seconds <= 3601
        assert (await limits.admit("another", 2)).is_admitted
        assert limits.local_decision_count == 0


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(gaps, st.sampled_from([0, 1, 2, 3, 5, 8])), max_size=100),
    st.floats(1e9, 2e9),
)
async def test_redis_and_memory_decide_alike(
    redis: Any, key_prefix: str, steps: list[tuple[float, int]], start: float
) -> None:
    clock = FakeClock(start)
    in_memory = InProcessRateLimiter(clock)
    timed_limits, expected = [], []
    for gap, limit in steps:
        clock.now += gap
        timed_limits.append((clock.now, limit))
        decision = await in_memory.admit("k", limit)
        expected.append([int(decision.is_admitted), decision.remaining, decision.reset_seconds])
    assert run_script(redis, key_prefix + secrets.token_hex(8), timed_limits) == expected


async def test_clock_set_back_never_loosens_the_limit(redis: Any, key_prefix: str) -> None:
    timed_limits = [(10_000, 2), (10_500, 2), (10_100, 2), (13_600, 2), (13_601, 2), (13_602, 2)]
    decisions = run_script(redis, f"{key_prefix}k", timed_limits)
    assert [is_admitted for is_admitted, _, _ in decisions] == [1, 1, 0, 0, 1, 0]
    assert [retry_after for _, _, retry_after in decisions[2:4]] == [3_501, 1]
    assert decisions[5] == [0, 0, 499]


async def test_clock_a_day_ahead_does_not_lock_keys_out_for_a_day(
    redis: Any, key_prefix: str
) -> None:
    decisions = run_script(redis, f"{key_prefix}k", [(100_000, 1), (20_000, 1), (20_001, 1)])
    assert decisions == [[1, 0, 3601], [1, 0, 3601], [0, 0, 3600]]


async def test_tally_uses_less_than_100_kb_for_any_limit(redis: Any, key_prefix: str) -> None:
    timed_limits = [(1_800_000_000 + second, 1_000_000) for second in range(3 * 3600)]
    assert all(
        is_admitted for is_admitted, _, _ in run_script(redis, f"{key_prefix}k", timed_limits)
    )
    assert redis.llen(f"{key_prefix}k") == 3_602
    assert redis.memory_usage(f"{key_prefix}k") < 100_000


async def test_requests_of_one_second_share_an_entry(redis: Any, key_prefix: str) -> None:
    run_script(redis, f"{key_prefix}k", [(1000, 100)] * 50 + [(999, 100)] * 10)
    assert redis.lrange(f"{key_prefix}k", 0, -1) == ["0:0", "1000:60"]


async def test_entries_expire_an_hour_after_last_use(
    open_redis_limiter: LimiterFactory, redis: Any, key_prefix: str
) -> None:
    async with open_redis_limiter() as limits:
        for _ in range(3):
            await limits.admit("k", 2)
    key_names = list(redis.scan_iter(f"{key_prefix}*"))
    assert len(key_names) == 2  # the other key belongs to the connection check
    assert all(3590 < redis.ttl(name) <= 3601 for name in key_names)


async def test_redis_contains_no_readable_key_or_address(
    open_redis_limiter: LimiterFactory, redis: Any, key_prefix: str
) -> None:
    async with open_redis_limiter() as limits:
        await limits.admit("address 192.0.2.77", 2)
        name = limits.build_redis_key("address 192.0.2.77")
    assert "192.0.2.77" not in "".join(redis.scan_iter(f"{key_prefix}*"))
    assert redis.exists(name)
    # An unkeyed digest would reveal an address, because all addresses can be tried.
    assert name != RedisRateLimiter("", b"another naming key", 1).build_redis_key(
        "address 192.0.2.77"
    )


async def test_limit_of_zero_admits_nothing_and_writes_nothing(redis: Any, key_prefix: str) -> None:
    assert run_script(redis, f"{key_prefix}k", [(1000, 0)]) == [[0, 0, 3601]]
    assert not redis.exists(f"{key_prefix}k")


async def test_script_is_loaded_again_after_redis_lost_it(
    open_redis_limiter: LimiterFactory, redis: Any
) -> None:
    async with open_redis_limiter() as limits:
        await limits.admit("k", 100)
        redis.script_flush()
        admissions = await asyncio.gather(*(limits.admit("k", 100) for _ in range(20)))
        assert sorted(admission.remaining for admission in admissions) == list(range(79, 99))
        assert limits.local_decision_count == 0


async def test_cancelled_caller_does_not_receive_answer_of_another(
    open_redis_limiter: LimiterFactory,
) -> None:
    async with open_redis_limiter() as limits:
        tasks = [asyncio.ensure_future(limits.admit(f"k{index}", index + 1)) for index in range(50)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        admissions = await asyncio.gather(*tasks, return_exceptions=True)
        for index, admission in list(enumerate(admissions))[1::2]:
            assert (admission.limit, admission.remaining) == (index + 1, index)
        assert limits.local_decision_count == 0


async def test_usage_of_a_key_can_be_read_by_every_process(
    open_redis_limiter: LimiterFactory,
) -> None:
    async with open_redis_limiter() as first_limiter, open_redis_limiter() as second_limiter:
        for _ in range(3):
            await first_limiter.admit("k", 2)
        await second_limiter.admit("another", 5)
        for _ in range(2):
            assert await second_limiter.list_window_request_counts(["k", "nobody", "another"]) == [
                2,
                0,
                1,
            ]
        assert await first_limiter.list_window_request_counts([]) == []
        assert (await first_limiter.admit("another", 5)).remaining == 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(gaps, max_size=60), st.integers(1, 8), gaps)
def test_reported_usage_matches_next_decision(
    redis: Any, key_prefix: str, request_gaps: list[float], limit: int, last_gap: float
) -> None:
    name, now, timed_limits = f"{key_prefix}{secrets.token_hex(4)}", 1000.0, []
    for gap in request_gaps:
        now += gap
        timed_limits.append((now, limit))
    if timed_limits:
        run_script(redis, name, timed_limits)
    now += last_gap
    _, request_count, _ = run_script(redis, name, [(now, COUNT_ONLY)])[0]
    # With a limit one above the usage it is admitted, and reports how many remain.
    is_admitted, remaining, _ = run_script(redis, name, [(now, 1000)])[0]
    assert (is_admitted, 1000 - remaining - 1) == (1, request_count)
    redis.delete(name)
