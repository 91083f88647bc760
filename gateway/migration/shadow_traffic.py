"""Shadow traffic: sends reads to the other service too, and counts the differences.

Only reads of keys and groups in mode ``compare``, after the client has its response. They wait in
a bounded queue, and are dropped if it is full. A difference is checked again, because the data may
have changed between the two reads. Only the places of differences are stored, never values.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import structlog

from gateway.compare.answer import Answer
from gateway.compare.differences import Differ
from gateway.compare.id_map import Pairing
from gateway.compare.mask import Redactor
from gateway.compare.rules import Rules
from gateway.config.settings import Comparing
from gateway.http.responses import LegacyResponse, PassedResponse
from gateway.migration.forwarding import MOST_BYTES, InboundRequest
from gateway.migration.routing import Forwarding
from gateway.observability import logs
from gateway.payloads import json_codec
from gateway.storage import Store, StoreUnavailable
from gateway.storage.difference_rows import Asked, Place, Tally, add_tallies
from gateway.storage.periodic_tasks import PeriodicTask
from mappings.grammar import Failure

EVERY_SECONDS = 1.0
SIDE_BY_SIDE = 4
AGAIN_AFTER = 0.5
"""Seconds before a difference is checked again."""

MOST_PLACES = 200
"""Places per operation between two writes; further ones are counted as one."""

ELSEWHERE = ("too many", "$")
END_SECONDS = 2

Translate = Callable[[], Awaitable[LegacyResponse]]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Item:
    came: InboundRequest
    said: LegacyResponse | PassedResponse
    translate: Translate


class _NotComparable(Exception):
    """One of the two answers is missing, or would take too much memory to parse."""


class Alongside:
    """Compares the services in the background; an async context manager."""

    def __init__(
        self,
        settings: Comparing,
        store: Store,
        forwarding: Forwarding,
        clock: Callable[[], datetime],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._forwarding = forwarding
        self._clock = clock
        self._chance = chance
        self._sample = settings.sample
        self._queue: asyncio.Queue[_Item] = asyncio.Queue(settings.queue)
        self._tallies: dict[Asked, Tally] = {}
        self._rules = Rules().for_reads
        self._tasks: list[asyncio.Task[None]] = []
        self._rounds = PeriodicTask("comparison_write", EVERY_SECONDS, self._write)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._comparing()) for _ in range(SIDE_BY_SIDE)]
        await self._rounds.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Drops queued comparisons, and waits a bounded time for running ones."""
        while not self._queue.empty():
            self._tally(self._queue.get_nowait().came).dropped += 1
            self._queue.task_done()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._queue.join(), END_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._rounds.__aexit__()

    def offer(
        self, came: InboundRequest, said: LegacyResponse | PassedResponse, translate: Translate
    ) -> None:
        """Queues a comparison without waiting; called when the client's response is ready."""
        if self._chance() >= self._sample:
            return
        try:
            self._queue.put_nowait(_Item(came, said, translate))
        # Dropping a comparison is better than delaying requests.
        except asyncio.QueueFull:
            self._tally(came).dropped += 1

    async def _comparing(self) -> None:
        while True:
            item = await self._queue.get()
            try:
                await self._compared(item)
            except Exception as error:  # noqa: BLE001 - one failure must not end the task
                self._tally(item.came).failed += 1
                log.error("comparison_failed", **logs.describe_exception(error))
            finally:
                self._queue.task_done()

    async def _compared(self, item: _Item) -> None:
        try:
            differences = await self._differences(item, item.said)
            if differences:
                await asyncio.sleep(AGAIN_AFTER)
                # Only differences that both rounds have in common.
                differences &= await self._differences(item, None)
        except (_NotComparable, Failure, StoreUnavailable):
            self._tally(item.came).failed += 1
            return
        tally = self._tally(item.came)
        tally.compared += 1
        tally.different += bool(differences)
        for place in differences:
            known = place in tally.places or len(tally.places) < MOST_PLACES
            named = place if known else ELSEWHERE
            tally.places[named] = tally.places.get(named, 0) + 1

    async def _differences(
        self, item: _Item, said: LegacyResponse | PassedResponse | None
    ) -> set[Place]:
        """Finds the places where the two differ; an answer in ``response`` is not fetched again."""
        control = (
            said if isinstance(said, PassedResponse) else await self._forwarding.read(item.came)
        )
        # An outage, a cached answer or a limit says nothing about the data.
        if control.status >= 500 or control.status in (304, 429):
            raise _NotComparable
        candidate = said if isinstance(said, LegacyResponse) else await item.translate()
        bodies = (control.body, candidate.data)
        if (
            await asyncio.to_thread(lambda: max(map(json_codec.estimate_memory_bytes, bodies)))
            > MOST_BYTES
        ):
            raise _NotComparable
        differ = Differ(self._rules, Pairing(apart=False), operation=item.came.operation.name)
        one, other = (
            Answer(control.status, {}, bodies[0]),
            Answer(candidate.status, {}, bodies[1]),
        )
        found = await asyncio.to_thread(differ.answers, one, other)
        eye = Redactor(item.came.asked.keys)
        return {(each.kind, eye.place(each.path)) for each in found}

    def _tally(self, came: InboundRequest) -> Tally:
        key, now = came.caller.key, self._clock()
        asked = Asked(key.owner, key.name, came.operation.name)
        tally = self._tallies.setdefault(asked, Tally(first_at=now))
        tally.last_at = now
        return tally

    async def _write(self) -> None:
        """Writes the counts; if that fails, they are written next time."""
        taken, self._tallies = self._tallies, {}
        try:
            await add_tallies(self._store, taken)
        except StoreUnavailable:
            self._tallies = merge_tallies(taken, self._tallies)
            raise


def merge_tallies(one: Mapping[Asked, Tally], other: Mapping[Asked, Tally]) -> dict[Asked, Tally]:
    """Adds up the counts of both."""
    found = dict(one)
    for asked, tally in other.items():
        before = found.get(asked)
        if before is None:
            found[asked] = tally
            continue
        for name in ("compared", "different", "failed", "dropped"):
            setattr(before, name, getattr(before, name) + getattr(tally, name))
        for place, answers in tally.places.items():
            before.places[place] = before.places.get(place, 0) + answers
        before.last_at = tally.last_at
    return found
