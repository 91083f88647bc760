"""Answers list queries: with one call if the service supports the query, else from its whole list.

The whole list comes from the recipient cache (``recipient_cache``) if there is one, else from a
scan for this query only (``recipient_cache.scan``).
"""

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import structs

from gateway.payloads.worker_thread import run_in_thread_if
from gateway.reads.recipient_cache import CacheUnavailable, RecipientCaches
from gateway.reads.recipient_cache.entry import RecipientEntry
from gateway.reads.recipient_cache.scan import (
    CallService,
    Row,
    fetch_all_rows,
    fetch_rows_if_single_page,
    parse_page,
)
from gateway.storage.alias_ids import AliasIds
from gateway.storage.capability_cache import CapabilityCache
from gateway.storage.tenants import Tenant
from mappings.current import ID_PATTERN
from mappings.effects import JSON, Call, ListPage, ListQuery
from mappings.failures import Refused
from mappings.paging import FIRST_PAGE, Page, build_meta

DAY_SECONDS = 86_400

_ID = re.compile(rf"(?<=/){ID_PATTERN}(?=/)")
"""The id in the path of a list, as of a recipient's payments."""


class ListReader:
    """Answers list queries of tenants.

    What the service's lists have shown is known to all processes, as pages that one of them selects
    and pages of the service do not fit together.
    """

    def __init__(
        self,
        caches: RecipientCaches,
        ids: AliasIds | None = None,
        capabilities: CapabilityCache | None = None,
    ) -> None:
        self.caches = caches
        self._ids = ids
        self._capabilities = capabilities or CapabilityCache()

    async def query(
        self, question: ListQuery, call_service: CallService, tenant: Tenant
    ) -> ListPage:
        """Returns the page of rows that a query asks for; raises the errors of a call."""
        list_name = f"{tenant.merchant} {_ID.sub(':id', question.path)}"
        hidden = tenant.environment, f"hidden rows {list_name}"
        maximum = tenant.environment, f"page size {list_name}"

        async def call_and_measure(call: Call) -> JSON:
            body = await call_service(call)
            size = _compute_full_size(call, body, question)
            requested = int(call.query.get("pageSize", 0))
            if 0 < size < min(requested, self._find_recorded(*maximum, requested)):
                await self._record(*maximum, size)
            return body

        may_have_hidden = self._find_recorded(*hidden, bool(question.excluded_ids))
        if question.native_query is not None and not may_have_hidden:
            result = await _query_service(question, question.native_query, call_and_measure)
            if result and not any(map(question.is_hidden, result.rows)):
                return result
            # The service's totals count the hidden rows, so its page cannot be used.
            if result:
                await self._record(*hidden, True)
        try:
            rows = await self._load_rows(question, call_and_measure, tenant)
        except Refused as error:
            if error.status not in (400, 406) or not question.prefilter:
                raise
            # The service does not support a value of the prefilter.
            question = structs.replace(question, prefilter={})
            rows = await self._load_rows(question, call_and_measure, tenant)
        if question.native_query is not None:
            # The service may answer the client's other pages, so all must have the same size.
            size = self._find_recorded(*maximum, question.page_size)
            question = structs.replace(question, page_size=min(size, question.page_size))
        sorted_question = await self._add_alias_sort_key(tenant, question, rows)
        is_cached = bool(rows) and isinstance(rows[0], RecipientEntry)
        page, has_hidden = await run_in_thread_if(is_cached, _select_page, sorted_question, rows)
        # A filtered list proves only that there are some; a whole list also that there are none.
        if has_hidden or (question.excluded_ids and (is_cached or not question.prefilter)):
            await self._record(*hidden, has_hidden)
        return page

    def _find_recorded(self, environment: str, name: str, default: int) -> int:
        """Finds what a list has shown within a day."""
        value: int
        value, at = self._capabilities.get(environment, name) or (default, math.inf)
        return value if time.time() - at < DAY_SECONDS else default

    async def _record(self, environment: str, name: str, value: int) -> None:
        if self._find_recorded(environment, name, -1) != value:
            await self._capabilities.put(environment, name, [value, int(time.time())])

    async def _load_rows(
        self, question: ListQuery, call_service: CallService, tenant: Tenant
    ) -> Sequence[Row | RecipientEntry]:
        """Returns the rows of the list, at least those that pass the prefilter."""
        if question.is_indexed and self.caches.can_cache(tenant):
            if not self.caches.has_fresh_cache(tenant):
                rows = await fetch_rows_if_single_page(question, call_service)
                if rows is not None:
                    return rows
            # If they cannot be cached, the list is scanned for this query.
            with suppress(CacheUnavailable):
                return await self.caches.load_recipients(question, call_service, tenant)
        return await fetch_all_rows(question, call_service)

    async def _add_alias_sort_key(
        self, tenant: Tenant, question: ListQuery, rows: Iterable[Row | RecipientEntry]
    ) -> ListQuery:
        """Returns the query with its sort key; ids are sorted by the alias ids that clients see."""
        if not question.is_sorted_by_id:
            return question
        alias_ids: Mapping[str, str] = {}
        if self._ids is not None:
            # For sorting only, so new aliases are not saved.
            objects = {("recipient", str(row["id"])) for row in rows}
            alias_ids = await self._ids.find_or_create_legacy_ids(
                tenant, objects, {}, is_cached=False
            )
        return structs.replace(
            question, sort_key=lambda row: alias_ids.get(str(row["id"]), str(row["id"]))
        )


def _select_page(
    question: ListQuery, rows: Sequence[Row | RecipientEntry]
) -> tuple[ListPage, bool]:
    """Returns the page that a query asks for, and whether there are hidden rows."""
    visible_rows = [row for row in rows if not question.is_hidden(row)]
    matching_rows: list[Any] = list(filter(question.is_match, visible_rows))
    if question.sort_key is not None:
        # Sorted twice: the second sort is stable, so ties are in the order of ids in both
        # directions.
        matching_rows.sort(key=lambda row: str(row["id"]))
        matching_rows.sort(key=question.sort_key, reverse=question.is_descending)
    page_rows, meta = Page(question.page, question.page_size).select_rows(matching_rows)
    page_rows = [
        row.unpack_answer_fields() if isinstance(row, RecipientEntry) else row for row in page_rows
    ]
    return ListPage(page_rows, meta), len(visible_rows) < len(rows)


def _compute_full_size(call: Call, body: JSON, question: ListQuery) -> int:
    """Returns the number of rows on each page but the last; 0 if that is not known."""
    number = int(call.query.get("page", FIRST_PAGE))
    page = parse_page(body, question, number)
    size, page_count = len(page.rows), page.page_count or 0
    if number == page_count > FIRST_PAGE:
        return ((page.record_count or 0) - size) // (page_count - 1)
    return size if number < page_count else 0


async def _query_service(
    question: ListQuery, native_query: Mapping[str, str], call_service: CallService
) -> ListPage | None:
    """Asks the service; returns None if its answer is not the page, with the totals."""
    try:
        body = await call_service(Call("GET", question.path, query=native_query))
    except Refused as error:
        # The service does not support a value of the query; lists have no 406 of their own.
        if error.status in (400, 406):
            return None
        raise
    page = parse_page(body, question, question.page)
    if page.page_count is None or page.record_count is None:
        return None
    meta = build_meta(question.page, page.page_count, page.record_count)
    # Some services return the last page for a page past the end.
    if question.page > page.page_count:
        return ListPage([], meta)
    # Another page of the list, or another way to count pages: a scan depends on neither.
    if page.number != question.page:
        return None
    return ListPage(page.rows, meta)
