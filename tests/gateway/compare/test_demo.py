"""The shipped examples, compared over two gateways that each have their own simulator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.compare.fake_services import EXAMPLES, build_comparison_report
from tests.running_gateway import KEY, open_gateway
from tests.simulator import Fault, Service, start_simulator


@pytest.fixture
async def two_gateways(tmp_path: Path) -> AsyncIterator[tuple[list[str], list[Service]]]:
    """URLs of two gateways, and the simulated services behind them."""
    async with AsyncExitStack() as stack:
        urls, services = [], []
        for name in ("control", "candidate"):
            simulator = await start_simulator(service=Service())
            stack.push_async_callback(simulator.stop)
            (tmp_path / name).mkdir()
            gateway = await stack.enter_async_context(open_gateway(tmp_path / name, simulator.url))
            urls.append(gateway.running.url)
            services.append(simulator.service)
        yield urls, services


def read_examples(*names: str) -> list[str]:
    return [(EXAMPLES / name).read_text() for name in names]


async def run_two_gateway_comparison(urls: list[str], *inputs: str, **options: Any) -> Any:
    return await build_comparison_report(
        urls, *inputs, keys=(KEY["api_key"], KEY["api_key"]), **options
    )


async def test_two_gateways_with_equal_services_are_equal(
    two_gateways: tuple[list[str], list[Service]],
) -> None:
    report = await run_two_gateway_comparison(
        two_gateways[0],
        *read_examples("reads.txt", "recipient.toml", "payday.toml"),
        allow_writes=True,
    )
    assert report["sentence"].startswith("Equal: "), (report["differences"], report["skipped"])
    assert report["counts"]["compared"] == report["counts"]["steps"] == 33
    assert report["ids"]["paired"] == report["ids"]["spelled_differently"] >= 5
    assert report["remarks"] == []
    names = {operation["operation"] for operation in report["operations"]}
    assert names >= {"create_recipient", "start_batch", "read_batch", "delete_recipient"}
    statuses = {status for operation in report["operations"] for status in operation["statuses"]}
    assert statuses == {"200/200", "403/403", "404/404", "406/406"}


async def test_different_service_is_detected(
    two_gateways: tuple[list[str], list[Service]],
) -> None:
    urls, services = two_gateways
    services[1].faults.append(Fault("GET", "/v1/balance", status=503, body=b"<html>", times=50))
    report = await run_two_gateway_comparison(urls, *read_examples("reads.txt"))
    assert [
        (difference["kind"], difference["request"]) for difference in report["differences"]
    ] == [
        ("status", "GET /v1/profile/balances"),
        ("status", "GET /v1/profile/balances/service"),
        ("status", "GET /v1/profile/balances/wallet"),
        ("value", "GET /v1/profile/balances/wallet"),
        ("value", "GET /v1/profile/balances/wallet"),
    ]
    assert report["differences"][0]["notes"] == {"candidate says internal_server_error": 1}
