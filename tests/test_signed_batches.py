"""Batches that are used through both interfaces at once: an edit and a start never both win."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.signed_api.transitions import SignedBatchWrite
from gateway.simulator import batches
from gateway.simulator.validation import Problems
from gateway.storage import ObjectStateStore, Tenant, open_store
from gateway.writes.executor import FlowExecutor
from gateway.writes.write_request import Caller
from mappings.batch_views import SIGNED_ADDS
from mappings.effects import AwaitFacts
from tests.operator_commands import open_operated_gateway, wait_until_async
from tests.payouts import (
    create_batch,
    create_recipient,
    load_payment_ids,
    open_gateway_and_service,
    request_successfully,
)
from tests.running_gateway import GatewayUnderTest, open_gateway
from tests.service_summaries import load_service_summary, show_summary
from tests.signed_requests import INTERNAL, SigningClient, extract_error, send_raw, send_signed
from tests.simulator import (
    DEMO_CREDENTIALS,
    Fault,
    Service,
    ServiceCredentials,
    ServiceOptions,
    Simulator,
    start_simulator,
)
from tests.sockets import RawResponse, open_connection, wait_until

TENANT = Tenant("demo", "sandbox")
CLIENT = SigningClient()
FROZEN_REFUSAL = (500, "internal_server_error")
INVALID_STATUS = (400, "invalid_status")
WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS = pytest.mark.parametrize(
    "inferred", [True, False], ids=["inferred", "documented"]
)


def build_service(*, inferred: bool) -> Service:
    return Service(seed=1, options=ServiceOptions(inferred=inferred, processing_seconds=60))


async def start_signed(gateway: GatewayUnderTest, upstream: str) -> RawResponse:
    return await send_signed(gateway, "POST", f"/batches/{upstream}/start-processing")


async def load_batch_state(
    gateway: GatewayUnderTest, upstream: str, kind: str = "batch"
) -> dict[str, Any]:
    async with open_store(gateway.settings.state) as store:
        object_states = ObjectStateStore(store)
        alias = await object_states.load(TENANT, "alias", upstream)
        return (
            alias
            if kind == "alias"
            else await object_states.load(TENANT, kind, alias.get("id", upstream))
        )


def list_upstream_ids(simulator: Simulator) -> list[str]:
    """Lists the service's ids of the batches in the order of creation."""
    return list(simulator.service.find_or_create_tenant().batches)


async def edit_payment(
    gateway: GatewayUnderTest, batch: str, amount: str = "9.00", payment: str | None = None
) -> Any:
    if payment is None:
        (payment,) = await load_payment_ids(gateway, batch)
    body = {"sourceAmount": amount}
    return await gateway.request("PATCH", f"/v1/batches/{batch}/payments/{payment}", body)


async def create_batch_of_one(
    gateway: GatewayUnderTest, simulator: Simulator
) -> tuple[str, str, str]:
    """Creates a batch that pays 5.00; returns recipient, batch and the service's batch id."""
    recipient = await create_recipient(gateway)
    batch = await create_batch(gateway, recipient, "5.00")
    (upstream,) = list_upstream_ids(simulator)
    return recipient, batch, upstream


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
async def test_legacy_batch_is_started_through_the_signed_interface(
    *, inferred: bool, tmp_path: Path
) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=inferred)) as (
        gateway,
        simulator,
    ):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        (upstream,) = list_upstream_ids(simulator)
        response = await start_signed(gateway, upstream)
        assert response.status == 200
        assert response.parse_json["batch"]["id"] == upstream
        batch_state = await load_batch_state(gateway, upstream)
        assert (batch_state["phase"], batch_state["version"]) == ("sent", 2)
        assert batch_state["started"]
        assert (await request_successfully(gateway, "GET", f"/batches/{batch}"))["batch"][
            "status"
        ] == "processing"
        retry_response = await gateway.request("POST", f"/v1/batches/{batch}/start-processing")
        assert (retry_response.status, retry_response.body["errors"][0]["code"]) == (
            406,
            "invalid_status",
        )
        assert (await edit_payment(gateway, batch)).status == 406
    assert len(simulator.service.batch_starts) == 1


async def test_superseded_batch_is_not_started_and_its_replacement_is(
    tmp_path: Path,
) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=False)) as (
        gateway,
        simulator,
    ):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (first_id,) = list_upstream_ids(simulator)
        assert (await edit_payment(gateway, batch)).status == 200
        assert (await load_batch_state(gateway, first_id, "alias"))["abandoned"]
        calls = len(simulator.service.list_requests("POST")) + len(
            simulator.service.list_requests("PATCH")
        )
        assert extract_error(await start_signed(gateway, first_id)) == INVALID_STATUS
        payment = b'{"recipient":{"id":"%s"},"amount":"1.00","currency":"USD"}' % recipient.encode()
        for method, path in (
            ("POST", f"/batches/{first_id}/payments"),
            ("PATCH", f"/batches/{first_id}/payments/P-1"),
            ("POST", f"/batches/{first_id}/generate-quote?x=1"),
            ("POST", f"/batch/{first_id}/start-processing"),
            ("POST", f"/batch/{first_id}/summary"),
            ("POST", f"//batches//{first_id}/start-processing/"),
            ("POST", f"/Batches/{first_id}/Start-Processing"),
            ("POST", f"/batches;x/{first_id};y/start-processing;z"),
            ("PATCH", f"/batches/{first_id}"),
            ("DELETE", f"/batches/{first_id}"),
            ("POST", f"/batches/%{ord('B'):x}{first_id[1:]}/start-processing/"),
        ):
            body = b"" if method == "DELETE" else payment
            assert extract_error(await send_signed(gateway, method, path, body)) == INVALID_STATUS
        assert (
            len(simulator.service.list_requests("POST"))
            + len(simulator.service.list_requests("PATCH"))
            == calls
        )
        assert (await send_signed(gateway, "GET", f"/batch/{first_id}/summary")).status == 200
        await request_successfully(gateway, "POST", f"/batches/{batch}/generate-quote")
        second_id = list_upstream_ids(simulator)[1]
        assert (await start_signed(gateway, second_id)).status == 200
        assert extract_error(await start_signed(gateway, first_id)) == INVALID_STATUS
        assert (await request_successfully(gateway, "GET", f"/batches/{batch}"))["batch"][
            "status"
        ] == "processing"
    (batch_start,) = simulator.service.batch_starts
    assert batch_start.batch_id == second_id


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
async def test_concurrent_legacy_edit_and_signed_start_have_one_winner(
    *, inferred: bool, tmp_path: Path
) -> None:
    service = build_service(inferred=inferred)
    async with open_gateway_and_service(tmp_path, service) as (gateway, simulator):
        recipient = await create_recipient(gateway)
        for number in range(25):
            batch = await create_batch(gateway, recipient, "5.00")
            upstream = list_upstream_ids(simulator)[-1]
            (payment,) = await load_payment_ids(gateway, batch)
            service.batch_starts.clear()

            async def change(
                batch: str = batch, payment: str = payment, number: int = number
            ) -> Any:
                await asyncio.sleep(number % 5 / 1000)
                body = {"sourceAmount": "9.00"}
                return await gateway.request(
                    "PATCH", f"/v1/batches/{batch}/payments/{payment}", body
                )

            edit_response, start_response = await asyncio.gather(
                change(), start_signed(gateway, upstream)
            )
            assert edit_response.status in (200, 406)
            assert start_response.status == 200 or extract_error(start_response) == INVALID_STATUS
            assert 200 in (edit_response.status, start_response.status)
            assert len(service.batch_starts) == (start_response.status == 200)
            if start_response.status == 200:
                # The paid amounts equal the responses, and nothing is paid twice.
                paid_amounts = [
                    entry.terms.source_amount
                    for entry in service.require_batch(upstream).payments.values()
                ]
                assert [str(entry) for entry in paid_amounts] == [
                    "9.00" if edit_response.status == 200 else "5.00"
                ]
                retry_response = await gateway.request(
                    "POST", f"/v1/batches/{batch}/start-processing"
                )
                assert retry_response.status == 406
                assert len(service.batch_starts) == 1


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
async def test_legacy_edit_during_a_signed_start_is_refused(
    *, inferred: bool, tmp_path: Path
) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=inferred)) as (
        gateway,
        simulator,
    ):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        upstream = list_upstream_ids(simulator)[-1]
        fault = Fault("POST", "/v1/batches/*/start-processing", delay=0.5)
        simulator.service.faults.append(fault)
        starting = asyncio.ensure_future(start_signed(gateway, upstream))
        await asyncio.sleep(0.2)
        assert (await edit_payment(gateway, batch)).status == 406
        assert extract_error(await start_signed(gateway, upstream)) == INVALID_STATUS
        assert (await starting).status == 200
    assert len(simulator.service.batch_starts) == 1


async def test_batch_created_elsewhere_is_started_once_and_listed(
    tmp_path: Path,
) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=False)) as (
        gateway,
        simulator,
    ):
        recipient = await create_recipient(gateway)
        recipient_body = await request_successfully(gateway, "GET", f"/recipients/{recipient}")
        assert recipient_body
        (upstream_recipient,) = simulator.service.find_or_create_tenant().recipients
        create_response = await send_signed(
            gateway,
            "POST",
            "/batches",
            b'{"currency":"USD","payments":[{"recipient":{"id":"%s"},"amount":"5.00","currency":"USD"}]}'
            % upstream_recipient.encode(),
        )
        assert create_response.status == 200
        upstream = create_response.parse_json["batch"]["id"]
        assert (await start_signed(gateway, upstream)).status == 200
        retry_response = await start_signed(gateway, upstream)
        assert (
            extract_error(retry_response) == INVALID_STATUS
        )  # the service's own word: the ledger let it go on
        assert len(simulator.service.list_requests("POST", "/v1/batches/*/start-processing")) == 2
        assert (await request_successfully(gateway, "GET", f"/batches/{upstream}"))["batch"][
            "status"
        ] == "processing"
        rows = (await request_successfully(gateway, "GET", "/batches"))["batches"]
        assert [row["status"] for row in rows] == ["processing"]
        assert (await edit_payment(gateway, upstream)).status == 406
    assert len(simulator.service.batch_starts) == 1


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
async def test_batch_created_by_a_signed_request_is_listed(inferred: bool, tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=inferred)) as (
        gateway,
        _,
    ):
        recipient = await create_recipient(gateway)
        first = await create_batch(gateway, recipient, "1.00")
        payment = {"recipient": {"id": recipient}, "amount": "2.00", "currency": "USD"}
        body = json.dumps({"currency": "USD", "payments": [payment]}).encode()
        assert (await send_signed(gateway, "POST", "/batches", body)).status == 200
        batches = (await request_successfully(gateway, "GET", "/batches"))["batches"]
        assert [batch["amount"] for batch in batches] == ["2.00", "1.00"]
        assert batches[1]["id"] == first
        payments = (await request_successfully(gateway, "GET", "/payments"))["payments"]
        assert [payment["sourceAmount"] for payment in payments] == ["2.00", "1.00"]
        # An edit of it is as that of any other batch created elsewhere.
        second = batches[0]["id"]
        assert (await edit_payment(gateway, second)).status == 200
        rows = (await request_successfully(gateway, "GET", "/batches"))["batches"]
        assert [row["id"] for row in rows] == [second, first]


def build_add_body(recipient: str, amount: str) -> bytes:
    payment = {"recipient": {"id": recipient}, "amount": amount, "currency": "USD"}
    return json.dumps(payment).encode()


async def add_signed_payment(
    gateway: GatewayUnderTest, upstream: str, recipient: str, amount: str
) -> RawResponse:
    body = build_add_body(recipient, amount)
    return await send_signed(gateway, "POST", f"/batches/{upstream}/payments", body)


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
async def test_payment_added_during_a_legacy_edit_is_paid(
    tmp_path: Path, *, inferred: bool
) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=inferred)) as (
        gateway,
        simulator,
    ):
        recipient, batch, upstream = await create_batch_of_one(gateway, simulator)
        path = f"/batches/{upstream}/payments"
        simulator.service.faults.append(Fault("POST", f"/v1{path}", delay=0.6))
        pending_add = asyncio.ensure_future(
            add_signed_payment(gateway, upstream, recipient, "7.00")
        )
        await asyncio.sleep(0.2)
        edit_response, add_response = await edit_payment(gateway, batch), await pending_add
        assert (edit_response.status, add_response.status) == (200, 200)
        start_response = await request_successfully(
            gateway, "POST", f"/batches/{batch}/start-processing"
        )
        assert start_response["batch"]["amount"] == "16.00"
        assert len(simulator.service.batch_starts) == 1
        batch_body = (await request_successfully(gateway, "GET", f"/batches/{batch}"))["batch"][
            "payments"
        ]["payments"]
        assert sorted(entry["sourceAmount"] for entry in batch_body) == ["7.00", "9.00"]


async def test_payment_added_after_a_legacy_edit_read_the_batch_is_paid(
    tmp_path: Path,
) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=False)) as (
        gateway,
        simulator,
    ):
        recipient, batch, upstream = await create_batch_of_one(gateway, simulator)
        (payment,) = await load_payment_ids(gateway, batch)
        simulator.service.faults.append(
            Fault("GET", f"/v1/batch/{upstream}/summary", answer_delay=0.5)
        )
        path, change = f"/v1/batches/{batch}/payments/{payment}", {"sourceAmount": "9.00"}
        pending_edit = asyncio.ensure_future(gateway.request("PATCH", path, change))
        await asyncio.sleep(0.2)
        add_response = await add_signed_payment(gateway, upstream, recipient, "7.00")
        assert (add_response.status, pending_edit.done(), (await pending_edit).status) == (
            200,
            False,
            200,
        )
        start_response = await request_successfully(
            gateway, "POST", f"/batches/{batch}/start-processing"
        )
        assert start_response["batch"]["amount"] == "16.00"


async def test_signed_add_is_refused_while_a_legacy_edit_creates_a_draft(
    tmp_path: Path,
) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=False)) as (
        gateway,
        simulator,
    ):
        recipient, batch, upstream = await create_batch_of_one(gateway, simulator)
        path = f"/batches/{upstream}/payments"
        # Each read of the batch is slow; the one for the path arrives after the lock is acquired.
        summary = f"/v1/batch/{upstream}/summary"
        simulator.service.faults.append(Fault("GET", summary, delay=0.4, times=9))
        pending_edit = asyncio.ensure_future(edit_payment(gateway, batch))

        async def is_taken() -> bool:
            return (await load_batch_state(gateway, upstream)).get("phase") == "editing"

        await wait_until_async(is_taken)
        add_response, edit_response = (
            await add_signed_payment(gateway, upstream, recipient, "7.00"),
            await pending_edit,
        )
        assert edit_response.status == 200
        assert extract_error(add_response) == INVALID_STATUS
        assert simulator.service.list_requests("POST", f"/v1{path}") == []


async def test_signed_add_in_doubt_blocks_legacy_edits_until_it_cannot_come(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, seconds=1, inferred=False) as setup:
        gateway = setup.gateway
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (upstream,) = setup.service.find_or_create_tenant().batches
        path = f"/batches/{upstream}/payments"
        (payment,) = await load_payment_ids(gateway, batch)
        setup.add_fault("POST", f"/v1{path}", close="after")
        add_response = await add_signed_payment(gateway, upstream, recipient, "7.00")
        assert add_response.status == 500
        edit_response = await edit_payment(gateway, batch, payment=payment)
        assert edit_response.status == 500
        assert 30 <= int(edit_response.headers["Retry-After"]) <= 40
        listed_write: dict[str, str] = {}

        async def is_left_to_its_client() -> bool:
            nonlocal listed_write
            listed_write = await setup.find_write_in_doubt()
            return listed_write["why"].startswith("its client looks for it")

        await wait_until_async(is_left_to_its_client, 20)
        assert listed_write["what_to_do"].startswith("nothing: its client")
        # Without --yes: it is refused before the question, and asks for no other verdict.
        for verdict in ("--did-not-happen", "--happened"):
            refusal = await setup.run_command(
                "writes", "settle", listed_write["write"], verdict, code=2
            )
            assert "needs no verdict" in refusal.stderr
        await setup.age_sent_writes()

        async def is_edited() -> bool:
            return (await edit_payment(gateway, batch, payment=payment)).status == 200

        await wait_until_async(is_edited)
        start_response = await request_successfully(
            gateway, "POST", f"/batches/{batch}/start-processing"
        )
        assert start_response["batch"]["amount"] == "16.00"


async def test_signed_add_without_a_response_explains_its_payment_afterwards(
    tmp_path: Path,
) -> None:
    """Neither a legacy add in doubt nor the check before a start takes it for a stranger's."""
    async with open_operated_gateway(tmp_path, seconds=1) as setup:
        gateway = setup.gateway
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (upstream,) = setup.service.find_or_create_tenant().batches
        add_path = f"/v1/batches/{upstream}/payments"
        body = {"recipient": {"id": recipient}, "sourceAmount": "6.00"}

        async def is_added() -> bool:
            path = f"/v1/batches/{batch}/payments"
            return (await gateway.request("POST", path, body)).status == 200

        setup.add_fault("POST", add_path, close="before")
        assert not await is_added()
        setup.add_fault("POST", add_path, close="after")
        add_response = await add_signed_payment(gateway, upstream, recipient, "7.00")
        assert add_response.status == 500

        async def is_signed_add_closed() -> bool:
            return len(await setup.list_writes_in_doubt()) == 1

        # The legacy add is looked for later.
        setup.add_fault("GET", f"/v1/batch/{upstream}/summary", status=500, times=1000)
        await setup.age_sent_writes()
        await wait_until_async(is_signed_add_closed, 40)
        setup.service.faults.clear()
        await wait_until_async(is_added, 60)
        start_response = await request_successfully(
            gateway, "POST", f"/batches/{batch}/start-processing"
        )
        assert start_response["batch"]["amount"] == "18.00"


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
async def test_edit_after_a_refused_start_applies_to_the_batch(
    *, inferred: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway has no record of a batch that was created elsewhere."""
    real_await, release = FlowExecutor._wait_for_facts, asyncio.Event()

    async def wait_until_released(executor: FlowExecutor, step: AwaitFacts, caller: Caller) -> Any:
        await release.wait()
        return await real_await(executor, step, caller)

    monkeypatch.setattr(FlowExecutor, "_wait_for_facts", wait_until_released)
    async with open_gateway_and_service(tmp_path, build_service(inferred=inferred)) as (
        gateway,
        simulator,
    ):
        recipient = await create_recipient(gateway)
        payment = {"recipient": {"id": recipient}, "amount": "5.00", "currency": "USD"}
        body = json.dumps({"currency": "USD", "payments": [payment]}).encode()
        batch = (await send_signed(gateway, "POST", "/batches", body)).parse_json["batch"]["id"]
        refusal = b'{"ok":false,"errors":[{"code":"expired_quote","message":"Quote expired"}]}'
        start_path, summary_path = "/v1/batches/*/start-processing", "/v1/batch/*/summary"
        simulator.service.faults.append(
            Fault("POST", start_path, status=400, body=refusal, delay=1.2)
        )
        simulator.service.faults.append(Fault("GET", summary_path, answer_delay=0.8))
        added_payment = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        pending_add = asyncio.ensure_future(
            gateway.request("POST", f"/v1/batches/{batch}/payments", added_payment)
        )
        await asyncio.sleep(0.1)
        assert extract_error(await start_signed(gateway, batch)) == (400, "expired_quote")
        release.set()
        assert (await pending_add).status == 200
        assert (await load_batch_state(gateway, batch))["upstream"] == batch
        batch_body = (await request_successfully(gateway, "GET", f"/batches/{batch}"))["batch"]
        assert (batch_body["amount"], batch_body["currency"]) == ("12.00", "USD")
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
    (batch_start,) = simulator.service.batch_starts
    assert len(simulator.service.require_batch(batch_start.batch_id).payments) == 2


@pytest.mark.parametrize("status", [400, 429])
async def test_refused_signed_start_can_be_retried(status: int, tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=True)) as (
        gateway,
        simulator,
    ):
        await create_batch(gateway, await create_recipient(gateway), "5.00")
        (upstream,) = list_upstream_ids(simulator)
        body = b'{"ok":false,"errors":[{"code":"expired_quote","message":"Quote expired"}]}'
        simulator.service.faults.append(
            Fault("POST", "/v1/batches/*/start-processing", status=status, body=body)
        )
        assert extract_error(await start_signed(gateway, upstream)) == (status, "expired_quote")
        assert (await load_batch_state(gateway, upstream))["phase"] == "sent"
        assert (await start_signed(gateway, upstream)).status == 200


@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_signed_start_refused_with_status_200_is_not_recorded_as_started(
    encoding: str, tmp_path: Path
) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=True)) as (
        gateway,
        simulator,
    ):
        _, _, upstream = await create_batch_of_one(gateway, simulator)
        refusal = b'{"ok":false,"errors":[{"code":"expired_quote","message":"Quote expired"}]}'
        page = gzip.compress(refusal) if encoding else refusal
        headers = {"Content-Type": "application/json"}
        headers |= {"Content-Encoding": encoding} if encoding else {}
        path = "/v1/batches/*/start-processing"
        simulator.service.faults.append(Fault("POST", path, 200, page, headers=headers))
        response = await start_signed(gateway, upstream)
        assert (response.status, response.body) == (200, page)
        batch_state = await load_batch_state(gateway, upstream)
        assert (batch_state["phase"], batch_state.get("started")) == ("sent", None)
        assert (await start_signed(gateway, upstream)).status == 200


@pytest.mark.parametrize("edits_first", [True, False])
async def test_bulk_deletion_and_a_legacy_edit_do_not_both_win(
    *, edits_first: bool, tmp_path: Path
) -> None:
    """The edit replaces the batch: the replacement would pay what was deleted."""
    upstream_section = {"inferred_operations": "avoid"}
    async with open_gateway_and_service(
        tmp_path, build_service(inferred=True), upstream=upstream_section
    ) as (gateway, simulator):
        _, batch, upstream = await create_batch_of_one(gateway, simulator)
        (payment,) = await load_payment_ids(gateway, batch)
        body = json.dumps({"ids": [upstream]}).encode()
        path, fault = ("/batches", Fault("DELETE", "/v1/batches", delay=0.5))
        if edits_first:
            fault = Fault("GET", "/v1/batch/*/summary", answer_delay=0.5)
        simulator.service.faults.append(fault)
        edit = partial(edit_payment, gateway, batch, payment=payment)
        first = asyncio.ensure_future(
            edit() if edits_first else send_signed(gateway, "DELETE", path, body)
        )
        await wait_until(lambda: not simulator.service.faults)  # it has arrived
        second = await (send_signed(gateway, "DELETE", path, body) if edits_first else edit())
        statuses = ((await first).status, second.status)
        assert statuses in ((200, 400), (404, 200), (200, 404)), statuses
        start_response = await gateway.request("POST", f"/v1/batches/{batch}/start-processing")
        is_deleted = (statuses[1] if edits_first else statuses[0]) == 200
        assert start_response.status == (404 if is_deleted else 200)


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("?ids=B-1", b'{"ids":["B-1"]}'),
        ("", b'{"ids":["B-1"],"ids":["B-2"]}'),
        ("", b'{"ids":"B-1"}'),
        ("", b""),
    ],
)
async def test_bulk_deletion_whose_batches_are_unclear_is_refused(
    query: str, body: bytes, tmp_path: Path
) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=True)) as (
        gateway,
        simulator,
    ):
        response = await send_signed(gateway, "DELETE", f"/batches{query}", body)
        assert extract_error(response) == (400, "invalid_field")
        assert simulator.service.list_requests("DELETE") == []


async def test_signed_start_waits_for_a_legacy_start_that_may_be_refused(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=True)) as (
        gateway,
        simulator,
    ):
        _, batch, upstream = await create_batch_of_one(gateway, simulator)
        refusal = b'{"ok":false,"errors":[{"code":"expired_quote","message":"Quote expired"}]}'
        path = "/v1/batches/*/start-processing"
        simulator.service.faults.append(Fault("POST", path, status=400, body=refusal, delay=0.5))
        legacy_start = asyncio.ensure_future(
            gateway.request("POST", f"/v1/batches/{batch}/start-processing")
        )
        await wait_until(lambda: not simulator.service.faults)  # it has arrived
        assert (await start_signed(gateway, upstream)).status == 200
        assert (await legacy_start).status == 406


async def test_signed_start_of_a_draft_that_is_submitted_meanwhile_is_one_of_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a legacy edit of the batch would neither wait for it nor know of it."""
    service, is_submitted = build_service(inferred=False), asyncio.Event()
    run = SignedBatchWrite.run

    async def run_once_submitted(write: SignedBatchWrite, *arguments: Any) -> Any:
        await is_submitted.wait()
        return await run(write, *arguments)

    async with open_gateway_and_service(tmp_path, service) as (gateway, simulator):
        _, batch, first_id = await create_batch_of_one(gateway, simulator)
        assert (await edit_payment(gateway, batch)).status == 200
        service.faults.append(Fault("POST", "/v1/batches", answer_delay=0.5))
        quote_path = f"/batches/{batch}/generate-quote"
        quote = asyncio.ensure_future(request_successfully(gateway, "POST", quote_path))
        await wait_until(lambda: len(list_upstream_ids(simulator)) == 2)
        upstream = list_upstream_ids(simulator)[-1]
        monkeypatch.setattr(SignedBatchWrite, "run", run_once_submitted)
        pending_start = asyncio.ensure_future(start_signed(gateway, upstream))
        await quote
        is_submitted.set()
        response = await pending_start
        assert (response.status, len(service.batch_starts)) == (500, 0)
        assert (await start_signed(gateway, upstream)).status == 200
        assert (await load_batch_state(gateway, first_id))["started"]


async def test_signed_write_that_waited_past_its_timestamp_is_to_be_signed_again(
    tmp_path: Path,
) -> None:
    """Not the service's 401, which says that the credentials are wrong."""
    async with open_gateway_and_service(tmp_path, build_service(inferred=True)) as (
        gateway,
        simulator,
    ):
        recipient, batch, upstream = await create_batch_of_one(gateway, simulator)
        simulator.service.faults.append(
            Fault("PATCH", f"/v1/batches/{upstream}/payments/*", delay=3.5)
        )
        pending_edit = asyncio.ensure_future(edit_payment(gateway, batch))
        await wait_until(lambda: not simulator.service.faults)  # it has arrived
        target, body = f"/v1/batches/{upstream}/payments", build_add_body(recipient, "7.00")
        data = CLIENT.build_request("POST", target, body, stamp=int(time.time()) - 29)
        response = await send_raw(gateway, data)
        assert extract_error(response) == INTERNAL
        assert response.headers["retry-after"] == "1"
        assert (await pending_edit).status == 200
        assert simulator.service.list_requests("POST", target) == []
        assert (await add_signed_payment(gateway, upstream, recipient, "7.00")).status == 200


async def test_signed_start_waiting_for_a_connection_is_not_sent_for_a_disconnected_client(
    tmp_path: Path,
) -> None:
    upstream_section = {"connections": 1, "timeout_seconds": 10}
    async with open_gateway_and_service(
        tmp_path, build_service(inferred=True), upstream=upstream_section
    ) as (gateway, simulator):
        _, _, upstream = await create_batch_of_one(gateway, simulator)
        simulator.service.faults.append(Fault("GET", "/v1/balance", delay=1.5))
        holding_request = asyncio.ensure_future(send_signed(gateway, "GET", "/balance"))
        await wait_until(lambda: not simulator.service.faults)  # it has arrived
        target = f"/v1/batches/{upstream}/start-processing"
        async with await open_connection(gateway.running.port) as connection:
            await connection.send(CLIENT.build_request("POST", target, stamp=int(time.time())))

            async def has_lock() -> bool:
                return (await load_batch_state(gateway, upstream))["phase"] == "starting"

            await wait_until_async(has_lock)
            await asyncio.sleep(0.1)
        assert (await holding_request).status == 200

        async def is_unlocked() -> bool:
            return (await load_batch_state(gateway, upstream))["phase"] == "sent"

        await wait_until_async(is_unlocked)
    assert simulator.service.batch_starts == []


@pytest.mark.parametrize(
    ("status", "kind", "page"),
    [
        (200, "text/html", b"<html>"),
        (408, "text/html", b"<html>"),
        (408, "application/json", b'{"message":"Request Timeout"}'),
        (302, "text/html", b"<html>"),
        (500, "application/json", b'{"ok":false,"errors":[{"code":"internal_server_error"}]}'),
        (200, "application/json", b'{"ok":tr'),
        (200, "application/json", b'{"ok":false}'),
    ],
)
@pytest.mark.parametrize("action", ["start-processing", "payments"])
async def test_response_that_proves_nothing_leaves_a_signed_write_in_doubt(
    action: str, status: int, kind: str, page: bytes, tmp_path: Path
) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=False)) as (
        gateway,
        simulator,
    ):
        recipient, batch, upstream = await create_batch_of_one(gateway, simulator)
        (payment,) = await load_payment_ids(gateway, batch)
        path = f"/batches/{upstream}/{action}"
        headers = {"Content-Type": kind}
        simulator.service.faults.append(Fault("POST", f"/v1{path}", status, page, headers=headers))
        body = build_add_body(recipient, "7.00") if action == "payments" else b""
        response = await send_signed(gateway, "POST", path, body)
        assert (response.status, response.body) == (status, page)
        # The service may still execute the write: a replacement of the batch would pay twice.
        assert (await edit_payment(gateway, batch, payment=payment)).status != 200
        assert list_upstream_ids(simulator) == [upstream]


async def test_signed_start_in_doubt_is_not_sent_again(
    tmp_path: Path,
) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=True)) as (
        gateway,
        simulator,
    ):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        (upstream,) = list_upstream_ids(simulator)
        simulator.service.faults.append(
            Fault("POST", "/v1/batches/*/start-processing", close="after")
        )
        assert extract_error(await start_signed(gateway, upstream)) == (
            500,
            "internal_server_error",
        )
        assert (await load_batch_state(gateway, upstream))["phase"] == "starting"
        assert extract_error(await start_signed(gateway, upstream)) == INVALID_STATUS
        assert (await edit_payment(gateway, batch)).status == 406
    assert len(simulator.service.batch_starts) == 1


async def test_signed_start_is_not_taken_for_one_of_the_other_environment(tmp_path: Path) -> None:
    live = {"environment": "live", "access_key": "LIVEACCESSKEY", "api_key": "a-live-api-key"}
    pair = ServiceCredentials(live["access_key"], CLIENT.secret_key, environment="live")
    service = Service(credentials=(DEMO_CREDENTIALS, pair))
    simulator = await start_simulator(service=service)
    environment = {"base_url": simulator.url}
    environments = {"live": environment, "sandbox": environment}
    async with open_gateway(tmp_path, simulator.url, environments=environments) as gateway:
        await gateway.import_key(**live)
        _, _, upstream = await create_batch_of_one(gateway, simulator)
        # Both environments have a batch of this id.
        start = Fault("POST", "/v1/batches/*/start-processing", status=200, body=b'{"ok":true}')
        service.faults.append(replace(start, answer_delay=1))
        live_client = SigningClient(live["access_key"])
        target = f"/v1/batches/{upstream}/start-processing"
        live_request = live_client.build_request("POST", target, stamp=int(time.time()))
        live_start = asyncio.ensure_future(send_raw(gateway, live_request))
        await wait_until(lambda: not service.faults)  # it has arrived
        assert (await start_signed(gateway, upstream)).status == 200
        assert (await live_start).status == 200
    await simulator.stop()
    assert len(service.batch_starts) == 1


async def test_unsent_signed_start_leaves_the_batch_unchanged(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=True)) as (
        gateway,
        simulator,
    ):
        await create_batch(gateway, await create_recipient(gateway), "5.00")
        (upstream,) = list_upstream_ids(simulator)
        await simulator.stop()
        assert extract_error(await start_signed(gateway, upstream)) == (
            500,
            "internal_server_error",
        )
        assert (await load_batch_state(gateway, upstream))["phase"] == "sent"


async def test_signed_start_of_a_disconnected_client_is_completed(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=True)) as (
        gateway,
        simulator,
    ):
        await create_batch(gateway, await create_recipient(gateway), "5.00")
        (upstream,) = list_upstream_ids(simulator)
        simulator.service.faults.append(Fault("POST", "/v1/batches/*/start-processing", delay=0.3))
        target = f"/v1/batches/{upstream}/start-processing"
        async with await open_connection(gateway.running.port) as connection:
            await connection.send(CLIENT.build_request("POST", target, stamp=int(time.time())))
            await wait_until(lambda: not simulator.service.faults)  # it has arrived
        for _ in range(100):
            if (await load_batch_state(gateway, upstream)).get("started"):
                break
            await asyncio.sleep(0.05)
        assert (await load_batch_state(gateway, upstream))["phase"] == "sent"
    assert len(simulator.service.batch_starts) == 1


# Starts of unknown outcome.


@pytest.mark.parametrize("close", ["before", "after"])
async def test_signed_start_in_doubt_is_reconciled(close: str, tmp_path: Path) -> None:
    """Reads of the batch fail meanwhile, so that the outcome cannot be found earlier."""
    async with open_operated_gateway(tmp_path, inferred=True) as setup:
        await create_batch(setup.gateway, await create_recipient(setup.gateway), "5.00")
        (upstream,) = setup.service.find_or_create_tenant().batches
        setup.add_fault("GET", "/v1/batch/*/summary", times=1000, status=503)
        setup.add_fault("POST", "/v1/batches/*/start-processing", close=close)
        assert extract_error(await start_signed(setup.gateway, upstream)) == (
            500,
            "internal_server_error",
        )
        listed_write = await setup.find_write_in_doubt()
        assert (listed_write["operation"], listed_write["request_id"] != "") == (
            "start_signed_batch",
            True,
        )
        assert extract_error(await start_signed(setup.gateway, upstream)) == (
            500,
            "internal_server_error",
        )
        setup.service.faults.clear()
        await setup.age_sent_writes()
        retry_response = await start_signed(setup.gateway, upstream)
        if close == "after":
            assert extract_error(retry_response) == INVALID_STATUS
        else:
            assert retry_response.status == 200
        assert len(setup.service.batch_starts) == 1
        assert (await load_batch_state(setup.gateway, upstream))["phase"] == "sent"
        assert await setup.list_writes_in_doubt() == []


async def test_freeze_refuses_signed_writes_and_allows_reads(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, inferred=True) as setup:
        await create_batch(setup.gateway, await create_recipient(setup.gateway), "5.00")
        (upstream,) = setup.service.find_or_create_tenant().batches
        await setup.run_command("freeze", "--merchant", "demo")
        calls = setup.count_calls("POST", "*")
        for path in (f"/batches/{upstream}/start-processing", f"/batches/{upstream}/payments"):
            assert extract_error(await send_signed(setup.gateway, "POST", path)) == FROZEN_REFUSAL
        assert (await send_signed(setup.gateway, "GET", f"/batch/{upstream}/summary")).status == 200
        assert setup.count_calls("POST", "*") == calls
        await setup.run_command("unfreeze", "--merchant", "demo")
        assert (await start_signed(setup.gateway, upstream)).status == 200


async def test_signed_write_waiting_for_a_connection_is_not_sent_after_a_freeze(
    tmp_path: Path,
) -> None:
    sections = {"upstream": {"connections": 1}}
    async with open_operated_gateway(tmp_path, seconds=15, sections=sections) as setup:
        path = "/v1/recipients/R-slow"
        setup.add_fault("GET", path, delay=3)
        pending_read = asyncio.ensure_future(
            send_signed(setup.gateway, "GET", "/recipients/R-slow")
        )
        await wait_until(lambda: not setup.service.faults)
        pending_write = asyncio.ensure_future(
            send_signed(setup.gateway, "POST", "/recipients", b'{"type":"individual"}')
        )
        await setup.run_command("freeze", "--merchant", "demo")
        assert extract_error(await pending_write) == FROZEN_REFUSAL
        assert setup.count_calls("POST", "*") == 0
        assert (await pending_read).status == 404


@pytest.mark.parametrize("is_signed", [True, False], ids=["signed", "legacy"])
async def test_verdict_that_a_start_happened_can_be_corrected(
    *, is_signed: bool, tmp_path: Path
) -> None:
    async with open_operated_gateway(tmp_path, seconds=1, processing_seconds=60) as setup:
        gateway = setup.gateway
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        (upstream,) = setup.service.find_or_create_tenant().batches

        async def start() -> int:
            if is_signed:
                return (await start_signed(gateway, upstream)).status
            return (await gateway.request("POST", f"/v1/batches/{batch}/start-processing")).status

        async def is_contradicted() -> bool:
            return any(
                "cannot be right" in each["what_to_do"]
                for each in await setup.list_writes_in_doubt()
            )

        async def is_resolved() -> bool:
            return not await setup.list_writes_in_doubt()

        setup.add_fault("POST", "/v1/batches/*/start-processing", close="before")
        assert await start() == 500
        # Before the gateway could find out itself that it did not happen.
        (write,) = await setup.list_writes_in_doubt()
        await setup.run_command("writes", "settle", write["write"], "--happened", "--yes")
        await setup.age_sent_writes()
        await wait_until_async(is_contradicted)
        assert await start() == 500
        await setup.run_command("writes", "settle", write["write"], "--did-not-happen", "--yes")
        await wait_until_async(is_resolved)
        assert await start() == 200
        assert len(setup.service.batch_starts) == 1


async def test_signed_write_waiting_for_an_edit_is_not_sent_after_a_freeze(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, seconds=15, inferred=True) as setup:
        recipient = await create_recipient(setup.gateway)
        batch = await create_batch(setup.gateway, recipient, "5.00")
        (upstream,) = setup.service.find_or_create_tenant().batches
        setup.add_fault("PATCH", "/v1/batches/*/payments/*", delay=3)
        pending_edit = asyncio.ensure_future(edit_payment(setup.gateway, batch))

        async def is_taken() -> bool:
            return (await load_batch_state(setup.gateway, upstream)).get("phase") == "editing"

        await wait_until_async(is_taken)
        path = f"/batches/{upstream}/payments"
        pending_add = asyncio.ensure_future(
            add_signed_payment(setup.gateway, upstream, recipient, "7.00")
        )
        await setup.run_command("freeze", "--merchant", "demo")
        assert extract_error(await pending_add) == FROZEN_REFUSAL
        assert setup.count_calls("POST", f"/v1{path}") == 0
        assert (await pending_edit).status == 200


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
async def test_legacy_edit_waits_only_for_earlier_signed_writes(
    *, inferred: bool, tmp_path: Path
) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=inferred)) as (
        gateway,
        simulator,
    ):
        recipient, batch, upstream = await create_batch_of_one(gateway, simulator)
        path = f"/batches/{upstream}/payments"
        (payment,) = await load_payment_ids(gateway, batch)
        answer = asyncio.Event()
        simulator.service.faults.append(Fault("POST", f"/v1{path}", answer_after=answer))
        pending_start = asyncio.ensure_future(
            add_signed_payment(gateway, upstream, recipient, "6.00")
        )
        await wait_until(lambda: len(simulator.service.require_batch(upstream).payments) == 2)
        pending_edit = asyncio.ensure_future(edit_payment(gateway, batch, payment=payment))

        async def is_taken() -> bool:
            return (await load_batch_state(gateway, upstream)).get("phase") == "editing"

        await wait_until_async(is_taken)
        pending_last = asyncio.ensure_future(
            add_signed_payment(gateway, upstream, recipient, "8.00")
        )
        await asyncio.sleep(0.3)
        assert not pending_edit.done()
        answer.set()
        last = await pending_last
        # Where the service has no such edit, the batch is a draft after it.
        expected = (200, 200) if inferred else (200, 400)
        assert (await pending_start).status == 200
        assert ((await pending_edit).status, last.status) == expected
        start_response = await request_successfully(
            gateway, "POST", f"/batches/{batch}/start-processing"
        )
        assert start_response["batch"]["amount"] == ("23.00" if inferred else "15.00")


async def test_signed_and_legacy_additions_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=True)) as (
        gateway,
        simulator,
    ):
        recipient, batch, upstream = await create_batch_of_one(gateway, simulator)
        path = f"/batches/{upstream}/payments"
        answer = asyncio.Event()
        fault = Fault("POST", f"/v1{path}", answer_after=answer, times=2)
        simulator.service.faults.append(fault)
        payment = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        additions = (
            add_signed_payment(gateway, upstream, recipient, "6.00"),
            gateway.request("POST", f"/v1/batches/{batch}/payments", payment),
        )
        payments = simulator.service.require_batch(upstream).payments
        pending: list[asyncio.Future[Any]] = []
        # The second begins when the first is recorded and carried out, and not yet answered.
        for addition in additions:
            pending.append(asyncio.ensure_future(addition))
            await wait_until(lambda: len(payments) == 1 + len(pending))
        assert not any(addition.done() for addition in pending)
        answer.set()
        assert [(await addition).status for addition in pending] == [200, 200]


async def test_legacy_addition_in_doubt_does_not_take_a_signed_payment_for_its_own(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, inferred=True) as setup:
        gateway = setup.gateway
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (upstream,) = setup.service.find_or_create_tenant().batches
        path = f"/batches/{upstream}/payments"
        setup.add_fault("POST", f"/v1{path}", close="before", delay=1)
        payment = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        pending_add = asyncio.ensure_future(
            gateway.request("POST", f"/v1/batches/{batch}/payments", payment)
        )
        await wait_until(lambda: setup.count_calls("POST", f"/v1{path}") == 1)
        assert (await add_signed_payment(gateway, upstream, recipient, "7.00")).status == 200
        assert (await pending_add).status == 500
        assert len(await setup.list_writes_in_doubt()) == 1


@pytest.mark.parametrize("close", ["before", "after"])
async def test_signed_changes_wait_for_a_legacy_addition_in_doubt(
    close: str, tmp_path: Path
) -> None:
    """An edit of the payment that it made must not make it look as if it had not been made."""
    async with open_operated_gateway(tmp_path, seconds=1, inferred=True) as setup:
        gateway, service = setup.gateway, setup.service
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (upstream,) = service.find_or_create_tenant().batches
        setup.add_fault("POST", "/v1/batches/*/payments", close=close)
        add = partial(
            gateway.request,
            "POST",
            f"/v1/batches/{batch}/payments",
            {"recipient": {"id": recipient}, "sourceAmount": "7.00"},
        )
        assert (await add()).status == 500
        setup.add_fault("GET", "/v1/batch/*/summary", status=503, times=10_000)
        payment = [*service.require_batch(upstream).payments][-1]
        body = b'{"sourceAmount":"99.00"}'
        changes = [
            ("PATCH", f"/batches/{upstream}/payments/{payment}", body),
            ("POST", f"/batches/{upstream}/generate-quote", b""),
            ("DELETE", f"/batches/{upstream}", b""),
        ]
        for change in changes:
            assert extract_error(await send_signed(gateway, *change)) == FROZEN_REFUSAL
        assert list(service.list_requests("PATCH", "/v1/batches/*/*/*")) == []
        service.faults.clear()
        await setup.age_sent_writes()

        async def is_added() -> bool:
            return (await add()).status == 200

        await wait_until_async(is_added)
        amounts = [str(row.amount) for row in service.require_batch(upstream).payments.values()]
        assert amounts == ["5.00", "7.00"]
        payment = [*service.require_batch(upstream).payments][-1]
        path = f"/batches/{upstream}/payments/{payment}"
        assert (await send_signed(gateway, "PATCH", path, body)).status == 200


@pytest.mark.parametrize("amount", ["7.00", "8.00"])
async def test_addition_in_doubt_is_not_confused_with_a_signed_one_that_is_shown_late(
    amount: str, tmp_path: Path
) -> None:
    async with open_operated_gateway(tmp_path, inferred=True) as setup:
        gateway, service = setup.gateway, setup.service
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (upstream,) = service.find_or_create_tenant().batches
        summary = await load_service_summary(gateway, service)
        assert (await add_signed_payment(gateway, upstream, recipient, amount)).status == 200
        show_summary(service, summary)
        setup.add_fault("POST", "/v1/batches/*/payments", close="before")
        path = f"/v1/batches/{batch}/payments"
        payment = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        assert (await gateway.request("POST", path, payment)).status == 500
        service.faults.clear()
        await setup.age_sent_writes()

        async def is_added() -> bool:
            return (await gateway.request("POST", path, payment)).status == 200

        await wait_until_async(is_added, 30)
        amounts = [str(row.amount) for row in service.require_batch(upstream).payments.values()]
        assert amounts == ["5.00", amount, "7.00"]


@pytest.mark.parametrize("amount", ["7.00", "8.00"])
async def test_edit_in_doubt_is_not_confirmed_by_a_signed_payment_that_is_shown_late(
    amount: str, tmp_path: Path
) -> None:
    async with open_operated_gateway(tmp_path, inferred=True) as setup:
        gateway, service = setup.gateway, setup.service
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (upstream,) = service.find_or_create_tenant().batches
        summary = await load_service_summary(gateway, service)
        path = f"/v1/batches/{upstream}/payments"
        setup.add_fault("POST", path, status=200, body=b'{"ok":true}', executes=True)
        assert (await add_signed_payment(gateway, upstream, recipient, amount)).status == 200
        show_summary(service, summary)
        setup.add_fault("PATCH", "/v1/batches/*", close="before")
        body = {"payments": [{"recipient": {"id": recipient}, "sourceAmount": "7.00"}]}
        edit = partial(gateway.request, "PATCH", f"/v1/batches/{batch}", body)
        assert (await edit()).status == 500
        service.faults.clear()
        await setup.age_sent_writes()

        async def is_decided() -> bool:
            # Nothing tells whose payment one of the same amount is.
            unsettled = await setup.list_writes_in_doubt()
            reasons = [write["why"] for write in unsettled]
            is_ambiguous = reasons == ["another add may have created the payment"]
            return is_ambiguous if amount == "7.00" else (await edit()).status == 200

        await wait_until_async(is_decided, 30)
        amounts = [str(row.amount) for row in service.require_batch(upstream).payments.values()]
        assert amounts == ["5.00", "7.00"] if amount == "7.00" else ["5.00", "8.00", "7.00"]


SIGNED_BODIES: dict[str, dict[str, Any]] = {
    "in the batch's currency": {"amount": "7.00", "currency": "USD"},
    "in another currency": {"amount": "7.00", "currency": "EUR"},
    "without decimals": {"amount": "7", "currency": "USD"},
}


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
@pytest.mark.parametrize("body", SIGNED_BODIES.values(), ids=SIGNED_BODIES)
async def test_signed_payment_is_accepted_by_the_check_before_start(
    body: dict[str, Any], *, inferred: bool, tmp_path: Path
) -> None:
    legacy = {"verify_before_start": "refuse"}
    async with open_gateway_and_service(
        tmp_path, build_service(inferred=inferred), legacy=legacy
    ) as (
        gateway,
        simulator,
    ):
        recipient, batch, upstream = await create_batch_of_one(gateway, simulator)
        add = json.dumps({"recipient": {"id": recipient}, **body}).encode()
        add_response = await send_signed(gateway, "POST", f"/batches/{upstream}/payments", add)
        assert add_response.status == 200, add_response
        start_response = await request_successfully(
            gateway, "POST", f"/batches/{batch}/start-processing"
        )
        assert start_response["batch"]["totalPayments"] == 2


async def insert_at_service(simulator: Simulator, upstream: str, body: bytes) -> None:
    """Adds a payment as the service's dashboard does, which the gateway does not see."""
    tenant = simulator.service.find_or_create_tenant()
    batch = tenant.batches[upstream]
    payment = batches.parse_payment(tenant, Problems(), json.loads(body), batch)
    assert payment is not None
    batches.insert_payment(tenant, batch, payment)


@pytest.mark.parametrize("is_edited", [False, True])
async def test_signed_payment_does_not_explain_another_payment(
    *, is_edited: bool, tmp_path: Path
) -> None:
    """For example, one of the same amount that is added directly at the service."""
    legacy = {"verify_before_start": "refuse"}
    async with open_gateway_and_service(tmp_path, build_service(inferred=True), legacy=legacy) as (
        gateway,
        simulator,
    ):
        recipient, batch, upstream = await create_batch_of_one(gateway, simulator)
        assert (await add_signed_payment(gateway, upstream, recipient, "7.00")).status == 200
        body = build_add_body(recipient, "8.00" if is_edited else "7.00")
        await insert_at_service(simulator, upstream, body)
        response = await gateway.request("POST", f"/v1/batches/{batch}/start-processing")
        assert (response.status, response.body["errors"][0]["code"]) == (406, "invalid_status")
        assert simulator.service.batch_starts == []


@pytest.mark.parametrize("change", ["add", "edit", "description"])
async def test_later_change_does_not_make_a_payment_added_elsewhere_a_requested_one(
    change: str, tmp_path: Path
) -> None:
    legacy = {"verify_before_start": "refuse"}
    async with open_gateway_and_service(tmp_path, build_service(inferred=True), legacy=legacy) as (
        gateway,
        simulator,
    ):
        recipient, batch, upstream = await create_batch_of_one(gateway, simulator)
        (payment,) = await load_payment_ids(gateway, batch)
        await insert_at_service(simulator, upstream, build_add_body(recipient, "7.00"))
        added = {"recipient": {"id": recipient}, "sourceAmount": "6.00"}
        changes = {
            "add": ("POST", f"/batches/{batch}/payments", added),
            "edit": ("PATCH", f"/batches/{batch}/payments/{payment}", {"sourceAmount": "8.00"}),
            "description": ("PATCH", f"/batches/{batch}", {"description": "payday"}),
        }
        await request_successfully(gateway, *changes[change])
        start_path = f"/v1/batches/{batch}/start-processing"
        response = await gateway.request("POST", start_path)
        assert (response.status, response.body["errors"][0]["code"]) == (406, "invalid_status")
        assert simulator.service.batch_starts == []
        # A client that changes the payment itself requests it.
        payment = (await load_payment_ids(gateway, batch))[1]
        await edit_payment(gateway, batch, "9.00", payment)
        assert (await gateway.request("POST", start_path)).status == 200


async def test_legacy_addition_after_a_signed_one_does_not_delay_an_edit(tmp_path: Path) -> None:
    legacy = {"verify_before_start": "refuse"}
    async with open_gateway_and_service(tmp_path, build_service(inferred=False), legacy=legacy) as (
        gateway,
        simulator,
    ):
        recipient, batch, upstream = await create_batch_of_one(gateway, simulator)
        assert (await add_signed_payment(gateway, upstream, recipient, "7.00")).status == 200
        added = {"recipient": {"id": recipient}, "sourceAmount": "6.00"}
        await request_successfully(gateway, "POST", f"/batches/{batch}/payments", added)
        first_payment = (await load_payment_ids(gateway, batch))[0]
        assert (await edit_payment(gateway, batch, "9.00", first_payment)).status == 200
        answer = await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        assert (answer["batch"]["amount"], answer["batch"]["totalPayments"]) == ("22.00", 3)


async def test_refused_signed_payment_is_not_recorded(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, build_service(inferred=True)) as (
        gateway,
        simulator,
    ):
        recipient, _, upstream = await create_batch_of_one(gateway, simulator)
        refused_add = await add_signed_payment(gateway, upstream, recipient, "0.00")
        assert refused_add.status == 400
        assert await load_batch_state(gateway, upstream, SIGNED_ADDS) == {}


async def test_legacy_batch_in_doubt_does_not_take_a_signed_batch_for_its_own(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, inferred=True) as setup:
        recipient = await create_recipient(setup.gateway)
        payment = {"recipient": {"id": recipient}, "amount": "5.00", "currency": "USD"}
        body = json.dumps({"currency": "USD", "payments": [payment]}).encode()
        signed_response = await send_signed(setup.gateway, "POST", "/batches", body)
        assert signed_response.status == 200
        setup.add_fault("POST", "/v1/batches", close="before")
        create = partial(create_batch, setup.gateway, recipient, "5.00")
        with pytest.raises(AssertionError, match="500"):
            await create()
        await setup.age_sent_writes()
        batch = await create()
        assert batch != signed_response.parse_json["batch"]["id"]
        assert setup.service.creation_counts["batch"] == 2


async def test_lost_signed_batch_is_left_to_its_client(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, seconds=1, inferred=True) as setup:
        setup.add_fault("POST", "/v1/batches", close="after")
        response = await send_signed(setup.gateway, "POST", "/batches", b'{"currency":"USD"}')
        assert response.status == 500
        await setup.age_sent_writes()

        await setup.wait_until_nothing_in_doubt()
        assert (await setup.run_json_command("batches", "abandoned"))["batches"] == []
