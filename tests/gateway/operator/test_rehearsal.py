"""Rehearsals against simulated services: each planted deviation is found and named."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import pytest_asyncio

from gateway.auth.signing import Credentials
from gateway.operator.doctor import run_doctor
from gateway.operator.rehearsal.assumptions import ASSUMPTIONS, HANDLED, HOLDS, NOT_TRIED, NOTICED
from gateway.operator.rehearsal.report import propose_settings
from gateway.operator.rehearsal.run import OPTIONAL_PATHS, RehearsalRun
from gateway.operator.rehearsal.runner import run_rehearsal
from gateway.server.rehearsal_gateway import open_rehearsal_sandbox
from gateway.simulator import Deviation, Service, ServiceOptions, start_simulator
from gateway.storage import ObjectStateStore, open_store
from mappings import OPERATIONS, UNLISTED
from tests.operator_commands import run_command, write_configuration
from tests.running_gateway import build_settings, import_api_keys
from tests.state import KEY, TENANT

UNTRIED = {"processed batches", "country names"}

ROWS_BY_DEVIATION: dict[Deviation, set[str]] = {
    "account-id-stays": {"account id"},
    "amounts-in-batch-currency": {"target amounts"},
    "bad-signature-forbidden": {"refused signature"},
    "created-date-moves": {"creation date"},
    "filters-ignored": {"list filters"},
    "lists-lag": {"listed at once"},
    "logs-missing": {"documented paths"},
    "memo-refused": {"memo"},
    "no-date": {"date header"},
    "no-list-totals": {"list totals"},
    "old-stamps-accepted": {"request age"},
    "order-ignored": {"list order"},
    "own-error-codes": {"validation errors"},
    "payment-add-refused": {"added payments"},
    "payments-without-amounts": {"payment fields"},
    "quote-once": {"quotes"},
    "several-primary-accounts": {"primary account"},
    "summary-without-payments": {"summary"},
    "unknown-id-invalid": {"unknown id"},
    "updated-date-stays": {"update date"},
}

HANDLED_OPTIONS: dict[str, tuple[Any, set[str]]] = {
    "account_number_with_iban": ("required", {"IBAN alone"}),
    "answers": ("bare", {"write answers"}),
    "balance_shape": ("list", {"balances"}),
    "batch_id_length": (16, {"batch ids"}),
    "inferred": (False, set(OPTIONAL_PATHS)),
    "lists_archived": (True, {"archived in lists"}),
    "max_page_size": (2, {"page size"}),
    "missing_government_id": ("incomplete", {"government id"}),
    "processed_word": ("complete", {"processed batches"}),
    "reads_archived": (False, {"archived by id"}),
    "recipient_id_length": (22, {"recipient ids"}),
    "signed_target": ("path-and-query", {"signature scope"}),
    "unknown_recipient": (400, {"unknown recipient of a payment"}),
    "validation_status": (406, {"validation status"}),
}


async def rehearse(folder: Path, service: Service, *, may_start: bool = False) -> dict[str, Any]:
    """Runs a rehearsal as the command does."""
    simulator = await start_simulator(service=service)
    settings = build_settings(folder, simulator.url)
    await import_api_keys(settings, [KEY])
    credentials = Credentials(KEY["access_key"], KEY["secret_key"])
    try:
        async with (
            open_store(settings.state) as store,
            open_rehearsal_sandbox(settings, TENANT, credentials) as sandbox,
        ):
            return await run_rehearsal(
                RehearsalRun(sandbox, may_start, lambda: False),
                ObjectStateStore(store),
                count_interruptions=lambda: 0,
                report_chapter=lambda _number, _name: None,
            )
    finally:
        await simulator.stop()


def select_rows(report: dict[str, Any], *verdicts: str) -> set[str]:
    return {row["name"] for row in report["assumptions"] if row["verdict"] in verdicts}


def list_remaining_objects(service: Service) -> list[str]:
    tenant = service.find_or_create_tenant()
    active = [item.id for item in tenant.recipients.values() if not item.is_archived]
    return [*active, *tenant.batches]


async def test_documented_service_differs_in_nothing_and_keeps_nothing(tmp_path: Path) -> None:
    service = Service(seed=1)
    report = await rehearse(tmp_path, service)
    assert select_rows(report, HANDLED, NOTICED) == set()
    assert select_rows(report, NOT_TRIED) == UNTRIED
    outcomes = {row["name"]: row["outcome"] for row in report["operations"]}
    assert outcomes.pop("start_batch") == NOT_TRIED
    assert set(outcomes.values()) == {"ok"}
    assert len(outcomes) == 28
    assert report["exit_code"] == 0
    assert report["left"] == list_remaining_objects(service) == []
    assert service.batch_starts == []
    emails = [item.fields["email"] for item in service.find_or_create_tenant().recipients.values()]
    assert all(email.endswith("@example.com") for email in emails)


@pytest.mark.parametrize("deviation", get_args(Deviation))
async def test_planted_deviation_is_named(tmp_path: Path, deviation: Deviation) -> None:
    options = ServiceOptions(deviations=frozenset({deviation}))
    report = await rehearse(tmp_path, Service(options=options, seed=1))
    assert select_rows(report, HANDLED, NOTICED) == ROWS_BY_DEVIATION[deviation]
    is_noticed = any(
        row.is_noticed for row in ASSUMPTIONS if row.name in ROWS_BY_DEVIATION[deviation]
    )
    assert report["exit_code"] == int(is_noticed)


async def test_open_questions_of_the_document_are_answered(tmp_path: Path) -> None:
    """A service that differs in all that the document leaves open: clients notice nothing."""
    options = {name: value for name, (value, _rows) in HANDLED_OPTIONS.items()}
    service = Service(options=ServiceOptions(**options), seed=1, clock=lambda: time.time() + 60)
    report = await rehearse(tmp_path, service, may_start=True)
    handled = set[str]().union(*(rows for _value, rows in HANDLED_OPTIONS.values()))
    assert select_rows(report, HANDLED) == handled | {"clock"}
    assert select_rows(report, NOTICED) == set()
    assert report["exit_code"] == 0
    # Without a path to delete batches they stay, and are listed; one was started.
    tenant = service.find_or_create_tenant()
    assert {item["id"] for item in report["left"]} == set(tenant.batches)
    assert len(service.batch_starts) == 1
    assert [item["reason"] for item in report["left"]].count("it was started, so it stays") == 1
    settings = build_settings(tmp_path, "http://127.0.0.1:1")
    text = '[state]\nurl = "postgresql://u:password@db/g"\n[upstream]\nsigned_target = "path"\n'
    diff = propose_settings(report, settings, text)
    assert '-signed_target = "path"\n' in diff
    assert '+signed_target = "path-and-query"\n' in diff
    assert '+inferred_operations = "avoid"' in diff
    assert '+[legacy]\n+account_number_from_iban = "always"' in diff
    assert "password" not in diff


def test_each_assumption_has_a_row_and_a_switch() -> None:
    covered = {name for row in ASSUMPTIONS for name in row.operations}
    rest_on = {operation.name for operation in (*OPERATIONS, *UNLISTED) if operation.assumption}
    assert covered >= rest_on
    names = {row.name for row in ASSUMPTIONS}
    assert names >= set(OPTIONAL_PATHS)
    switched = set[str]().union(*ROWS_BY_DEVIATION.values())
    switched = switched.union(*(rows for _value, rows in HANDLED_OPTIONS.values()))
    # The clock of a service is set without an option; the service names no country.
    assert switched | {"clock", "country names"} == names


class RehearsedFolder:
    """A configuration in front of a simulator, for the command."""

    def __init__(self, folder: Path, service: Service, url: str) -> None:
        self.folder, self.service, self.url = folder, service, url

    async def run(self, *arguments: str, code: int = 0) -> Any:
        command = ("rehearse", "--key", "box", "--json", *arguments)
        result = await run_command(self.folder, *command, code=code)
        return json.loads(result.stdout) if result.stdout else result.stderr

    async def run_until(self, is_reached: Callable[[], bool], signal_number: int) -> int:
        """Sends a signal to the command's process; returns its exit code."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "rehearse", "--key", "box",
            "--config", str(self.folder / "gateway.toml"),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with asyncio.timeout(60):
            while not is_reached():  # noqa: ASYNC110 - the service does not announce it
                await asyncio.sleep(0.01)
        process.send_signal(signal_number)
        return await process.wait()


@pytest_asyncio.fixture
async def rehearsed(tmp_path: Path) -> AsyncIterator[RehearsedFolder]:
    service = Service(seed=1)
    simulator = await start_simulator(service=service)
    write_configuration(tmp_path, simulator.url)
    keys = [{**KEY, "name": "box"}, {**KEY, "name": "prod", "environment": "live"}]
    keys[1] |= {"api_key": "live-key", "access_key": "LIVE"}
    await import_api_keys(build_settings(tmp_path, simulator.url), keys)
    yield RehearsedFolder(tmp_path, service, simulator.url)
    await simulator.stop()


@pytest.mark.parametrize(("signal_number", "code"), [(signal.SIGINT, 2), (signal.SIGKILL, -9)])
async def test_interrupted_rehearsal_is_continued_and_cleaned_up(
    rehearsed: RehearsedFolder, signal_number: int, code: int
) -> None:
    service = rehearsed.service
    has_batch = partial(service.list_requests, "POST", "/v1/batches")
    assert await rehearsed.run_until(lambda: bool(has_batch()), signal_number) == code
    assert bool(list_remaining_objects(service)) is (signal_number == signal.SIGKILL)
    service.requests.clear()
    report = await rehearsed.run()
    assert report["counts"][HOLDS] == len(ASSUMPTIONS) - len(UNTRIED)
    assert list_remaining_objects(service) == []
    # Chapters that were finished are not repeated.
    assert not service.list_requests("GET", "/v1/recipients/*/logs")
    service.requests.clear()
    again = await rehearsed.run()
    assert again["counts"] == report["counts"]
    assert service.list_requests("GET", "/v1/recipients/*/logs")
    assert list_remaining_objects(service) == []


async def test_report_is_shown_everywhere_without_secrets(rehearsed: RehearsedFolder) -> None:
    page_file = rehearsed.folder / "page.html"
    report = await rehearsed.run("--html", str(page_file))
    page = page_file.read_text("utf-8")
    assert report["verdict"].capitalize() in page
    assert "http" not in page.replace("http-equiv", "")
    text = (await run_command(rehearsed.folder, "rehearse", "--key", "box")).stdout
    assert text.startswith("Clients would notice nothing; 38 hold")
    findings = await run_doctor(build_settings(rehearsed.folder, rehearsed.url))
    (finding,) = [each for each in findings if each.check_name == "rehearsal"]
    assert (finding.state, "0 days ago: clients would" in finding.result) == ("ok", True)
    for shown in (page, text, json.dumps(report)):
        assert not any(KEY[name] in shown for name in ("api_key", "access_key", "secret_key"))
        assert "@example.com" not in shown


async def test_only_a_sandbox_is_rehearsed(rehearsed: RehearsedFolder) -> None:
    command = ("rehearse", "--key", "prod")
    result = await run_command(rehearsed.folder, *command, code=2)
    assert "live environment" in result.stderr
    await run_command(rehearsed.folder, "freeze", "--environment", "sandbox")
    assert "writes are frozen" in await rehearsed.run(code=2)
    assert (
        "no active key"
        in (await run_command(rehearsed.folder, "rehearse", "--key", "x", code=2)).stderr
    )
    assert not rehearsed.service.requests
    await run_command(rehearsed.folder, "unfreeze", "--environment", "sandbox")
    rehearsed.service.credentials.clear()
    assert "refuses a first read with status 401" in await rehearsed.run(code=2)
