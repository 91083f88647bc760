"""The cache of one merchant's recipients in one environment, and its synchronization.

Its correctness depends on one comparison. After an increment the cache has every recipient that the service
has, and perhaps some that were archived elsewhere, because an increment does not list those. So if it has as
many as the service counted just before, it has the same ones. If it has more, one call with the status filter
lists the recipients that were archived last. If the service does not list them, or they do not explain the
difference, the surplus entries are found by counting along the update dates: a binary search down to one
page.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import structlog

from gateway.observability import metrics
from gateway.payloads.worker_thread import run_in_thread
from gateway.reads.index.rows import Entry
from gateway.reads.index.scan import PAGE_SIZE
from gateway.reads.index.synchronization import NoIndex, Reading
from mappings.failures import Unreachable
from mappings.objects import ARCHIVED
from mappings.paging import FIRST_PAGE

if TYPE_CHECKING:
    from gateway.storage.tenants import Tenant

OVERLAP_SECONDS = 10.0
"""A change becomes visible in the service's list at most this long after its update date."""

OVERLAP = int(OVERLAP_SECONDS * 1000)

APART = 60_000
"""Update dates that are further in the future are not trusted as a mark, in milliseconds."""

TRIES = 5
"""Comparisons for one query, while others change the list."""

Elsewhere = Callable[[], Awaitable[Collection[str]]]
"""Returns the ids of recipients that other processes have changed since the last call."""


log = structlog.get_logger()


class Dropped(Exception):
    """The cache was dropped during its refresh."""


async def list_no_processes() -> Collection[str]:
    """Return no changes, for a database that no other process uses."""
    return ()


class RecipientCache:
    """A tenant's recipients; refreshed ``max_age_seconds`` after the start of the last refresh.

    ``make_room`` returns whether there is room for a number of recipients.
    """

    def __init__(
        self,
        owner: Tenant,
        seconds: float,
        fits: Callable[[RecipientCache, int], bool],
        elsewhere: Elsewhere = list_no_processes,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.rows: dict[str, Entry] = {}
        self.expected = 0
        """The number of recipients that a running refresh will load."""
        self.page_size: int | None = PAGE_SIZE
        """None if the service refuses this page size; its default is used then."""
        self.changed: set[str] = set()
        """Recipients that this process has changed since they were read."""
        self.used_at = monotonic()
        self._owner = owner
        self._read_at: float | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_dropped = False
        self._seconds = seconds
        self._fits = fits
        self._elsewhere = elsewhere
        self._monotonic = monotonic
        self._wall = wall
        self._taken_out: frozenset[str] = frozenset()
        self._out: dict[str, float] = {}
        """Recipients that the service no longer has, with the time of the request that showed it."""
        self._since: int | None = None
        self._marks: list[tuple[float, int]] = []
        self._lock = asyncio.Lock()
        self._began = self._asked = 0

    @property
    def age(self) -> float:
        """Seconds since the start of the last full refresh."""
        return math.inf if self._read_at is None else self._monotonic() - self._read_at

    @property
    def is_whole(self) -> bool:
        return self.age < self._seconds

    async def sync(self, reading: Reading, gone: frozenset[str]) -> None:
        """Bring the cache to the state of the service at the time of this call, or later.

        ``deleted_ids`` are recipients that were deleted through the gateway. Raises CacheUnavailable,
        CacheDroppedError, and the errors of a call.
        """
        self.used_at = self._monotonic()
        self._asked += 1
        asked = self._asked
        async with self._lock:
            # Queries that wait for the lock share one synchronization.
            if self._began >= asked:  # a synchronization that started after this call has finished
                return
            began = self._asked
            await self._sync(reading, gone)
            self._began = began

    async def _sync(self, reading: Reading, gone: frozenset[str]) -> None:
        if not self.is_whole:
            await self._wait_for(self.begin(reading, gone))
        if not self.is_whole:
            raise NoIndex("a refresh takes longer than lists.index_seconds")
        for number in range(TRIES):
            self._take_out(gone)
            before, since = await reading.count(), self._since
            await self._increment(reading)
            self._check_room(len(self.rows))
            if len(self.rows) == before:
                return
            if len(self.rows) > before and await self._leave_archived(reading, before, since):
                return
            if number:  # the first difference is usually a change between the two calls
                await self._mend(reading, before)
        raise Unreachable("the list kept changing while it was read")

    def _check_room(self, n: int) -> None:
        self.expected = n
        if not self._fits(self, n):
            raise NoIndex("there are more recipients than lists.index_recipients")

    def _take_out(self, gone: frozenset[str]) -> None:
        """Remove deleted recipients, only once: if the service still lists one, it is found again."""
        for id_ in self.rows.keys() & (gone - self._taken_out):
            del self.rows[id_]
        self._taken_out |= gone

    def _keep(self, read: Iterable[Entry]) -> None:
        for one in read:
            there = self.rows.get(one.id)
            if there is None:
                # A page of a refresh may arrive after a later request showed that it is gone.
                is_newer = one.asked_at >= self._out.get(one.id, -math.inf)
            else:
                is_newer = not one.is_older_than(there)
            if is_newer:
                self.rows[one.id] = one

    def _remove(self, id_: str, asked_at: float) -> None:
        if self.rows.pop(id_, None) is not None:
            self._out[id_] = asked_at

    # Refreshes

    def begin(self, reading: Reading, gone: frozenset[str]) -> asyncio.Task[None]:
        """Start a full refresh, or return the running one. Client disconnects do not cancel it."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_whole(reading, gone), name="index")
            self._reading.add_done_callback(self._tell)
        return self._reading

    async def _wait_for(self, reading: asyncio.Task[None]) -> None:
        try:
            await asyncio.shield(reading)
        except asyncio.CancelledError:
            its = asyncio.current_task()
            if self._is_dropped and reading.cancelled() and not (its and its.cancelling()):
                raise Dropped from None
            raise

    def _tell(self, reading: asyncio.Task[None]) -> None:
        if reading.cancelled():
            came_of_it = metrics.CANCELLED
        elif error := reading.exception():
            came_of_it = metrics.FAILED
            # Waiting queries get the error, and the next query tries again.
            log.info(
                "recipient_cache_refresh_failed",
                **self._owner._asdict(),
                **{"error.type": type(error).__name__},
            )
        else:
            came_of_it = metrics.REFRESHED
        metrics.cache_refreshes.labels(self._owner.environment, came_of_it).inc()

    async def drop(self) -> None:
        """Cancel a running refresh."""
        self._is_dropped = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read_whole(self, reading: Reading, gone: frozenset[str]) -> None:
        """Read all recipients of the service, and then remove those that it no longer has.

        Queries may run meanwhile, because an older entry never replaces a newer one.
        """
        began, goes_on = self._monotonic(), self.is_whole
        self._out.clear()
        if not goes_on:
            await self._elsewhere()  # the refresh reads all changes made before now
        records, newest = await reading.ends()
        self._check_room(records)
        marked_at = self._monotonic()
        met: set[str] = set()
        undated = 0

        def keep(read: Sequence[Entry]) -> None:
            nonlocal undated
            met.update(one.id for one in read)
            for one in read:
                there = self.rows.get(one.id)
                undated += there is not None and one.is_undated_after(there)
            self._keep(read)

        await reading.whole(records, keep)
        for id_ in [id_ for id_, one in self.rows.items() if one.asked_at < began]:
            if id_ not in met:
                del self.rows[id_]
        self._read_at, self._taken_out = began, gone
        if not goes_on:
            newest = self._mark(newest)
            self._marks = [] if newest is None else [(marked_at, newest)]
            self._since = None if newest is None else newest - OVERLAP
        metrics.cache_stale.labels(self._owner.environment).inc(undated)
        figures = {
            "recipients": len(self.rows),
            "upstream_calls": reading.calls,
            "stale_entries": undated,
        }
        duration_ms = round((self._monotonic() - began) * 1000)
        log.info(
            "recipient_cache_refreshed",
            **self._owner._asdict(),
            **figures,
            duration_ms=duration_ms,
        )

    async def _increment(self, reading: Reading) -> None:
        """Read recipients changed since the last increment, and those changed here that it lacks."""
        changed, self.changed = self.changed, set()
        try:
            changed |= set(await self._elsewhere())
            sent_at = self._monotonic()
            walked = await reading.walk(self._keep, self._since)
            left = (changed & self.rows.keys()) - {one.id for one in walked}
            read_at = self._monotonic()
            for id_ in await reading.alone_each(left, self._keep):
                self._remove(id_, read_at)
        except BaseException:
            # These recipients have not been read again yet, so the next increment has to do it.
            self.changed |= changed
            raise
        self._advance(sent_at, max((one.stamp for one in walked), default=None))

    def _advance(self, sent_at: float, newest: int | None) -> None:
        """Move the start of the next increment to a date before which nothing new can appear.

        A change with such a date was dated before the mark was seen. So it was visible to this
        increment, if the increment was sent long enough after the mark.
        """
        while self._marks and self._marks[0][0] <= sent_at - OVERLAP_SECONDS:
            _, mark = self._marks.pop(0)
            self._since = max(self._since if self._since is not None else mark, mark + 1)
        newest = self._mark(newest)
        if newest is not None and (not self._marks or newest > self._marks[-1][1]):
            self._marks.append((self._monotonic(), newest))
            if self._since is None:
                self._since = newest - OVERLAP

    def _mark(self, newest: int | None) -> int | None:
        """Limit an update date to the present: later changes may have dates before a future one."""
        now = int(self._wall() * 1000)
        return newest if newest is None or newest <= now + APART else now - APART

    async def _leave_archived(self, reading: Reading, records: int, since: int | None) -> bool:
        """Remove archived recipients, back to ``since``; return whether the cache is correct now.

        A recipient may be archived just after the count. Equal numbers then prove equal recipients
        only if all archived ones have been listed: if the whole archive was read, or if archiving
        moves update dates.
        """
        is_dated = True
        for number in itertools.count(FIRST_PAGE):
            read, is_last = await reading.archived(number)
            if not read:
                break
            for one in read:
                there = self.rows.get(one.id)
                # Some services include archived recipients in lists; those entries stay.
                if there and there.status != ARCHIVED and not one.is_older_than(there):
                    is_dated = is_dated and one.stamp > there.stamp
                    self._remove(one.id, one.asked_at)
            if is_last or (since is not None and read[-1].stamp < since):
                return len(self.rows) == records and (is_last or is_dated)
        return False

    async def _mend(self, reading: Reading, records: int) -> None:
        """Find the spans of update dates with surplus entries, and reload them."""
        dated = await run_in_thread(_by_date, [*self.rows.values()])
        stamps = [one.stamp for one in dated]
        spans = [(0, len(stamps), len(stamps) - records)] if stamps else []
        most = reading.calls + max(len(stamps) // PAGE_SIZE, 12)
        while spans:
            if reading.calls >= most:
                self._read_at = None  # a full refresh needs no more calls than this
                raise Unreachable("the list kept changing while it was read")
            begin, end, off = spans.pop()
            middle = _between_dates(stamps, begin, end)
            if end - begin <= PAGE_SIZE or middle == end:
                await self._read_span(reading, dated[begin:end])
                continue
            # Dates are shown in milliseconds; the real one may be a fraction later.
            until = stamps[middle - 1] + 1
            there = bisect_right(stamps, until, begin, end) - begin
            off_left = there - await reading.count(stamps[begin], until)
            if off_left:
                spans.append((begin, middle, off_left))
            if off_left != off:
                spans.append((middle, end, off - off_left))

    async def _read_span(self, reading: Reading, span: Sequence[Entry]) -> None:
        """Remove entries that the service no longer lists in the span, unless read again since."""
        asked_at = self._monotonic()
        walked = await reading.walk(self._keep, span[0].stamp, span[-1].stamp + 1)
        met = {one.id for one in walked}
        for one in span:
            if one.id not in met and self.rows.get(one.id) is one:
                self._remove(one.id, asked_at)


def _by_date(rows: list[Entry]) -> list[Entry]:
    rows.sort(key=lambda one: one.stamp)
    return rows


def _between_dates(stamps: Sequence[int], begin: int, end: int) -> int:
    """Return a position near the middle at which the date changes; the end if all are equal."""
    middle = bisect_left(stamps, stamps[(begin + end) // 2], begin, end)
    return middle if middle > begin else bisect_right(stamps, stamps[begin], begin, end)
