"""One merchant's recipients in one environment, and how they are kept as the service has them.

What makes the index right is one comparison. After an increment it has every recipient that the service
has, and perhaps some that were archived elsewhere: they are in no increment. So where it has as many as the
service counted just before, it has the same ones. Where it has more, the service is asked, by the filter by
status, who was archived last: one call. Where it does not show them, or they do not explain the difference,
they are looked for by counting along the update dates, in as many calls as it takes to halve the list down
to a page.
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
"""How much later than its update date a change may be seen in the service's list."""

OVERLAP = int(OVERLAP_SECONDS * 1000)

APART = 60_000
"""Milliseconds by which the service's clock may differ from this one, where it shows a date to come."""

TRIES = 5
"""Comparisons of one query, while others change the list."""

Elsewhere = Callable[[], Awaitable[Collection[str]]]
"""The recipients that other processes have changed since it was last asked."""


log = structlog.get_logger()


class Dropped(Exception):
    """While its list was read."""


async def list_no_processes() -> Collection[str]:
    """Where there are no other processes."""
    return ()


class RecipientCache:
    """``seconds`` after its beginning a whole reading is made again. ``fits`` says whether there is
    room for so many.
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
        """How many there will be, while they are read."""
        self.page_size: int | None = PAGE_SIZE
        """None where the service gives no such pages, but its own."""
        self.changed: set[str] = set()
        """Recipients that were changed through this process since they were read."""
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
        """Who was found not to be there any more, and when that was asked."""
        self._since: int | None = None
        self._marks: list[tuple[float, int]] = []
        self._lock = asyncio.Lock()
        self._began = self._asked = 0

    @property
    def age(self) -> float:
        """Seconds since the last whole reading began."""
        return math.inf if self._read_at is None else self._monotonic() - self._read_at

    @property
    def is_whole(self) -> bool:
        return self.age < self._seconds

    async def sync(self, reading: Reading, gone: frozenset[str]) -> None:
        """From here on it has what the service had when this was called, or later.

        ``gone`` are ids that are remembered as deleted. Raises NoIndex, Dropped, and what a call
        raises.
        """
        self.used_at = self._monotonic()
        self._asked += 1
        asked = self._asked
        async with self._lock:
            if self._began >= asked:  # one that began after this was asked for has ended
                return
            began = self._asked
            await self._sync(reading, gone)
            self._began = began

    async def _sync(self, reading: Reading, gone: frozenset[str]) -> None:
        if not self.is_whole:
            await self._wait_for(self.begin(reading, gone))
        if not self.is_whole:
            raise NoIndex("to read all of it takes longer than lists.index_seconds")
        for number in range(TRIES):
            self._take_out(gone)
            before, since = await reading.count(), self._since
            await self._increment(reading)
            self._check_room(len(self.rows))
            if len(self.rows) == before:
                return
            if len(self.rows) > before and await self._leave_archived(reading, before, since):
                return
            if number:  # at first it is mostly that somebody came between the two
                await self._mend(reading, before)
        raise Unreachable("the list kept changing while it was read")

    def _check_room(self, n: int) -> None:
        self.expected = n
        if not self._fits(self, n):
            raise NoIndex("there are more than lists.index_recipients")

    def _take_out(self, gone: frozenset[str]) -> None:
        """Those deleted through the gateway, once: who is listed all the same is found again."""
        for id_ in self.rows.keys() & (gone - self._taken_out):
            del self.rows[id_]
        self._taken_out |= gone

    def _keep(self, read: Iterable[Entry]) -> None:
        for one in read:
            there = self.rows.get(one.id)
            if there is None:
                # A page of a whole reading may come after it was found that they are gone.
                is_newer = one.asked_at >= self._out.get(one.id, -math.inf)
            else:
                is_newer = not one.is_older_than(there)
            if is_newer:
                self.rows[one.id] = one

    def _remove(self, id_: str, asked_at: float) -> None:
        if self.rows.pop(id_, None) is not None:
            self._out[id_] = asked_at

    # Readings

    def begin(self, reading: Reading, gone: frozenset[str]) -> asyncio.Task[None]:
        """A whole reading, or the one that is under way. Clients that go away do not end it."""
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
            # Who waits for it is told, and another query tries it again.
            log.info(
                "recipient_cache_refresh_failed",
                **self._owner._asdict(),
                **{"error.type": type(error).__name__},
            )
        else:
            came_of_it = metrics.REFRESHED
        metrics.cache_refreshes.labels(self._owner.environment, came_of_it).inc()

    async def drop(self) -> None:
        """Ends a reading that is under way."""
        self._is_dropped = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read_whole(self, reading: Reading, gone: frozenset[str]) -> None:
        """All that the service has; what it does not have any more is dropped at the end.

        It may go on beside queries: what is read is never put in the place of something newer.
        """
        began, goes_on = self._monotonic(), self.is_whole
        self._out.clear()
        if not goes_on:
            await self._elsewhere()  # what they have changed by now is read
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
        """What was changed since, and what was changed through the gateway and does not show there."""
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
            self.changed |= changed
            raise
        self._advance(sent_at, max((one.stamp for one in walked), default=None))

    def _advance(self, sent_at: float, newest: int | None) -> None:
        """The next increment begins where nothing can come to light any more.

        What has an update date of then was dated before that mark was seen, and so it was visible
        when this increment was asked for, if that was long enough afterwards.
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
        """A date that was now, or past, when it was seen: one of the future tells nothing of what
        comes before it.
        """
        now = int(self._wall() * 1000)
        return newest if newest is None or newest <= now + APART else now - APART

    async def _leave_archived(self, reading: Reading, records: int, since: int | None) -> bool:
        """Takes out who was archived, last changed first, back to ``since``; whether no more can be.

        Somebody may be archived just after they were counted. As many as were counted are then the
        same ones only where all who were archived since have been shown: where it was the whole
        archive, or where archiving moves update dates.
        """
        is_dated = True
        for number in itertools.count(FIRST_PAGE):
            read, is_last = await reading.archived(number)
            if not read:
                break
            for one in read:
                there = self.rows.get(one.id)
                # Some services list their archive: there they are as they are to be.
                if there and there.status != ARCHIVED and not one.is_older_than(there):
                    is_dated = is_dated and one.stamp > there.stamp
                    self._remove(one.id, one.asked_at)
            if is_last or (since is not None and read[-1].stamp < since):
                return len(self.rows) == records and (is_last or is_dated)
        return False

    async def _mend(self, reading: Reading, records: int) -> None:
        """Finds out in which spans of update dates it is not as the service has it."""
        dated = await run_in_thread(_by_date, [*self.rows.values()])
        stamps = [one.stamp for one in dated]
        spans = [(0, len(stamps), len(stamps) - records)] if stamps else []
        most = reading.calls + max(len(stamps) // PAGE_SIZE, 12)
        while spans:
            if reading.calls >= most:
                self._read_at = None  # a whole reading is no dearer
                raise Unreachable("the list kept changing while it was read")
            begin, end, off = spans.pop()
            middle = _between_dates(stamps, begin, end)
            if end - begin <= PAGE_SIZE or middle == end:
                await self._read_span(reading, dated[begin:end])
                continue
            # A date is shown by the millisecond, and may be later by less.
            until = stamps[middle - 1] + 1
            there = bisect_right(stamps, until, begin, end) - begin
            off_left = there - await reading.count(stamps[begin], until)
            if off_left:
                spans.append((begin, middle, off_left))
            if off_left != off:
                spans.append((middle, end, off - off_left))

    async def _read_span(self, reading: Reading, span: Sequence[Entry]) -> None:
        """Drops whom the service does not have there any more, nor has shown since."""
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
    """Near the middle, where one date ends and the next begins; the end where all are the same."""
    middle = bisect_left(stamps, stamps[(begin + end) // 2], begin, end)
    return middle if middle > begin else bisect_right(stamps, stamps[begin], begin, end)
