"""Writes that were sent but not answered: their outcome is read, and they are never sent twice."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import select
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest

from gateway.http.delivery import wait_for_tcp_acknowledgement
from gateway.legacy_api import request_context
from gateway.signed_api.replies import RESET_ON_CLOSE
from gateway.simulator.batches import insert_payment, renew_payment_terms, start_batch
from gateway.storage.operations import OperationRepository
from gateway.writes import step_records
from mappings.outcome_matching import MAX_LIST_PAGES
from tests.operator_commands import (
    AdjustableClock,
    OperatedGateway,
    disable_immediate_read,
    open_operated_gateway,
    read_log,
    wait_until_async,
)
from tests.payouts import (
    BANK,
    RECIPIENT_BODY,
    WALLET,
    create_batch,
    create_recipient,
    load_payment_ids,
    request_successfully,
)
from tests.running_gateway import KEY, GatewayResponse, GatewayUnderTest, open_gateway
from tests.service_summaries import load_service_summary, show_summary
from tests.signed_requests import SigningClient, send_raw, send_signed
from tests.simulator import Fault, Service, ServiceOptions, Simulator, start_simulator
from tests.sockets import open_connection, wait_until
from tests.state import count_operations_by_state


@dataclass
class GatewayAndService:
    gateway: GatewayUnderTest
    service: Service
    clock: AdjustableClock

    def add_fault(self, method: str, path: str, **options: Any) -> None:
        self.service.faults.append(Fault(method, path, **options))

    def let_calls_expire(self) -> None:
        """Advances the clock until no sent call can be executed any more."""
        self.clock.ahead_seconds += 60

    def count_calls(self, method: str, path: str) -> int:
        return len(self.service.list_requests(method, path))


@asynccontextmanager
async def open_gateway_with_faults(
    folder: Path,
    seconds: float = 3,
    *,
    writes: Any = None,
    server: Any = None,
    has_immediate_read: bool = False,
    **service_options: Any,
) -> AsyncIterator[GatewayAndService]:
    service = Service(options=ServiceOptions(**service_options), seed=1)
    simulator: Simulator = await start_simulator(service=service)
    clock = AdjustableClock()
    try:
        upstream = {"timeout_seconds": seconds}
        sections = {"upstream": upstream, "writes": writes or {}, "server": server or {}}
        async with open_gateway(folder, simulator.url, clock, **sections) as gateway:
            with nullcontext() if has_immediate_read else disable_immediate_read():
                yield GatewayAndService(gateway, service, clock)
    finally:
        await simulator.stop()


RATE_LIMIT_REFUSAL = b'{"ok":false,"errors":[{"code":"rate_limit_exceeded","message":"Too many"}]}'

RESPONSE_FAULTS = [
    pytest.param({"close": "after"}, id="the connection drops after it was executed"),
    pytest.param({"answer_delay": 3}, id="the answer does not come in time"),
    pytest.param({"status": 200, "body": b'{"ok":tr', "executes": True}, id="half an answer comes"),
    pytest.param({"status": 502, "body": b"<html>", "executes": True}, id="a proxy's page comes"),
    pytest.param({"status": 401, "body": b"<html>", "executes": True}, id="a proxy's login comes"),
]


@pytest.mark.parametrize("fault", RESPONSE_FAULTS)
async def test_retry_gets_the_answer_of_an_executed_create(
    fault: dict[str, Any], tmp_path: Path
) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        setup.add_fault("POST", "/v1/recipients", **fault)
        first_response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert (first_response.status, first_response.body["errors"][0]["code"]) == (
            500,
            "internal_server_error",
        )
        assert "unknown" in first_response.body["errors"][0]["message"]
        retry_response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert retry_response.status == 200, retry_response.text
        list_response = await setup.gateway.request("GET", "/v1/recipients")
        assert [recipient["id"] for recipient in list_response.body["recipients"]] == [
            retry_response.body["recipient"]["id"]
        ]
        assert setup.service.creation_counts["recipient"] == 1
        assert (
            setup.count_calls("POST", "/v1/recipients") <= 1
        )  # one that is still held up is not counted


@pytest.mark.parametrize("fault", [{"close": "before"}, {"status": 524, "body": b"<html>"}])
async def test_unexecuted_create_is_sent_again_only_once_certain(
    fault: dict[str, Any], tmp_path: Path
) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        setup.add_fault("POST", "/v1/recipients", **fault)
        first_response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert first_response.status == 500
        retry_response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert retry_response.status == 500
        assert 1 <= int(retry_response.headers["Retry-After"]) <= 60
        assert setup.count_calls("POST", "/v1/recipients") == 1
        setup.let_calls_expire()
        last = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert last.status == 200, last.text
        assert setup.service.creation_counts["recipient"] == 1


async def test_identical_requests_are_separate_if_the_first_was_delivered(tmp_path: Path) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        for _ in range(2):
            assert (
                await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
            ).status == 200
        responses = await asyncio.gather(
            *(setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY) for _ in range(2))
        )
        assert [response.status for response in responses] == [200, 200]
        assert sorted("Idempotent-Replayed" in response.headers for response in responses) == [
            False,
            True,
        ]
        assert setup.service.creation_counts["recipient"] == 3


@pytest.mark.parametrize("is_acknowledged_during_check", [False, True])
async def test_delayed_acknowledgement_is_not_a_retry(
    is_acknowledged_during_check: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux acknowledges the third response on a connection up to 40 ms later than it is read."""
    is_overwritten = OperationRepository.is_overwritten

    async def check_slowly(self: OperationRepository, *arguments: Any) -> bool:
        await asyncio.sleep(0.4)
        return await is_overwritten(self, *arguments)

    if is_acknowledged_during_check:
        monkeypatch.setattr(OperationRepository, "is_overwritten", check_slowly)
    async with open_gateway_with_faults(tmp_path) as setup:

        def send(*, times: int) -> http.client.HTTPConnection:
            connection = http.client.HTTPConnection("127.0.0.1", setup.gateway.running.port)
            for _ in range(times):
                headers = {"X-API-Key": setup.gateway.api_key, "Content-Type": "application/json"}
                connection.request("POST", "/v1/recipients", json.dumps(RECIPIENT_BODY), headers)
                response = connection.getresponse()
                assert response.read()
                assert (response.status, response.getheader("Idempotent-Replayed")) == (200, None)
            return connection

        first_response = await asyncio.to_thread(send, times=3)
        (await asyncio.to_thread(send, times=1)).close()
        first_response.close()
        assert setup.service.creation_counts["recipient"] == 4


async def test_identical_requests_in_flight_are_separate_if_configured(tmp_path: Path) -> None:
    section = {"identical_in_flight": "separate"}
    async with open_gateway_with_faults(tmp_path, writes=section) as setup:
        setup.add_fault("POST", "/v1/recipients", answer_delay=0.5)
        responses = await asyncio.gather(
            *(setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY) for _ in range(2))
        )
        assert [response.status for response in responses] == [200, 200]
        assert setup.service.creation_counts["recipient"] == 2


async def test_requests_that_differ_only_in_an_unknown_field_are_two(tmp_path: Path) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        setup.add_fault("POST", "/v1/recipients", answer_delay=0.5)
        bodies = [{**RECIPIENT_BODY, "invoice": number} for number in (1, 2, 2)]
        responses = await asyncio.gather(
            *(setup.gateway.request("POST", "/v1/recipients", body) for body in bodies)
        )
        assert [response.status for response in responses] == [200] * 3
        ids = [response.body["recipient"]["id"] for response in responses]
        assert ids[0] != ids[1] == ids[2]
        assert setup.service.creation_counts["recipient"] == 2


async def test_waiting_request_is_executed_if_the_first_was_refused(tmp_path: Path) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        refusal = b'{"ok":false,"errors":[{"code":"rate_limit_exceeded","message":"Later"}]}'
        setup.add_fault("POST", "/v1/recipients", status=429, body=refusal, delay=0.5)
        responses = await asyncio.gather(
            *(setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY) for _ in range(2))
        )
        assert sorted(response.status for response in responses) == [200, 429]
        assert setup.service.creation_counts["recipient"] == 1


async def test_identical_request_after_its_response_is_a_retry_for_replay_seconds(
    tmp_path: Path,
) -> None:
    async with open_gateway_with_faults(tmp_path, writes={"replay_seconds": 60}) as setup:
        first_response, retry_response = [
            await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY) for _ in range(2)
        ]
        assert (first_response.status, retry_response.status) == (200, 200)
        assert retry_response.headers["Idempotent-Replayed"] == "true"
        assert setup.service.creation_counts["recipient"] == 1


async def reset_unread_response(
    setup: GatewayAndService,
    connection: str,
    *,
    seconds: float,
    method: str = "POST",
    path: str = "/v1/recipients",
    request_body: Any = RECIPIENT_BODY,
    request_id: str = "first",
    late_bytes: bytes = b"",
) -> None:
    """Sends a request, and closes the connection so many seconds after the response arrived."""
    body = json.dumps(request_body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: {request_id}\r\n"
        f"Connection: {connection}\r\nX-API-Key: {setup.gateway.api_key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", setup.gateway.running.port)) as client:
        client.sendall(head.encode() + body)
        await asyncio.to_thread(select.select, [client], [], [], 10)
        client.sendall(late_bytes)
        await asyncio.sleep(seconds)
    # Closed with unread data: a reset.


@pytest.mark.parametrize(("is_lost", "replay_seconds"), [(True, 0), (True, 60), (False, 60)])
async def test_value_that_was_changed_since_is_set_again(
    is_lost: bool, replay_seconds: int, tmp_path: Path
) -> None:
    """The client that set it first got no answer, and another request has changed it since."""
    writes = {"replay_seconds": replay_seconds}
    async with open_gateway_with_faults(tmp_path, writes=writes) as setup:

        async def change_back_and_forth(path: str, name: str, first: Any, second: Any) -> None:
            if is_lost:
                setup.add_fault("PATCH", re.sub(r"(B|P)-\w+", "*", path), close="after")
            statuses = [
                (await setup.gateway.request("PATCH", path, {name: value})).status
                for value in (first, second, first)
            ]
            assert statuses == [500 if is_lost else 200, 200, 200]

        recipient = await create_recipient(setup.gateway)
        path = f"/v1/recipients/{recipient}"
        await change_back_and_forth(path, "status", "disabled", "active")
        assert (await setup.gateway.request("GET", path)).body["recipient"]["status"] == "disabled"
        assert (await setup.gateway.request("PATCH", path, {"status": "active"})).status == 200
        batch = await create_batch(setup.gateway, recipient, "5.00")
        (payment,) = await load_payment_ids(setup.gateway, batch)
        path = f"/v1/batches/{batch}/payments/{payment}"
        await change_back_and_forth(path, "sourceAmount", "7.00", "9.00")
        assert (await setup.gateway.request("GET", path)).body["payment"]["sourceAmount"] == "7.00"
        path, name = f"/v1/batches/{batch}", "payments"
        changes = [[{"id": payment, "sourceAmount": amount}] for amount in ("3.00", "4.00")]
        await change_back_and_forth(path, name, *changes)
        assert (await setup.gateway.request("GET", path)).body["batch"]["amount"] == "3.00"


@pytest.mark.parametrize("change", ["legacy", "with a key", "signed"])
@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_payout_method_that_a_change_of_its_recipient_replaced_is_set_again(
    method: str, change: str, tmp_path: Path
) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        path = f"/v1/recipients/{recipient}"
        first, second = (
            {**WALLET, "accounts": {"wallet": {"address": f"{name}@example.com"}}}
            for name in ("first", "second")
        )
        set_first = (method, f"{path}/payout-methods", first)
        if change == "signed":  # which does not wait until an earlier outcome is known
            options = {"method": method, "path": set_first[1], "request_body": first}
            await reset_unread_response(setup, "close", seconds=0.3, **options)
        else:
            setup.add_fault(method, "*", close="after")
            assert (await setup.gateway.request(*set_first)).status == 500
        stored = setup.service.require_recipient(recipient)
        if change == "signed":
            (account,) = stored.accounts
            signed_path = f"/recipients/{stored.id}/accounts/{account.id}"
            body = b'{"emailAddress":"second@example.com"}'
            status = (await send_signed(setup.gateway, "PATCH", signed_path, body)).status
        else:
            key = {"Idempotency-Key": "change"} if change == "with a key" else {}
            request = ("PATCH", path, {"payout": second})
            status = (await setup.gateway.request(*request, headers=key)).status
        assert (status, (await setup.gateway.request(*set_first)).status) == (200, 200)
        (account,) = stored.accounts
        assert account.fields["emailAddress"] == "first@example.com"


async def test_quote_of_amounts_that_were_changed_since_is_made_again(tmp_path: Path) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        batch = await create_batch(setup.gateway, await create_recipient(setup.gateway), "5.00")
        path = f"/v1/batches/{batch}"
        (payment,) = await load_payment_ids(setup.gateway, batch)

        async def set_amount_in_batch(amount: str) -> int:
            changes = {"update_payments": [{"id": payment, "sourceAmount": amount}]}
            return (await setup.gateway.request("PATCH", path, changes)).status

        setup.add_fault("PATCH", "/v1/batches/*", close="after")
        assert await set_amount_in_batch("6.00") == 500
        setup.add_fault("POST", "/v1/batches/*/generate-quote", close="after")
        assert (await setup.gateway.request("POST", f"{path}/generate-quote")).status == 500
        change = {"sourceAmount": "7.00"}
        response = await setup.gateway.request("PATCH", f"{path}/payments/{payment}", change)
        assert response.status == 200
        quote = await setup.gateway.request("POST", f"{path}/generate-quote")
        assert quote.body["batch"]["amount"] == "7.00"
        assert await set_amount_in_batch("6.00") == 200
        assert (await setup.gateway.request("GET", path)).body["batch"]["amount"] == "6.00"


INVALID_ID_REFUSAL = (
    b'{"ok":false,"errors":[{"code":"invalid_field","message":"Invalid","field":"id"}]}'
)


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "deletion"}], ids=["no key", "key"])
@pytest.mark.parametrize("is_draft", [False, True], ids=["created", "draft"])
async def test_payment_that_was_deleted_since_is_added_again(
    is_draft: bool, key: dict[str, str], is_refused: bool, tmp_path: Path
) -> None:
    async with open_gateway_with_faults(tmp_path, inferred=not is_draft) as setup:
        recipient = await create_recipient(setup.gateway)
        batch = await create_batch(setup.gateway, recipient, "5.00", "6.00")
        path = f"/v1/batches/{batch}/payments"
        _, second = await load_payment_ids(setup.gateway, batch)
        # Without the path at the service, this makes a draft of the batch.
        assert (await setup.gateway.request("DELETE", f"{path}/{second}")).status == 200
        body = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        await reset_unread_response(
            setup, "close", seconds=0.3, method="POST", path=path, request_body=body
        )
        _, added = await load_payment_ids(setup.gateway, batch)
        if is_refused:
            setup.add_fault(
                "DELETE", "/v1/batches/*/payments/*", status=400, body=INVALID_ID_REFUSAL
            )
        # A draft refuses only to delete again what is gone.
        deleted = f"{path}/{second if is_refused and is_draft else added}"
        deletion = await setup.gateway.request("DELETE", deleted, headers=key)
        assert deletion.status == ((404 if is_draft else 406) if is_refused else 200)
        response = await setup.gateway.request("POST", path, body)
        _, added_again = await load_payment_ids(setup.gateway, batch)
        assert response.body["payment"]["id"] == added_again
        assert (added_again == added) == is_refused


@pytest.mark.parametrize("is_refused", [True, False])
async def test_payment_is_not_added_again_if_its_deletion_did_not_happen(
    is_refused: bool, tmp_path: Path
) -> None:
    """The retry of its creation comes while it is open whether the deletion happens."""
    async with open_gateway_with_faults(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        batch = await create_batch(setup.gateway, recipient, "5.00")
        path = f"/v1/batches/{batch}/payments"
        body = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        setup.add_fault("POST", "/v1/batches/*/payments", close="after")
        assert (await setup.gateway.request("POST", path, body)).status == 500
        payments = await load_payment_ids(setup.gateway, batch)
        refusal = {"status": 429, "body": RATE_LIMIT_REFUSAL, "answer_delay": 1}
        fault: dict[str, Any] = refusal if is_refused else {"close": "before"}
        setup.add_fault("DELETE", "/v1/batches/*/payments/*", **fault)
        deletion = asyncio.create_task(setup.gateway.request("DELETE", f"{path}/{payments[1]}"))
        if is_refused:
            await asyncio.sleep(0.3)
        else:
            assert (await deletion).status == 500
            assert (await setup.gateway.request("POST", path, body)).status == 500
            setup.let_calls_expire()
        response = await setup.gateway.request("POST", path, body)
        await deletion
        assert response.body["payment"]["id"] == payments[1]
        assert await load_payment_ids(setup.gateway, batch) == payments


@pytest.mark.parametrize("kind", ["recipient", "batch"])
async def test_object_is_not_created_again_while_its_deletion_is_in_doubt(
    kind: str, tmp_path: Path
) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        path, body = "/v1/recipients", dict[str, Any](RECIPIENT_BODY)
        if kind == "batch":
            payment = {"recipient": {"id": await create_recipient(setup.gateway)}}
            payments = [{**payment, "sourceAmount": "5.00"}]
            path, body = "/v1/batches", {"sourceCurrency": "USD", "payments": payments}
        await reset_unread_response(setup, "close", seconds=0.3, path=path, request_body=body)
        created_count = setup.service.creation_counts[kind]
        rows = (await setup.gateway.request("GET", path)).body[path.removeprefix("/v1/")]
        setup.add_fault("DELETE", f"{path}/*", close="before")
        id_ = rows[0]["id"]
        assert (await setup.gateway.request("DELETE", f"{path}/{id_}")).status == 500
        retry_response = await setup.gateway.request("POST", path, body)
        assert (retry_response.status, "Retry-After" in retry_response.headers) == (500, True)
        setup.let_calls_expire()
        retry_response = await setup.gateway.request("POST", path, body)
        assert (retry_response.status, retry_response.body[kind]["id"]) == (200, id_)
        assert setup.service.creation_counts[kind] == created_count


async def test_payment_is_not_added_again_if_its_deletion_is_refused_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion ends after the retry of its creation has seen it, and before it looks again."""
    find_out = OperationRepository.is_overwritten
    async with open_gateway_with_faults(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        batch = await create_batch(setup.gateway, recipient, "5.00")
        path = f"/v1/batches/{batch}/payments"
        body = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        setup.add_fault("POST", "/v1/batches/*/payments", close="after")
        assert (await setup.gateway.request("POST", path, body)).status == 500
        payments = await load_payment_ids(setup.gateway, batch)

        async def is_settled() -> bool:
            states = await count_operations_by_state(setup.gateway.settings)
            return not states["running"] and not states["unsettled"]

        await wait_until_async(is_settled)
        refusal = {"status": 429, "body": RATE_LIMIT_REFUSAL, "answer_delay": 1}
        setup.add_fault("DELETE", "/v1/batches/*/payments/*", **refusal)
        deletion = asyncio.create_task(setup.gateway.request("DELETE", f"{path}/{payments[1]}"))

        async def find_out_and_wait(*arguments: Any) -> bool:
            is_overwritten = await find_out(*arguments)
            await deletion
            await asyncio.sleep(0.3)  # until its end is recorded
            return is_overwritten

        monkeypatch.setattr(OperationRepository, "is_overwritten", find_out_and_wait)
        await wait_until(lambda: any(each.method == "DELETE" for each in setup.service.requests))
        response = await setup.gateway.request("POST", path, body)
        assert response.body["payment"]["id"] == payments[1]
        assert await load_payment_ids(setup.gateway, batch) == payments


@pytest.mark.parametrize("is_deletion", [True, False], ids=["deletion", "change"])
@pytest.mark.parametrize("is_executed", [True, False], ids=["executed", "in doubt"])
async def test_payment_that_a_signed_request_deleted_since_is_added_again(
    is_executed: bool, is_deletion: bool, tmp_path: Path
) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        batch = await create_batch(setup.gateway, recipient, "5.00")
        path = f"/v1/batches/{batch}/payments"
        body = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        await reset_unread_response(
            setup, "close", seconds=0.3, method="POST", path=path, request_body=body
        )
        _, added = await load_payment_ids(setup.gateway, batch)
        (service_batch,) = setup.service.find_or_create_tenant().batches.values()
        _, service_payment = service_batch.payments
        method, change = ("DELETE", b"") if is_deletion else ("PATCH", b'{"sourceAmount":"9.00"}')
        if not is_executed:
            setup.add_fault(method, "/v1/batches/*/payments/*", close="before")
        signed_path = f"/batches/{service_batch.id}/payments/{service_payment}"
        status = (await send_signed(setup.gateway, method, signed_path, change)).status
        assert status == (200 if is_executed else 500)
        retry_status = (await setup.gateway.request("POST", path, body)).status
        if is_deletion and not is_executed:
            # The deletion may still be carried out.
            assert (retry_status, len(service_batch.payments)) == (500, 2)
            setup.let_calls_expire()
            retry_status = (await setup.gateway.request("POST", path, body)).status
        payments = await load_payment_ids(setup.gateway, batch)
        assert (retry_status, len(payments)) == (200, 2)
        assert (added in payments) == (not (is_deletion and is_executed))


@pytest.mark.parametrize("change", ["deletion", "bulk deletion", "deletion of a payment", "quote"])
async def test_batch_that_a_signed_request_deleted_since_is_created_again(
    change: str, tmp_path: Path
) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        recipient = {"id": await create_recipient(setup.gateway)}
        payments = [{"recipient": recipient, "sourceAmount": "5.00"}]
        body = {"sourceCurrency": "USD", "payments": payments}
        path = "/v1/batches"
        await reset_unread_response(setup, "close", seconds=0.3, path=path, request_body=body)
        batches = setup.service.find_or_create_tenant().batches
        (service_batch,) = batches.values()
        (payment,) = service_batch.payments
        ids = json.dumps({"ids": [service_batch.id]}).encode()
        method, signed_path, signed_body = {
            "deletion": ("DELETE", f"/batches/{service_batch.id}", b""),
            "bulk deletion": ("DELETE", "/batches", ids),
            "deletion of a payment": (
                "DELETE",
                f"/batches/{service_batch.id}/payments/{payment}",
                b"",
            ),
            "quote": ("POST", f"/batches/{service_batch.id}/generate-quote", b""),
        }[change]
        response = await send_signed(setup.gateway, method, signed_path, signed_body)
        assert response.status == 200, response.text
        retry_response = await setup.gateway.request("POST", path, body)
        is_deleted = change in ("deletion", "bulk deletion")
        is_replayed = retry_response.headers.get("Idempotent-Replayed") == "true"
        assert (retry_response.status, is_replayed, len(batches)) == (200, not is_deleted, 1)
        assert (service_batch.id in batches) == (not is_deleted)


async def test_amount_that_a_signed_request_changed_since_is_set_again(tmp_path: Path) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        batch = await create_batch(setup.gateway, await create_recipient(setup.gateway), "5.00")
        (payment,) = await load_payment_ids(setup.gateway, batch)
        path, change = f"/v1/batches/{batch}/payments/{payment}", {"sourceAmount": "7.00"}
        setup.add_fault("PATCH", "/v1/batches/*/payments/*", close="after")
        assert (await setup.gateway.request("PATCH", path, change)).status == 500
        setup.add_fault("POST", "/v1/batches/*/generate-quote", close="after")
        quote = ("POST", f"/v1/batches/{batch}/generate-quote")
        assert (await setup.gateway.request(*quote)).status == 500
        (service_batch,) = setup.service.find_or_create_tenant().batches.values()
        (service_payment,) = service_batch.payments.values()
        signed_path = f"/batches/{service_batch.id}/payments/{service_payment.id}"
        body = b'{"sourceAmount":"9.00"}'
        assert (await send_signed(setup.gateway, "PATCH", signed_path, body)).status == 200
        assert (await setup.gateway.request(*quote)).body["batch"]["amount"] == "9.00"
        assert (await setup.gateway.request("PATCH", path, change)).status == 200
        assert service_payment.amount == Decimal("7.00")


@pytest.mark.parametrize("is_removed_by_patch", [True, False])
@pytest.mark.parametrize(
    ("is_draft", "is_added_by_patch", "answers"),
    [
        (True, True, "full"),
        (True, False, "full"),
        (False, False, "full"),
        (False, False, "bare"),
        (False, True, "bare"),
    ],
)
async def test_payment_whose_answer_was_lost_is_added_again_after_its_removal(
    is_draft: bool,
    is_added_by_patch: bool,
    answers: Literal["full", "bare"],
    is_removed_by_patch: bool,
    tmp_path: Path,
) -> None:
    options = {"inferred": not is_draft, "answers": answers}
    async with open_gateway_with_faults(tmp_path, **options) as setup:
        recipient = await create_recipient(setup.gateway)
        batch = await create_batch(setup.gateway, recipient, "5.00", "6.00")
        path = f"/v1/batches/{batch}"
        _, second = await load_payment_ids(setup.gateway, batch)
        # Without the path at the service, this makes a draft of the batch.
        assert (await setup.gateway.request("DELETE", f"{path}/payments/{second}")).status == 200
        payment = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        method, add_path, body = (
            ("PATCH", path, {"payments": [payment]})
            if is_added_by_patch
            else ("POST", f"{path}/payments", payment)
        )
        await reset_unread_response(
            setup, "close", seconds=0.3, method=method, path=add_path, request_body=body
        )
        _, added = await load_payment_ids(setup.gateway, batch)
        removal = (
            ("PATCH", path, {"remove_payments": [{"id": added}]})
            if is_removed_by_patch
            else ("DELETE", f"{path}/payments/{added}")
        )
        assert (await setup.gateway.request(*removal)).status == 200
        assert (await setup.gateway.request(method, add_path, body)).status == 200
        _, added_again = await load_payment_ids(setup.gateway, batch)
        assert added_again != added


async def test_empty_line_after_a_body_does_not_show_that_the_response_was_read(
    tmp_path: Path,
) -> None:
    """Some clients send one (RFC 9112, section 2.2)."""
    async with open_gateway_with_faults(tmp_path) as setup:
        await reset_unread_response(setup, "keep-alive", seconds=0.3, late_bytes=b"\r\n")
        await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert setup.service.creation_counts["recipient"] == 1


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
@pytest.mark.parametrize("trusted_proxies", [[], ["127.0.0.1"]])
async def test_request_is_a_retry_after_its_acknowledged_response_was_reset(
    connection: str, trusted_proxies: list[str], tmp_path: Path
) -> None:
    """The client's machine has the response; the client gives up without reading it.

    Also if it runs on the machine of a trusted proxy: without ``X-Forwarded-For`` it counts as a client.
    """
    server = {"trusted_proxies": trusted_proxies}
    async with open_gateway_with_faults(tmp_path, server=server) as setup:
        await reset_unread_response(setup, connection, seconds=0.3)
        retry_response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert (retry_response.status, retry_response.headers.get("Idempotent-Replayed")) == (
            200,
            "true",
        )
        assert setup.service.creation_counts["recipient"] == 1


@pytest.mark.parametrize("request_id", ["first", "second"])
async def test_reset_after_another_connection_got_the_response_makes_no_retry(
    request_id: str, tmp_path: Path
) -> None:
    """The client gave up waiting, got the response by its retry, and closes the first connection."""
    async with open_gateway_with_faults(tmp_path) as setup:
        setup.add_fault("POST", "/v1/recipients", answer_delay=0.5)
        first_attempt = asyncio.ensure_future(
            reset_unread_response(setup, "keep-alive", seconds=0.5)
        )
        await wait_until(lambda: setup.service.creation_counts["recipient"] == 1)
        retry_response = await setup.gateway.request(
            "POST", "/v1/recipients", RECIPIENT_BODY, headers={"X-Request-Id": request_id}
        )
        assert retry_response.headers.get("Idempotent-Replayed") == "true"
        assert not first_attempt.done()
        await first_attempt
        await asyncio.sleep(0.5)
        response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert (response.status, response.headers.get("Idempotent-Replayed")) == (200, None)
        assert setup.service.creation_counts["recipient"] == 2


async def test_reset_during_a_later_request_makes_no_retry(tmp_path: Path) -> None:
    """The client has read the response before it sent that request on the same connection."""
    async with open_gateway_with_faults(tmp_path) as setup:
        setup.add_fault("GET", "/v1/recipients", answer_delay=1)
        key = {"X-API-Key": setup.gateway.api_key}
        client = http.client.HTTPConnection("127.0.0.1", setup.gateway.running.port)

        def create_and_reset_while_listing() -> int:
            headers = {"Content-Type": "application/json", **key}
            client.request("POST", "/v1/recipients", json.dumps(RECIPIENT_BODY), headers)
            response = client.getresponse()
            response.read()
            client.request("GET", "/v1/recipients", headers=key)
            time.sleep(0.3)
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            client.close()
            return response.status

        assert await asyncio.to_thread(create_and_reset_while_listing) == 200
        await asyncio.sleep(0.3)
        response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert (response.status, response.headers.get("Idempotent-Replayed")) == (200, None)
        assert setup.service.creation_counts["recipient"] == 2


async def test_reset_before_the_acknowledgement_was_noticed_makes_a_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset discards what was not acknowledged, so nothing seems to be left."""

    async def wait_longer(*transports: asyncio.Transport | None) -> bool:
        await asyncio.sleep(0.5)
        return await wait_for_tcp_acknowledgement(*transports)

    monkeypatch.setattr(request_context, "wait_for_tcp_acknowledgement", wait_longer)
    async with open_gateway_with_faults(tmp_path) as setup:
        await reset_unread_response(setup, "keep-alive", seconds=0)
        await asyncio.sleep(0.7)
        retry_response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert (retry_response.status, retry_response.headers.get("Idempotent-Replayed")) == (
            200,
            "true",
        )
        assert setup.service.creation_counts["recipient"] == 1


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 503, "body": b"<html>upstream connect error</html>", "executes": True},
        {"close": "after"},
        {"status": 200, "body": b'{"ok":true}', "executes": True},
        {"status": 200, "body": b'{"ok":true,"recipient":{"id":null}}', "executes": True},
    ],
)
async def test_executed_write_is_confirmed_immediately(
    tmp_path: Path, fault: dict[str, Any]
) -> None:
    async with open_gateway_with_faults(tmp_path, has_immediate_read=True) as setup:
        setup.add_fault("POST", "/v1/recipients", **fault)
        response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert (response.status, response.body["recipient"]["email"]) == (
            200,
            RECIPIENT_BODY["email"],
        )
        assert setup.service.creation_counts["recipient"] == 1


@pytest.mark.parametrize("answer", [b'{"ok":true}', b'{"ok":true,"batch":{"id":7}}'])
async def test_new_batch_without_an_id_is_found_immediately(answer: bytes, tmp_path: Path) -> None:
    async with open_gateway_with_faults(tmp_path, has_immediate_read=True) as setup:
        setup.add_fault("POST", "/v1/batches", status=200, body=answer, executes=True)
        body = {"sourceCurrency": "USD", "description": "the only one"}
        response = await setup.gateway.request("POST", "/v1/batches", body)
        assert (response.status, response.body["batch"]["description"]) == (200, "the only one")
        assert setup.service.creation_counts["batch"] == 1


async def test_memo_that_the_service_shows_is_confirmed_immediately(tmp_path: Path) -> None:
    async with open_gateway_with_faults(tmp_path, has_immediate_read=True) as setup:
        recipient = await create_recipient(setup.gateway)
        batch = await create_batch(setup.gateway, recipient, "10.00")
        path = f"/v1/batches/{batch}/payments"
        (payment,) = (await setup.gateway.request("GET", path)).body["payments"]
        setup.add_fault("PATCH", "*", status=502, body=b"<html>", executes=True)
        response = await setup.gateway.request("PATCH", f"{path}/{payment['id']}", {"memo": "May"})
        assert response.status == 200, response.text


async def test_new_batch_is_found_in_a_list_with_numbers_as_text(tmp_path: Path) -> None:
    options: dict[str, Any] = {"has_immediate_read": True, "batch_counts": "text"}
    async with open_gateway_with_faults(tmp_path, **options) as setup:
        recipient = await create_recipient(setup.gateway)
        setup.add_fault("POST", "/v1/batches", status=502, body=b"<html>", executes=True)
        payment = {"recipient": {"id": recipient}, "sourceAmount": "10.00"}
        body = {"sourceCurrency": "USD", "payments": [payment]}
        assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 200
        response = await setup.gateway.request("GET", "/v1/batches")
        assert [batch["totalPayments"] for batch in response.body["batches"]] == [1]
        assert setup.service.creation_counts["batch"] == 1


async def load_recipient_body(setup: GatewayAndService) -> bytes:
    """Returns the body with which the service shows its only recipient."""
    (id_,) = setup.service.find_or_create_tenant().recipients
    return (await send_signed(setup.gateway, "GET", f"/recipients/{id_}")).body


@pytest.mark.parametrize("method", ["PATCH", "POST"])
@pytest.mark.parametrize("is_address", [False, True], ids=["primary", "address"])
async def test_recipient_shown_as_before_an_earlier_change_proves_no_later_one(
    is_address: bool, method: str, tmp_path: Path
) -> None:
    async with open_gateway_with_faults(tmp_path, has_immediate_read=True) as setup:
        recipient = await create_recipient(setup.gateway)
        path = f"/recipients/{recipient}/payout-methods"
        (stored,) = setup.service.find_or_create_tenant().recipients.values()
        first, second = BANK, WALLET
        if is_address:
            first = {**WALLET, "accounts": {"wallet": {"address": "first@example.com"}}}
        elif method == "PATCH":
            first, second = {"primary": BANK["primary"]}, {"primary": WALLET["primary"]}
        initial = first if is_address else BANK
        await request_successfully(setup.gateway, "POST", path, initial)
        old_body = await load_recipient_body(setup)
        await request_successfully(setup.gateway, method, path, second)
        setup.add_fault("GET", "/v1/recipients/*")  # read before the change
        setup.add_fault(method, "*", close="before")
        setup.add_fault("GET", "/v1/recipients/*", status=200, body=old_body, times=100)
        assert (await setup.gateway.request(method, f"/v1{path}", first)).status == 500
        setup.service.faults.clear()
        setup.let_calls_expire()
        await request_successfully(setup.gateway, method, path, first)
        (primary,) = (each for each in stored.accounts if each.is_primary)
        if is_address:
            assert primary.fields["emailAddress"] == "first@example.com"
        assert primary.type == ("wallet" if is_address else "bank-transfer")


async def test_change_of_an_account_that_had_another_id_by_then_did_not_happen(
    tmp_path: Path,
) -> None:
    """The recipient was shown late, so that the change named an id that the account had before."""
    async with open_gateway_with_faults(tmp_path, has_immediate_read=True) as setup:
        path = f"/recipients/{await create_recipient(setup.gateway)}/payout-methods"
        (stored,) = setup.service.find_or_create_tenant().recipients.values()
        old_body = await load_recipient_body(setup)
        second, third = (
            {**WALLET, "accounts": {"wallet": {"address": f"{name}@example.com"}}}
            for name in ("second", "third")
        )
        await request_successfully(setup.gateway, "PATCH", path, second)
        setup.add_fault("GET", "/v1/recipients/*", status=200, body=old_body, times=100)
        setup.add_fault("PATCH", "*", close="before")
        assert (await setup.gateway.request("PATCH", f"/v1{path}", third)).status == 500
        setup.service.faults.clear()
        setup.clock.ahead_seconds += 45
        await request_successfully(setup.gateway, "PATCH", path, third)
        (account,) = stored.accounts
        assert account.fields["emailAddress"] == "third@example.com"


async def test_recipient_shown_as_before_an_account_was_added_does_not_prove_its_deletion(
    tmp_path: Path,
) -> None:
    async with open_gateway_with_faults(tmp_path, has_immediate_read=True) as setup:
        response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        path = f"/v1/recipients/{response.body['recipient']['id']}/payout-methods"
        (stored,) = setup.service.find_or_create_tenant().recipients.values()
        old_body = await load_recipient_body(setup)
        setup.add_fault("POST", "/v1/recipients/*/accounts")
        refusal = {"status": 429, "body": RATE_LIMIT_REFUSAL}
        setup.add_fault("POST", "/v1/recipients/*/accounts", **refusal)
        setup.add_fault("DELETE", "*", close="before")
        setup.add_fault("GET", "/v1/recipients/*", status=200, body=old_body, times=100)
        payout = {**WALLET, "accounts": {**WALLET["accounts"], **BANK["accounts"]}}
        assert (await setup.gateway.request("POST", path, payout)).status == 429
        assert len(stored.accounts) == 1
        setup.service.faults.clear()

        def is_undone() -> bool:
            setup.clock.ahead_seconds += 30
            return stored.accounts == []

        await wait_until(is_undone)


async def test_recipient_shown_as_before_a_change_does_not_prove_that_it_was_taken_back(
    tmp_path: Path,
) -> None:
    async with open_gateway_with_faults(tmp_path, has_immediate_read=True) as setup:
        path = f"/v1/recipients/{await create_recipient(setup.gateway)}"
        (stored,) = setup.service.find_or_create_tenant().recipients.values()
        old_body = await load_recipient_body(setup)
        setup.add_fault("PATCH", "/v1/recipients/*")
        refusal = {"status": 429, "body": RATE_LIMIT_REFUSAL}
        setup.add_fault("POST", "/v1/recipients/*/accounts", **refusal)
        setup.add_fault("PATCH", "/v1/recipients/*", close="before")
        setup.add_fault("GET", "/v1/recipients/*", status=200, body=old_body, times=100)
        change = {"firstName": "Eve", "payout": BANK}
        assert (await setup.gateway.request("PATCH", path, change)).status == 429
        assert stored.fields["firstName"] == "Eve"
        setup.service.faults.clear()

        def is_undone() -> bool:
            setup.clock.ahead_seconds += 30
            return bool(stored.fields["firstName"] == "Ada")

        await wait_until(is_undone)


@pytest.mark.parametrize("field", ["status", "firstName"])
async def test_recipient_shown_as_before_an_earlier_update_proves_no_later_one(
    field: str, tmp_path: Path
) -> None:
    async with open_gateway_with_faults(tmp_path, has_immediate_read=True) as setup:
        path = f"/recipients/{await create_recipient(setup.gateway)}"
        (stored,) = setup.service.find_or_create_tenant().recipients.values()
        first, second = ("suspended", "active") if field == "status" else ("Eve", "Ada")
        await request_successfully(setup.gateway, "PATCH", path, {field: first})
        old_body = await load_recipient_body(setup)
        await request_successfully(setup.gateway, "PATCH", path, {field: second})
        setup.add_fault("GET", "/v1/recipients/*")  # read before the change
        setup.add_fault("PATCH", "*", close="before")
        setup.add_fault("GET", "/v1/recipients/*", status=200, body=old_body, times=100)
        assert (await setup.gateway.request("PATCH", f"/v1{path}", {field: first})).status == 500
        setup.service.faults.clear()
        setup.let_calls_expire()
        await request_successfully(setup.gateway, "PATCH", path, {field: first})
        assert first in (stored.status, stored.fields["firstName"])


async def test_payment_that_was_removed_is_not_taken_for_an_equal_one_in_doubt(
    tmp_path: Path,
) -> None:
    async with open_gateway_with_faults(tmp_path, has_immediate_read=True) as setup:
        recipient = await create_recipient(setup.gateway)
        batch = await create_batch(setup.gateway, recipient, "10.00")
        old_summary = await load_service_summary(setup.gateway, setup.service)
        path = f"/batches/{batch}/payments"
        (payment,) = await load_payment_ids(setup.gateway, batch)
        await request_successfully(setup.gateway, "DELETE", f"{path}/{payment}")
        setup.add_fault("GET", "/v1/batch/*/summary")  # read before the payment is added
        setup.add_fault("POST", "/v1/batches/*/payments", close="before")
        show_summary(setup.service, old_summary)
        body = {"recipient": {"id": recipient}, "sourceAmount": "10.00"}
        assert (await setup.gateway.request("POST", f"/v1{path}", body)).status == 500
        setup.service.faults.clear()
        setup.let_calls_expire()
        await request_successfully(setup.gateway, "POST", path, body)
        assert len(await load_payment_ids(setup.gateway, batch)) == 1


async def test_lost_create_is_distinguished_from_an_earlier_identical_one(tmp_path: Path) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        assert (await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)).status == 200
        setup.add_fault("POST", "/v1/recipients", close="before")
        assert (await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)).status == 500
        setup.let_calls_expire()
        assert (await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)).status == 200
        assert setup.service.creation_counts["recipient"] == 2


async def test_start_in_doubt_is_read_before_it_is_sent_again(
    tmp_path: Path,
) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        batch = await create_batch(setup.gateway, recipient, "10.00")
        setup.add_fault("POST", "/v1/batches/*/start-processing", close="after")
        path = f"/v1/batches/{batch}/start-processing"
        assert (await setup.gateway.request("POST", path)).status == 500
        retry_response = await setup.gateway.request("POST", path)
        assert (retry_response.status, retry_response.body["batch"]["status"]) == (
            200,
            "processing",
        )
        assert len(setup.service.batch_starts) == 1
        assert setup.count_calls("POST", "/v1/batches/*/start-processing") == 1
        third_response = await setup.gateway.request("POST", path)
        assert third_response.body["errors"][0]["code"] == "invalid_status"


async def test_start_in_doubt_is_not_repeated_after_others_started_the_superseded_batch(
    tmp_path: Path,
) -> None:
    async with open_gateway_with_faults(tmp_path, inferred=False) as setup:
        gateway, tenant = setup.gateway, setup.service.find_or_create_tenant()
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "10.00")
        (superseded,) = tenant.batches.values()
        (payment,) = await load_payment_ids(gateway, batch)
        payment_path = f"/v1/batches/{batch}/payments/{payment}"
        response = await gateway.request("PATCH", payment_path, {"sourceAmount": "9.00"})
        assert response.status == 200, response.text
        setup.add_fault("POST", "/v1/batches/*/start-processing", close="before")
        path = f"/v1/batches/{batch}/start-processing"
        assert (await gateway.request("POST", path)).status == 500
        start_batch(tenant, superseded)  # in the service's dashboard
        setup.let_calls_expire()
        retry_response = await gateway.request("POST", path)
        assert (retry_response.status, retry_response.body["errors"][0]["code"]) == (
            406,
            "invalid_status",
        )
        assert setup.service.batch_starts == []


async def test_next_write_on_a_batch_settles_the_previous_one(tmp_path: Path) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        batch = await create_batch(setup.gateway, recipient, "10.00")
        setup.add_fault("POST", "/v1/batches/*/start-processing", close="before")
        assert (
            await setup.gateway.request("POST", f"/v1/batches/{batch}/start-processing")
        ).status == 500
        early_response = await setup.gateway.request("DELETE", f"/v1/batches/{batch}")
        check_retryable_refusal(early_response)
        started_again = await setup.gateway.request("POST", f"/v1/batches/{batch}/start-processing")
        assert "is unknown" in started_again.body["errors"][0]["message"]
        setup.let_calls_expire()
        late_response = await setup.gateway.request("DELETE", f"/v1/batches/{batch}")
        assert late_response.status == 200, late_response.text
        assert setup.service.batch_starts == []


def check_retryable_refusal(response: GatewayResponse) -> None:
    """Checks the response to a request that was not sent, because another write is in doubt."""
    (error,) = response.body["errors"]
    assert (response.status, error["code"]) == (500, "internal_server_error"), response.text
    assert int(response.headers["Retry-After"]) > 0
    assert "another write" in error["message"]
    assert "nothing of this request was done" in error["message"]
    assert "is unknown" not in error["message"]


async def test_payout_method_write_after_one_in_doubt_is_refused(
    tmp_path: Path,
) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        create_response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        path = f"/v1/recipients/{create_response.body['recipient']['id']}/payout-methods"
        setup.add_fault("POST", "/v1/recipients/*/accounts", close="before")
        lost_response = await setup.gateway.request("POST", path, BANK)
        assert "is unknown" in lost_response.body["errors"][0]["message"]
        check_retryable_refusal(await setup.gateway.request("POST", path, WALLET))
        assert setup.count_calls("POST", "/v1/recipients/*/accounts") == 1
        setup.let_calls_expire()
        assert (await setup.gateway.request("POST", path, WALLET)).status == 200


@pytest.mark.parametrize("close", ["before", "after"])
async def test_account_number_that_looks_the_same_when_masked_proves_no_change(
    close: str, tmp_path: Path
) -> None:
    async with open_gateway_with_faults(tmp_path, has_immediate_read=True) as setup:
        create_response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        recipient = create_response.body["recipient"]["id"]
        path = f"/v1/recipients/{recipient}/payout-methods"
        assert (await setup.gateway.request("POST", path, BANK)).status == 200
        setup.add_fault("PATCH", "/v1/recipients/*/accounts/*", close=close)
        change = {"accounts": {"bank": {"accountNum": "9999967"}}}
        response = await setup.gateway.request("PATCH", path, change)
        if close == "before":
            assert response.status == 500
            setup.let_calls_expire()
            response = await setup.gateway.request("PATCH", path, change)
        assert response.status == 200
        (account,) = setup.service.require_recipient(recipient).accounts
        assert account.fields["accountNum"] == "9999967"
        assert setup.count_calls("PATCH", "/v1/recipients/*/accounts/*") == (
            2 if close == "before" else 1
        )


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"id": "A-OLDER"}, id="an account that existed before"),
        pytest.param({"accountHolderName": "Eve Moneypenny"}, id="a change by somebody else"),
    ],
)
async def test_account_of_another_change_proves_no_change(
    other: dict[str, str], tmp_path: Path
) -> None:
    """It is shown like the requested one, because only the end of its number is shown."""
    async with open_gateway_with_faults(tmp_path, has_immediate_read=True) as setup:
        create_response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        recipient = create_response.body["recipient"]["id"]
        path = f"/v1/recipients/{recipient}/payout-methods"
        assert (await setup.gateway.request("POST", path, BANK)).status == 200
        accounts = setup.service.require_recipient(recipient).accounts
        fields = {**accounts[0].fields, **other, "accountNum": "5555599"}
        other_account = replace(
            accounts[0], id=other.get("id", "A-NEWER"), is_primary=False, fields=fields
        )
        if "id" in other:
            accounts.insert(0, other_account)
        setup.add_fault("PATCH", "/v1/recipients/*/accounts/*", close="before", delay=1)
        change = {"accounts": {"bank": {"accountNum": "9999999"}}}
        request = asyncio.create_task(setup.gateway.request("PATCH", path, change))
        await asyncio.sleep(0.5)
        accounts[:] = [replace(other_account, is_primary=True)]
        assert (await request).status == 500


async def test_government_id_that_looks_the_same_when_masked_proves_no_change(
    tmp_path: Path,
) -> None:
    async with open_gateway_with_faults(tmp_path, has_immediate_read=True) as setup:
        body = {**RECIPIENT_BODY, "ssn": "123456789"}
        create_response = await setup.gateway.request("POST", "/v1/recipients", body)
        recipient = create_response.body["recipient"]["id"]
        setup.add_fault("PATCH", "/v1/recipients/*", close="before")
        path, change = f"/v1/recipients/{recipient}", {"ssn": "987654389"}
        assert (await setup.gateway.request("PATCH", path, change)).status == 500
        setup.let_calls_expire()
        assert (await setup.gateway.request("PATCH", path, change)).status == 200
        (government_id,) = setup.service.require_recipient(recipient).fields["governmentIds"]
        assert government_id["value"] == "987654389"


@pytest.mark.parametrize("is_draft", [False, True], ids=["created", "of a draft"])
async def test_batch_create_in_doubt_is_reported_if_the_service_lists_no_batches(
    is_draft: bool, tmp_path: Path
) -> None:
    """It pays nobody before its start; a retry creates another, and it is reported to an operator."""
    async with open_operated_gateway(tmp_path, inferred=False) as setup:
        recipient = await create_recipient(setup.gateway)
        body = {
            "sourceCurrency": "USD",
            "payments": [{"recipient": {"id": recipient}, "sourceAmount": "10.00"}],
        }
        requests: tuple[Any, ...] = ("POST", "/v1/batches", body)
        if is_draft:
            batch = (await setup.gateway.request(*requests)).body["batch"]["id"]
            (payment,) = await load_payment_ids(setup.gateway, batch)
            change = {"sourceAmount": "11.00"}
            await request_successfully(
                setup.gateway, "PATCH", f"/batches/{batch}/payments/{payment}", change
            )
            requests = ("POST", f"/v1/batches/{batch}/start-processing")
        ids_before = set(setup.service.find_or_create_tenant().batches)
        abandoned_batches = (await setup.run_json_command("batches", "abandoned"))["batches"]
        setup.add_fault("POST", "/v1/batches", close="after")
        response = await setup.gateway.request(*requests)
        assert (response.status, int(response.headers["Retry-After"]) > 0) == (500, True)
        (lost_id,) = set(setup.service.find_or_create_tenant().batches) - ids_before
        creation_count = setup.count_calls("POST", "/v1/batches")
        assert (await setup.gateway.request(*requests)).status == 500, "it may still be carried out"
        assert setup.count_calls("POST", "/v1/batches") == creation_count
        assert (await setup.run_json_command("batches", "abandoned"))[
            "batches"
        ] == abandoned_batches
        await setup.age_sent_writes()

        async def is_made() -> bool:
            return (await setup.gateway.request(*requests)).status == 200

        await wait_until_async(is_made, 40)
        assert setup.count_calls("POST", "/v1/batches") == creation_count + 1
        assert await setup.list_writes_in_doubt() == []
        report = (await setup.run_json_command("batches", "abandoned"))["batches"]
        (unseen_entry,) = [entry for entry in report if entry["abandoned"] is None]
        assert response.headers["X-Request-Id"] in unseen_entry["what_to_do"]
        assert "never start it" in unseen_entry["what_to_do"]
        # Nor if a client has its id from the service.
        start = f"/v1/batches/{lost_id}/start-processing"
        refusal = await setup.gateway.request("POST", start)
        assert (refusal.status, refusal.body["errors"][0]["code"]) == (406, "invalid_status")
        client = SigningClient()
        signed_refusal = await send_raw(
            setup.gateway, client.build_request("POST", start, stamp=int(time.time()))
        )
        assert signed_refusal.status == 400
        assert lost_id not in [entry.batch_id for entry in setup.service.batch_starts]
        # A batch that another write has created is not the lost one.
        signed_body = json.dumps({"currency": "USD", "payments": [body["payments"][0]]}).encode()
        creation = client.build_request(
            "POST",
            "/v1/batches",
            signed_body,
            "Content-Type: application/json",
            stamp=int(time.time()),
        )
        signed_id = json.loads((await send_raw(setup.gateway, creation)).body)["batch"]["id"]
        await request_successfully(setup.gateway, "POST", f"/batches/{signed_id}/start-processing")


async def test_batch_create_in_doubt_is_found_in_the_list(tmp_path: Path) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        await create_batch(setup.gateway, recipient, "10.00")
        body = {
            "sourceCurrency": "USD",
            "payments": [{"recipient": {"id": recipient}, "sourceAmount": "10.00"}],
        }
        setup.add_fault("POST", "/v1/batches", close="after")
        assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 500
        retry_response = await setup.gateway.request("POST", "/v1/batches", body)
        assert retry_response.status == 200, retry_response.text
        assert retry_response.body["batch"]["amount"] == "10.00"
        assert setup.service.creation_counts["batch"] == 2


async def test_batch_create_in_doubt_is_found_behind_the_first_page_of_a_list_without_meta(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"max_page_size": 1, "deviations": frozenset({"list-totals"})}
    async with open_gateway_with_faults(tmp_path, **options) as setup:
        recipient = await create_recipient(setup.gateway)
        setup.add_fault("POST", "/v1/batches", close="after")
        payment = {"recipient": {"id": recipient}, "sourceAmount": "10.00"}
        body = {"sourceCurrency": "USD", "payments": [payment]}
        assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 500
        await create_batch(setup.gateway, recipient, "11.00")
        setup.let_calls_expire()
        assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 200
        assert setup.service.creation_counts["batch"] == 2


async def test_lost_batch_create_can_be_repeated_although_there_are_too_many_batches_to_search(
    tmp_path: Path,
) -> None:
    async with open_gateway_with_faults(tmp_path, max_page_size=1) as setup:
        recipient = await create_recipient(setup.gateway)
        for amount in range(1, MAX_LIST_PAGES + 2):
            await create_batch(setup.gateway, recipient, f"{amount}.00")
        payment = {"recipient": {"id": recipient}, "sourceAmount": "99.00"}
        body = {"sourceCurrency": "USD", "payments": [payment]}
        setup.add_fault("POST", "/v1/batches", close="before")
        assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 500
        setup.let_calls_expire()
        response = await setup.gateway.request("POST", "/v1/batches", body)
        assert (response.status, response.body["batch"]["amount"]) == (200, "99.00")


@pytest.mark.parametrize(
    "unreadable", [b'{"ok":true}', b'{"ok":true,"data":[]}', b'{"ok":true,"batches":{}}']
)
async def test_unreadable_list_does_not_prove_absence(unreadable: bytes, tmp_path: Path) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        body = {
            "sourceCurrency": "USD",
            "payments": [{"recipient": {"id": recipient}, "sourceAmount": "10.00"}],
        }
        setup.add_fault("GET", "/v1/batches", status=200, body=unreadable, times=10_000)
        setup.add_fault("POST", "/v1/batches", close="after")
        assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 500
        setup.let_calls_expire()
        assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 500
        assert setup.service.creation_counts["batch"] == 1
        setup.service.faults.clear()
        retry_response = await setup.gateway.request("POST", "/v1/batches", body)
        assert retry_response.status == 200, retry_response.text
        assert setup.service.creation_counts["batch"] == 1


async def test_service_that_fails_is_not_read_for_each_write_in_doubt(tmp_path: Path) -> None:
    count = 40
    async with open_gateway_with_faults(tmp_path) as setup:
        setup.add_fault("*", "/v1/recipients", status=500, times=10_000)
        creates = (
            setup.gateway.request("POST", "/v1/recipients", {**RECIPIENT_BODY, "lastName": f"L{n}"})
            for n in range(count)
        )
        assert {response.status for response in await asyncio.gather(*creates)} == {500}
        setup.let_calls_expire()
        await wait_until(lambda: setup.count_calls("GET", "/v1/recipients") > 0)
        await asyncio.sleep(3)  # each is due now
        assert setup.count_calls("GET", "/v1/recipients") < count / 2
        setup.service.faults.clear()

        async def is_settled() -> bool:
            states = await count_operations_by_state(setup.gateway.settings)
            return not states["running"] and not states["unsettled"]

        await wait_until_async(is_settled, 60)
        assert setup.count_calls("GET", "/v1/recipients") < 3 * count


async def test_change_in_doubt_with_target_amount_in_batch_currency_is_found(
    tmp_path: Path,
) -> None:
    """The payment arrives in the account's currency; it was added, and paid, twice."""
    async with open_gateway_with_faults(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        path = f"/v1/recipients/{recipient}/payout-methods"
        in_euros = {
            "primary": {"method": "bank", "currency": "EUR"},
            "accounts": {"bank": {"country": "DE", "iban": "DE89370400440532013000"}},
        }
        assert (await setup.gateway.request("POST", path, in_euros)).status == 200
        batch = f"/v1/batches/{await create_batch(setup.gateway, recipient, '10.00')}"
        payment = {"recipient": {"id": recipient}, "targetAmount": "7.00", "targetCurrency": "USD"}
        setup.add_fault("PATCH", "/v1/batches/*", close="after")
        assert (await setup.gateway.request("PATCH", batch, {"payments": [payment]})).status == 500
        setup.let_calls_expire()
        retry_response = await setup.gateway.request("PATCH", batch, {"payments": [payment]})
        assert retry_response.status == 200, retry_response.text
        assert setup.service.creation_counts["payment"] == 2
        assert setup.count_calls("PATCH", "/v1/batches/*") == 1


async def test_one_new_payment_does_not_prove_an_edit_that_adds_two_equal_ones(
    tmp_path: Path,
) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        batch = f"/v1/batches/{await create_batch(setup.gateway, recipient, '10.00')}"
        payment = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        setup.add_fault("PATCH", "/v1/batches/*", close="before")
        body = {"payments": [payment, payment]}
        assert (await setup.gateway.request("PATCH", batch, body)).status == 500
        tenant = setup.service.find_or_create_tenant()
        (upstream_batch,) = tenant.batches.values()
        (shown_payment,) = upstream_batch.payments.values()
        equal_payment = replace(shown_payment, amount=Decimal("7.00"))
        renew_payment_terms(equal_payment)
        insert_payment(tenant, upstream_batch, equal_payment)  # in the service's dashboard
        setup.let_calls_expire()
        retry_response = await setup.gateway.request("PATCH", batch, body)
        assert retry_response.status == 500, retry_response.text
        assert setup.service.creation_counts["payment"] == 2
        assert setup.count_calls("PATCH", "/v1/batches/*") == 1


async def test_payout_in_doubt_is_completed_without_the_client(
    tmp_path: Path,
) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        setup.add_fault("POST", "/v1/recipients/*/accounts", close="after")
        body = {**RECIPIENT_BODY, "payout": BANK}
        assert (await setup.gateway.request("POST", "/v1/recipients", body)).status == 500
        await wait_until(lambda: setup.count_calls("GET", "/v1/recipients/*") > 0)
        retry_response = await setup.gateway.request("POST", "/v1/recipients", body)
        assert retry_response.status == 200, retry_response.text
        assert retry_response.body["recipient"]["payout"]["accounts"]["bank"][
            "accountNum"
        ].endswith("67")
        assert (
            setup.service.creation_counts["account"]
            == setup.service.creation_counts["recipient"]
            == 1
        )


async def settle_and_change_version(
    setup: OperatedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waits until no write is in doubt; then changes the steps of all flows."""

    async def is_settled() -> bool:
        return await setup.run_json_command("writes", "unsettled") == {"writes": []}

    await wait_until_async(is_settled)
    fingerprint_step = step_records.fingerprint_step
    monkeypatch.setattr(
        step_records, "fingerprint_step", lambda step: f"changed {fingerprint_step(step)}"
    )


@pytest.mark.parametrize("count", [1, 3000])
async def test_retry_gets_the_settled_answer_after_a_flow_change(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_operated_gateway(tmp_path, seconds=10) as setup:
        payment = {
            "recipient": {"id": await create_recipient(setup.gateway)},
            "sourceAmount": "10.00",
        }
        body = {"sourceCurrency": "USD", "payments": [{**payment, "memo": "m" * 100}] * count}
        setup.add_fault("POST", "/v1/batches", close="after")
        assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 500
        await settle_and_change_version(setup, monkeypatch)
        retry_response = await setup.gateway.request("POST", "/v1/batches", body)
        assert retry_response.status == 200, retry_response.text
        assert retry_response.text.startswith('{"ok":true,"batch":{"id":"B-')
        assert retry_response.body["batch"]["totalPayments"] == count
        batch_response = await setup.gateway.request(
            "GET", f"/v1/batches/{retry_response.body['batch']['id']}"
        )
        assert (
            batch_response.body["batch"]["amount"]
            == retry_response.body["batch"]["amount"]
            == f"{count * 10}.00"
        )
        assert setup.service.creation_counts["batch"] == 1


async def test_retry_gets_the_settled_answer_with_its_own_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        batch = await create_batch(setup.gateway, await create_recipient(setup.gateway), "10.00")
        (current,) = (id_ for tenant in setup.service.tenants.values() for id_ in tenant.batches)
        assert current != batch
        setup.add_fault("POST", "/v1/batches/*/start-processing", close="after")
        path = f"/v1/batches/{current}/start-processing"
        assert (await setup.gateway.request("POST", path)).status == 500
        await settle_and_change_version(setup, monkeypatch)
        retry_response = await setup.gateway.request("POST", path)
        assert (retry_response.status, retry_response.body["batch"]["id"]) == (200, current), (
            retry_response.text
        )
        assert len(setup.service.batch_starts) == 1


async def test_idempotency_key_replays_the_first_answer(tmp_path: Path) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        key = {"Idempotency-Key": "payday-1"}
        first_response = await setup.gateway.request(
            "POST", "/v1/recipients", RECIPIENT_BODY, headers=key
        )
        retry_response = await setup.gateway.request(
            "POST", "/v1/recipients", RECIPIENT_BODY, headers=key
        )
        assert first_response.status == retry_response.status == 200
        assert first_response.text == retry_response.text
        assert setup.service.creation_counts["recipient"] == 1
        other_response = await setup.gateway.request(
            "POST", "/v1/recipients", {**RECIPIENT_BODY, "firstName": "Augusta"}, headers=key
        )
        assert (other_response.status, other_response.body["errors"][0]["code"]) == (
            406,
            "invalid_field",
        )
        responses = await asyncio.gather(
            *(
                setup.gateway.request(
                    "POST",
                    "/v1/recipients",
                    RECIPIENT_BODY,
                    headers={"Idempotency-Key": "payday-2"},
                )
                for _ in range(3)
            )
        )
        assert len({response.text for response in responses}) == 1
        assert setup.service.creation_counts["recipient"] == 2


async def test_disconnected_client_gets_its_answer_on_retry(tmp_path: Path) -> None:
    async with open_gateway_with_faults(tmp_path, 5) as setup:
        setup.add_fault("POST", "/v1/recipients", answer_delay=0.5)
        pending_response = asyncio.ensure_future(
            setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        )
        await wait_until(lambda: setup.service.creation_counts["recipient"] == 1)
        pending_response.cancel()
        await asyncio.sleep(0.1)
        retry_response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert retry_response.status == 200, retry_response.text
        assert setup.service.creation_counts["recipient"] == 1


async def test_client_disconnected_before_any_write_is_served_on_retry(
    tmp_path: Path,
) -> None:
    async with open_gateway_with_faults(tmp_path, 5) as setup:
        recipient = await create_recipient(setup.gateway)
        body = {
            "sourceCurrency": "USD",
            "payments": [
                {"recipient": {"email": "ada@example.com"}, "sourceAmount": "10.00"},
                {"recipient": {"id": recipient}, "sourceAmount": "10.00"},
            ],
        }
        setup.add_fault("GET", "/v1/recipients", answer_delay=0.5)
        pending_response = asyncio.ensure_future(setup.gateway.request("POST", "/v1/batches", body))
        await asyncio.sleep(0.2)
        pending_response.cancel()
        retry_response = await setup.gateway.request("POST", "/v1/batches", body)
        assert retry_response.status == 200, retry_response.text
        await asyncio.sleep(0.5)
        assert setup.service.creation_counts["batch"] == 1


@pytest.mark.parametrize("kind", ["recipients", "batches"])
@pytest.mark.parametrize("is_list", [False, True])
async def test_page_in_place_of_the_service_does_not_prove_a_deletion(
    kind: str, is_list: bool, tmp_path: Path
) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        id_ = await create_recipient(setup.gateway)
        if kind == "batches":
            id_ = await create_batch(setup.gateway, id_, "10.00")
        path, body = (f"/v1/{kind}", {"ids": [id_]}) if is_list else (f"/v1/{kind}/{id_}", None)
        is_one_call = is_list and kind == "recipients"
        setup.add_fault("DELETE", "/v1/recipients" if is_one_call else "/v1/*/*", close="before")
        assert (await setup.gateway.request("DELETE", path, body)).status == 500
        page = {"status": 404, "body": b"<html>Not found</html>"}
        for read_path in ("/v1/recipients/*", "/v1/batch/*/summary"):
            setup.add_fault("GET", read_path, **page, times=100)
        await setup.age_sent_writes()
        assert (await setup.gateway.request("DELETE", path, body)).status == 500
        setup.service.faults.clear()
        response = await setup.gateway.request("DELETE", path, body)
        assert (response.status, "Idempotent-Replayed" in response.headers) == (200, False)
        assert (await setup.gateway.request("GET", f"/v1/{kind}/{id_}")).status == 404
        assert len(setup.service.list_requests("DELETE")) == 2


async def test_read_without_its_object_proves_nothing(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        path = f"/v1/recipients/{await create_recipient(setup.gateway)}"
        setup.add_fault("DELETE", path, close="before")
        assert (await setup.gateway.request("DELETE", path)).status == 500
        setup.add_fault("GET", "/v1/recipients/*", status=200, body=b'{"ok":true}', times=100)
        await setup.age_sent_writes()
        response = await setup.gateway.request("DELETE", path)
        assert (response.status, "Retry-After" in response.headers) == (500, True)
        assert "KeyError" not in read_log(tmp_path)
        setup.service.faults.clear()
        assert (await setup.gateway.request("DELETE", path)).status == 200
        assert len(setup.service.list_requests("DELETE")) == 2


async def test_identical_requests_pipelined_on_one_connection_are_one(tmp_path: Path) -> None:
    async with open_gateway_with_faults(tmp_path) as setup:
        data = json.dumps(RECIPIENT_BODY)
        lines = ["POST /v1/recipients HTTP/1.1", "Host: gateway", f"X-API-Key: {KEY['api_key']}"]
        request = "\r\n".join([*lines, f"Content-Length: {len(data)}", "", data]).encode()
        async with await open_connection(setup.gateway.running.port) as connection:
            await connection.send(request * 2)
            responses = [await connection.read_response() for _ in range(2)]
            assert setup.service.creation_counts["recipient"] == 1
            # The next comes after both were delivered.
            await connection.send(request)
            responses.append(await connection.read_response())
        assert setup.service.creation_counts["recipient"] == 2
        assert [
            "idempotent-replayed" in response.headers for response in responses if response
        ] == [
            False,
            True,
            False,
        ]
