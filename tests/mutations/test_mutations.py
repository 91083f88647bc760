"""Tests the machinery of `make mutants` with a sample, and that `compare` finds mutants too."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway.compare.rules import Rules, build_rules
from tests.gateway.compare.fake_services import build_comparison_report
from tests.mutations.__main__ import main
from tests.mutations.mutants import Mutant, list_mutants
from tests.mutations.patching import apply_mutant
from tests.mutations.results_file import ResultsFile
from tests.mutations.survivors import load_reasons
from tests.proof.compared_services import ComparedServices, open_compared_services

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

MUTANT_PATHS = {
    "objects.RECIPIENT: lastName shown off by one": "recipient.lastName",
    "objects.ADDRESS: city sent off by one": "recipient.address.city",
    "objects.PAYMENT: sourceAmount shown off by one": "payments[].sourceAmount",
    "batch_views.BATCH: description set apart": "batch.description",
    "errors.STATUS_BY_CODE: 'not_found' off by one": "@status",
    "paging.build_meta: 'records' misspelt": "meta.records",
    "batch_lists.filter_batches: True turned round": "batches[].amount",
}
"""Mutants of a field, an amount, a status, a page and an order, with the path of the difference."""

RULES: dict[str, Any] = {
    "ignore": [{"path": "errors[].message", "reason": "a message is for people"}],
}


async def run_compare(services: ComparedServices) -> Any:
    key = next(services.keys)
    for service in services.services:
        service.credentials.clear()
        service.add_credentials(key)
    rules = Rules().combine(build_rules(RULES, "rules"))
    urls, keys = [services.control, services.candidate], (key.api_key, key.api_key)
    return await build_comparison_report(urls, SCENARIO, keys=keys, rules=rules, allow_writes=True)


async def test_compare_command_finds_mutants(
    tmp_path: Path,
) -> None:
    mutants_by_name = {mutant.name: mutant for mutant in list_mutants()}
    async with open_compared_services(tmp_path, 2 * len(MUTANT_PATHS) + 1) as services:
        for name, path in MUTANT_PATHS.items():
            with apply_mutant(mutants_by_name[name]):
                output = await run_compare(services)
            assert output["exit_code"] == 1, name
            assert path in [mutant["path"] for mutant in output["differences"]], name
            output = await run_compare(services)
            assert (output["exit_code"], output["differences"]) == (0, []), f"after {name}"


WAYS_TO_BE_FOUND = {
    "objects.BANK: iban set apart": "payout_methods/",
    "legacy.RecipientBody: email dropped": "POST /v1/recipients ",
}
"""Mutants that a case and a sequence of the proof reveal, which a gateway started with the mutant plays."""


def test_mutants_are_found_in_each_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "names").write_text("\n".join(WAYS_TO_BE_FOUND))
    options = ("--names", str(tmp_path / "names"), "--keep", str(tmp_path), "--processes", "1")
    monkeypatch.setattr("sys.argv", ["tests.mutations", *options])
    try:
        code = main()
    finally:
        structlog.reset_defaults()
    output = capsys.readouterr().out
    assert code == 0, output
    assert "2 tried, 2 found, 0 listed, 0 unlisted" in output
    results = ResultsFile(tmp_path / "kept").results
    assert {
        name: results[name]["by"].startswith(way) for name, way in WAYS_TO_BE_FOUND.items()
    } == dict.fromkeys(WAYS_TO_BE_FOUND, True)


def select_mutants(module: str, target: str) -> list[Mutant]:
    return [
        mutant for mutant in list_mutants() if (mutant.module, mutant.target) == (module, target)
    ]


@pytest.mark.parametrize(
    ("module", "table", "rows"),
    [
        ("errors", "STATUS_BY_CODE", 10),
        ("objects", "UPSTREAM_STATUS", 2),
        ("banking", "BRANCH_RULES", 6),
    ],
)
def test_table_rows_have_every_kind_of_mutant(module: str, table: str, rows: int) -> None:
    descriptions = [mutant.description for mutant in select_mutants(module, table)]
    assert sum(change.endswith(" dropped") for change in descriptions) == rows
    assert sum(change.endswith("its key, misspelt") for change in descriptions) == rows
    # Of two rows with one value a swap is no change.
    assert sum(change.endswith(" swapped") for change in descriptions) > 0
    assert sum(change.endswith(" off by one") for change in descriptions) > 0


def test_mutants_differ_in_name_and_compile() -> None:
    mutants = list_mutants()
    assert len({mutant.name for mutant in mutants}) == len(mutants) > 1500
    for mutant in mutants[::40]:
        assert mutant.unparse() != "", mutant.name
        compile(mutant.unparse(), mutant.module, "exec")


def test_mutant_is_removed_after_use() -> None:
    from mappings import errors, objects, recipients

    (mutant,) = [
        candidate
        for candidate in select_mutants("errors", "STATUS_BY_CODE")
        if candidate.description == "'not_found' off by one"
    ]
    assert not mutant.is_read_at_start
    original = errors.STATUS_BY_CODE
    with apply_mutant(mutant):
        assert errors.STATUS_BY_CODE["not_found"] == 406
        assert errors.build_legacy_error(errors.NOT_FOUND).status == 406
    assert errors.STATUS_BY_CODE is original
    (row,) = [
        candidate
        for candidate in select_mutants("objects", "RECIPIENT")
        if candidate.description == "email not sent"
    ]
    with apply_mutant(row):
        assert recipients.RECIPIENT.translate_to_current({"email": "a@b.c"}) == {}
    assert objects.RECIPIENT.translate_to_current({"email": "a@b.c"}) == {"email": "a@b.c"}


def test_half_applied_mutant_is_removed() -> None:
    from mappings import errors

    def drop_derived_tables(node: ast.AST) -> None:
        assert isinstance(node, ast.Module)
        node.body = [
            mutant for mutant in node.body if "KNOWN_CODES" not in ast.unparse(mutant)[:20]
        ]

    (mutant,) = [
        candidate
        for candidate in select_mutants("errors", "STATUS_BY_CODE")
        if candidate.description == "'not_found' off by one"
    ]
    broken_mutant = replace(mutant, node=0, change=drop_derived_tables)
    original = errors.STATUS_BY_CODE
    with pytest.raises(AttributeError), apply_mutant(broken_mutant):
        pass
    assert errors.STATUS_BY_CODE is original


def test_run_continues_until_source_changes(tmp_path: Path) -> None:
    ResultsFile(tmp_path / "kept").add({"name": "one", "by": "", "seconds": 1.0})
    assert list(ResultsFile(tmp_path / "kept").results) == ["one"]
    (tmp_path / "kept" / "of").write_text("other sources")
    assert ResultsFile(tmp_path / "kept").results == {}


def test_survivors_exist_and_have_reasons() -> None:
    names = {mutant.name for mutant in list_mutants()}
    assert sorted(load_reasons().keys() - names) == []
    assert all(len(reason) > 20 for reason in load_reasons().values())
