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
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import structlog

from gateway.observability import metrics
from gateway.reads.recipient_cache.date_reader import CacheUnavailable, ServiceListReader
from gateway.reads.recipient_cache.entry import RecipientEntry
from gateway.reads.recipient_cache.remote_changes import RemoteChanges
from gateway.reads.recipient_cache.scan import PAGE_SIZE
from gateway.storage.tenants import Tenant
from mappings.failures import Unreachable
from mappings.objects import ARCHIVED

CHANGE_DELAY_SECONDS = 10.0
"""A change becomes visible in the service's list at most this long after its update date."""

CHANGE_DELAY_MS = int(CHANGE_DELAY_SECONDS * 1000)

MAX_CLOCK_SKEW_MS = 60_000
"""Update dates that are further in the future are not trusted as a mark, in milliseconds."""

MAX_SYNC_ATTEMPTS = 4
"""Comparisons for one query; from the third on, each follows a full refresh."""

log = structlog.get_logger()


@dataclass
class CachedRecipients:
    """The recipients that one full refresh has read, with the increments since then.

    Increments read the changes from the update date ``increment_start`` on, None for all. Changes
    through a gateway were read if they were made before ``changes_read_at``.
    """

    started_at: float = -math.inf
    removed_deleted_ids: frozenset[str] = frozenset()
    rows: dict[str, RecipientEntry] = field(default_factory=dict)
    increment_start: int | None = None
    changes_read_at: float = field(init=False)
    date_marks: list[tuple[float, int]] = field(default_factory=list)
    """Update dates after ``increment_start``, and when they were seen."""

    def __post_init__(self) -> None:
        self.changes_read_at = self.started_at

    def store_newer_entries(self, entries: Iterable[RecipientEntry]) -> None:
        for entry in entries:
            # The list may show a change later than a read by id does.
            if (stored := self.rows.get(entry.id)) is None or entry.stamp >= stored.stamp:
                self.rows[entry.id] = entry

    def remove_deleted_recipients_once(self, deleted_ids: frozenset[str]) -> None:
        """Removes deleted recipients, but only once: one that is still listed is stored again."""
        for id_ in self.rows.keys() & (deleted_ids - self.removed_deleted_ids):
            del self.rows[id_]
        self.removed_deleted_ids |= deleted_ids

    def advance_increment_start(self, sent_at: float, seen_at: float, newest: int | None) -> None:
        """Moves the start of the next increment to a date before which nothing new can appear.

        A change with such a date was dated before the mark was seen. So it was visible to the
        increment sent at ``sent_at``, if that was long enough after the mark.
        """
        while self.date_marks and self.date_marks[0][0] <= sent_at - CHANGE_DELAY_SECONDS:
            self.increment_start = self.date_marks.pop(0)[1] + 1
        if newest is not None and (not self.date_marks or newest > self.date_marks[-1][1]):
            self.date_marks.append((seen_at, newest))
            if self.increment_start is None:
                self.increment_start = newest - CHANGE_DELAY_MS


@dataclass(eq=False, repr=False, slots=True)
class RecipientCache:
    """A tenant's recipients; refreshed ``max_age_seconds`` after the start of the last refresh.

    ``make_room`` returns whether there is room for a number of recipients. ``tasks`` keeps the
    running refreshes. ``load_remote_changes`` is None if no other process uses the database.
    """

    tenant: Tenant
    _max_age_seconds: float
    _make_room: Callable[[RecipientCache, int], bool]
    _tasks: set[asyncio.Task[None]]
    _load_remote_changes: RemoteChanges | None
    _monotonic: Callable[[], float]
    _wall_clock: Callable[[], float]
    expected_count: int = 0
    """The number of recipients, or the number that a running refresh will load."""
    page_size: int | None = PAGE_SIZE
    """None if the service refuses this page size; its default is used then."""
    used_at: float = -math.inf
    _recipients: CachedRecipients = field(default_factory=CachedRecipients)
    """Those that queries use."""
    _refreshed_recipients: CachedRecipients = field(default_factory=CachedRecipients)
    """Those of the last refresh, which the next query will use."""
    _changed_at: dict[str, float] = field(default_factory=dict)
    """Recipients that a gateway may have changed since the last refresh."""
    _refresh_task: asyncio.Task[None] | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _last_finished_sync: int = 0
    _last_requested_sync: int = 0

    @property
    def rows(self) -> Collection[RecipientEntry]:
        return self._recipients.rows.values()

    @property
    def refresh_age_seconds(self) -> float:
        """Seconds since the start of the last full refresh."""
        return self._monotonic() - self._refreshed_recipients.started_at

    @property
    def is_refresh_recent(self) -> bool:
        return self.refresh_age_seconds < self._max_age_seconds

    def record_changes(self, ids: Iterable[str]) -> None:
        """Records recipients that a gateway may have changed; they are read again."""
        self._changed_at |= dict.fromkeys(ids, self._monotonic())

    async def sync(self, reader: ServiceListReader, deleted_ids: frozenset[str]) -> None:
        """Brings the cache to the state of the service at the time of this call, or later.

        ``deleted_ids`` are recipients that were deleted through the gateway. Raises
        CacheUnavailable and the errors of a call.
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
                await asyncio.shield(self.start_refresh(reader, deleted_ids))
            if not self.is_refresh_recent:
                raise CacheUnavailable("a refresh takes longer than lists.index_seconds")
            recipients = self._recipients = self._refreshed_recipients
            recipients.remove_deleted_recipients_once(deleted_ids)
            # The count before the increment: a recipient created between the two is then a surplus,
            # not a gap.
            service_count, increment_start = await reader.count_rows(), recipients.increment_start
            await self._fetch_and_apply_changes(reader, recipients)
            self._check_room_for_recipients(len(recipients.rows))
            if len(recipients.rows) == service_count or (
                len(recipients.rows) > service_count
                and await _remove_archived_recipients(reader, recipients, increment_start)
                and len(recipients.rows) == service_count
            ):
                return
        raise Unreachable("the list kept changing while it was read")

    def _check_room_for_recipients(self, count: int) -> None:
        self.expected_count = count
        if not self._make_room(self, count):
            raise CacheUnavailable("there are more recipients than lists.index_recipients")

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
            self._tasks.add(self._refresh_task)
            self._refresh_task.add_done_callback(self._record_refresh_outcome)
        return self._refresh_task

    def _record_refresh_outcome(self, refresh_task: asyncio.Task[None]) -> None:
        self._tasks.discard(refresh_task)
        if refresh_task.cancelled():
            outcome = metrics.CANCELLED
        elif error := refresh_task.exception():
            outcome = metrics.FAILED
            # Waiting queries get the error, and the next query tries again.
            fields = self.tenant._asdict() | {"error.type": type(error).__name__}
            log.info("recipient_cache_refresh_failed", **fields)
        else:
            outcome = metrics.REFRESHED
        metrics.cache_refreshes.labels(self.tenant.environment, outcome).inc()

    async def _reload_all_recipients(
        self, reader: ServiceListReader, deleted_ids: frozenset[str]
    ) -> None:
        """Reads all recipients of the service, which then replace the earlier ones."""
        recipients = CachedRecipients(self._monotonic(), deleted_ids)
        if self._load_remote_changes and not self.is_refresh_recent:
            await self._load_remote_changes()  # the refresh reads all changes made before now
        records, newest = await reader.fetch_count_and_newest_date()
        self._check_room_for_recipients(records)
        newest = self._limit_update_date_to_now(newest)
        recipients.advance_increment_start(-math.inf, self._monotonic(), newest)
        old_rows = self._recipients.rows

        def store_entries(entries: Iterable[RecipientEntry]) -> None:
            # Unchanged entries are shared, so that memory does not hold them twice.
            pairs = ((entry, old_rows.get(entry.id)) for entry in entries)
            recipients.store_newer_entries(
                old if old and old.is_same(entry) else entry for entry, old in pairs
            )

        await reader.fetch_and_store_all(records, store_entries)
        stale_count = sum(
            id_ in old_rows and entry.has_undated_change(old_rows[id_])
            for id_, entry in recipients.rows.items()
        )
        self._refreshed_recipients = recipients
        self._changed_at = {
            id_: at for id_, at in self._changed_at.items() if at >= recipients.started_at
        }
        metrics.cache_stale.labels(self.tenant.environment).inc(stale_count)
        log.info(
            "recipient_cache_refreshed",
            **self.tenant._asdict(),
            recipients=len(recipients.rows),
            upstream_calls=reader.call_count,
            stale_entries=stale_count,
            duration_ms=round((self._monotonic() - recipients.started_at) * 1000),
        )

    async def _fetch_and_apply_changes(
        self, reader: ServiceListReader, recipients: CachedRecipients
    ) -> None:
        """Reads the recipients changed since the last increment, and those changed here."""
        if self._load_remote_changes:
            self.record_changes(await self._load_remote_changes())
        sent_at = self._monotonic()
        store, since = recipients.store_newer_entries, recipients.changes_read_at
        changed_ids = {id_ for id_, at in self._changed_at.items() if at >= since}
        walked_entries = await reader.fetch_rows_in_date_span(store, recipients.increment_start)
        unseen_ids = (changed_ids & recipients.rows.keys()) - {entry.id for entry in walked_entries}
        for id_ in await reader.fetch_and_list_missing_ids(unseen_ids, store):
            del recipients.rows[id_]
        recipients.changes_read_at = sent_at
        newest = max((entry.stamp for entry in walked_entries), default=None)
        newest = self._limit_update_date_to_now(newest)
        recipients.advance_increment_start(sent_at, self._monotonic(), newest)

    def _limit_update_date_to_now(self, date: int | None) -> int | None:
        """Limits an update date to the present: later changes may precede a future date."""
        now = int(self._wall_clock() * 1000)
        is_future = date is not None and date > now + MAX_CLOCK_SKEW_MS
        return now - MAX_CLOCK_SKEW_MS if is_future else date


async def _remove_archived_recipients(
    reader: ServiceListReader, recipients: CachedRecipients, since: int | None
) -> bool:
    """Removes recipients archived since a date; returns whether archiving moves the date.

    If it does, these are all: also those that were archived before the service counted.
    """
    moves_dates = True
    for entry in await reader.fetch_archived_rows(since):
        stored_entry = recipients.rows.get(entry.id)
        # Some services include archived recipients in lists; those entries stay.
        if stored_entry and stored_entry.status != ARCHIVED and entry.stamp >= stored_entry.stamp:
            moves_dates = moves_dates and entry.stamp > stored_entry.stamp
            del recipients.rows[entry.id]
    return moves_dates
