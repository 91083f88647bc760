"""The rate limit in Redis: the same decisions as in memory, shared by all processes."""

from __future__ import annotations

import asyncio
import math
import secrets
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.admission.limits import Admission, InProcessRateLimiter, redis_connection
from gateway.admission.limits.in_redis import RedisRateLimiter
from gateway.admission.limits.redis_connection import ADMIT_SCRIPT
from gateway.admission.limits.request_counts import COUNT_SCRIPT as COUNTED
from tests.gateway.admission.limits.conftest import REDIS_URL
from tests.gateway.admission.limits.test_memory_limiter import FakeClock, gaps
from tests.processes import SECONDS, build_environment

LimiterFactory = Callable[..., RedisRateLimiter]

REDIS_TIME_EXPRESSION = "redis.call('TIME')[1]"
assert ADMIT_SCRIPT.count(REDIS_TIME_EXPRESSION) == 1
SCRIPT_WITH_TIME_ARGUMENT = ADMIT_SCRIPT.replace(REDIS_TIME_EXPRESSION, "ARGV[2]")
"""The script at the second that it is told."""

MANY_LOOKS = 10_000
"""Looks: how Redis counts is asked here, on a machine that may stand still for longer than 90 ms."""


@pytest.fixture(autouse=True)
def wait_long_for_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_connection, "MAX_POLLS", MANY_LOOKS)


def run_script(redis: Any, name: str, moments: list[tuple[float, int]]) -> list[list[int]]:
    """Run the script for each (moment, limit) and return its answers."""
    pipe = redis.pipeline(transaction=False)
    for moment, limit in moments:
        pipe.eval(SCRIPT_WITH_TIME_ARGUMENT, 1, name, limit, math.floor(moment))
    said: list[list[int]] = pipe.execute()
    return said


async def test_key_is_admitted_up_to_its_limit_and_then_refused(
    open_redis_limiter: LimiterFactory,
) -> None:
    async with open_redis_limiter() as limits:
        admissions = [await limits.admit("k", 2) for _ in range(3)]
        assert admissions[0] == Admission(True, 2, 1, 3601, None)
        assert [admission.is_admitted for admission in admissions] == [True, True, False]
        assert admissions[2].remaining == 0
        assert admissions[2].retry_after_seconds == admissions[2].reset_seconds
        assert 3599 <= (admissions[2].retry_after_seconds or 0) <= 3601
        assert (await limits.admit("another", 2)).is_admitted
        assert (limits.local_decision_count, limits.outage_count) == (0, 0)


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
    moments, expected = [], []
    for gap, limit in steps:
        clock.now += gap
        moments.append((clock.now, limit))
        one = await in_memory.admit("k", limit)
        expected.append([int(one.is_admitted), one.remaining, one.reset_seconds])
    assert run_script(redis, key_prefix + secrets.token_hex(8), moments) == expected


async def test_four_processes_admit_exactly_10000_of_20000_requests(redis: Any) -> None:
    naming_key = secrets.token_hex(32)
    asking = f"""
import asyncio, sys
from gateway.admission.limits import redis_connection
from gateway.admission.limits.in_redis import RedisRateLimiter

redis_connection.MAX_POLLS = {MANY_LOOKS}

async def main():
    async with RedisRateLimiter("{REDIS_URL}", bytes.fromhex("{naming_key}"), 4) as limits:
        print("ready", flush=True)
        sys.stdin.readline()
        said = await asyncio.gather(*(limits.admit("k", 10_000) for _ in range(5_000)))
        print(sum(one.is_admitted for one in said), limits.local_decision_count, flush=True)

asyncio.run(main())
"""
    pipe = asyncio.subprocess.PIPE
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", asking), env=build_environment(), stdin=pipe, stdout=pipe
        )
        for _ in range(4)
    ]
    try:
        async with asyncio.timeout(3 * SECONDS):
            for one in processes:  # so that they send at the same time
                assert await one.stdout.readline() == b"ready\n"
            admissions = await asyncio.gather(
                *(process.communicate(b"go\n") for process in processes)
            )
    finally:
        redis.delete(
            *map(
                RedisRateLimiter("", bytes.fromhex(naming_key), 1).build_redis_key, ("k", "trial")
            ),
        )
    last = [out.splitlines()[-1] for out, _ in admissions]  # the result follows any log lines
    admitted, alone = zip(*(map(int, one.split()) for one in last), strict=True)
    assert sum(admitted) == 10_000
    assert sum(alone) == 0


async def test_clock_set_back_never_loosens_the_limit(redis: Any, key_prefix: str) -> None:
    moments = [(10_000, 2), (10_500, 2), (10_100, 2), (13_600, 2), (13_601, 2), (13_602, 2)]
    decisions = run_script(redis, f"{key_prefix}k", moments)
    assert [admitted for admitted, _, _ in decisions] == [1, 1, 0, 0, 1, 0]
    assert [wait for _, _, wait in decisions[2:4]] == [3_501, 1]
    assert decisions[5] == [0, 0, 499]


async def test_clock_a_day_ahead_does_not_lock_keys_out_for_a_day(
    redis: Any, key_prefix: str
) -> None:
    decisions = run_script(redis, f"{key_prefix}k", [(100_000, 1), (20_000, 1), (20_001, 1)])
    assert decisions == [[1, 0, 3601], [1, 0, 3601], [0, 0, 3600]]


async def test_tally_uses_less_than_100_kb_for_any_limit(redis: Any, key_prefix: str) -> None:
    moments = [(1_800_000_000 + second, 1_000_000) for second in range(3 * 3600)]
    assert all(admitted for admitted, _, _ in run_script(redis, f"{key_prefix}k", moments))
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
    found = list(redis.scan_iter(f"{key_prefix}*"))
    assert len(found) == 2  # the other key belongs to the connection check
    assert all(3590 < redis.ttl(name) <= 3601 for name in found)


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
        assert (limits.local_decision_count, limits.outage_count) == (0, 0)


async def test_cancelled_caller_does_not_receive_answer_of_another(
    open_redis_limiter: LimiterFactory,
) -> None:
    async with open_redis_limiter() as limits:
        tasks = [asyncio.ensure_future(limits.admit(f"k{at}", at + 1)) for at in range(50)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        admissions = await asyncio.gather(*tasks, return_exceptions=True)
        for at, one in list(enumerate(admissions))[1::2]:
            assert (one.limit, one.remaining) == (at + 1, at)
        assert (limits.local_decision_count, limits.outage_count) == (0, 0)


COUNT_SCRIPT_WITH_TIME_ARGUMENT = COUNTED.replace(REDIS_TIME_EXPRESSION, "ARGV[1]")
assert COUNT_SCRIPT_WITH_TIME_ARGUMENT != COUNTED


async def test_usage_of_a_key_can_be_read_by_every_process(
    open_redis_limiter: LimiterFactory,
) -> None:
    async with open_redis_limiter() as one, open_redis_limiter() as other:
        for _ in range(3):
            await one.admit("k", 2)
        await other.admit("another", 5)
        for _ in range(2):
            assert await other.count_requests(["k", "nobody", "another"]) == [2, 0, 1]
        assert await one.count_requests([]) == []
        assert (await one.admit("another", 5)).remaining == 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(gaps, max_size=60), st.integers(1, 8), gaps)
def test_reported_usage_matches_next_decision(
    redis: Any, key_prefix: str, after: list[float], limit: int, last: float
) -> None:
    name, now, moments = f"{key_prefix}{secrets.token_hex(4)}", 1000.0, []
    for gap in after:
        now += gap
        moments.append((now, limit))
    if moments:
        run_script(redis, name, moments)
    now += last
    (counted,) = redis.eval(COUNT_SCRIPT_WITH_TIME_ARGUMENT, 1, name, math.floor(now))
    # With a limit one above the usage it is admitted, and reports how many remain.
    admitted, remaining, _ = run_script(redis, name, [(now, 1000)])[0]
    assert (admitted, 1000 - remaining - 1) == (1, counted)
    redis.delete(name)
