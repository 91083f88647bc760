"""Scans the service's list page by page, to its end.

A scan is complete or fails. Pages are read in the order of creation, so that new rows appear at the
end. If rows may have moved between pages meanwhile, the scan is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar

from mappings.effects import JSON, Call, ListPage, ListQuery
from mappings.failures import Refused, Unreachable
from mappings.paging import FIRST_PAGE, Page, parse_count

PAGE_SIZE = 250
"""Rows in a page; the document states no maximum. If the service refuses it, its default is used."""

SIDE_BY_SIDE = 4
"""Pages of one scan that are requested at a time."""

TRIES = 4
"""Scans of a list that keeps changing, before the query fails."""

Its = TypeVar("Its")
Make = Callable[[Call], Awaitable[JSON]]
Row = Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class Part:
    """One page of the service's list; the counts are None if the service did not return them."""

    rows: list[Row]
    page: int
    pages: int | None
    records: int | None


def select_page(question: ListQuery, rows: Iterable[Any]) -> ListPage:
    """Filter and sort all rows, and return the requested page."""
    kept = [row for row in rows if not question.is_hidden(row) and question.is_match(row)]
    if question.sort_key is not None:
        kept.sort(key=lambda row: str(row["id"]))
        kept.sort(key=question.sort_key, reverse=question.is_descending)
    rows, counts = Page(question.page, question.page_size).select_rows(kept)
    return ListPage(rows, counts["pages"], counts["records"])


async def load_single_page(question: ListQuery, make: Make) -> list[Row] | None:
    """Fetch the list if one page contains all rows; None if not, or if it cannot be determined."""
    try:
        part = await _read(question, FIRST_PAGE, PAGE_SIZE, make)
    except Refused as refused:
        if refused.status not in (400, 406):
            raise
        return (
            await load_single_page(replace(question, prefilter={}), make)
            if question.prefilter
            else None
        )
    is_all = part.pages is not None and part.pages <= FIRST_PAGE
    return part.rows if is_all and part.records in (None, len(part.rows)) else None


async def load_all_rows(question: ListQuery, make: Make) -> list[Row]:
    """Fetch all rows, with the prefilter if the service supports it."""
    try:
        return await _settled(question, make)
    except Refused as refused:
        if refused.status not in (400, 406) or not question.prefilter:
            raise
    return await _settled(replace(question, prefilter={}), make)


async def _settled(question: ListQuery, make: Make) -> list[Row]:
    for _ in range(TRIES):
        parts = await _all_parts(question, make)
        if parts is None:
            continue
        rows = {str(row["id"]): row for part in parts for row in part.rows}
        # A different number of distinct rows means that some moved between pages.
        if {part.records for part in parts} in ({None}, {len(rows)}):
            return list(rows.values())
    raise Unreachable("the list kept changing while it was read")


async def _all_parts(question: ListQuery, make: Make) -> list[Part] | None:
    """Fetch every page; None if rows moved between pages meanwhile.

    The last page is read before the others and again after them: any row that was removed or inserted
    meanwhile has changed the last page.
    """
    size: int | None = PAGE_SIZE
    try:
        first = await _read(question, FIRST_PAGE, size, make)
    except Refused as refused:
        if not refused.has_problem("invalid_field", "pageSize"):
            raise
        size = None  # the service refuses this size; use its default
        first = await _read(question, FIRST_PAGE, size, make)
    if first.pages is None:
        return await _twice_alike(question, first, size, make)
    if first.pages <= FIRST_PAGE:
        return [first]
    last = await _read(question, first.pages, size, make)
    others = await _side_by_side(question, first.pages - 1, size, make)
    if len(others) < first.pages - 1 and last.rows:
        return None
    again = await _read(question, first.pages, size, make)
    return [*others, again] if _ids([last]) == _ids([again]) else None


async def _side_by_side(question: ListQuery, most: int, size: int | None, make: Make) -> list[Part]:
    """Fetch pages until one has no new rows: a service may report more pages than it has."""
    numbers = count(FIRST_PAGE)
    parts = dict[int, Part]()
    seen = set[str]()
    end = most

    async def read() -> None:
        nonlocal end
        while (number := next(numbers)) <= end:
            part = await _read(question, number, size, make)
            if seen.issuperset(_ids([part])):
                end = min(end, number)
                continue
            seen.update(_ids([part]))
            parts[number] = part

    await gather_all([read() for _ in range(min(SIDE_BY_SIDE, most))])
    return [parts[number] for number in sorted(parts)]


async def gather_all(those: Sequence[Coroutine[Any, Any, Its]]) -> list[Its]:
    """Return all results; if one fails, wait for the others and raise its error."""
    outcomes = await asyncio.gather(*those, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


def _ids(parts: list[Part]) -> list[str]:
    return [str(row["id"]) for part in parts for row in part.rows]


async def _twice_alike(
    question: ListQuery, first: Part, size: int | None, make: Make
) -> list[Part] | None:
    """Fetch all pages twice, for a service without page counts; None if they differ."""
    parts = await _until_empty(question, first, size, make)
    if len(parts) == FIRST_PAGE:
        return parts
    again = await _until_empty(question, await _read(question, FIRST_PAGE, size, make), size, make)
    return again if _ids(parts) == _ids(again) else None


async def _until_empty(
    question: ListQuery, first: Part, size: int | None, make: Make
) -> list[Part]:
    """Fetch pages until one is empty or has no new rows, for a service without page counts."""
    parts = [first]
    seen = {row["id"] for row in first.rows}
    while parts[-1].rows:
        part = await _read(question, len(parts) + 1, size, make)
        if all(row["id"] in seen for row in part.rows):
            break
        seen |= {row["id"] for row in part.rows}
        parts.append(part)
    return parts


async def _read(question: ListQuery, number: int, size: int | None, make: Make) -> Part:
    paging = {"page": str(number)} | ({"pageSize": str(size)} if size else {})
    query = {**paging, **question.prefilter, **question.scan_sort}
    return parse_page(await make(Call("GET", question.path, query=query)), question, number)


def parse_page(body: JSON, question: ListQuery, number: int) -> Part:
    given: Any = body.get("meta")
    meta = given if isinstance(given, dict) else {}
    return Part(
        body.get(question.list_field) or [],
        parse_count(meta.get("page"), number),
        _count(meta.get("pages")),
        _count(meta.get("records")),
    )


def _count(value: JSON) -> int | None:
    count = parse_count(value, -1)
    return None if count < 0 else count
