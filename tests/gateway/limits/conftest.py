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

from gateway.admission.limits.in_redis import InRedis
from tests.proxy import Proxy, proxy

REDIS = os.environ.get("PAYOUT_GATEWAY_TEST_REDIS", "redis://127.0.0.1:6379/9")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> str:
    """Prefix of this test's keys in Redis."""
    begin = f"payout-gateway-test:{secrets.token_hex(6)}:"
    monkeypatch.setattr("gateway.admission.limits.in_redis.NAMES", begin)
    return begin


@pytest.fixture
def redis(names: str) -> Iterator[Any]:
    client: Any = Redis.from_url(REDIS, decode_responses=True)
    try:
        client.ping()
    except RedisError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Redis at {urlsplit(REDIS).hostname}: {error}")
    yield client
    for name in client.scan_iter(f"{names}*"):
        client.delete(name)
    client.close()


@pytest.fixture
async def between(redis: Any) -> AsyncIterator[Proxy]:
    """A TCP proxy in front of Redis."""
    parts = urlsplit(REDIS)
    async with proxy(parts.hostname or "127.0.0.1", parts.port or 6379) as made:
        yield made


@pytest.fixture
def url(between: Proxy) -> str:
    """URL of Redis through the proxy."""
    parts = urlsplit(REDIS)
    access, at, _host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{access}{at}127.0.0.1:{between.port}").geturl()


@pytest.fixture
def in_redis(url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., InRedis]:
    """Return a factory of limiters that reach Redis through the proxy and share their tallies."""
    monkeypatch.setattr("gateway.admission.limits.in_redis.PAUSE_SECONDS", 0.05)
    naming_key = secrets.token_bytes(32)

    def made(processes: int = 1) -> InRedis:
        return InRedis(url, naming_key, processes)

    return made
