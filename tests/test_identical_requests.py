"""Identical requests at two instances with one database: separate requests and retries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config.settings import State
from gateway.writes import idempotency, reconciler
from gateway.writes.idempotency import IdempotencyGuard
from tests.gateway.storage import conftest
from tests.operator_commands import wait_until_async
from tests.payouts import create_recipient
from tests.running_gateway import KEY, GatewayResponse, GatewayUnderTest, open_gateway
from tests.simulator import Fault, Service, ServiceOptions, Simulator, start_simulator
from tests.sockets import open_connection, wait_until
from tests.state import count_operations_by_state

database, postgres = conftest.database, conftest.postgres

DELAY_SECONDS = 3
"""Seconds after which the service answers what it carried out at once."""


class TwoGateways:
    """Two gateways on one PostgreSQL, and one service."""

    def __init__(
        self, setup: GatewayUnderTest, other_gateway: GatewayUnderTest, service: Service
    ) -> None:
        self.first, self.second, self.service = setup, other_gateway, service
        self.batch: dict[str, Any] = {}

    async def prepare(self) -> None:
        recipient = await create_recipient(self.first)
        payment = {"recipient": {"id": recipient}, "sourceAmount": "5.00"}
        self.batch = {"sourceCurrency": "USD", "payments": [payment]}
        self.service.faults.append(Fault("POST", "/v1/batches", answer_delay=DELAY_SECONDS))

    def count_created(self) -> int:
        return self.service.creation_counts["batch"]

    async def create_batch(self, gateway: GatewayUnderTest) -> GatewayResponse:
        return await gateway.request("POST", "/v1/batches", self.batch)


@pytest.fixture
async def gateways(tmp_path: Path, postgres: State) -> AsyncIterator[TwoGateways]:
    service = Service(seed=1, options=ServiceOptions(inferred=True))
    async with _open_simulator(service) as url, _open_gateway(tmp_path, url, postgres) as setup:
        async with _open_gateway(tmp_path, url, postgres) as other_gateway:
            both = TwoGateways(setup, other_gateway, service)
            await both.prepare()
            yield both


@asynccontextmanager
async def _open_simulator(service: Service) -> AsyncIterator[str]:
    simulator: Simulator = await start_simulator(service=service)
    try:
        yield simulator.url
    finally:
        await simulator.stop()


@asynccontextmanager
async def _open_gateway(
    folder: Path, url: str, state: State, **writes: Any
) -> AsyncIterator[GatewayUnderTest]:
    async with open_gateway(folder, url, state=dict(state), writes=writes) as gateway:
        yield gateway


async def test_identical_request_at_another_process_joins_the_one_in_flight(
    gateways: TwoGateways,
) -> None:
    first_request = asyncio.ensure_future(gateways.create_batch(gateways.first))
    await wait_until(lambda: gateways.count_created() == 1)
    second_response = await gateways.create_batch(gateways.second)
    assert ((await first_request).status, second_response.status) == (200, 200)
    assert (await first_request).body["batch"]["id"] == second_response.body["batch"]["id"]
    assert "Idempotent-Replayed" not in (await first_request).headers
    assert second_response.headers["Idempotent-Replayed"] == "true"
    assert gateways.count_created() == 1


async def test_retry_joins_the_request_of_a_disconnected_client(gateways: TwoGateways) -> None:
    async with aiohttp.ClientSession() as session:
        url = f"{gateways.first.running.url}/v1/batches"
        headers = {"X-API-Key": gateways.first.api_key}
        abandoned_request = asyncio.ensure_future(
            session.post(url, json=gateways.batch, headers=headers)
        )
        await wait_until(lambda: gateways.count_created() == 1)
        retry = asyncio.ensure_future(gateways.create_batch(gateways.second))
        # The retry is waiting when the first client disconnects.
        await asyncio.sleep(0.5)
        assert not retry.done()
        abandoned_request.cancel()
        with suppress(asyncio.CancelledError):
            await abandoned_request
    response = await retry
    assert (response.status, response.body["batch"]["amount"]) == (200, "5.00"), response.text
    assert gateways.count_created() == 1


async def test_request_after_a_retry_whose_client_left_is_another(gateways: TwoGateways) -> None:
    """The retry waits at another process, which ends it only after that request has come."""
    first_request = asyncio.ensure_future(gateways.create_batch(gateways.first))
    await wait_until(lambda: gateways.count_created() == 1)
    retries = [asyncio.ensure_future(gateways.create_batch(gateways.second)) for _ in range(5)]
    for retry in retries:
        await asyncio.sleep(0.2)
        retry.cancel()
    assert (await first_request).status == 200
    gateways.service.faults.clear()
    response = await gateways.create_batch(gateways.second)
    assert (response.status, response.headers.get("Idempotent-Replayed")) == (200, None)
    assert gateways.count_created() == 2


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_separate_retries_of_a_refused_request_are_executed_once(
    gateways: TwoGateways,
    tmp_path: Path,
    postgres: State,
    monkeypatch: pytest.MonkeyPatch,
    is_at_once: bool,
) -> None:
    """Both find that they can take its place: at the same time, or one when the other has ended."""
    problem = b'{"ok":false,"errors":[{"code":"invalid_field","message":"no"}]}'
    gateways.service.faults[:] = [
        Fault("POST", "/v1/batches", status=400, body=problem, delay=DELAY_SECONDS)
    ]
    url = gateways.first.settings.environments.map_base_urls_by_environment()["sandbox"]
    async with (
        _open_gateway(tmp_path, url, postgres, identical_in_flight="separate") as first,
        _open_gateway(tmp_path, url, postgres, identical_in_flight="separate") as second,
    ):
        with suppress(TimeoutError):
            async with asyncio.timeout(DELAY_SECONDS / 4):
                await gateways.create_batch(first)
        barrier, start = asyncio.Barrier(2), IdempotencyGuard._start_execution

        async def start_at_once(*arguments: Any) -> Any:
            with suppress(TimeoutError, asyncio.BrokenBarrierError):
                async with asyncio.timeout(2):
                    await barrier.wait()
            return await start(*arguments)

        if is_at_once:
            monkeypatch.setattr(IdempotencyGuard, "_start_execution", start_at_once)
        else:
            monkeypatch.setattr(idempotency, "POLL_SECONDS", DELAY_SECONDS * 1.5)
        responses = await asyncio.gather(*map(gateways.create_batch, (first, second)))
    assert [response.status for response in responses] == [200, 200]
    assert gateways.count_created() == 1


async def test_request_answered_by_a_new_process_is_not_replayed(gateways: TwoGateways) -> None:
    gateways.service.faults.clear()
    first_response = await gateways.create_batch(gateways.second)
    # The older one has not seen the other yet, nor does the journal say that its client has the answer.
    second_response = await gateways.create_batch(gateways.first)
    assert (first_response.status, second_response.status) == (200, 200)
    assert first_response.body["batch"]["id"] != second_response.body["batch"]["id"]
    assert gateways.count_created() == 2


async def test_identical_request_at_another_process_is_a_retry_for_replay_seconds(
    tmp_path: Path, postgres: State
) -> None:
    service = Service(seed=1)
    async with (
        _open_simulator(service) as url,
        _open_gateway(tmp_path, url, postgres, replay_seconds=60) as setup,
    ):
        async with _open_gateway(tmp_path, url, postgres, replay_seconds=60) as other_gateway:
            two = TwoGateways(setup, other_gateway, service)
            await two.prepare()
            service.faults.clear()
            first_response, retry_response = (
                await two.create_batch(setup),
                await two.create_batch(other_gateway),
            )
    assert (retry_response.status, retry_response.body) == (200, first_response.body)
    assert retry_response.headers["Idempotent-Replayed"] == "true"
    assert service.creation_counts["batch"] == 1


async def test_concurrent_identical_requests_are_executed_once(gateways: TwoGateways) -> None:
    for number in range(5):
        gateways.service.faults[:] = [Fault("POST", "/v1/batches", answer_delay=0.5)]
        gateways.batch["description"] = f"run {number}"
        responses = await asyncio.gather(
            gateways.create_batch(gateways.first), gateways.create_batch(gateways.second)
        )
        assert [response.status for response in responses] == [200, 200]
        assert len({response.body["batch"]["id"] for response in responses}) == 1
        assert gateways.count_created() == number + 1


def _encode_batch_request(gateways: TwoGateways) -> tuple[bytes, bytes]:
    """Returns head and body."""
    body = json.dumps(gateways.batch).encode()
    head = (
        f"POST /v1/batches HTTP/1.1\r\nHost: gateway\r\nX-API-Key: {KEY['api_key']}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode(), body


async def _create_batch_while_a_body_stalls(
    gateways: TwoGateways, *, at_first: bool, pause_seconds: float = 0
) -> GatewayResponse:
    """Sends the body of a request to the first gateway only after another one was answered.

    The delivery of that response is saved within a second after it.
    """
    head, body = _encode_batch_request(gateways)
    async with await open_connection(gateways.first.running.port) as connection:
        await connection.send(head + body[:20])
        await asyncio.sleep(0.2)
        response = await gateways.create_batch(gateways.first if at_first else gateways.second)
        await asyncio.sleep(pause_seconds)
        await connection.send(body[20:])
        stalled_response = await connection.read_response()
    assert stalled_response is not None
    assert (response.status, stalled_response.status) == (200, 200)
    assert stalled_response.headers["idempotent-replayed"] == "true"
    return response


@pytest.mark.parametrize("at_first", [True, False], ids=["same process", "other process"])
async def test_request_whose_body_stalls_joins_one_that_is_executed_meanwhile(
    gateways: TwoGateways, *, at_first: bool
) -> None:
    """Its head came first, and its client gave up and sent it again on another connection."""
    gateways.service.faults.clear()
    response = await _create_batch_while_a_body_stalls(gateways, at_first=at_first)
    assert "Idempotent-Replayed" not in response.headers
    assert gateways.count_created() == 1
    # It was delivered, so the next identical request is another.
    assert (await gateways.create_batch(gateways.first)).status == 200
    assert gateways.count_created() == 2


@pytest.mark.parametrize("at_first", [True, False], ids=["same process", "other process"])
async def test_request_whose_body_stalls_joins_one_that_is_replayed_meanwhile(
    gateways: TwoGateways, *, at_first: bool
) -> None:
    """It came while the first attempt was answered and not delivered, as the other retry did."""
    answer = asyncio.Event()
    gateways.service.faults[:] = [Fault("POST", "/v1/batches", answer_after=answer)]
    sending = asyncio.ensure_future(gateways.create_batch(gateways.first))
    await wait_until(lambda: gateways.count_created() == 1)
    sending.cancel()
    await asyncio.sleep(0.5)
    answer.set()

    async def is_done() -> bool:
        return (await count_operations_by_state(gateways.first.settings))["done"] == 1

    await wait_until_async(is_done)
    response = await _create_batch_while_a_body_stalls(gateways, at_first=at_first)
    assert response.headers["Idempotent-Replayed"] == "true"
    assert gateways.count_created() == 1


@pytest.mark.parametrize("at_first", [True, False], ids=["same process", "other process"])
async def test_separate_request_whose_body_stalls_is_a_retry_for_replay_seconds(
    tmp_path: Path, postgres: State, *, at_first: bool
) -> None:
    """It came before the response, but is decided after it; only running requests are not joined."""
    service = Service(seed=1)
    writes = {"identical_in_flight": "separate", "replay_seconds": 60}
    async with (
        _open_simulator(service) as url,
        _open_gateway(tmp_path, url, postgres, **writes) as gateway,
        _open_gateway(tmp_path, url, postgres, **writes) as other_gateway,
    ):
        gateways = TwoGateways(gateway, other_gateway, service)
        await gateways.prepare()
        service.faults.clear()
        await _create_batch_while_a_body_stalls(gateways, at_first=at_first, pause_seconds=1.5)
        assert gateways.count_created() == 1


async def test_retry_that_came_in_replay_seconds_may_send_its_body_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response is stored as long as that may take."""
    monkeypatch.setattr(reconciler, "_UNREAD_RETENTION", timedelta(seconds=4))
    service = Service(seed=1)
    async with (
        _open_simulator(service) as url,
        open_gateway(tmp_path, url, writes={"replay_seconds": 3}) as gateway,
    ):
        gateways = TwoGateways(gateway, gateway, service)
        await gateways.prepare()
        service.faults.clear()
        assert (await gateways.create_batch(gateway)).status == 200
        head, body = _encode_batch_request(gateways)
        async with await open_connection(gateway.running.port) as connection:
            await connection.send(head + body[:20])
            await asyncio.sleep(5.4)
            await connection.send(body[20:])
            response = await connection.read_response()
        assert response is not None
        assert response.headers["idempotent-replayed"] == "true"
        assert gateways.count_created() == 1
