"""A response that one process delivered and its client never read, and the retry at another process.

The client's kernel acknowledges the response, the client gives up without reading it, and the reset
says so. Two processes share one PostgreSQL; the reset reaches the first, and the retry the second.
"""

from __future__ import annotations

import asyncio
import json
import select
import signal
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest

from gateway.config.settings import Settings, State
from gateway.storage import ObjectStateStore, Tenant, open_store
from gateway.storage.mode_rows import set_mode
from gateway.writes.instance_leases import LEASE_TTL_SECONDS, REPORT_SECONDS
from gateway.writes.reconciler import SWEEP_SECONDS
from mappings.forwarded_writes import LEGACY_MARK, ROUTING_KIND
from tests.gateway.storage.conftest import database, postgres  # noqa: F401 - fixtures
from tests.gateway_processes import GatewayProcess, open_forker, request_gateway
from tests.operator_commands import wait_until_async
from tests.payouts import WALLET
from tests.running_gateway import KEY, GatewayResponse, build_settings, import_api_keys
from tests.signed_requests import SigningClient
from tests.simulator import Fault, Service, ServiceCredentials, start_simulator
from tests.sockets import exchange, wait_until
from tests.state import count_operations_by_state

PAUSE_SECONDS = 1.5
TAKE_OVER_SECONDS = 20
"""Limit for the time until another process has taken over what a paused one runs."""
INTERFACES: tuple[Literal["current", "legacy"], ...] = ("current", "legacy")


@dataclass(slots=True)
class Instance:
    process: GatewayProcess
    session: aiohttp.ClientSession

    async def request(self, method: str, path: str, body: Any = None) -> GatewayResponse:
        response = await request_gateway(self.session, self.process, method, path, json=body)
        assert response is not None
        return response

    def send_unread(self, path: str, body: Any, headers: str = "") -> socket.socket:
        """Sends a request, and returns the connection once its response has begun to arrive."""
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: gateway\r\nX-API-Key: {KEY['api_key']}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n{headers}\r\n"
        )
        connection = socket.create_connection(("127.0.0.1", self.process.port))
        connection.sendall(head.encode() + data)
        assert select.select([connection], [], [], 20)[0]
        return connection


@dataclass(slots=True)
class Instances:
    first: Instance
    second: Instance
    service: Service
    settings: Settings

    async def send_and_wait_for_delivery(
        self, path: str, body: Any, headers: str = ""
    ) -> socket.socket:
        """Sends a request to the first process; returns once its response counts as delivered."""
        connection = await asyncio.to_thread(self.first.send_unread, path, body, headers)

        async def is_delivered() -> bool:
            states = await count_operations_by_state(self.settings)
            return not states["running"] and not states["done"]

        await wait_until_async(is_delivered)
        return connection


@pytest.fixture
def lease_seconds() -> float:
    return LEASE_TTL_SECONDS


@pytest.fixture
def upstream_seconds() -> float:
    """The timeout of a call to the service."""
    return 5


@pytest.fixture(params=["translate", "forward"])
async def instances(
    request: pytest.FixtureRequest,
    postgres: State,  # noqa: F811
    tmp_path: Path,
    lease_seconds: float,
    upstream_seconds: float,
) -> AsyncIterator[Instances]:
    service = Service(seed=1)
    legacy_key = ServiceCredentials("SECONDACCESSKEY", "a-secret-key", api_key=KEY["api_key"])
    service.credentials[legacy_key.access_key] = legacy_key
    simulator = await start_simulator(service=service, legacy_port=0)
    urls = {"base_url": simulator.url, "legacy_base_url": simulator.legacy_url}
    settings = build_settings(
        tmp_path,
        simulator.url,
        state=postgres.model_dump(mode="json", exclude_unset=True),
        environments={"sandbox": urls},
        upstream={"timeout_seconds": upstream_seconds},
    )
    await import_api_keys(settings, [KEY])
    if request.param == "forward":
        async with open_store(settings.state) as store:
            tenant = Tenant(KEY["merchant"], KEY["environment"])
            await set_mode(store, tenant, "", ["recipients", "batches"], "forward")
    try:
        async with (
            open_forker() as forker,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=40)) as session,
        ):
            first, second_response = [
                Instance(await forker.start(settings, tmp_path, lease_seconds), session)
                for _ in "12"
            ]
            yield Instances(first, second_response, service, settings)
    finally:
        await simulator.stop()


def recipient_body(number: int) -> dict[str, str]:
    return {
        "type": "individual",
        "firstName": "Ada",
        "lastName": "Lovelace",
        "email": f"a{number}@example.com",
    }


@pytest.mark.parametrize("seconds", [0, PAUSE_SECONDS])
async def test_retry_at_another_process_joins_if_the_response_was_reset(
    instances: Instances, seconds: float
) -> None:
    """Also if the first process is paused, so that it learns of the reset only later."""
    for number in range(1, 2 if seconds else 4):
        body = recipient_body(number)
        connection = await instances.send_and_wait_for_delivery("/v1/recipients", body)
        if seconds:
            instances.first.process.kill(signal.SIGSTOP)
            asyncio.get_running_loop().call_later(
                seconds, instances.first.process.kill, signal.SIGCONT
            )
        connection.close()  # with unread data: a reset
        retry_response = await instances.second.request("POST", "/v1/recipients", body)
        assert (retry_response.status, retry_response.headers.get("Idempotent-Replayed")) == (
            200,
            "true",
        )
        assert instances.service.creation_counts["recipient"] == number


@pytest.mark.parametrize("seconds", [0, PAUSE_SECONDS])
@pytest.mark.parametrize("is_retried_at_first", [True, False])
async def test_request_right_after_a_retry_was_answered_is_another(
    instances: Instances, is_retried_at_first: bool, seconds: float
) -> None:
    """The other process has sent the response to the retry, and has not reported that yet.

    Also if it is paused then.
    """
    pair = (instances.first, instances.second)
    retried, other = pair if is_retried_at_first else pair[::-1]
    for number in range(1, 2 if seconds else 4):
        body = recipient_body(number)
        connection = await instances.send_and_wait_for_delivery("/v1/recipients", body)
        connection.close()  # with unread data: a reset
        retry_response = await retried.request("POST", "/v1/recipients", body)
        assert retry_response.headers.get("Idempotent-Replayed") == "true"
        if seconds:
            retried.process.kill(signal.SIGSTOP)
            asyncio.get_running_loop().call_later(seconds, retried.process.kill, signal.SIGCONT)
        response = await other.request("POST", "/v1/recipients", body)
        assert (response.status, response.headers.get("Idempotent-Replayed")) == (200, None)
        assert instances.service.creation_counts["recipient"] == 2 * number


async def test_key_of_the_first_attempt_makes_no_difference_to_a_reset(
    instances: Instances,
) -> None:
    body = recipient_body(1)
    connection = await instances.send_and_wait_for_delivery(
        "/v1/recipients", body, "Idempotency-Key: one\r\n"
    )
    instances.first.process.kill(signal.SIGSTOP)
    resume = partial(instances.first.process.kill, signal.SIGCONT)
    asyncio.get_running_loop().call_later(PAUSE_SECONDS, resume)
    connection.close()
    retry_response = await instances.second.request("POST", "/v1/recipients", body)
    assert (retry_response.status, retry_response.headers.get("Idempotent-Replayed")) == (
        200,
        "true",
    )
    assert instances.service.creation_counts["recipient"] == 1


async def test_identical_request_right_after_a_response_was_read_is_another(
    instances: Instances,
) -> None:
    """Before the first process can have recorded the delivery."""
    for number in range(1, 6):
        body = recipient_body(number)
        responses = [
            await instance.request("POST", "/v1/recipients", body)
            for instance in (instances.first, instances.second)
        ]
        assert [response.status for response in responses] == [200, 200]
        assert instances.service.creation_counts["recipient"] == 2 * number


@pytest.mark.parametrize("instances", ["translate"], indirect=True)
async def test_request_right_after_one_that_replaced_a_refused_attempt_is_another(
    instances: Instances,
) -> None:
    """That one joined the attempt, whose refusal let it take its place."""
    problem = b'{"ok":false,"errors":[{"code":"invalid_field","message":"no","field":"email"}]}'
    post = partial(instances.first.request, "POST", "/v1/recipients")
    body, path = recipient_body(1), "/v1/recipients"
    instances.service.faults.append(Fault("POST", path, status=400, body=problem, delay=0.5))
    refused = asyncio.create_task(post(body))
    await wait_until(lambda: not instances.service.faults)
    joined_response = await post(body)
    instances.first.process.kill(signal.SIGSTOP)  # before it can have reported the delivery
    resume = partial(instances.first.process.kill, signal.SIGCONT)
    asyncio.get_running_loop().call_later(PAUSE_SECONDS, resume)
    assert ((await refused).status, joined_response.status) == (406, 200)
    response = await instances.second.request("POST", path, body)
    assert (response.status, response.headers.get("Idempotent-Replayed")) == (200, None)
    assert instances.service.creation_counts["recipient"] == 2


@pytest.mark.parametrize("closes_connection", [True, False])
async def test_identical_requests_of_which_the_first_was_read_are_two(
    instances: Instances, *, closes_connection: bool
) -> None:
    body = recipient_body(1)
    connection = await instances.send_and_wait_for_delivery("/v1/recipients", body)
    while b"\r\n\r\n" not in connection.recv(65536):
        pass
    if closes_connection:
        connection.close()
    second_response = await instances.second.request("POST", "/v1/recipients", body)
    assert (second_response.status, second_response.headers.get("Idempotent-Replayed")) == (
        200,
        None,
    )
    assert instances.service.creation_counts["recipient"] == 2
    connection.close()


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
async def test_process_that_ended_does_not_hold_up_its_clients_next_request(
    instances: Instances, signal_number: signal.Signals
) -> None:
    body = recipient_body(1)
    connection = await instances.send_and_wait_for_delivery("/v1/recipients", body)
    assert connection.recv(65536)
    await instances.first.process.stop(signal_number)
    second_response = await instances.second.request("POST", "/v1/recipients", body)
    assert (second_response.status, second_response.headers.get("Idempotent-Replayed")) == (
        200,
        None,
    )
    connection.close()


@pytest.mark.parametrize("instances", ["translate"], indirect=True)
async def test_retry_after_a_kill_is_answered_as_soon_as_the_lease_has_expired(
    instances: Instances,
) -> None:
    """The write had happened: reading it back proves that at once."""
    # Until long after the kill.
    instances.service.faults.append(Fault("POST", "/v1/recipients", answer_delay=10))
    sending = asyncio.create_task(
        request_gateway(
            instances.first.session,
            instances.first.process,
            "POST",
            "/v1/recipients",
            json=recipient_body(1),
        )
    )
    await wait_until(lambda: instances.service.creation_counts["recipient"] == 1)
    await instances.first.process.stop(signal.SIGKILL)
    assert await sending is None
    killed_at = time.monotonic()
    retried = await instances.second.request("POST", "/v1/recipients", recipient_body(1))
    assert (retried.status, retried.headers.get("Idempotent-Replayed")) == (200, "true")
    assert instances.service.creation_counts["recipient"] == 1
    assert time.monotonic() - killed_at < REPORT_SECONDS


# A process that resumes after its call has timed out does not read the response.
@pytest.mark.parametrize("upstream_seconds", [TAKE_OVER_SECONDS + PAUSE_SECONDS])
@pytest.mark.parametrize("instances", ["forward"], indirect=True)
async def test_forwarded_write_of_a_paused_process_ends_with_its_response(
    instances: Instances,
) -> None:
    """Another process took it over meanwhile, and could not find out what had become of it."""
    instances.service.faults.append(
        Fault("POST", "/v1/batches", answer_delay=0.5, interface="legacy")
    )
    body = {"sourceCurrency": "USD", "description": "March"}
    sending = asyncio.create_task(instances.first.request("POST", "/v1/batches", body))
    await wait_until(lambda: instances.service.creation_counts["batch"] == 1)
    instances.first.process.kill(signal.SIGSTOP)

    async def has_state(state: str) -> bool:
        return (await count_operations_by_state(instances.settings))[state] == 1

    await wait_until_async(partial(has_state, "unsettled"), TAKE_OVER_SECONDS)
    instances.first.process.kill(signal.SIGCONT)
    response = await sending
    assert response.status == 200
    await wait_until_async(partial(has_state, "answered"))
    async with open_store(instances.settings.state) as store:
        tenant = Tenant(KEY["merchant"], KEY["environment"])
        batch_id = response.body["batch"]["id"]
        assert await ObjectStateStore(store).load(tenant, ROUTING_KIND, batch_id) == LEGACY_MARK


async def test_identical_requests_at_two_processes_at_once_are_one(instances: Instances) -> None:
    # Longer than one request can come after the other.
    instances.service.faults.append(Fault("POST", "/v1/recipients", answer_delay=3))
    responses = await asyncio.gather(
        *(
            instance.request("POST", "/v1/recipients", recipient_body(1))
            for instance in (instances.first, instances.second)
        )
    )
    assert [response.status for response in responses] == [200, 200]
    replays = [response.headers.get("Idempotent-Replayed") for response in responses]
    assert sorted(replays, key=str) == [None, "true"]
    assert instances.service.creation_counts["recipient"] == 1


# Longer than the pause, also on a busy machine: of a write that is taken over the outcome is unknown.
@pytest.mark.parametrize("lease_seconds", [10.0])
async def test_request_that_came_before_an_identical_one_was_executed_elsewhere_is_its_retry(
    instances: Instances,
) -> None:
    """A process that is paused before its first record must not send the request again.

    The bytes may still be unread in its socket.
    """
    for number in range(1, 3):
        body = recipient_body(number)
        # So that it has a connection to the service, which it could not open while it is paused.
        assert (await instances.first.request("GET", "/v1/recipients")).status == 200
        # So that the first is not answered before its process is paused.
        instances.service.faults += [
            Fault("POST", "/v1/recipients", answer_delay=0.1, interface=interface)
            for interface in INTERFACES
        ]
        if number % 2:
            instances.first.process.kill(signal.SIGSTOP)
        sending = asyncio.create_task(instances.first.request("POST", "/v1/recipients", body))
        await asyncio.sleep(0.002 * number)
        instances.first.process.kill(signal.SIGSTOP)
        resume = partial(instances.first.process.kill, signal.SIGCONT)
        asyncio.get_running_loop().call_later(1.2, resume)
        second = await instances.second.request("POST", "/v1/recipients", body)
        first = await sending
        assert (first.status, second.status) == (200, 200), first.text
        assert instances.service.creation_counts["recipient"] == number


async def test_identical_request_after_a_pause_in_which_the_first_was_delivered_is_another(
    instances: Instances,
) -> None:
    body = recipient_body(1)
    assert (await instances.first.request("GET", "/v1/recipients")).status == 200
    instances.first.process.kill(signal.SIGSTOP)
    await asyncio.sleep(0.2)
    responses = [await instances.second.request("POST", "/v1/recipients", body)]
    instances.first.process.kill(signal.SIGCONT)
    responses.append(await instances.first.request("POST", "/v1/recipients", body))
    assert [response.status for response in responses] == [200, 200]
    assert instances.service.creation_counts["recipient"] == 2


@pytest.mark.parametrize("skew_seconds", [-3.0, 3.0])
async def test_wall_clocks_that_differ_change_nothing_about_identical_requests(
    instances: Instances, tmp_path: Path, skew_seconds: float
) -> None:
    skewed_process = await instances.first.process.forker.start(
        instances.settings, tmp_path, skew_seconds=skew_seconds
    )
    skewed = Instance(skewed_process, instances.first.session)
    for instance in (instances.second, skewed):
        assert (await instance.request("POST", "/v1/recipients", recipient_body(1))).status == 200
    assert instances.service.creation_counts["recipient"] == 2
    skewed_process.kill(signal.SIGSTOP)
    sending = asyncio.create_task(skewed.request("POST", "/v1/recipients", recipient_body(2)))
    await asyncio.sleep(0.1)
    response = await instances.second.request("POST", "/v1/recipients", recipient_body(2))
    assert response.status == 200
    skewed_process.kill(signal.SIGCONT)
    assert (await sending).headers.get("Idempotent-Replayed") == "true"
    assert instances.service.creation_counts["recipient"] == 3


@pytest.mark.parametrize("upstream_seconds", [TAKE_OVER_SECONDS + PAUSE_SECONDS])
@pytest.mark.parametrize("instances", ["translate"], indirect=True)
async def test_batch_of_a_paused_process_is_found_by_the_id_in_its_response(
    instances: Instances,
) -> None:
    """Another process has taken the creation over before the first builds the response."""
    service = instances.service
    service.faults.append(Fault("POST", "/v1/batches", answer_delay=0.5))
    body = {"sourceCurrency": "USD", "description": "rent"}
    sending = asyncio.create_task(instances.first.request("POST", "/v1/batches", body))
    await wait_until(lambda: service.creation_counts["batch"] == 1)
    instances.first.process.kill(signal.SIGSTOP)

    async def is_taken_over() -> bool:
        states = await count_operations_by_state(instances.settings)
        return not states["running"] and not states["unsettled"]

    await wait_until_async(is_taken_over, TAKE_OVER_SECONDS)
    instances.first.process.kill(signal.SIGCONT)
    response = await sending
    assert response.status == 200
    path = f"/v1/batches/{response.body['batch']['id']}"
    for instance in (instances.second, instances.first):
        assert (await instance.request("GET", path)).status == 200


@pytest.mark.parametrize("instances", ["translate"], indirect=True)
async def test_signed_start_that_another_process_confirmed_is_not_refused(
    instances: Instances,
) -> None:
    """The first process was paused after it had sent the start."""
    address = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
    payee = {**recipient_body(1), "address": address, "payout": WALLET}
    recipient = (await instances.first.request("POST", "/v1/recipients", payee)).body
    payment = {"recipient": {"id": recipient["recipient"]["id"]}, "sourceAmount": "5.00"}
    body = {"sourceCurrency": "USD", "payments": [payment]}
    batch = (await instances.first.request("POST", "/v1/batches", body)).body["batch"]["id"]
    (upstream,) = instances.service.find_or_create_tenant().batches
    target = f"/v1/batches/{upstream}/start-processing"
    instances.service.faults.append(Fault("POST", target, delay=0.5))
    request = SigningClient().build_request("POST", target, stamp=int(time.time()))
    starting = asyncio.create_task(exchange(instances.first.process.port, request))
    await wait_until(lambda: not instances.service.faults)  # it has arrived
    instances.first.process.kill(signal.SIGSTOP)
    path = f"/v1/batches/{batch}/start-processing"

    async def is_confirmed() -> bool:
        return (await instances.second.request("POST", path)).status == 406

    await wait_until_async(is_confirmed)
    await asyncio.sleep(10)  # until the first process has no time left for a response
    instances.first.process.kill(signal.SIGCONT)
    response = await starting
    assert response is not None
    assert response.status in (200, 500), response
    assert len(instances.service.batch_starts) == 1


async def test_clock_of_another_process_does_not_expire_a_response(
    instances: Instances, tmp_path: Path
) -> None:
    """It deletes old responses for all; one that was just delivered may yet turn out to be unread."""
    connection = await instances.send_and_wait_for_delivery("/v1/recipients", recipient_body(1))
    ahead = Instance(
        await instances.first.process.forker.start(
            instances.settings, tmp_path, skew_seconds=300.0
        ),
        instances.first.session,
    )
    await asyncio.sleep(SWEEP_SECONDS * 2)
    connection.close()
    retried = await ahead.request("POST", "/v1/recipients", recipient_body(1))
    assert (retried.status, retried.headers.get("Idempotent-Replayed")) == (200, "true")
    assert instances.service.creation_counts["recipient"] == 1
