"""Planned interruptions: which requests they refuse, and how they are listed and switched off."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from gateway.simulator import Service, start
from tests.house import KEY, Got, House, import_lines, settings_for
from tests.payday import open_town
from tests.processes import command, configuration, serving
from tests.sockets import Heard, heard, until

SOON = "2999-01-01T00:00Z"


def brownout(folder: Path, *words: str) -> str:
    done = command("brownout", *words, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def configure(house: House, folder: Path) -> None:
    (folder / "gateway.toml").write_text(
        f'[state]\nurl = "{house.settings.state.url}"\n'
        f'encryption_key_file = "{house.settings.state.encryption_key_file}"\n'
    )


def is_interrupted(got: Got) -> bool:
    told = got.body.get("errors", [{}])[0]
    return got.status == 403 and "planned interruption" in told.get("message", "")


async def eventually(house: House, path: str, *, interrupted: bool) -> Got:
    """Returns the first answer that is or is not interrupted, as requested."""
    for _ in range(400):
        got = await house.ask("GET", path)
        if is_interrupted(got) is interrupted:
            return got
        await asyncio.sleep(0.05)
    raise AssertionError("it did not change in time")


async def test_a_window_refuses_what_it_is_about_and_nothing_else(tmp_path: Path) -> None:
    async with open_town(tmp_path, Service()) as (house, simulator):
        configure(house, tmp_path)
        (
            await asyncio.to_thread(
                brownout, tmp_path, "schedule", "--until", SOON, "--operation", "batches"
            )
        )
        got = await eventually(house, "/v1/batches", interrupted=True)
        assert got.body["errors"][0]["code"] == "not_authorized"
        assert int(got.headers["Retry-After"]) > 1_000_000
        assert "2999-01-01T00:00:00Z" in got.body["errors"][0]["message"]
        # It does not state the outcome of an earlier request that this one may retry.
        assert "This request changed nothing." in got.body["errors"][0]["message"]
        before = len(simulator.service.requests)
        assert is_interrupted(await house.ask("POST", "/v1/batches", {"sourceCurrency": "USD"}))
        assert len(simulator.service.requests) == before
        assert (await house.ask("GET", "/v1/recipients")).status == 200
        assert (await house.ask("GET", "/v1/geography/countries/DE")).status == 200


async def test_it_is_switched_off_without_a_restart(tmp_path: Path) -> None:
    async with open_town(tmp_path, Service()) as (house, _simulator):
        configure(house, tmp_path)
        (await asyncio.to_thread(brownout, tmp_path, "schedule", "--until", SOON))
        await eventually(house, "/v1/recipients", interrupted=True)
        assert "1 switched off" in (await asyncio.to_thread(brownout, tmp_path, "off"))
        await eventually(house, "/v1/recipients", interrupted=False)


async def test_a_dry_run_refuses_nobody_and_tells_whom_it_would_have_hit(tmp_path: Path) -> None:
    simulator = await start(service=Service())
    (tmp_path / "gateway.toml").write_text(configuration(simulator.url))
    other = {**KEY, "api_key": "another-api-key", "name": "other"}
    await import_lines(settings_for(tmp_path, simulator.url), [{**KEY, "name": "shop"}, other])
    try:
        async with serving(tmp_path) as gateway:
            assert (await ask(gateway.port)).status == 200
            await until(lambda: "shop" in command("report", "usage", folder=tmp_path).stdout)
            said = await asyncio.to_thread(
                brownout, tmp_path, "schedule", "--dry-run", "--until", SOON, "--key", "shop"
            )
            assert "list_recipients" in said
            assert "other" not in said
            await until(lambda: "under way" in brownout(tmp_path, "list"))
            await asyncio.sleep(1)
            for key in (KEY["api_key"], other["api_key"]):
                assert (await ask(gateway.port, key)).status == 200
            assert await gateway.ends() == 0
    finally:
        await simulator.stop()
    (told,) = json.loads(await asyncio.to_thread(brownout, tmp_path, "list", "--json"))["brownouts"]
    assert [(hit["key"], hit["operation"], hit["requests"]) for hit in told["hits"]] == [
        ("shop", "list_recipients", 1)
    ]


async def test_it_is_for_as_many_keys_as_are_named_and_for_none_that_nobody_has(
    tmp_path: Path,
) -> None:
    (tmp_path / "gateway.toml").write_text(configuration("http://127.0.0.1:9"))
    names = ("shop", "till", "desk")
    lines = [{**KEY, "api_key": f"{name}-api-key", "name": name} for name in names]
    await import_lines(settings_for(tmp_path, "http://127.0.0.1:9"), lines)
    schedule = ["brownout", "schedule", "--until", SOON]
    for words in (["--key", "shop", "--key", "nobody"], ["--merchant", "nobody"]):
        done = await asyncio.to_thread(command, *schedule, *words, folder=tmp_path)
        assert done.returncode == 2
        assert "`keys list`" in done.stderr
    those = ["--key", "shop", "--key", "till-api"]
    assert (await asyncio.to_thread(command, *schedule, *those, folder=tmp_path)).returncode == 0
    listed = await asyncio.to_thread(brownout, tmp_path, "list", "--json")
    told = json.loads(listed)["brownouts"]
    assert sorted(one["key"] for one in told) == ["shop", "till"]


async def ask(port: int, key: str = KEY["api_key"]) -> Heard:
    got = await heard(
        port, f"GET /v1/recipients HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n\r\n".encode()
    )
    assert got is not None
    return got


def test_what_cannot_be_meant_is_one_line(tmp_path: Path) -> None:
    for words, told in (
        (["--until", "2000-01-01T00:00Z"], "end before it starts"),
        (["--until", "2999-01-01"], "zone"),
        (["--until", SOON, "--operation", "payday"], "not an operation, nor a group"),
    ):
        done = command("brownout", "schedule", *words, folder=tmp_path)
        assert done.returncode == 2
        assert told in done.stderr
        assert done.stderr.count("\n") == 1
