"""Shadow traffic: sends reads to the other service too, and counts the differences.

Compares only reads of keys and groups in mode ``compare``, after the client has its response. Reads
wait in a bounded queue, and are dropped if it is full. A difference is checked again, because the
data may have changed between the two reads. Of a difference its place is stored, and the masked
values of one answer. Each service may have its own ids, which are paired.
"""

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
from gateway.migration.id_pairs import IdPairs, RunFlow
from gateway.migration.inbound_request import MAX_VALUE_BYTES, InboundRequest
from gateway.migration.routing import ServiceRouter
from gateway.observability import logs
from gateway.payloads import json_codec
from gateway.storage import Store, StoreUnavailable
from gateway.storage.difference_rows import (
    DifferenceExample,
    DifferencePlace,
    Tally,
    TallyKey,
    add_to_comparison_tallies,
)
from gateway.storage.periodic_tasks import PeriodicTask
from mappings.failures import Failure

WRITE_INTERVAL_SECONDS = 1.0
MAX_CONCURRENT_COMPARISONS = 4
MAX_QUEUED_READS = 100
"""Reads that wait to be compared; more are skipped."""
RECHECK_SECONDS = 0.5
"""Seconds before a difference is checked again."""

MAX_PLACES = 200
"""Places per operation between two writes; further ones are counted as one."""

OVERFLOW_PLACE = ("too many", "$")
SHUTDOWN_SECONDS = 2

Translate = Callable[[Mapping[str, str]], Awaitable[LegacyResponse]]
"""Answers the request from the current service, with its own ids for these legacy ids."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Item:
    inbound: InboundRequest
    response: LegacyResponse | PassedResponse
    translate: Translate
    run_flow: RunFlow


class _NotComparableError(Exception):
    """One of the two answers is missing, too large, or lists what only an import makes known."""


class ShadowTraffic(PeriodicTask):
    """Compares the services in the background, and writes the counts, while it is open."""

    def __init__(
        self,
        settings: Comparing,
        store: Store,
        service_router: ServiceRouter,
        clock: Callable[[], datetime],
    ) -> None:
        super().__init__("comparison_write", WRITE_INTERVAL_SECONDS, self._write_tallies)
        self._store = store
        self._service_router = service_router
        self._clock = clock
        self._sample_rate = settings.sample
        self._queue: asyncio.Queue[_Item] = asyncio.Queue(MAX_QUEUED_READS)
        self._tallies: dict[TallyKey, Tally] = {}
        self._unwritten: dict[TallyKey, Tally] = {}
        """Earlier counts, which are being written, or could not be."""
        self._rules = Rules().rules_for_runs_without_writes
        self._id_pairs = IdPairs(store, service_router)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._run_comparisons()) for _ in range(MAX_CONCURRENT_COMPARISONS)
        ]
        return await super().__aenter__()

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
        await super().__aexit__()

    def enqueue_comparison(
        self,
        inbound: InboundRequest,
        response: LegacyResponse | PassedResponse,
        translate: Translate,
        run_flow: RunFlow,
    ) -> None:
        """Queues a comparison without waiting; called when the client's response is ready."""
        if random.random() >= self._sample_rate:  # noqa: S311 - a sample
            return
        try:
            self._queue.put_nowait(_Item(inbound, response, translate, run_flow))
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
                # Only differences found in both rounds count, of one object: others may change now.
                again = await self._find_differences(item, None)
                differences = {each: differences[each] for each in differences if each in again}
        except (_NotComparableError, Failure, StoreUnavailable):
            self._find_or_create_tally(item.inbound).failed += 1
            return
        tally = self._find_or_create_tally(item.inbound)
        tally.compared += 1
        tally.different += bool(differences)
        examples = {place: values for (place, _item_id), values in reversed(differences.items())}
        for place, (control, candidate) in examples.items():
            is_counted = place in tally.places or len(tally.places) < MAX_PLACES
            counted_place = place if is_counted else OVERFLOW_PLACE
            tally.places[counted_place] = tally.places.get(counted_place, 0) + 1
            example = DifferenceExample(item.inbound.caller.request_id, control, candidate)
            tally.examples[counted_place] = example

    async def _find_differences(
        self, item: _Item, response: LegacyResponse | PassedResponse | None
    ) -> dict[tuple[DifferencePlace, str], tuple[str, str]]:
        """Finds where and in which list item the two differ, with a masked pair of values of each.

        An answer in ``response`` is not fetched again.
        """
        if isinstance(response, PassedResponse):
            control = response
        else:
            control = await self._service_router.sender.forward(item.inbound)
        # An outage, a cached answer or a limit says nothing about the data.
        if control.status >= 500 or control.status in (304, 429):
            raise _NotComparableError
        if await self._service_router.lists_unknown_batches(item.inbound, control):
            raise _NotComparableError
        if isinstance(response, LegacyResponse):
            candidate = response
        else:
            candidate = await self._fetch_candidate(item, control)
        bodies = control.body, candidate.body_bytes
        # The common case needs no decoding.
        if control.status == candidate.status and bodies[0] == bodies[1]:
            return {}
        for body in bodies:
            size = await asyncio.to_thread(json_codec.estimate_memory_bytes, body)
            if size > MAX_VALUE_BYTES:
                raise _NotComparableError
        # A map for each answer: two lists whose items were paired wrongly once recover.
        differ = Differ(self._rules, IdMap(), operation=item.inbound.operation.name)
        # Headers are left out: they differ between the services and say nothing about the data.
        differences = await asyncio.to_thread(
            differ.compare_answers,
            Answer(control.status, {}, bodies[0]),
            Answer(candidate.status, {}, bodies[1]),
        )
        # A path may contain keys from the data, such as ids, and those are never stored.
        redactor = Redactor(item.inbound.flow_request.api_keys)
        places: dict[tuple[DifferencePlace, str], tuple[str, str]] = {}
        for difference in differences:
            path = difference.control_path
            control_value = redactor.redact_value(path, difference.control)["text"]
            candidate_value = redactor.redact_value(path, difference.candidate)["text"]
            place = difference.kind, redactor.redact_normal_path(path)
            places.setdefault((place, difference.item_id), (control_value, candidate_value))
        return places

    async def _fetch_candidate(self, item: _Item, control: PassedResponse) -> LegacyResponse:
        """Fetches the current service's answer, by its own ids for what the request names."""
        inbound = item.inbound
        candidate = await item.translate(self._id_pairs.select_known_pairs(inbound))
        if candidate.status != 404 or control.status != 200:
            return candidate
        pairs = await self._id_pairs.find_pairs(inbound, control, item.run_flow)
        return await item.translate(pairs) if pairs else candidate

    def _find_or_create_tally(self, inbound: InboundRequest) -> Tally:
        key, now = inbound.caller.key, self._clock()
        tally_key = TallyKey(key.tenant, key.name, inbound.operation.name)
        tally = self._tallies.setdefault(tally_key, Tally(first_at=now))
        tally.last_at = now
        return tally

    async def _write_tallies(self) -> None:
        """Writes the counts; if that fails, they are written next time."""
        while self._unwritten or self._tallies:
            if not self._unwritten:
                self._unwritten, self._tallies = self._tallies, {}
            await add_to_comparison_tallies(self._store, self._unwritten)
            self._unwritten = {}
