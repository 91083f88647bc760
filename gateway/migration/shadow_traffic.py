"""Shadow traffic: sends reads to the other service too, and counts the differences.

Compares only reads of keys and groups in mode ``compare``, after the client has its response. Reads
wait in a bounded queue, and are dropped if it is full. A difference is checked again, because the
data may have changed between the two reads. Only the places of differences are stored, never
values.
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

from gateway.compare.differences import Differ
from gateway.compare.endpoints import Answer
from gateway.compare.id_map import IdMap
from gateway.compare.masking import Redactor
from gateway.compare.rules import Rules
from gateway.config.settings import Comparing
from gateway.http.responses import LegacyResponse, PassedResponse
from gateway.migration.inbound_request import MAX_VALUE_BYTES, InboundRequest
from gateway.migration.routing import ServiceRouter
from gateway.observability import logs
from gateway.payloads import json_codec
from gateway.storage import Store, StoreUnavailable
from gateway.storage.difference_rows import (
    DifferencePlace,
    Tally,
    TallyKey,
    add_to_comparison_tallies,
)
from gateway.storage.periodic_tasks import PeriodicTask
from mappings.failures import Failure

WRITE_INTERVAL_SECONDS = 1.0
MAX_CONCURRENT_COMPARISONS = 4
RECHECK_SECONDS = 0.5
"""Seconds before a difference is checked again."""

MAX_PLACES = 200
"""Places per operation between two writes; further ones are counted as one."""

OVERFLOW_PLACE = ("too many", "$")
SHUTDOWN_SECONDS = 2

Translate = Callable[[], Awaitable[LegacyResponse]]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Item:
    inbound: InboundRequest
    response: LegacyResponse | PassedResponse
    translate: Translate


class _NotComparableError(Exception):
    """Raised if one of the two answers is missing, or would take too much memory to parse."""


class ShadowTraffic:
    """Compares the services in the background; an async context manager."""

    def __init__(
        self,
        settings: Comparing,
        store: Store,
        forwarding: ServiceRouter,
        clock: Callable[[], datetime],
        random_number: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._forwarding = forwarding
        self._clock = clock
        self._random = random_number
        self._sample_rate = settings.sample
        self._queue: asyncio.Queue[_Item] = asyncio.Queue(settings.queue)
        self._tallies: dict[TallyKey, Tally] = {}
        self._rules = Rules().rules_for_runs_without_writes
        self._tasks: list[asyncio.Task[None]] = []
        self._write_task = PeriodicTask(
            "comparison_write", WRITE_INTERVAL_SECONDS, self._write_tallies
        )

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._run_comparisons()) for _ in range(MAX_CONCURRENT_COMPARISONS)
        ]
        await self._write_task.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Drops queued comparisons, and waits a bounded time for running ones."""
        # Counted as dropped, so that the numbers add up to the requests that were offered.
        while not self._queue.empty():
            self._find_or_create_tally(self._queue.get_nowait().inbound).dropped += 1
            self._queue.task_done()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._queue.join(), SHUTDOWN_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._write_task.__aexit__()

    def enqueue_comparison(
        self,
        inbound: InboundRequest,
        response: LegacyResponse | PassedResponse,
        translate: Translate,
    ) -> None:
        """Queues a comparison without waiting; called when the client's response is ready."""
        if self._random() >= self._sample_rate:
            return
        try:
            self._queue.put_nowait(_Item(inbound, response, translate))
        # Dropping a comparison is better than delaying requests.
        except asyncio.QueueFull:
            self._find_or_create_tally(inbound).dropped += 1

    async def _run_comparisons(self) -> None:
        while True:
            item = await self._queue.get()
            try:
                await self._compare_item(item)
            except Exception as error:  # noqa: BLE001 - one failure must not end the task
                self._find_or_create_tally(item.inbound).failed += 1
                log.error("comparison_failed", **logs.describe_exception(error))
            finally:
                self._queue.task_done()

    async def _compare_item(self, item: _Item) -> None:
        try:
            differences = await self._find_differences(item, item.response)
            if differences:
                await asyncio.sleep(RECHECK_SECONDS)
                # Only differences found in both rounds count.
                differences &= await self._find_differences(item, None)
        except (_NotComparableError, Failure, StoreUnavailable):
            self._find_or_create_tally(item.inbound).failed += 1
            return
        tally = self._find_or_create_tally(item.inbound)
        tally.compared += 1
        tally.different += bool(differences)
        for place in differences:
            is_counted = place in tally.places or len(tally.places) < MAX_PLACES
            counted_place = place if is_counted else OVERFLOW_PLACE
            tally.places[counted_place] = tally.places.get(counted_place, 0) + 1

    async def _find_differences(
        self, item: _Item, response: LegacyResponse | PassedResponse | None
    ) -> set[DifferencePlace]:
        """Finds the places where the two differ; an answer in ``response`` is not fetched again."""
        control = (
            response
            if isinstance(response, PassedResponse)
            else await self._forwarding.fetch_legacy_read(item.inbound)
        )
        # An outage, a cached answer or a limit says nothing about the data.
        if control.status >= 500 or control.status in (304, 429):
            raise _NotComparableError
        candidate = response if isinstance(response, LegacyResponse) else await item.translate()
        bodies = (control.body, candidate.body_bytes)
        if (
            await asyncio.to_thread(lambda: max(map(json_codec.estimate_memory_bytes, bodies)))
            > MAX_VALUE_BYTES
        ):
            raise _NotComparableError
        differ = Differ(
            self._rules, IdMap(has_separate_ids=False), operation=item.inbound.operation.name
        )
        # Headers are left out: they differ between the services and say nothing about the data.
        control_answer, candidate_answer = (
            Answer(control.status, {}, bodies[0]),
            Answer(candidate.status, {}, bodies[1]),
        )
        differences = await asyncio.to_thread(
            differ.compare_answers, control_answer, candidate_answer
        )
        # A path may contain keys from the data, such as ids, and those are never stored.
        redactor = Redactor(item.inbound.flow_request.api_keys)
        return {
            (difference.kind, redactor.redact_normal_path(difference.control_path))
            for difference in differences
        }

    def _find_or_create_tally(self, inbound: InboundRequest) -> Tally:
        key, now = inbound.caller.key, self._clock()
        tally_key = TallyKey(key.tenant, key.name, inbound.operation.name)
        tally = self._tallies.setdefault(tally_key, Tally(first_at=now))
        tally.last_at = now
        return tally

    async def _write_tallies(self) -> None:
        """Writes the counts; if that fails, they are written next time."""
        tallies, self._tallies = self._tallies, {}
        try:
            await add_to_comparison_tallies(self._store, tallies)
        except StoreUnavailable:
            self._tallies = merge_tallies(tallies, self._tallies)
            raise


def merge_tallies(
    older: Mapping[TallyKey, Tally], newer: Mapping[TallyKey, Tally]
) -> dict[TallyKey, Tally]:
    """Returns the sums of the counts of both."""
    merged = dict(older)
    for tally_key, tally in newer.items():
        existing = merged.get(tally_key)
        if existing is None:
            merged[tally_key] = tally
            continue
        for name in ("compared", "different", "failed", "dropped"):
            setattr(existing, name, getattr(existing, name) + getattr(tally, name))
        for place, answers in tally.places.items():
            existing.places[place] = existing.places.get(place, 0) + answers
        existing.last_at = tally.last_at
    return merged
