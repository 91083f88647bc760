"""`payout-gateway backup` and `restore`, as an operator runs them beside `serve`."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import aiohttp

from tests.payouts import RECIPIENT_BODY
from tests.processes import build_configuration, run_installed_command, run_serve
from tests.running_gateway import KEY, build_settings, import_api_keys
from tests.simulator import Service, start_simulator


async def run_command(folder: Path, *arguments: str) -> tuple[int, str, str]:
    result = await asyncio.to_thread(run_installed_command, *arguments, folder=folder)
    return result.returncode, result.stdout, result.stderr


async def send_request(url: str, body: Any = None) -> tuple[int, Any]:
    headers = {"X-API-Key": KEY["api_key"]}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.request("POST" if body else "GET", url, json=body) as answer:
            return answer.status, await answer.json()


async def test_state_is_restored_in_another_folder_and_serves(tmp_path: Path) -> None:
    simulator = await start_simulator(service=Service(seed=1))
    source_folder, target_folder = tmp_path / "here", tmp_path / "there"
    try:
        for folder in (source_folder, target_folder):
            folder.mkdir()
            (folder / "gateway.toml").write_text(build_configuration(simulator.url))
        await import_api_keys(build_settings(source_folder, simulator.url), [KEY])
        backup_file = tmp_path / "saved"
        async with run_serve(source_folder) as gateway:
            assert (await send_request(f"{gateway.url}/v1/recipients", RECIPIENT_BODY))[0] == 200
            code, output, error_output = await run_command(
                source_folder, "backup", str(backup_file)
            )
            assert (code, error_output) == (0, "")
            assert f"to {backup_file} ({backup_file.stat().st_size} bytes)" in output
            assert stat.S_IMODE(backup_file.stat().st_mode) == 0o600
            second_backup = await run_command(source_folder, "backup", str(backup_file))
            assert second_backup[0] == 2
            assert "already exists; nothing was written" in second_backup[2]
            unwritable_backup = await run_command(
                source_folder, "backup", str(tmp_path / "nowhere" / "saved")
            )
            assert f"{tmp_path}/nowhere/saved cannot be written" in unwritable_backup[2]
            restore_under_gateway = await run_command(
                source_folder, "restore", str(backup_file), "--force"
            )
            assert restore_under_gateway[0] == 2
            assert (
                "a gateway is using the database: nothing was restored; stop it first\n"
                in restore_under_gateway[2]
            )
            unforced_restore = await run_command(source_folder, "restore", str(backup_file))
            assert unforced_restore[0] == 2
            assert "a gateway is using the database" in unforced_restore[2]
            assert "; stop it first; --force then replaces the database" in unforced_restore[2]
            (source_folder / "gateway.key").rename(source_folder / "mislaid.key")
            assert (
                "a gateway is using the database"
                in (await run_command(source_folder, "restore", str(backup_file)))[2]
            )
            (source_folder / "mislaid.key").rename(source_folder / "gateway.key")
            assert await gateway.stop() == 0
        restore_over_state = await run_command(source_folder, "restore", str(backup_file))
        assert (restore_over_state[0], "gateway.db exists already" in restore_over_state[2]) == (
            2,
            True,
        )
        code, output, error_output = await run_command(target_folder, "restore", str(backup_file))
        assert (code, error_output) == (0, "")
        assert "No batch is started until you run `payout-gateway reconcile`." in output
        assert stat.S_IMODE((target_folder / "gateway.key").stat().st_mode) == 0o600
        unconfirmed = await run_command(source_folder, "restore")
        assert (unconfirmed[0], "add --yes" in unconfirmed[2]) == (2, True)
        assert "Marked the state" in (await run_command(source_folder, "restore", "--yes"))[1]
        async with run_serve(target_folder) as gateway:
            recipient_list = await send_request(f"{gateway.url}/v1/recipients")
            assert recipient_list[1]["recipients"][0]["firstName"] == "Ada"
            (line,) = [
                log_line
                for log_line in gateway.parse_log()
                if log_line["event"] == "database_restored"
            ]
            assert line["level"] == "error"
            code, output, _error_output = await run_command(target_folder, "reconcile", "--json")
            assert (code, json.loads(output)["cleared"]) == (0, True)
            assert await gateway.stop() == 0
    finally:
        await simulator.stop()


def test_cause_of_missing_database_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "gateway.db.lock").touch()
    moved = run_installed_command("keys", "list", folder=tmp_path)
    assert "a gateway has served one there: it was moved or deleted" in moved.stderr
    (tmp_path / "gateway.toml").write_text('[state]\nurl = "sqlite:///volume/gateway.db"\n')
    unmounted = run_installed_command("keys", "list", folder=tmp_path)
    assert f"there is no directory {tmp_path}/volume: " in unmounted.stderr


def test_missing_state_cannot_be_backed_up(tmp_path: Path) -> None:
    result = run_installed_command("backup", "saved", folder=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert "there is no database" in result.stderr
    assert list(tmp_path.iterdir()) == []
