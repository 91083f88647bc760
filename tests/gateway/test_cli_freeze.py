"""`payout-gateway freeze` and `unfreeze`: writes stop at once, reads go on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.simulator import Service, start_simulator
from gateway.storage import ObjectStateStore
from gateway.storage.audit_log import find_operator
from tests.operator_commands import RESPONSE_LOST, OperatedGateway, open_operated_gateway
from tests.payouts import create_batch, create_recipient, load_payment_ids, request_successfully
from tests.processes import build_configuration, run_installed_command, run_serve
from tests.running_gateway import ENVIRONMENT, KEY, build_settings, import_api_keys
from tests.sockets import wait_until
from tests.state import TENANT

RECIPIENT_BODY = {
    "type": "individual",
    "firstName": "Ada",
    "lastName": "Byron",
    "email": "byron@example.com",
}
FROZEN_REFUSAL = (500, "internal_server_error")


async def post_recipient(operated: OperatedGateway, **more: Any) -> tuple[int, str | None]:
    response = await operated.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY, **more)
    return response.status, None if response.status == 200 else response.body["errors"][0]["code"]


async def create_draft(operated: OperatedGateway) -> str:
    """Create a draft: an edited batch at a service that has no edits."""
    batch = await create_batch(operated.gateway, await create_recipient(operated.gateway), "5.00")
    (payment,) = await load_payment_ids(operated.gateway, batch)
    change = {"sourceAmount": "6.00"}
    await request_successfully(
        operated.gateway, "PATCH", f"/batches/{batch}/payments/{payment}", change
    )
    return batch


async def start_batch(operated: OperatedGateway, batch: str) -> tuple[int, str | None]:
    response = await operated.gateway.request("POST", f"/v1/batches/{batch}/start-processing")
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
    async with open_operated_gateway(tmp_path) as operated:
        assert await post_recipient(operated) == (200, None)
        calls = operated.count_calls("POST", "*")
        report = await operated.run_json_command("freeze", *scope)
        assert (report["changed"], len(report["frozen"])) == (True, 1)
        assert await post_recipient(operated) == FROZEN_REFUSAL
        assert operated.count_calls("POST", "*") == calls
        listed = await operated.gateway.request("GET", "/v1/recipients")
        assert (listed.status, listed.body["meta"]["records"]) == (200, 1)
        report = await operated.run_json_command("unfreeze", *scope)
        assert (report["changed"], report["frozen"]) == (True, [])
        assert await post_recipient(operated) == (200, None)


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
    async with open_operated_gateway(tmp_path) as operated:
        await operated.gateway.import_key(
            merchant="other", api_key="another-api-key", access_key="AK2"
        )
        await operated.run_json_command("freeze", *scope)
        assert await post_recipient(operated) == (200, None)


async def test_frozen_write_is_refused_in_legacy_format(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        await operated.run_command("freeze", "--all")
        response = await operated.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert response.text.startswith('{"ok":false,"errors":[{"code":"internal_server_error"')
        assert "nothing was done" in response.body["errors"][0]["message"]


async def test_repeated_freeze_changes_nothing_and_keeps_start_time(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        first = await operated.run_json_command("freeze", "--all")
        again = await operated.run_json_command("freeze", "--all")
        assert (first["changed"], again["changed"]) == (True, False)
        assert first["frozen"] == again["frozen"]
        assert "already frozen" in (await operated.run_command("freeze", "--all")).stdout
        assert (await operated.run_json_command("unfreeze", "--all"))["changed"] is True
        assert (await operated.run_json_command("unfreeze", "--all"))["changed"] is False


async def test_unfreeze_needs_the_same_scope(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        await operated.run_json_command("freeze", "--merchant", "demo")
        await operated.run_json_command("freeze", "--all")
        left = (await operated.run_json_command("unfreeze", "--all"))["frozen"]
        assert [(one["merchant"], one["environment"]) for one in left] == [("demo", None)]
        assert await post_recipient(operated) == FROZEN_REFUSAL
        await operated.run_json_command("unfreeze", "--merchant", "demo")
        assert await post_recipient(operated) == (200, None)


async def test_freezes_are_audited(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        recipient = await create_recipient(operated.gateway)
        await operated.run_command("freeze", "--all")
        await operated.run_command("unfreeze", "--all")
        report = await operated.run_json_command("freeze", "--list")
        assert [(act["what"], act["by"]) for act in report["acts"]] == [
            ("froze", find_operator()),
            ("unfroze", find_operator()),
        ]
        assert [
            act["what"] for act in (await operated.run_json_command("trace", recipient))["acts"]
        ] == [
            "froze",
            "unfroze",
        ]
        output = (await operated.run_command("freeze", "--list")).stdout
        assert "Nothing is frozen." in output
        assert find_operator() in output


INVALID_SCOPES = {
    "nothing said": ["freeze"],
    "all and one": ["freeze", "--all", "--merchant", "demo"],
    "nothing said of unfreeze": ["unfreeze"],
    "an environment that is none": ["freeze", "--environment", "test"],
    "a merchant that is none": ["freeze", "--merchant", "domo"],
    "a list of something": ["freeze", "--list", "--all"],
}


@pytest.mark.parametrize("words", INVALID_SCOPES.values(), ids=INVALID_SCOPES)
async def test_empty_scope_is_a_usage_error(words: list[str], tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        assert (await operated.run_command(*words, code=2)).stdout == ""
        assert (await operated.run_json_command("freeze", "--list"))["frozen"] == []


# Operations that have begun, and reads that need a write.


async def test_running_operation_of_several_calls_is_finished(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, seconds=5) as operated:
        operated.add_fault("POST", "/v1/recipients", answer_delay=1.5)
        making = asyncio.ensure_future(create_recipient(operated.gateway))
        await wait_until(lambda: operated.service.creation_counts["recipient"] == 1)
        await operated.run_command("freeze", "--all")
        await making
        assert operated.service.creation_counts["account"] == 1


async def test_read_does_not_create_frozen_draft(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated:
        batch = await create_draft(operated)
        await operated.run_command("freeze", "--all")
        calls = operated.count_calls("POST", "*")
        refused = await operated.gateway.request("GET", f"/v1/batches/{batch}/summary")
        assert (refused.status, refused.body["errors"][0]["code"]) == FROZEN_REFUSAL
        assert operated.count_calls("POST", "*") == calls
        assert (await request_successfully(operated.gateway, "GET", f"/batches/{batch}"))["batch"][
            "amount"
        ] == "6.00"
        await operated.run_command("unfreeze", "--all")
        shown = await request_successfully(operated.gateway, "GET", f"/batches/{batch}/summary")
        assert shown["batchSummary"]["total"]["value"] == 6
        (current,) = list(operated.service.find_or_create_tenant().batches)[1:]
        async with operated.open_store() as store:
            facts = await ObjectStateStore(store).load_facts_by_id(TENANT, "batch")
        assert [one["upstream"] for one in facts.values()] == [current]


async def test_draft_in_creation_is_not_started_after_freeze(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated:
        batch = await create_draft(operated)
        operated.add_fault("POST", "/v1/batches", answer_delay=1.5)
        starting = asyncio.ensure_future(start_batch(operated, batch))
        await wait_until(lambda: len(operated.service.find_or_create_tenant().batches) == 2)
        await operated.run_command("freeze", "--all")
        assert await starting == FROZEN_REFUSAL
        assert operated.service.batch_starts == []
        await operated.run_command("unfreeze", "--all")
        assert await start_batch(operated, batch) == (200, None)
        assert (
            operated.count_calls("POST", "/v1/batches"),
            len(operated.service.batch_starts),
        ) == (2, 1)


async def test_retry_does_not_continue_frozen_start(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated:
        batch = await create_draft(operated)
        operated.add_fault("POST", "/v1/batches", **RESPONSE_LOST)
        assert await start_batch(operated, batch) == (500, "internal_server_error")
        await operated.run_command("freeze", "--all")
        (left,) = (await operated.run_json_command("writes", "unsettled"))["writes"]
        made = list(operated.service.find_or_create_tenant().batches)[1]
        await operated.run_command("writes", "settle", left["write"], "--made", made, "--yes")
        assert await start_batch(operated, batch) == FROZEN_REFUSAL
        assert operated.service.batch_starts == []
        await operated.run_command("unfreeze", "--all")
        assert await start_batch(operated, batch) == (200, None)
        assert (
            operated.count_calls("POST", "/v1/batches"),
            len(operated.service.batch_starts),
        ) == (2, 1)


async def test_idempotency_key_does_not_replay_freeze_refusal(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        key = {"headers": {"Idempotency-Key": "payday-1"}}
        await operated.run_command("freeze", "--all")
        assert await post_recipient(operated, **key) == FROZEN_REFUSAL
        await operated.run_command("unfreeze", "--all")
        assert await post_recipient(operated, **key) == (200, None)
        assert operated.service.creation_counts["recipient"] == 1


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

            async def asked(method: str, body: Any = None) -> int:
                url = f"{gateway.url}/v1/recipients"
                async with session.request(method, url, json=body) as answer:
                    return answer.status

            async def told(*words: str) -> Any:
                ended = await asyncio.to_thread(
                    run_installed_command, *words, "--json", folder=tmp_path
                )
                assert (ended.returncode, ended.stderr) == (0, "")
                return json.loads(ended.stdout)

            frozen = await told("freeze", "--merchant", "demo", "--environment", ENVIRONMENT)
            assert frozen["frozen"][0]["merchant"] == "demo"
            assert await asked("POST", RECIPIENT_BODY) == 500
            assert await asked("GET") == 200
            await told("unfreeze", "--merchant", "demo", "--environment", ENVIRONMENT)
            assert await asked("POST", RECIPIENT_BODY) == 200
            lines = [
                line for line in gateway.parse_log() if line.get("http.response.status_code") == 500
            ]
            assert "stopped" in lines[0]["reason"]
            assert await gateway.stop() == 0
    finally:
        await simulator.stop()
