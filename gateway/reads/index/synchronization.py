"""Reads the service's list by update date, with as few calls as possible.

A *walk* follows the update dates and always asks for the rows after the last date it has. With page numbers,
it would skip a row whenever an earlier one is removed. Rows that are changed meanwhile move to the end,
where the walk meets them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gateway.payloads.worker_thread import run_in_thread
from gateway.reads.index.rows import Entry, format_stamp, parse_row_stamp
from gateway.reads.index.scan import (
    PAGE_SIZE,
    SIDE_BY_SIDE,
    Make,
    Part,
    Row,
    gather_all,
    parse_page,
)
from mappings.effects import Call, ListQuery
from mappings.failures import Refused
from mappings.objects import ARCHIVED, is_deleted_for_clients
from mappings.paging import FIRST_PAGE

Keep = Callable[[Sequence[Entry]], None]

LEAST_APART = 4
"""Minimum pages of each of several parallel walks."""


class NoIndex(Exception):
    """The recipients cannot be cached, or not now; the text is the reason for the log."""


@dataclass(slots=True)
class Reading:
    """Reads recipients for one query or refresh, and counts the calls.

    Methods call ``store_entries`` with the entries of each page as it arrives. ``page_size`` becomes
    None if the service refuses that size; its default is used then.
    """

    question: ListQuery
    make: Make
    monotonic: Callable[[], float] = time.monotonic
    page_size: int | None = PAGE_SIZE
    calls: int = field(default=0, init=False)

    async def count(self, since: int | None = None, until: int | None = None) -> int:
        """Return the number of rows with an update date in a span, both ends included."""
        return _records(await self._asked(since, until, size=1))

    async def ends(self) -> tuple[int, int | None]:
        """Return the number of rows and the newest update date; None if there are no rows."""
        part = await self._asked(None, None, size=1, direction="desc")
        return _records(part), parse_row_stamp(part.rows[0]) if part.rows else None

    async def whole(self, records: int, keep: Keep) -> None:
        """Walk along the whole list, in parallel if it is long enough."""
        apart = min(SIDE_BY_SIDE, records // (PAGE_SIZE * LEAST_APART) or 1)
        places = [records * number // apart for number in range(1, apart)]
        marks = sorted(set(await gather_all([self._stamp_at(place) for place in places])))
        # The walks overlap by a millisecond, the resolution of dates, so that no row is missed.
        spans = zip([None, *marks], [*(mark + 1 for mark in marks), None], strict=True)
        await gather_all([self.walk(keep, *span) for span in spans])

    async def _stamp_at(self, place: int) -> int:
        part = await self._asked(None, None, size=1, number=place)
        if len(part.rows) != 1:
            raise NoIndex("the service does not support pages of one row")
        return parse_row_stamp(part.rows[0])

    async def walk(self, keep: Keep, since: int | None, until: int | None = None) -> list[Entry]:
        """Read every row with an update date in a span; some may be returned more than once."""
        walked: list[Entry] = []
        number = FIRST_PAGE
        while True:
            asked_at = self.monotonic()
            part = await self._asked(since, until, number=number)
            read = await run_in_thread(_entries, part.rows, asked_at) if part.rows else []
            _check_dates(read, since, until)
            keep(read)
            walked += read
            if part.pages is None:
                raise NoIndex("the service does not report the number of pages")
            if not read or number >= part.pages:
                return walked
            # Continue from the last date and not with the next page, which might skip rows.
            if since is None or read[-1].stamp > since:
                since, number = read[-1].stamp, FIRST_PAGE
            else:  # more rows with the same date than fit in a page
                number += 1

    async def archived(self, number: int) -> tuple[list[Entry], bool]:
        """Fetch a page of archived recipients, newest first; return it and whether it is the last.

        Returns no entries if the service does not support this filter or order.
        """
        asked_at = self.monotonic()
        try:
            part = await self._asked(None, None, number=number, direction="desc", status=ARCHIVED)
            read = await run_in_thread(_entries, part.rows, asked_at) if part.rows else []
        except NoIndex:
            return [], True
        stamps = [one.stamp for one in read]
        is_of_them = all(one.status == ARCHIVED for one in read)
        if not is_of_them or part.pages is None or stamps != sorted(stamps, reverse=True):
            return [], True
        return read, number >= part.pages

    async def alone_each(self, ids: Iterable[str], keep: Keep) -> list[str]:
        """Read rows by their ids; return the ids that do not exist or are archived.

        A service that lists archived recipients adds them again with its list.
        """
        those = iter(ids)
        gone: list[str] = []

        async def read() -> None:
            gone.extend([id_ for id_ in those if not await self._alone(id_, keep)])

        await gather_all([read() for _ in range(SIDE_BY_SIDE)])
        return gone

    async def _alone(self, id_: str, keep: Keep) -> bool:
        self.calls += 1
        asked_at = self.monotonic()
        try:
            body = await self.make(Call("GET", f"{self.question.path}/{id_}"))
        except Refused as refused:
            if refused.status != 404:
                raise
            return False
        row = body.get("recipient") or {}
        if row.get("id") != id_:
            raise NoIndex("the service returned another recipient than requested")
        if is_deleted_for_clients(row, {}):
            return False
        keep(_entries([row], asked_at))
        return True

    async def _asked(
        self,
        since: int | None,
        until: int | None,
        *,
        size: int | None = None,
        number: int = FIRST_PAGE,
        direction: str = "asc",
        status: str = "",
    ) -> Part:
        """Fetch a page by update date; ``size`` overrides the normal page size."""
        self.calls += 1
        asked_for = self.page_size if size is None else size
        query = {"page": str(number)} | ({"pageSize": str(asked_for)} if asked_for else {})
        query |= {"startDate": format_stamp(since)} if since is not None else {}
        query |= {"endDate": format_stamp(until)} if until is not None else {}
        query |= {"status": status} if status else {}
        query |= {"orderBy": "updatedAt", "sortBy": direction}
        try:
            body = await self.make(Call("GET", self.question.path, query=query))
        except Refused as refused:
            if refused.status not in (400, 406):
                raise
            if asked_for != PAGE_SIZE or not refused.has_problem("invalid_field", "pageSize"):
                raise NoIndex("the service does not filter and sort by update date") from None
            self.page_size = None  # the service refuses this size
        else:
            return parse_page(body, self.question, number)
        return await self._asked(since, until, number=number, direction=direction, status=status)


def _entries(rows: Sequence[Row], asked_at: float) -> list[Entry]:
    try:
        return [Entry(row, asked_at) for row in rows]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise NoIndex("the service's rows do not match the document") from None


def _check_dates(read: Sequence[Entry], since: int | None, until: int | None) -> None:
    """Raise CacheUnavailable if the rows are not filtered and sorted by update date as requested."""
    stamps = [one.stamp for one in read]
    is_in_order = stamps == sorted(stamps)
    is_in_span = not stamps or (
        (since is None or stamps[0] >= since) and (until is None or stamps[-1] <= until)
    )
    if not is_in_order or not is_in_span or (stamps and stamps[0] < 0):
        raise NoIndex("the service's lists are not in the order of update dates")


def _records(part: Part) -> int:
    if part.records is None:
        raise NoIndex("the service does not report the number of recipients")
    return part.records
