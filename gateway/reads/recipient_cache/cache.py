"""The cache of one merchant's recipients in one environment, and its synchronization.

Its correctness depends on one comparison. After an increment the cache has every recipient that the
service has, and perhaps some that were archived elsewhere, because an increment does not list
those. So if it has as many as the service counted just before, it has the same ones. If it has
more, one call with the status filter lists the recipients archived since the last increment. If the
numbers differ still, the whole list is read again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import structlog

from gateway.observability import metrics
from gateway.reads.recipient_cache.date_reader import CacheUnavailable, ServiceListReader
from gateway.reads.recipient_cache.entry import RecipientEntry
from gateway.reads.recipient_cache.scan import PAGE_SIZE
from mappings.failures import Unreachable
from mappings.objects import ARCHIVED

if TYPE_CHECKING:
    from gateway.storage.tenants import Tenant

CHANGE_DELAY_SECONDS = 10.0
"""A change becomes visible in the service's list at most this long after its update date."""

CHANGE_DELAY_MS = int(CHANGE_DELAY_SECONDS * 1000)

MAX_CLOCK_SKEW_MS = 60_000
"""Update dates that are further in the future are not trusted as a mark, in milliseconds."""

MAX_SYNC_ATTEMPTS = 4
"""Comparisons for one query; from the third on, each follows a full refresh."""

ListRemoteChanges = Callable[[], Awaitable[Collection[str]]]
"""Returns the ids of recipients that other processes have changed since the last call."""


log = structlog.get_logger()


class CacheDroppedError(Exception):
    """The cache was dropped during its refresh."""


async def list_no_remote_changes() -> Collection[str]:
    """Returns no changes, for a database that no other process uses."""
    return ()


class RecipientCache:
    """A tenant's recipients; refreshed ``max_age_seconds`` after the start of the last refresh.

    ``make_room`` returns whether there is room for a number of recipients.
    """

    def __init__(
        self,
        tenant: Tenant,
        max_age_seconds: float,
        make_room: Callable[[RecipientCache, int], bool],
        list_remote_changes: ListRemoteChanges = list_no_remote_changes,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.rows: dict[str, RecipientEntry] = {}
        self.expected_count = 0
        """The number of recipients that a running refresh will load."""
        self.page_size: int | None = PAGE_SIZE
        """None if the service refuses this page size; its default is used then."""
        self.changed_ids: set[str] = set()
        """Recipients that this process has changed since they were read."""
        self.used_at = monotonic()
        self._tenant = tenant
        self._refresh_started_at: float | None = None
        self._refresh_task: asyncio.Task[None] | None = None
        self._is_dropped = False
        self._max_age_seconds = max_age_seconds
        self._evict_idle_caches_to_fit = make_room
        self._list_remote_changes = list_remote_changes
        self._monotonic = monotonic
        self._wall_clock = wall_clock
        self._removed_deleted_ids: frozenset[str] = frozenset()
        self._removed_at: dict[str, float] = {}
        """Recipients that the service no longer has, and the time of the request that showed it."""
        self._increment_start: int | None = None
        self._date_marks: list[tuple[float, int]] = []
        self._lock = asyncio.Lock()
        self._last_finished_sync = self._last_requested_sync = 0

    @property
    def refresh_age_seconds(self) -> float:
        """Seconds since the start of the last full refresh."""
        return (
            math.inf
            if self._refresh_started_at is None
            else self._monotonic() - self._refresh_started_at
        )

    @property
    def is_refresh_recent(self) -> bool:
        return self.refresh_age_seconds < self._max_age_seconds

    async def sync(self, reader: ServiceListReader, deleted_ids: frozenset[str]) -> None:
        """Brings the cache to the state of the service at the time of this call, or later.

        ``deleted_ids`` are recipients that were deleted through the gateway. Raises
        CacheUnavailable, CacheDroppedError, and the errors of a call.
        """
        self.used_at = self._monotonic()
        self._last_requested_sync += 1
        requested_sync = self._last_requested_sync
        async with self._lock:
            # Queries that wait for the lock share one synchronization that started after their
            # call.
            if self._last_finished_sync >= requested_sync:
                return
            # Read here and not above: queries that came while this one waited are served by it too.
            newest_request = self._last_requested_sync
            await self._sync(reader, deleted_ids)
            self._last_finished_sync = newest_request

    async def _sync(self, reader: ServiceListReader, deleted_ids: frozenset[str]) -> None:
        for attempt in range(MAX_SYNC_ATTEMPTS):
            # The first difference is usually a change between the two calls.
            if attempt > 1 or not self.is_refresh_recent:
                await self._wait_for_refresh(self.start_refresh(reader, deleted_ids))
            if not self.is_refresh_recent:
                raise CacheUnavailable("a refresh takes longer than lists.index_seconds")
            self._remove_deleted_recipients_once(deleted_ids)
            # The count before the increment: a recipient created between the two is then a surplus,
            # not a gap.
            service_count, increment_start = await reader.count_rows(), self._increment_start
            await self._fetch_and_apply_changes(reader)
            self._check_room_for_recipients(len(self.rows))
            if len(self.rows) == service_count:
                return
            if len(self.rows) > service_count and (
                await self._remove_archived_recipients(reader, increment_start)
                and len(self.rows) == service_count
            ):
                return
        raise Unreachable("the list kept changing while it was read")

    def _check_room_for_recipients(self, count: int) -> None:
        self.expected_count = count
        if not self._evict_idle_caches_to_fit(self, count):
            raise CacheUnavailable("there are more recipients than lists.index_recipients")

    def _remove_deleted_recipients_once(self, deleted_ids: frozenset[str]) -> None:
        """Removes deleted recipients, but only once: one that is still listed is stored again."""
        for id_ in self.rows.keys() & (deleted_ids - self._removed_deleted_ids):
            del self.rows[id_]
        self._removed_deleted_ids |= deleted_ids

    def _store_newer_entries(self, entries: Iterable[RecipientEntry]) -> None:
        for entry in entries:
            stored_entry = self.rows.get(entry.id)
            if stored_entry is None:
                # A page of a refresh may arrive after a later request showed that it is gone.
                is_newer = entry.asked_at >= self._removed_at.get(entry.id, -math.inf)
            else:
                is_newer = not entry.is_older_than(stored_entry)
            if is_newer:
                self.rows[entry.id] = entry

    def _remove_recipient(self, id_: str, asked_at: float) -> None:
        if self.rows.pop(id_, None) is not None:
            self._removed_at[id_] = asked_at

    # Refreshes

    def start_refresh(
        self, reader: ServiceListReader, deleted_ids: frozenset[str]
    ) -> asyncio.Task[None]:
        """Starts a full refresh, or returns the running one.

        Client disconnects do not cancel it.
        """
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = asyncio.create_task(
                self._reload_all_recipients(reader, deleted_ids), name="index"
            )
            self._refresh_task.add_done_callback(self._record_refresh_outcome)
        return self._refresh_task

    async def _wait_for_refresh(self, refresh_task: asyncio.Task[None]) -> None:
        try:
            await asyncio.shield(refresh_task)
        except asyncio.CancelledError:
            current_task = asyncio.current_task()
            if (
                self._is_dropped
                and refresh_task.cancelled()
                and not (current_task and current_task.cancelling())
            ):
                raise CacheDroppedError from None
            raise

    def _record_refresh_outcome(self, refresh_task: asyncio.Task[None]) -> None:
        if refresh_task.cancelled():
            outcome = metrics.CANCELLED
        elif error := refresh_task.exception():
            outcome = metrics.FAILED
            # Waiting queries get the error, and the next query tries again.
            log.info(
                "recipient_cache_refresh_failed",
                **self._tenant._asdict(),
                **{"error.type": type(error).__name__},
            )
        else:
            outcome = metrics.REFRESHED
        metrics.cache_refreshes.labels(self._tenant.environment, outcome).inc()

    async def close(self) -> None:
        """Cancels a running refresh."""
        self._is_dropped = True
        if self._refresh_task is not None:
            self._refresh_task.cancel()
            await asyncio.gather(self._refresh_task, return_exceptions=True)

    async def _reload_all_recipients(
        self, reader: ServiceListReader, deleted_ids: frozenset[str]
    ) -> None:
        """Reads all recipients of the service, and then removes those that it no longer has.

        Queries may run meanwhile, because an older entry never replaces a newer one.
        """
        started_at, is_background = self._monotonic(), self.is_refresh_recent
        self._removed_at.clear()
        if not is_background:
            await self._list_remote_changes()  # the refresh reads all changes made before now
        records, newest = await reader.fetch_count_and_newest_date()
        self._check_room_for_recipients(records)
        marked_at = self._monotonic()
        seen_ids: set[str] = set()
        stale_count = 0

        def store_entries(entries: Sequence[RecipientEntry]) -> None:
            nonlocal stale_count
            seen_ids.update(entry.id for entry in entries)
            for entry in entries:
                stored_entry = self.rows.get(entry.id)
                stale_count += stored_entry is not None and entry.has_undated_change(stored_entry)
            self._store_newer_entries(entries)

        await reader.fetch_and_store_all(records, store_entries)
        # A copy, because rows are removed in the loop; entries read since then are newer than the
        # walk.
        for id_ in [id_ for id_, entry in self.rows.items() if entry.asked_at < started_at]:
            if id_ not in seen_ids:
                del self.rows[id_]
        self._refresh_started_at, self._removed_deleted_ids = started_at, deleted_ids
        if not is_background:
            newest = self._limit_update_date_to_now(newest)
            self._date_marks = [] if newest is None else [(marked_at, newest)]
            self._increment_start = None if newest is None else newest - CHANGE_DELAY_MS
        metrics.cache_stale.labels(self._tenant.environment).inc(stale_count)
        counts = {
            "recipients": len(self.rows),
            "upstream_calls": reader.call_count,
            "stale_entries": stale_count,
        }
        duration_ms = round((self._monotonic() - started_at) * 1000)
        log.info(
            "recipient_cache_refreshed",
            **self._tenant._asdict(),
            **counts,
            duration_ms=duration_ms,
        )

    async def _fetch_and_apply_changes(self, reader: ServiceListReader) -> None:
        """Reads the recipients changed since the last increment, and those changed here."""
        changed_ids, self.changed_ids = self.changed_ids, set()
        try:
            changed_ids |= set(await self._list_remote_changes())
            sent_at = self._monotonic()
            walked_entries = await reader.fetch_rows_in_date_span(
                self._store_newer_entries, self._increment_start
            )
            unseen_ids = (changed_ids & self.rows.keys()) - {entry.id for entry in walked_entries}
            # Before the reads, for the same reason as in a walk.
            read_at = self._monotonic()
            for id_ in await reader.fetch_and_list_missing_ids(
                unseen_ids, self._store_newer_entries
            ):
                self._remove_recipient(id_, read_at)
        except BaseException:
            # These recipients have not been read again yet, so the next increment has to do it.
            self.changed_ids |= changed_ids
            raise
        self._advance_increment_start(
            sent_at, max((entry.stamp for entry in walked_entries), default=None)
        )

    def _advance_increment_start(self, sent_at: float, newest: int | None) -> None:
        """Moves the start of the next increment to a date before which nothing new can appear.

        A change with such a date was dated before the mark was seen. So it was visible to this
        increment, if the increment was sent long enough after the mark.
        """
        while self._date_marks and self._date_marks[0][0] <= sent_at - CHANGE_DELAY_SECONDS:
            _, mark = self._date_marks.pop(0)
            self._increment_start = max(
                self._increment_start if self._increment_start is not None else mark, mark + 1
            )
        newest = self._limit_update_date_to_now(newest)
        if newest is not None and (not self._date_marks or newest > self._date_marks[-1][1]):
            self._date_marks.append((self._monotonic(), newest))
            if self._increment_start is None:
                self._increment_start = newest - CHANGE_DELAY_MS

    def _limit_update_date_to_now(self, newest: int | None) -> int | None:
        """Limits an update date to the present: later changes may precede a future date."""
        now = int(self._wall_clock() * 1000)
        return (
            newest
            if newest is None or newest <= now + MAX_CLOCK_SKEW_MS
            else now - MAX_CLOCK_SKEW_MS
        )

    async def _remove_archived_recipients(
        self, reader: ServiceListReader, since: int | None
    ) -> bool:
        """Removes recipients archived since a date; returns whether archiving moves the date.

        If it does, these are all: also those that were archived before the service counted.
        """
        moves_dates = True
        for entry in await reader.fetch_archived_rows(since):
            stored_entry = self.rows.get(entry.id)
            # Some services include archived recipients in lists; those entries stay.
            if (
                stored_entry
                and stored_entry.status != ARCHIVED
                and not entry.is_older_than(stored_entry)
            ):
                moves_dates = moves_dates and entry.stamp > stored_entry.stamp
                self._remove_recipient(entry.id, entry.asked_at)
        return moves_dates
