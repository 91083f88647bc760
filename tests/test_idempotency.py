"""``Idempotency-Key`` on all writes, after a restart and with two instances."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config.settings import Settings, State
from gateway.server.app import run_gateway
from tests.gateway.storage import conftest
from tests.payouts import WALLET, create_batch, create_recipient, open_gateway_and_service
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

RECIPIENT_BODY = {
    "type": "individual",
    "firstName": "Ada",
    "lastName": "Lovelace",
    "email": "ada@example.com",
}
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
