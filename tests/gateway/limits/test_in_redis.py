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

from gateway.admission.limits import Admission, InProcess, redis_line
from gateway.admission.limits.counting import SCRIPT as COUNTED
from gateway.admission.limits.in_redis import InRedis
from gateway.admission.limits.redis_line import SCRIPT
from tests.gateway.limits.conftest import REDIS
from tests.gateway.limits.test_in_process import Clock, gaps
from tests.processes import SECONDS, environment

Made = Callable[..., InRedis]

REDIS_TIME = "redis.call('TIME')[1]"
assert SCRIPT.count(REDIS_TIME) == 1
AT_A_TIME = SCRIPT.replace(REDIS_TIME, "ARGV[2]")
"""The script at the second that it is told."""

PATIENT = 10_000
"""Looks: how Redis counts is asked here, on a machine that may stand still for longer than 90 ms."""


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_line, "LOOKS", PATIENT)


def decided(redis: Any, name: str, moments: list[tuple[float, int]]) -> list[list[int]]:
    """Run the script for each (moment, limit) and return its answers."""
    pipe = redis.pipeline(transaction=False)
    for moment, limit in moments:
        pipe.eval(AT_A_TIME, 1, name, limit, math.floor(moment))
    said: list[list[int]] = pipe.execute()
    return said


async def test_a_key_is_admitted_up_to_its_limit_and_then_refused(in_redis: Made) -> None:
    async with in_redis() as limits:
        said = [await limits.admit("k", 2) for _ in range(3)]
        assert said[0] == Admission(True, 2, 1, 3601, None)
        assert [one.admitted for one in said] == [True, True, False]
        assert said[2].remaining == 0
        assert said[2].retry_after == said[2].reset_seconds
        assert 3599 <= (said[2].retry_after or 0) <= 3601
        assert (await limits.admit("another", 2)).admitted
        assert (limits.decided_alone, limits.times_gone) == (0, 0)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(gaps, st.sampled_from([0, 1, 2, 3, 5, 8])), max_size=100),
    st.floats(1e9, 2e9),
)
async def test_redis_and_memory_decide_the_same_at_the_same_moments(
    redis: Any, names: str, steps: list[tuple[float, int]], start: float
) -> None:
    clock = Clock(start)
    in_memory = InProcess(clock)
    moments, expected = [], []
    for gap, limit in steps:
        clock.now += gap
        moments.append((clock.now, limit))
        one = await in_memory.admit("k", limit)
        expected.append([int(one.admitted), one.remaining, one.reset_seconds])
    assert decided(redis, names + secrets.token_hex(8), moments) == expected


async def test_of_20000_requests_by_four_processes_exactly_10000_are_admitted(redis: Any) -> None:
    naming_key = secrets.token_hex(32)
    asking = f"""
import asyncio, sys
from gateway.admission.limits import redis_line
from gateway.admission.limits.in_redis import InRedis

redis_line.LOOKS = {PATIENT}

async def main():
    async with InRedis("{REDIS}", bytes.fromhex("{naming_key}"), 4) as limits:
        print("ready", flush=True)
        sys.stdin.readline()
        said = await asyncio.gather(*(limits.admit("k", 10_000) for _ in range(5_000)))
        print(sum(one.admitted for one in said), limits.decided_alone, flush=True)

asyncio.run(main())
"""
    pipe = asyncio.subprocess.PIPE
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", asking), env=environment(), stdin=pipe, stdout=pipe
        )
        for _ in range(4)
    ]
    try:
        async with asyncio.timeout(3 * SECONDS):
            for one in processes:  # so that they send at the same time
                assert await one.stdout.readline() == b"ready\n"
            said = await asyncio.gather(*(one.communicate(b"go\n") for one in processes))
    finally:
        redis.delete(
            *map(InRedis("", bytes.fromhex(naming_key), 1).name_of, ("k", "trial")),
        )
    last = [out.splitlines()[-1] for out, _ in said]  # the result follows any log lines
    admitted, alone = zip(*(map(int, one.split()) for one in last), strict=True)
    assert sum(admitted) == 10_000
    assert sum(alone) == 0


async def test_a_clock_that_steps_back_makes_the_limit_stricter_and_never_looser(
    redis: Any, names: str
) -> None:
    moments = [(10_000, 2), (10_500, 2), (10_100, 2), (13_600, 2), (13_601, 2), (13_602, 2)]
    said = decided(redis, f"{names}k", moments)
    assert [admitted for admitted, _, _ in said] == [1, 1, 0, 0, 1, 0]
    assert [wait for _, _, wait in said[2:4]] == [3_501, 1]
    assert said[5] == [0, 0, 499]


async def test_a_clock_that_was_a_day_ahead_locks_nobody_out_for_a_day(
    redis: Any, names: str
) -> None:
    said = decided(redis, f"{names}k", [(100_000, 1), (20_000, 1), (20_001, 1)])
    assert said == [[1, 0, 3601], [1, 0, 3601], [0, 0, 3600]]


async def test_a_tally_takes_less_than_100_kb_whatever_the_limit(redis: Any, names: str) -> None:
    moments = [(1_800_000_000 + second, 1_000_000) for second in range(3 * 3600)]
    assert all(admitted for admitted, _, _ in decided(redis, f"{names}k", moments))
    assert redis.llen(f"{names}k") == 3_602
    assert redis.memory_usage(f"{names}k") < 100_000


async def test_requests_of_one_second_share_an_entry(redis: Any, names: str) -> None:
    decided(redis, f"{names}k", [(1000, 100)] * 50 + [(999, 100)] * 10)
    assert redis.lrange(f"{names}k", 0, -1) == ["0:0", "1000:60"]


async def test_nothing_lingers_after_a_keys_last_hour(
    in_redis: Made, redis: Any, names: str
) -> None:
    async with in_redis() as limits:
        for _ in range(3):
            await limits.admit("k", 2)
    found = list(redis.scan_iter(f"{names}*"))
    assert len(found) == 2  # the other key belongs to the connection check
    assert all(3590 < redis.ttl(name) <= 3601 for name in found)


async def test_no_key_or_address_can_be_read_in_redis(
    in_redis: Made, redis: Any, names: str
) -> None:
    async with in_redis() as limits:
        await limits.admit("address 192.0.2.77", 2)
        name = limits.name_of("address 192.0.2.77")
    assert "192.0.2.77" not in "".join(redis.scan_iter(f"{names}*"))
    assert redis.exists(name)
    # An unkeyed digest would reveal an address, because all addresses can be tried.
    assert name != InRedis("", b"another naming key", 1).name_of("address 192.0.2.77")


async def test_a_limit_of_nothing_admits_nobody_and_writes_nothing(redis: Any, names: str) -> None:
    assert decided(redis, f"{names}k", [(1000, 0)]) == [[0, 0, 3601]]
    assert not redis.exists(f"{names}k")


async def test_a_redis_that_forgot_the_script_is_told_it_again(in_redis: Made, redis: Any) -> None:
    async with in_redis() as limits:
        await limits.admit("k", 100)
        redis.script_flush()
        said = await asyncio.gather(*(limits.admit("k", 100) for _ in range(20)))
        assert sorted(one.remaining for one in said) == list(range(79, 99))
        assert (limits.decided_alone, limits.times_gone) == (0, 0)


async def test_who_goes_away_while_asking_takes_nobody_elses_answer(in_redis: Made) -> None:
    async with in_redis() as limits:
        tasks = [asyncio.ensure_future(limits.admit(f"k{at}", at + 1)) for at in range(50)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        said = await asyncio.gather(*tasks, return_exceptions=True)
        for at, one in list(enumerate(said))[1::2]:
            assert (one.limit, one.remaining) == (at + 1, at)
        assert (limits.decided_alone, limits.times_gone) == (0, 0)


COUNTED_AT = COUNTED.replace(REDIS_TIME, "ARGV[1]")
assert COUNTED_AT != COUNTED


async def test_what_counts_of_a_key_can_be_looked_at_by_every_process(in_redis: Made) -> None:
    async with in_redis() as one, in_redis() as other:
        for _ in range(3):
            await one.admit("k", 2)
        await other.admit("another", 5)
        for _ in range(2):
            assert await other.counted(["k", "nobody", "another"]) == [2, 0, 1]
        assert await one.counted([]) == []
        assert (await one.admit("another", 5)).remaining == 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(gaps, max_size=60), st.integers(1, 8), gaps)
def test_what_is_counted_is_what_a_decision_would_find(
    redis: Any, names: str, after: list[float], limit: int, last: float
) -> None:
    name, now, moments = f"{names}{secrets.token_hex(4)}", 1000.0, []
    for gap in after:
        now += gap
        moments.append((now, limit))
    if moments:
        decided(redis, name, moments)
    now += last
    (counted,) = redis.eval(COUNTED_AT, 1, name, math.floor(now))
    # With a limit one above the usage it is admitted, and reports how many remain.
    admitted, remaining, _ = decided(redis, name, [(now, 1000)])[0]
    assert (admitted, 1000 - remaining - 1) == (1, counted)
    redis.delete(name)
