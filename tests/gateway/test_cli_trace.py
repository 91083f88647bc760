"""`payout-gateway trace`: everything known about an id, without personal data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

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

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def list_requests(report: Any) -> list[tuple[str, str]]:
    return [
        (traced_request["operation"], traced_request["state"])
        for traced_request in report["requests"]
    ]


async def run_trace(operated: OperatedGateway, id_: str) -> Any:
    """Trace an id once deliveries are recorded, which happens after the answers."""
    told: Any = None

    async def answered() -> bool:
        nonlocal told
        told = await operated.run_json_command("trace", id_)
        return {state for _operation, state in list_requests(told)} == {"answered"}

    await wait_until_async(answered)
    return told


async def test_recipient_is_traced_through_every_call(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        recipient = await create_recipient(operated.gateway)
        await request_successfully(
            operated.gateway, "PATCH", f"/recipients/{recipient}", {"firstName": "Augusta"}
        )
        await request_successfully(operated.gateway, "DELETE", f"/recipients/{recipient}")
        told = await run_trace(operated, recipient)
        assert (told["merchant"], told["environment"]) == ("demo", "sandbox")
        assert [operation for operation, _state in list_requests(told)] == [
            "create_recipient",
            "update_recipient",
            "delete_recipient",
        ]
        first = told["requests"][0]
        assert TIMESTAMP.fullmatch(first["at"])
        assert (first["key"], first["state"]) == ("demo-sandbox", "answered")
        assert first["request_id"]
        create, account = first["writes"]
        assert (create["method"], create["path"]) == ("POST", "/recipients")
        assert (create["state"], create["made"]) == ("answered", recipient)
        assert 0 <= create["seconds"] < 5
        assert account["path"] == f"/recipients/{recipient}/accounts"
        assert account["made"].startswith("A-")
        assert told["facts"] == {f"recipient {recipient}": {"deleted": True}}
        whole = await operated.run_command("trace", recipient)
        for words in ("create_recipient, key demo-sandbox", f"created {recipient}", "deleted true"):
            assert words in whole.stdout


async def test_request_is_traced_by_request_id(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        body = {"type": "business", "name": "Acme", "email": "a@shop.example.com"}
        answer = await operated.gateway.request("POST", "/v1/recipients", body)
        recipient, given = answer.body["recipient"]["id"], answer.headers["X-Request-Id"]
        told = await run_trace(operated, recipient)
        assert [traced_request["request_id"] for traced_request in told["requests"]] == [given]
        assert f"request_id={given}" in read_log(tmp_path)
        undertaking = told["requests"][0]["undertaking"]
        for id_ in (given, undertaking, f"{undertaking[:12]}.0"):
            trace = await operated.run_json_command("trace", id_)
            assert list_requests(trace) == list_requests(told)
            assert {name["id"] for name in trace["names"]} >= {given, recipient}
        assert f"request {given}" in (await operated.run_command("trace", given)).stdout


async def test_log_of_a_retry_names_the_traceable_request(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        body = {"type": "business", "name": "Acme", "email": "a@shop.example.com"}
        once = {"Idempotency-Key": "one"}
        first = await operated.gateway.request("POST", "/v1/recipients", body, headers=once)
        again = await operated.gateway.request("POST", "/v1/recipients", body, headers=once)
        assert first.body == again.body
        one, other = (response.headers["X-Request-Id"] for response in (first, again))
        lines = read_log(tmp_path).splitlines()
        (of_first,) = [line for line in lines if f"request_id={one}" in line]
        (of_retry,) = [line for line in lines if f"request_id={other}" in line]
        assert "retry_of" not in of_first
        assert f"retry_of={one}" in of_retry
        unknown = await operated.run_command("trace", again.headers["X-Request-Id"], code=2)
        assert "retry_of" in unknown.stderr


async def test_operator_actions_name_their_scope(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        recipient = await create_recipient(operated.gateway)
        await operated.run_command("freeze", "--merchant", "demo")
        await operated.run_command("freeze", "--all")
        whole = (await operated.run_command("trace", recipient)).stdout
        assert "froze: merchant demo, live and sandbox" in whole
        assert "froze: every merchant, live and sandbox" in whole
        one, all_ = (await operated.run_json_command("trace", recipient))["acts"]
        assert (one["merchant"], one["environment"]) == ("demo", None)
        assert (all_["merchant"], all_["environment"]) == (None, None)


async def test_account_is_traced_to_its_creation_and_changes(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        recipient = await create_recipient(operated.gateway)
        (made,) = (held.id for held in operated.service.require_recipient(recipient).accounts)
        wallet = {"address": "other@wallet.example.com"}
        body = {**WALLET, "accounts": {"wallet": wallet}}
        await request_successfully(
            operated.gateway, "PATCH", f"/recipients/{recipient}/payout-methods", body
        )
        trace = await operated.run_json_command("trace", made)
        assert [operation for operation, _state in list_requests(trace)] == [
            "create_recipient",
            "update_payout_method",
        ]
        assert trace["requests"][1]["writes"][0]["path"].endswith(f"/accounts/{made}")


async def test_every_id_of_a_batch_gives_the_same_trace(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated:
        batch = await create_batch(
            operated.gateway, await create_recipient(operated.gateway), "5.00"
        )
        (payment,) = await load_payment_ids(operated.gateway, batch)
        change = {"sourceAmount": "6.00"}
        await request_successfully(
            operated.gateway, "PATCH", f"/batches/{batch}/payments/{payment}", change
        )
        await request_successfully(operated.gateway, "POST", f"/batches/{batch}/start-processing")
        first, second = operated.service.find_or_create_tenant().batches
        (tmp_path / "ids.csv").write_text(f"B-OLD1,{first}\n")
        await operated.run_command(
            *("ids", "import", str(tmp_path / "ids.csv")),
            *("--merchant", "demo", "--environment", "sandbox"),
        )
        trace = {
            id_: await operated.run_json_command("trace", id_)
            for id_ in (batch, first, second, "B-OLD1")
        }
        for one in trace.values():
            assert {name["id"] for name in one["names"]} == {batch, first, second, "B-OLD1"}
            assert [operation for operation, _state in list_requests(one)] == [
                "create_batch",
                "update_payment",
                "start_batch",
            ]
            assert one["payments"] == 1
            known = one["facts"][f"batch {first}"]
            assert (known["phase"], known["upstream"], known["abandoned"]) == (
                "sent",
                second,
                [first],
            )
        what = {(name["id"], name["what"]) for name in trace[batch]["names"]}
        assert (first, "the service's id, superseded: must never be started") in what
        assert (first, "the service's id") not in what
        assert ("B-OLD1", "the legacy id, imported") in what
        started = trace[batch]["requests"][2]["writes"]
        assert [write["path"] for write in started] == [
            "/batches",
            f"/batches/{second}/start-processing",
        ]
        shown = await operated.run_json_command("trace", payment)
        assert f"a payment of batch {first}" in {name["what"] for name in shown["names"]}


async def test_draft_change_is_marked_as_not_sent_to_service(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated:
        batch = await create_batch(
            operated.gateway, await create_recipient(operated.gateway), "5.00"
        )
        (payment,) = await load_payment_ids(operated.gateway, batch)
        path = f"/batches/{batch}/payments/{payment}"
        await request_successfully(operated.gateway, "PATCH", path, {"sourceAmount": "6.00"})
        await request_successfully(operated.gateway, "PATCH", path, {"sourceAmount": "7.00"})
        first, second = (await operated.run_json_command("trace", batch))["requests"][1:]
        assert [write["state"] for write in first["writes"]] == ["no path"]
        assert second["writes"] == []
        output = (await operated.run_command("trace", batch)).stdout
        assert "not done: the service has no such path" in output
        told = "nothing was changed at the service: any change it made is in a draft of the gateway"
        assert output.count(told) == 2
        assert "unsent" not in output


async def test_deletion_of_superseded_batch_is_explained(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated:
        batch = await create_batch(
            operated.gateway, await create_recipient(operated.gateway), "5.00"
        )
        await request_successfully(operated.gateway, "DELETE", f"/batches/{batch}")
        output = (await operated.run_command("trace", batch)).stdout
        assert "nothing was changed at the service: its batch is superseded" in output


async def test_change_sent_to_service_mentions_no_draft(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        batch = await create_batch(
            operated.gateway, await create_recipient(operated.gateway), "5.00"
        )
        (payment,) = await load_payment_ids(operated.gateway, batch)
        change = {"sourceAmount": "6.00"}
        await request_successfully(
            operated.gateway, "PATCH", f"/batches/{batch}/payments/{payment}", change
        )
        assert "nothing was changed" not in (await operated.run_command("trace", batch)).stdout


async def test_write_in_doubt_shows_its_reason(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        batch = await create_batch(
            operated.gateway, await create_recipient(operated.gateway), "10.00"
        )
        operated.add_fault("POST", "/v1/batches/*/start-processing", close="before")
        await operated.gateway.request("POST", f"/v1/batches/{batch}/start-processing")
        last = (await operated.run_json_command("trace", batch))["requests"][-1]
        assert last["writes"][-1]["state"] == "sent"
        assert last["writes"][-1]["seconds"] is None
        assert last["why"]


async def test_trace_contains_no_personal_data(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated:
        recipient = await create_recipient(operated.gateway, "lovelace")
        body = {
            "sourceCurrency": "USD",
            "description": "for Grace",
            "payments": [
                {"recipient": {"id": recipient}, "sourceAmount": "5.00", "memo": "thank you"}
            ],
        }
        batch = (await request_successfully(operated.gateway, "POST", "/batches", body))["batch"][
            "id"
        ]
        (payment,) = await load_payment_ids(operated.gateway, batch)
        change = {"sourceAmount": "6.00", "memo": "thank you too"}
        await request_successfully(
            operated.gateway, "PATCH", f"/batches/{batch}/payments/{payment}", change
        )
        await lose_batch_create(operated, recipient)
        for id_ in (recipient, batch, payment):
            for words in ([], ["--json"]):
                output = (await operated.run_command("trace", id_, *words)).stdout.casefold()
                for personal in (
                    "lovelace",
                    "grace",
                    "thank",
                    "example.com",
                    "main street",
                    "6.00",
                ):
                    assert personal not in output
        listed = (await operated.run_command("writes", "unsettled")).stdout.casefold()
        assert "lovelace" not in listed


async def test_request_names_objects_without_path_segments(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        batch = await create_batch(
            operated.gateway, await create_recipient(operated.gateway), "5.00"
        )
        (current,) = operated.service.find_or_create_tenant().batches
        for step in ("generate-quote", "start-processing"):
            await request_successfully(operated.gateway, "POST", f"/batches/{batch}/{step}")
        for traced_request in (await run_trace(operated, batch))["requests"]:
            trace = await operated.run_json_command("trace", traced_request["request_id"])
            named = {name["id"] for name in trace["names"]} - {traced_request["request_id"]}
            assert named == {current}, traced_request["operation"]


async def test_id_of_two_merchants_requires_merchant(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        await operated.gateway.import_key(
            merchant="other", api_key="another-api-key", access_key="AK2"
        )
        batch = await create_batch(
            operated.gateway, await create_recipient(operated.gateway), "5.00"
        )
        (current,) = operated.service.find_or_create_tenant().batches
        (tmp_path / "ids.csv").write_text(f"{batch},{current}\n")
        words = ("--merchant", "other", "--environment", "sandbox")
        await operated.run_command("ids", "import", str(tmp_path / "ids.csv"), *words)
        refused = await operated.run_command("trace", batch, code=2)
        assert "several tenants have this id: demo sandbox, other sandbox; choose" in refused.stderr
        trace = await operated.run_json_command("trace", batch, "--merchant", "demo")
        assert list_requests(trace)[0][0] == "create_batch"
        assert (
            list_requests(await operated.run_json_command("trace", batch, "--merchant", "other"))
            == []
        )


async def test_unknown_id_is_an_error(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        refused = await operated.run_command("trace", "R-nobody", "--json", code=2)
        assert (refused.stdout, refused.stderr.count("\n")) == ("", 1)
        assert "nothing is known about this id" in refused.stderr


async def test_json_output_is_one_document(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        recipient = await create_recipient(operated.gateway)
        output = (await operated.run_command("trace", recipient, "--json")).stdout
        assert isinstance(json.loads(output), dict)
