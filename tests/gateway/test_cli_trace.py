"""`payout-gateway trace`: everything known about an id, without personal data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.operator_commands import (
    OperatedGateway,
    Trace,
    lose_batch_create,
    open_operated_gateway,
    read_log,
    wait_until_async,
)
from tests.payouts import (
    WALLET,
    create_batch,
    create_recipient,
    load_payment_ids,
    request_successfully,
)

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


DELIVERED = "finished, the client has the response"


async def run_trace(operated_gateway: OperatedGateway, id_: str) -> Trace:
    """Trace an id once deliveries are recorded, which happens after the answers."""
    trace: Any = None

    async def is_answered() -> bool:
        nonlocal trace
        trace = await operated_gateway.trace(id_)
        return {request.state for request in trace.requests} == {DELIVERED}

    await wait_until_async(is_answered)
    return trace


async def test_recipient_is_traced_through_every_call(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway)
        await request_successfully(
            operated_gateway.gateway, "PATCH", f"/recipients/{recipient}", {"firstName": "Augusta"}
        )
        await request_successfully(operated_gateway.gateway, "DELETE", f"/recipients/{recipient}")
        trace = await run_trace(operated_gateway, recipient)
        assert trace.owner == "demo sandbox"
        assert trace.operations == ["create_recipient", "update_recipient", "delete_recipient"]
        first = trace.requests[0]
        assert TIMESTAMP.fullmatch(first.at)
        assert (first.key, first.state) == ("demo-sandbox", DELIVERED)
        create_write, account = first.calls
        assert re.fullmatch(
            rf"POST /recipients  answered( 200)? in [0-4]\.\d+ s, created {recipient}",
            create_write,
        )
        assert account.startswith(f"POST /recipients/{recipient}/accounts  ")
        assert ", created A-" in account
        assert trace.facts == {f"recipient {recipient}": "deleted true"}


async def test_request_is_traced_by_request_id(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        body = {"type": "business", "name": "Acme", "email": "a@shop.example.com"}
        answer = await operated_gateway.gateway.request("POST", "/v1/recipients", body)
        recipient, request_id = answer.body["recipient"]["id"], answer.headers["X-Request-Id"]
        recipient_trace = await run_trace(operated_gateway, recipient)
        assert [request.request_id for request in recipient_trace.requests] == [request_id]
        assert f"request_id={request_id}" in read_log(tmp_path)
        trace = await operated_gateway.trace(request_id)
        assert trace.requests == recipient_trace.requests
        assert trace.descriptions.keys() >= {request_id, recipient}


async def test_log_of_a_retry_names_the_traceable_request(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        body = {"type": "business", "name": "Acme", "email": "a@shop.example.com"}
        idempotency_header = {"Idempotency-Key": "one"}
        first = await operated_gateway.gateway.request(
            "POST", "/v1/recipients", body, headers=idempotency_header
        )
        retry_response = await operated_gateway.gateway.request(
            "POST", "/v1/recipients", body, headers=idempotency_header
        )
        assert first.body == retry_response.body
        first_id, retry_id = (
            response.headers["X-Request-Id"] for response in (first, retry_response)
        )
        log_lines = read_log(tmp_path).splitlines()
        (first_line,) = [line for line in log_lines if f"request_id={first_id}" in line]
        (retry_line,) = [line for line in log_lines if f"request_id={retry_id}" in line]
        assert "retry_of" not in first_line
        assert f"retry_of={first_id}" in retry_line
        unknown = await operated_gateway.run_command(
            "trace", retry_response.headers["X-Request-Id"], code=2
        )
        assert "retry_of" in unknown.stderr


async def test_operator_actions_name_their_scope(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway)
        await operated_gateway.run_command("freeze", "--merchant", "demo")
        await operated_gateway.run_command("freeze", "--all")
        output = (await operated_gateway.run_command("trace", recipient)).stdout
        assert "froze: merchant demo, live and sandbox" in output
        assert "froze: every merchant, live and sandbox" in output


async def test_account_is_traced_to_its_creation_and_changes(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway)
        (account_id,) = (
            account.id for account in operated_gateway.service.require_recipient(recipient).accounts
        )
        wallet = {"address": "other@wallet.example.com"}
        body = {**WALLET, "accounts": {"wallet": wallet}}
        await request_successfully(
            operated_gateway.gateway, "PATCH", f"/recipients/{recipient}/payout-methods", body
        )
        trace = await operated_gateway.trace(account_id)
        assert trace.operations == ["create_recipient", "update_payout_method"]
        assert f"/accounts/{account_id}  " in trace.requests[1].calls[0]


async def test_every_id_of_a_batch_gives_the_same_trace(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        (payment,) = await load_payment_ids(operated_gateway.gateway, batch)
        change = {"sourceAmount": "6.00"}
        await request_successfully(
            operated_gateway.gateway, "PATCH", f"/batches/{batch}/payments/{payment}", change
        )
        await request_successfully(
            operated_gateway.gateway, "POST", f"/batches/{batch}/start-processing"
        )
        first, second = operated_gateway.service.find_or_create_tenant().batches
        (tmp_path / "ids.csv").write_text(f"B-OLD1,{first}\n")
        await operated_gateway.run_command(
            *("ids", "import", str(tmp_path / "ids.csv")),
            *("--merchant", "demo", "--environment", "sandbox"),
        )
        traces = [await operated_gateway.trace(id_) for id_ in (batch, first, second, "B-OLD1")]
        for trace in traces:
            assert trace.descriptions.keys() == {batch, first, second, "B-OLD1"}
            assert trace.operations == ["create_batch", "update_payment", "start_batch"]
            assert trace.facts["payments on record"] == "1"
            batch_facts = trace.facts[f"batch {first}"]
            for fact in ("phase sent", f"upstream {second}", f'abandoned ["{first}"]'):
                assert fact in batch_facts
        superseded = "the service's id, superseded: must never be started"
        assert superseded in traces[0].descriptions[first]
        assert "the service's id" not in traces[0].descriptions[first]
        assert "the legacy id, imported" in traces[0].descriptions["B-OLD1"]
        assert [call.partition("  ")[0] for call in traces[0].requests[2].calls] == [
            "POST /batches",
            f"POST /batches/{second}/start-processing",
        ]
        payment_trace = await operated_gateway.trace(payment)
        descriptions = [each for texts in payment_trace.descriptions.values() for each in texts]
        assert f"a payment of batch {first}" in descriptions


async def test_draft_change_is_marked_as_not_sent_to_service(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        (payment,) = await load_payment_ids(operated_gateway.gateway, batch)
        path = f"/batches/{batch}/payments/{payment}"
        await request_successfully(
            operated_gateway.gateway, "PATCH", path, {"sourceAmount": "6.00"}
        )
        await request_successfully(
            operated_gateway.gateway, "PATCH", path, {"sourceAmount": "7.00"}
        )
        first, second = (await operated_gateway.trace(batch)).requests[1:]
        assert "not done: the service has no such path" in first.calls[0]
        assert len(second.calls) == 1
        output = (await operated_gateway.run_command("trace", batch)).stdout
        assert "not done: the service has no such path" in output
        expected_text = (
            "nothing was changed at the service: any change it made is in a draft of the gateway"
        )
        assert output.count(expected_text) == 2
        assert "unsent" not in output


async def test_deletion_of_superseded_batch_is_explained(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        await request_successfully(operated_gateway.gateway, "DELETE", f"/batches/{batch}")
        output = (await operated_gateway.run_command("trace", batch)).stdout
        assert "nothing was changed at the service: its batch is superseded" in output


async def test_change_sent_to_service_mentions_no_draft(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        (payment,) = await load_payment_ids(operated_gateway.gateway, batch)
        change = {"sourceAmount": "6.00"}
        await request_successfully(
            operated_gateway.gateway, "PATCH", f"/batches/{batch}/payments/{payment}", change
        )
        assert (
            "nothing was changed" not in (await operated_gateway.run_command("trace", batch)).stdout
        )


async def test_write_in_doubt_shows_its_reason(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "10.00"
        )
        operated_gateway.add_fault("POST", "/v1/batches/*/start-processing", close="before")
        await operated_gateway.gateway.request("POST", f"/v1/batches/{batch}/start-processing")
        last_request = (await operated_gateway.trace(batch)).requests[-1]
        assert last_request.calls[-1].endswith("start-processing  sent")
        assert last_request.state.startswith("in doubt: ")


async def test_trace_contains_no_personal_data(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway, "lovelace")
        body = {
            "sourceCurrency": "USD",
            "description": "for Grace",
            "payments": [
                {"recipient": {"id": recipient}, "sourceAmount": "5.00", "memo": "thank you"}
            ],
        }
        batch = (await request_successfully(operated_gateway.gateway, "POST", "/batches", body))[
            "batch"
        ]["id"]
        (payment,) = await load_payment_ids(operated_gateway.gateway, batch)
        change = {"sourceAmount": "6.00", "memo": "thank you too"}
        await request_successfully(
            operated_gateway.gateway, "PATCH", f"/batches/{batch}/payments/{payment}", change
        )
        await lose_batch_create(operated_gateway, recipient)
        for id_ in (recipient, batch, payment):
            output = (await operated_gateway.run_command("trace", id_)).stdout.casefold()
            personal_values = "lovelace", "grace", "thank", "example.com", "main street", "6.00"
            for personal_value in personal_values:
                assert personal_value not in output
        in_doubt_output = (
            await operated_gateway.run_command("writes", "unsettled")
        ).stdout.casefold()
        assert "lovelace" not in in_doubt_output


async def test_request_names_objects_without_path_segments(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        (current_id,) = operated_gateway.service.find_or_create_tenant().batches
        for step in ("generate-quote", "start-processing"):
            await request_successfully(operated_gateway.gateway, "POST", f"/batches/{batch}/{step}")
        for request in (await run_trace(operated_gateway, batch)).requests:
            trace = await operated_gateway.trace(request.request_id)
            assert trace.descriptions.keys() - {request.request_id} == {current_id}


async def test_id_of_two_merchants_requires_merchant(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        await operated_gateway.gateway.import_key(
            merchant="other", api_key="another-api-key", access_key="AK2"
        )
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        (current_id,) = operated_gateway.service.find_or_create_tenant().batches
        (tmp_path / "ids.csv").write_text(f"{batch},{current_id}\n")
        tenant_options = ("--merchant", "other", "--environment", "sandbox")
        await operated_gateway.run_command(
            "ids", "import", str(tmp_path / "ids.csv"), *tenant_options
        )
        result = await operated_gateway.run_command("trace", batch, code=2)
        assert "several tenants have this id: demo sandbox, other sandbox; choose" in result.stderr
        trace = await operated_gateway.trace(batch, "--merchant", "demo")
        assert trace.operations[0] == "create_batch"
        assert (await operated_gateway.trace(batch, "--merchant", "other")).requests == []


async def test_unknown_id_is_an_error(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        result = await operated_gateway.run_command("trace", "R-nobody", code=2)
        assert (result.stdout, result.stderr.count("\n")) == ("", 1)
        assert "nothing is known about this id" in result.stderr
