"""Rehearsals against simulated services: each planted deviation is found and named."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import pytest_asyncio

from gateway.config.settings import load_settings
from gateway.operator.rehearsal.checks import ASSUMPTIONS, IS_OPTIONAL
from gateway.operator.rehearsal.report import HANDLED, HOLDS, NOT_TRIED, NOTICED, propose_settings
from gateway.operator.rehearsal.scenario import STEPS
from mappings import OPERATIONS, UNLISTED
from tests.operator_commands import run_command, write_configuration
from tests.processes import build_command
from tests.running_gateway import build_settings, import_api_keys
from tests.simulator import (
    WALLET_FUNDS,
    Deviation,
    Fault,
    Service,
    ServiceCredentials,
    ServiceOptions,
    start_simulator,
)
from tests.state import KEY

NOTICED_ROWS = {row.name for row in ASSUMPTIONS if row.noticed == "yes"}
OPERATION_NAMES = {operation.name for operation in OPERATIONS}
NEED_START = {"processed batches", "wallet account", "start_batch"}
OPERATIONS_WITHOUT_ROW = OPERATION_NAMES - {step.row for step in STEPS}
UNTRIED = {*NEED_START, "country names", "page size", *OPERATIONS_WITHOUT_ROW}
OPTIONAL_PATHS = {path for path, is_optional in IS_OPTIONAL.items() if is_optional}
HANDLED_OPTIONS: dict[str, tuple[Any, set[str]]] = {
    "account_number_with_iban": ("required", {"IBAN alone"}),
    "answers": ("bare", {"write answers"}),
    "balance_shape": ("list", {"balances"}),
    "batch_id_length": (16, {"batch ids"}),
    "inferred": (False, OPTIONAL_PATHS),
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
HANDLED_ROWS = set[str]().union(*(rows for _value, rows in HANDLED_OPTIONS.values()))


HTML = partial(Fault, "*", "*", body=b"<html>", headers={"Content-Type": "text/html"}, times=10_000)
SILENCE = Fault("*", "*", close="before", times=10_000)
SLOW_START = Fault("POST", "/v1/batches/*/start-processing", close="after", answer_delay=1)


async def wait_until(is_reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_reached():  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)


class RehearsedFolder:
    """A configuration in front of a simulator, for the command."""

    def __init__(self, folder: Path, service: Service, url: str) -> None:
        self.folder, self.service, self.url = folder, service, url
        self.temporary_folder = folder / "temporary"

    async def run(self, *arguments: str, key: str = "box", code: int = 0) -> Any:
        command = ("rehearse", "--key", key, "--json", *arguments)
        result = await run_command(self.folder, *command, code=code)
        return json.loads(result.stdout) if result.stdout else result.stderr

    async def run_until(
        self, is_reached: Callable[[], bool], signal_number: int, *options: str
    ) -> int:
        """Sends a signal to the command's process; returns its exit code."""
        process = await self.start_process("box", *options)
        await wait_until(is_reached)
        process.send_signal(signal_number)
        await process.communicate()
        return process.returncode or 0

    async def start_process(self, key: str, *options: str) -> asyncio.subprocess.Process:
        self.temporary_folder.mkdir(exist_ok=True)
        return await asyncio.create_subprocess_exec(
            *build_command("tests.gateway.operator.rehearse_at_once"), "rehearse", "--key", key, *options,
            "--config", str(self.folder / "gateway.toml"),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(self.temporary_folder)},
        )  # fmt: skip

    async def import_other_merchant(self) -> None:
        """Imports the key `other`."""
        self.service.add_credentials(ServiceCredentials("OTHER", "other-secret", merchant="other"))
        key = {"merchant": "other", "environment": "sandbox", "api_key": "other-key"}
        key |= {"name": "other", "access_key": "OTHER", "secret_key": "other-secret"}
        await import_api_keys(build_settings(self.folder, self.url), [key])

    def list_remaining_objects(self) -> list[str]:
        tenant = self.service.find_or_create_tenant()
        active = [item.id for item in tenant.recipients.values() if not item.is_archived]
        return [*active, *tenant.batches]


@pytest_asyncio.fixture
async def rehearsed(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RehearsedFolder]:
    """In front of a service with the options of the test's parameter; pauses are short."""
    shortened = SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 50))
    monkeypatch.setattr("gateway.operator.rehearsal.run.asyncio", shortened)
    options, ahead_seconds = getattr(request, "param", ({}, 0))
    service = Service(
        options=ServiceOptions(**options),
        seed=1,
        clock=lambda: time.time() + ahead_seconds,
        wallet_balance=WALLET_FUNDS,
    )
    simulator = await start_simulator(service=service)
    write_configuration(tmp_path, simulator.url)
    keys = [{**KEY, "name": "box"}, {**KEY, "name": "prod", "environment": "live"}]
    keys[1] |= {"api_key": "live-key", "access_key": "LIVE"}
    await import_api_keys(build_settings(tmp_path, simulator.url), keys)
    yield RehearsedFolder(tmp_path, service, simulator.url)
    await simulator.stop()


def select_rows(report: dict[str, Any], *verdicts: str) -> set[str]:
    return {row["name"] for row in report["rows"] if row["verdict"] in verdicts}


def test_scenario_tests_every_operation() -> None:
    assert set() == OPERATIONS_WITHOUT_ROW, "add a row to gateway/operator/rehearsal/scenario.md"


async def test_documented_service_differs_in_nothing_and_keeps_nothing(
    rehearsed: RehearsedFolder,
) -> None:
    rehearsed.service.faults.append(Fault("POST", "/v1/batches", status=429))
    report = await rehearsed.run()
    assert select_rows(report, HANDLED, NOTICED) == set()
    assert select_rows(report, NOT_TRIED) == UNTRIED
    assert select_rows(report, HOLDS) > OPERATION_NAMES - {"start_batch"}
    assert report["left"] == rehearsed.list_remaining_objects() == []
    assert rehearsed.service.batch_starts == []
    recipients = rehearsed.service.find_or_create_tenant().recipients.values()
    assert all(item.fields["email"].endswith("@example.com") for item in recipients)
    text = (await run_command(rehearsed.folder, "rehearse", "--key", "box")).stdout
    assert text.startswith("Clients would notice nothing; 0 handled, 5 not tried, 68 hold")
    for shown in (text, json.dumps(report)):
        assert not any(KEY[name] in shown for name in ("api_key", "access_key", "secret_key"))
        assert "@example.com" not in shown


@pytest.mark.parametrize(
    ("deviation", "rehearsed"),
    [(name, ({"deviations": frozenset({name})}, 0)) for name in get_args(Deviation)],
    indirect=["rehearsed"],
)
async def test_planted_deviation_is_named(rehearsed: RehearsedFolder, deviation: str) -> None:
    row, is_variant, _ = deviation.replace("-", " ").partition("/")
    options = ["--start"] if row in NEED_START else []
    report = await rehearsed.run(*options, code=int(row in NOTICED_ROWS or bool(is_variant)))
    # Operations may fail because of it.
    assert select_rows(report, HANDLED, NOTICED) - OPERATION_NAMES == {row}
    assert {item["id"] for item in report["left"]} >= {*rehearsed.list_remaining_objects()}


OPEN_QUESTIONS = {name: value for name, (value, _rows) in HANDLED_OPTIONS.items()}


@pytest.mark.parametrize("rehearsed", [(OPEN_QUESTIONS, 60)], indirect=True)
async def test_open_questions_of_the_document_are_answered(rehearsed: RehearsedFolder) -> None:
    """A service that differs in all that the document leaves open: clients notice nothing."""
    report = await rehearsed.run("--start")
    assert select_rows(report, HANDLED) == HANDLED_ROWS | {"clock"}
    # Without a path to delete batches they stay, and are listed; one was started.
    batches = rehearsed.service.find_or_create_tenant().batches
    left = {item["id"] for item in report["left"]}
    assert left == {*batches, *rehearsed.list_remaining_objects()}
    assert len(left) == len(batches)
    assert len(rehearsed.service.batch_starts) == 1
    assert [item["reason"] for item in report["left"]].count("it was started, so it stays") == 1
    # The settings can be appended to the file, and then nothing more is offered.
    config = rehearsed.folder / "gateway.toml"
    config.write_text("\n".join(report["settings"]) + "\n" + config.read_text())
    settings = load_settings(config)
    assert settings.upstream.signed_target == "path-and-query"
    assert settings.upstream.inferred_operations == "avoid"
    assert settings.legacy.account_number_from_iban == "always"
    assert propose_settings(report, settings) == []


def test_each_assumption_has_a_row_and_a_switch() -> None:
    covered = {name for row in ASSUMPTIONS for name in row.operations.split(", ")}
    rest_on = {operation.name for operation in (*OPERATIONS, *UNLISTED) if operation.assumption}
    assert covered >= rest_on
    switched = {
        name.partition("/")[0].replace("-", " ") for name in get_args(Deviation)
    } | HANDLED_ROWS
    # The clock of a service is set without an option; the service names no country.
    assert switched | {"clock", "country names"} == {row.name for row in ASSUMPTIONS}


@pytest.mark.parametrize(("signal_number", "code"), [(signal.SIGTERM, 2), (signal.SIGKILL, -9)])
async def test_interrupted_rehearsal_is_cleaned_up(
    rehearsed: RehearsedFolder, signal_number: int, code: int
) -> None:
    service = rehearsed.service
    has_batch = partial(service.list_requests, "POST", "/v1/batches")
    assert await rehearsed.run_until(lambda: bool(has_batch()), signal_number) == code
    assert bool(rehearsed.list_remaining_objects()) is (signal_number == signal.SIGKILL)
    report = await rehearsed.run()
    assert select_rows(report, HANDLED, NOTICED, NOT_TRIED) == UNTRIED
    assert rehearsed.list_remaining_objects() == []


async def test_lost_answer_to_a_start_is_no_difference(rehearsed: RehearsedFolder) -> None:
    service = rehearsed.service
    service.faults.append(SLOW_START)
    run = asyncio.ensure_future(rehearsed.run("--start", code=2))
    await wait_until(lambda: bool(service.batch_starts))
    # Nor does an answer to a read tell whether it was started.
    service.faults.append(SILENCE)
    report = await run
    assert "the sandbox has failed: it does not answer" in report["verdict"]
    assert select_rows(report, HANDLED, NOTICED) == set()
    service.faults.clear()
    report = await rehearsed.run("--start")
    assert select_rows(report, HOLDS) >= NEED_START
    assert {item["reason"] for item in report["left"]} == {"it was started, so it stays"}


async def test_killed_rehearsal_leaves_no_key_behind(rehearsed: RehearsedFolder) -> None:
    service = rehearsed.service
    service.faults.append(SLOW_START)
    await rehearsed.run_until(lambda: bool(service.batch_starts), signal.SIGKILL, "--start")
    await wait_until(lambda: not any(rehearsed.temporary_folder.iterdir()))


@pytest.mark.parametrize(
    "fault",
    [HTML(status=500), HTML(status=200), HTML(status=401, body=b'{"ok": false}'), SILENCE],
    ids=["500", "no-json", "401", "silent"],
)
async def test_failing_service_stops_a_rehearsal_and_proves_nothing(
    rehearsed: RehearsedFolder, fault: Fault
) -> None:
    service = rehearsed.service
    run = asyncio.ensure_future(rehearsed.run("--start", code=2))
    await wait_until(lambda: bool(service.list_requests("POST", "/v1/batches")))
    service.faults.append(fault)
    report = await run
    assert "the sandbox has failed: it " in report["verdict"]
    assert "run the same command again" in report["verdict"]
    assert select_rows(report, HANDLED, NOTICED) == set()
    assert {item["id"] for item in report["left"]} >= set(rehearsed.list_remaining_objects())
    reasons = {item["reason"] for item in report["left"]}
    assert not [reason for reason in reasons if "was started" in reason or "by this path" in reason]
    service.faults.clear()
    report = await rehearsed.run()
    assert select_rows(report, HANDLED, NOTICED, NOT_TRIED) == UNTRIED
    assert report["left"] == rehearsed.list_remaining_objects() == []


async def test_failure_at_one_path_is_a_difference(rehearsed: RehearsedFolder) -> None:
    summary = Fault("GET", "/v1/recipients/*/logs", status=500, body=b"<html>", times=10_000)
    rehearsed.service.faults.append(summary)
    assert select_rows(await rehearsed.run(code=1), NOTICED) == {"read_recipient_logs"}


async def test_rate_limit_is_never_a_difference(
    rehearsed: RehearsedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.operator.rehearsal.run.RATE_LIMIT_SECONDS", 0)
    rehearsed.service.faults.append(
        Fault("GET", "/v1/recipients/*/logs", status=429, body=b'{"ok": false}', times=10_000)
    )
    for _ in range(2):
        report = await rehearsed.run(code=2)
        assert "/logs with status 429" in report["verdict"]
        assert select_rows(report, HANDLED, NOTICED) == set()


async def test_rate_limit_is_waited_for_and_shown(rehearsed: RehearsedFolder) -> None:
    """Also if it lasts for longer than most limits by the second."""
    limit = partial(Fault, status=429, body=b'{"ok": false}')
    rehearsed.service.faults += [
        limit("POST", "/v1/batches", headers={"Retry-After": "1"}, times=25),
        limit("GET", "/v1/recipients/*/logs"),
    ]
    result = await run_command(rehearsed.folder, "rehearse", "--key", "box")
    assert "limits the rate of requests: waiting 1 s" in result.stderr
    assert rehearsed.service.faults == []


async def test_call_without_answer_is_one_row_that_is_not_tried(
    rehearsed: RehearsedFolder,
) -> None:
    rehearsed.service.faults.append(dataclasses.replace(SILENCE, path="/v1/payments/*"))
    report = await rehearsed.run()
    assert select_rows(report, HANDLED, NOTICED, NOT_TRIED) == {*UNTRIED, "payment fields"}
    (seen,) = [row["seen"] for row in report["rows"] if row["name"] == "payment fields"]
    assert "does not answer GET /v1/payments/" in seen
    rehearsed.service.faults.append(SILENCE)
    stopped = await rehearsed.run(code=2)
    assert "does not answer" in stopped
    assert "run the same command again" in stopped


async def test_second_run_of_a_merchant_is_refused_while_one_runs(
    rehearsed: RehearsedFolder,
) -> None:
    """Runs of different merchants do not disturb each other."""
    await rehearsed.import_other_merchant()
    service = rehearsed.service
    first = asyncio.ensure_future(rehearsed.run())
    await wait_until(lambda: bool(service.list_requests("POST", "/v1/recipients")))
    # The first waits for the end of a rate limit, for as long as the second runs.
    limit = Fault("POST", "/v1/batches", status=429, body=b'{"ok": false}', times=10_000)
    service.faults.append(limit)
    second = await rehearsed.start_process("box")
    _, text = await second.communicate()
    service.faults.clear()
    other = await rehearsed.start_process("other")
    assert (second.returncode, b"a rehearsal of this merchant is running" in text) == (2, True)
    _, text = await other.communicate()
    assert (other.returncode, b"cleaning up" in text) == (0, True)
    report = await first
    assert select_rows(report, HANDLED, NOTICED, NOT_TRIED) == UNTRIED
    assert report["left"] == rehearsed.list_remaining_objects() == []


async def test_leftovers_on_later_pages_are_found(rehearsed: RehearsedFolder) -> None:
    """Also if a page has rows that are no objects or have no id."""
    service = rehearsed.service
    tenant = service.find_or_create_tenant()
    await rehearsed.run_until(lambda: bool(tenant.batches), signal.SIGKILL)
    tenant.options = dataclasses.replace(tenant.options, max_page_size=2)
    odd_page = json.dumps({"recipients": [1, None, {}, {"id": 5}, "R"], "batches": {"a": 1}})
    service.faults.append(Fault("GET", "/v1/recipients", status=200, body=odd_page.encode()))
    report = await rehearsed.run()
    assert report["left"] == rehearsed.list_remaining_objects() == []


async def test_run_that_cannot_succeed_is_refused_before_a_request(
    rehearsed: RehearsedFolder,
) -> None:
    command = ("rehearse", "--key", "prod")
    result = await run_command(rehearsed.folder, *command, code=2)
    assert "live environment" in result.stderr
    await run_command(rehearsed.folder, "freeze", "--environment", "sandbox")
    assert "writes are frozen" in await rehearsed.run(code=2)
    assert (
        "no key has this name"
        in (await run_command(rehearsed.folder, "rehearse", "--key", "x", code=2)).stderr
    )
    assert not rehearsed.service.requests
    await run_command(rehearsed.folder, "unfreeze", "--environment", "sandbox")
    rehearsed.service.credentials.clear()
    assert "did not accept the first read: status 401" in await rehearsed.run(code=2)
