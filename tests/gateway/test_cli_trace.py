"""`payout-gateway trace`: everything known about an id, without personal data."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.operator_commands import (
    OperatedGateway,
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
from tests.test_signed_batches import add_signed_payment

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def list_requests(report: Any) -> list[tuple[str, str]]:
    return [
        (traced_request["operation"], traced_request["state"])
        for traced_request in report["requests"]
    ]


async def run_trace(operated_gateway: OperatedGateway, id_: str) -> Any:
    """Trace an id once deliveries are recorded, which happens after the answers."""
    trace: Any = None

    async def is_answered() -> bool:
        nonlocal trace
        trace = await operated_gateway.run_json_command("trace", id_)
        return {state for _operation, state in list_requests(trace)} == {"answered"}

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
        assert (trace["merchant"], trace["environment"]) == ("demo", "sandbox")
        assert [operation for operation, _state in list_requests(trace)] == [
            "create_recipient",
            "update_recipient",
            "delete_recipient",
        ]
        first = trace["requests"][0]
        assert TIMESTAMP.fullmatch(first["at"])
        assert (first["key"], first["state"]) == ("demo-sandbox", "answered")
        assert first["request_id"]
        create_write, account = first["writes"]
        assert (create_write["method"], create_write["path"]) == ("POST", "/recipients")
        assert (create_write["state"], create_write["made"]) == ("answered", recipient)
        assert 0 <= create_write["seconds"] < 5
        assert account["path"] == f"/recipients/{recipient}/accounts"
        assert account["made"].startswith("A-")
        assert trace["facts"] == {f"recipient {recipient}": {"deleted": True}}
        text_result = await operated_gateway.run_command("trace", recipient)
        for expected_text in (
            "create_recipient, key demo-sandbox",
            ", finished, the client has the response\n",
            f"created {recipient}",
            "deleted true",
        ):
            assert expected_text in text_result.stdout


async def test_request_is_traced_by_request_id(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        body = {"type": "business", "name": "Acme", "email": "a@shop.example.com"}
        answer = await operated_gateway.gateway.request("POST", "/v1/recipients", body)
        recipient, request_id = answer.body["recipient"]["id"], answer.headers["X-Request-Id"]
        recipient_trace = await run_trace(operated_gateway, recipient)
        assert [traced_request["request_id"] for traced_request in recipient_trace["requests"]] == [
            request_id
        ]
        assert f"request_id={request_id}" in read_log(tmp_path)
        operation_id = recipient_trace["requests"][0]["undertaking"]
        for id_ in (request_id, operation_id, f"{operation_id[:12]}.0"):
            trace = await operated_gateway.run_json_command("trace", id_)
            assert list_requests(trace) == list_requests(recipient_trace)
            assert {name["id"] for name in trace["names"]} >= {request_id, recipient}
        assert (
            f"request {request_id}"
            in (await operated_gateway.run_command("trace", request_id)).stdout
        )


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
        merchant_freeze, global_freeze = (
            await operated_gateway.run_json_command("trace", recipient)
        )["acts"]
        assert (merchant_freeze["merchant"], merchant_freeze["environment"]) == ("demo", None)
        assert (global_freeze["merchant"], global_freeze["environment"]) == (None, None)


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
        trace = await operated_gateway.run_json_command("trace", account_id)
        assert [operation for operation, _state in list_requests(trace)] == [
            "create_recipient",
            "update_payout_method",
        ]
        assert trace["requests"][1]["writes"][0]["path"].endswith(f"/accounts/{account_id}")


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
        traces = {
            id_: await operated_gateway.run_json_command("trace", id_)
            for id_ in (batch, first, second, "B-OLD1")
        }
        for id_trace in traces.values():
            assert {name["id"] for name in id_trace["names"]} == {batch, first, second, "B-OLD1"}
            assert [operation for operation, _state in list_requests(id_trace)] == [
                "create_batch",
                "update_payment",
                "start_batch",
            ]
            assert id_trace["payments"] == 1
            batch_facts = id_trace["facts"][f"batch {first}"]
            assert (batch_facts["phase"], batch_facts["upstream"], batch_facts["abandoned"]) == (
                "sent",
                second,
                [first],
            )
        descriptions = {(name["id"], name["what"]) for name in traces[batch]["names"]}
        assert (first, "the service's id, superseded: must never be started") in descriptions
        assert (first, "the service's id") not in descriptions
        assert ("B-OLD1", "the legacy id, imported") in descriptions
        start_writes = traces[batch]["requests"][2]["writes"]
        assert [write["path"] for write in start_writes] == [
            "/batches",
            f"/batches/{second}/start-processing",
        ]
        payment_trace = await operated_gateway.run_json_command("trace", payment)
        assert f"a payment of batch {first}" in {name["what"] for name in payment_trace["names"]}


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
        first, second = (await operated_gateway.run_json_command("trace", batch))["requests"][1:]
        assert [write["state"] for write in first["writes"]] == ["no path"]
        assert second["writes"] == []
        output = (await operated_gateway.run_command("trace", batch)).stdout
        assert "not done: the service has no such path" in output
        expected_text = (
            "nothing was changed at the service: any change it made is in a draft of the gateway"
        )
        assert output.count(expected_text) == 2
        assert "unsent" not in output


async def test_record_of_a_batch_is_described(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway)
        batch = await create_batch(operated_gateway.gateway, recipient, "5.00")
        output = (await operated_gateway.run_command("trace", batch)).stdout
        assert ": state at the service, version " in output
        assert ", id at the service B-" in output


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
        last_request = (await operated_gateway.run_json_command("trace", batch))["requests"][-1]
        assert last_request["writes"][-1]["state"] == "sent"
        assert last_request["writes"][-1]["seconds"] is None
        assert last_request["why"]


@pytest.mark.parametrize("offset_seconds", [-600, 600])
async def test_durations_do_not_depend_on_the_clock_of_the_service(
    offset_seconds: int, tmp_path: Path
) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        operated_gateway.service.clock = lambda: time.time() + offset_seconds
        recipient = await create_recipient(operated_gateway.gateway)
        trace = await run_trace(operated_gateway, recipient)
        seconds = [write["seconds"] for write in trace["requests"][0]["writes"]]
        assert seconds
        assert all(0 <= each < 60 for each in seconds), seconds


async def test_signed_add_that_may_exist_is_not_shown_as_not_executed(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        gateway = operated_gateway.gateway
        recipient = await create_recipient(gateway)
        await create_batch(gateway, recipient, "10.00")
        (upstream,) = operated_gateway.service.find_or_create_tenant().batches
        operated_gateway.add_fault("POST", "/v1/batches/*/payments", close="after")
        assert (await add_signed_payment(gateway, upstream, recipient, "7.00")).status == 500
        await operated_gateway.age_sent_writes()

        async def has_ended() -> bool:
            return not (await operated_gateway.run_json_command("writes", "unsettled"))["writes"]

        await wait_until_async(has_ended)
        output = (await operated_gateway.run_command("trace", upstream)).stdout
        assert operated_gateway.service.creation_counts["payment"] == 2
        assert re.search("change_signed_batch, .*, may have happened\n", output), output


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
        change = {"sourceAmount": "7321.00", "memo": "thank you too"}
        await request_successfully(
            operated_gateway.gateway, "PATCH", f"/batches/{batch}/payments/{payment}", change
        )
        await lose_batch_create(operated_gateway, recipient)
        for id_ in (recipient, batch, payment):
            for options in ([], ["--json"]):
                output = (
                    await operated_gateway.run_command("trace", id_, *options)
                ).stdout.casefold()
                for personal_value in (
                    "lovelace",
                    "grace",
                    "thank",
                    "example.com",
                    "main street",
                    "7321.00",
                ):
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
        for traced_request in (await run_trace(operated_gateway, batch))["requests"]:
            trace = await operated_gateway.run_json_command("trace", traced_request["request_id"])
            named_ids = {name["id"] for name in trace["names"]} - {traced_request["request_id"]}
            assert named_ids == {current_id}, traced_request["operation"]


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
        assert "--merchant and --environment: demo sandbox, other sandbox" in result.stderr
        trace = await operated_gateway.run_json_command("trace", batch, "--merchant", "demo")
        assert list_requests(trace)[0][0] == "create_batch"
        assert (
            list_requests(
                await operated_gateway.run_json_command("trace", batch, "--merchant", "other")
            )
            == []
        )
        result = await operated_gateway.run_command("trace", batch, "--merchant", "nobody", code=2)
        assert "no merchant has this name" in result.stderr
        live = ("--merchant", "demo", "--environment", "live")
        result = await operated_gateway.run_command("trace", batch, *live, code=2)
        assert "the id is known only of demo sandbox, other sandbox" in result.stderr


async def test_unknown_id_is_an_error(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        result = await operated_gateway.run_command("trace", "R-nobody", "--json", code=2)
        assert (result.stdout, result.stderr.count("\n")) == ("", 1)
        assert "nothing is known about this id" in result.stderr


async def test_json_output_is_one_document(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway)
        output = (await operated_gateway.run_command("trace", recipient, "--json")).stdout
        assert isinstance(json.loads(output), dict)
