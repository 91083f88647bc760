"""``Idempotency-Key`` on all writes, after a restart and with two instances."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config.settings import Settings, State
from gateway.server.app import run_gateway
from tests.gateway.storage import conftest
from tests.payouts import (
    RECIPIENT_BODY,
    WALLET,
    create_batch,
    create_recipient,
    load_payment_ids,
    open_gateway_and_service,
)
from tests.running_gateway import (
    KEY,
    GatewayResponse,
    GatewayUnderTest,
    build_settings,
    import_api_keys,
    open_gateway,
)
from tests.simulator import Fault, Service, ServiceOptions, start_simulator
from tests.sockets import wait_until

database, postgres = conftest.database, conftest.postgres

Gateways = tuple[Service, tuple[GatewayUnderTest, GatewayUnderTest]]
"""The service, and two instances of the gateway, or one twice."""

OTHER_RECIPIENT_BODY = {**RECIPIENT_BODY, "firstName": "Augusta"}


def build_key_header(name: str) -> Mapping[str, str]:
    return {"Idempotency-Key": name}


async def post_recipient(
    gateway: GatewayUnderTest, name: str, body: Any = RECIPIENT_BODY
) -> GatewayResponse:
    return await gateway.request("POST", "/v1/recipients", body, headers=build_key_header(name))


def is_body_mismatch(response: GatewayResponse) -> bool:
    (error,) = response.body["errors"]
    return (response.status, error["code"], error["field"]) == (
        406,
        "invalid_field",
        "Idempotency-Key",
    )


async def test_idempotency_key_holds_on_every_post(tmp_path: Path) -> None:
    service = Service(options=ServiceOptions(), seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        payee, other_payee = (
            await create_recipient(gateway),
            await create_recipient(gateway, "bare"),
        )
        batch = await create_batch(gateway, payee, "5.00")
        payment = {"recipient": {"id": payee}, "sourceAmount": "7.00"}
        requests = (
            ("/v1/recipients", RECIPIENT_BODY),
            (f"/v1/recipients/{other_payee}/payout-methods", WALLET),
            ("/v1/batches", {"sourceCurrency": "USD", "payments": [payment]}),
            (f"/v1/batches/{batch}/payments", payment),
            (f"/v1/batches/{batch}/generate-quote", None),
            (f"/v1/batches/{batch}/start-processing", None),
        )
        for number, (path, body) in enumerate(requests):
            first_response = await gateway.request(
                "POST", path, body, headers=build_key_header(f"key {number}")
            )
            assert first_response.status == 200, (path, first_response.text)
            writes = _count_writes(service)
            retry_response = await gateway.request(
                "POST", path, body, headers=build_key_header(f"key {number}")
            )
            assert (retry_response.status, retry_response.text) == (200, first_response.text), path
            assert _count_writes(service) == writes, path


def _count_writes(service: Service) -> int:
    return len([call for call in service.list_requests() if call.method != "GET"])


async def test_idempotency_key_holds_on_patch_and_delete(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        payee = await create_recipient(gateway)
        batch, other_batch = (
            await create_batch(gateway, payee, "5.00"),
            await create_batch(gateway, payee),
        )
        added_payments = {"payments": [{"recipient": {"id": payee}, "sourceAmount": "7.00"}]}
        requests = (
            ("PATCH", f"/v1/batches/{batch}", added_payments),
            ("DELETE", f"/v1/batches/{other_batch}", None),
        )
        for number, (method, path, body) in enumerate(requests):
            for _ in range(2):
                response = await gateway.request(
                    method, path, body, headers=build_key_header(f"key {number}")
                )
                assert response.status == 200, (path, response.text)
        batch_body = (await gateway.request("GET", f"/v1/batches/{batch}")).body["batch"]
        assert (batch_body["totalPayments"], batch_body["amount"]) == (2, "12.00")
        response = await gateway.request(
            "PATCH", f"/v1/batches/{batch}", added_payments, headers=build_key_header("key 1")
        )
        assert is_body_mismatch(response)


async def test_validation_error_is_replayed_and_invalid_status_is_not(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient)
        path = f"/v1/batches/{batch}/start-processing"
        for _ in range(2):
            calls = len(service.list_requests())
            response = await gateway.request("POST", path, headers=build_key_header("one"))
            assert (response.status, response.body["errors"][0]["code"]) == (406, "invalid_status")
            assert len(service.list_requests()) > calls
        path, body = f"/v1/recipients/{recipient}", {"email": "no address"}
        first_response = await gateway.request("PATCH", path, body, headers=build_key_header("two"))
        calls = len(service.list_requests())
        retry_response = await gateway.request("PATCH", path, body, headers=build_key_header("two"))
        assert (first_response.status, retry_response.status, retry_response.text) == (
            406,
            406,
            first_response.text,
        )
        assert retry_response.headers["Idempotent-Replayed"] == "true"
        assert len(service.list_requests()) == calls


async def test_expired_quote_is_not_replayed(tmp_path: Path) -> None:
    """The quote can be renewed, and then the same start succeeds."""
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        path = f"/v1/batches/{batch}/start-processing"
        refusal = b'{"ok":false,"errors":[{"code":"expired_quote","message":"Expired"}]}'
        service.faults.append(Fault("POST", "/v1/batches/*/*", status=406, body=refusal))
        responses = [
            await gateway.request("POST", path, headers=build_key_header("one")) for _ in range(2)
        ]
        assert [response.status for response in responses] == [406, 200]


async def test_key_of_a_retry_holds_if_the_first_attempt_had_none(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        payee = await create_recipient(gateway)
        batch = await create_batch(gateway, payee, "5.00")
        path = f"/v1/batches/{batch}/payments"
        body = {"recipient": {"id": payee}, "sourceAmount": "7.00"}
        service.faults.append(Fault("POST", "/v1/batches/*/payments", answer_delay=0.5))
        first_request = asyncio.ensure_future(gateway.request("POST", path, body))
        await wait_until(lambda: service.creation_counts["payment"] == 2)
        retries = [
            await gateway.request("POST", path, body, headers=build_key_header("one"))
            for _ in range(2)
        ]
        texts = {response.text for response in (await first_request, *retries)}
        assert len(texts) == 1
        assert service.creation_counts["payment"] == 2


@pytest.fixture(params=["one instance", "two instances"])
def shared_state(request: pytest.FixtureRequest) -> State | None:
    """The database that two instances share; None means that there is one instance."""
    return None if request.param == "one instance" else request.getfixturevalue("postgres")


@pytest.fixture
async def gateways(shared_state: State | None, tmp_path: Path) -> AsyncIterator[Gateways]:
    service = Service(seed=1)
    simulator = await start_simulator(service=service)
    try:
        if shared_state is None:
            async with open_gateway(tmp_path, simulator.url) as gateway:
                yield service, (gateway, gateway)
            return
        state = dict(shared_state)
        async with (
            open_gateway(tmp_path, simulator.url, state=state) as first_instance,
            open_gateway(tmp_path, simulator.url, state=state) as second_instance,
        ):
            yield service, (first_instance, second_instance)
    finally:
        await simulator.stop()


class _Adds:
    """Identical adds of a payment to one batch, with different Idempotency-Keys or none."""

    def __init__(self, service: Service, payee: str, batch: str) -> None:
        self._service = service
        self.batch = batch
        self._path = f"/v1/batches/{batch}/payments"
        self._body = {"recipient": {"id": payee}, "sourceAmount": "7.00"}

    @classmethod
    async def create(cls, service: Service, gateway: GatewayUnderTest) -> _Adds:
        payee = await create_recipient(gateway)
        return cls(service, payee, await create_batch(gateway, payee, "5.00"))

    async def send(self, gateway: GatewayUnderTest, key: str | None = None) -> GatewayResponse:
        headers = build_key_header(key) if key else {}
        return await gateway.request("POST", self._path, self._body, headers=headers)

    async def send_and_return_id(self, gateway: GatewayUnderTest, key: str | None = None) -> str:
        response = await self.send(gateway, key)
        assert response.status == 200, response.text
        return str(response.body["payment"]["id"])

    @property
    def count(self) -> int:
        """How many of them the service has executed."""
        return self._service.creation_counts["payment"] - 1


async def test_running_request_without_a_key_takes_the_key_of_its_first_retry(
    gateways: Gateways,
) -> None:
    service, (first, second) = gateways
    adds = await _Adds.create(service, first)
    service.faults.append(Fault("POST", "/v1/batches/*/payments", answer_delay=2))
    unnamed = asyncio.ensure_future(adds.send_and_return_id(first))
    await wait_until(lambda: adds.count == 1)
    retry = asyncio.ensure_future(adds.send_and_return_id(second, "one"))
    await asyncio.sleep(0.7)  # it has found the request that it is a retry of
    other = asyncio.ensure_future(adds.send_and_return_id(first, "two"))
    id_ = await unnamed
    assert await retry == id_
    assert await other != id_
    assert adds.count == 2
    for gateway in (first, second):
        assert await adds.send_and_return_id(gateway, "one") == id_
        assert await adds.send_and_return_id(gateway, "two") == await other
    assert adds.count == 2


async def test_request_in_doubt_without_a_key_takes_the_key_of_its_first_retry(
    gateways: Gateways,
) -> None:
    service, (first, second) = gateways
    adds = await _Adds.create(service, first)
    lost = Fault("POST", "/v1/batches/*/payments", answer_delay=0.3, close="after")
    service.faults.append(lost)
    unnamed = asyncio.ensure_future(adds.send(first))
    await wait_until(lambda: adds.count == 1)
    unreadable = Fault("GET", "/v1/batch/*/summary", times=1000, status=500)
    service.faults.append(unreadable)
    responses = [await unnamed, await adds.send(second, "one"), await adds.send(first, "two")]
    assert [response.status for response in responses] == [500, 500, 500]
    service.faults.remove(unreadable)
    other_id = await adds.send_and_return_id(first, "two")
    id_ = await adds.send_and_return_id(second, "one")
    assert adds.count == 2
    assert (await load_payment_ids(first, adds.batch))[1:] == [id_, other_id]
    assert await adds.send_and_return_id(first, "one") == id_


async def test_running_add_with_another_key_is_waited_for(
    gateways: Gateways,
) -> None:
    service, (first, second) = gateways
    adds = await _Adds.create(service, first)
    service.faults.append(Fault("POST", "/v1/batches/*/payments", answer_delay=1))
    named = asyncio.ensure_future(adds.send_and_return_id(first, "one"))
    await wait_until(lambda: adds.count == 1)
    assert await adds.send_and_return_id(second, "two") != await named
    assert adds.count == 2


async def test_first_answer_is_replayed_after_a_restart(tmp_path: Path) -> None:
    service = Service(seed=1)
    simulator = await start_simulator(service=service)
    try:
        settings = build_settings(tmp_path, simulator.url)
        await import_api_keys(settings, [KEY])
        first_response = await _create_by_new_gateway(settings, "one", RECIPIENT_BODY)
        retry_response = await _create_by_new_gateway(settings, "one", RECIPIENT_BODY)
        assert (first_response.status, retry_response.text) == (200, first_response.text)
        assert is_body_mismatch(await _create_by_new_gateway(settings, "one", OTHER_RECIPIENT_BODY))
        assert service.creation_counts["recipient"] == 1
    finally:
        await simulator.stop()


async def _create_by_new_gateway(settings: Settings, name: str, body: Any) -> GatewayResponse:
    """Sends the request to a gateway that runs only for it."""
    async with run_gateway(settings) as running, aiohttp.ClientSession() as session:
        return await post_recipient(GatewayUnderTest(running, settings, session), name, body)


async def test_two_instances_give_one_answer(tmp_path: Path, postgres: State) -> None:
    service = Service(seed=1)
    simulator = await start_simulator(service=service)
    state = dict(postgres)
    try:
        async with (
            open_gateway(tmp_path, simulator.url, state=state) as first_instance,
            open_gateway(tmp_path, simulator.url, state=state) as second_instance,
        ):
            service.faults.append(Fault("POST", "/v1/recipients", answer_delay=1))
            pending_response = asyncio.ensure_future(post_recipient(first_instance, "one"))
            await wait_until(lambda: service.creation_counts["recipient"] == 1)
            assert is_body_mismatch(
                await post_recipient(second_instance, "one", OTHER_RECIPIENT_BODY)
            )
            retry_response = await post_recipient(second_instance, "one")
            assert ((await pending_response).status, retry_response.text) == (
                200,
                (await pending_response).text,
            )
            assert (await post_recipient(second_instance, "one")).text == retry_response.text
            assert service.creation_counts["recipient"] == 1
            assert is_body_mismatch(
                await post_recipient(first_instance, "one", OTHER_RECIPIENT_BODY)
            )
            other_response = await post_recipient(second_instance, "two", OTHER_RECIPIENT_BODY)
            assert other_response.status == 200
            assert service.creation_counts["recipient"] == 2
    finally:
        await simulator.stop()


@pytest.mark.parametrize("name", ["", "x" * 256, "ä", "one\ttwo"])
async def test_malformed_idempotency_key_is_refused(name: str, tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        response = await post_recipient(gateway, name)
        assert is_body_mismatch(response), response.text
        assert service.list_requests("POST") == []
