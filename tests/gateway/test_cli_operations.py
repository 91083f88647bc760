"""`payout-gateway operations` and `batches abandoned`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from gateway.cli.batches import batches
from gateway.cli.operations import operations
from gateway.simulator import Service, Switches
from mappings import OPERATIONS, UNLISTED
from tests.payday import done, make_batch, make_recipient, open_town, payment_ids

NAMES = {one.name for one in (*OPERATIONS, *UNLISTED)}
"""As the log, `report usage`, `brownout schedule` and `[recording]` call them."""


def configured(folder: Path) -> list[str]:
    path = folder / "gateway.toml"
    path.write_text(
        '[environments.sandbox]\nbase_url = "http://127.0.0.1:1"\n[state]\n'
        f'url = "sqlite:///{folder}/gateway.db"\n'
        f'encryption_key_file = "{folder}/gateway.key"\n'
    )
    return ["--config", str(path)]


def test_every_operation_is_listed_with_its_calls_and_reasons() -> None:
    done = CliRunner().invoke(operations, ["--json"])
    told = json.loads(done.stdout)
    assert (len(told["operations"]), len(told["unlisted"])) == (29, len(UNLISTED))
    assert told["inferred"] == {}
    for one in [*told["operations"], *told["unlisted"]]:
        assert one["name"] in NAMES, one
        assert one["becomes"], one
        assert one["because"], one
        assert one["exactness"] in ("exact", "emulated", "inferred", "lossy")
        assert one["rests_on"] or one["exactness"] != "inferred", one


def test_in_words_it_says_the_same() -> None:
    said = CliRunner().invoke(operations, []).stdout
    for one in (*OPERATIONS, *UNLISTED):
        assert f"because: {one.exactness_reason}" in said
    assert "PATCH /v1/batches/{id}  (update_batch, section 4.3, inferred)" in said
    assert "to refresh the cached list: the total, the recipients changed since" in said
    assert "    POST /batches/:id/start-processing  once\n" in said


def test_without_a_state_the_table_is_shown_all_the_same(tmp_path: Path) -> None:
    done = CliRunner().invoke(operations, ["--json", *configured(tmp_path)])
    assert (done.exit_code, len(json.loads(done.stdout)["operations"])) == (0, 29)
    assert "Warning: " in done.stderr
    assert not (tmp_path / "gateway.db").exists()


async def test_what_was_found_at_each_service_is_told(tmp_path: Path) -> None:
    service = Service(seed=1, switches=Switches(inferred=False))
    async with open_town(tmp_path, service) as (house, _simulator):
        batch = await make_batch(house, await make_recipient(house), "5.00")
        await done(house, "DELETE", f"/batches/{batch}")
    words = configured(tmp_path)
    said = await asyncio.to_thread(CliRunner().invoke, operations, ["--json", *words])
    found = json.loads(said.stdout)["inferred"]["sandbox"]
    by_name = {one["operation"]: one for one in found}
    assert by_name["DELETE /batches/{id}"]["found"] == "absent"
    assert by_name["DELETE /batches/{id}"]["at"].endswith("Z")
    assert by_name["PATCH /batches/{id}"] == {
        "operation": "PATCH /batches/{id}",
        "found": "not tried yet",
        "at": None,
    }
    text = await asyncio.to_thread(CliRunner().invoke, operations, words)
    assert "at the sandbox service" in text.stdout


# batches abandoned


async def abandoned(folder: Path, *words: str) -> Any:
    all_words = ["abandoned", *words, *configured(folder)]
    done = await asyncio.to_thread(CliRunner().invoke, batches, all_words)
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)["batches"] if "--json" in words else done.stdout


async def test_abandoned_batches_are_listed_by_both_ids_with_what_to_do(tmp_path: Path) -> None:
    service = Service(seed=1, switches=Switches(inferred=False))
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        changed = await make_batch(house, recipient, "5.00")
        (payment,) = await payment_ids(house, changed)
        for amount in ("6.00", "7.00"):
            path = f"/batches/{changed}/payments/{payment}"
            await done(house, "PATCH", path, {"sourceAmount": amount})
            await done(house, "POST", f"/batches/{changed}/generate-quote")
        deleted = await make_batch(house, recipient, "5.00")
        await done(house, "DELETE", f"/batches/{deleted}")
        await make_batch(house, recipient, "5.00")
        first, second, _third, fourth, _fifth = service.world().batches
    found = await abandoned(tmp_path, "--json")
    shown = [(one["batch"], one["abandoned"], one["deleted"]) for one in found]
    assert shown == [(changed, first, False), (changed, second, False), (deleted, fourth, True)]
    for one in found:
        assert (one["merchant"], one["environment"]) == ("demo", "sandbox")
        assert one["since"].endswith("Z")
        assert "never start it" in one["what_to_do"]
    text = await abandoned(tmp_path)
    assert all(id_ in text for id_ in (changed, first, second, deleted, fourth))


async def test_where_none_is_abandoned_it_says_so(tmp_path: Path) -> None:
    async with open_town(tmp_path, Service(seed=1)) as (house, _simulator):
        await make_batch(house, await make_recipient(house), "5.00")
    assert await abandoned(tmp_path, "--json") == []
    assert await abandoned(tmp_path) == "There are no superseded batches.\n"
