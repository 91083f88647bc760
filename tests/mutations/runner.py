"""Tries mutants: plays sequences that may reveal each until a response differs."""

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

from gateway.compare.answer import Answer
from gateway.compare.endpoints import AnswerUnavailable
from tests.mutations.line_coverage import Reach, measure_reach, select_sequences
from tests.mutations.mutants import Mutant
from tests.mutations.patching import apply_mutant
from tests.mutations.zygote import GatewayForker, GatewayNotStarted, Job
from tests.proof.coverage import EVERY_FIELD, Sequence, coverage
from tests.proof.openapi_check import compare_openapi
from tests.proof.worlds import (
    OWN_WORDS,
    ComparedServices,
    build_keys,
    build_sections,
    import_keys,
    open_compared_services,
    open_services,
)
from tests.running_gateway import describe_interface

SECONDS = 8
"""Limit for one response: a mutant may loop for ever."""

MERCHANTS = 1500
"""Sequences before both services are replaced."""

IN_MEMORY = next((place for place in ("/dev/shm",) if os.access(place, os.W_OK)), None)
"""For databases that need not survive: a disk would take most of the time."""

FIRST = {
    "objects": ("recipients", "payouts", "lists", "batches"), "banking": ("faults", "banks", "payouts"),
    "recipient_queries": ("lists",), "recipient_bodies": ("recipients",),
    "recipients": ("recipients", "lists"), "payouts": ("payouts", "banks"),
    "payout_changes": ("payouts",), "payout_methods": ("payouts",),
    "government_ids": ("banks", "recipients"), "balances": ("balances",),
    "funds": ("batches", "balances"), "summaries": ("batches",), "paging": ("pages", "lists"),
    "money": ("batches", "amounts"), "payloads": ("batches",), "geography": ("geography",),
    "batch_bodies": ("batches", "amounts"), "batch_reads": ("batches",),
    "batch_views": ("batches", "pages"), "batches": ("batches", "pages"),
    "batch_lists": ("batches", "pages"), "batch_changes": ("batches", "pages"),
    "payments": ("batches", "pages"), "newest_payments": ("newest", "batches"), "matching": ("batches",), "drafts": ("batches",),
    "batch_answers": ("batches", "pages"), "payment_bodies": ("batches", "amounts"), "start_checks": ("batches", "pages"),
    "recipient_payments": ("recipients", "lists"), "batch_locks": ("batches",), "payment_adds": ("batches",),
    "errors": ("errors", "recipients", "batches"), "field_types": ("recipients", "amounts"),
}  # fmt: skip
"""Tags of the sequences most likely to reveal a mutant of a module; all are played in the end."""


Remembered = dict[int, list[Answer]] | None
"""What control answered to each sequence (its ``id``)."""


@dataclass(frozen=True, slots=True)
class MutantResult:
    """``by`` is what found the mutant; empty if it survived."""

    mutant: Mutant
    found_by: str
    seconds: float

    @property
    def has_survived(self) -> bool:
        return not self.found_by


FIRST_OF = {
    "RECIPIENT": ("recipients", "lists"), "ADDRESS": ("recipients",),
    "COMPLIANCE": ("recipients",), "BANK": ("payouts",), "WALLET": ("payouts",),
    "PAYMENT": ("batches", "lists"), "PAYMENT_BATCH": ("batches", "lists"),
    "DUAL_BRANCH_NAME_COUNTRIES": ("banks", "payouts"), "LEGACY_PAYMENT_STATUSES": ("lists", "batches"),
}  # fmt: skip
"""And of tables that are one part of what their module is about."""

LIKELY = {
    "RecipientBody": "recipients", "Address": "recipients", "RecipientIdsBody": "recipients",
    "BankBody": "payouts", "PrimaryBody": "payouts", "PayoutBody": "payouts", "Hold": "payouts",
    "AccountsBody": "payouts", "WalletBody": "payouts", "Activity": "recipients",
}  # fmt: skip
"""Of shapes what is asked first; the others are about batches."""


def list_sequences(mutant: Mutant, reach: Reach, *, thoroughly: bool = False) -> list[Sequence]:
    """The sequences that come to it and are about it, the short ones first; thoroughly: all."""
    places = select_sequences(mutant, reach)
    sequences = [one for place, one in enumerate(coverage()) if places is None or place in places]
    tags = FIRST_OF.get(mutant.where) or FIRST.get(mutant.module, ())
    if mutant.module == "legacy":
        likely = LIKELY.get(mutant.where, "batches")
        return sorted(sequences, key=lambda one: (one[0] != likely, len(one[1])))
    order = {tag: place for place, tag in enumerate(tags)}
    if tags and not thoroughly:
        sequences = [one for one in sequences if one[0] in order]
    return sorted(
        sequences, key=lambda one: (len(one[1]) > MANY_REQUESTS, order.get(one[0], 9), len(one[1]))
    )


MANY_REQUESTS = 30
"""Requests: where a sequence has more, those of other tags are asked before it."""


BARE_SWITCHES: dict[str, Any] = {
    "inferred": False, "lists_payments": False, "answers": "bare", "balance_shape": "list",
    "processed_word": "complete", "validation_status": 406,
}  # fmt: skip
"""A service that says as little as the current document lets it, and has no inferred operation."""


MODULES_FOR_BARE_SERVICE = {
    "balances", "batch_bodies", "batch_changes", "batch_lists", "batch_reads", "batch_views", "batches", "drafts", "funds",
    "matching", "money", "newest_payments", "paging", "payloads", "payments", "recipients", "summaries",
    "batch_answers", "batch_locks", "payment_adds", "payment_bodies", "recipient_payments", "start_checks",
}  # fmt: skip
"""Modules that have to do with what such a service does not tell."""

TAGS_FOR_BARE_SERVICE = {"batches", "pages", "amounts", "balances", "every field"}
"""What is asked in front of it; which lines that comes to nobody has found out."""


class RenewedServices:
    """Compared services of one kind, replaced now and then."""

    def __init__(self, words: Mapping[str, str], remembers: Remembered, **switches: Any) -> None:
        self._words = words
        self._remembers = remembers
        self._switches = switches
        self._stack = contextlib.AsyncExitStack()
        self._worlds: ComparedServices | None = None
        self._left = 0

    async def acquire(self) -> ComparedServices:
        if self._worlds is None or self._left <= 0:
            await self.renew()
        self._left -= 1
        assert self._worlds is not None
        return self._worlds

    async def renew(self) -> None:
        await self.close()
        folder = Path(tempfile.mkdtemp(dir=IN_MEMORY))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        opening = open_compared_services(folder, MERCHANTS, self._words, **self._switches)
        worlds = await self._stack.enter_async_context(opening)
        self._worlds = replace(worlds, seconds=SECONDS, recorded_responses=self._remembers)
        self._left = MERCHANTS

    async def close(self) -> None:
        await self._stack.aclose()


class MutantRunner:
    """``async with`` it; one mutant after another. Two of them share nothing."""

    def __init__(self, zygote: GatewayForker, known: Baseline, *, thoroughly: bool = False) -> None:
        self._zygote = zygote
        self._known = known
        # Of the legacy face, which no mutant changes.
        self._remembers = known.list_responses() if known.answers else None
        self._full = RenewedServices(OWN_WORDS, self._remembers)
        self._bare = RenewedServices({}, self._remembers, **BARE_SWITCHES)
        self._thoroughly = thoroughly
        self._template: Path | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._full.close()
        await self._bare.close()
        if self._template:
            shutil.rmtree(self._template)

    async def run_mutant(self, mutant: Mutant) -> MutantResult:
        began = time.monotonic()
        tries = self._run_started(mutant) if mutant.is_read_at_start else self._run_patched(mutant)
        return MutantResult(mutant, await tries, time.monotonic() - began)

    def _sequences(self, mutant: Mutant) -> list[Sequence]:
        return list_sequences(mutant, self._known.reach, thoroughly=self._thoroughly)

    # In a gateway that runs

    async def _run_patched(self, mutant: Mutant) -> str:
        sequences = self._sequences(mutant)
        by = await self._find_difference(mutant, self._full, sequences)
        if by or mutant.module not in MODULES_FOR_BARE_SERVICE:
            return by
        return await self._find_difference(mutant, self._bare, self._list_bare_sequences())

    def _list_bare_sequences(self) -> list[Sequence]:
        alike = [coverage()[place] for place in self._known.call_digest]
        return [one for one in alike if one[0] in TAGS_FOR_BARE_SERVICE]

    async def _find_difference(
        self, mutant: Mutant, town: RenewedServices, sequences: list[Sequence]
    ) -> str:
        found = await self._request_all(mutant, town, sequences)
        if found is None:
            return ""
        by, sequence = found
        if sequence is None:
            return by
        # It may have left something behind that differs without it, too.
        if not await _find_first_difference(await town.acquire(), sequence):
            return by
        await town.renew()
        if again := await _find_first_difference(await town.acquire(), sequence):
            raise AssertionError(f"differs without a mutant: {again}")
        found = await self._request_all(mutant, town, sequences)
        return found[0] if found else ""

    async def _request_all(
        self, mutant: Mutant, town: RenewedServices, sequences: list[Sequence]
    ) -> tuple[str, Sequence | None] | None:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(apply_mutant(mutant))
                # Of what is described nothing else can be changed in a gateway that runs.
                if mutant.module == "errors" and (by := self._compare_description()):
                    return by, None
            except Exception as error:  # noqa: BLE001 - what it raises is what is looked for
                return f"cannot be loaded: {type(error).__name__}", None
            for sequence in sequences:
                if by := await _find_first_difference(await town.acquire(), sequence):
                    return by, sequence
        return None

    def _compare_description(self) -> str:
        difference = compare_openapi(describe_interface(), self._known.shown)
        return difference and f"described otherwise: {difference}"

    # In one that is started with it

    async def _run_started(self, mutant: Mutant) -> str:
        job = Job(mutant.module, mutant.source())
        try:
            description = await self._zygote.start(job)
            self._zygote.stop()
            if by := compare_openapi(description, self._known.shown):
                return f"described otherwise: {by}"
            by = await self._request_started(job, self._sequences(mutant), OWN_WORDS)
            if by or mutant.module not in MODULES_FOR_BARE_SERVICE:
                return by
            return await self._request_started(
                job, self._list_bare_sequences(), {}, **BARE_SWITCHES
            )
        except GatewayNotStarted as error:
            return f"cannot be started: {error}"
        finally:
            self._zygote.stop()

    async def _request_started(
        self, job: Job, sequences: list[Sequence], words: Mapping[str, str], **switches: Any
    ) -> str:
        folder = Path(tempfile.mkdtemp(dir=IN_MEMORY))
        shutil.copytree(await self._prepare_state(), folder, dirs_exist_ok=True)
        try:
            async with open_services(words, **switches) as (old, new):
                assert old.legacy is not None
                sections = build_sections(words)
                url = await self._zygote.start(
                    replace(job, folder=str(folder), base_url=new.url, sections=sections)
                )
                worlds = ComparedServices(
                    old.legacy.url,
                    url,
                    iter(build_keys(len(coverage()))),
                    (old.service, new.service),
                    seconds=SECONDS,
                    recorded_responses=self._remembers,
                )
                for sequence in sequences:
                    if by := await _find_first_difference(worlds, sequence):
                        return by
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
    """What was found out once, for every process that tries mutants.

    ``answers`` are control's, by the place of the sequence: status, headers and body of each;
    ``shown`` are the fields in them. ``alike`` are the places of sequences that are answered alike
    in front of a bare service, too: what it does not tell of a draft is null.
    """

    reach: dict[str, list[int]]
    answers: list[list[tuple[int, dict[str, str], str]]]
    shown: list[str]
    alike: list[int]

    def list_responses(self) -> dict[int, list[Answer]]:
        return {
            id(askings): [Answer(status, headers, body.encode()) for status, headers, body in told]
            for (_tag, askings), told in zip(coverage(), self.answers, strict=True)
        }


async def measure_baseline(*, is_brief: bool) -> Baseline:
    """All sequences are asked without a mutant, in worlds of their own; in brief: what shows all.

    Raises AssertionError where one is not answered alike, or what is shown not described.
    """
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        async with open_compared_services(Path(folder), len(coverage()), OWN_WORDS) as opened:
            worlds = replace(opened, recorded_responses={}, shown_fields=set())
            if is_brief:
                await worlds.play(EVERY_FIELD)
                return Baseline({}, [], sorted(worlds.shown_fields or ()), [])
            reach = await measure_reach(worlds)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        async with open_compared_services(Path(folder), len(coverage()), **BARE_SWITCHES) as barely:
            played = [await barely.play(askings) for _tag, askings in coverage()]
            alike = [place for place, differ in enumerate(played) if not differ]
    responses = worlds.recorded_responses or {}
    answers = [
        [(one.status, dict(one.headers), one.body.decode()) for one in responses[id(askings)]]
        for _tag, askings in coverage()
    ]
    shown = sorted(worlds.shown_fields or ())
    differ = compare_openapi(describe_interface(), shown)
    assert not differ, differ
    return Baseline(reach, answers, shown, alike)


async def _find_first_difference(worlds: ComparedServices, sequence: Sequence) -> str:
    """The first difference in a sequence; empty if there is none."""
    _, askings = sequence
    try:
        difference = await worlds.play(askings)
    except (AnswerUnavailable, TimeoutError) as error:
        return f"no answer: {error}"
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        # An answer that is no answer of either interface: nothing can be learned from it.
        return f"cannot be read: {type(error).__name__}"
    if not difference:
        return ""
    one = difference[0]
    return (
        f"{one.asking.partition('?')[0][:60]}: {one.difference.kind} {one.difference.normal_path}"
    )


def select_share(mutants: list[Mutant], part: int, parts: int) -> Iterator[Mutant]:
    return (mutant for number, mutant in enumerate(mutants) if number % parts == part)
