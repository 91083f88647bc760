"""Batches that a create without a response may have made: started or changed, they would pay twice."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest

from tests.operator_commands import (
    BATCH,
    RESPONSE_LOST,
    OperatedGateway,
    lose_batch_create,
    open_operated_gateway,
    wait_until_async,
)
from tests.payouts import (
    create_batch,
    create_recipient,
    load_payment_ids,
    request_successfully,
)
from tests.service_summaries import hide_path
from tests.signed_requests import SigningClient, send_signed
from tests.state import open_state

CLIENT = SigningClient()
JSON_HEADER = "Content-Type: application/json"

Interface = Literal["legacy", "signed"]
BY_BOTH_INTERFACES = pytest.mark.parametrize("interface", ["legacy", "signed"])


def list_batches(setup: OperatedGateway) -> list[str]:
    """Lists the service's ids in the order of creation."""
    return list(setup.service.find_or_create_tenant().batches)


async def send(
    setup: OperatedGateway, interface: Interface, path: str, body: Any = None
) -> tuple[int, Any, bool]:
    """Sends a POST; returns the status, the body and whether the client is told to retry."""
    if interface == "legacy":
        response = await setup.gateway.request("POST", f"/v1{path}", body)
        return response.status, response.body, "Retry-After" in response.headers
    data = b"" if body is None else json.dumps(body).encode()
    raw = await send_signed(setup.gateway, "POST", path, data)
    return raw.status, raw.parse_json, "retry-after" in raw.headers


async def require_temporary_refusal(
    setup: OperatedGateway, interface: Interface, path: str, body: Any = None
) -> None:
    status, answer, is_retryable = await send(setup, interface, path, body)
    code = answer["errors"][0]["code"]
    assert (status, code, is_retryable) == (500, "internal_server_error", True), answer


async def create_batch_elsewhere(setup: OperatedGateway, recipient: str) -> str:
    """Creates a batch at the service that the gateway does not know."""
    payment = {"recipient": {"id": recipient}, "amount": "5.00", "currency": "USD"}
    body = json.dumps({"currency": "USD", "payments": [payment]}).encode()
    stamp = int(time.time())
    lines = [*CLIENT.build_headers("POST", "/v1/batches", body, stamp), JSON_HEADER]
    headers = dict(line.split(": ", 1) for line in lines)
    base_url = setup.gateway.settings.environments.map_base_urls_by_environment()["sandbox"]
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{base_url}/v1/batches", data=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            return str((await response.json())["batch"]["id"])


@BY_BOTH_INTERFACES
@pytest.mark.parametrize("is_draft", [False, True], ids=["created", "of a draft"])
async def test_batch_is_not_started_while_its_create_is_in_doubt(
    is_draft: bool, interface: Interface, tmp_path: Path
) -> None:
    """Its client's retry makes and starts another, if the service lists no batches."""
    async with open_operated_gateway(tmp_path, seconds=1, inferred=False) as setup:
        recipient = await create_recipient(setup.gateway)
        if is_draft:
            batch = await create_batch(setup.gateway, recipient, "10.00")
            (payment,) = await load_payment_ids(setup.gateway, batch)
            path = f"/batches/{batch}/payments/{payment}"
            await request_successfully(setup.gateway, "PATCH", path, {"sourceAmount": "11.00"})
            setup.add_fault("POST", "/v1/batches", **RESPONSE_LOST)
            start_path = f"/v1/batches/{batch}/start-processing"
            assert (await setup.gateway.request("POST", start_path)).status == 500
        else:
            await lose_batch_create(setup, recipient)
        lost_id = list_batches(setup)[-1]
        await require_temporary_refusal(setup, interface, f"/batches/{lost_id}/start-processing")
        assert setup.service.batch_starts == []


@BY_BOTH_INTERFACES
async def test_batch_is_not_changed_before_its_create_is_recognized(
    interface: Interface, tmp_path: Path
) -> None:
    """With another payment it would not be, and the retry would create a second batch."""
    async with open_operated_gateway(tmp_path, seconds=1) as setup:
        recipient = await create_recipient(setup.gateway)
        setup.add_fault("GET", "/v1/batches", status=503, times=10_000)
        body = await lose_batch_create(setup, recipient)
        (lost_id,) = list_batches(setup)
        amount = (
            {"sourceAmount": "7.00"}
            if interface == "legacy"
            else {"amount": "7.00", "currency": "USD"}
        )
        payment = {"recipient": {"id": recipient}, **amount}
        await require_temporary_refusal(setup, interface, f"/batches/{lost_id}/payments", payment)
        await require_temporary_refusal(setup, interface, f"/batches/{lost_id}/start-processing")
        setup.service.faults.clear()
        retried = await request_successfully(setup.gateway, "POST", "/batches", body)
        assert retried["batch"]["amount"] == "10.00"
        assert list_batches(setup) == [lost_id]
        for action, sent in (("payments", payment), ("start-processing", None)):
            assert (await send(setup, interface, f"/batches/{lost_id}/{action}", sent))[0] == 200
        assert [start.batch_id for start in setup.service.batch_starts] == [lost_id]


@BY_BOTH_INTERFACES
async def test_batch_created_elsewhere_is_started_after_a_create_that_runs(
    interface: Interface, tmp_path: Path
) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as setup:
        recipient = await create_recipient(setup.gateway)
        elsewhere_id = await create_batch_elsewhere(setup, recipient)
        setup.add_fault("POST", "/v1/batches", answer_delay=0.5)
        create = asyncio.create_task(create_batch(setup.gateway, recipient, "10.00"))
        while len(list_batches(setup)) < 2:  # noqa: ASYNC110 - the simulator has no event for it
            await asyncio.sleep(0.01)
        status, answer, _ = await send(
            setup, interface, f"/batches/{elsewhere_id}/start-processing"
        )
        assert (status, create.done()) == (200, True), answer
        await create


async def test_batch_that_may_exist_is_not_started_after_an_edit(tmp_path: Path) -> None:
    """An edit that the service has no path for makes a draft of it, whose batch could be started."""
    async with open_operated_gateway(tmp_path, seconds=1, inferred=False) as setup:
        recipient = await create_recipient(setup.gateway)
        body = await lose_batch_create(setup, recipient)
        (lost_id,) = list_batches(setup)
        (payment,) = await load_payment_ids(setup.gateway, lost_id)
        await setup.age_sent_writes()
        await request_successfully(setup.gateway, "POST", "/batches", body)
        path = f"/v1/batches/{lost_id}/payments/{payment}"
        response = await setup.gateway.request("PATCH", path, {"sourceAmount": "11.00"})
        assert (response.status, response.body["errors"][0]["code"]) == (406, "invalid_status")
        # A quote locks the batch, and so its state is stored from then on.
        await request_successfully(setup.gateway, "POST", f"/batches/{lost_id}/generate-quote")
        status, _, _ = await send(setup, "signed", f"/batches/{lost_id}/start-processing")
        assert status == 400
        assert setup.service.batch_starts == []


async def test_batch_of_a_lost_signed_create_can_be_started(tmp_path: Path) -> None:
    """Its client looks for it, and so knows whether to create another."""
    async with open_operated_gateway(tmp_path, seconds=1, inferred=False) as setup:
        recipient = await create_recipient(setup.gateway)
        setup.add_fault("POST", "/v1/batches", **RESPONSE_LOST)
        payment = {"recipient": {"id": recipient}, "amount": "5.00", "currency": "USD"}
        body = {"currency": "USD", "payments": [payment], "description": BATCH["description"]}
        assert (await send(setup, "signed", "/batches", body))[0] == 500
        (lost_id,) = list_batches(setup)
        await setup.age_sent_writes()

        await setup.wait_until_nothing_in_doubt()
        assert (await send(setup, "signed", f"/batches/{lost_id}/start-processing"))[0] == 200


@BY_BOTH_INTERFACES
async def test_batch_older_than_a_create_without_a_response_is_started(
    interface: Interface, tmp_path: Path
) -> None:
    """Also if it is only minutes older, because the service's ``Date`` confirms the clock."""
    async with open_operated_gateway(tmp_path, seconds=1, inferred=False) as setup:
        recipient = await create_recipient(setup.gateway)
        elsewhere_id = await create_batch_elsewhere(setup, recipient)
        batch = setup.service.find_or_create_tenant().batches[elsewhere_id]
        batch.created_at -= timedelta(minutes=2)
        await lose_batch_create(setup, recipient)
        path = f"/batches/{elsewhere_id}/start-processing"
        status, answer, _ = await send(setup, interface, path)
        assert status == 200, answer


@BY_BOTH_INTERFACES
async def test_batch_that_seems_older_is_not_started_if_the_clock_may_be_wrong(
    interface: Interface, tmp_path: Path
) -> None:
    """A service that is minutes behind, and accepts the timestamps nevertheless, dates it earlier."""
    async with open_operated_gateway(
        tmp_path, seconds=1, inferred=False, deviations=frozenset({"date-header"})
    ) as setup:
        recipient = await create_recipient(setup.gateway)
        await lose_batch_create(setup, recipient)
        (lost_id,) = list_batches(setup)
        batch = setup.service.find_or_create_tenant().batches[lost_id]
        batch.created_at -= timedelta(minutes=2)
        await require_temporary_refusal(setup, interface, f"/batches/{lost_id}/start-processing")
        assert setup.service.batch_starts == []


async def test_signed_start_of_a_batch_not_shown_yet_waits_for_a_create_in_doubt(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, seconds=1, inferred=False) as setup:
        await lose_batch_create(setup)
        (lost_id,) = list_batches(setup)
        error = {"ok": False, "errors": [{"code": "not_found", "message": "no such batch"}]}
        body, headers = json.dumps(error).encode(), {"Content-Type": "application/json"}
        setup.add_fault(
            "GET", "/v1/batch/*/summary", status=404, body=body, headers=headers, times=10_000
        )
        await require_temporary_refusal(setup, "signed", f"/batches/{lost_id}/start-processing")
        # Once it may exist, the service's own answer counts.
        await setup.age_sent_writes()

        await setup.wait_until_nothing_in_doubt()
        assert (await send(setup, "signed", f"/batches/{lost_id}/start-processing"))[0] == 404
        assert setup.service.batch_starts == []


async def test_signed_start_of_what_is_no_id_is_answered_by_the_service(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, seconds=1, inferred=False) as setup:
        await lose_batch_create(setup, await create_recipient(setup.gateway))
        status, answer, _ = await send(setup, "signed", "/batches/GB33/start-processing")
        assert (status, answer["errors"][0]["code"]) == (404, "not_found")


@BY_BOTH_INTERFACES
async def test_start_looks_for_the_batch_of_a_create_in_doubt(
    interface: Interface, tmp_path: Path
) -> None:
    """The list did not show it at first, and is otherwise read again half a minute later."""
    async with open_operated_gateway(tmp_path, seconds=5) as setup:
        empty = json.dumps({"ok": True, "batches": [], "meta": {"records": 0}}).encode()
        setup.add_fault("GET", "/v1/batches", status=200, body=empty)
        await lose_batch_create(setup)
        (lost_id,) = list_batches(setup)

        async def is_read() -> bool:
            return setup.count_calls("GET", "/v1/batches") > 0

        await wait_until_async(is_read)
        await asyncio.sleep(2)  # writes in doubt share a list for this long
        path = f"/batches/{lost_id}/start-processing"
        status, answer, _ = await send(setup, interface, path)
        assert status == 200, answer


async def test_listed_batch_without_a_summary_may_be_that_of_a_create_in_doubt(
    tmp_path: Path,
) -> None:
    """Another replica of the service may not have it yet; the retry would create a second one."""
    async with open_operated_gateway(tmp_path, seconds=1) as setup:
        body = await lose_batch_create(setup)
        hide_path(setup.service, "/v1/batch/*/summary")
        await setup.age_sent_writes()
        await require_temporary_refusal(setup, "legacy", "/batches", body)
        setup.service.faults.clear()
        await request_successfully(setup.gateway, "POST", "/batches", body)
        assert len(list_batches(setup)) == 1


async def hide_creation_dates(setup: OperatedGateway) -> None:
    """Lets the service show its batches as they are now, without the times of their creation."""
    summary_paths = [f"/batch/{id_}/summary" for id_ in list_batches(setup)]
    for path in ("/batches", *summary_paths):
        shown = (await send_signed(setup.gateway, "GET", path)).parse_json
        for batch in shown["batches"] if path == "/batches" else [shown["batchSummary"]]:
            del batch["createdAt"]
        data = json.dumps(shown).encode()
        setup.add_fault("GET", f"/v1{path}", status=200, body=data, times=10_000)


@pytest.mark.parametrize("is_started", [False, True], ids=["open", "started"])
async def test_undated_batch_that_was_started_is_not_taken_for_a_lost_one(
    is_started: bool, tmp_path: Path
) -> None:
    """It may be of long ago: a client does not start a batch whose id it did not get."""
    async with open_operated_gateway(tmp_path, seconds=1) as setup:
        recipient = await create_recipient(setup.gateway)
        old_id = await create_batch_elsewhere(setup, recipient)
        if is_started:
            path = f"/batches/{old_id}/start-processing"
            assert (await send_signed(setup.gateway, "POST", path)).status == 200
        await hide_creation_dates(setup)
        setup.add_fault("POST", "/v1/batches", close="before")
        payment = {"recipient": {"id": recipient}, "sourceAmount": "5.00"}
        body = {"sourceCurrency": "USD", "payments": [payment]}
        await require_temporary_refusal(setup, "legacy", "/batches", body)
        await setup.age_sent_writes()
        status, answer, is_retryable = await send(setup, "legacy", "/batches", body)
        assert (status, is_retryable) == ((500, True) if is_started else (200, False)), answer
        assert list_batches(setup) == [old_id]


@pytest.mark.parametrize("is_executed", [False, True])
async def test_undated_batches_of_earlier_requests_are_not_taken_for_a_lost_one(
    is_executed: bool, tmp_path: Path
) -> None:
    async with open_operated_gateway(tmp_path, seconds=1) as setup:
        recipient = await create_recipient(setup.gateway)
        payment = {"recipient": {"id": recipient}, "sourceAmount": "5.00"}
        body = {"sourceCurrency": "USD", "payments": [payment]}

        async def create(key: str) -> int:
            headers = {"Idempotency-Key": key}
            return (
                await setup.gateway.request("POST", "/v1/batches", body, headers=headers)
            ).status

        assert [await create(key) for key in ("first", "second")] == [200, 200]
        async with open_state(setup.gateway.settings) as state:
            await state.age_writes(3600)
        setup.add_fault("POST", "/v1/batches", close="after" if is_executed else "before")
        assert await create("lost") == 500
        await hide_creation_dates(setup)
        await setup.age_sent_writes()
        assert await create("lost") == 200
        assert len(list_batches(setup)) == 3
