"""`payout-gateway operations` and `batches abandoned`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from gateway.cli.operations import operations
from gateway.cli.writes import batches
from mappings import OPERATIONS, UNLISTED
from tests.payouts import (
    create_batch,
    create_recipient,
    load_payment_ids,
    open_gateway_and_service,
    request_successfully,
)
from tests.simulator import Service, ServiceOptions


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
    for part, listed_operations in (("operations", OPERATIONS), ("unlisted", UNLISTED)):
        names = [entry["name"] for entry in report[part]]
        assert names == [operation.name for operation in listed_operations]
    for entry in [*report["operations"], *report["unlisted"]]:
        assert entry["becomes"], entry
        assert entry["because"], entry
        assert entry["exactness"] in ("exact", "emulated", "inferred", "lossy")
        assert entry["rests_on"] or entry["exactness"] != "inferred", entry


def test_text_output_matches_json_output() -> None:
    output = CliRunner().invoke(operations, []).stdout
    for operation in (*OPERATIONS, *UNLISTED):
        assert f"because: {operation.exactness_reason}" in output
    assert "PATCH /v1/batches/{id}  (update_batch, section 4.3, inferred)" in output
    assert "to refresh the cached list: the total, the recipients changed since" in output
    assert "    POST /batches/:id/start-processing  once\n" in output


# batches abandoned


async def list_superseded_batches(folder: Path, *arguments: str) -> Any:
    all_arguments = ["abandoned", *arguments, *write_configuration(folder)]
    result = await asyncio.to_thread(CliRunner().invoke, batches, all_arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)["batches"] if "--json" in arguments else result.stdout


async def test_superseded_batches_are_listed_with_both_ids_and_advice(tmp_path: Path) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        changed_batch = await create_batch(gateway, recipient, "5.00")
        (payment,) = await load_payment_ids(gateway, changed_batch)
        for amount in ("6.00", "7.00"):
            path = f"/batches/{changed_batch}/payments/{payment}"
            await request_successfully(gateway, "PATCH", path, {"sourceAmount": amount})
            await request_successfully(gateway, "POST", f"/batches/{changed_batch}/generate-quote")
        deleted_batch = await create_batch(gateway, recipient, "5.00")
        await request_successfully(gateway, "DELETE", f"/batches/{deleted_batch}")
        await create_batch(gateway, recipient, "5.00")
        first, second, _third_id, fourth, _fifth_id = service.find_or_create_tenant().batches
    listed_batches = await list_superseded_batches(tmp_path, "--json")
    reported_batches = [
        (listed_batch["batch"], listed_batch["abandoned"], listed_batch["deleted"])
        for listed_batch in listed_batches
    ]
    assert reported_batches == [
        (changed_batch, first, False),
        (changed_batch, second, False),
        (deleted_batch, fourth, True),
    ]
    for listed_batch in listed_batches:
        assert (listed_batch["merchant"], listed_batch["environment"]) == ("demo", "sandbox")
        assert listed_batch["since"].endswith("Z")
        assert "never start it" in listed_batch["what_to_do"]
    text = await list_superseded_batches(tmp_path)
    assert all(id_ in text for id_ in (changed_batch, first, second, deleted_batch, fourth))


async def test_empty_list_of_superseded_batches_says_so(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, Service(seed=1)) as (gateway, _simulator):
        await create_batch(gateway, await create_recipient(gateway), "5.00")
    assert await list_superseded_batches(tmp_path, "--json") == []
    assert await list_superseded_batches(tmp_path) == "There are no superseded batches.\n"
