"""Rate limits of clients without a key: bounded memory, separate from the limits of keys."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from gateway.admission.limits import InProcessRateLimiter
from tests.running_gateway import GatewayUnderTest, open_gateway

PROXY_SECTIONS = {
    "server": {"trusted_proxies": ["127.0.0.1"]},
    "limits": {"requests_per_hour": 100},
}
NO_SERVICE = "http://127.0.0.1:9"


async def load_remaining(gateway: GatewayUnderTest, address: str) -> int:
    headers = {"X-Forwarded-For": address}
    response = await gateway.request("GET", "/v1/geography/countries/US", headers=headers)
    assert response.status == 200
    return int(response.headers["RateLimit-Remaining"])


async def test_counting_many_addresses_takes_bounded_memory():
    limiter = InProcessRateLimiter(max_keys=100)
    tracemalloc.start()
    for number in range(20_000):
        await limiter.admit(f"address 2001:db8:{number:x}::/64", 100)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1_000_000


async def test_many_addresses_do_not_evict_counts_of_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.server.assembly.MAX_ADDRESSES", 10)
    async with open_gateway(tmp_path, NO_SERVICE, **PROXY_SECTIONS) as gateway:
        for remaining in (99, 98):
            response = await gateway.request("GET", "/v1/recipients/R-1")
            assert response.headers["RateLimit-Remaining"] == str(remaining)
            for number in range(50):
                assert await load_remaining(gateway, f"192.0.2.{number}") == 99, "it was forgotten"
            assert await load_remaining(gateway, "192.0.2.49") == 98


async def test_addresses_of_one_ipv6_network_share_a_count(tmp_path: Path):
    async with open_gateway(tmp_path, NO_SERVICE, **PROXY_SECTIONS) as gateway:
        assert await load_remaining(gateway, "2001:db8:0:1::1") == 99
        assert await load_remaining(gateway, "2001:db8:0:1:ffff:ffff:ffff:ffff") == 98
        assert await load_remaining(gateway, "2001:db8:0:2::1") == 99
        assert await load_remaining(gateway, "192.0.2.1") == 99
        assert await load_remaining(gateway, "192.0.2.2") == 99
        assert await load_remaining(gateway, "::ffff:192.0.2.1") == 98
