"""The machinery of `make mutants`, with a few mutants of a seed; and `compare` finds them as well."""

from __future__ import annotations

import ast
import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.compare.rules import Rules, build_rules
from tests.gateway.compare.towns import report
from tests.mutations.keeping import Kept
from tests.mutations.mutants import Mutant, mutants
from tests.mutations.patching import patched
from tests.mutations.survivors import reasons
from tests.proof.worlds import Worlds, open_worlds

SCENARIO = """
title = "Somebody is paid"

[[steps]]
request = "POST /v1/recipients"
capture = { ada = "recipient.id" }
[steps.body]
type = "individual"
firstName = "Ada"
lastName = "King"
email = "ada@example.com"
address = { street1 = "1 Main Street", city = "New York", region = "NY", country = "US" }
payout.primary = { method = "bank", currency = "USD" }
payout.accounts.bank = { country = "US", currency = "USD", accountNum = "1234567", routing = "021000021" }

[[steps]]
request = "POST /v1/batches"
capture = { batch = "batch.id" }
[steps.body]
sourceCurrency = "USD"
description = "May"
payments = [
    { recipient = { id = "${ada}" }, sourceAmount = "10.50", memo = "one" },
    { recipient = { id = "${ada}" }, targetAmount = "5.05", targetCurrency = "EUR" },
]

[[steps]]
request = "POST /v1/batches"
body = { sourceCurrency = "USD", payments = [{ recipient = { id = "${ada}" }, sourceAmount = "2" }] }

[[steps]]
request = "GET /v1/batches?page=2&pageSize=1"

[[steps]]
request = "GET /v1/batches/${batch}/summary"

[[steps]]
request = "GET /v1/batches/${batch}/payments?page=1&pageSize=2"

[[steps]]
request = "GET /v1/batches/B-NOBODY"
"""

BROKEN = {
    "objects.RECIPIENT: lastName shown off by one": "recipient.lastName",
    "objects.ADDRESS: city sent off by one": "recipient.address.city",
    "objects.PAYMENT: sourceAmount shown off by one": "payments[].sourceAmount",
    "batch_views.BATCH: description set apart": "batch.description",
    "errors.STATUS_BY_CODE: 'not_found' off by one": "@status",
    "paging.build_meta: 'records' misspelt": "meta.records",
    "batches.list_batches: True turned round": "batches[].amount",
}
"""A field, an amount, a status, a page and an order; and where each of them shows."""

RULES: dict[str, Any] = {
    "ignore": [{"path": "errors[].message", "reason": "a message is for people"}],
}


async def compared(worlds: Worlds) -> Any:
    key = next(worlds.keys)
    for service in worlds.services:
        service.keys.clear()
        service.add_key(key)
    rules = Rules().combine(build_rules(RULES, "rules"))
    urls, keys = [worlds.control, worlds.candidate], (key.api_key, key.api_key)
    return await report(urls, SCENARIO, keys=keys, rules=rules, allow_writes=True)


async def test_compare_finds_them_in_a_scenario_and_nothing_where_there_is_none(
    tmp_path: Path,
) -> None:
    every = {one.name: one for one in mutants()}
    async with open_worlds(tmp_path, 2 * len(BROKEN) + 1) as worlds:
        for name, place in BROKEN.items():
            with patched(every[name]):
                told = await compared(worlds)
            assert told["exit_code"] == 1, name
            assert place in [one["path"] for one in told["differences"]], name
            told = await compared(worlds)
            assert (told["exit_code"], told["differences"]) == (0, []), f"after {name}"


async def test_a_few_of_a_seed_are_found() -> None:
    some = r"^(objects|errors|batch_views|recipient_queries|paging|legacy\.Recipient:)"
    command = ("-m", "tests.mutations", "--only", some, "--sample", "10", "--processes", "1")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    told = (await process.communicate())[0].decode()
    assert process.returncode == 0, told
    assert "10 tried, 10 found, 0 listed, 0 unlisted" in told


def of(module: str, where: str) -> list[Mutant]:
    return [one for one in mutants() if (one.module, one.where) == (module, where)]


@pytest.mark.parametrize(
    ("module", "table", "rows"),
    [
        ("errors", "STATUS_BY_CODE", 10),
        ("objects", "UPSTREAM_STATUS", 2),
        ("banking", "BRANCH_RULES", 6),
    ],
)
def test_each_row_of_a_table_is_dropped_swapped_misspelt_and_off_by_one(
    module: str, table: str, rows: int
) -> None:
    whats = [one.what for one in of(module, table)]
    assert sum(what.endswith(" dropped") for what in whats) == rows
    assert sum(what.endswith("its key, misspelt") for what in whats) == rows
    # Of two rows with one value a swap is no change.
    assert sum(what.endswith(" swapped") for what in whats) > 0
    assert sum(what.endswith(" off by one") for what in whats) > 0


def test_each_has_a_name_of_its_own_and_is_another_program() -> None:
    every = mutants()
    assert len({one.name for one in every}) == len(every) > 1500
    for one in every[::40]:
        assert one.source() != "", one.name
        compile(one.source(), one.module, "exec")


def test_what_is_patched_in_is_taken_out_again() -> None:
    from mappings import errors, objects, recipients

    (one,) = [
        each for each in of("errors", "STATUS_BY_CODE") if each.what == "'not_found' off by one"
    ]
    assert not one.is_read_at_start
    before = errors.STATUS_BY_CODE
    with patched(one):
        assert errors.STATUS_BY_CODE["not_found"] == 406
        assert errors.build_legacy_error(errors.NOT_FOUND).status == 406
    assert errors.STATUS_BY_CODE is before
    (row,) = [each for each in of("objects", "RECIPIENT") if each.what == "email not sent"]
    with patched(row):
        assert recipients.RECIPIENT.translate_to_current({"email": "a@b.c"}) == {}
    assert objects.RECIPIENT.translate_to_current({"email": "a@b.c"}) == {"email": "a@b.c"}


def test_what_is_patched_in_by_half_is_taken_out_as_well() -> None:
    from mappings import errors

    def without_what_is_made_of_it(node: ast.AST) -> None:
        assert isinstance(node, ast.Module)
        node.body = [one for one in node.body if "KNOWN_CODES" not in ast.unparse(one)[:20]]

    (one,) = [
        each for each in of("errors", "STATUS_BY_CODE") if each.what == "'not_found' off by one"
    ]
    broken = replace(one, node=0, change=without_what_is_made_of_it)
    before = errors.STATUS_BY_CODE
    with pytest.raises(AttributeError), patched(broken):
        pass
    assert errors.STATUS_BY_CODE is before


def test_a_run_is_taken_up_again_until_a_source_is_another(tmp_path: Path) -> None:
    Kept(tmp_path / "kept").add({"name": "one", "by": "", "seconds": 1.0})
    assert list(Kept(tmp_path / "kept").tried) == ["one"]
    (tmp_path / "kept" / "of").write_text("other sources")
    assert Kept(tmp_path / "kept").tried == {}


def test_who_is_listed_as_a_survivor_is_a_mutant_and_has_a_reason() -> None:
    names = {one.name for one in mutants()}
    assert sorted(reasons().keys() - names) == []
    assert all(len(reason) > 20 for reason in reasons().values())
