"""The rate limit during an outage of Redis and after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.admission.limits.in_redis import MAX_POLLS, POLL_SECONDS, RedisRateLimiter
from tests.running_gateway import open_gateway
from tests.sockets import wait_until
from tests.tcp_proxy import TcpProxy

LimiterFactory = Callable[..., RedisRateLimiter]


async def count_admitted(
    limits: RedisRateLimiter, count: int, limit: int = 10, key: str = "k"
) -> int:
    """Send ``count`` requests and return how many were admitted."""
    admissions = await asyncio.gather(*(limits.admit(key, limit) for _ in range(count)))
    assert all(admission.limit == limit for admission in admissions)
    return sum(admission.is_admitted for admission in admissions)


async def wait_for_reconnect(limits: RedisRateLimiter) -> None:
    await wait_until(lambda: limits._connection is not None)


async def test_each_process_admits_its_share_during_outage(
    open_redis_limiter: LimiterFactory, redis_proxy: TcpProxy
) -> None:
    async with (
        open_redis_limiter(processes=3) as first_limiter,
        open_redis_limiter(processes=3) as second_limiter,
    ):
        redis_proxy.disconnect()
        assert await count_admitted(first_limiter, 8) == 3
        assert await count_admitted(second_limiter, 8) == 3
        assert first_limiter.local_decision_count == 8


async def test_share_is_at_least_one(
    open_redis_limiter: LimiterFactory, redis_proxy: TcpProxy
) -> None:
    async with open_redis_limiter(processes=50) as limits:
        redis_proxy.disconnect()
        assert await count_admitted(limits, 3) == 1
        assert await count_admitted(limits, 3, limit=0, key="stopped") == 0


async def test_hanging_redis_is_waited_for_once_and_under_100_ms(
    open_redis_limiter: LimiterFactory, redis_proxy: TcpProxy
) -> None:
    assert MAX_POLLS * POLL_SECONDS < 0.1
    async with open_redis_limiter() as limits:
        redis_proxy.hang()
        assert await count_admitted(limits, 5) == 5
        # From here on Redis is not called: the decision needs no turn of the event loop.
        with pytest.raises(StopIteration):
            limits.admit("k", 10).send(None)


async def test_one_background_task_reconnects_and_requests_do_not(
    open_redis_limiter: LimiterFactory, redis_proxy: TcpProxy
) -> None:
    async with open_redis_limiter() as limits:
        redis_proxy.hang()
        await count_admitted(limits, 1)
        connections_before = redis_proxy.accepted_count
        for _ in range(10):
            assert await count_admitted(limits, 20, limit=1000) == 20
            await asyncio.sleep(0.01)
        assert redis_proxy.accepted_count - connections_before <= 1


async def test_outage_and_recovery_are_logged_once_each(
    open_redis_limiter: LimiterFactory, redis_proxy: TcpProxy
) -> None:
    with capture_logs() as log_entries:
        async with open_redis_limiter(processes=2) as limits:
            redis_proxy.disconnect()
            for _ in range(7):
                await count_admitted(limits, 1)
                await asyncio.sleep(0.03)  # several failed attempts
            redis_proxy.restore()
            await wait_for_reconnect(limits)
            await count_admitted(limits, 2)
    outage, recovery = log_entries
    assert (outage["event"], outage["log_level"]) == ("redis_unavailable", "error")
    assert outage["local_limit_fraction"] == 0.5
    assert (recovery["event"], recovery["log_level"]) == ("redis_available", "info")
    assert recovery["requests_counted_locally"] == 7
    assert "127.0.0.1" not in str(log_entries)


async def test_admissions_after_recovery_stay_within_limit_and_shares(
    open_redis_limiter: LimiterFactory, redis_proxy: TcpProxy
) -> None:
    async with (
        open_redis_limiter(processes=2) as first_limiter,
        open_redis_limiter(processes=2) as second_limiter,
    ):
        assert (
            await count_admitted(first_limiter, 8) + await count_admitted(second_limiter, 8) == 10
        )
        redis_proxy.disconnect()
        assert (
            await count_admitted(first_limiter, 20) + await count_admitted(second_limiter, 20) == 10
        )
        redis_proxy.restore()
        await asyncio.gather(wait_for_reconnect(first_limiter), wait_for_reconnect(second_limiter))
        assert (
            await count_admitted(first_limiter, 20) + await count_admitted(second_limiter, 20) == 0
        )
        redis_proxy.disconnect()  # a share counts once per hour, however often Redis fails
        assert (
            await count_admitted(first_limiter, 20) + await count_admitted(second_limiter, 20) == 0
        )


async def test_limiter_starts_without_redis_and_connects_later(
    open_redis_limiter: LimiterFactory, redis_proxy: TcpProxy
) -> None:
    redis_proxy.disconnect()
    async with open_redis_limiter() as limits:
        assert await count_admitted(limits, 3) == 3
        assert limits.local_decision_count == 3
        assert "Redis" in (await limits.find_limiter_problem() or "")
        redis_proxy.restore()
        await wait_for_reconnect(limits)
        assert await limits.find_limiter_problem() is None
        assert await count_admitted(limits, 20) == 10
        assert limits.local_decision_count == 3


async def test_error_from_redis_is_decided_locally_and_logged_without_its_text(
    open_redis_limiter: LimiterFactory, redis: Any
) -> None:
    with capture_logs() as log_entries:
        async with open_redis_limiter() as limits:
            redis.set(limits.build_redis_key("k"), "not a tally")
            assert await count_admitted(limits, 3, limit=2) == 2
            assert limits.local_decision_count == 3
            await wait_for_reconnect(limits)
            assert await count_admitted(limits, 3, limit=2, key="another") == 2
            assert limits.local_decision_count == 3
    assert [line["event"] for line in log_entries] == ["redis_unavailable", "redis_available"]
    assert log_entries[0]["reason"].startswith("ResponseError")


async def test_late_answer_is_not_given_to_another_caller(
    open_redis_limiter: LimiterFactory, redis_proxy: TcpProxy
) -> None:
    async with open_redis_limiter() as limits:
        redis_proxy.hang()
        await count_admitted(limits, 4, limit=100)
        redis_proxy.restore()
        await wait_for_reconnect(limits)
        admissions = await limits.admit("another", 7)
        assert (admissions.limit, admissions.remaining) == (7, 6)


async def test_limiter_closes_while_redis_hangs(
    open_redis_limiter: LimiterFactory, redis_proxy: TcpProxy
) -> None:
    async with open_redis_limiter() as limits:
        redis_proxy.hang()
        admission = asyncio.ensure_future(limits.admit("k", 10))
        await asyncio.sleep(0)
    assert (await admission).is_admitted


async def test_running_gateway_serves_requests_without_redis_and_is_not_ready(
    open_redis_limiter: LimiterFactory,
    proxied_redis_url: str,
    redis_proxy: TcpProxy,
    tmp_path: Path,
) -> None:
    async with open_gateway(
        tmp_path, "http://127.0.0.1:9", limits={"url": proxied_redis_url}
    ) as gateway:

        async def request_remaining_limit() -> str:
            response = await gateway.request("GET", "/v1/recipients/R-1")
            assert response.status == 500, "there is no service"
            assert response.headers["RateLimit-Limit"] == "10000"
            return str(response.headers["RateLimit-Remaining"])

        async def has_limits_fault() -> bool:
            async with gateway.session.get(f"{gateway.running.admin_url}/readyz") as answer:
                return "limits" in (await answer.json())["faults"]

        assert await request_remaining_limit() == "9999"
        assert not await has_limits_fault()
        redis_proxy.disconnect()
        assert await request_remaining_limit() == "9999", (
            "the share of a single process is the whole limit"
        )
        assert await has_limits_fault()
        redis_proxy.restore()
        while await has_limits_fault():  # noqa: ASYNC110 - the endpoint is polled, as operators do
            await asyncio.sleep(0.02)
        assert await request_remaining_limit() == "9998"


async def test_usage_is_unknown_while_redis_is_gone(
    open_redis_limiter: LimiterFactory, redis_proxy: TcpProxy
) -> None:
    async with open_redis_limiter() as limits:
        await limits.admit("k", 2)
        assert await limits.list_window_request_counts(["k"]) == [1]
        redis_proxy.disconnect()
        assert await limits.list_window_request_counts(["k"]) is None
