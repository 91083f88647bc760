"""Mutants tried: each is asked for what it may have broken, until an answer differs or all is asked."""

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
from gateway.docgen.openapi import build_openapi_document
from mappings.effects import Vocabulary
from tests.mutations.mutants import Mutant
from tests.mutations.patching import patched
from tests.mutations.reach import Reach, reach_of, sequences_for
from tests.mutations.zygote import Job, NotStarted, Zygote
from tests.proof.coverage import EVERY_FIELD, Sequence, coverage
from tests.proof.described import differs
from tests.proof.worlds import (
    OWN_WORDS,
    Worlds,
    import_keys,
    keys_of,
    open_services,
    open_worlds,
    sections_of,
)

SECONDS = 8
"""For one answer: a mutant may go round for ever."""

MERCHANTS = 1500
"""Then both worlds are made anew."""

IN_MEMORY = next((place for place in ("/dev/shm",) if os.access(place, os.W_OK)), None)
"""Where a state is that nobody needs to find again: a disk takes most of the time."""

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
"""What is likely to notice a mutant of a module is asked first; in the end all is."""


Remembered = dict[int, list[Answer]] | None
"""What control answered to each sequence (its ``id``)."""


@dataclass(frozen=True, slots=True)
class Tried:
    """``by`` is what found it; empty where nothing did."""

    mutant: Mutant
    by: str
    seconds: float

    @property
    def survived(self) -> bool:
        return not self.by


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


def asked_of(mutant: Mutant, reach: Reach, *, thoroughly: bool = False) -> list[Sequence]:
    """The sequences that come to it and are about it, the short ones first; thoroughly: all."""
    places = sequences_for(mutant, reach)
    those = [one for place, one in enumerate(coverage()) if places is None or place in places]
    tags = FIRST_OF.get(mutant.where) or FIRST.get(mutant.module, ())
    if mutant.module == "legacy":
        likely = LIKELY.get(mutant.where, "batches")
        return sorted(those, key=lambda one: (one[0] != likely, len(one[1])))
    order = {tag: place for place, tag in enumerate(tags)}
    if tags and not thoroughly:
        those = [one for one in those if one[0] in order]
    return sorted(those, key=lambda one: (len(one[1]) > MANY, order.get(one[0], 9), len(one[1])))


MANY = 30
"""Requests: where a sequence has more, those of other tags are asked before it."""


BARE: dict[str, Any] = {
    "inferred": False, "lists_payments": False, "answers": "bare", "balance_shape": "list",
    "processed_word": "complete", "validation_status": 406,
}  # fmt: skip
"""A service that says as little as the current document lets it, and has no inferred operation."""


TOLD_BARELY = {
    "balances", "batch_bodies", "batch_changes", "batch_lists", "batch_reads", "batch_views", "batches", "drafts", "funds",
    "matching", "money", "newest_payments", "paging", "payloads", "payments", "recipients", "summaries",
    "batch_answers", "batch_locks", "payment_adds", "payment_bodies", "recipient_payments", "start_checks",
}  # fmt: skip
"""Modules that have to do with what such a service does not tell."""

ASKED_BARELY = {"batches", "pages", "amounts", "balances", "every field"}
"""What is asked in front of it; which lines that comes to nobody has found out."""


class Town:
    """Worlds of one kind of service, made anew now and then."""

    def __init__(self, words: Mapping[str, str], remembers: Remembered, **switches: Any) -> None:
        self._words = words
        self._remembers = remembers
        self._switches = switches
        self._stack = contextlib.AsyncExitStack()
        self._worlds: Worlds | None = None
        self._left = 0

    async def ready(self) -> Worlds:
        if self._worlds is None or self._left <= 0:
            await self.anew()
        self._left -= 1
        assert self._worlds is not None
        return self._worlds

    async def anew(self) -> None:
        await self.close()
        folder = Path(tempfile.mkdtemp(dir=IN_MEMORY))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        opening = open_worlds(folder, MERCHANTS, self._words, **self._switches)
        worlds = await self._stack.enter_async_context(opening)
        self._worlds = replace(worlds, seconds=SECONDS, remembers=self._remembers)
        self._left = MERCHANTS

    async def close(self) -> None:
        await self._stack.aclose()


class Bench:
    """``async with`` it; one mutant after another. Two of them share nothing."""

    def __init__(self, zygote: Zygote, known: Known, *, thoroughly: bool = False) -> None:
        self._zygote = zygote
        self._known = known
        # Of the legacy face, which no mutant changes.
        self._remembers = known.remembers() if known.answers else None
        self._full = Town(OWN_WORDS, self._remembers)
        self._bare = Town({}, self._remembers, **BARE)
        self._thoroughly = thoroughly
        self._template: Path | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._full.close()
        await self._bare.close()
        if self._template:
            shutil.rmtree(self._template)

    async def try_(self, mutant: Mutant) -> Tried:
        began = time.monotonic()
        tries = self._started(mutant) if mutant.is_read_at_start else self._patched(mutant)
        return Tried(mutant, await tries, time.monotonic() - began)

    def _sequences(self, mutant: Mutant) -> list[Sequence]:
        return asked_of(mutant, self._known.reach, thoroughly=self._thoroughly)

    # In a gateway that runs

    async def _patched(self, mutant: Mutant) -> str:
        sequences = self._sequences(mutant)
        by = await self._found(mutant, self._full, sequences)
        if by or mutant.module not in TOLD_BARELY:
            return by
        return await self._found(mutant, self._bare, self._barely())

    def _barely(self) -> list[Sequence]:
        alike = [coverage()[place] for place in self._known.alike]
        return [one for one in alike if one[0] in ASKED_BARELY]

    async def _found(self, mutant: Mutant, town: Town, sequences: list[Sequence]) -> str:
        found = await self._asked(mutant, town, sequences)
        if found is None:
            return ""
        by, sequence = found
        if sequence is None:
            return by
        # It may have left something behind that differs without it, too.
        if not await _difference(await town.ready(), sequence):
            return by
        await town.anew()
        if again := await _difference(await town.ready(), sequence):
            raise AssertionError(f"differs without a mutant: {again}")
        found = await self._asked(mutant, town, sequences)
        return found[0] if found else ""

    async def _asked(
        self, mutant: Mutant, town: Town, sequences: list[Sequence]
    ) -> tuple[str, Sequence | None] | None:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(patched(mutant))
                # Of what is described nothing else can be changed in a gateway that runs.
                if mutant.module == "errors" and (by := self._described_otherwise()):
                    return by, None
            except Exception as error:  # noqa: BLE001 - what it raises is what is looked for
                return f"cannot be loaded: {type(error).__name__}", None
            for sequence in sequences:
                if by := await _difference(await town.ready(), sequence):
                    return by, sequence
        return None

    def _described_otherwise(self) -> str:
        found = differs(build_openapi_document(Vocabulary(), ()), self._known.shown)
        return found and f"described otherwise: {found}"

    # In one that is started with it

    async def _started(self, mutant: Mutant) -> str:
        job = Job(mutant.module, mutant.source())
        try:
            description = await self._zygote.start(job)
            self._zygote.stop()
            if by := differs(description, self._known.shown):
                return f"described otherwise: {by}"
            by = await self._asked_anew(job, self._sequences(mutant), OWN_WORDS)
            if by or mutant.module not in TOLD_BARELY:
                return by
            return await self._asked_anew(job, self._barely(), {}, **BARE)
        except NotStarted as error:
            return f"cannot be started: {error}"
        finally:
            self._zygote.stop()

    async def _asked_anew(
        self, job: Job, sequences: list[Sequence], words: Mapping[str, str], **switches: Any
    ) -> str:
        folder = Path(tempfile.mkdtemp(dir=IN_MEMORY))
        shutil.copytree(await self._filled(), folder, dirs_exist_ok=True)
        try:
            async with open_services(words, **switches) as (old, new):
                assert old.legacy is not None
                sections = sections_of(words)
                url = await self._zygote.start(
                    replace(job, folder=str(folder), base_url=new.url, sections=sections)
                )
                worlds = Worlds(
                    old.legacy.url,
                    url,
                    iter(keys_of(len(coverage()))),
                    (old.service, new.service),
                    seconds=SECONDS,
                    remembers=self._remembers,
                )
                for sequence in sequences:
                    if by := await _difference(worlds, sequence):
                        return by
        finally:
            self._zygote.stop()
            shutil.rmtree(folder)
        return ""

    async def _filled(self) -> Path:
        """A state with keys in it, to be copied."""
        if self._template is None:
            self._template = Path(tempfile.mkdtemp(dir=IN_MEMORY))
            await import_keys(self._template, keys_of(len(coverage())))
        return self._template


@dataclass(frozen=True, slots=True)
class Known:
    """What was found out once, for every process that tries mutants.

    ``answers`` are control's, by the place of the sequence: status, headers and body of each;
    ``shown`` are the fields in them. ``alike`` are the places of sequences that are answered alike
    in front of a bare service, too: what it does not tell of a draft is null.
    """

    reach: dict[str, list[int]]
    answers: list[list[tuple[int, dict[str, str], str]]]
    shown: list[str]
    alike: list[int]

    def remembers(self) -> dict[int, list[Answer]]:
        return {
            id(askings): [Answer(status, headers, body.encode()) for status, headers, body in told]
            for (_tag, askings), told in zip(coverage(), self.answers, strict=True)
        }


async def known(*, is_brief: bool) -> Known:
    """All sequences are asked without a mutant, in worlds of their own; in brief: what shows all.

    Raises AssertionError where one is not answered alike, or what is shown not described.
    """
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        async with open_worlds(Path(folder), len(coverage()), OWN_WORDS) as opened:
            worlds = replace(opened, remembers={}, shown=set())
            if is_brief:
                await worlds.play(EVERY_FIELD)
                return Known({}, [], sorted(worlds.shown or ()), [])
            reach = await reach_of(worlds)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        async with open_worlds(Path(folder), len(coverage()), **BARE) as barely:
            played = [await barely.play(askings) for _tag, askings in coverage()]
            alike = [place for place, differ in enumerate(played) if not differ]
    told = worlds.remembers or {}
    answers = [
        [(one.status, dict(one.headers), one.body.decode()) for one in told[id(askings)]]
        for _tag, askings in coverage()
    ]
    shown = sorted(worlds.shown or ())
    differ = differs(build_openapi_document(Vocabulary(), ()), shown)
    assert not differ, differ
    return Known(reach, answers, shown, alike)


async def _difference(worlds: Worlds, sequence: Sequence) -> str:
    """What of a sequence is not answered alike; empty where all is."""
    _, askings = sequence
    try:
        found = await worlds.play(askings)
    except (AnswerUnavailable, TimeoutError) as error:
        return f"no answer: {error}"
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        # An answer that is no answer of either interface: nothing can be learned from it.
        return f"cannot be read: {type(error).__name__}"
    if not found:
        return ""
    one = found[0]
    return (
        f"{one.asking.partition('?')[0][:60]}: {one.difference.kind} {one.difference.normal_path}"
    )


def share_of(mutants: list[Mutant], part: int, parts: int) -> Iterator[Mutant]:
    return (one for number, one in enumerate(mutants) if number % parts == part)
