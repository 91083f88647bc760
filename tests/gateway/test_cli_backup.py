"""`payout-gateway backup` and `restore`, as an operator runs them beside `serve`."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import aiohttp

from gateway.simulator import Service, start_simulator
from gateway.storage.heartbeats import WATCH_SECONDS
from tests import processes
from tests.processes import build_configuration, run_installed_command, run_serve
from tests.running_gateway import KEY, build_settings, import_api_keys

RECIPIENT_BODY = {
    "type": "individual",
    "firstName": "Ada",
    "lastName": "Byron",
    "email": "byron@example.com",
}


async def run_command(folder: Path, *words: str) -> tuple[int, str, str]:
    ended = await asyncio.to_thread(run_installed_command, *words, folder=folder)
    return ended.returncode, ended.stdout, ended.stderr


async def send_request(url: str, body: Any = None) -> tuple[int, Any]:
    headers = {"X-API-Key": KEY["api_key"]}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.request("POST" if body else "GET", url, json=body) as answer:
            return answer.status, await answer.json()


async def test_state_is_restored_in_another_folder_and_serves(tmp_path: Path) -> None:
    simulator = await start_simulator(service=Service(seed=1))
    here, there = tmp_path / "here", tmp_path / "there"
    try:
        for folder in (here, there):
            folder.mkdir()
            (folder / "gateway.toml").write_text(build_configuration(simulator.url))
        await import_api_keys(build_settings(here, simulator.url), [KEY])
        saved = tmp_path / "saved"
        async with run_serve(here) as gateway:
            assert (await send_request(f"{gateway.url}/v1/recipients", RECIPIENT_BODY))[0] == 200
            code, said, wrong = await run_command(here, "backup", str(saved), "--json")
            assert (code, wrong) == (0, "")
            report = json.loads(said)
            assert (report["file"], report["state"], report["requests"]) == (
                str(saved),
                "sqlite",
                1,
            )
            assert stat.S_IMODE(saved.stat().st_mode) == 0o600
            again = await run_command(here, "backup", str(saved))
            assert again[0] == 2
            assert "already exists; nothing was written" in again[2]
            nowhere = await run_command(here, "backup", str(tmp_path / "nowhere" / "saved"))
            assert f"{tmp_path}/nowhere/saved cannot be written" in nowhere[2]
            running = await run_command(here, "restore", str(saved), "--force")
            assert running[0] == 2
            assert (
                "a gateway is using the database: nothing was restored; stop it first\n"
                in running[2]
            )
            unforced = await run_command(here, "restore", str(saved))
            assert unforced[0] == 2
            assert "a gateway is using the database" in unforced[2]
            assert "; stop it first; --force then replaces the database" in unforced[2]
            (here / "gateway.key").rename(here / "mislaid.key")
            assert (
                "a gateway is using the database"
                in (await run_command(here, "restore", str(saved)))[2]
            )
            (here / "mislaid.key").rename(here / "gateway.key")
            assert await gateway.stop() == 0
        taken = await run_command(here, "restore", str(saved))
        assert (taken[0], "gateway.db exists already" in taken[2]) == (2, True)
        code, said, wrong = await run_command(there, "restore", str(saved))
        assert (code, wrong) == (0, "")
        assert "No batch is started until you run `payout-gateway reconcile`." in said
        async with run_serve(there) as gateway:
            listed = await send_request(f"{gateway.url}/v1/recipients")
            assert listed[1]["recipients"][0]["firstName"] == "Ada"
            (line,) = [
                log_line
                for log_line in gateway.parse_log()
                if log_line["event"] == "database_restored"
            ]
            assert line["level"] == "error"
            code, said, _wrong = await run_command(there, "reconcile", "--json")
            assert (code, json.loads(said)["cleared"]) == (0, True)
            assert await gateway.stop() == 0
    finally:
        await simulator.stop()


def test_process_lock_is_tried_for_longer_than_watch_interval() -> None:
    assert processes.SECONDS > WATCH_SECONDS


def test_missing_state_cannot_be_backed_up(tmp_path: Path) -> None:
    ended = run_installed_command("backup", "saved", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "there is no database" in ended.stderr
    assert list(tmp_path.iterdir()) == []
