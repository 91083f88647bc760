"""`payout-gateway ids import`: pairs of ids, imported all or none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.ids import ids
from gateway.storage import Tenant, open_store
from gateway.storage.id_rows import load_current_ids_by_legacy_id
from tests.payouts import (
    create_batch,
    create_recipient,
    open_gateway_and_service,
    request_successfully,
)
from tests.running_gateway import KEY, build_settings, import_api_keys
from tests.simulator import Service, ServiceOptions

FIRST_CURRENT_ID, SECOND_CURRENT_ID = "B-912Cx2pScHNSnXXO5P4ngG", "B-912Cx2pScHNSnXXO5P4ngH"
TENANT_OPTIONS = ("--merchant", "demo", "--environment", "sandbox")
CommandRunner = Callable[..., Result]


@pytest.fixture
async def run_import(tmp_path: Path) -> CommandRunner:
    await import_api_keys(build_settings(tmp_path, "http://127.0.0.1:1"), [KEY])
    return build_command_runner(tmp_path)


def build_command_runner(folder: Path) -> CommandRunner:
    (folder / "gateway.toml").write_text(
        "[state]\n"
        f'url = "sqlite:///{folder}/gateway.db"\n'
        f'encryption_key_file = "{folder}/gateway.key"\n'
    )

    def run_import(
        text: str | bytes, tenant_options: tuple[str, ...] = TENANT_OPTIONS, code: int = 0
    ) -> Result:
        arguments = ["import", "-", *tenant_options, "--config", str(folder / "gateway.toml")]
        data = text if isinstance(text, bytes) else text.encode()
        result = CliRunner().invoke(ids, arguments, input=data)
        assert result.exit_code == code, result.output
        return result

    return run_import


async def load_imported_ids(folder: Path, *legacy_ids: str) -> dict[str, str]:
    state = build_settings(folder, "http://127.0.0.1:1").state
    async with open_store(state) as store:
        return await load_current_ids_by_legacy_id(store, Tenant("demo", "sandbox"), legacy_ids)


@pytest.mark.parametrize(
    "header", ["", "legacy_id,current_id\n", "\ufefflegacy_id, current_id\r\n"]
)
def test_id_pairs_are_imported_with_or_without_header(
    run_import: CommandRunner, header: str
) -> None:
    result = run_import(f"{header}B-OLD1,{FIRST_CURRENT_ID}\r\n\nR-a,R-b\nP-a,P-b\n")
    assert result.stdout == "Imported 3 pairs of ids: demo sandbox\n"
    assert run_import(f"B-OLD1,{FIRST_CURRENT_ID}\n").exit_code == 0, (
        "importing the same file again changes nothing"
    )


INVALID_FILES = {
    "another object": (
        f"B-1,{FIRST_CURRENT_ID}\nB-1,{SECOND_CURRENT_ID}\n",
        "line 2: B-1 stands for another id in line 1",
    ),
    "another name": (
        f"B-1,{FIRST_CURRENT_ID}\n\nB-2,{FIRST_CURRENT_ID}\n",
        f"line 3: {FIRST_CURRENT_ID} has another legacy id in line 1",
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


@pytest.mark.parametrize(("text", "reason"), INVALID_FILES.values(), ids=INVALID_FILES)
def test_invalid_line_is_reported_by_number(
    run_import: CommandRunner, text: str | bytes, reason: str
) -> None:
    result = run_import(text, code=2)
    assert reason in result.stderr
    assert "nothing was imported" in result.stderr
    assert result.stdout == ""


async def test_file_with_collision_imports_nothing(
    tmp_path: Path, run_import: CommandRunner
) -> None:
    await asyncio.to_thread(run_import, f"B-1,{FIRST_CURRENT_ID}\n")
    result = await asyncio.to_thread(run_import, f"B-0,B-9\nB-1,{SECOND_CURRENT_ID}\n", code=2)
    assert "line 2: B-1 stands for another object already" in result.stderr
    assert await load_imported_ids(tmp_path, "B-0", "B-1") == {"B-1": FIRST_CURRENT_ID}


async def test_object_has_only_one_imported_legacy_id(
    tmp_path: Path, run_import: CommandRunner
) -> None:
    await asyncio.to_thread(run_import, f"B-1,{FIRST_CURRENT_ID}\n")
    result = await asyncio.to_thread(run_import, f"B-0,B-9\nB-2,{FIRST_CURRENT_ID}\n", code=2)
    assert "line 2: B-2 is of the object imported as B-1 already" in result.stderr
    assert await load_imported_ids(tmp_path, "B-0", "B-1", "B-2") == {"B-1": FIRST_CURRENT_ID}


@pytest.mark.parametrize(
    "lines",
    [
        f"{FIRST_CURRENT_ID},{SECOND_CURRENT_ID}\n",
        f"{FIRST_CURRENT_ID},{SECOND_CURRENT_ID}\nB-2,B-3\n",
    ],
)
async def test_service_id_of_a_known_object_cannot_stand_for_another(
    tmp_path: Path, run_import: CommandRunner, lines: str
) -> None:
    await asyncio.to_thread(run_import, f"B-1,{FIRST_CURRENT_ID}\n")
    result = await asyncio.to_thread(run_import, lines, code=2)
    assert f"line 1: {FIRST_CURRENT_ID} stands for another object already" in result.stderr
    assert await load_imported_ids(tmp_path, FIRST_CURRENT_ID, "B-2") == {}


async def test_tenant_is_required_if_there_are_several(
    tmp_path: Path, run_import: CommandRunner
) -> None:
    def import_one_id(*options: str, code: int = 0) -> Result:
        return run_import(f"B-1,{FIRST_CURRENT_ID}\n", options, code)

    assert await asyncio.to_thread(lambda: import_one_id().stdout) == (
        "Imported 1 pair of ids: demo sandbox\n"
    )
    other_key = {**KEY, "merchant": "other", "api_key": "another-api-key", "access_key": "AKOTHER"}
    await import_api_keys(build_settings(tmp_path, "http://127.0.0.1:1"), [other_key])
    error_output = await asyncio.to_thread(lambda: import_one_id(code=2).stderr)
    assert "--merchant and --environment: demo sandbox, other sandbox" in error_output
    error_output = await asyncio.to_thread(
        lambda: import_one_id("--environment", "sandbox", code=2).stderr
    )
    assert "--merchant and --environment: demo sandbox, other sandbox" in error_output
    assert await asyncio.to_thread(lambda: import_one_id("--merchant", "demo").stdout) == (
        "Imported 1 pair of ids: demo sandbox\n"
    )
    tenant_options = ("--merchant", "demoo", "--environment", "sandbox")
    error_output = await asyncio.to_thread(lambda: import_one_id(*tenant_options, code=2).stderr)
    assert "there is no key of demoo sandbox" in error_output


async def test_running_gateway_accepts_and_returns_imported_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.storage.alias_ids._CACHE_SECONDS", 0.001)
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (current_id,) = service.find_or_create_tenant().batches
        await asyncio.to_thread(
            build_command_runner(tmp_path), f"B-OLD1,{current_id}\nR-OLD1,{recipient}\n"
        )
        for id_ in ("B-OLD1", batch, current_id):
            batch_details = (await request_successfully(gateway, "GET", f"/batches/{id_}"))["batch"]
            (payment,) = batch_details["payments"]["payments"]
            assert (batch_details["id"], payment["batch"]["id"]) == (id_, id_)
        body = {
            "sourceCurrency": "USD",
            "payments": [{"recipient": {"id": "R-OLD1"}, "sourceAmount": "1.00"}],
        }
        await request_successfully(gateway, "POST", "/batches", body)
        rows = (await request_successfully(gateway, "GET", "/batches"))["batches"]
        assert batch in [row["id"] for row in rows], "as the client got it of its create"


async def test_short_id_of_a_created_object_is_not_imported_for_another(tmp_path: Path) -> None:
    """A start of the one would start the other."""
    service = Service(options=ServiceOptions(batch_id_length=16), seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _):
        recipient = await create_recipient(gateway)
        created, other = [await create_batch(gateway, recipient, amount) for amount in ("1", "2")]
        run_import = build_command_runner(tmp_path)
        result = await asyncio.to_thread(run_import, f"B-1,{other}\n{created},B-9\n", code=2)
        assert f"line 2: {created} stands for another object already" in result.stderr
        await asyncio.to_thread(run_import, f"B-1,{other}\n{created},{created}\n")
