"""`payout-gateway backup` and `restore`, as an operator runs them beside `serve`."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import aiohttp

from gateway.simulator import Service, start
from gateway.storage.heartbeats import WATCHED_SECONDS
from tests import processes
from tests.house import KEY, import_lines, settings_for
from tests.processes import command, configuration, serving

ADA = {"type": "individual", "firstName": "Ada", "lastName": "Byron", "email": "byron@example.com"}


async def run(folder: Path, *words: str) -> tuple[int, str, str]:
    ended = await asyncio.to_thread(command, *words, folder=folder)
    return ended.returncode, ended.stdout, ended.stderr


async def asked(url: str, body: Any = None) -> tuple[int, Any]:
    headers = {"X-API-Key": KEY["api_key"]}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.request("POST" if body else "GET", url, json=body) as answer:
            return answer.status, await answer.json()


async def test_a_gateway_s_state_goes_to_another_folder_and_on_from_there(tmp_path: Path) -> None:
    simulator = await start(service=Service(seed=1))
    here, there = tmp_path / "here", tmp_path / "there"
    try:
        for folder in (here, there):
            folder.mkdir()
            (folder / "gateway.toml").write_text(configuration(simulator.url))
        await import_lines(settings_for(here, simulator.url), [KEY])
        saved = tmp_path / "saved"
        async with serving(here) as gateway:
            assert (await asked(f"{gateway.url}/v1/recipients", ADA))[0] == 200
            code, said, wrong = await run(here, "backup", str(saved), "--json")
            assert (code, wrong) == (0, "")
            told = json.loads(said)
            assert (told["file"], told["state"], told["requests"]) == (str(saved), "sqlite", 1)
            assert stat.S_IMODE(saved.stat().st_mode) == 0o600
            again = await run(here, "backup", str(saved))
            assert again[0] == 2
            assert "already exists; nothing was written" in again[2]
            nowhere = await run(here, "backup", str(tmp_path / "nowhere" / "saved"))
            assert f"{tmp_path}/nowhere/saved cannot be written" in nowhere[2]
            running = await run(here, "restore", str(saved), "--force")
            assert running[0] == 2
            assert (
                "a gateway is using the database: nothing was restored; stop it first\n"
                in running[2]
            )
            unforced = await run(here, "restore", str(saved))
            assert unforced[0] == 2
            assert "a gateway is using the database" in unforced[2]
            assert "; stop it first; --force then replaces the database" in unforced[2]
            (here / "gateway.key").rename(here / "mislaid.key")
            assert "a gateway is using the database" in (await run(here, "restore", str(saved)))[2]
            (here / "mislaid.key").rename(here / "gateway.key")
            assert await gateway.ends() == 0
        taken = await run(here, "restore", str(saved))
        assert (taken[0], "gateway.db exists already" in taken[2]) == (2, True)
        code, said, wrong = await run(there, "restore", str(saved))
        assert (code, wrong) == (0, "")
        assert "No batch is started until you run `payout-gateway reconcile`." in said
        async with serving(there) as gateway:
            listed = await asked(f"{gateway.url}/v1/recipients")
            assert listed[1]["recipients"][0]["firstName"] == "Ada"
            (line,) = [one for one in gateway.lines() if one["event"] == "database_restored"]
            assert line["level"] == "error"
            code, said, _wrong = await run(there, "reconcile", "--json")
            assert (code, json.loads(said)["cleared"]) == (0, True)
            assert await gateway.ends() == 0
    finally:
        await simulator.stop()


def test_a_command_has_time_to_see_whether_a_gateway_runs() -> None:
    assert processes.SECONDS > WATCHED_SECONDS


def test_without_a_state_there_is_nothing_to_save(tmp_path: Path) -> None:
    ended = command("backup", "saved", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "there is no database" in ended.stderr
    assert list(tmp_path.iterdir()) == []
