"""Answers list queries: with one call if the service supports the query, else from its whole list.

The whole list comes from the recipient cache (``recipient_cache``) if there is one, else from a scan
for this query only (``recipient_cache.scan``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from cachetools import TTLCache

from gateway.reads.index import Indexes, NoIndex
from gateway.reads.index.scan import (
    Make,
    Row,
    load_all_rows,
    load_single_page,
    parse_page,
    select_page,
)
from gateway.storage.tenants import Tenant
from mappings.effects import Call, ListPage, ListQuery
from mappings.failures import Refused

A_DAY = 86_400

Names = Callable[[Tenant, Iterable[str]], Awaitable[Mapping[str, str]]]
"""Returns the alias ids of a tenant's recipients, for those that have one."""


async def _no_names(_owner: Tenant, _those: Iterable[str]) -> Mapping[str, str]:
    return {}


class Listing:
    """Answers list queries of tenants; ``caches`` is None if recipients are not cached."""

    def __init__(self, indexes: Indexes | None = None, names: Names = _no_names) -> None:
        self._indexes = indexes
        self._names = names
        # Whether the service lists rows that clients must not see, as far as its lists have shown.
        self._lists_hidden: TTLCache[tuple[Tenant, str], bool] = TTLCache(10_000, A_DAY)

    async def find(self, question: ListQuery, make: Make, owner: Tenant) -> ListPage:
        """Return the page of rows that a query asks for; raises the errors of a call."""
        about = (owner, question.path)
        if question.native_query is not None and not self._may_list_hidden(question, about):
            found = await _asked(question, question.native_query, make)
            if found and not any(map(question.is_hidden, found.rows)):
                return found
            if found:
                self._lists_hidden[about] = True
        if self._indexes is not None and question.is_indexed and self._indexes.may_have(owner):
            try:
                return await self._of_index(self._indexes, question, make, owner)
            except NoIndex:
                pass  # the list is scanned for this query, as without a cache
        rows = await load_all_rows(question, make)
        self._learn(question, about, rows)
        return select_page(await self._ordered(owner, question, rows), rows)

    async def _of_index(
        self, indexes: Indexes, question: ListQuery, make: Make, owner: Tenant
    ) -> ListPage:
        """Answer from the cache; raises CacheUnavailable if the recipients cannot be cached."""
        if not indexes.has(owner) and (rows := await load_single_page(question, make)) is not None:
            self._learn(question, (owner, question.path), rows)
            return select_page(await self._ordered(owner, question, rows), rows)
        found = await indexes.find(question, make, owner, partial(self._ordered, owner))
        about = (owner, question.path)
        if question.excluded_ids and about not in self._lists_hidden:
            self._lists_hidden[about] = await indexes.lists_hidden(question, owner)
        return found

    async def _ordered(self, owner: Tenant, question: ListQuery, rows: Iterable[Row]) -> ListQuery:
        """Return the query with its sort key; ids are sorted by the alias ids that clients see."""
        if not question.is_sorted_by_id:
            return question
        names = await self._names(owner, {str(row["id"]) for row in rows})
        return replace(question, sort_key=lambda row: names.get(str(row["id"]), str(row["id"])))

    def _may_list_hidden(self, question: ListQuery, about: tuple[Tenant, str]) -> bool:
        return self._lists_hidden.get(about, bool(question.excluded_ids))

    def _learn(self, question: ListQuery, about: tuple[Tenant, str], rows: list[Row]) -> None:
        """Record whether a list contains hidden rows.

        A filtered list proves it only if there are some; a whole list also if there are none.
        """
        if any(map(question.is_hidden, rows)):
            self._lists_hidden[about] = True
        elif question.excluded_ids and not question.prefilter:
            self._lists_hidden[about] = False


async def _asked(question: ListQuery, ask: Mapping[str, str], make: Make) -> ListPage | None:
    """Ask the service; return None if it refuses the query or does not return the totals."""
    try:
        part = parse_page(
            await make(Call("GET", question.path, query=ask)), question, question.page
        )
    except Refused as refused:
        if refused.status in (
            400,
            406,
        ):  # it does not support the value; lists have no 406 of their own
            return None
        raise
    if part.pages is None or part.records is None:
        return None
    # Some services return the last page for a page past the end.
    is_past = part.page != question.page or question.page > part.pages
    return ListPage([] if is_past else part.rows, part.pages, part.records)
