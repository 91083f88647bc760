"""Selection of the rate limiter: refused settings, and the doctor's check of Redis."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from gateway.admission.limits import InProcess, open_limits
from gateway.admission.limits.eviction import assess_eviction_policy, check_eviction_policy
from gateway.admission.limits.in_redis import InRedis
from gateway.config.settings import Misconfigured, Settings
from gateway.operator.preflight import check_runnable
from tests.gateway.limits.conftest import REDIS

ENVIRONMENT = {"environments": {"live": {"base_url": "https://service.example"}}}
POSTGRES = {"state": {"url": "postgresql://gateway@db.example/gateway"}}


@pytest.mark.parametrize(
    ("sections", "expected_text"),
    [
        ({"server": {"workers": 2}, **POSTGRES}, "redis:// address, or server.workers to 1"),
        ({"limits": {"hosts": 2}}, "redis:// address, or limits.hosts to 1"),
        ({"limits": {"url": "redis://user:a/b@host:6379"}}, "is not a valid URL"),
        ({"limits": {"url": "redis://host:port"}}, "is not a valid URL"),
        ({"limits": {"url": "redis://host/payouts"}}, "a database number"),
        ({"limits": {"url": "redis://host?socket_timeout=30"}}, "only these parameters"),
        ({"limits": {"url": "redis://host?ssl_ca_certs=ca.pem"}}, "rediss://"),
    ],
)
async def test_a_limit_that_would_not_hold_is_refused_at_start_and_by_check(
    sections: dict[str, Any], expected_text: str
) -> None:
    settings = Settings(**ENVIRONMENT, **sections)
    with pytest.raises(Misconfigured) as refused:
        check_runnable(settings)
    (said,) = refused.value.problems
    placed_at = next(
        (one for one in ("server.workers", "limits.hosts") if one in expected_text), "limits.url"
    )
    assert said.startswith(f"{placed_at}: ")
    assert expected_text in said
    assert "a/b" not in said
    with pytest.raises(Misconfigured):
        async with open_limits(settings, b"naming key"):
            pass


@pytest.mark.parametrize(
    "url",
    [
        "redis://host",
        "redis://:pass%2Fword@host:6380/3",
        "rediss://user:word@host/0?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=no",
    ],
)
def test_an_address_of_redis_can_be_run_with_any_number_of_workers(url: str) -> None:
    check_runnable(Settings(**ENVIRONMENT, **POSTGRES, limits={"url": url}, server={"workers": 8}))


async def test_the_limit_in_memory_is_opened_for_one_process() -> None:
    async with open_limits(Settings(), b"naming key") as limits:
        assert isinstance(limits, InProcess)
        assert (await limits.admit("k", 1)).admitted
        assert await limits.fault() is None


async def test_the_share_is_of_all_workers_on_all_hosts(redis: Any) -> None:
    settings = Settings(server={"workers": 4}, limits={"url": REDIS, "hosts": 3})
    async with open_limits(settings, b"naming key") as limits:
        assert isinstance(limits, InRedis)
        assert limits._processes == 12


async def test_the_doctor_is_told_what_redis_does_when_its_memory_is_full(redis: Any) -> None:
    found = await check_eviction_policy(REDIS)
    assert found == assess_eviction_policy(redis.info("memory")["maxmemory_policy"])


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "volatile-lru", "volatile-ttl"])
def test_every_policy_that_can_forget_a_tally_is_told(policy: str) -> None:
    found = assess_eviction_policy(policy)
    assert found.state == "error"
    assert policy in found.said
    assert "noeviction" in found.do


def test_a_policy_that_forgets_nothing_is_well() -> None:
    assert assess_eviction_policy("noeviction").state == "ok"


def test_a_policy_that_is_not_told_is_unknown() -> None:
    assert assess_eviction_policy(None).state == "warning"


async def test_a_user_who_may_not_ask_for_the_policy_is_told_that_it_is_unknown(
    redis: Any,
) -> None:
    user = "payout-gateway-test"
    redis.acl_setuser(user, enabled=True, passwords=["+made-up"], commands=["+ping"])
    try:
        host = REDIS.partition("://")[2].rpartition("@")[2]
        found = await check_eviction_policy(f"redis://{user}:made-up@{host}")
    finally:
        redis.acl_deluser(user)
    assert found.state == "warning"
    assert "NOPERM" in found.said or "NoPermission" in found.said
    assert "made-up" not in str(found)


async def test_a_redis_that_does_not_answer_is_wrong() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    found = await check_eviction_policy(f"redis://:made-up@127.0.0.1:{port}")
    assert found.state == "error"
    assert "made-up" not in str(found)
