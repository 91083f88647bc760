"""The recipient index: every answer is compared with a full scan of the list.

The list is the simulator's, called without HTTP; the scan of the same query gives the
expected answer.
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
from gateway.reads.listing import ListReader
from gateway.reads.recipient_cache import (
    CacheInvalidation,
    RecipientCaches,
    invalidate_recipient_caches,
)
from gateway.reads.recipient_cache.cache import CHANGE_DELAY_SECONDS
from gateway.reads.recipient_cache.caches import EVICTABLE_AFTER_SECONDS
from gateway.reads.recipient_cache.entry import RecipientEntry
from gateway.simulator import Service, ServiceOptions, views
from gateway.simulator.listing import list_recipients as service_list
from gateway.simulator.state import Recipient
from gateway.storage import open_store
from gateway.storage.audit_log import RECIPIENT_ERASED, record_audit_event
from gateway.storage.tenants import Tenant
from mappings.effects import Call, LegacyOptions, ListPage, ListQuery
from mappings.failures import Problem, Refused, Unreachable
from mappings.objects import build_legacy_recipient
from mappings.recipient_queries import build_list_query
from mappings.recipient_rows import select_answer_fields, select_query_fields

OWNER, OTHER = Tenant("demo", "sandbox"), Tenant("other", "sandbox")
MAX_INDEXED = 300
EXAMPLES = int(os.environ.get("EXAMPLES", "0"))
"""How many stories are tried, of which nobody has heard yet; 0: always the same few."""


class FakeClock:
    """A clock that the test advances, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class IndexedService:
    """A service with recipients, their stored state in the gateway, and an index of them."""

    n: int = MAX_INDEXED
    page: int = 20
    lists_archived: bool = False
    filters_archived: bool = True
    most: int = 100_000
    seconds: float = 3600
    listed: Callable[[dict[str, Any], Mapping[str, str]], dict[str, Any]] = lambda body, _: body
    before: Callable[[Call], None] = lambda _: None
    remembered: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        switches = ServiceOptions(
            max_page_size=self.page,
            lists_archived=self.lists_archived,
            filters_archived=self.filters_archived,
        )
        self.service = Service(seed=1, options=switches, clock=lambda: self.time)
        self.time = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
        self.service.seed_recipients(self.n, seed=7)
        self.world = self.service.find_or_create_tenant()
        lists = Lists(index=True, index_seconds=self.seconds, index_recipients=self.most)
        self.indexes = RecipientCaches(lists, monotonic=self.clock, wall_clock=lambda: self.time)
        self.listing = ListReader(self.indexes)
        self.scanning = ListReader()

    async def answer_call(self, call: Call) -> Any:
        self.calls.append(call)
        self.before(call)
        await asyncio.sleep(0)
        if call.path == "/recipients":
            query = {**call.query}
            body = self.listed(service_list(self.world, query), query)
        else:
            recipients = self.world.recipients.get(call.path.rpartition("/")[2])
            if recipients is None:
                raise Refused(404, [Problem("not_found", "None.")])
            body = {"recipient": views.build_recipient(self.world, recipients)}
        return json_codec.loads(json_codec.dumps({"ok": True, **body}))

    def build_query(self, query: Mapping[str, str]) -> ListQuery:
        return build_list_query(query, self.remembered)

    async def query_index(self, **query: str) -> ListPage:
        return await self.listing.query(self.build_query(query), self.answer_call, OWNER)

    async def scan_list(self, **query: str) -> ListPage:
        return await self.scanning.query(self.build_query(query), self.answer_call, OWNER)

    async def count_query_calls(self, **query: str) -> int:
        before = len(self.calls)
        await self.query_index(**query)
        return len(self.calls) - before

    async def list_ids(self, **query: str) -> list[str]:
        result = await self.query_index(pageSize="1000", **query)
        return [row["id"] for row in result.rows]

    async def check_equal_to_scan(self, **query: str) -> None:
        result, read = await self.query_index(**query), await self.scan_list(**query)
        assert (result.pages, result.records) == (read.pages, read.records), query
        assert self.build_answers(result) == self.build_answers(read), query

    def build_answers(self, result: ListPage) -> list[dict[str, Any]]:
        return [
            build_legacy_recipient(row, self.remembered.get(row["id"], {}), LegacyOptions())
            for row in result.rows
        ]

    # Changes outside the gateway

    def list_present(self) -> list[Recipient]:
        return [
            recipient for recipient in self.world.recipients.values() if not recipient.is_archived
        ]

    def pick_recipient(self, number: int) -> Recipient:
        those = self.list_present()
        return those[number % len(those)]

    def touch(self, recipient: Recipient) -> None:
        self.time += 0.0015
        recipient.updated_at = self.world.now()

    def rename(self, recipient: Recipient, *, city: str = "Oslo") -> None:
        recipient.fields = {**recipient.fields, "name": f"{recipient.fields['name']} {city}"}
        recipient.fields["address"] = {**recipient.address, "city": city}
        self.touch(recipient)

    def archive(self, recipient: Recipient, *, dated: bool = True) -> None:
        """The document does not say that archiving changes the update date."""
        recipient.status = "archived"
        if dated:
            self.touch(recipient)

    def create(self, seed: int) -> Recipient:
        made = self.service.seed_recipients(1, seed=1000 + seed)[0]
        made.status = "active"
        self.touch(made)
        made.created_at = made.updated_at
        return made

    def remove_accounts(self, recipient: Recipient) -> None:
        """Remove all accounts, a change that does not move the update date."""
        recipient.accounts.clear()


CITY_ORDER = {"orderBy": "city", "sortBy": "asc"}


async def test_page_equals_page_of_full_scan() -> None:
    indexed = IndexedService()
    await indexed.check_equal_to_scan(**CITY_ORDER)
    await indexed.check_equal_to_scan(search="a", page="3", pageSize="7")
    await indexed.check_equal_to_scan(status="inactive")
    await indexed.check_equal_to_scan(endDate="2023-06-01", orderBy="id")


@pytest.mark.parametrize("n", [400, 1000])
async def test_warm_query_costs_two_calls(n: int) -> None:
    indexed = IndexedService(n, page=1000)
    await indexed.query_index(**CITY_ORDER)
    for _ in range(3):
        assert await indexed.count_query_calls(search="nn", orderBy="country") == 2
    indexed.rename(indexed.pick_recipient(5))
    indexed.create(1)
    assert await indexed.count_query_calls(**CITY_ORDER) == 2


async def test_list_of_one_page_needs_no_index() -> None:
    indexed = IndexedService(100, page=1000)
    assert await indexed.count_query_calls(**CITY_ORDER) == 1
    assert indexed.indexes.recipient_count == 0


async def test_query_narrowed_to_one_page_builds_no_index() -> None:
    indexed = IndexedService(page=250)
    assert await indexed.count_query_calls(country="NZ", search="a") == 1
    assert indexed.indexes.recipient_count == 0


async def test_change_elsewhere_is_visible_immediately_by_its_date() -> None:
    indexed = IndexedService()
    await indexed.query_index(**CITY_ORDER)
    changed, made = indexed.pick_recipient(7), indexed.create(3)
    indexed.rename(changed, city="Aachen upon Nowhere")
    assert await indexed.list_ids(city="Aachen upon Nowhere") == [changed.id]
    assert made.id in await indexed.list_ids(**CITY_ORDER)
    await indexed.check_equal_to_scan(**CITY_ORDER)


def archive_some(indexed: IndexedService, several: int, *, dated: bool = True) -> set[str]:
    archived = [indexed.pick_recipient(300 * number + 5) for number in range(several)]
    for recipient in archived:
        indexed.archive(recipient, dated=dated)
    return {recipient.id for recipient in archived}


async def count_calls_after_archiving(indexed: IndexedService, archived: set[str]) -> int:
    """Count the calls of a query after archiving, and check that the archived are hidden."""
    before = len(indexed.calls)
    assert not archived & set(await indexed.list_ids(**CITY_ORDER))
    cost = len(indexed.calls) - before
    assert await indexed.count_query_calls(**CITY_ORDER) == 2
    await indexed.check_equal_to_scan(**CITY_ORDER)
    return cost


@pytest.mark.parametrize("several", [1, 2, 5])
async def test_archiving_elsewhere_costs_one_call_with_status_filter(
    several: int,
) -> None:
    indexed = IndexedService(2000, page=1000)
    await indexed.query_index(**CITY_ORDER)
    assert await count_calls_after_archiving(indexed, archive_some(indexed, several)) == 3
    indexed.create(1)
    assert await count_calls_after_archiving(indexed, archive_some(indexed, several)) == 3


async def test_undated_archiving_costs_one_call_for_small_archive() -> None:
    indexed = IndexedService(2000, page=1000)
    await indexed.query_index(**CITY_ORDER)
    assert await count_calls_after_archiving(indexed, archive_some(indexed, 2, dated=False)) == 3


async def test_hundreds_archived_at_once_cost_one_call_per_page() -> None:
    indexed = IndexedService(2000, page=1000)
    await indexed.query_index(**CITY_ORDER)
    archived = indexed.list_present()[100:800]
    for recipient in archived:
        indexed.archive(recipient)
    # 700 recipients, 250 per page; none of them is in an increment.
    assert (
        await count_calls_after_archiving(indexed, {recipient.id for recipient in archived})
        == 2 + 3
    )


def refuse_archived_filter(query: Mapping[str, str]) -> None:
    if query.get("status") == "archived":
        raise Refused(400, [Problem("invalid_field", "No.", "status")])


def ignore_filter(body: dict[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    return body | {"recipients": [row | {"status": "active"} for row in body["recipients"]]}


SILENT_SERVICES: dict[str, dict[str, Any]] = {
    "shows nobody": {"filters_archived": False},
    "refuses the word": {"before": lambda call: refuse_archived_filter(call.query)},
    "shows others": {"listed": ignore_filter},
}


@pytest.mark.parametrize("service_options", SILENT_SERVICES.values(), ids=SILENT_SERVICES.keys())
@pytest.mark.parametrize("several", [1, 2, 5])
async def test_unlisted_archiving_is_found_by_counting(
    several: int, service_options: dict[str, Any]
) -> None:
    indexed = IndexedService(2000, page=1000, **service_options)
    await indexed.query_index(**CITY_ORDER)
    assert (
        3
        < await count_calls_after_archiving(indexed, archive_some(indexed, several))
        <= 6 + 7 * several
    )


async def test_recipient_archived_during_a_search_is_not_mistaken_for_another() -> None:
    """Neither change has a date, and only one of them is among the recently archived."""
    indexed = IndexedService(page=20)
    for recipient in indexed.list_present()[:60]:
        indexed.archive(recipient)
    archived, passing = indexed.pick_recipient(5), indexed.pick_recipient(100)
    indexed.touch(passing)
    await indexed.query_index(**CITY_ORDER)
    indexed.archive(archived, dated=False)
    indexed.rename(passing)

    def archive_another(call: Call) -> None:
        if call.query.get("status") == "archived":
            indexed.archive(passing, dated=False)

    indexed.before = archive_another
    assert not {archived.id, passing.id} & set(await indexed.list_ids(**CITY_ORDER))
    await indexed.check_equal_to_scan(**CITY_ORDER)


async def test_late_page_does_not_restore_archived_recipient() -> None:
    """A background scan requested the page before the change; it arrives after it."""
    indexed = IndexedService(seconds=600)
    await indexed.query_index(**CITY_ORDER)
    reached, goes_on = asyncio.Event(), asyncio.Event()
    make = indexed.answer_call

    async def slow(call: Call) -> Any:
        answer = await make(call)
        if call.query["pageSize"] != "1" and not call.query.keys() & {"startDate", "status"}:
            reached.set()  # with the first page of a full scan
            await goes_on.wait()
        return answer

    indexed.clock.now += 500
    await indexed.listing.query(indexed.build_query(CITY_ORDER), slow, OWNER)
    await reached.wait()
    indexed.clock.now += 1
    recipient = min(indexed.list_present(), key=lambda one: one.updated_at)
    indexed.archive(recipient)
    assert await indexed.count_query_calls(**CITY_ORDER) == 3
    goes_on.set()
    await wait_until(lambda: not [one for one in asyncio.all_tasks() if one.get_name() == "index"])
    assert await indexed.count_query_calls(**CITY_ORDER) == 2, (
        "they had come back, and were searched again"
    )
    assert recipient.id not in await indexed.list_ids(**CITY_ORDER)


async def test_simultaneous_archive_and_create_are_both_visible() -> None:
    """The count is the same as before, so it reveals nothing."""
    indexed = IndexedService()
    await indexed.query_index(**CITY_ORDER)
    indexed.archive(indexed.pick_recipient(40))
    indexed.create(5)
    await indexed.check_equal_to_scan(**CITY_ORDER)


async def test_unarchived_recipient_with_old_date_is_found() -> None:
    indexed = IndexedService()
    back = next(
        recipient for recipient in indexed.world.recipients.values() if recipient.is_archived
    )
    await indexed.query_index(**CITY_ORDER)
    back.status = "active"
    assert back.id in await indexed.list_ids(**CITY_ORDER)


async def test_known_deleted_recipient_costs_no_search() -> None:
    indexed = IndexedService()
    await indexed.query_index(**CITY_ORDER)
    for number in (3, 60, 111):
        recipient = indexed.pick_recipient(number)
        indexed.archive(recipient)
        indexed.remembered[recipient.id] = {"deleted": True}
    assert await indexed.count_query_calls(**CITY_ORDER) == 2
    await indexed.check_equal_to_scan(**CITY_ORDER)


async def test_listed_but_deleted_recipient_is_searched_once() -> None:
    indexed = IndexedService()
    recipient = indexed.pick_recipient(9)
    await indexed.query_index(**CITY_ORDER)
    indexed.remembered[recipient.id] = {"deleted": True, "still_there": True}
    assert recipient.id not in await indexed.list_ids(**CITY_ORDER)
    assert await indexed.count_query_calls(**CITY_ORDER) == 2
    await indexed.check_equal_to_scan(**CITY_ORDER)


async def test_undated_account_change_through_gateway_is_visible() -> None:
    indexed = IndexedService()
    await indexed.query_index(**CITY_ORDER)
    recipient = next(
        recipient
        for recipient in indexed.list_present()
        if recipient.primary_account and recipient.status != "archived"
    )
    method = recipient.primary_account.type if recipient.primary_account else ""
    indexed.remove_accounts(recipient)
    assert recipient.id in await indexed.list_ids(payoutMethod=method, search="")
    indexed.indexes.record_change(OWNER, recipient.id)
    assert await indexed.count_query_calls(**CITY_ORDER) == 3
    assert recipient.id not in await indexed.list_ids(payoutMethod=method)
    assert await indexed.count_query_calls(**CITY_ORDER) == 2
    await indexed.check_equal_to_scan(orderBy="payoutMethod", search="a")


async def test_unrecorded_deletion_costs_one_read() -> None:
    """The service has archived the recipient, and its client has no answer yet."""
    indexed = IndexedService()
    await indexed.query_index(**CITY_ORDER)
    recipient = indexed.pick_recipient(23)
    indexed.archive(recipient)
    indexed.indexes.record_change(OWNER, recipient.id)
    assert await indexed.count_query_calls(**CITY_ORDER) == 3
    assert recipient.id not in await indexed.list_ids(**CITY_ORDER)
    assert await indexed.count_query_calls(**CITY_ORDER) == 2


async def test_recipient_missing_by_id_is_hidden() -> None:
    indexed = IndexedService()
    await indexed.query_index(**CITY_ORDER)
    recipient = indexed.pick_recipient(17)
    del indexed.world.recipients[recipient.id]
    indexed.indexes.record_change(OWNER, recipient.id)
    assert await indexed.count_query_calls(**CITY_ORDER) == 3
    assert recipient.id not in await indexed.list_ids(**CITY_ORDER)


async def test_undated_change_is_visible_after_maximum_index_age() -> None:
    indexed = IndexedService(seconds=600)
    recipient = next(
        recipient
        for recipient in indexed.list_present()
        if recipient.primary_account and recipient.primary_account.type == "wallet"
    )
    assert recipient.id in await indexed.list_ids(payoutMethod="wallet", orderBy="city")
    indexed.remove_accounts(recipient)
    assert recipient.id in await indexed.list_ids(payoutMethod="wallet", orderBy="city")
    indexed.clock.now += 600
    assert recipient.id not in await indexed.list_ids(payoutMethod="wallet", orderBy="city")


async def test_full_scan_counts_undated_changes() -> None:
    """The metric shows whether the service's dates can be relied upon."""
    indexed = IndexedService(seconds=600)
    await indexed.query_index(**CITY_ORDER)
    before = read_metric("payout_gateway_recipient_cache_stale_entries_total")
    recipients = [recipient for recipient in indexed.list_present() if recipient.primary_account]
    indexed.remove_accounts(recipients[0])
    indexed.rename(recipients[1])
    indexed.clock.now += 600
    await indexed.check_equal_to_scan(**CITY_ORDER)
    assert read_metric("payout_gateway_recipient_cache_stale_entries_total") - before == 1
    indexed.clock.now += 600
    await indexed.check_equal_to_scan(**CITY_ORDER)
    assert read_metric("payout_gateway_recipient_cache_stale_entries_total") - before == 1


def read_metric(name: str, **labels: str) -> float:
    """Read the environment's metric; other tests count into it, too."""
    sample = REGISTRY.get_sample_value(name, {"environment": OWNER.environment, **labels})
    return sample or 0


async def test_scans_are_counted_by_outcome() -> None:
    readings = "payout_gateway_recipient_cache_refreshes_total"
    before = {
        word: read_metric(readings, outcome=word) for word in ("success", "failed", "cancelled")
    }
    indexed = IndexedService()

    def fail(_call: Call) -> None:
        if len(indexed.calls) == 9:
            raise Unreachable("gone")

    indexed.before = fail
    with pytest.raises(Unreachable):
        await indexed.query_index(**CITY_ORDER)
    await indexed.query_index(**CITY_ORDER)
    indexed.clock.now += 0.8 * indexed.seconds
    await indexed.query_index(**CITY_ORDER)  # and another scan begins in the background
    await indexed.indexes.close()
    after = {word: read_metric(readings, outcome=word) for word in before}
    assert {word: after[word] - before[word] for word in before} == {
        "success": 1,
        "failed": 1,
        "cancelled": 1,
    }


async def test_used_index_is_refreshed_in_background_before_it_expires() -> None:
    indexed = IndexedService(seconds=600)
    recipient = next(
        recipient
        for recipient in indexed.list_present()
        if recipient.primary_account and recipient.primary_account.type == "wallet"
    )
    await indexed.query_index(**CITY_ORDER)
    indexed.remove_accounts(recipient)
    indexed.clock.now += 500
    assert recipient.id in await indexed.list_ids(payoutMethod="wallet", orderBy="city")
    await wait_until(
        lambda: not [task for task in asyncio.all_tasks() if task.get_name() == "index"]
    )
    indexed.clock.now += 200  # it would have expired without that scan
    assert await indexed.count_query_calls(**CITY_ORDER) == 2
    assert recipient.id not in await indexed.list_ids(payoutMethod="wallet", orderBy="city")


async def test_change_listed_late_is_found_by_later_increment() -> None:
    """The service dates a change before it lists it; another, dated later, is listed first."""
    indexed = IndexedService()
    await indexed.query_index(**CITY_ORDER)
    late, soon = indexed.pick_recipient(3), indexed.pick_recipient(4)
    indexed.time += 1
    dated = indexed.world.now()
    indexed.rename(soon)
    await indexed.query_index(**CITY_ORDER)
    late.fields = {**late.fields, "address": {**late.address, "city": "Zwolle"}}
    late.updated_at = dated
    indexed.clock.now += CHANGE_DELAY_SECONDS / 2
    await indexed.check_equal_to_scan(**CITY_ORDER)


async def test_future_date_does_not_hide_earlier_changes() -> None:
    indexed = IndexedService()
    indexed.pick_recipient(8).updated_at = datetime(2099, 1, 1, tzinfo=UTC)
    await indexed.query_index(**CITY_ORDER)
    for _ in range(4):
        indexed.clock.now += CHANGE_DELAY_SECONDS
        indexed.time += CHANGE_DELAY_SECONDS
        indexed.rename(indexed.pick_recipient(50))
        await indexed.check_equal_to_scan(**CITY_ORDER)
        assert await indexed.count_query_calls(**CITY_ORDER) == 2


async def test_increments_advance_to_last_change() -> None:
    """A thousand simultaneous changes are not read again by every later query."""
    indexed = IndexedService(1000, page=250)
    await indexed.query_index(**CITY_ORDER)
    for recipient in indexed.list_present()[:700]:
        indexed.touch(recipient)
    assert await indexed.count_query_calls(**CITY_ORDER) > 3
    indexed.clock.now += CHANGE_DELAY_SECONDS
    await indexed.query_index(**CITY_ORDER)
    assert await indexed.count_query_calls(**CITY_ORDER) == 2
    await indexed.check_equal_to_scan(**CITY_ORDER)


async def test_many_recipients_of_one_date_are_all_read() -> None:
    indexed = IndexedService(page=7)
    for recipient in indexed.list_present()[:150]:
        recipient.updated_at = datetime(2025, 1, 1, tzinfo=UTC)
    await indexed.check_equal_to_scan(**CITY_ORDER)
    for number in (2, 90, 120):
        indexed.archive(indexed.pick_recipient(number))
    await indexed.check_equal_to_scan(**CITY_ORDER)


# Failures


async def test_failed_scan_is_an_error_and_no_partial_list() -> None:
    indexed = IndexedService()
    count = 0

    def fail(_call: Call) -> None:
        nonlocal count
        count += 1
        if count == 9:
            raise Unreachable("gone")

    indexed.before = fail
    with pytest.raises(Unreachable):
        await indexed.query_index(**CITY_ORDER)
    await indexed.check_equal_to_scan(**CITY_ORDER)


@pytest.mark.parametrize("at", [1, 2])
async def test_failed_increment_is_an_error_and_repeated_by_the_next(at: int) -> None:
    indexed = IndexedService()
    await indexed.query_index(**CITY_ORDER)
    recipient = indexed.pick_recipient(30)
    indexed.remove_accounts(recipient)
    indexed.indexes.record_change(OWNER, recipient.id)
    until = len(indexed.calls) + at

    def fail(_call: Call) -> None:
        if len(indexed.calls) == until:
            raise Unreachable("gone")

    indexed.before = fail
    with pytest.raises(Unreachable):
        await indexed.query_index(**CITY_ORDER)
    await indexed.check_equal_to_scan(**CITY_ORDER)


def remove_meta(body: dict[str, Any], _: Mapping[str, str]) -> dict[str, Any]:
    return {"recipients": body["recipients"]}


def remove_update_dates(body: dict[str, Any], _: Mapping[str, str]) -> dict[str, Any]:
    return {**body, "recipients": [{**row, "updatedAt": None} for row in body["recipients"]]}


def reverse_update_order(body: dict[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    rows = body["recipients"]
    return {**body, "recipients": rows[::-1] if query.get("orderBy") == "updatedAt" else rows}


@pytest.mark.parametrize("change_body", [remove_meta, remove_update_dates, reverse_update_order])
async def test_unindexable_service_is_scanned_each_time(change_body: Any) -> None:
    indexed = IndexedService(listed=change_body)
    for _ in range(2):
        assert await indexed.list_ids(**CITY_ORDER) == [
            row["id"] for row in await scan_rows(indexed)
        ]
    assert indexed.indexes.recipient_count == 0


async def scan_rows(indexed: IndexedService) -> list[Any]:
    return [*(await indexed.scan_list(pageSize="1000", **CITY_ORDER)).rows]


async def test_service_without_update_order_is_scanned_each_time() -> None:
    indexed = IndexedService()

    def refuse(call: Call) -> None:
        if call.query.get("orderBy") == "updatedAt":
            raise Refused(400, [Problem("invalid_field", "No.", "orderBy")])

    indexed.before = refuse
    await indexed.check_equal_to_scan(**CITY_ORDER)
    assert indexed.indexes.recipient_count == 0


async def test_service_with_small_pages_is_indexed_by_its_own_page_size() -> None:
    indexed = IndexedService(page=20)

    def refuse(call: Call) -> None:
        if int(call.query.get("pageSize", "10")) > 100:
            raise Refused(400, [Problem("invalid_field", "Too many.", "pageSize")])

    indexed.before = refuse
    await indexed.check_equal_to_scan(**CITY_ORDER)
    assert await indexed.count_query_calls(**CITY_ORDER) == 2
    indexed.archive(indexed.pick_recipient(7))
    indexed.create(2)
    assert await indexed.count_query_calls(**CITY_ORDER) == 3
    await indexed.check_equal_to_scan(**CITY_ORDER)


async def test_cancelled_client_does_not_end_its_scan() -> None:
    """Otherwise clients with short timeouts would restart the scan forever."""
    indexed = IndexedService()
    reached, goes_on = asyncio.Event(), asyncio.Event()
    make = indexed.answer_call

    async def slow(call: Call) -> Any:
        if len(indexed.calls) == 8:
            reached.set()
            await goes_on.wait()
        return await make(call)

    archived = asyncio.create_task(
        indexed.listing.query(indexed.build_query(CITY_ORDER), slow, OWNER)
    )
    await reached.wait()
    archived.cancel()
    await asyncio.gather(archived, return_exceptions=True)
    goes_on.set()
    await wait_until(lambda: indexed.indexes.has_complete_cache(OWNER))
    assert await indexed.count_query_calls(**CITY_ORDER) == 2


async def test_waiter_of_dropped_scan_starts_another() -> None:
    indexed = IndexedService()
    reached, goes_on = asyncio.Event(), asyncio.Event()
    make = indexed.answer_call

    async def slow(call: Call) -> Any:
        if len(indexed.calls) == 8 and not goes_on.is_set():
            reached.set()
            await goes_on.wait()
        return await make(call)

    waits = asyncio.create_task(indexed.listing.query(indexed.build_query(CITY_ORDER), slow, OWNER))
    await reached.wait()
    indexed.indexes.drop_caches_in_scope(OWNER)
    goes_on.set()
    result = await waits
    assert result.records == (await indexed.scan_list(**CITY_ORDER)).records
    assert indexed.indexes.has_complete_cache(OWNER)


def replace_accounts_with_text(body: dict[str, Any], _: Mapping[str, str]) -> dict[str, Any]:
    return {**body, "recipients": [{**row, "accounts": ["none"]} for row in body["recipients"]]}


async def test_rows_of_other_shape_are_scanned_per_query() -> None:
    indexed = IndexedService(listed=replace_accounts_with_text)
    result = await indexed.query_index(orderBy="city", pageSize="1000")
    assert len(result.rows) == len(indexed.list_present())
    assert indexed.indexes.recipient_count == 0


# Limits


async def test_recipient_uses_less_than_two_kilobytes() -> None:
    indexed = IndexedService(400)
    recipients = [
        json_codec.dumps(views.build_recipient(indexed.world, recipient))
        for recipient in indexed.list_present()
    ]
    tracemalloc.start()
    try:
        entries = [RecipientEntry(json_codec.loads(text), 0.0) for text in recipients]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / len(entries) < 2048


async def test_list_above_capacity_is_scanned_each_time() -> None:
    indexed = IndexedService(most=100)
    await indexed.check_equal_to_scan(**CITY_ORDER)
    assert indexed.indexes.recipient_count == 0
    before = len(indexed.calls)
    await indexed.check_equal_to_scan(**CITY_ORDER)
    assert not [
        listed_item
        for listed_item in indexed.calls[before:]
        if listed_item.query.get("orderBy") == "updatedAt"
    ]


async def test_index_that_outgrows_capacity_is_dropped() -> None:
    indexed = IndexedService(most=MAX_INDEXED)
    await indexed.query_index(**CITY_ORDER)
    assert indexed.indexes.recipient_count > 0
    for number in range(60):
        indexed.create(number)
    await indexed.check_equal_to_scan(**CITY_ORDER)
    assert indexed.indexes.recipient_count == 0


async def test_idle_index_is_evicted_and_used_one_is_not() -> None:
    indexed = IndexedService(most=MAX_INDEXED + 50)
    await indexed.query_index(**CITY_ORDER)
    first = indexed.indexes.recipient_count
    await indexed.listing.query(indexed.build_query(CITY_ORDER), indexed.answer_call, OTHER)
    assert (
        indexed.indexes.has_complete_cache(OWNER),
        indexed.indexes.has_complete_cache(OTHER),
    ) == (True, False)
    another = Tenant("third", "sandbox")
    indexed.clock.now += EVICTABLE_AFTER_SECONDS
    await indexed.listing.query(indexed.build_query(CITY_ORDER), indexed.answer_call, another)
    assert (
        indexed.indexes.has_complete_cache(OWNER),
        indexed.indexes.has_complete_cache(another),
    ) == (False, True)
    assert indexed.indexes.recipient_count == first


async def test_disabled_index_scans_each_time() -> None:
    indexed = IndexedService()
    indexed.indexes = RecipientCaches(Lists(index=False))
    indexed.listing = ListReader(indexed.indexes)
    cost = await indexed.count_query_calls(**CITY_ORDER)
    assert cost == await indexed.count_query_calls(**CITY_ORDER) > 3
    assert indexed.indexes.recipient_count == 0


async def test_index_keeps_only_fields_of_answers_and_queries() -> None:
    indexed = IndexedService(50)
    row = views.build_recipient(indexed.world, indexed.pick_recipient(0)) | {"secretThing": "x"}
    field_names = {*select_answer_fields(row), *select_query_fields(row)}
    assert not field_names & {"secretThing", "tags", "contactEmails", "placeOfBirth", "routeType"}


async def test_indexed_row_answers_like_the_full_row() -> None:
    indexed = IndexedService(120)
    rows = [
        views.build_recipient(indexed.world, recipient)
        for recipient in indexed.world.recipients.values()
    ]
    rows = [json_codec.loads(json_codec.dumps(row)) for row in rows]
    assert all(
        build_legacy_recipient(select_answer_fields(row), {}, LegacyOptions())
        == build_legacy_recipient(row, {}, LegacyOptions())
        for row in rows
    )
    for query in SAMPLE_QUERIES:
        question = build_list_query(query, {})
        for row in rows:
            brief = select_query_fields(row)
            assert question.is_match(brief) == question.is_match(row), query
            assert question.sort_key(brief) == question.sort_key(row), query
            assert question.is_hidden(brief) == question.is_hidden(row), query


# Random queries and changes

SAMPLE_QUERIES: list[dict[str, str]] = [
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

CHANGE_KINDS = ("rename", "archive", "vanish", "create", "delete", "disable", "accounts", "later")
numbers = st.integers(0, 10**6)
change_lists = st.lists(st.tuples(st.sampled_from(CHANGE_KINDS), numbers), max_size=6)


def apply_change(indexed: IndexedService, what: str, number: int) -> None:
    """Apply one change, outside the gateway or through it."""
    recipient = indexed.pick_recipient(number)
    match what:
        case "rename":
            indexed.rename(recipient)
        case "archive":
            indexed.archive(recipient)
        case "vanish":
            # A service that lists its archive reveals this by neither a date nor a count.
            indexed.archive(recipient, dated=indexed.lists_archived)
        case "create":
            indexed.create(number)
        case "delete":
            indexed.archive(recipient)
            indexed.remembered[recipient.id] = {"deleted": True}
        case "disable":
            recipient.status = "suspended"
            indexed.touch(recipient)
            indexed.remembered[recipient.id] = {"status": "disabled"}
        case "accounts":
            indexed.remove_accounts(recipient)
            indexed.indexes.record_change(OWNER, recipient.id)
        case "later":
            indexed.clock.now += number % 20


async def play_story(
    indexed: IndexedService, story: list[tuple[list[tuple[str, int]], dict[str, str]]]
) -> None:
    await indexed.query_index(**CITY_ORDER)
    for happens, query in story:
        for what, number in happens:
            apply_change(indexed, what, number)
        await indexed.check_equal_to_scan(**query)


@given(
    story=st.lists(
        st.tuples(change_lists, st.sampled_from(SAMPLE_QUERIES)), min_size=1, max_size=6
    ),
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
def test_any_history_gives_answers_of_a_full_scan(
    story: list[tuple[list[tuple[str, int]], dict[str, str]]],
    *,
    lists_archived: bool,
    filters_archived: bool,
) -> None:
    indexed = IndexedService(
        90, page=20, lists_archived=lists_archived, filters_archived=filters_archived
    )
    asyncio.run(play_story(indexed, story))


@dataclass
class MonitoredCity:
    """Records who lived in a city at each moment; an answer may reflect any moment of its query."""

    town: IndexedService
    moments: list[frozenset[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.record_moment()

    def record_moment(self) -> None:
        its = (
            recipient.id
            for recipient in self.town.list_present()
            if recipient.address.get("city") == "Oslo"
        )
        self.moments.append(frozenset(its).difference(self.town.remembered))

    async def check_query(self) -> None:
        first_moment = len(self.moments) - 1
        found = set(await self.town.list_ids(city="Oslo", orderBy="id"))
        during = self.moments[first_moment:]
        assert frozenset.intersection(*during) <= found <= frozenset.union(*during)


@pytest.mark.parametrize("seed", range(4))
async def test_concurrent_queries_and_changes_show_no_impossible_state(seed: int) -> None:
    """Changes go through the gateway: each is complete before its client's next query."""
    dice, town = random.Random(seed), IndexedService(200, page=50)
    watched = MonitoredCity(town)

    async def change() -> None:
        for _ in range(12):
            await asyncio.sleep(dice.random() / 100)
            what = dice.choice(("rename", "delete", "create", "archive"))
            # Recipients created here stay: a single check could not see them come and go.
            apply_change(town, what, dice.randrange(10**6 if what == "create" else 100))
            watched.record_moment()

    async def ask() -> None:
        for _ in range(4):
            try:
                await watched.check_query()
            except Unreachable:  # it kept changing: an error, never a partial list
                await asyncio.sleep(dice.random() / 100)

    await asyncio.gather(change(), *(ask() for _ in range(4)))
    await watched.check_query()
    await town.check_equal_to_scan(**CITY_ORDER)


async def test_concurrent_queries_share_one_refresh() -> None:
    indexed = IndexedService()
    await indexed.query_index(**CITY_ORDER)
    before = len(indexed.calls)
    await asyncio.gather(*(indexed.query_index(**CITY_ORDER) for _ in range(10)))
    assert len(indexed.calls) - before <= 4


# Dropped on request


@asynccontextmanager
async def open_index_dropper(
    folder: Path, indexed: IndexedService
) -> AsyncIterator[tuple[CacheInvalidation, Any]]:
    state = State(url=f"sqlite:///{folder}/gateway.db", encryption_key_file=folder / "gateway.key")
    async with (
        open_store(state) as store,
        CacheInvalidation(indexed.indexes, store, seconds=0.02) as dropper,
    ):
        yield dropper, store


async def wait_until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - it is done in another task, of its own accord
            await asyncio.sleep(0.01)


async def test_operator_can_drop_the_index_of_a_merchant(tmp_path: Path) -> None:
    indexed = IndexedService()
    async with open_index_dropper(tmp_path, indexed) as (_, store):
        await indexed.query_index(**CITY_ORDER)
        await indexed.listing.query(indexed.build_query(CITY_ORDER), indexed.answer_call, OTHER)
        await invalidate_recipient_caches(store, Tenant("demo", ""))
        await wait_until(lambda: not indexed.indexes.has_complete_cache(OWNER))
        assert indexed.indexes.has_complete_cache(OTHER)
        await indexed.check_equal_to_scan(**CITY_ORDER)
        await invalidate_recipient_caches(store, Tenant("", ""))
        await wait_until(lambda: indexed.indexes.recipient_count == 0)


async def test_erasing_a_recipient_drops_the_index(tmp_path: Path) -> None:
    indexed = IndexedService()
    async with open_index_dropper(tmp_path, indexed) as (_, store):
        await indexed.query_index(**CITY_ORDER)
        await store.write(lambda tx: record_audit_event(store, tx, RECIPIENT_ERASED, OWNER))
        await wait_until(lambda: indexed.indexes.recipient_count == 0)


async def test_drop_request_before_process_start_is_ignored(tmp_path: Path) -> None:
    indexed = IndexedService()
    async with open_index_dropper(tmp_path, indexed) as (_, store):
        await invalidate_recipient_caches(store, OWNER)
    async with open_index_dropper(tmp_path, indexed):
        await indexed.query_index(**CITY_ORDER)
        await asyncio.sleep(0.1)
        assert indexed.indexes.has_complete_cache(OWNER)


async def test_expired_idle_index_is_dropped() -> None:
    indexed = IndexedService(seconds=60)
    await indexed.query_index(**CITY_ORDER)
    indexed.clock.now += 60
    indexed.indexes.drop_expired()
    assert indexed.indexes.recipient_count > 0
    indexed.clock.now += EVICTABLE_AFTER_SECONDS
    indexed.indexes.drop_expired()
    assert indexed.indexes.recipient_count == 0
