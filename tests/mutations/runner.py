"""Tries mutants: runs the cases and sequences that may reveal each mutant until one differs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from gateway.compare.endpoints import Answer, AnswerUnavailable
from tests.mutations.cases import (
    find_failing_case,
    install_cpu_time_handler,
    limit_cpu_time,
    measure_case_coverage,
)
from tests.mutations.line_coverage import LineCoverage, measure_reach, select_sequences
from tests.mutations.mutants import Mutant
from tests.mutations.patching import apply_mutant
from tests.mutations.zygote import GatewayForker, GatewayNotStarted, Job
from tests.proof.compared_services import (
    OWN_WORDS,
    ComparedServices,
    build_keys,
    build_sections,
    import_keys,
    open_compared_services,
    open_services,
)
from tests.proof.coverage import EVERY_FIELD, Sequence, coverage
from tests.proof.openapi_check import compare_openapi
from tests.running_gateway import describe_interface
from tests.state import State
from tests.transcripts_in_process import open_case_state

SECONDS = 8
"""Limit for one response, because a mutant may loop forever."""

MERCHANTS = 1500
"""Sequences before both services are replaced."""

IN_MEMORY = next((folder for folder in ("/dev/shm",) if os.access(folder, os.W_OK)), None)
"""For databases that need no durability; a disk would take most of the time."""

LIKELY_TAGS = {
    "objects": ("recipients", "payouts", "lists", "batches"), "banking": ("faults", "banks", "payouts"),
    "recipient_queries": ("lists",), "recipient_bodies": ("recipients",),
    "recipients": ("recipients", "lists"), "recipient_reads": ("recipients", "lists", "pages"), "payouts": ("payouts", "banks"),
    "payout_changes": ("payouts",), "payout_methods": ("payouts",),
    "balances": ("balances", "batches"),
    "summaries": ("batches",), "paging": ("pages", "lists"),
    "money": ("batches", "amounts"), "payloads": ("batches",), "geography": ("geography",),
    "batch_bodies": ("batches", "amounts"), "batch_reads": ("batches",),
    "batch_views": ("batches", "pages"), "batches": ("batches", "pages"),
    "batch_lists": ("newest", "batches", "pages"), "batch_changes": ("batches", "pages"),
    "payments": ("batches", "pages"), "matching": ("batches",), "drafts": ("batches",),
    "payment_recipients": ("batches", "amounts"), "start_checks": ("batches", "pages"),
    "batch_adds": ("batches",), "batch_locks": ("batches",),
    "errors": ("errors", "recipients", "batches"), "field_types": ("recipients", "amounts"),
}  # fmt: skip
"""Tags of the sequences most likely to reveal a mutant of a module; all run in the end."""


RecordedResponses = dict[int, list[Answer]] | None
"""Control's responses to each sequence, by its ``id``."""


@dataclass(frozen=True, slots=True)
class MutantResult:
    """``found_by`` describes what found the mutant; empty if it survived."""

    mutant: Mutant
    found_by: str
    seconds: float


LIKELY_TABLE_TAGS = {
    "RECIPIENT": ("recipients", "lists"), "ADDRESS": ("recipients",),
    "COMPLIANCE": ("recipients",), "BANK": ("payouts",), "WALLET": ("payouts",),
    "PAYMENT": ("batches", "lists"), "PAYMENT_BATCH": ("batches", "lists"),
    "BRANCH_NAMES_BY_COUNTRY": ("banks", "payouts"), "LEGACY_PAYMENT_STATUSES": ("lists", "batches"),
}  # fmt: skip
"""The same for tables that cover a part of their module."""

LIKELY_SHAPE_TAGS = {
    "RecipientBody": "recipients", "Address": "recipients", "RecipientIdsBody": "recipients",
    "BankBody": "payouts", "PrimaryBody": "payouts", "PayoutBody": "payouts", "Hold": "payouts",
    "AccountsBody": "payouts", "WalletBody": "payouts", "Activity": "recipients",
}  # fmt: skip
"""For shapes, the tag whose sequences run first; the other shapes belong to batches."""


def list_sequences(
    mutant: Mutant, line_coverage: LineCoverage, *, is_thorough: bool = False
) -> list[Sequence]:
    """The sequences that execute the mutant's lines and have a likely tag, short ones first; all if ``is_thorough``."""
    indexes = select_sequences(mutant, line_coverage)
    sequences = [
        sequence for index, sequence in enumerate(coverage()) if indexes is None or index in indexes
    ]
    tags = LIKELY_TABLE_TAGS.get(mutant.target) or LIKELY_TAGS.get(mutant.module, ())
    if mutant.module == "legacy":
        likely_tag = LIKELY_SHAPE_TAGS.get(mutant.target, "batches")
        return sorted(sequences, key=lambda sequence: (sequence[0] != likely_tag, len(sequence[1])))
    order = {tag: index for index, tag in enumerate(tags)}
    if tags and not is_thorough:
        sequences = [sequence for sequence in sequences if sequence[0] in order]
    return sorted(
        sequences,
        key=lambda sequence: (
            len(sequence[1]) > MANY_REQUESTS,
            order.get(sequence[0], 9),
            len(sequence[1]),
        ),
    )


MANY_REQUESTS = 30
"""Sequences with more requests than this run after those of other tags."""


BARE_SERVICE_OPTIONS: dict[str, Any] = {
    "inferred": False, "lists_payments": False, "answers": "bare", "balance_shape": "list",
    "processed_word": "complete", "validation_status": 406,
}  # fmt: skip
"""Options of a service that returns as little as the current document allows and has no inferred operation."""


MODULES_FOR_BARE_SERVICE = {
    "balances", "batch_bodies", "batch_changes", "batch_lists", "batch_reads", "batch_views", "batches", "drafts",
    "matching", "money", "paging", "payloads", "payments", "recipients", "summaries",
    "batch_adds", "batch_locks", "payment_recipients", "start_checks",
}  # fmt: skip
"""Modules whose results depend on what such a service omits."""

TAGS_FOR_BARE_SERVICE = {"batches", "pages", "amounts", "balances", "every field"}
"""Tags of the sequences that run with it; the lines they execute are not measured."""


class RenewedServices:
    """Compared services of one kind, replaced now and then."""

    def __init__(
        self,
        vocabulary: Mapping[str, str],
        recorded_responses: RecordedResponses,
        **service_options: Any,
    ) -> None:
        self._vocabulary = vocabulary
        self._recorded_responses = recorded_responses
        self._service_options = service_options
        self._stack = contextlib.AsyncExitStack()
        self._services: ComparedServices | None = None
        self._remaining_merchants = 0

    async def acquire(self) -> ComparedServices:
        if self._services is None or self._remaining_merchants <= 0:
            await self.renew()
        self._remaining_merchants -= 1
        assert self._services is not None
        return self._services

    async def renew(self) -> None:
        await self.close()
        folder = Path(tempfile.mkdtemp(dir=IN_MEMORY))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        services_context = open_compared_services(
            folder, MERCHANTS, self._vocabulary, **self._service_options
        )
        services = await self._stack.enter_async_context(services_context)
        self._services = replace(
            services, seconds=SECONDS, recorded_responses=self._recorded_responses
        )
        self._remaining_merchants = MERCHANTS

    async def close(self) -> None:
        await self._stack.aclose()


class MutantRunner:
    """An asynchronous context manager that tries one mutant after another. Two runners share nothing."""

    def __init__(
        self, zygote: GatewayForker, baseline: Baseline, *, is_thorough: bool = False
    ) -> None:
        self._zygote = zygote
        self._baseline = baseline
        # From the legacy interface of the service, which no mutant changes.
        self._recorded_responses = baseline.list_responses() if baseline.responses else None
        self._full_services = RenewedServices(OWN_WORDS, self._recorded_responses)
        self._bare_services = RenewedServices({}, self._recorded_responses, **BARE_SERVICE_OPTIONS)
        self._is_thorough = is_thorough
        self._template: Path | None = None
        self._stack = contextlib.AsyncExitStack()
        self._case_state: State

    async def __aenter__(self) -> Self:
        install_cpu_time_handler()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(dir=IN_MEMORY))
        self._case_state = await self._stack.enter_async_context(open_case_state(Path(folder)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        await self._full_services.close()
        await self._bare_services.close()
        if self._template:
            shutil.rmtree(self._template)

    async def run_mutant(self, mutant: Mutant) -> MutantResult:
        start_time = time.monotonic()
        attempt = (
            self._run_started(mutant) if mutant.is_read_at_start else self._run_patched(mutant)
        )
        return MutantResult(mutant, await attempt, time.monotonic() - start_time)

    def _select_sequences(self, mutant: Mutant) -> list[Sequence]:
        return list_sequences(mutant, self._baseline.line_coverage, is_thorough=self._is_thorough)

    # In a running gateway

    async def _run_patched(self, mutant: Mutant) -> str:
        case_coverage = self._baseline.case_coverage
        if failing_case := await find_failing_case(mutant, case_coverage, self._case_state):
            return failing_case
        sequences = self._select_sequences(mutant)
        difference = await self._find_difference(mutant, self._full_services, sequences)
        if difference or mutant.module not in MODULES_FOR_BARE_SERVICE:
            return difference
        return await self._find_difference(mutant, self._bare_services, self._list_bare_sequences())

    def _list_bare_sequences(self) -> list[Sequence]:
        sequences = [coverage()[index] for index in self._baseline.bare_sequence_indexes]
        return [sequence for sequence in sequences if sequence[0] in TAGS_FOR_BARE_SERVICE]

    async def _find_difference(
        self, mutant: Mutant, services: RenewedServices, sequences: list[Sequence]
    ) -> str:
        found_difference = await self._request_all(mutant, services, sequences)
        if found_difference is None:
            return ""
        difference, sequence = found_difference
        if sequence is None:
            return difference
        # The mutant may have left data that differs without it, too.
        if not await _find_first_difference(await services.acquire(), sequence):
            return difference
        await services.renew()
        if baseline_difference := await _find_first_difference(await services.acquire(), sequence):
            raise AssertionError(f"differs without a mutant: {baseline_difference}")
        found_difference = await self._request_all(mutant, services, sequences)
        return found_difference[0] if found_difference else ""

    async def _request_all(
        self, mutant: Mutant, services: RenewedServices, sequences: list[Sequence]
    ) -> tuple[str, Sequence | None] | None:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(apply_mutant(mutant))
                # Only this part of the description can be changed in a running gateway.
                if mutant.module == "errors" and (difference := self._compare_description()):
                    return difference, None
            except Exception as error:  # noqa: BLE001 - any exception reveals the mutant
                return f"cannot be loaded: {type(error).__name__}", None
            for sequence in sequences:
                if difference := await _find_first_difference(await services.acquire(), sequence):
                    return difference, sequence
        return None

    def _compare_description(self) -> str:
        difference = compare_openapi(describe_interface(), self._baseline.shown_fields)
        return difference and f"described otherwise: {difference}"

    # In a gateway that is started with the mutant

    async def _run_started(self, mutant: Mutant) -> str:
        job = Job(mutant.module, mutant.unparse())
        try:
            description = await self._zygote.start(job)
            self._zygote.stop()
            if difference := compare_openapi(description, self._baseline.shown_fields):
                return f"described otherwise: {difference}"
            difference = await self._request_started(job, self._select_sequences(mutant), OWN_WORDS)
            if difference or mutant.module not in MODULES_FOR_BARE_SERVICE:
                return difference
            return await self._request_started(
                job, self._list_bare_sequences(), {}, **BARE_SERVICE_OPTIONS
            )
        except GatewayNotStarted as error:
            return f"cannot be started: {error}"
        finally:
            self._zygote.stop()

    async def _request_started(
        self,
        job: Job,
        sequences: list[Sequence],
        vocabulary: Mapping[str, str],
        **service_options: Any,
    ) -> str:
        folder = Path(tempfile.mkdtemp(dir=IN_MEMORY))
        shutil.copytree(await self._prepare_state(), folder, dirs_exist_ok=True)
        try:
            async with open_services(vocabulary, **service_options) as (
                legacy_simulator,
                current_simulator,
            ):
                sections = build_sections(vocabulary)
                url = await self._zygote.start(
                    replace(
                        job, folder=str(folder), base_url=current_simulator.url, sections=sections
                    )
                )
                services = ComparedServices(
                    legacy_simulator.legacy_url,
                    url,
                    iter(build_keys(len(coverage()))),
                    (legacy_simulator.service, current_simulator.service),
                    seconds=SECONDS,
                    recorded_responses=self._recorded_responses,
                )
                for sequence in sequences:
                    if difference := await _find_first_difference(services, sequence):
                        return difference
        finally:
            self._zygote.stop()
            shutil.rmtree(folder)
        return ""

    async def _prepare_state(self) -> Path:
        """A database with keys, to be copied."""
        if self._template is None:
            self._template = Path(tempfile.mkdtemp(dir=IN_MEMORY))
            await import_keys(self._template, build_keys(len(coverage())))
        return self._template


@dataclass(frozen=True, slots=True)
class Baseline:
    """Measurements without a mutant, shared by all processes that try mutants.

    ``case_coverage`` is of the cases. ``responses`` are control's for each sequence: status, headers and body; ``shown_fields`` are the fields
    in them. ``bare_sequence_indexes`` are the sequences whose responses are equal with a bare service, too,
    which omits fields of a draft.
    """

    case_coverage: dict[str, list[int]]
    line_coverage: dict[str, list[int]]
    responses: list[list[tuple[int, dict[str, str], str]]]
    shown_fields: list[str]
    bare_sequence_indexes: list[int]

    def list_responses(self) -> dict[int, list[Answer]]:
        return {
            id(requests): [Answer(status, headers, body.encode()) for status, headers, body in rows]
            for (_tag, requests), rows in zip(coverage(), self.responses, strict=True)
        }


async def measure_baseline(*, is_brief: bool) -> Baseline:
    """Plays all sequences without a mutant, each as a new merchant; if ``is_brief``, only EVERY_FIELD.

    Raises AssertionError if responses differ, or if a field in them is not described.
    """
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        async with open_compared_services(
            Path(folder), len(coverage()), OWN_WORDS
        ) as opened_services:
            services = replace(opened_services, recorded_responses={}, shown_fields=set())
            if is_brief:
                await services.compare_sequence(EVERY_FIELD)
                return Baseline({}, {}, [], sorted(services.shown_fields or ()), [])
            line_coverage = await measure_reach(services)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        async with open_case_state(Path(folder)) as case_state:
            case_coverage = await measure_case_coverage(case_state)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        async with open_compared_services(
            Path(folder), len(coverage()), **BARE_SERVICE_OPTIONS
        ) as bare_services:
            differences = [
                await bare_services.compare_sequence(requests) for _tag, requests in coverage()
            ]
            bare_sequence_indexes = [
                index for index, difference in enumerate(differences) if not difference
            ]
    responses = services.recorded_responses or {}
    response_rows = [
        [
            (response.status, dict(response.headers), response.body.decode())
            for response in responses[id(requests)]
        ]
        for _tag, requests in coverage()
    ]
    shown_fields = sorted(services.shown_fields or ())
    difference = compare_openapi(describe_interface(), shown_fields)
    assert not difference, difference
    return Baseline(
        case_coverage, line_coverage, response_rows, shown_fields, bare_sequence_indexes
    )


async def _find_first_difference(services: ComparedServices, sequence: Sequence) -> str:
    """The first difference in a sequence; empty if there is none."""
    _, requests = sequence
    try:
        with limit_cpu_time():
            difference = await services.compare_sequence(requests)
    except (AnswerUnavailable, TimeoutError) as error:
        return f"no answer: {error}"
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        # A response that belongs to neither interface; no ids can be read from it.
        return f"cannot be read: {type(error).__name__}"
    if not difference:
        return ""
    first_difference = difference[0]
    return f"{first_difference.request.partition('?')[0][:60]}: {first_difference.difference.kind} {first_difference.difference.normal_path}"


def select_share(mutants: list[Mutant], part_number: int, part_count: int) -> Iterator[Mutant]:
    return (mutant for number, mutant in enumerate(mutants) if number % part_count == part_number)
