"""Retries and repeated payments through the shipped configurations of HAProxy and nginx."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.load_balancers import run_load_balancer
from tests.payouts import open_gateway_and_service
from tests.running_gateway import KEY
from tests.simulator import Fault, Service
from tests.sockets import open_connection, wait_until

PROXIES = [
    pytest.param(
        name, marks=pytest.mark.skipif(not shutil.which(name), reason=f"{name} is not installed")
    )
    for name in ("haproxy", "nginx")
]


def build_create_request(email: str) -> bytes:
    recipient_body = {"type": "individual", "firstName": "Ada", "lastName": "King", "email": email}
    body = json.dumps(recipient_body)
    head = f"POST /v1/recipients HTTP/1.1\r\nHost: gateway\r\nX-API-Key: {KEY['api_key']}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


async def send(port: int, data: bytes) -> int:
    async with await open_connection(port) as connection:
        await connection.send(data)
        response = await connection.read_response()
        assert response is not None
        return response.status


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("trusted_proxies", [[], ["127.0.0.1"]])
async def test_identical_answered_requests_are_executed_twice(
    tmp_path: Path, proxy: str, trusted_proxies: list[str]
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(
        tmp_path, service, server={"trusted_proxies": trusted_proxies}
    ) as (
        gateway,
        _,
    ):
        async with run_load_balancer(proxy, gateway.running.port, tmp_path) as port:
            for number in range(4):
                for _ in range(2):
                    assert await send(port, build_create_request(f"ada{number}@example.com")) == 200
                await asyncio.sleep(0.1 * number)
    assert service.creation_counts["recipient"] == 8


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("gap", [0.0, 1.0])
async def test_retry_after_a_timeout_is_executed_once(
    tmp_path: Path, proxy: str, gap: float
) -> None:
    service = Service(seed=1)
    server = {"trusted_proxies": ["127.0.0.1"]}
    async with open_gateway_and_service(tmp_path, service, server=server) as (gateway, _):
        service.faults.append(Fault("POST", "/v1/recipients", answer_delay=2))
        async with run_load_balancer(proxy, gateway.running.port, tmp_path) as port:
            async with await open_connection(port) as connection:
                await connection.send(build_create_request("ada@example.com"))
                await wait_until(lambda: service.creation_counts["recipient"] == 1)
            await asyncio.sleep(gap)
            assert await send(port, build_create_request("ada@example.com")) == 200
    assert service.creation_counts["recipient"] == 1
