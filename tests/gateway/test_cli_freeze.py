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
from tests.house import ENVIRONMENT, KEY, import_lines, settings_for
from tests.operating import LOST, Post, post
from tests.payday import done, make_batch, make_recipient, payment_ids
from tests.processes import command, configuration, serving
from tests.sockets import until
from tests.state import TENANT

ADA = {"type": "individual", "firstName": "Ada", "lastName": "Byron", "email": "byron@example.com"}
FROZEN = (500, "internal_server_error")


async def create(here: Post, **more: Any) -> tuple[int, str | None]:
    got = await here.house.ask("POST", "/v1/recipients", ADA, **more)
    return got.status, None if got.status == 200 else got.body["errors"][0]["code"]


async def drafted(here: Post) -> str:
    """Create a draft: an edited batch at a service that has no edits."""
    batch = await make_batch(here.house, await make_recipient(here.house), "5.00")
    (payment,) = await payment_ids(here.house, batch)
    change = {"sourceAmount": "6.00"}
    await done(here.house, "PATCH", f"/batches/{batch}/payments/{payment}", change)
    return batch


async def begin(here: Post, batch: str) -> tuple[int, str | None]:
    got = await here.house.ask("POST", f"/v1/batches/{batch}/start-processing")
    return got.status, None if got.status == 200 else got.body["errors"][0]["code"]


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
    async with post(tmp_path) as here:
        assert await create(here) == (200, None)
        calls = here.sent("POST", "*")
        told = await here.told("freeze", *scope)
        assert (told["changed"], len(told["frozen"])) == (True, 1)
        assert await create(here) == FROZEN
        assert here.sent("POST", "*") == calls
        listed = await here.house.ask("GET", "/v1/recipients")
        assert (listed.status, listed.body["meta"]["records"]) == (200, 1)
        told = await here.told("unfreeze", *scope)
        assert (told["changed"], told["frozen"]) == (True, [])
        assert await create(here) == (200, None)


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
    async with post(tmp_path) as here:
        await here.house.import_key(merchant="other", api_key="another-api-key", access_key="AK2")
        await here.told("freeze", *scope)
        assert await create(here) == (200, None)


async def test_a_client_is_told_in_the_legacy_shape_that_nothing_was_changed(
    tmp_path: Path,
) -> None:
    async with post(tmp_path) as here:
        await here.says("freeze", "--all")
        got = await here.house.ask("POST", "/v1/recipients", ADA)
        assert got.text.startswith('{"ok":false,"errors":[{"code":"internal_server_error"')
        assert "nothing was done" in got.body["errors"][0]["message"]


async def test_doing_it_twice_changes_nothing_and_keeps_since_when(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        first = await here.told("freeze", "--all")
        again = await here.told("freeze", "--all")
        assert (first["changed"], again["changed"]) == (True, False)
        assert first["frozen"] == again["frozen"]
        assert "already frozen" in (await here.says("freeze", "--all")).stdout
        assert (await here.told("unfreeze", "--all"))["changed"] is True
        assert (await here.told("unfreeze", "--all"))["changed"] is False


async def test_a_freeze_ends_with_the_words_that_it_began_with(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        await here.told("freeze", "--merchant", "demo")
        await here.told("freeze", "--all")
        left = (await here.told("unfreeze", "--all"))["frozen"]
        assert [(one["merchant"], one["environment"]) for one in left] == [("demo", None)]
        assert await create(here) == FROZEN
        await here.told("unfreeze", "--merchant", "demo")
        assert await create(here) == (200, None)


async def test_who_froze_what_and_when_is_kept(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        recipient = await make_recipient(here.house)
        await here.says("freeze", "--all")
        await here.says("unfreeze", "--all")
        told = await here.told("freeze", "--list")
        assert [(act["what"], act["by"]) for act in told["acts"]] == [
            ("froze", operator()),
            ("unfroze", operator()),
        ]
        assert [act["what"] for act in (await here.told("trace", recipient))["acts"]] == [
            "froze",
            "unfroze",
        ]
        said = (await here.says("freeze", "--list")).stdout
        assert "Nothing is frozen." in said
        assert operator() in said


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
    async with post(tmp_path) as here:
        assert (await here.says(*words, code=2)).stdout == ""
        assert (await here.told("freeze", "--list"))["frozen"] == []


# Operations that have begun, and reads that need a write.


async def test_what_has_begun_with_several_calls_is_finished(tmp_path: Path) -> None:
    async with post(tmp_path, seconds=5) as here:
        here.breaks("POST", "/v1/recipients", answer_delay=1.5)
        making = asyncio.ensure_future(make_recipient(here.house))
        await until(lambda: here.service.created["recipient"] == 1)
        await here.says("freeze", "--all")
        await making
        assert here.service.created["account"] == 1


async def test_a_draft_is_not_made_real_for_a_read_while_it_is_frozen(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        batch = await drafted(here)
        await here.says("freeze", "--all")
        calls = here.sent("POST", "*")
        refused = await here.house.ask("GET", f"/v1/batches/{batch}/summary")
        assert (refused.status, refused.body["errors"][0]["code"]) == FROZEN
        assert here.sent("POST", "*") == calls
        assert (await done(here.house, "GET", f"/batches/{batch}"))["batch"]["amount"] == "6.00"
        await here.says("unfreeze", "--all")
        shown = await done(here.house, "GET", f"/batches/{batch}/summary")
        assert shown["batchSummary"]["total"]["value"] == 6
        (current,) = list(here.service.world().batches)[1:]
        async with here.store() as store:
            facts = await Ledger(store).recall_all(TENANT, "batch")
        assert [one["upstream"] for one in facts.values()] == [current]


async def test_a_draft_that_is_being_made_real_is_not_started_any_more(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        batch = await drafted(here)
        here.breaks("POST", "/v1/batches", answer_delay=1.5)
        starting = asyncio.ensure_future(begin(here, batch))
        await until(lambda: len(here.service.world().batches) == 2)
        await here.says("freeze", "--all")
        assert await starting == FROZEN
        assert here.service.starts == []
        await here.says("unfreeze", "--all")
        assert await begin(here, batch) == (200, None)
        assert (here.sent("POST", "/v1/batches"), len(here.service.starts)) == (2, 1)


async def test_a_start_is_not_gone_on_with_for_who_asks_again_while_it_is_frozen(
    tmp_path: Path,
) -> None:
    async with post(tmp_path, inferred=False) as here:
        batch = await drafted(here)
        here.breaks("POST", "/v1/batches", **LOST)
        assert await begin(here, batch) == (500, "internal_server_error")
        await here.says("freeze", "--all")
        (left,) = (await here.told("writes", "unsettled"))["writes"]
        made = list(here.service.world().batches)[1]
        await here.says("writes", "settle", left["write"], "--made", made, "--yes")
        assert await begin(here, batch) == FROZEN
        assert here.service.starts == []
        await here.says("unfreeze", "--all")
        assert await begin(here, batch) == (200, None)
        assert (here.sent("POST", "/v1/batches"), len(here.service.starts)) == (2, 1)


async def test_a_freeze_is_not_what_an_idempotency_key_gives_again(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        key = {"headers": {"Idempotency-Key": "payday-1"}}
        await here.says("freeze", "--all")
        assert await create(here, **key) == FROZEN
        await here.says("unfreeze", "--all")
        assert await create(here, **key) == (200, None)
        assert here.service.created["recipient"] == 1


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
                line for line in gateway.lines() if line.get("http.response.status_code") == 500
            ]
            assert "stopped" in lines[0]["reason"]
            assert await gateway.ends() == 0
    finally:
        await simulator.stop()
