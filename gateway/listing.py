"""List questions: one call where the service can answer, else a reading of all it lists.

A scan is complete or it is no answer. Pages are read in the order of creation, so that what is
new comes at the end; when rows may have moved from one page to another meanwhile, the scan is made
again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cachetools import TTLCache

from gateway.store.ledger import Owner
from mappings.grammar import JSON, Call, Find, Found, Refused, Unreachable
from mappings.paging import FIRST, whole

PAGE_SIZE = 250
"""Rows asked for at a time; the document shows no maximum, the service's ``meta`` tells."""

SIDE_BY_SIDE = 4
"""Pages of one scan under way at a time."""

TRIES = 4
"""Scans of a list that keeps changing, before it is told as a failure."""

A_DAY = 86_400

Make = Callable[[Call], Awaitable[JSON]]
Row = Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class _Part:
    """One page as the service gave it; ``pages`` and ``records`` are None where it did not say."""

    rows: list[Row]
    page: int
    pages: int | None
    records: int | None


class Listing:
    def __init__(self) -> None:
        # Whether the service lists what clients must not see, as far as it has shown.
        self._lists_hidden: TTLCache[tuple[Owner, str], bool] = TTLCache(10_000, A_DAY)

    async def find(self, question: Find, make: Make, owner: Owner) -> Found:
        """The page of rows that a question asks for; raises what a call raises."""
        about = (owner, question.path)
        if question.ask is not None and not self._may_list_hidden(question, about):
            found = await _asked(question, question.ask, make)
            if found and not any(map(question.hidden, found.rows)):
                return found
            if found:
                self._lists_hidden[about] = True
        rows = await _scan(question, make)
        self._learn(question, about, rows)
        return _page_of(question, rows)

    def _may_list_hidden(self, question: Find, about: tuple[Owner, str]) -> bool:
        return self._lists_hidden.get(about, question.hiding)

    def _learn(self, question: Find, about: tuple[Owner, str], rows: list[Row]) -> None:
        """A whole list shows whether hidden rows are in it; a narrowed one only if they are."""
        if any(map(question.hidden, rows)):
            self._lists_hidden[about] = True
        elif question.hiding and not question.narrow:
            self._lists_hidden[about] = False


async def _asked(question: Find, ask: Mapping[str, str], make: Make) -> Found | None:
    """The service's own answer; None where it will not give one, or not say of how many."""
    try:
        part = _part(await make(Call("GET", question.path, query=ask)), question, question.page)
    except Refused as refused:
        if refused.status in (400, 406):  # a value that it does not take, where lists have no 406
            return None
        raise
    if part.pages is None or part.records is None:
        return None
    # Some services give their last page for one that lies past the end.
    is_past = part.page != question.page or question.page > part.pages
    return Found([] if is_past else part.rows, part.pages, part.records)


def _page_of(question: Find, rows: list[Row]) -> Found:
    kept = [row for row in rows if not question.hidden(row) and question.where(row)]
    kept.sort(key=lambda row: str(row["id"]))
    kept.sort(key=question.order, reverse=question.descending)
    start = (question.page - 1) * question.page_size
    pages = math.ceil(len(kept) / question.page_size)
    return Found(kept[start : start + question.page_size], pages, len(kept))


async def _scan(question: Find, make: Make) -> list[Row]:
    """Every row, narrowed where the service takes that."""
    try:
        return await _settled(question, make)
    except Refused as refused:
        if refused.status not in (400, 406) or not question.narrow:
            raise
    return await _settled(replace(question, narrow={}), make)


async def _settled(question: Find, make: Make) -> list[Row]:
    for _ in range(TRIES):
        parts = await _all_parts(question, make)
        if parts is None:
            continue
        rows = {str(row["id"]): row for part in parts for row in part.rows}
        if {part.records for part in parts} in ({None}, {len(rows)}):
            return list(rows.values())
    raise Unreachable("the list kept changing while it was read")


async def _all_parts(question: Find, make: Make) -> list[_Part] | None:
    """Every page; None where rows moved from page to page meanwhile.

    The last page is read before the others and again after them: whatever was taken out of the
    list or put into it between, its rows have moved.
    """
    size: int | None = PAGE_SIZE
    try:
        first = await _read(question, FIRST, size, make)
    except Refused as refused:
        if not refused.names("invalid_field", "pageSize"):
            raise
        size = None  # more than this service gives: its own default, then
        first = await _read(question, FIRST, size, make)
    if first.pages is None:
        return await _twice_alike(question, first, size, make)
    if first.pages <= FIRST:
        return [first]
    last = await _read(question, first.pages, size, make)
    others = await _side_by_side(question, range(FIRST, first.pages), size, make)
    again = await _read(question, first.pages, size, make)
    return [*others, again] if _ids([last]) == _ids([again]) else None


async def _side_by_side(question: Find, pages: range, size: int | None, make: Make) -> list[_Part]:
    numbers = iter(pages)
    parts: list[_Part] = []

    async def read() -> None:
        parts.extend([await _read(question, number, size, make) for number in numbers])

    readers = [read() for _ in range(min(SIDE_BY_SIDE, len(pages)))]
    for outcome in await asyncio.gather(*readers, return_exceptions=True):
        if outcome is not None:
            raise outcome
    return parts


def _ids(parts: list[_Part]) -> list[str]:
    return [str(row["id"]) for part in parts for row in part.rows]


async def _twice_alike(
    question: Find, first: _Part, size: int | None, make: Make
) -> list[_Part] | None:
    """For a service that does not say how many pages there are."""
    parts = await _until_empty(question, first, size, make)
    if len(parts) == FIRST:
        return parts
    again = await _until_empty(question, await _read(question, FIRST, size, make), size, make)
    return again if _ids(parts) == _ids(again) else None


async def _until_empty(question: Find, first: _Part, size: int | None, make: Make) -> list[_Part]:
    """For a service that does not say how many pages there are."""
    parts = [first]
    seen = {row["id"] for row in first.rows}
    while parts[-1].rows:
        part = await _read(question, len(parts) + 1, size, make)
        if all(row["id"] in seen for row in part.rows):
            break
        seen |= {row["id"] for row in part.rows}
        parts.append(part)
    return parts


async def _read(question: Find, number: int, size: int | None, make: Make) -> _Part:
    paging = {"page": str(number)} | ({"pageSize": str(size)} if size else {})
    query = {**paging, **question.narrow, **question.sorting}
    return _part(await make(Call("GET", question.path, query=query)), question, number)


def _part(body: JSON, question: Find, number: int) -> _Part:
    given: Any = body.get("meta")
    meta = given if isinstance(given, dict) else {}
    return _Part(
        body.get(question.rows) or [],
        whole(meta.get("page"), number),
        _count(meta.get("pages")),
        _count(meta.get("records")),
    )


def _count(value: JSON) -> int | None:
    count = whole(value, -1)
    return None if count < 0 else count
