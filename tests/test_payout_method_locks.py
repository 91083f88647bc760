"""Writes on the payout methods of one recipient are serialized, also across processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import State
from tests.gateway.storage import conftest
from tests.operator_commands import open_operated_gateway
from tests.payouts import create_recipient
from tests.running_gateway import GatewayResponse, GatewayUnderTest, open_gateway
from tests.simulator import Fault, Service, start_simulator
from tests.sockets import wait_until

database, postgres = conftest.database, conftest.postgres


def build_wallet(number: int) -> dict[str, Any]:
    return {
        "primary": {"method": "wallet", "currency": "USD"},
        "accounts": {"wallet": {"address": f"ada{number}@example.com"}},
    }


def build_bank(number: int) -> dict[str, Any]:
    account = {"country": "US", "currency": "USD", "accountNum": f"12345{number:02}"}
    return {
        "primary": {"method": "bank", "currency": "USD"},
        "accounts": {"bank": {**account, "routing": "021000021"}},
    }


@pytest.fixture
async def service() -> Service:
    return Service(seed=1)


async def check_concurrent_writes(gateways: list[GatewayUnderTest], service: Service) -> None:
    """Sends concurrent writes of both kinds, through all gateways in turn."""
    recipient = await create_recipient(gateways[0])
    service.faults.append(Fault("POST", "/v1/recipients/*/accounts", answer_delay=0.05, times=20))
    path = f"/v1/recipients/{recipient}/payout-methods"

    async def write_payout_method(number: int) -> GatewayResponse:
        method = "PATCH" if number % 3 == 0 else "POST"
        body = build_wallet(number) if number % 2 else build_bank(number)
        return await gateways[number % len(gateways)].request(method, path, body)

    responses = await asyncio.gather(*(write_payout_method(number) for number in range(8)))
    assert {response.status for response in responses} <= {200, 500}, [
        response.text for response in responses
    ]
    assert any(response.status == 200 for response in responses)
    stored_recipient = service.find_or_create_tenant().recipients[recipient]
    account_counts = Counter(account.type for account in stored_recipient.accounts)
    assert account_counts == {"bank-transfer": 1, "wallet": 1}


async def open_gateway_and_simulator(
    stack: AsyncExitStack, folder: Path, service: Service, **sections: Any
) -> GatewayUnderTest:
    simulator = await start_simulator(service=service)
    stack.push_async_callback(simulator.stop)
    return await stack.enter_async_context(open_gateway(folder, simulator.url, **sections))


async def test_writes_are_serialized_in_one_process(tmp_path: Path, service: Service):
    async with AsyncExitStack() as stack:
        await check_concurrent_writes(
            [await open_gateway_and_simulator(stack, tmp_path, service)], service
        )


async def test_writes_are_serialized_across_processes(
    tmp_path: Path, service: Service, postgres: State
):
    async with AsyncExitStack() as stack:
        state = dict(postgres)
        both = [
            await open_gateway_and_simulator(stack, tmp_path, service, state=state)
            for _ in range(2)
        ]
        await check_concurrent_writes(both, service)


async def test_waiting_write_does_not_follow_one_that_ended_in_doubt(tmp_path: Path) -> None:
    """The first may still be executed, and would then take the place of the second."""
    async with open_operated_gateway(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        path = f"/v1/recipients/{recipient}/payout-methods"
        setup.add_fault("POST", "/v1/recipients/*/accounts", close="before", delay=0.5)
        first_request = asyncio.ensure_future(setup.gateway.request("POST", path, build_bank(1)))
        await wait_until(lambda: not setup.service.faults)  # it is being delayed
        second_response = await setup.gateway.request("POST", path, build_bank(2))
        assert ((await first_request).status, second_response.status) == (500, 500)
        assert "nothing of this request was done" in second_response.text
        assert setup.count_calls("POST", "/v1/recipients/*/accounts") == 2
