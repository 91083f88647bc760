"""Reads the service's list by update date, with as few calls as possible.

A *walk* follows the update dates and always asks for the rows after the last date it has. With page
numbers, it would skip a row whenever an earlier one is removed. Rows that are changed meanwhile
move to the end, where the walk meets them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gateway.payloads.worker_thread import run_in_thread
from gateway.reads.recipient_cache.entry import (
    RecipientEntry,
    format_stamp_for_date_filter,
    parse_row_stamp,
)
from gateway.reads.recipient_cache.scan import (
    MAX_PARALLEL_PAGES,
    PAGE_SIZE,
    CallService,
    Row,
    ScannedPage,
    gather_all,
    parse_page,
)
from mappings.effects import Call, ListQuery
from mappings.failures import Refused
from mappings.objects import ARCHIVED, is_deleted_for_clients
from mappings.paging import FIRST_PAGE

StoreEntries = Callable[[Sequence[RecipientEntry]], None]

MIN_PAGES_PER_WALK = 4
"""Minimum pages of each of several parallel walks."""


class CacheUnavailable(Exception):
    """The recipients cannot be cached, or not now; the text is the reason for the log."""


@dataclass(slots=True)
class ServiceListReader:
    """Reads recipients for one query or refresh, and counts the calls.

    Methods call ``store_entries`` with the entries of each page as it arrives. ``page_size``
    becomes None if the service refuses that size; its default is used then.
    """

    question: ListQuery
    call_service: CallService
    page_size: int | None = PAGE_SIZE
    call_count: int = field(default=0, init=False)

    async def count_rows(self) -> int:
        return _require_record_count(await self._fetch_page(None, None, size=1))

    async def fetch_count_and_newest_date(self) -> tuple[int, int | None]:
        """Returns the number of rows and the newest update date; None if there are no rows."""
        page = await self._fetch_page(None, None, size=1, direction="desc")
        return _require_record_count(page), parse_row_stamp(page.rows[0]) if page.rows else None

    async def fetch_and_store_all(self, records: int, store_entries: StoreEntries) -> None:
        """Walks along the whole list, in parallel if it is long enough."""
        walk_count = min(MAX_PARALLEL_PAGES, records // (PAGE_SIZE * MIN_PAGES_PER_WALK) or 1)
        positions = [records * number // walk_count for number in range(1, walk_count)]
        boundaries = sorted({*await gather_all([*map(self._fetch_update_date_at, positions)])})
        # The walks overlap by a millisecond, the resolution of dates, so that no row is missed.
        ends = [*(boundary + 1 for boundary in boundaries), None]
        spans = zip([None, *boundaries], ends, strict=True)
        await gather_all([self.fetch_rows_in_date_span(store_entries, *span) for span in spans])

    async def _fetch_update_date_at(self, position: int) -> int:
        page = await self._fetch_page(None, None, size=1, number=position)
        if len(page.rows) != 1:
            raise CacheUnavailable("the service does not support pages of one row")
        return parse_row_stamp(page.rows[0])

    async def fetch_rows_in_date_span(
        self,
        store_entries: StoreEntries,
        since: int | None,
        until: int | None = None,
        *,
        status: str = "",
    ) -> list[RecipientEntry]:
        """Reads every row with an update date in a span; some may be returned more than once."""
        walked_entries: list[RecipientEntry] = []
        number = FIRST_PAGE
        while True:
            page = await self._fetch_page(since, until, number=number, status=status)
            entries = await run_in_thread(_build_recipient_entries, page.rows) if page.rows else []
            _check_rows_filtered_and_sorted(entries, since, until)
            store_entries(entries)
            walked_entries += entries
            if page.page_count is None:
                raise CacheUnavailable("the service does not report the number of pages")
            if not entries or number >= page.page_count:
                return walked_entries
            # Continue from the last date and not with the next page, which might skip rows.
            if since is None or entries[-1].stamp > since:
                since, number = entries[-1].stamp, FIRST_PAGE
            else:  # more rows with the same date than fit in a page
                number += 1

    async def fetch_archived_rows(self, since: int | None) -> list[RecipientEntry]:
        """Reads recipients archived since a date; none if the service does not list them."""
        try:
            entries = await self.fetch_rows_in_date_span(lambda _: None, since, status=ARCHIVED)
        except CacheUnavailable:
            return []
        return entries if all(entry.status == ARCHIVED for entry in entries) else []

    async def fetch_and_list_missing_ids(
        self, ids: Iterable[str], store_entries: StoreEntries
    ) -> list[str]:
        """Reads rows by their ids; returns the ids that do not exist or are archived.

        A service that lists archived recipients adds them again with its list.
        """
        # One iterator for all tasks: each takes the next id when it is free.
        remaining_ids = iter(ids)
        missing_ids: list[str] = []

        async def fetch_remaining_recipients() -> None:
            missing_ids.extend(
                [
                    id_
                    for id_ in remaining_ids
                    if not await self._fetch_and_store_recipient(id_, store_entries)
                ]
            )

        await gather_all([fetch_remaining_recipients() for _ in range(MAX_PARALLEL_PAGES)])
        return missing_ids

    async def _fetch_and_store_recipient(self, id_: str, store_entries: StoreEntries) -> bool:
        self.call_count += 1
        try:
            body = await self.call_service(Call("GET", f"{self.question.path}/{id_}"))
        except Refused as error:
            if error.status != 404:
                raise
            return False
        row = body.get("recipient") or {}
        # Stored under this id, it would show another person's bank account to the client.
        if row.get("id") != id_:
            raise CacheUnavailable("the service returned another recipient than requested")
        if is_deleted_for_clients(row, {}):
            return False
        store_entries(_build_recipient_entries([row]))
        return True

    async def _fetch_page(
        self,
        since: int | None,
        until: int | None,
        *,
        size: int | None = None,
        number: int = FIRST_PAGE,
        direction: str = "asc",
        status: str = "",
    ) -> ScannedPage:
        """Fetches a page by update date; ``size`` overrides the normal page size."""
        self.call_count += 1
        requested_size = self.page_size if size is None else size
        query = {"page": str(number)}
        query |= {"pageSize": str(requested_size)} if requested_size else {}
        query |= {"startDate": format_stamp_for_date_filter(since)} if since is not None else {}
        query |= {"endDate": format_stamp_for_date_filter(until)} if until is not None else {}
        query |= {"status": status} if status else {}
        query |= {"orderBy": "updatedAt", "sortBy": direction}
        try:
            body = await self.call_service(Call("GET", self.question.path, query=query))
        except Refused as error:
            if error.status not in (400, 406):
                raise
            # Only the page size can be dropped: without the dates the synchronization proves nothing.
            is_size_refused = error.has_field_problem("invalid_field", "pageSize")
            if requested_size != PAGE_SIZE or not is_size_refused:
                reason = "the service does not filter and sort by update date"
                raise CacheUnavailable(reason) from None
        else:
            return parse_page(body, self.question, number)
        self.page_size = None  # the service refuses this size
        return await self._fetch_page(
            since, until, number=number, direction=direction, status=status
        )


def _build_recipient_entries(rows: Sequence[Row]) -> list[RecipientEntry]:
    try:
        return [RecipientEntry(row) for row in rows]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CacheUnavailable("the service's rows do not match the document") from None


def _check_rows_filtered_and_sorted(
    entries: Sequence[RecipientEntry], since: int | None, until: int | None
) -> None:
    """Raises CacheUnavailable if the rows are not filtered and sorted as requested."""
    stamps = [entry.stamp for entry in entries]
    is_in_order = stamps == sorted(stamps)
    is_in_span = not stamps or (
        (since is None or stamps[0] >= since) and (until is None or stamps[-1] <= until)
    )
    if not is_in_order or not is_in_span or (stamps and stamps[0] < 0):
        raise CacheUnavailable("the service's lists are not in the order of update dates")


def _require_record_count(part: ScannedPage) -> int:
    if part.record_count is None:
        raise CacheUnavailable("the service does not report the number of recipients")
    return part.record_count
