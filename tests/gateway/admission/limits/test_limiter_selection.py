"""Selection of the rate limiter: refused settings, and the doctor's check of Redis."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest

from gateway.admission.limits import InProcessRateLimiter, open_rate_limiter
from gateway.admission.limits.in_redis import (
    RedisRateLimiter,
    assess_redis_eviction_policy,
    probe_redis_eviction_policy,
)
from gateway.config.settings import ConfigurationError, Settings
from gateway.operator.preflight import check_settings_are_runnable
from tests.gateway.admission.limits.conftest import REDIS_URL

ENVIRONMENT = {"environments": {"live": {"base_url": "https://service.example"}}}
POSTGRES = {"state": {"url": "postgresql://gateway@db.example/gateway"}}


def test_redis_client_is_not_imported_without_redis() -> None:
    script = "import sys, gateway.server.app; print('redis' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


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
async def test_unsafe_limit_is_refused_at_start_and_by_check(
    sections: dict[str, Any], expected_text: str
) -> None:
    settings = Settings(**ENVIRONMENT, **sections)
    with pytest.raises(ConfigurationError) as error:
        check_settings_are_runnable(settings)
    (problem_text,) = error.value.problems
    placed_at = next(
        (
            setting_name
            for setting_name in ("server.workers", "limits.hosts")
            if setting_name in expected_text
        ),
        "limits.url",
    )
    assert problem_text.startswith(f"{placed_at}: ")
    assert expected_text in problem_text
    assert "a/b" not in problem_text
    with pytest.raises(ConfigurationError):
        async with open_rate_limiter(settings, b"naming key"):
            pass


@pytest.mark.parametrize(
    "url",
    [
        "redis://host",
        "redis://:pass%2Fword@host:6380/3",
        "rediss://user:word@host/0?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=no",
    ],
)
def test_redis_url_allows_any_number_of_workers(url: str) -> None:
    check_settings_are_runnable(
        Settings(**ENVIRONMENT, **POSTGRES, limits={"url": url}, server={"workers": 8})
    )


async def test_memory_limiter_is_opened_for_one_process() -> None:
    async with open_rate_limiter(Settings(), b"naming key") as limits:
        assert isinstance(limits, InProcessRateLimiter)
        assert (await limits.admit("k", 1)).is_admitted
        assert await limits.find_limiter_problem() is None


async def test_local_share_divides_by_all_workers_on_all_hosts(redis: Any) -> None:
    settings = Settings(server={"workers": 4}, limits={"url": REDIS_URL, "hosts": 3})
    async with open_rate_limiter(settings, b"naming key") as limits:
        assert isinstance(limits, RedisRateLimiter)
        assert limits._process_count == 12


async def test_eviction_policy_of_redis_is_assessed(redis: Any) -> None:
    finding = await probe_redis_eviction_policy(REDIS_URL)
    assert finding == assess_redis_eviction_policy(redis.info("memory")["maxmemory_policy"])


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "volatile-lru", "volatile-ttl"])
def test_every_evicting_policy_is_reported(policy: str) -> None:
    finding = assess_redis_eviction_policy(policy)
    assert finding.state == "error"
    assert policy in finding.finding
    assert "noeviction" in finding.hint


def test_noeviction_policy_is_ok() -> None:
    assert assess_redis_eviction_policy("noeviction").state == "ok"


def test_unreported_policy_is_unknown() -> None:
    assert assess_redis_eviction_policy(None).state == "warning"


async def test_policy_is_unknown_without_permission_to_read_it(
    redis: Any,
) -> None:
    user = "payout-gateway-test"
    redis.acl_setuser(user, enabled=True, passwords=["+made-up"], commands=["+ping"])
    try:
        host = REDIS_URL.partition("://")[2].rpartition("@")[2]
        finding = await probe_redis_eviction_policy(f"redis://{user}:made-up@{host}")
    finally:
        redis.acl_deluser(user)
    assert finding.state == "warning"
    assert "NOPERM" in finding.finding or "NoPermission" in finding.finding
    assert "made-up" not in str(finding)


async def test_unreachable_redis_is_reported_as_wrong() -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied_socket:
        port = occupied_socket.getsockname()[1]
    finding = await probe_redis_eviction_policy(f"redis://:made-up@127.0.0.1:{port}")
    assert finding.state == "error"
    assert "made-up" not in str(finding)
