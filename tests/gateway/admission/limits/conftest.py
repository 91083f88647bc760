"""The local Redis, with a key prefix per test."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis import Redis
from redis.exceptions import RedisError

from gateway.admission.limits.in_redis import RedisRateLimiter
from tests.tcp_proxy import TcpProxy, open_tcp_proxy

REDIS_URL = os.environ.get("PAYOUT_GATEWAY_TEST_REDIS", "redis://127.0.0.1:6379/9")


@pytest.fixture
def key_prefix(monkeypatch: pytest.MonkeyPatch) -> str:
    """Prefix of this test's keys in Redis."""
    prefix = f"payout-gateway-test:{secrets.token_hex(6)}:"
    monkeypatch.setattr("gateway.admission.limits.in_redis.KEY_PREFIX", prefix)
    return prefix


@pytest.fixture
def redis(key_prefix: str) -> Iterator[Any]:
    client: Any = Redis.from_url(REDIS_URL, decode_responses=True)
    try:
        client.ping()
    except RedisError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Redis at {urlsplit(REDIS_URL).hostname}: {error}")
    yield client
    for name in client.scan_iter(f"{key_prefix}*"):
        client.delete(name)
    client.close()


@pytest.fixture
async def redis_proxy(redis: Any) -> AsyncIterator[TcpProxy]:
    """A TCP proxy in front of Redis."""
    url_parts = urlsplit(REDIS_URL)
    async with open_tcp_proxy(url_parts.hostname or "127.0.0.1", url_parts.port or 6379) as proxy:
        yield proxy


@pytest.fixture
def proxied_redis_url(redis_proxy: TcpProxy) -> str:
    """URL of Redis through the proxy."""
    url_parts = urlsplit(REDIS_URL)
    access, separator, _host = url_parts.netloc.rpartition("@")
    return url_parts._replace(netloc=f"{access}{separator}127.0.0.1:{redis_proxy.port}").geturl()


@pytest.fixture
def open_redis_limiter(
    proxied_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., RedisRateLimiter]:
    """Return a factory of limiters that reach Redis through the proxy and share their tallies."""
    monkeypatch.setattr("gateway.admission.limits.in_redis.RECONNECT_SECONDS", 0.05)
    naming_key = secrets.token_bytes(32)

    def open_limiter(processes: int = 1) -> RedisRateLimiter:
        return RedisRateLimiter(proxied_redis_url, naming_key, processes)

    return open_limiter
