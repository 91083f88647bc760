"""Identical requests at two instances with one database: separate requests and retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config.settings import State
from gateway.simulator import Fault, Service, Simulator, Switches, start
from tests.gateway.store import conftest
from tests.house import Got, House, open_house
from tests.payday import make_recipient
from tests.sockets import until

database, postgres = conftest.database, conftest.postgres

SLOW = 3
"""Seconds after which the service answers what it carried out at once."""


class Two:
    """Two gateways on one PostgreSQL, and one service."""

    def __init__(self, here: House, there: House, service: Service) -> None:
        self.here, self.there, self.service = here, there, service
        self.batch: dict[str, Any] = {}

    async def prepare(self) -> None:
        recipient = await make_recipient(self.here)
        payment = {"recipient": {"id": recipient}, "sourceAmount": "5.00"}
        self.batch = {"sourceCurrency": "USD", "payments": [payment]}
        self.service.faults.append(Fault("POST", "/v1/batches", answer_delay=SLOW))

    def made(self) -> int:
        return self.service.created["batch"]

    async def post(self, house: House) -> Got:
        return await house.ask("POST", "/v1/batches", self.batch)


@pytest.fixture
async def two(tmp_path: Path, postgres: State) -> AsyncIterator[Two]:
    service = Service(seed=1, switches=Switches(inferred=True))
    async with _served(service) as url, _opened(tmp_path, url, postgres) as here:
        async with _opened(tmp_path, url, postgres) as there:
            both = Two(here, there, service)
            await both.prepare()
            yield both


@asynccontextmanager
async def _served(service: Service) -> AsyncIterator[str]:
    simulator: Simulator = await start(service=service)
    try:
        yield simulator.url
    finally:
        await simulator.stop()


@asynccontextmanager
async def _opened(folder: Path, url: str, state: State, **writes: Any) -> AsyncIterator[House]:
    async with open_house(folder, url, state=dict(state), writes=writes) as house:
        yield house


async def test_identical_request_at_another_process_joins_the_open_one(two: Two) -> None:
    first = asyncio.ensure_future(two.post(two.here))
    await until(lambda: two.made() == 1)
    second = await two.post(two.there)
    assert ((await first).status, second.status) == (200, 200)
    assert (await first).body["batch"]["id"] == second.body["batch"]["id"]
    assert "Idempotent-Replayed" not in (await first).headers
    assert second.headers["Idempotent-Replayed"] == "true"
    assert two.made() == 1


async def test_one_whose_client_has_gone_is_the_first_try_of_the_next(two: Two) -> None:
    async with aiohttp.ClientSession() as session:
        url = f"{two.here.running.url}/v1/batches"
        headers = {"X-API-Key": two.here.api_key}
        gone = asyncio.ensure_future(session.post(url, json=two.batch, headers=headers))
        await until(lambda: two.made() == 1)
        again = asyncio.ensure_future(two.post(two.there))
        # It has asked, and is told nothing yet, when the first client goes.
        await asyncio.sleep(0.5)
        assert not again.done()
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
    answer = await again
    assert (answer.status, answer.body["batch"]["amount"]) == (200, "5.00"), answer.text
    assert two.made() == 1


async def test_what_a_process_that_has_just_begun_answered_is_another_request(two: Two) -> None:
    two.service.faults.clear()
    first = await two.post(two.there)
    # The older one has not seen the other yet, nor does the journal say that its client has the answer.
    second = await two.post(two.here)
    assert (first.status, second.status) == (200, 200)
    assert first.body["batch"]["id"] != second.body["batch"]["id"]
    assert two.made() == 2


async def test_identical_request_at_another_process_is_a_retry_for_replay_seconds(
    tmp_path: Path, postgres: State
) -> None:
    service = Service(seed=1)
    async with _served(service) as url, _opened(tmp_path, url, postgres, replay_seconds=60) as here:
        async with _opened(tmp_path, url, postgres, replay_seconds=60) as there:
            two = Two(here, there, service)
            await two.prepare()
            service.faults.clear()
            first, again = await two.post(here), await two.post(there)
    assert (again.status, again.body) == (200, first.body)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert service.created["batch"] == 1


async def test_identical_requests_at_two_processes_at_once_are_one(two: Two) -> None:
    for number in range(5):
        two.service.faults[:] = [Fault("POST", "/v1/batches", answer_delay=0.5)]
        two.batch["description"] = f"run {number}"
        answers = await asyncio.gather(two.post(two.here), two.post(two.there))
        assert [got.status for got in answers] == [200, 200]
        assert len({got.body["batch"]["id"] for got in answers}) == 1
        assert two.made() == number + 1
