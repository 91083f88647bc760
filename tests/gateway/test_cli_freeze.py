"""`payout-gateway freeze` and `unfreeze`: writes stop at once, reads go on."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import select

from gateway.storage import ObjectStateStore
from gateway.storage.audit_log import find_operator_name
from gateway.storage.tables import upstream_writes
from tests.operator_commands import (
    RESPONSE_LOST,
    OperatedGateway,
    open_operated_gateway,
    wait_until_async,
)
from tests.payouts import (
    WALLET,
    create_batch,
    create_recipient,
    load_payment_ids,
    request_successfully,
)
from tests.processes import build_configuration, run_installed_command, run_serve
from tests.running_gateway import ENVIRONMENT, KEY, build_settings, import_api_keys
from tests.simulator import Service, start_simulator
from tests.sockets import wait_until
from tests.state import TENANT, fetch

RECIPIENT_BODY = {
    "type": "individual",
    "firstName": "Ada",
    "lastName": "Byron",
    "email": "byron@example.com",
}
FROZEN_REFUSAL = (500, "internal_server_error")


async def post_recipient(
    operated_gateway: OperatedGateway, **headers: Any
) -> tuple[int, str | None]:
    response = await operated_gateway.gateway.request(
        "POST", "/v1/recipients", RECIPIENT_BODY, **headers
    )
    return response.status, None if response.status == 200 else response.body["errors"][0]["code"]


async def create_draft(operated_gateway: OperatedGateway) -> str:
    """Create a draft: an edited batch at a service that has no edits."""
    batch = await create_batch(
        operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
    )
    (payment,) = await load_payment_ids(operated_gateway.gateway, batch)
    change = {"sourceAmount": "6.00"}
    await request_successfully(
        operated_gateway.gateway, "PATCH", f"/batches/{batch}/payments/{payment}", change
    )
    return batch


async def start_batch(operated_gateway: OperatedGateway, batch: str) -> tuple[int, str | None]:
    response = await operated_gateway.gateway.request(
        "POST", f"/v1/batches/{batch}/start-processing"
    )
    return response.status, None if response.status == 200 else response.body["errors"][0]["code"]


SCOPES = {
    "all": ("--all",),
    "a merchant": ("--merchant", "demo"),
    "an environment": ("--environment", "sandbox"),
    "both": ("--merchant", "demo", "--environment", "sandbox"),
}


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
async def test_freeze_stops_writes_keeps_reads_and_unfreeze_resumes_writes(
    scope: tuple[str, ...], tmp_path: Path
) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        assert await post_recipient(operated_gateway) == (200, None)
        calls = operated_gateway.count_calls("POST", "*")
        report = await operated_gateway.run_json_command("freeze", *scope)
        assert (report["changed"], len(report["frozen"])) == (True, 1)
        assert await post_recipient(operated_gateway) == FROZEN_REFUSAL
        assert operated_gateway.count_calls("POST", "*") == calls
        list_response = await operated_gateway.gateway.request("GET", "/v1/recipients")
        assert (list_response.status, list_response.body["meta"]["records"]) == (200, 1)
        report = await operated_gateway.run_json_command("unfreeze", *scope)
        assert (report["changed"], report["frozen"]) == (True, [])
        assert await post_recipient(operated_gateway) == (200, None)


@pytest.mark.parametrize(
    "scope",
    [
        ("--environment", "live"),
        ("--merchant", "other"),
        ("--merchant", "demo", "--environment", "live"),
    ],
    ids=str,
)
async def test_other_tenants_are_not_frozen(scope: tuple[str, ...], tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        await operated_gateway.gateway.import_key(
            merchant="other", api_key="another-api-key", access_key="AK2"
        )
        result = await operated_gateway.run_command("freeze", *scope)
        assert ("no write is stopped" in result.stderr) == ("--environment" in scope)
        assert await post_recipient(operated_gateway) == (200, None)


async def test_frozen_write_is_refused_in_legacy_format(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        await operated_gateway.run_command("freeze", "--all")
        response = await operated_gateway.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert response.text.startswith('{"ok":false,"errors":[{"code":"internal_server_error"')
        assert "nothing was done" in response.body["errors"][0]["message"]


@pytest.mark.parametrize("is_part_done", [False, True])
async def test_recorded_write_that_has_not_left_is_not_sent_after_a_freeze(
    tmp_path: Path, *, is_part_done: bool
) -> None:
    """A process may be paused, or wait for a connection, long after it has recorded the write."""
    sections = {"upstream": {"connections": 1}, "lease_seconds": 0.4}
    body = {**RECIPIENT_BODY, "payout": WALLET} if is_part_done else RECIPIENT_BODY
    async with open_operated_gateway(tmp_path, seconds=15, sections=sections) as setup:
        send = setup.gateway.request
        if is_part_done:
            setup.add_fault("POST", "/v1/recipients", answer_delay=1)
        else:
            setup.add_fault("GET", "/v1/recipients/*", delay=3)
        first_call, second_call = ("POST", "GET") if is_part_done else ("GET", "POST")
        requests = {
            "GET": partial(send, "GET", "/v1/recipients/R-1234567890123456"),
            "POST": partial(send, "POST", "/v1/recipients", body),
        }
        first_request = asyncio.ensure_future(requests[first_call]())
        await wait_until(lambda: not setup.service.faults)
        if is_part_done:
            setup.add_fault("GET", "/v1/recipients/*", delay=3)
        second_request = asyncio.ensure_future(requests[second_call]())
        written_count = 2 if is_part_done else 1

        async def is_recorded() -> bool:
            async with setup.open_store() as store:
                return len(await fetch(store, select(upstream_writes))) == written_count

        await wait_until_async(is_recorded)
        await setup.run_command("freeze", "--all")
        response = await (first_request if is_part_done else second_request)
        assert response.status == 500
        told = "continues" if is_part_done else "nothing was done"
        assert told in response.body["errors"][0]["message"]
        assert setup.count_calls("POST", "*") == written_count - 1
        await setup.run_command("unfreeze", "--all")
        assert (await requests["POST"]()).status == 200
        assert setup.count_calls("POST", "*") == written_count


async def test_repeated_freeze_changes_nothing_and_keeps_start_time(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        first = await operated_gateway.run_json_command("freeze", "--all")
        second = await operated_gateway.run_json_command("freeze", "--all")
        assert (first["changed"], second["changed"]) == (True, False)
        assert first["frozen"] == second["frozen"]
        assert "already frozen" in (await operated_gateway.run_command("freeze", "--all")).stdout
        assert (await operated_gateway.run_json_command("unfreeze", "--all"))["changed"] is True
        assert (await operated_gateway.run_json_command("unfreeze", "--all"))["changed"] is False


async def test_unfreeze_needs_the_same_scope(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        await operated_gateway.run_json_command("freeze", "--merchant", "demo")
        await operated_gateway.run_json_command("freeze", "--all")
        remaining_freezes = (await operated_gateway.run_json_command("unfreeze", "--all"))["frozen"]
        assert [(freeze["merchant"], freeze["environment"]) for freeze in remaining_freezes] == [
            ("demo", None)
        ]
        again = (await operated_gateway.run_command("unfreeze", "--all")).output
        assert "no freeze was set with these options" in again
        assert "payout-gateway unfreeze --merchant demo\n" in again
        assert await post_recipient(operated_gateway) == FROZEN_REFUSAL
        await operated_gateway.run_json_command("unfreeze", "--merchant", "demo")
        assert await post_recipient(operated_gateway) == (200, None)


async def test_freezes_are_audited(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway)
        await operated_gateway.run_command("freeze", "--all")
        await operated_gateway.run_command("unfreeze", "--all")
        report = await operated_gateway.run_json_command("freeze", "--list")
        assert [(event["what"], event["by"]) for event in report["acts"]] == [
            ("froze", find_operator_name()),
            ("unfroze", find_operator_name()),
        ]
        assert [
            event["what"]
            for event in (await operated_gateway.run_json_command("trace", recipient))["acts"]
        ] == [
            "froze",
            "unfroze",
        ]
        output = (await operated_gateway.run_command("freeze", "--list")).stdout
        assert "Nothing is frozen." in output
        assert find_operator_name() in output


INVALID_SCOPES = {
    "nothing said": ["freeze"],
    "all and one": ["freeze", "--all", "--merchant", "demo"],
    "nothing said of unfreeze": ["unfreeze"],
    "an environment that is none": ["freeze", "--environment", "test"],
    "a merchant that is none": ["freeze", "--merchant", "domo"],
    "a list of something": ["freeze", "--list", "--all"],
}


@pytest.mark.parametrize("arguments", INVALID_SCOPES.values(), ids=INVALID_SCOPES)
async def test_empty_scope_is_a_usage_error(arguments: list[str], tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        assert (await operated_gateway.run_command(*arguments, code=2)).stdout == ""
        assert (await operated_gateway.run_json_command("freeze", "--list"))["frozen"] == []


# Operations that have begun, and reads that need a write.


async def test_running_operation_of_several_calls_continues_after_unfreeze(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, seconds=5) as operated_gateway:
        operated_gateway.add_fault("POST", "/v1/recipients", answer_delay=1.5)
        body = {**RECIPIENT_BODY, "payout": WALLET}
        create = partial(operated_gateway.gateway.request, "POST", "/v1/recipients", body)
        create_task = asyncio.ensure_future(create())
        await wait_until(lambda: operated_gateway.service.creation_counts["recipient"] == 1)
        await operated_gateway.run_command("freeze", "--all")
        for response in (await create_task, await create()):
            assert response.status == 500
            assert "it continues later" in response.text
        (paused,) = (await operated_gateway.run_json_command("writes", "unsettled"))["writes"]
        assert "it continues later" in paused["why"]
        assert operated_gateway.service.creation_counts["account"] == 0
        await operated_gateway.run_command("unfreeze", "--all")
        response = await create()
        assert response.status == 200, response.text
        assert operated_gateway.service.creation_counts["recipient"] == 1
        assert operated_gateway.service.creation_counts["account"] == 1


async def test_read_does_not_create_frozen_draft(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        batch = await create_draft(operated_gateway)
        await operated_gateway.run_command("freeze", "--all")
        calls = operated_gateway.count_calls("POST", "*")
        refused_response = await operated_gateway.gateway.request(
            "GET", f"/v1/batches/{batch}/summary"
        )
        assert (
            refused_response.status,
            refused_response.body["errors"][0]["code"],
        ) == FROZEN_REFUSAL
        assert operated_gateway.count_calls("POST", "*") == calls
        assert (await request_successfully(operated_gateway.gateway, "GET", f"/batches/{batch}"))[
            "batch"
        ]["amount"] == "6.00"
        await operated_gateway.run_command("unfreeze", "--all")
        body = await request_successfully(
            operated_gateway.gateway, "GET", f"/batches/{batch}/summary"
        )
        assert body["batchSummary"]["total"]["value"] == 6
        (current_id,) = list(operated_gateway.service.find_or_create_tenant().batches)[1:]
        async with operated_gateway.open_store() as store:
            batch_states = await ObjectStateStore(store).load_facts_by_id(TENANT, "batch")
        assert [batch_state["upstream"] for batch_state in batch_states.values()] == [current_id]


async def test_draft_in_creation_is_not_started_after_freeze(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        batch = await create_draft(operated_gateway)
        operated_gateway.add_fault("POST", "/v1/batches", answer_delay=1.5)
        start_task = asyncio.ensure_future(start_batch(operated_gateway, batch))
        await wait_until(lambda: len(operated_gateway.service.find_or_create_tenant().batches) == 2)
        await operated_gateway.run_command("freeze", "--all")
        assert await start_task == FROZEN_REFUSAL
        assert operated_gateway.service.batch_starts == []
        await operated_gateway.run_command("unfreeze", "--all")
        assert await start_batch(operated_gateway, batch) == (200, None)
        assert (
            operated_gateway.count_calls("POST", "/v1/batches"),
            len(operated_gateway.service.batch_starts),
        ) == (2, 1)


async def test_retry_does_not_continue_frozen_start(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        batch = await create_draft(operated_gateway)
        operated_gateway.add_fault("POST", "/v1/batches", **RESPONSE_LOST)
        assert await start_batch(operated_gateway, batch) == (500, "internal_server_error")
        await operated_gateway.run_command("freeze", "--all")
        (in_doubt_write,) = (await operated_gateway.run_json_command("writes", "unsettled"))[
            "writes"
        ]
        upstream_id = list(operated_gateway.service.find_or_create_tenant().batches)[1]
        await operated_gateway.run_command(
            "writes", "settle", in_doubt_write["write"], "--made", upstream_id, "--yes"
        )
        assert await start_batch(operated_gateway, batch) == FROZEN_REFUSAL
        assert operated_gateway.service.batch_starts == []
        await operated_gateway.run_command("unfreeze", "--all")
        assert await start_batch(operated_gateway, batch) == (200, None)
        assert (
            operated_gateway.count_calls("POST", "/v1/batches"),
            len(operated_gateway.service.batch_starts),
        ) == (2, 1)


async def test_idempotency_key_does_not_replay_freeze_refusal(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        key = {"headers": {"Idempotency-Key": "payday-1"}}
        await operated_gateway.run_command("freeze", "--all")
        assert await post_recipient(operated_gateway, **key) == FROZEN_REFUSAL
        await operated_gateway.run_command("unfreeze", "--all")
        assert await post_recipient(operated_gateway, **key) == (200, None)
        assert operated_gateway.service.creation_counts["recipient"] == 1


# The installed commands.


async def test_running_gateway_obeys_freeze_command(tmp_path: Path) -> None:
    simulator = await start_simulator(service=Service(seed=1))
    try:
        (tmp_path / "gateway.toml").write_text(build_configuration(simulator.url))
        await import_api_keys(build_settings(tmp_path, simulator.url), [KEY])
        headers = {"X-API-Key": KEY["api_key"]}
        async with (
            run_serve(tmp_path) as gateway,
            aiohttp.ClientSession(headers=headers) as session,
        ):

            async def request_status(method: str, body: Any = None) -> int:
                url = f"{gateway.url}/v1/recipients"
                async with session.request(method, url, json=body) as answer:
                    return answer.status

            async def run_json_command(*arguments: str) -> Any:
                result = await asyncio.to_thread(
                    run_installed_command, *arguments, "--json", folder=tmp_path
                )
                assert (result.returncode, result.stderr) == (0, "")
                return json.loads(result.stdout)

            freeze_report = await run_json_command(
                "freeze", "--merchant", "demo", "--environment", ENVIRONMENT
            )
            assert freeze_report["frozen"][0]["merchant"] == "demo"
            assert await request_status("POST", RECIPIENT_BODY) == 500
            assert await request_status("GET") == 200
            await run_json_command("unfreeze", "--merchant", "demo", "--environment", ENVIRONMENT)
            assert await request_status("POST", RECIPIENT_BODY) == 200
            stop_events = [
                line for line in gateway.parse_log() if line.get("http.response.status_code") == 500
            ]
            assert "stopped" in stop_events[0]["reason"]
            assert await gateway.stop() == 0
    finally:
        await simulator.stop()
