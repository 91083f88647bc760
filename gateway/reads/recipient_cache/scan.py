"""Scans the service's list page by page, to its end.

A scan is complete or fails. Pages are read in the order of creation, so that new rows appear at the
end. If rows may have moved between pages meanwhile, the scan is repeated.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from mappings.effects import JSON, Call, ListQuery
from mappings.failures import Refused, Unreachable
from mappings.paging import FIRST_PAGE, extract_meta, parse_count_or_default

PAGE_SIZE = 250
"""Rows in a page; the document states no maximum. A service that refuses it gets its default."""

MAX_PARALLEL_PAGES = 4
"""Pages of one scan that are requested at a time."""

MAX_SCANS = 4
"""Scans of a list that keeps changing, before the query fails."""

Result = TypeVar("Result")
CallService = Callable[[Call], Awaitable[JSON]]
Row = Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class ScannedPage:
    """One page of the service's list; the counts are None if the service did not return them."""

    rows: list[Row]
    number: int
    page_count: int | None
    record_count: int | None


async def fetch_rows_if_single_page(
    question: ListQuery, call_service: CallService
) -> list[Row] | None:
    """Fetches the list if one page contains all rows; None if not, or if that is unknown."""
    try:
        page = await _Scan(question, call_service).fetch_page(FIRST_PAGE)
    except Refused as error:
        if question.prefilter or error.status not in (400, 406):
            raise
        return None
    is_all = page.page_count is not None and page.page_count <= FIRST_PAGE
    return page.rows if is_all and page.record_count in (None, len(page.rows)) else None


async def fetch_all_rows(question: ListQuery, call_service: CallService) -> list[Row]:
    """Fetches all rows that pass the prefilter."""
    for _ in range(MAX_SCANS):
        pages = await _Scan(question, call_service).fetch_all_pages()
        if pages is None:
            continue
        rows = {str(row["id"]): row for page in pages for row in page.rows}
        # A different number of distinct rows means that some moved between pages.
        if {page.record_count for page in pages} in ({None}, {len(rows)}):
            return list(rows.values())
    raise Unreachable("the list kept changing while it was read")


@dataclass(slots=True)
class _Scan:
    question: ListQuery
    call_service: CallService
    page_size: int | None = PAGE_SIZE
    """None for the service's default."""

    async def fetch_all_pages(self) -> list[ScannedPage] | None:
        """Fetches every page; None if rows moved between pages meanwhile.

        The last page is read before the others and again after them: any row that was removed or
        inserted meanwhile has changed the last page.
        """
        try:
            first = await self.fetch_page(FIRST_PAGE)
        except Refused as error:
            if not error.has_field_problem("invalid_field", "pageSize"):
                raise
            self.page_size = None  # the service refuses this size
            first = await self.fetch_page(FIRST_PAGE)
        if first.page_count is None:
            pages = await self._fetch_pages(math.inf, 1)
            # Twice, unless the first contains all: rows that moved between pages meanwhile differ.
            if len(pages) <= FIRST_PAGE:
                return pages or [first]
            pages_again = await self._fetch_pages(math.inf, 1)
            return pages_again if _list_row_ids(pages) == _list_row_ids(pages_again) else None
        if first.page_count <= FIRST_PAGE:
            return [first]
        last = await self.fetch_page(first.page_count)
        other_count = first.page_count - 1
        other_pages = await self._fetch_pages(other_count, min(MAX_PARALLEL_PAGES, other_count))
        if len(other_pages) < other_count and last.rows:
            return None
        last_again = await self.fetch_page(first.page_count)
        is_same = _list_row_ids([last]) == _list_row_ids([last_again])
        return [*other_pages, last_again] if is_same else None

    async def _fetch_pages(self, max_pages: float, task_count: int) -> list[ScannedPage]:
        """Fetches pages until one has no new rows: a service may report more pages than it has."""
        numbers = count(FIRST_PAGE)
        pages_by_number = dict[int, ScannedPage]()
        seen_ids = set[str]()
        last_number = max_pages

        async def fetch_pages() -> None:
            nonlocal last_number
            while (number := next(numbers)) <= last_number:
                page = await self.fetch_page(number)
                if seen_ids.issuperset(_list_row_ids([page])):
                    last_number = min(last_number, number)
                else:
                    seen_ids.update(_list_row_ids([page]))
                    pages_by_number[number] = page

        await gather_all([fetch_pages() for _ in range(task_count)])
        return [pages_by_number[number] for number in sorted(pages_by_number)]

    async def fetch_page(self, number: int) -> ScannedPage:
        paging = {"page": str(number)}
        paging |= {"pageSize": str(self.page_size)} if self.page_size else {}
        query = {**paging, **self.question.prefilter, **self.question.scan_sort}
        body = await self.call_service(Call("GET", self.question.path, query=query))
        return parse_page(body, self.question, number)


async def gather_all(coroutines: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Returns all results; if one fails, waits for the others and raises its error."""
    # Not cancelled at the first error: an aborted call would cost its connection.
    outcomes = await asyncio.gather(*coroutines, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


def _list_row_ids(pages: list[ScannedPage]) -> list[str]:
    return [str(row["id"]) for page in pages for row in page.rows]


def parse_page(body: JSON, question: ListQuery, number: int) -> ScannedPage:
    meta = extract_meta(body)
    return ScannedPage(
        body.get(question.list_field) or [],
        parse_count_or_default(meta.get("page"), number),
        _parse_count_or_none(meta.get("pages")),
        _parse_count_or_none(meta.get("records")),
    )


def _parse_count_or_none(value: JSON) -> int | None:
    count = parse_count_or_default(value, -1)
    return None if count < 0 else count
