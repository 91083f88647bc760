"""Rate limits of clients without a key: bounded memory, separate from the limits of keys."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from gateway.admission.limits import InProcess
from tests.house import House, open_house

BEHIND = {"server": {"trusted_proxies": ["127.0.0.1"]}, "limits": {"requests_per_hour": 100}}
NO_SERVICE = "http://127.0.0.1:9"


async def remaining(house: House, address: str) -> int:
    headers = {"X-Forwarded-For": address}
    got = await house.ask("GET", "/v1/geography/countries/US", headers=headers)
    assert got.status == 200
    return int(got.headers["RateLimit-Remaining"])


async def test_many_addresses_take_no_more_memory_than_some():
    strangers = InProcess(most=100)
    tracemalloc.start()
    for number in range(20_000):
        await strangers.admit(f"address 2001:db8:{number:x}::/64", 100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


async def test_many_addresses_push_out_no_key_s_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.server.app.STRANGERS", 10)
    async with open_house(tmp_path, NO_SERVICE, **BEHIND) as house:
        for left in (99, 98):
            got = await house.ask("GET", "/v1/recipients/R-1")
            assert got.headers["RateLimit-Remaining"] == str(left)
            for number in range(50):
                assert await remaining(house, f"192.0.2.{number}") == 99, "it was forgotten"
            assert await remaining(house, "192.0.2.49") == 98


async def test_addresses_of_one_ipv6_network_count_together(tmp_path: Path):
    async with open_house(tmp_path, NO_SERVICE, **BEHIND) as house:
        assert await remaining(house, "2001:db8:0:1::1") == 99
        assert await remaining(house, "2001:db8:0:1:ffff:ffff:ffff:ffff") == 98
        assert await remaining(house, "2001:db8:0:2::1") == 99
        assert await remaining(house, "192.0.2.1") == 99
        assert await remaining(house, "192.0.2.2") == 99
        assert await remaining(house, "::ffff:192.0.2.1") == 98
