"""The index of recipients alone: every answer against a reading of the whole list, call by call.

The list is the simulator's own, with no door in front of it; what the answers must be is what the scan
makes of the same question.
"""

from __future__ import annotations

import asyncio
import os
import random
import tracemalloc
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config.settings import Lists, State
from gateway.observability.metrics import REGISTRY
from gateway.payloads import json_codec
from gateway.reads.index import Dropping, Indexes, invalidate_indexes
from gateway.reads.index.indexes import IDLE_SECONDS
from gateway.reads.index.recipient_cache import OVERLAP_SECONDS
from gateway.reads.index.rows import Entry
from gateway.reads.listing import Listing
from gateway.simulator import Service, Switches, views
from gateway.simulator.listing import recipients as service_list
from gateway.simulator.state import Recipient
from gateway.storage import open_store
from gateway.storage.audit_log import ERASED, note
from gateway.storage.tenants import Tenant
from mappings.effects import Call, LegacyOptions, ListPage, ListQuery, Problem, Refused, Unreachable
from mappings.objects import build_recipient_answer
from mappings.recipient_queries import build_list_query
from mappings.recipient_rows import select_answer_fields, select_query_fields

OWNER, OTHER = Tenant("demo", "sandbox"), Tenant("other", "sandbox")
LARGEST = 300
EXAMPLES = int(os.environ.get("EXAMPLES", "0"))
"""How many stories are tried, of which nobody has heard yet; 0: always the same few."""


class Clock:
    """Seconds that go by when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Town:
    """A service of some recipients, what is remembered of them here, and an index of them."""

    n: int = LARGEST
    page: int = 20
    lists_archived: bool = False
    filters_archived: bool = True
    most: int = 100_000
    seconds: float = 3600
    listed: Callable[[dict[str, Any], Mapping[str, str]], dict[str, Any]] = lambda body, _: body
    before: Callable[[Call], None] = lambda _: None
    remembered: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        switches = Switches(
            max_page_size=self.page,
            lists_archived=self.lists_archived,
            filters_archived=self.filters_archived,
        )
        self.service = Service(seed=1, switches=switches, clock=lambda: self.time)
        self.time = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
        self.service.seed_recipients(self.n, seed=7)
        self.world = self.service.world()
        lists = Lists(index=True, index_seconds=self.seconds, index_recipients=self.most)
        self.indexes = Indexes(lists, monotonic=self.clock, wall=lambda: self.time)
        self.listing = Listing(self.indexes)
        self.scanning = Listing()

    async def make(self, call: Call) -> Any:
        self.calls.append(call)
        self.before(call)
        await asyncio.sleep(0)
        if call.path == "/recipients":
            query = {**call.query}
            body = self.listed(service_list(self.world, query), query)
        else:
            its = self.world.recipients.get(call.path.rpartition("/")[2])
            if its is None:
                raise Refused(404, [Problem("not_found", "None.")])
            body = {"recipient": views.recipient(self.world, its)}
        return json_codec.read(json_codec.dumps({"ok": True, **body}))

    def question(self, query: Mapping[str, str]) -> ListQuery:
        return build_list_query(query, self.remembered)

    async def ask(self, **query: str) -> ListPage:
        return await self.listing.find(self.question(query), self.make, OWNER)

    async def scan(self, **query: str) -> ListPage:
        return await self.scanning.find(self.question(query), self.make, OWNER)

    async def cost(self, **query: str) -> int:
        before = len(self.calls)
        await self.ask(**query)
        return len(self.calls) - before

    async def ids(self, **query: str) -> list[str]:
        found = await self.ask(pageSize="1000", **query)
        return [row["id"] for row in found.rows]

    async def agrees(self, **query: str) -> None:
        found, read = await self.ask(**query), await self.scan(**query)
        assert (found.pages, found.records) == (read.pages, read.records), query
        assert self.shown(found) == self.shown(read), query

    def shown(self, found: ListPage) -> list[dict[str, Any]]:
        return [
            build_recipient_answer(row, self.remembered.get(row["id"], {}), LegacyOptions())
            for row in found.rows
        ]

    # What others do to the list

    def there(self) -> list[Recipient]:
        return [each for each in self.world.recipients.values() if not each.archived]

    def one(self, number: int) -> Recipient:
        those = self.there()
        return those[number % len(those)]

    def touch(self, each: Recipient) -> None:
        self.time += 0.0015
        each.updated_at = self.world.now()

    def rename(self, each: Recipient, *, city: str = "Oslo") -> None:
        each.fields = {**each.fields, "name": f"{each.fields['name']} {city}"}
        each.fields["address"] = {**each.address, "city": city}
        self.touch(each)

    def archive(self, each: Recipient, *, dated: bool = True) -> None:
        """The document does not say that it moves the update date."""
        each.status = "archived"
        if dated:
            self.touch(each)

    def create(self, seed: int) -> Recipient:
        made = self.service.seed_recipients(1, seed=1000 + seed)[0]
        made.status = "active"
        self.touch(made)
        made.created_at = made.updated_at
        return made

    def without_accounts(self, each: Recipient) -> None:
        """A change that no update date tells of."""
        each.accounts.clear()


CITY = {"orderBy": "city", "sortBy": "asc"}


async def test_a_page_is_what_a_reading_of_the_whole_list_gives() -> None:
    town = Town()
    await town.agrees(**CITY)
    await town.agrees(search="a", page="3", pageSize="7")
    await town.agrees(status="inactive")
    await town.agrees(endDate="2023-06-01", orderBy="id")


@pytest.mark.parametrize("n", [400, 1000])
async def test_a_question_costs_two_calls_once_it_is_warm(n: int) -> None:
    town = Town(n, page=1000)
    await town.ask(**CITY)
    for _ in range(3):
        assert await town.cost(search="nn", orderBy="country") == 2
    town.rename(town.one(5))
    town.create(1)
    assert await town.cost(**CITY) == 2


async def test_a_list_that_fits_on_one_page_needs_no_index() -> None:
    town = Town(100, page=1000)
    assert await town.cost(**CITY) == 1
    assert town.indexes.recipients == 0


async def test_a_question_that_narrows_the_list_to_one_page_has_none_built() -> None:
    town = Town(page=250)
    assert await town.cost(country="NZ", search="a") == 1
    assert town.indexes.recipients == 0


async def test_a_change_elsewhere_is_seen_at_once_where_its_date_moves() -> None:
    town = Town()
    await town.ask(**CITY)
    changed, made = town.one(7), town.create(3)
    town.rename(changed, city="Aachen upon Nowhere")
    assert await town.ids(city="Aachen upon Nowhere") == [changed.id]
    assert made.id in await town.ids(**CITY)
    await town.agrees(**CITY)


def _archive_some(town: Town, several: int, *, dated: bool = True) -> set[str]:
    gone = [town.one(300 * number + 5) for number in range(several)]
    for each in gone:
        town.archive(each, dated=dated)
    return {each.id for each in gone}


async def _is_costing(town: Town, gone: set[str]) -> int:
    """What a question costs that shows none of those who are gone."""
    before = len(town.calls)
    assert not gone & set(await town.ids(**CITY))
    cost = len(town.calls) - before
    assert await town.cost(**CITY) == 2
    await town.agrees(**CITY)
    return cost


@pytest.mark.parametrize("several", [1, 2, 5])
async def test_who_is_archived_elsewhere_costs_one_call_where_the_service_filters_by_status(
    several: int,
) -> None:
    town = Town(2000, page=1000)
    await town.ask(**CITY)
    assert await _is_costing(town, _archive_some(town, several)) == 3
    town.create(1)
    assert await _is_costing(town, _archive_some(town, several)) == 3


async def test_where_archiving_moves_no_date_one_call_tells_of_a_small_archive() -> None:
    town = Town(2000, page=1000)
    await town.ask(**CITY)
    assert await _is_costing(town, _archive_some(town, 2, dated=False)) == 3


async def test_hundreds_archived_at_once_elsewhere_are_a_page_of_calls_each() -> None:
    town = Town(2000, page=1000)
    await town.ask(**CITY)
    gone = town.there()[100:800]
    for each in gone:
        town.archive(each)
    # 700 of them, 250 a page; and they are in no increment.
    assert await _is_costing(town, {each.id for each in gone}) == 2 + 3


def _refuses_archived(query: Mapping[str, str]) -> None:
    if query.get("status") == "archived":
        raise Refused(400, [Problem("invalid_field", "No.", "status")])


def _filters_nothing(body: dict[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    return body | {"recipients": [row | {"status": "active"} for row in body["recipients"]]}


SILENT: dict[str, dict[str, Any]] = {
    "shows nobody": {"filters_archived": False},
    "refuses the word": {"before": lambda call: _refuses_archived(call.query)},
    "shows others": {"listed": _filters_nothing},
}


@pytest.mark.parametrize("its", SILENT.values(), ids=SILENT.keys())
@pytest.mark.parametrize("several", [1, 2, 5])
async def test_where_the_service_does_not_tell_who_is_archived_it_is_found_by_counting(
    several: int, its: dict[str, Any]
) -> None:
    town = Town(2000, page=1000, **its)
    await town.ask(**CITY)
    assert 3 < await _is_costing(town, _archive_some(town, several)) <= 6 + 7 * several


async def test_who_is_archived_while_another_is_looked_for_does_not_pass_for_them() -> None:
    """No date tells of either, and only one of them is among the archived of late."""
    town = Town(page=20)
    for each in town.there()[:60]:
        town.archive(each)
    gone, passing = town.one(5), town.one(100)
    town.touch(passing)
    await town.ask(**CITY)
    town.archive(gone, dated=False)
    town.rename(passing)

    def archive_another(call: Call) -> None:
        if call.query.get("status") == "archived":
            town.archive(passing, dated=False)

    town.before = archive_another
    assert not {gone.id, passing.id} & set(await town.ids(**CITY))
    await town.agrees(**CITY)


async def test_a_page_that_is_late_brings_nobody_back_who_was_archived_meanwhile() -> None:
    """Of a whole reading beside the queries: it was asked for before, and comes after."""
    town = Town(seconds=600)
    await town.ask(**CITY)
    reached, goes_on = asyncio.Event(), asyncio.Event()
    make = town.make

    async def slow(call: Call) -> Any:
        answer = await make(call)
        if call.query["pageSize"] != "1" and not call.query.keys() & {"startDate", "status"}:
            reached.set()  # with the first page of a whole reading
            await goes_on.wait()
        return answer

    town.clock.now += 500
    await town.listing.find(town.question(CITY), slow, OWNER)
    await reached.wait()
    town.clock.now += 1
    each = min(town.there(), key=lambda one: one.updated_at)
    town.archive(each)
    assert await town.cost(**CITY) == 3
    goes_on.set()
    await _until(lambda: not [one for one in asyncio.all_tasks() if one.get_name() == "index"])
    assert await town.cost(**CITY) == 2, "they had come back, and were looked for again"
    assert each.id not in await town.ids(**CITY)


async def test_one_archived_and_another_created_elsewhere_are_both_seen() -> None:
    """As many as before: that alone tells nothing."""
    town = Town()
    await town.ask(**CITY)
    town.archive(town.one(40))
    town.create(5)
    await town.agrees(**CITY)


async def test_who_was_taken_back_out_of_the_archive_with_an_old_date_is_found() -> None:
    town = Town()
    back = next(each for each in town.world.recipients.values() if each.archived)
    await town.ask(**CITY)
    back.status = "active"
    assert back.id in await town.ids(**CITY)


async def test_who_is_remembered_as_deleted_costs_no_search() -> None:
    town = Town()
    await town.ask(**CITY)
    for number in (3, 60, 111):
        each = town.one(number)
        town.archive(each)
        town.remembered[each.id] = {"deleted": True}
    assert await town.cost(**CITY) == 2
    await town.agrees(**CITY)


async def test_who_is_still_listed_although_deleted_is_searched_for_once() -> None:
    town = Town()
    each = town.one(9)
    await town.ask(**CITY)
    town.remembered[each.id] = {"deleted": True, "still_there": True}
    assert each.id not in await town.ids(**CITY)
    assert await town.cost(**CITY) == 2
    await town.agrees(**CITY)


async def test_an_account_changed_through_the_gateway_is_seen_though_no_date_tells() -> None:
    town = Town()
    await town.ask(**CITY)
    each = next(each for each in town.there() if each.primary and each.status != "archived")
    method = each.primary.type if each.primary else ""
    town.without_accounts(each)
    assert each.id in await town.ids(payoutMethod=method, search="")
    town.indexes.changed(OWNER, each.id)
    assert await town.cost(**CITY) == 3
    assert each.id not in await town.ids(payoutMethod=method)
    assert await town.cost(**CITY) == 2
    await town.agrees(orderBy="payoutMethod", search="a")


async def test_a_deletion_that_is_not_remembered_yet_costs_a_look_at_who_it_is_of() -> None:
    """The service has archived the recipient, and its client has no answer yet."""
    town = Town()
    await town.ask(**CITY)
    each = town.one(23)
    town.archive(each)
    town.indexes.changed(OWNER, each.id)
    assert await town.cost(**CITY) == 3
    assert each.id not in await town.ids(**CITY)
    assert await town.cost(**CITY) == 2


async def test_one_gone_by_its_id_too_is_shown_no_more() -> None:
    town = Town()
    await town.ask(**CITY)
    each = town.one(17)
    del town.world.recipients[each.id]
    town.indexes.changed(OWNER, each.id)
    assert await town.cost(**CITY) == 3
    assert each.id not in await town.ids(**CITY)


async def test_what_no_date_tells_is_seen_when_the_index_has_come_to_its_age() -> None:
    town = Town(seconds=600)
    each = next(each for each in town.there() if each.primary and each.primary.type == "wallet")
    assert each.id in await town.ids(payoutMethod="wallet", orderBy="city")
    town.without_accounts(each)
    assert each.id in await town.ids(payoutMethod="wallet", orderBy="city")
    town.clock.now += 600
    assert each.id not in await town.ids(payoutMethod="wallet", orderBy="city")


async def test_a_whole_reading_counts_what_was_changed_and_no_date_told() -> None:
    """So that it can be seen whether the service's dates are to be relied upon."""
    town = Town(seconds=600)
    await town.ask(**CITY)
    before = counted("payout_gateway_recipient_cache_stale_entries_total")
    its = [each for each in town.there() if each.primary]
    town.without_accounts(its[0])
    town.rename(its[1])
    town.clock.now += 600
    await town.agrees(**CITY)
    assert counted("payout_gateway_recipient_cache_stale_entries_total") - before == 1
    town.clock.now += 600
    await town.agrees(**CITY)
    assert counted("payout_gateway_recipient_cache_stale_entries_total") - before == 1


def counted(name: str, **labels: str) -> float:
    """What is counted of the environment so far: by other tests, too."""
    found = REGISTRY.get_sample_value(name, {"environment": OWNER.environment, **labels})
    return found or 0


async def test_readings_are_counted_by_what_came_of_them() -> None:
    readings = "payout_gateway_recipient_cache_refreshes_total"
    before = {word: counted(readings, outcome=word) for word in ("success", "failed", "cancelled")}
    town = Town()

    def fail(_call: Call) -> None:
        if len(town.calls) == 9:
            raise Unreachable("gone")

    town.before = fail
    with pytest.raises(Unreachable):
        await town.ask(**CITY)
    await town.ask(**CITY)
    town.clock.now += 0.8 * town.seconds
    await town.ask(**CITY)  # and another reading begins beside it
    await town.indexes.close()
    after = {word: counted(readings, outcome=word) for word in before}
    assert {word: after[word] - before[word] for word in before} == {
        "success": 1,
        "failed": 1,
        "cancelled": 1,
    }


async def test_an_index_in_use_is_read_anew_beside_the_queries_before_it_is_too_old() -> None:
    town = Town(seconds=600)
    each = next(each for each in town.there() if each.primary and each.primary.type == "wallet")
    await town.ask(**CITY)
    town.without_accounts(each)
    town.clock.now += 500
    assert each.id in await town.ids(payoutMethod="wallet", orderBy="city")
    await _until(lambda: not [one for one in asyncio.all_tasks() if one.get_name() == "index"])
    town.clock.now += 200  # older than its age, but for that reading
    assert await town.cost(**CITY) == 2
    assert each.id not in await town.ids(payoutMethod="wallet", orderBy="city")


async def test_a_change_that_shows_late_in_the_list_is_met_by_a_later_increment() -> None:
    """The service dates a change before it lists it; another, dated later, is listed first."""
    town = Town()
    await town.ask(**CITY)
    late, soon = town.one(3), town.one(4)
    town.time += 1
    dated = town.world.now()
    town.rename(soon)
    await town.ask(**CITY)
    late.fields = {**late.fields, "address": {**late.address, "city": "Zwolle"}}
    late.updated_at = dated
    town.clock.now += OVERLAP_SECONDS / 2
    await town.agrees(**CITY)


async def test_a_date_of_the_future_does_not_hide_what_is_changed_before_it() -> None:
    town = Town()
    town.one(8).updated_at = datetime(2099, 1, 1, tzinfo=UTC)
    await town.ask(**CITY)
    for _ in range(4):
        town.clock.now += OVERLAP_SECONDS
        town.time += OVERLAP_SECONDS
        town.rename(town.one(50))
        await town.agrees(**CITY)
        assert await town.cost(**CITY) == 2


async def test_increments_come_to_begin_where_the_last_change_was() -> None:
    """A thousand changed at once are not read again by every question for ever."""
    town = Town(1000, page=250)
    await town.ask(**CITY)
    for each in town.there()[:700]:
        town.touch(each)
    assert await town.cost(**CITY) > 3
    town.clock.now += OVERLAP_SECONDS
    await town.ask(**CITY)
    assert await town.cost(**CITY) == 2
    await town.agrees(**CITY)


async def test_many_of_one_date_are_all_read() -> None:
    town = Town(page=7)
    for each in town.there()[:150]:
        each.updated_at = datetime(2025, 1, 1, tzinfo=UTC)
    await town.agrees(**CITY)
    for number in (2, 90, 120):
        town.archive(town.one(number))
    await town.agrees(**CITY)


# Failures


async def test_a_reading_that_fails_half_way_is_an_error_and_no_part_of_a_list() -> None:
    town = Town()
    count = 0

    def fail(_call: Call) -> None:
        nonlocal count
        count += 1
        if count == 9:
            raise Unreachable("gone")

    town.before = fail
    with pytest.raises(Unreachable):
        await town.ask(**CITY)
    await town.agrees(**CITY)


@pytest.mark.parametrize("at", [1, 2])
async def test_an_increment_that_fails_is_an_error_and_made_good_by_the_next(at: int) -> None:
    town = Town()
    await town.ask(**CITY)
    each = town.one(30)
    town.without_accounts(each)
    town.indexes.changed(OWNER, each.id)
    until = len(town.calls) + at

    def fail(_call: Call) -> None:
        if len(town.calls) == until:
            raise Unreachable("gone")

    town.before = fail
    with pytest.raises(Unreachable):
        await town.ask(**CITY)
    await town.agrees(**CITY)


def _without_meta(body: dict[str, Any], _: Mapping[str, str]) -> dict[str, Any]:
    return {"recipients": body["recipients"]}


def _without_dates(body: dict[str, Any], _: Mapping[str, str]) -> dict[str, Any]:
    return {**body, "recipients": [{**row, "updatedAt": None} for row in body["recipients"]]}


def _backwards(body: dict[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    rows = body["recipients"]
    return {**body, "recipients": rows[::-1] if query.get("orderBy") == "updatedAt" else rows}


@pytest.mark.parametrize("listed", [_without_meta, _without_dates, _backwards])
async def test_a_service_that_cannot_be_kept_up_with_is_read_each_time(listed: Any) -> None:
    town = Town(listed=listed)
    for _ in range(2):
        assert await town.ids(**CITY) == [row["id"] for row in await _scanned(town)]
    assert town.indexes.recipients == 0


async def _scanned(town: Town) -> list[Any]:
    return [*(await town.scan(pageSize="1000", **CITY)).rows]


async def test_a_service_that_refuses_update_dates_is_read_each_time() -> None:
    town = Town()

    def refuse(call: Call) -> None:
        if call.query.get("orderBy") == "updatedAt":
            raise Refused(400, [Problem("invalid_field", "No.", "orderBy")])

    town.before = refuse
    await town.agrees(**CITY)
    assert town.indexes.recipients == 0


async def test_a_service_that_refuses_large_pages_is_kept_up_with_by_pages_of_its_own() -> None:
    town = Town(page=20)

    def refuse(call: Call) -> None:
        if int(call.query.get("pageSize", "10")) > 100:
            raise Refused(400, [Problem("invalid_field", "Too many.", "pageSize")])

    town.before = refuse
    await town.agrees(**CITY)
    assert await town.cost(**CITY) == 2
    town.archive(town.one(7))
    town.create(2)
    assert await town.cost(**CITY) == 3
    await town.agrees(**CITY)


async def test_a_client_that_goes_away_does_not_end_the_reading_that_it_began() -> None:
    """Who waits for less time than it takes would begin it again for ever."""
    town = Town()
    reached, goes_on = asyncio.Event(), asyncio.Event()
    make = town.make

    async def slow(call: Call) -> Any:
        if len(town.calls) == 8:
            reached.set()
            await goes_on.wait()
        return await make(call)

    gone = asyncio.create_task(town.listing.find(town.question(CITY), slow, OWNER))
    await reached.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    goes_on.set()
    await _until(lambda: town.indexes.has(OWNER))
    assert await town.cost(**CITY) == 2


async def test_who_waits_for_a_reading_that_is_dropped_gets_another() -> None:
    town = Town()
    reached, goes_on = asyncio.Event(), asyncio.Event()
    make = town.make

    async def slow(call: Call) -> Any:
        if len(town.calls) == 8 and not goes_on.is_set():
            reached.set()
            await goes_on.wait()
        return await make(call)

    waits = asyncio.create_task(town.listing.find(town.question(CITY), slow, OWNER))
    await reached.wait()
    town.indexes.drop(OWNER)
    goes_on.set()
    found = await waits
    assert found.records == (await town.scan(**CITY)).records
    assert town.indexes.has(OWNER)


def _without_texts(body: dict[str, Any], _: Mapping[str, str]) -> dict[str, Any]:
    return {**body, "recipients": [{**row, "accounts": ["none"]} for row in body["recipients"]]}


async def test_rows_of_another_shape_are_left_to_a_reading_for_the_question() -> None:
    town = Town(listed=_without_texts)
    found = await town.ask(orderBy="city", pageSize="1000")
    assert len(found.rows) == len(town.there())
    assert town.indexes.recipients == 0


# Bounds


async def test_a_recipient_takes_less_than_two_kilobytes() -> None:
    town = Town(400)
    its = [json_codec.dumps(views.recipient(town.world, each)) for each in town.there()]
    tracemalloc.start()
    try:
        entries = [Entry(json_codec.read(text), 0.0) for text in its]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / len(entries) < 2048


async def test_more_recipients_than_there_is_room_for_are_read_each_time() -> None:
    town = Town(most=100)
    await town.agrees(**CITY)
    assert town.indexes.recipients == 0
    before = len(town.calls)
    await town.agrees(**CITY)
    assert not [one for one in town.calls[before:] if one.query.get("orderBy") == "updatedAt"]


async def test_an_index_that_outgrows_its_room_is_dropped() -> None:
    town = Town(most=LARGEST)
    await town.ask(**CITY)
    assert town.indexes.recipients > 0
    for number in range(60):
        town.create(number)
    await town.agrees(**CITY)
    assert town.indexes.recipients == 0


async def test_an_idle_index_makes_room_and_one_in_use_does_not() -> None:
    town = Town(most=LARGEST + 50)
    await town.ask(**CITY)
    first = town.indexes.recipients
    await town.listing.find(town.question(CITY), town.make, OTHER)
    assert (town.indexes.has(OWNER), town.indexes.has(OTHER)) == (True, False)
    another = Tenant("third", "sandbox")
    town.clock.now += IDLE_SECONDS
    await town.listing.find(town.question(CITY), town.make, another)
    assert (town.indexes.has(OWNER), town.indexes.has(another)) == (False, True)
    assert town.indexes.recipients == first


async def test_off_it_is_the_reading_that_it_was() -> None:
    town = Town()
    town.indexes = Indexes(Lists(index=False))
    town.listing = Listing(town.indexes)
    cost = await town.cost(**CITY)
    assert cost == await town.cost(**CITY) > 3
    assert town.indexes.recipients == 0


async def test_nothing_is_kept_that_no_answer_shows_and_no_query_asks() -> None:
    town = Town(50)
    row = views.recipient(town.world, town.one(0)) | {"secretThing": "x"}
    kept = {*select_answer_fields(row), *select_query_fields(row)}
    assert not kept & {"secretThing", "tags", "contactEmails", "placeOfBirth", "routeType"}


async def test_what_is_kept_of_a_row_shows_and_answers_as_the_row() -> None:
    town = Town(120)
    rows = [views.recipient(town.world, each) for each in town.world.recipients.values()]
    rows = [json_codec.read(json_codec.dumps(row)) for row in rows]
    assert all(
        build_recipient_answer(select_answer_fields(row), {}, LegacyOptions())
        == build_recipient_answer(row, {}, LegacyOptions())
        for row in rows
    )
    for query in QUERIES:
        question = build_list_query(query, {})
        for row in rows:
            brief = select_query_fields(row)
            assert question.is_match(brief) == question.is_match(row), query
            assert question.sort_key(brief) == question.sort_key(row), query
            assert question.is_hidden(brief) == question.is_hidden(row), query


# Whatever is asked, whatever happens

QUERIES: list[dict[str, str]] = [
    {**filters, **manner}
    for filters in (
        {"search": "a"},
        {"search": "EX", "status": "active"},
        {"city": "köln"},
        {"status": "inactive"},
        {"status": "disabled"},
        {"complianceStatus": "pending"},
        {"payoutMethod": "bank-transfer"},
        {"payoutMethod": "wallet", "country": "us", "city": "Oslo"},
        {"payoutCurrency": "EUR"},
        {"startDate": "2022-06-01", "endDate": "2023-06-01"},
        {"country": "ZZZ"},
    )
    for manner in (
        {},
        {"orderBy": "status", "sortBy": "asc", "pageSize": "7", "page": "2"},
        {"orderBy": "city", "pageSize": "50"},
        {"orderBy": "updatedAt", "pageSize": "1000"},
        {"orderBy": "payoutCurrency", "sortBy": "asc", "page": "99"},
    )
] + [{"orderBy": order} for order in ("id", "country", "complianceStatus", "dob", "lastName")]

CHANGES = ("rename", "archive", "vanish", "create", "delete", "disable", "accounts", "later")
numbers = st.integers(0, 10**6)
acts = st.lists(st.tuples(st.sampled_from(CHANGES), numbers), max_size=6)


def _happen(town: Town, what: str, number: int) -> None:
    """Some of it elsewhere, some of it through the gateway."""
    one = town.one(number)
    match what:
        case "rename":
            town.rename(one)
        case "archive":
            town.archive(one)
        case "vanish":
            # A service that lists its archive would have no date and no count that tells of it.
            town.archive(one, dated=town.lists_archived)
        case "create":
            town.create(number)
        case "delete":
            town.archive(one)
            town.remembered[one.id] = {"deleted": True}
        case "disable":
            one.status = "suspended"
            town.touch(one)
            town.remembered[one.id] = {"status": "disabled"}
        case "accounts":
            town.without_accounts(one)
            town.indexes.changed(OWNER, one.id)
        case "later":
            town.clock.now += number % 20


async def _story(town: Town, story: list[tuple[list[tuple[str, int]], dict[str, str]]]) -> None:
    await town.ask(**CITY)
    for happens, query in story:
        for what, number in happens:
            _happen(town, what, number)
        await town.agrees(**query)


@given(
    story=st.lists(st.tuples(acts, st.sampled_from(QUERIES)), min_size=1, max_size=6),
    lists_archived=st.booleans(),
    filters_archived=st.booleans(),
)
@settings(
    max_examples=EXAMPLES or 25,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_whatever_happens_between_questions_each_answer_is_that_of_a_whole_reading(
    story: list[tuple[list[tuple[str, int]], dict[str, str]]],
    *,
    lists_archived: bool,
    filters_archived: bool,
) -> None:
    town = Town(90, page=20, lists_archived=lists_archived, filters_archived=filters_archived)
    asyncio.run(_story(town, story))


@dataclass
class Watched:
    """Who lived in a city when: between its beginning and its end an answer may be of any moment."""

    town: Town
    moments: list[frozenset[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.look()

    def look(self) -> None:
        its = (each.id for each in self.town.there() if each.address.get("city") == "Oslo")
        self.moments.append(frozenset(its).difference(self.town.remembered))

    async def ask(self) -> None:
        begun = len(self.moments) - 1
        found = set(await self.town.ids(city="Oslo", orderBy="id"))
        during = self.moments[begun:]
        assert frozenset.intersection(*during) <= found <= frozenset.union(*during)


@pytest.mark.parametrize("seed", range(4))
async def test_questions_and_changes_at_once_show_no_state_that_never_was(seed: int) -> None:
    """Through the gateway: a change is over for its client before the next question is asked."""
    dice, town = random.Random(seed), Town(200, page=50)
    watched = Watched(town)

    async def change() -> None:
        for _ in range(12):
            await asyncio.sleep(dice.random() / 100)
            what = dice.choice(("rename", "delete", "create", "archive"))
            # Who is created here is not archived again: within one comparison nobody could see that.
            _happen(town, what, dice.randrange(10**6 if what == "create" else 100))
            watched.look()

    async def ask() -> None:
        for _ in range(4):
            try:
                await watched.ask()
            except Unreachable:  # it kept changing; told as a failure, never in part
                await asyncio.sleep(dice.random() / 100)

    await asyncio.gather(change(), *(ask() for _ in range(4)))
    await watched.ask()
    await town.agrees(**CITY)


async def test_questions_asked_at_once_share_what_brings_the_index_up_to_date() -> None:
    town = Town()
    await town.ask(**CITY)
    before = len(town.calls)
    await asyncio.gather(*(town.ask(**CITY) for _ in range(10)))
    assert len(town.calls) - before <= 4


# Dropped on request


@asynccontextmanager
async def dropping(folder: Path, town: Town) -> AsyncIterator[tuple[Dropping, Any]]:
    state = State(url=f"sqlite:///{folder}/gateway.db", encryption_key_file=folder / "gateway.key")
    async with open_store(state) as store, Dropping(town.indexes, store, seconds=0.02) as its:
        yield its, store


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - it is done in another task, of its own accord
            await asyncio.sleep(0.01)


async def test_an_operator_has_the_index_of_a_merchant_dropped(tmp_path: Path) -> None:
    town = Town()
    async with dropping(tmp_path, town) as (_, store):
        await town.ask(**CITY)
        await town.listing.find(town.question(CITY), town.make, OTHER)
        await invalidate_indexes(store, Tenant("demo", ""))
        await _until(lambda: not town.indexes.has(OWNER))
        assert town.indexes.has(OTHER)
        await town.agrees(**CITY)
        await invalidate_indexes(store, Tenant("", ""))
        await _until(lambda: town.indexes.recipients == 0)


async def test_erasing_a_recipient_drops_the_index_that_may_have_them(tmp_path: Path) -> None:
    town = Town()
    async with dropping(tmp_path, town) as (_, store):
        await town.ask(**CITY)
        await store.write(lambda tx: note(store, tx, ERASED, OWNER))
        await _until(lambda: town.indexes.recipients == 0)


async def test_what_was_wanted_before_a_process_began_is_no_request_to_it(tmp_path: Path) -> None:
    town = Town()
    async with dropping(tmp_path, town) as (_, store):
        await invalidate_indexes(store, OWNER)
    async with dropping(tmp_path, town):
        await town.ask(**CITY)
        await asyncio.sleep(0.1)
        assert town.indexes.has(OWNER)


async def test_an_index_that_is_too_old_and_not_used_is_given_up() -> None:
    town = Town(seconds=60)
    await town.ask(**CITY)
    town.clock.now += 60
    town.indexes.drop_old()
    assert town.indexes.recipients > 0
    town.clock.now += IDLE_SECONDS
    town.indexes.drop_old()
    assert town.indexes.recipients == 0
