"""`payout-gateway freeze` and `unfreeze`: writes stop at once, reads go on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.simulator import Service, start
from gateway.storage import Ledger
from gateway.storage.audit_log import operator
from tests.operator_commands import LOST, Post, post
from tests.payouts import done, make_batch, make_recipient, payment_ids
from tests.processes import command, configuration, serving
from tests.running_gateway import ENVIRONMENT, KEY, import_lines, settings_for
from tests.sockets import until
from tests.state import TENANT

ADA = {"type": "individual", "firstName": "Ada", "lastName": "Byron", "email": "byron@example.com"}
FROZEN = (500, "internal_server_error")


async def create(operated: Post, **more: Any) -> tuple[int, str | None]:
    response = await operated.gateway.request("POST", "/v1/recipients", ADA, **more)
    return response.status, None if response.status == 200 else response.body["errors"][0]["code"]


async def drafted(operated: Post) -> str:
    """Create a draft: an edited batch at a service that has no edits."""
    batch = await make_batch(operated.gateway, await make_recipient(operated.gateway), "5.00")
    (payment,) = await payment_ids(operated.gateway, batch)
    change = {"sourceAmount": "6.00"}
    await done(operated.gateway, "PATCH", f"/batches/{batch}/payments/{payment}", change)
    return batch


async def begin(operated: Post, batch: str) -> tuple[int, str | None]:
    response = await operated.gateway.request("POST", f"/v1/batches/{batch}/start-processing")
    return response.status, None if response.status == 200 else response.body["errors"][0]["code"]


SCOPES = {
    "all": ("--all",),
    "a merchant": ("--merchant", "demo"),
    "an environment": ("--environment", "sandbox"),
    "both": ("--merchant", "demo", "--environment", "sandbox"),
}


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
async def test_writes_stop_at_once_reads_go_on_and_writes_begin_again(
    scope: tuple[str, ...], tmp_path: Path
) -> None:
    async with post(tmp_path) as operated:
        assert await create(operated) == (200, None)
        calls = operated.count_calls("POST", "*")
        report = await operated.run_json_command("freeze", *scope)
        assert (report["changed"], len(report["frozen"])) == (True, 1)
        assert await create(operated) == FROZEN
        assert operated.count_calls("POST", "*") == calls
        listed = await operated.gateway.request("GET", "/v1/recipients")
        assert (listed.status, listed.body["meta"]["records"]) == (200, 1)
        report = await operated.run_json_command("unfreeze", *scope)
        assert (report["changed"], report["frozen"]) == (True, [])
        assert await create(operated) == (200, None)


@pytest.mark.parametrize(
    "scope",
    [
        ("--environment", "live"),
        ("--merchant", "other"),
        ("--merchant", "demo", "--environment", "live"),
    ],
    ids=str,
)
async def test_others_are_not_frozen(scope: tuple[str, ...], tmp_path: Path) -> None:
    async with post(tmp_path) as operated:
        await operated.gateway.import_key(
            merchant="other", api_key="another-api-key", access_key="AK2"
        )
        await operated.run_json_command("freeze", *scope)
        assert await create(operated) == (200, None)


async def test_a_client_is_told_in_the_legacy_shape_that_nothing_was_changed(
    tmp_path: Path,
) -> None:
    async with post(tmp_path) as operated:
        await operated.run_command("freeze", "--all")
        response = await operated.gateway.request("POST", "/v1/recipients", ADA)
        assert response.text.startswith('{"ok":false,"errors":[{"code":"internal_server_error"')
        assert "nothing was done" in response.body["errors"][0]["message"]


async def test_doing_it_twice_changes_nothing_and_keeps_since_when(tmp_path: Path) -> None:
    async with post(tmp_path) as operated:
        first = await operated.run_json_command("freeze", "--all")
        again = await operated.run_json_command("freeze", "--all")
        assert (first["changed"], again["changed"]) == (True, False)
        assert first["frozen"] == again["frozen"]
        assert "already frozen" in (await operated.run_command("freeze", "--all")).stdout
        assert (await operated.run_json_command("unfreeze", "--all"))["changed"] is True
        assert (await operated.run_json_command("unfreeze", "--all"))["changed"] is False


async def test_a_freeze_ends_with_the_words_that_it_began_with(tmp_path: Path) -> None:
    async with post(tmp_path) as operated:
        await operated.run_json_command("freeze", "--merchant", "demo")
        await operated.run_json_command("freeze", "--all")
        left = (await operated.run_json_command("unfreeze", "--all"))["frozen"]
        assert [(one["merchant"], one["environment"]) for one in left] == [("demo", None)]
        assert await create(operated) == FROZEN
        await operated.run_json_command("unfreeze", "--merchant", "demo")
        assert await create(operated) == (200, None)


async def test_who_froze_what_and_when_is_kept(tmp_path: Path) -> None:
    async with post(tmp_path) as operated:
        recipient = await make_recipient(operated.gateway)
        await operated.run_command("freeze", "--all")
        await operated.run_command("unfreeze", "--all")
        report = await operated.run_json_command("freeze", "--list")
        assert [(act["what"], act["by"]) for act in report["acts"]] == [
            ("froze", operator()),
            ("unfroze", operator()),
        ]
        assert [
            act["what"] for act in (await operated.run_json_command("trace", recipient))["acts"]
        ] == [
            "froze",
            "unfroze",
        ]
        output = (await operated.run_command("freeze", "--list")).stdout
        assert "Nothing is frozen." in output
        assert operator() in output


MISTAKES = {
    "nothing said": ["freeze"],
    "all and one": ["freeze", "--all", "--merchant", "demo"],
    "nothing said of unfreeze": ["unfreeze"],
    "an environment that is none": ["freeze", "--environment", "test"],
    "a merchant that is none": ["freeze", "--merchant", "domo"],
    "a list of something": ["freeze", "--list", "--all"],
}


@pytest.mark.parametrize("words", MISTAKES.values(), ids=MISTAKES)
async def test_what_freezes_nobody_is_a_mistake(words: list[str], tmp_path: Path) -> None:
    async with post(tmp_path) as operated:
        assert (await operated.run_command(*words, code=2)).stdout == ""
        assert (await operated.run_json_command("freeze", "--list"))["frozen"] == []


# Operations that have begun, and reads that need a write.


async def test_what_has_begun_with_several_calls_is_finished(tmp_path: Path) -> None:
    async with post(tmp_path, seconds=5) as operated:
        operated.add_fault("POST", "/v1/recipients", answer_delay=1.5)
        making = asyncio.ensure_future(make_recipient(operated.gateway))
        await until(lambda: operated.service.created_counts["recipient"] == 1)
        await operated.run_command("freeze", "--all")
        await making
        assert operated.service.created_counts["account"] == 1


async def test_a_draft_is_not_made_real_for_a_read_while_it_is_frozen(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as operated:
        batch = await drafted(operated)
        await operated.run_command("freeze", "--all")
        calls = operated.count_calls("POST", "*")
        refused = await operated.gateway.request("GET", f"/v1/batches/{batch}/summary")
        assert (refused.status, refused.body["errors"][0]["code"]) == FROZEN
        assert operated.count_calls("POST", "*") == calls
        assert (await done(operated.gateway, "GET", f"/batches/{batch}"))["batch"][
            "amount"
        ] == "6.00"
        await operated.run_command("unfreeze", "--all")
        shown = await done(operated.gateway, "GET", f"/batches/{batch}/summary")
        assert shown["batchSummary"]["total"]["value"] == 6
        (current,) = list(operated.service.find_or_create_tenant().batches)[1:]
        async with operated.open_store() as store:
            facts = await Ledger(store).load_all(TENANT, "batch")
        assert [one["upstream"] for one in facts.values()] == [current]


async def test_a_draft_that_is_being_made_real_is_not_started_any_more(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as operated:
        batch = await drafted(operated)
        operated.add_fault("POST", "/v1/batches", answer_delay=1.5)
        starting = asyncio.ensure_future(begin(operated, batch))
        await until(lambda: len(operated.service.find_or_create_tenant().batches) == 2)
        await operated.run_command("freeze", "--all")
        assert await starting == FROZEN
        assert operated.service.batch_starts == []
        await operated.run_command("unfreeze", "--all")
        assert await begin(operated, batch) == (200, None)
        assert (
            operated.count_calls("POST", "/v1/batches"),
            len(operated.service.batch_starts),
        ) == (2, 1)


async def test_a_start_is_not_gone_on_with_for_who_asks_again_while_it_is_frozen(
    tmp_path: Path,
) -> None:
    async with post(tmp_path, inferred=False) as operated:
        batch = await drafted(operated)
        operated.add_fault("POST", "/v1/batches", **LOST)
        assert await begin(operated, batch) == (500, "internal_server_error")
        await operated.run_command("freeze", "--all")
        (left,) = (await operated.run_json_command("writes", "unsettled"))["writes"]
        made = list(operated.service.find_or_create_tenant().batches)[1]
        await operated.run_command("writes", "settle", left["write"], "--made", made, "--yes")
        assert await begin(operated, batch) == FROZEN
        assert operated.service.batch_starts == []
        await operated.run_command("unfreeze", "--all")
        assert await begin(operated, batch) == (200, None)
        assert (
            operated.count_calls("POST", "/v1/batches"),
            len(operated.service.batch_starts),
        ) == (2, 1)


async def test_a_freeze_is_not_what_an_idempotency_key_gives_again(tmp_path: Path) -> None:
    async with post(tmp_path) as operated:
        key = {"headers": {"Idempotency-Key": "payday-1"}}
        await operated.run_command("freeze", "--all")
        assert await create(operated, **key) == FROZEN
        await operated.run_command("unfreeze", "--all")
        assert await create(operated, **key) == (200, None)
        assert operated.service.created_counts["recipient"] == 1


# The installed commands.


async def test_a_running_gateway_is_frozen_by_a_command_beside_it(tmp_path: Path) -> None:
    simulator = await start(service=Service(seed=1))
    try:
        (tmp_path / "gateway.toml").write_text(configuration(simulator.url))
        await import_lines(settings_for(tmp_path, simulator.url), [KEY])
        headers = {"X-API-Key": KEY["api_key"]}
        async with serving(tmp_path) as gateway, aiohttp.ClientSession(headers=headers) as session:

            async def asked(method: str, body: Any = None) -> int:
                url = f"{gateway.url}/v1/recipients"
                async with session.request(method, url, json=body) as answer:
                    return answer.status

            async def told(*words: str) -> Any:
                ended = await asyncio.to_thread(command, *words, "--json", folder=tmp_path)
                assert (ended.returncode, ended.stderr) == (0, "")
                return json.loads(ended.stdout)

            frozen = await told("freeze", "--merchant", "demo", "--environment", ENVIRONMENT)
            assert frozen["frozen"][0]["merchant"] == "demo"
            assert await asked("POST", ADA) == 500
            assert await asked("GET") == 200
            await told("unfreeze", "--merchant", "demo", "--environment", ENVIRONMENT)
            assert await asked("POST", ADA) == 200
            lines = [
                line for line in gateway.parse_log() if line.get("http.response.status_code") == 500
            ]
            assert "stopped" in lines[0]["reason"]
            assert await gateway.stop() == 0
    finally:
        await simulator.stop()
