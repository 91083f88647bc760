"""Writes on the payout methods of one recipient are serialized, also across processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import State
from gateway.simulator import Fault, Service, start
from tests.gateway.store import conftest
from tests.house import Got, House, open_house
from tests.payday import make_recipient

database, postgres = conftest.database, conftest.postgres


def wallet(number: int) -> dict[str, Any]:
    return {
        "primary": {"method": "wallet", "currency": "USD"},
        "accounts": {"wallet": {"address": f"ada{number}@example.com"}},
    }


def bank(number: int) -> dict[str, Any]:
    account = {"country": "US", "currency": "USD", "accountNum": f"12345{number:02}"}
    return {
        "primary": {"method": "bank", "currency": "USD"},
        "accounts": {"bank": {**account, "routing": "021000021"}},
    }


@pytest.fixture
async def service() -> Service:
    return Service(seed=1)


async def kinds_at_service(gateways: list[House], service: Service) -> None:
    """Sends concurrent writes of both kinds, through all gateways in turn."""
    recipient = await make_recipient(gateways[0])
    service.faults.append(Fault("POST", "/v1/recipients/*/accounts", answer_delay=0.05, times=20))
    path = f"/v1/recipients/{recipient}/payout-methods"

    async def ask(number: int) -> Got:
        method = "PATCH" if number % 3 == 0 else "POST"
        body = wallet(number) if number % 2 else bank(number)
        return await gateways[number % len(gateways)].ask(method, path, body)

    answers = await asyncio.gather(*(ask(number) for number in range(8)))
    assert {got.status for got in answers} <= {200, 500}, [got.text for got in answers]
    assert any(got.status == 200 for got in answers)
    shown = service.world().recipients[recipient]
    found = Counter(account.type for account in shown.accounts)
    assert found == {"bank-transfer": 1, "wallet": 1}


async def opened(stack: AsyncExitStack, folder: Path, service: Service, **sections: Any) -> House:
    simulator = await start(service=service)
    stack.push_async_callback(simulator.stop)
    return await stack.enter_async_context(open_house(folder, simulator.url, **sections))


async def test_writes_take_turns_in_one_process(tmp_path: Path, service: Service):
    async with AsyncExitStack() as stack:
        await kinds_at_service([await opened(stack, tmp_path, service)], service)


async def test_writes_take_turns_across_processes(
    tmp_path: Path, service: Service, postgres: State
):
    async with AsyncExitStack() as stack:
        state = dict(postgres)
        both = [await opened(stack, tmp_path, service, state=state) for _ in range(2)]
        await kinds_at_service(both, service)
