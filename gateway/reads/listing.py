"""List questions: one call where the service can answer, else its whole list, kept or read.

What the service cannot answer is decided over all that it lists: of an index where one is kept
(``index``), else of a reading made for the question alone (``scanning``).
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
"""What clients call some of an owner's recipients, where that differs."""


async def _no_names(_owner: Tenant, _those: Iterable[str]) -> Mapping[str, str]:
    return {}


class Listing:
    """``indexes`` are None where none are to be kept."""

    def __init__(self, indexes: Indexes | None = None, names: Names = _no_names) -> None:
        self._indexes = indexes
        self._names = names
        # Whether the service lists what clients must not see, as far as it has shown.
        self._lists_hidden: TTLCache[tuple[Tenant, str], bool] = TTLCache(10_000, A_DAY)

    async def find(self, question: ListQuery, make: Make, owner: Tenant) -> ListPage:
        """The page of rows that a question asks for; raises what a call raises."""
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
                pass  # it is read for this question alone, as if there were none
        rows = await load_all_rows(question, make)
        self._learn(question, about, rows)
        return select_page(await self._ordered(owner, question, rows), rows)

    async def _of_index(
        self, indexes: Indexes, question: ListQuery, make: Make, owner: Tenant
    ) -> ListPage:
        """Raises NoIndex where none can be kept."""
        if not indexes.has(owner) and (rows := await load_single_page(question, make)) is not None:
            self._learn(question, (owner, question.path), rows)
            return select_page(await self._ordered(owner, question, rows), rows)
        found = await indexes.find(question, make, owner, partial(self._ordered, owner))
        about = (owner, question.path)
        if question.excluded_ids and about not in self._lists_hidden:
            self._lists_hidden[about] = await indexes.lists_hidden(question, owner)
        return found

    async def _ordered(self, owner: Tenant, question: ListQuery, rows: Iterable[Row]) -> ListQuery:
        """The question over these rows: an order of ids is that of the ids which clients see."""
        if not question.is_sorted_by_id:
            return question
        names = await self._names(owner, {str(row["id"]) for row in rows})
        return replace(question, sort_key=lambda row: names.get(str(row["id"]), str(row["id"])))

    def _may_list_hidden(self, question: ListQuery, about: tuple[Tenant, str]) -> bool:
        return self._lists_hidden.get(about, bool(question.excluded_ids))

    def _learn(self, question: ListQuery, about: tuple[Tenant, str], rows: list[Row]) -> None:
        """A whole list shows whether hidden rows are in it; a narrowed one only if they are."""
        if any(map(question.is_hidden, rows)):
            self._lists_hidden[about] = True
        elif question.excluded_ids and not question.prefilter:
            self._lists_hidden[about] = False


async def _asked(question: ListQuery, ask: Mapping[str, str], make: Make) -> ListPage | None:
    """The service's own answer; None where it will not give one, or not say of how many."""
    try:
        part = parse_page(
            await make(Call("GET", question.path, query=ask)), question, question.page
        )
    except Refused as refused:
        if refused.status in (400, 406):  # a value that it does not take, where lists have no 406
            return None
        raise
    if part.pages is None or part.records is None:
        return None
    # Some services give their last page for one that lies past the end.
    is_past = part.page != question.page or question.page > part.pages
    return ListPage([] if is_past else part.rows, part.pages, part.records)
