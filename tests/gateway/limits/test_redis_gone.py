"""The rate limit during an outage of Redis and after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.admission.limits.in_redis import InRedis
from gateway.admission.limits.redis_line import LOOK_SECONDS, LOOKS
from tests.house import open_house
from tests.proxy import Proxy
from tests.sockets import until

Made = Callable[..., InRedis]


async def admitted(limits: InRedis, count: int, limit: int = 10, key: str = "k") -> int:
    """Send ``count`` requests and return how many were admitted."""
    said = await asyncio.gather(*(limits.admit(key, limit) for _ in range(count)))
    assert all(one.limit == limit for one in said)
    assert all((one.retry_after is None) == one.admitted for one in said)
    return sum(one.admitted for one in said)


async def back(limits: InRedis) -> None:
    await until(lambda: limits._line is not None)


async def test_each_process_lets_its_share_through_and_none_is_refused_for_it(
    in_redis: Made, between: Proxy
) -> None:
    async with in_redis(processes=3) as one, in_redis(processes=3) as other:
        await between.cut()
        assert await admitted(one, 8) == 3
        assert await admitted(other, 8) == 3
        assert (one.decided_alone, one.times_gone) == (8, 1)


async def test_a_share_is_at_least_one(in_redis: Made, between: Proxy) -> None:
    async with in_redis(processes=50) as limits:
        await between.cut()
        assert await admitted(limits, 3) == 1
        assert await admitted(limits, 3, limit=0, key="stopped") == 0


async def test_a_redis_that_hangs_is_waited_for_once_and_less_than_100_ms(
    in_redis: Made, between: Proxy
) -> None:
    assert LOOKS * LOOK_SECONDS < 0.1
    async with in_redis() as limits:
        between.hang()
        assert await admitted(limits, 5) == 5
        assert limits.times_gone == 1
        # From here on Redis is not called: the decision needs no turn of the event loop.
        with pytest.raises(StopIteration):
            limits.admit("k", 10).send(None)


async def test_one_tries_again_at_a_time_and_no_request_does(
    in_redis: Made, between: Proxy
) -> None:
    async with in_redis() as limits:
        between.hang()
        await admitted(limits, 1)
        before = between.taken
        for _ in range(10):
            assert await admitted(limits, 20, limit=1000) == 20
            await asyncio.sleep(0.01)
        assert between.taken - before <= 1


async def test_that_it_went_and_came_is_logged_once_each(in_redis: Made, between: Proxy) -> None:
    with capture_logs() as lines:
        async with in_redis(processes=2) as limits:
            await between.cut()
            for _ in range(7):
                await admitted(limits, 1)
                await asyncio.sleep(0.03)  # several failed attempts
            await between.mend()
            await back(limits)
            await admitted(limits, 2)
    gone, came = lines
    assert (gone["event"], gone["log_level"]) == ("redis_unavailable", "error")
    assert gone["local_limit_fraction"] == 0.5
    assert (came["event"], came["log_level"]) == ("redis_available", "info")
    assert came["requests_counted_locally"] == 7
    assert "127.0.0.1" not in str(lines)


async def test_when_it_is_back_no_more_was_admitted_than_the_limit_and_the_shares(
    in_redis: Made, between: Proxy
) -> None:
    async with in_redis(processes=2) as one, in_redis(processes=2) as other:
        assert await admitted(one, 8) + await admitted(other, 8) == 10
        await between.cut()
        assert await admitted(one, 20) + await admitted(other, 20) == 10
        await between.mend()
        await asyncio.gather(back(one), back(other))
        assert await admitted(one, 20) + await admitted(other, 20) == 0
        await between.cut()  # a share counts once per hour, however often Redis fails
        assert await admitted(one, 20) + await admitted(other, 20) == 0


async def test_it_starts_without_redis_and_finds_it_later(in_redis: Made, between: Proxy) -> None:
    await between.cut()
    async with in_redis() as limits:
        assert await admitted(limits, 3) == 3
        assert limits.decided_alone == 3
        assert "Redis" in (await limits.fault() or "")
        await between.mend()
        await back(limits)
        assert await limits.fault() is None
        assert await admitted(limits, 20) == 10
        assert limits.decided_alone == 3


async def test_what_redis_refuses_is_decided_alone_and_told_without_its_text(
    in_redis: Made, redis: Any
) -> None:
    with capture_logs() as lines:
        async with in_redis() as limits:
            redis.set(limits.name_of("k"), "not a tally")
            assert await admitted(limits, 3, limit=2) == 2
            assert limits.decided_alone == 3
            await back(limits)
            assert await admitted(limits, 3, limit=2, key="another") == 2
            assert limits.decided_alone == 3
    assert [line["event"] for line in lines] == ["redis_unavailable", "redis_available"]
    assert lines[0]["reason"].startswith("ResponseError")


async def test_an_answer_that_comes_too_late_is_nobody_elses(
    in_redis: Made, between: Proxy
) -> None:
    async with in_redis() as limits:
        between.hang()
        await admitted(limits, 4, limit=100)
        await between.mend()
        await back(limits)
        said = await limits.admit("another", 7)
        assert (said.limit, said.remaining) == (7, 6)


async def test_a_limit_ends_while_redis_hangs(in_redis: Made, between: Proxy) -> None:
    async with in_redis() as limits:
        between.hang()
        asking = asyncio.ensure_future(limits.admit("k", 10))
        await asyncio.sleep(0)
    assert (await asking).admitted


async def test_the_running_gateway_fails_no_request_for_it_and_says_that_it_is_not_ready(
    in_redis: Made, url: str, between: Proxy, tmp_path: Path
) -> None:
    async with open_house(tmp_path, "http://127.0.0.1:9", limits={"url": url}) as house:

        async def asked() -> str:
            got = await house.ask("GET", "/v1/recipients/R-1")
            assert got.status == 500, "there is no service"
            assert got.headers["RateLimit-Limit"] == "10000"
            return str(got.headers["RateLimit-Remaining"])

        async def limits_fault() -> bool:
            async with house.session.get(f"{house.running.admin_url}/readyz") as answer:
                return "limits" in (await answer.json())["faults"]

        assert await asked() == "9999"
        assert not await limits_fault()
        await between.cut()
        assert await asked() == "9999", "the share of a single process is the whole limit"
        assert await limits_fault()
        await between.mend()
        while await limits_fault():  # noqa: ASYNC110 - it is asked over and over, as operators do
            await asyncio.sleep(0.02)
        assert await asked() == "9998"


async def test_while_redis_is_gone_nobody_can_say_how_much_is_used(
    in_redis: Made, between: Proxy
) -> None:
    async with in_redis() as limits:
        await limits.admit("k", 2)
        assert await limits.counted(["k"]) == [1]
        await between.cut()
        assert await limits.counted(["k"]) is None
