"""`payout-gateway operations` and `batches abandoned`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from gateway.cli.batches import batches
from gateway.cli.operations import operations
from gateway.simulator import Service, ServiceOptions
from mappings import OPERATIONS, UNLISTED
from tests.payouts import (
    create_batch,
    create_recipient,
    load_payment_ids,
    open_gateway_and_service,
    request_successfully,
)

NAMES = {one.name for one in (*OPERATIONS, *UNLISTED)}
"""As the log, `report usage`, `brownout schedule` and `[recording]` call them."""


def write_configuration(folder: Path) -> list[str]:
    path = folder / "gateway.toml"
    path.write_text(
        '[environments.sandbox]\nbase_url = "http://127.0.0.1:1"\n[state]\n'
        f'url = "sqlite:///{folder}/gateway.db"\n'
        f'encryption_key_file = "{folder}/gateway.key"\n'
    )
    return ["--config", str(path)]


def test_every_operation_is_listed_with_calls_and_reasons() -> None:
    result = CliRunner().invoke(operations, ["--json"])
    report = json.loads(result.stdout)
    assert (len(report["operations"]), len(report["unlisted"])) == (29, len(UNLISTED))
    assert report["inferred"] == {}
    for one in [*report["operations"], *report["unlisted"]]:
        assert one["name"] in NAMES, one
        assert one["becomes"], one
        assert one["because"], one
        assert one["exactness"] in ("exact", "emulated", "inferred", "lossy")
        assert one["rests_on"] or one["exactness"] != "inferred", one


def test_text_output_matches_json_output() -> None:
    output = CliRunner().invoke(operations, []).stdout
    for operation in (*OPERATIONS, *UNLISTED):
        assert f"because: {operation.exactness_reason}" in output
    assert "PATCH /v1/batches/{id}  (update_batch, section 4.3, inferred)" in output
    assert "to refresh the cached list: the total, the recipients changed since" in output
    assert "    POST /batches/:id/start-processing  once\n" in output


def test_table_is_shown_without_a_state(tmp_path: Path) -> None:
    result = CliRunner().invoke(operations, ["--json", *write_configuration(tmp_path)])
    assert (result.exit_code, len(json.loads(result.stdout)["operations"])) == (0, 29)
    assert "Warning: " in result.stderr
    assert not (tmp_path / "gateway.db").exists()


async def test_probed_capabilities_of_each_service_are_shown(tmp_path: Path) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        await request_successfully(gateway, "DELETE", f"/batches/{batch}")
    words = write_configuration(tmp_path)
    result = await asyncio.to_thread(CliRunner().invoke, operations, ["--json", *words])
    found = json.loads(result.stdout)["inferred"]["sandbox"]
    by_name = {one["operation"]: one for one in found}
    assert by_name["DELETE /batches/{id}"]["found"] == "absent"
    assert by_name["DELETE /batches/{id}"]["at"].endswith("Z")
    assert by_name["PATCH /batches/{id}"] == {
        "operation": "PATCH /batches/{id}",
        "found": "not tried yet",
        "at": None,
    }
    text = await asyncio.to_thread(CliRunner().invoke, operations, words)
    assert "of the sandbox service" in text.stdout


# batches abandoned


async def list_superseded_batches(folder: Path, *words: str) -> Any:
    all_words = ["abandoned", *words, *write_configuration(folder)]
    result = await asyncio.to_thread(CliRunner().invoke, batches, all_words)
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)["batches"] if "--json" in words else result.stdout


async def test_superseded_batches_are_listed_with_both_ids_and_advice(tmp_path: Path) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        changed = await create_batch(gateway, recipient, "5.00")
        (payment,) = await load_payment_ids(gateway, changed)
        for amount in ("6.00", "7.00"):
            path = f"/batches/{changed}/payments/{payment}"
            await request_successfully(gateway, "PATCH", path, {"sourceAmount": amount})
            await request_successfully(gateway, "POST", f"/batches/{changed}/generate-quote")
        deleted = await create_batch(gateway, recipient, "5.00")
        await request_successfully(gateway, "DELETE", f"/batches/{deleted}")
        await create_batch(gateway, recipient, "5.00")
        first, second, _third, fourth, _fifth = service.find_or_create_tenant().batches
    batches_listed = await list_superseded_batches(tmp_path, "--json")
    shown = [(one["batch"], one["abandoned"], one["deleted"]) for one in batches_listed]
    assert shown == [(changed, first, False), (changed, second, False), (deleted, fourth, True)]
    for one in batches_listed:
        assert (one["merchant"], one["environment"]) == ("demo", "sandbox")
        assert one["since"].endswith("Z")
        assert "never start it" in one["what_to_do"]
    text = await list_superseded_batches(tmp_path)
    assert all(id_ in text for id_ in (changed, first, second, deleted, fourth))


async def test_empty_list_of_superseded_batches_says_so(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, Service(seed=1)) as (gateway, _simulator):
        await create_batch(gateway, await create_recipient(gateway), "5.00")
    assert await list_superseded_batches(tmp_path, "--json") == []
    assert await list_superseded_batches(tmp_path) == "There are no superseded batches.\n"
