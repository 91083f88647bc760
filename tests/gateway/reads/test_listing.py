"""Lists, read from an in-memory service: which pages are requested, and what they give."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import structs

from gateway.config.settings import Lists, State
from gateway.reads.listing import ListReader
from gateway.reads.recipient_cache import RecipientCaches
from gateway.reads.recipient_cache.scan import MAX_PARALLEL_PAGES, MAX_SCANS, PAGE_SIZE
from gateway.storage import Tenant, open_store
from gateway.storage.capability_cache import CapabilityCache
from gateway.storage.change_poller import load_change_counts
from mappings.effects import Call, ListPage, ListQuery
from mappings.failures import Problem, Refused, Unreachable
from tests.gateway.storage import conftest

sqlite = conftest.sqlite

TENANT = Tenant("demo", "sandbox")
PATH = "/rows"
HIDDEN_IDS = frozenset({"T9999"})
"""The id of some deleted row, so that queries must exclude ids."""


def build_row(number: int, **fields: Any) -> dict[str, Any]:
    return {"id": f"T{number:04d}", "number": number, "made": number, **fields}


def build_rows(n: int) -> list[dict[str, Any]]:
    return [build_row(number) for number in range(n)]


def build_query(**changes: Any) -> ListQuery:
    """Build a query for all rows by number, filtered by the gateway without ``native_query``."""
    list_query = ListQuery(
        PATH,
        page=1,
        page_size=10_000,
        is_hidden=lambda row: bool(row.get("hidden")),
        is_match=lambda _row: True,
        sort_key=lambda row: row["number"],
        is_descending=False,
        native_query=None,
        prefilter={},
    )
    return structs.replace(list_query, **changes)


@dataclass
class InMemoryList:
    """A list paged as the service pages; ``before_answer`` runs ahead of every answer."""

    rows: list[dict[str, Any]]
    max_page_size: int = 10**9
    before_answer: Callable[[dict[str, str]], None] = lambda _query: None
    meta: Callable[[dict[str, int]], Any] = lambda meta: meta
    calls: list[Call] = field(default_factory=list)
    running_calls: int = 0
    max_concurrent_calls: int = 0

    async def answer_call(self, call: Call) -> Any:
        self.calls.append(call)
        self.running_calls += 1
        self.max_concurrent_calls = max(self.max_concurrent_calls, self.running_calls)
        try:
            await asyncio.sleep(0)
            query = dict(call.query)
            self.before_answer(query)
            return self.page(query)
        finally:
            self.running_calls -= 1

    def page(self, query: dict[str, str]) -> dict[str, Any]:
        number, size = int(query["page"]), min(int(query.get("pageSize", "10")), self.max_page_size)
        rows = sorted(self.rows, key=lambda row: row["made"])[(number - 1) * size : number * size]
        pages = -(-len(self.rows) // size)
        counts = {"page": number, "pages": pages, "records": len(self.rows)}
        return {"ok": True, "rows": rows, "meta": self.meta(counts)}

    async def query(self, list_query: ListQuery, listing: ListReader | None = None) -> ListPage:
        return await (listing or build_reader()).query(list_query, self.answer_call, TENANT)


def build_reader() -> ListReader:
    return ListReader(RecipientCaches(Lists(index=False)))


def list_numbers(result: ListPage) -> list[int]:
    return [row["number"] for row in result.rows]


# One call


@pytest.mark.parametrize("page", [1, 2, 3])
async def test_page_that_service_numbers_differently_is_not_empty(page: int) -> None:
    """Some services count pages from 0 in ``meta``: the number proves no other page."""
    in_memory_list = InMemoryList(
        build_rows(25), meta=lambda counts: {**counts, "page": counts["page"] - 1}
    )
    query = {"page": str(page), "pageSize": "10"}
    result = await in_memory_list.query(build_query(page=page, page_size=10, native_query=query))
    expected_rows = list(range(25))[(page - 1) * 10 : page * 10]
    assert (list_numbers(result), result.meta["pages"], result.meta["records"]) == (
        expected_rows,
        3,
        25,
    )


# Scans


@pytest.mark.parametrize("n", [0, 1, PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1, 5 * PAGE_SIZE + 3])
async def test_scan_returns_every_row_once(n: int) -> None:
    result = await InMemoryList(build_rows(n)).query(build_query())
    assert list_numbers(result) == list(range(n))
    assert (result.meta["pages"], result.meta["records"]) == (min(n, 1), n)


async def test_pages_are_read_concurrently_up_to_limit() -> None:
    in_memory_list = InMemoryList(build_rows(300), max_page_size=10)
    await in_memory_list.query(build_query())
    assert in_memory_list.max_concurrent_calls == MAX_PARALLEL_PAGES


@pytest.mark.parametrize("n", [0, 1, 30])
@pytest.mark.parametrize("meta", [None, [], {}, {"pages": None, "records": -1}], ids=repr)
async def test_without_counts_pages_are_read_until_one_is_empty(meta: Any, n: int) -> None:
    in_memory_list = InMemoryList(build_rows(n), max_page_size=7, meta=lambda _counts: meta)
    assert list_numbers(await in_memory_list.query(build_query())) == list(range(n))


async def test_without_counts_pages_are_read_until_one_has_no_new_row() -> None:
    """A service that returns its last page for any page past the end, without counts."""
    in_memory_list = InMemoryList(build_rows(30), max_page_size=7, meta=lambda _counts: None)

    async def repeat_last_page(call: Call) -> Any:
        last = {**call.query, "page": str(min(int(call.query["page"]), 5))}
        return await in_memory_list.answer_call(structs.replace(call, query=last))

    assert list_numbers(
        await build_reader().query(build_query(), repeat_last_page, TENANT)
    ) == list(range(30))


# Failures


@pytest.mark.parametrize(
    "failure",
    [
        Refused(400, [Problem("invalid_field", "No.", "country")]),
        Refused(429, [Problem("rate_limit_exceeded", "Slow down.")], retry_after="7"),
        Unreachable("no answer"),
    ],
    ids=lambda failure: type(failure).__name__,
)
@pytest.mark.parametrize("page", ["1", "3"])
async def test_failed_page_fails_the_query(failure: Exception, page: str) -> None:
    def fail_page(query: dict[str, str]) -> None:
        if query["page"] == page:
            raise failure

    with pytest.raises(type(failure)) as error:
        await InMemoryList(build_rows(80), max_page_size=10, before_answer=fail_page).query(
            build_query()
        )
    assert error.value is failure


async def test_several_failed_pages_raise_one_error_and_leave_no_task() -> None:
    def fail_pages(query: dict[str, str]) -> None:
        if int(query["page"]) > 1:
            raise Unreachable(query["page"])

    in_memory_list = InMemoryList(build_rows(80), max_page_size=10, before_answer=fail_pages)
    with pytest.raises(Unreachable):
        await in_memory_list.query(build_query())
    assert in_memory_list.running_calls == 0


# Changes during a scan


@dataclass
class ChangesBetweenAnswers:
    """Changes the rows ahead of the answers with the given numbers."""

    changes: dict[int, Callable[[list[dict[str, Any]]], None]]
    in_memory_list: InMemoryList | None = None
    answer_count: int = 0

    def __call__(self, _query: dict[str, str]) -> None:
        change, self.answer_count = self.changes.get(self.answer_count), self.answer_count + 1
        if change:
            assert self.in_memory_list is not None
            change(self.in_memory_list.rows)


def build_changing_list(
    n: int, changes: dict[int, Callable[[list[dict[str, Any]]], None]]
) -> InMemoryList:
    scheduled_changes = ChangesBetweenAnswers(changes)
    scheduled_changes.in_memory_list = InMemoryList(
        build_rows(n), max_page_size=10, before_answer=scheduled_changes
    )
    return scheduled_changes.in_memory_list


def delete_row(number: int) -> Callable[[list[dict[str, Any]]], None]:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[:] = [row for row in rows if row["number"] != number]

    return change


def insert_row(number: int) -> Callable[[list[dict[str, Any]]], None]:
    return lambda rows: rows.append(build_row(number))


@pytest.mark.parametrize("call_number", range(1, 8))
@pytest.mark.parametrize("number", [0, 9, 10, 35, 79])
async def test_row_deleted_during_scan_hides_no_other_row(call_number: int, number: int) -> None:
    row_numbers = list_numbers(
        await build_changing_list(80, {call_number: delete_row(number)}).query(build_query())
    )
    assert set(row_numbers) - {number} == set(range(80)) - {number}
    assert len(row_numbers) == len(set(row_numbers))


@pytest.mark.parametrize("call_number", range(1, 8))
async def test_row_created_during_scan_hides_no_existing_row(call_number: int) -> None:
    row_numbers = list_numbers(
        await build_changing_list(80, {call_number: insert_row(500)}).query(build_query())
    )
    assert set(row_numbers) - {500} == set(range(80))


@pytest.mark.parametrize("call_number", range(1, 8))
async def test_row_inserted_in_the_middle_hides_no_existing_row(call_number: int) -> None:
    in_memory_list = build_changing_list(80, {call_number: insert_row(20)})
    delete_row(20)(in_memory_list.rows)
    result = list_numbers(await in_memory_list.query(build_query()))
    assert set(result) - {20} == set(range(80)) - {20}


@pytest.mark.parametrize("call_number", range(1, 8))
async def test_simultaneous_delete_and_create_hide_no_existing_row(call_number: int) -> None:
    """The count stays the same, so it cannot reveal that rows have moved."""

    def change(rows: list[dict[str, Any]]) -> None:
        delete_row(0)(rows)
        insert_row(500)(rows)

    row_numbers = list_numbers(
        await build_changing_list(80, {call_number: change}).query(build_query())
    )
    assert set(row_numbers) >= set(range(1, 80))


async def test_deleted_row_hides_no_other_without_counts() -> None:
    in_memory_list = build_changing_list(80, {3: delete_row(0)})
    in_memory_list.meta = lambda _counts: None
    assert set(list_numbers(await in_memory_list.query(build_query()))) >= set(range(1, 80))


async def test_list_that_keeps_changing_fails_after_bounded_scans() -> None:
    in_memory_list = InMemoryList(build_rows(400), max_page_size=10)
    in_memory_list.before_answer = lambda _query: in_memory_list.rows.pop(0) and None
    with pytest.raises(Unreachable):
        await in_memory_list.query(build_query())
    assert len(in_memory_list.calls) <= MAX_SCANS * 40


@pytest.mark.parametrize("reported_pages", [4, 1_000_000, 10**30])
async def test_nonexistent_pages_are_not_read(reported_pages: int) -> None:
    in_memory_list = InMemoryList(
        build_rows(25), max_page_size=10, meta=lambda counts: {**counts, "pages": reported_pages}
    )
    assert list_numbers(await in_memory_list.query(build_query())) == list(range(25))
    assert len(in_memory_list.calls) <= 3 + 3 + MAX_PARALLEL_PAGES


async def test_service_that_repeats_one_page_is_not_read_forever() -> None:
    in_memory_list = InMemoryList(
        build_rows(30), max_page_size=10, meta=lambda counts: {**counts, "pages": 1_000_000}
    )
    in_memory_list.before_answer = lambda query: query.update(page="1")
    with pytest.raises(Unreachable):
        await in_memory_list.query(build_query())
    assert len(in_memory_list.calls) <= MAX_SCANS * (3 + MAX_PARALLEL_PAGES)


async def test_row_on_two_pages_is_returned_once() -> None:
    in_memory_list = InMemoryList(build_rows(30), max_page_size=10)
    original_page = in_memory_list.page

    def page(query: dict[str, str]) -> dict[str, Any]:
        body = original_page(query)
        return {
            **body,
            "rows": [build_row(0), *body["rows"]] if query["page"] == "3" else body["rows"],
        }

    in_memory_list.page = page  # type: ignore[method-assign]
    assert list_numbers(await in_memory_list.query(build_query())) == list(range(30))


# Hidden rows

PAGE_QUERY = {"page": "1", "pageSize": "10"}


async def test_service_that_lists_hidden_rows_is_always_scanned() -> None:
    in_memory_list, listing = (
        InMemoryList([build_row(0, hidden=True), *build_rows(30)[1:]]),
        build_reader(),
    )
    list_query = build_query(page_size=10, native_query=PAGE_QUERY)
    await in_memory_list.query(list_query, listing)
    in_memory_list.calls.clear()
    result = await in_memory_list.query(
        build_query(page=2, page_size=10, native_query={**PAGE_QUERY, "page": "2"}), listing
    )
    assert [call.query["pageSize"] for call in in_memory_list.calls] == [str(PAGE_SIZE)]
    assert (list_numbers(result), result.meta["records"]) == (list(range(11, 21)), 29)


@pytest.mark.parametrize("excluded_ids", [frozenset(), HIDDEN_IDS], ids=["unknown", "deleted"])
@pytest.mark.parametrize("hidden", [None, 3, 22, 24])
async def test_pages_have_one_size_whoever_cuts_them(
    hidden: int | None, excluded_ids: frozenset[str]
) -> None:
    """Whether the service's page is used may change from one page of a client to the next."""
    rows = [build_row(number, hidden=number == hidden) for number in range(25)]
    in_memory_list, reader = InMemoryList(rows, max_page_size=5), build_reader()
    numbers, page, pages = [], 1, 1
    while page <= pages:
        query = build_query(
            page=page,
            page_size=10,
            native_query={"page": str(page), "pageSize": "10"},
            excluded_ids=excluded_ids,
        )
        result = await in_memory_list.query(query, reader)
        numbers += list_numbers(result)
        page, pages = page + 1, result.meta["pages"]
    assert numbers == [number for number in range(25) if number != hidden]


async def test_small_page_of_a_client_is_no_maximum_of_the_service() -> None:
    rows = [build_row(number, hidden=number == 25) for number in range(40)]
    in_memory_list, reader, lengths = InMemoryList(rows, max_page_size=9), build_reader(), []
    for page, size in ((1, 20), (1, 4), (3, 20)):
        native_query = {"page": str(page), "pageSize": str(size)}
        query = build_query(page=page, page_size=size, native_query=native_query)
        lengths.append(len((await in_memory_list.query(query, reader)).rows))
    assert lengths == [9, 4, 9]


async def test_processes_share_what_a_list_has_shown(sqlite: State) -> None:
    """Pages that one process cuts do not fit those of the service, which another would use."""
    rows = [build_row(number, hidden=number == 3) for number in range(25)]
    in_memory_list = InMemoryList(rows, max_page_size=5)
    async with open_store(sqlite) as store:
        first, second = (CapabilityCache(store) for _ in range(2))
        numbers = []
        for page in range(1, 6):
            query = build_query(
                page=page, page_size=10, native_query={"page": str(page), "pageSize": "10"}
            )
            reader = ListReader(
                RecipientCaches(Lists(index=False)), capabilities=first if page % 2 else second
            )
            numbers += list_numbers(await in_memory_list.query(query, reader))
            await second.reload_if_changed(await load_change_counts(store))
    assert numbers == [number for number in range(25) if number != 3]


async def test_hidden_rows_are_tracked_per_tenant() -> None:
    in_memory_list, listing = (
        InMemoryList([build_row(0, hidden=True), *build_rows(30)[1:]]),
        build_reader(),
    )
    await in_memory_list.query(build_query(native_query=PAGE_QUERY), listing)
    other_list = InMemoryList(build_rows(5))
    await listing.query(
        build_query(native_query=PAGE_QUERY), other_list.answer_call, Tenant("another", "sandbox")
    )
    await listing.query(
        build_query(native_query=PAGE_QUERY), other_list.answer_call, Tenant("demo", "live")
    )
    assert [dict(call.query) for call in other_list.calls] == [PAGE_QUERY, PAGE_QUERY]


async def test_narrowed_scan_without_hidden_rows_proves_nothing() -> None:
    in_memory_list, listing = InMemoryList(build_rows(30)), build_reader()
    list_query = build_query(page_size=10, native_query=PAGE_QUERY, excluded_ids=HIDDEN_IDS)
    await in_memory_list.query(structs.replace(list_query, prefilter={"country": "US"}), listing)
    in_memory_list.calls.clear()
    await in_memory_list.query(list_query, listing)
    assert [call.query["pageSize"] for call in in_memory_list.calls] == [str(PAGE_SIZE)]
