"""`payout-gateway ids import`: pairs of ids, imported all or none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.ids import ids
from gateway.simulator import Service
from gateway.storage import Tenant, open_store
from gateway.storage.id_rows import current_ids
from tests.house import KEY, import_lines, settings_for
from tests.payday import done, make_batch, make_recipient, open_town

LONG, SECOND = "B-912Cx2pScHNSnXXO5P4ngG", "B-912Cx2pScHNSnXXO5P4ngH"
WHOSE = ("--merchant", "demo", "--environment", "sandbox")
Run = Callable[..., Result]


@pytest.fixture
async def run(tmp_path: Path) -> Run:
    await import_lines(settings_for(tmp_path, "http://127.0.0.1:1"), [KEY])
    return commands(tmp_path)


def commands(folder: Path) -> Run:
    (folder / "gateway.toml").write_text(
        "[state]\n"
        f'url = "sqlite:///{folder}/gateway.db"\n'
        f'encryption_key_file = "{folder}/gateway.key"\n'
    )

    def run(text: str | bytes, whose: tuple[str, ...] = WHOSE, code: int = 0) -> Result:
        said = ["import", "-", *whose, "--config", str(folder / "gateway.toml")]
        data = text if isinstance(text, bytes) else text.encode()
        done = CliRunner().invoke(ids, said, input=data)
        assert done.exit_code == code, done.output
        return done

    return run


async def known(folder: Path, *legacy_ids: str) -> dict[str, str]:
    state = settings_for(folder, "http://127.0.0.1:1").state
    async with open_store(state) as store:
        return await current_ids(store, Tenant("demo", "sandbox"), legacy_ids)


@pytest.mark.parametrize("head", ["", "legacy_id,current_id\n", "\ufefflegacy_id, current_id\r\n"])
def test_pairs_are_imported_with_a_header_or_without(run: Run, head: str) -> None:
    done = run(f"{head}B-OLD1,{LONG}\r\n\nR-a,R-b\nP-a,P-b\n")
    assert done.stdout == "Imported 3 pairs of ids: demo sandbox\n"
    assert run(f"B-OLD1,{LONG}\n").exit_code == 0, "importing the same file again changes nothing"


WRONG = {
    "another object": (
        f"B-1,{LONG}\nB-1,{SECOND}\n",
        "line 2: B-1 stands for another id in line 1",
    ),
    "another name": (
        f"B-1,{LONG}\n\nB-2,{LONG}\n",
        f"line 3: {LONG} has another legacy id in line 1",
    ),
    "no id": ("legacy_id,current_id\nB-1,../x\n", "line 2: current_id is not an id"),
    "an account": ("A-1,A-2\n", "line 1: legacy_id is not an id"),
    "another kind": ("R-1,B-1\n", "line 1: R-1 and B-1 are ids of different objects"),
    "one cell": ("B-1\n", "line 1: must be legacy_id,current_id"),
    "three cells": ("B-1,B-2,B-3\n", "line 1: must be legacy_id,current_id"),
    "a header below": ("B-1,B-2\nlegacy_id,current_id\n", "line 2: legacy_id is not an id"),
    "nothing": ("legacy_id,current_id\n", "the file contains no pair"),
    "no text": (b"B-1,B-2\n\xff,B-3\n", "line 2: is not UTF-8"),
}


@pytest.mark.parametrize(("text", "why"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told_by_line(run: Run, text: str | bytes, why: str) -> None:
    done = run(text, code=2)
    assert why in done.stderr
    assert "nothing was imported" in done.stderr
    assert done.stdout == ""


async def test_nothing_of_a_file_with_a_collision_is_imported(tmp_path: Path, run: Run) -> None:
    await asyncio.to_thread(run, f"B-1,{LONG}\n")
    told = await asyncio.to_thread(run, f"B-0,B-9\nB-1,{SECOND}\n", code=2)
    assert "line 2: B-1 stands for another object already" in told.stderr
    assert await known(tmp_path, "B-0", "B-1") == {"B-1": LONG}


async def test_an_object_is_imported_by_one_legacy_id_alone(tmp_path: Path, run: Run) -> None:
    await asyncio.to_thread(run, f"B-1,{LONG}\n")
    told = await asyncio.to_thread(run, f"B-0,B-9\nB-2,{LONG}\n", code=2)
    assert "line 2: B-2 is of what was imported as B-1 already" in told.stderr
    assert await known(tmp_path, "B-0", "B-1", "B-2") == {"B-1": LONG}


async def test_whose_they_are_is_said_where_there_are_several(tmp_path: Path, run: Run) -> None:
    def imported(*words: str, code: int = 0) -> Result:
        return run(f"B-1,{LONG}\n", words, code)

    assert await asyncio.to_thread(lambda: imported().stdout) == (
        "Imported 1 pair of ids: demo sandbox\n"
    )
    other = {**KEY, "merchant": "other", "api_key": "another-api-key", "access_key": "AKOTHER"}
    await import_lines(settings_for(tmp_path, "http://127.0.0.1:1"), [other])
    told = await asyncio.to_thread(lambda: imported(code=2).stderr)
    assert "--merchant and --environment: demo sandbox, other sandbox" in told
    told = await asyncio.to_thread(lambda: imported("--environment", "sandbox", code=2).stderr)
    assert "--merchant and --environment: demo sandbox, other sandbox" in told
    assert await asyncio.to_thread(lambda: imported("--merchant", "demo").stdout) == (
        "Imported 1 pair of ids: demo sandbox\n"
    )
    words = ("--merchant", "demoo", "--environment", "sandbox")
    told = await asyncio.to_thread(lambda: imported(*words, code=2).stderr)
    assert "there is no key of demoo sandbox" in told


async def test_a_running_gateway_takes_an_imported_id_and_answers_with_it(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00")
        (current,) = service.world().batches
        await asyncio.to_thread(commands(tmp_path), f"B-OLD1,{current}\nR-OLD1,{recipient}\n")
        for id_ in ("B-OLD1", batch, current):
            shown = (await done(house, "GET", f"/batches/{id_}"))["batch"]
            (payment,) = shown["payments"]["payments"]
            assert (shown["id"], payment["batch"]["id"]) == (id_, id_)
        body = {
            "sourceCurrency": "USD",
            "payments": [{"recipient": {"id": "R-OLD1"}, "sourceAmount": "1.00"}],
        }
        await done(house, "POST", "/batches", body)
