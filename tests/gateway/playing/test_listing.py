"""Listing alone, in front of a list in memory: what it asks for, and what it makes of the pages."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.reads.index.scan import PAGE_SIZE, SIDE_BY_SIDE, TRIES
from gateway.reads.listing import Listing
from gateway.storage.tenants import Tenant
from mappings.effects import Call, ListPage, ListQuery
from mappings.failures import Problem, Refused, Unreachable

OWNER = Tenant("demo", "sandbox")
PATH = "/things"
GONE = frozenset({"T9999"})
"""Somebody is remembered as gone, whoever that is."""


def thing(number: int, **fields: Any) -> dict[str, Any]:
    return {"id": f"T{number:04d}", "number": number, "made": number, **fields}


def things(n: int) -> list[dict[str, Any]]:
    return [thing(number) for number in range(n)]


def ask(**changes: Any) -> ListQuery:
    """Everything, by number; decided here unless ``ask`` says otherwise."""
    question = ListQuery(
        PATH,
        "rows",
        page=1,
        page_size=10_000,
        is_hidden=lambda row: bool(row.get("hidden")),
        is_match=lambda _row: True,
        sort_key=lambda row: row["number"],
        is_descending=False,
        native_query=None,
        prefilter={},
    )
    return dataclasses.replace(question, **changes)


@dataclass
class Memory:
    """A list that is paged as the service pages; ``before`` is run ahead of every answer."""

    rows: list[dict[str, Any]]
    most: int = 10**9
    before: Callable[[dict[str, str]], None] = lambda _query: None
    meta: Callable[[dict[str, int]], Any] = lambda meta: meta
    calls: list[Call] = field(default_factory=list)
    under_way: int = 0
    side_by_side: int = 0

    async def make(self, call: Call) -> Any:
        self.calls.append(call)
        self.under_way += 1
        self.side_by_side = max(self.side_by_side, self.under_way)
        try:
            await asyncio.sleep(0)
            query = dict(call.query)
            self.before(query)
            return self.page(query)
        finally:
            self.under_way -= 1

    def page(self, query: dict[str, str]) -> dict[str, Any]:
        number, size = int(query["page"]), min(int(query.get("pageSize", "10")), self.most)
        rows = sorted(self.rows, key=lambda row: row["made"])[(number - 1) * size : number * size]
        pages = -(-len(self.rows) // size)
        counts = {"page": number, "pages": pages, "records": len(self.rows)}
        return {"ok": True, "rows": rows, "meta": self.meta(counts)}

    async def find(self, question: ListQuery, listing: Listing | None = None) -> ListPage:
        return await (listing or Listing()).find(question, self.make, OWNER)


def numbers(found: ListPage) -> list[int]:
    return [row["number"] for row in found.rows]


# One call


async def test_what_the_service_can_answer_is_asked_as_the_question_says() -> None:
    memory = Memory(things(25))
    asked = {"page": "2", "pageSize": "10", "orderBy": "name"}
    found = await memory.find(ask(page=2, page_size=10, native_query=asked))
    assert memory.calls == [Call("GET", PATH, query=asked)]
    assert (numbers(found), found.pages, found.records) == (list(range(10, 20)), 3, 25)


async def test_the_service_s_counts_are_believed_over_the_page_size_asked_for() -> None:
    memory = Memory(things(25), most=5)
    found = await memory.find(ask(page_size=10, native_query={"page": "1", "pageSize": "10"}))
    assert (numbers(found), found.pages, found.records) == (list(range(5)), 5, 25)


async def test_a_page_past_the_end_is_empty_when_the_service_gives_its_last_one_instead() -> None:
    memory = Memory(things(25))

    async def make(call: Call) -> Any:
        last = {**call.query, "page": str(min(int(call.query["page"]), 3))}
        return await memory.make(dataclasses.replace(call, query=last))

    asked = {"page": "9", "pageSize": "10"}
    found = await Listing().find(ask(page=9, page_size=10, native_query=asked), make, OWNER)
    assert (list(found.rows), found.pages, found.records) == ([], 3, 25)


# Scans


async def test_a_scan_reads_large_pages_in_the_order_of_creation_with_what_narrows_it() -> None:
    memory = Memory(things(PAGE_SIZE + 1))
    await memory.find(ask(prefilter={"country": "US"}))
    sorting = {"orderBy": "createdAt", "sortBy": "asc"}
    asked = [dict(call.query) for call in memory.calls]
    for number in ("1", "2"):
        page = {"page": number, "pageSize": str(PAGE_SIZE), "country": "US", **sorting}
        assert page in asked
        asked = [query for query in asked if query != page]
    assert asked == []


@pytest.mark.parametrize("n", [0, 1, PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1, 5 * PAGE_SIZE + 3])
async def test_a_scan_has_every_row_once(n: int) -> None:
    found = await Memory(things(n)).find(ask())
    assert numbers(found) == list(range(n))
    assert (found.pages, found.records) == (min(n, 1), n)


async def test_rows_are_kept_by_where_counted_over_all_pages_and_cut_to_the_page() -> None:
    question = ask(is_match=lambda row: row["number"] % 3 == 0, page=2, page_size=4)
    found = await Memory(things(40), most=7).find(question)
    assert (numbers(found), found.pages, found.records) == ([12, 15, 18, 21], 4, 14)


@pytest.mark.parametrize("descending", [False, True])
async def test_ties_are_by_id_ascending_in_either_direction(descending: bool) -> None:
    memory = Memory(things(12), most=5)
    found = await memory.find(ask(sort_key=lambda row: row["number"] % 2, is_descending=descending))
    even, odd = [0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]
    assert numbers(found) == (odd + even if descending else even + odd)


async def test_a_page_past_the_end_of_a_scan_is_empty_and_counts_all() -> None:
    found = await Memory(things(12)).find(ask(page=7, page_size=5))
    assert (list(found.rows), found.pages, found.records) == ([], 3, 12)


async def test_the_pages_of_a_scan_are_the_service_s_own() -> None:
    memory = Memory(things(95), most=10)
    assert numbers(await memory.find(ask())) == list(range(95))
    assert {call.query["page"] for call in memory.calls} == {str(page) for page in range(1, 11)}


async def test_pages_are_read_side_by_side_within_bounds() -> None:
    memory = Memory(things(300), most=10)
    await memory.find(ask())
    assert memory.side_by_side == SIDE_BY_SIDE


async def test_counts_may_be_text() -> None:
    memory = Memory(
        things(30), most=7, meta=lambda meta: {name: str(count) for name, count in meta.items()}
    )
    assert numbers(await memory.find(ask())) == list(range(30))


@pytest.mark.parametrize("meta", [None, [], {}, {"pages": None, "records": -1}], ids=repr)
async def test_without_counts_pages_are_read_until_one_is_empty(meta: Any) -> None:
    memory = Memory(things(30), most=7, meta=lambda _counts: meta)
    assert numbers(await memory.find(ask())) == list(range(30))


async def test_without_counts_pages_are_read_until_one_has_nothing_new() -> None:
    """A service that gives its last page for every one past the end, and no counts."""
    memory = Memory(things(30), most=7, meta=lambda _counts: None)

    async def make(call: Call) -> Any:
        last = {**call.query, "page": str(min(int(call.query["page"]), 5))}
        return await memory.make(dataclasses.replace(call, query=last))

    assert numbers(await Listing().find(ask(), make, OWNER)) == list(range(30))


async def test_a_service_that_refuses_the_page_size_is_read_in_pages_of_its_own() -> None:
    memory = Memory(things(35))

    async def make(call: Call) -> Any:
        if "pageSize" in call.query:
            raise Refused(400, [Problem("invalid_field", "Too many.", "pageSize")])
        return await memory.make(call)

    assert numbers(await Listing().find(ask(), make, OWNER)) == list(range(35))


# What goes wrong


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
async def test_a_page_that_fails_fails_the_question(failure: Exception, page: str) -> None:
    def before(query: dict[str, str]) -> None:
        if query["page"] == page:
            raise failure

    with pytest.raises(type(failure)) as raised:
        await Memory(things(80), most=10, before=before).find(ask())
    assert raised.value is failure


async def test_several_pages_that_fail_are_one_failure_and_leave_nothing_behind() -> None:
    def before(query: dict[str, str]) -> None:
        if int(query["page"]) > 1:
            raise Unreachable(query["page"])

    memory = Memory(things(80), most=10, before=before)
    with pytest.raises(Unreachable):
        await memory.find(ask())
    assert memory.under_way == 0


# Changes during a scan


@dataclass
class Changing:
    """Changes a memory's rows ahead of certain answers, by their number."""

    changes: dict[int, Callable[[list[dict[str, Any]]], None]]
    memory: Memory | None = None
    answers: int = 0

    def __call__(self, _query: dict[str, str]) -> None:
        change, self.answers = self.changes.get(self.answers), self.answers + 1
        if change:
            assert self.memory is not None
            change(self.memory.rows)


def changing(n: int, changes: dict[int, Callable[[list[dict[str, Any]]], None]]) -> Memory:
    before = Changing(changes)
    before.memory = Memory(things(n), most=10, before=before)
    return before.memory


def without(number: int) -> Callable[[list[dict[str, Any]]], None]:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[:] = [row for row in rows if row["number"] != number]

    return change


def with_new(number: int) -> Callable[[list[dict[str, Any]]], None]:
    return lambda rows: rows.append(thing(number))


@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("number", [0, 9, 10, 35, 79])
async def test_a_row_deleted_while_pages_are_read_takes_no_other_with_it(
    at: int, number: int
) -> None:
    found = numbers(await changing(80, {at: without(number)}).find(ask()))
    assert set(found) - {number} == set(range(80)) - {number}
    assert len(found) == len(set(found))


@pytest.mark.parametrize("at", range(1, 8))
async def test_a_row_created_while_pages_are_read_costs_none_that_was_there(at: int) -> None:
    found = numbers(await changing(80, {at: with_new(500)}).find(ask()))
    assert set(found) - {500} == set(range(80))


@pytest.mark.parametrize("at", range(1, 8))
async def test_a_row_that_comes_back_into_the_middle_costs_none_that_was_there(at: int) -> None:
    memory = changing(80, {at: with_new(20)})
    without(20)(memory.rows)
    found = numbers(await memory.find(ask()))
    assert set(found) - {20} == set(range(80)) - {20}


@pytest.mark.parametrize("at", range(1, 8))
async def test_a_row_deleted_and_another_created_at_once_cost_none_that_was_there(at: int) -> None:
    """The count does not change: it cannot be what tells that rows have moved."""

    def change(rows: list[dict[str, Any]]) -> None:
        without(0)(rows)
        with_new(500)(rows)

    found = numbers(await changing(80, {at: change}).find(ask()))
    assert set(found) >= set(range(1, 80))


async def test_a_row_deleted_takes_no_other_with_it_where_the_service_gives_no_counts() -> None:
    memory = changing(80, {3: without(0)})
    memory.meta = lambda _counts: None
    assert set(numbers(await memory.find(ask()))) >= set(range(1, 80))


async def test_a_list_that_changed_is_read_again() -> None:
    memory = changing(30, {1: without(0)})
    assert numbers(await memory.find(ask())) == list(range(1, 30))
    assert len(memory.calls) > 3


async def test_a_list_that_keeps_changing_is_a_failure_after_a_few_scans() -> None:
    memory = Memory(things(400), most=10)
    memory.before = lambda _query: memory.rows.pop(0) and None
    with pytest.raises(Unreachable):
        await memory.find(ask())
    assert len(memory.calls) <= TRIES * 40


@pytest.mark.parametrize("told", [4, 1_000_000, 10**30])
async def test_pages_that_there_are_not_are_not_read(told: int) -> None:
    memory = Memory(things(25), most=10, meta=lambda counts: {**counts, "pages": told})
    assert numbers(await memory.find(ask())) == list(range(25))
    assert len(memory.calls) <= 3 + 3 + SIDE_BY_SIDE


async def test_a_service_that_gives_one_page_for_all_of_them_is_not_read_for_ever() -> None:
    memory = Memory(things(30), most=10, meta=lambda counts: {**counts, "pages": 1_000_000})
    memory.before = lambda query: query.update(page="1")
    with pytest.raises(Unreachable):
        await memory.find(ask())
    assert len(memory.calls) <= TRIES * (3 + SIDE_BY_SIDE)


async def test_a_row_on_two_pages_is_not_given_twice() -> None:
    memory = Memory(things(30), most=10)
    doubled = memory.page

    def page(query: dict[str, str]) -> dict[str, Any]:
        body = doubled(query)
        return {**body, "rows": [thing(0), *body["rows"]] if query["page"] == "3" else body["rows"]}

    memory.page = page  # type: ignore[method-assign]
    assert numbers(await memory.find(ask())) == list(range(30))


# Rows that clients must not see

ASKED = {"page": "1", "pageSize": "10"}


async def test_a_hidden_row_is_in_no_answer_and_in_no_count() -> None:
    rows = [thing(number, hidden=number % 4 == 0) for number in range(40)]
    found = await Memory(rows, most=7).find(ask(page_size=10, native_query=ASKED))
    assert not any(row["hidden"] for row in found.rows)
    assert (len(found.rows), found.pages, found.records) == (10, 3, 30)


async def test_a_service_that_was_seen_to_list_hidden_rows_is_not_asked_in_one_call_again() -> None:
    memory, listing = Memory([thing(0, hidden=True), *things(30)[1:]]), Listing()
    question = ask(page_size=10, native_query=ASKED)
    await memory.find(question, listing)
    memory.calls.clear()
    found = await memory.find(
        ask(page=2, page_size=10, native_query={**ASKED, "page": "2"}), listing
    )
    assert [call.query["pageSize"] for call in memory.calls] == [str(PAGE_SIZE)]
    assert (numbers(found), found.records) == (list(range(11, 21)), 29)


async def test_what_was_seen_of_one_owner_s_list_is_not_presumed_of_another_s() -> None:
    memory, listing = Memory([thing(0, hidden=True), *things(30)[1:]]), Listing()
    await memory.find(ask(native_query=ASKED), listing)
    other = Memory(things(5))
    await listing.find(ask(native_query=ASKED), other.make, Tenant("another", "sandbox"))
    await listing.find(ask(native_query=ASKED), other.make, Tenant("demo", "live"))
    assert [dict(call.query) for call in other.calls] == [ASKED, ASKED]


async def test_hidden_rows_that_are_known_of_are_looked_for_before_one_call_is_believed() -> None:
    rows = [*things(30), thing(99, hidden=True)]
    found = await Memory(rows).find(ask(page_size=10, native_query=ASKED, excluded_ids=GONE))
    assert (found.pages, found.records) == (3, 30)


async def test_a_whole_list_without_hidden_rows_shows_that_the_service_lists_none() -> None:
    memory, listing = Memory(things(30)), Listing()
    question = ask(page_size=10, native_query=ASKED, excluded_ids=GONE)
    await memory.find(question, listing)
    memory.calls.clear()
    await memory.find(question, listing)
    assert [dict(call.query) for call in memory.calls] == [ASKED]


async def test_a_narrowed_list_without_hidden_rows_shows_nothing_of_the_whole() -> None:
    memory, listing = Memory(things(30)), Listing()
    question = ask(page_size=10, native_query=ASKED, excluded_ids=GONE)
    await memory.find(dataclasses.replace(question, prefilter={"country": "US"}), listing)
    memory.calls.clear()
    await memory.find(question, listing)
    assert [call.query["pageSize"] for call in memory.calls] == [str(PAGE_SIZE)]
