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
from gateway.operator.retention import erase_recipient
from gateway.payloads import json_codec
from gateway.reads.listing import ListReader
from gateway.reads.recipient_cache import RecipientCaches
from gateway.reads.recipient_cache.cache import CHANGE_DELAY_SECONDS
from gateway.reads.recipient_cache.caches import EVICTABLE_AFTER_SECONDS
from gateway.reads.recipient_cache.entry import RecipientEntry, select_answer_fields
from gateway.simulator import views
from gateway.simulator.current_interface import list_recipients as service_list
from gateway.simulator.requests import AcceptedRequest
from gateway.simulator.state import Recipient
from gateway.storage import Store, open_store
from gateway.storage.change_poller import ChangePoller, build_erasure_count_name
from gateway.storage.tenants import Tenant
from mappings.effects import Call, LegacyOptions, ListPage, ListQuery
from mappings.failures import Problem, Refused, Unreachable
from mappings.objects import build_legacy_recipient
from mappings.recipient_queries import build_list_query
from tests.simulator import Service, ServiceOptions
from tests.sockets import wait_until

TENANT, OTHER_TENANT = Tenant("demo", "sandbox"), Tenant("other", "sandbox")
MAX_INDEXED = 300
EXAMPLES = int(os.environ.get("EXAMPLES", "0"))
"""Number of additional random histories; 0 tries the same few every time."""


class FakeClock:
    """A clock that the test advances, in seconds; each reading is a little later."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


@dataclass
class IndexedService:
    """A service with recipients, their stored state in the gateway, and an index of them."""

    n: int = MAX_INDEXED
    page: int = 20
    lists_archived: bool = False
    filters_archived: bool = True
    index_capacity: int = 100_000
    seconds: float = 3600
    transform: Callable[[dict[str, Any], Mapping[str, str]], dict[str, Any]] = lambda body, _: body
    before_call: Callable[[Call], None] = lambda _: None
    object_states: dict[str, dict[str, Any]] = field(default_factory=dict)
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
        self.tenant = self.service.find_or_create_tenant()
        lists = Lists(index=True, index_seconds=self.seconds, index_recipients=self.index_capacity)
        self.indexes = RecipientCaches(lists, monotonic=self.clock, wall_clock=lambda: self.time)
        self.listing = ListReader(self.indexes)
        self.scan_reader = ListReader(RecipientCaches(Lists(index=False)))

    async def answer_call(self, call: Call) -> Any:
        self.calls.append(call)
        self.before_call(call)
        await asyncio.sleep(0)
        if call.path == "/recipients":
            query = {**call.query}
            body = self.transform(service_list(AcceptedRequest(self.tenant, query)), query)
        else:
            recipients = self.tenant.recipients.get(call.path.rpartition("/")[2])
            if recipients is None:
                raise Refused(404, [Problem("not_found", "None.")])
            body = {"recipient": views.build_recipient(self.tenant, recipients)}
        return json_codec.loads(json_codec.dumps({"ok": True, **body}))

    def build_query(self, query: Mapping[str, str]) -> ListQuery:
        return build_list_query(query, self.object_states)

    @property
    def cached_count(self) -> int:
        return self.indexes.calculate_cache_statistics(TENANT.environment).recipients

    async def query_index(self, **query: str) -> ListPage:
        return await self.listing.query(self.build_query(query), self.answer_call, TENANT)

    async def scan_list(self, **query: str) -> ListPage:
        return await self.scan_reader.query(self.build_query(query), self.answer_call, TENANT)

    async def count_query_calls(self, **query: str) -> int:
        calls_before = len(self.calls)
        await self.query_index(**query)
        return len(self.calls) - calls_before

    async def list_ids(self, **query: str) -> list[str]:
        result = await self.query_index(pageSize="1000", **query)
        return [row["id"] for row in result.rows]

    async def check_equal_to_scan(self, **query: str) -> None:
        result, scan_result = await self.query_index(**query), await self.scan_list(**query)
        assert (result.meta["pages"], result.meta["records"]) == (
            scan_result.meta["pages"],
            scan_result.meta["records"],
        ), query
        assert self.build_answers(result) == self.build_answers(scan_result), query

    def build_answers(self, result: ListPage) -> list[dict[str, Any]]:
        return [
            build_legacy_recipient(row, self.object_states.get(row["id"], {}), LegacyOptions())
            for row in result.rows
        ]

    # Changes outside the gateway

    def list_active_recipients(self) -> list[Recipient]:
        return [
            recipient for recipient in self.tenant.recipients.values() if not recipient.is_archived
        ]

    def pick_recipient(self, number: int) -> Recipient:
        recipients = self.list_active_recipients()
        return recipients[number % len(recipients)]

    def set_update_time(self, recipient: Recipient) -> None:
        self.time += 0.0015
        recipient.updated_at = self.tenant.now()

    def rename(self, recipient: Recipient, *, city: str = "Oslo") -> None:
        recipient.fields = {**recipient.fields, "name": f"{recipient.fields['name']} {city}"}
        recipient.fields["address"] = {**recipient.address, "city": city}
        self.set_update_time(recipient)

    def archive(self, recipient: Recipient, *, updates_date: bool = True) -> None:
        """The document does not say that archiving changes the update date."""
        recipient.status = "archived"
        if updates_date:
            self.set_update_time(recipient)

    def create(self, seed: int) -> Recipient:
        recipient = self.service.seed_recipients(1, seed=1000 + seed)[0]
        recipient.status = "active"
        self.set_update_time(recipient)
        recipient.created_at = recipient.updated_at
        return recipient

    def remove_accounts(self, recipient: Recipient) -> None:
        """Remove all accounts, a change that does not move the update date."""
        recipient.accounts.clear()


CITY_ORDER = {"orderBy": "city", "sortBy": "asc"}


@pytest.mark.parametrize("n", [400, 1000])
async def test_warm_query_costs_two_calls(n: int) -> None:
    indexed_service = IndexedService(n, page=1000)
    await indexed_service.query_index(**CITY_ORDER)
    for _ in range(3):
        assert await indexed_service.count_query_calls(search="nn", orderBy="country") == 2
    indexed_service.rename(indexed_service.pick_recipient(5))
    indexed_service.create(1)
    assert await indexed_service.count_query_calls(**CITY_ORDER) == 2


def refuse_archived_filter(query: Mapping[str, str]) -> None:
    if query.get("status") == "archived":
        raise Refused(400, [Problem("invalid_field", "No.", "status")])


def ignore_filter(body: dict[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    return body | {"recipients": [row | {"status": "active"} for row in body["recipients"]]}


SILENT_SERVICES: dict[str, dict[str, Any]] = {
    "shows nobody": {"filters_archived": False},
    "refuses the word": {"before_call": lambda call: refuse_archived_filter(call.query)},
    "shows others": {"transform": ignore_filter},
}


@pytest.mark.parametrize("service_options", SILENT_SERVICES.values(), ids=SILENT_SERVICES.keys())
async def test_unlisted_archiving_costs_a_refresh(service_options: dict[str, Any]) -> None:
    indexed_service = IndexedService(2000, page=1000, **service_options)
    await indexed_service.query_index(**CITY_ORDER)
    for number in (5, 305):
        indexed_service.archive(indexed_service.pick_recipient(number), updates_date=False)
    # Two comparisons of three calls, the refresh, and a third comparison.
    assert 6 < await indexed_service.count_query_calls(**CITY_ORDER) <= 6 + 9 + 2
    assert await indexed_service.count_query_calls(**CITY_ORDER) == 2
    await indexed_service.check_equal_to_scan(**CITY_ORDER)


async def test_recipient_archived_during_a_search_is_not_mistaken_for_another() -> None:
    """Neither change has a date, and only one of them is among the recently archived."""
    indexed_service = IndexedService(page=20)
    for recipient in indexed_service.list_active_recipients()[:60]:
        indexed_service.archive(recipient)
    archived_recipient, touched_recipient = (
        indexed_service.pick_recipient(5),
        indexed_service.pick_recipient(100),
    )
    indexed_service.set_update_time(touched_recipient)
    await indexed_service.query_index(**CITY_ORDER)
    indexed_service.archive(archived_recipient, updates_date=False)
    indexed_service.rename(touched_recipient)

    def archive_another(call: Call) -> None:
        if call.query.get("status") == "archived":
            indexed_service.archive(touched_recipient, updates_date=False)

    indexed_service.before_call = archive_another
    assert not {archived_recipient.id, touched_recipient.id} & set(
        await indexed_service.list_ids(**CITY_ORDER)
    )
    await indexed_service.check_equal_to_scan(**CITY_ORDER)


async def test_late_page_does_not_restore_archived_recipient() -> None:
    """A background scan requested the page before the change; it arrives after it."""
    indexed_service = IndexedService(seconds=600)
    await indexed_service.query_index(**CITY_ORDER)
    is_first_page_read, may_continue = asyncio.Event(), asyncio.Event()
    answer_call = indexed_service.answer_call

    async def answer_slowly(call: Call) -> Any:
        answer = await answer_call(call)
        if call.query["pageSize"] != "1" and not call.query.keys() & {"startDate", "status"}:
            is_first_page_read.set()  # with the first page of a full scan
            await may_continue.wait()
        return answer

    indexed_service.clock.now += 500
    await indexed_service.listing.query(
        indexed_service.build_query(CITY_ORDER), answer_slowly, TENANT
    )
    await is_first_page_read.wait()
    indexed_service.clock.now += 1
    recipient = min(
        indexed_service.list_active_recipients(), key=lambda candidate: candidate.updated_at
    )
    indexed_service.archive(recipient)
    assert await indexed_service.count_query_calls(**CITY_ORDER) == 3
    may_continue.set()
    await wait_until(
        lambda: (
            not [candidate for candidate in asyncio.all_tasks() if candidate.get_name() == "index"]
        )
    )
    # The refresh brought it back, and the count shows that.
    assert await indexed_service.count_query_calls(**CITY_ORDER) == 3
    assert await indexed_service.count_query_calls(**CITY_ORDER) == 2
    assert recipient.id not in await indexed_service.list_ids(**CITY_ORDER)


async def test_simultaneous_archive_and_create_are_both_visible() -> None:
    """The count is the same as before, so it reveals nothing."""
    indexed_service = IndexedService()
    await indexed_service.query_index(**CITY_ORDER)
    indexed_service.archive(indexed_service.pick_recipient(40))
    indexed_service.create(5)
    await indexed_service.check_equal_to_scan(**CITY_ORDER)


async def test_unarchived_recipient_with_old_date_is_found() -> None:
    indexed_service = IndexedService()
    restored_recipient = next(
        recipient
        for recipient in indexed_service.tenant.recipients.values()
        if recipient.is_archived
    )
    await indexed_service.query_index(**CITY_ORDER)
    restored_recipient.status = "active"
    assert restored_recipient.id in await indexed_service.list_ids(**CITY_ORDER)


async def test_known_deleted_recipient_costs_no_search() -> None:
    indexed_service = IndexedService()
    await indexed_service.query_index(**CITY_ORDER)
    for number in (3, 60, 111):
        recipient = indexed_service.pick_recipient(number)
        indexed_service.archive(recipient)
        indexed_service.object_states[recipient.id] = {"deleted": True}
    assert await indexed_service.count_query_calls(**CITY_ORDER) == 2
    await indexed_service.check_equal_to_scan(**CITY_ORDER)


async def test_listed_but_deleted_recipient_is_searched_once() -> None:
    indexed_service = IndexedService()
    recipient = indexed_service.pick_recipient(9)
    await indexed_service.query_index(**CITY_ORDER)
    indexed_service.object_states[recipient.id] = {"deleted": True, "still_there": True}
    assert recipient.id not in await indexed_service.list_ids(**CITY_ORDER)
    assert await indexed_service.count_query_calls(**CITY_ORDER) == 2
    await indexed_service.check_equal_to_scan(**CITY_ORDER)


async def test_unrecorded_deletion_costs_one_read() -> None:
    """The service has archived the recipient, and its client has no answer yet."""
    indexed_service = IndexedService()
    await indexed_service.query_index(**CITY_ORDER)
    recipient = indexed_service.pick_recipient(23)
    indexed_service.archive(recipient)
    indexed_service.indexes.record_changed_recipient(TENANT, recipient.id)
    assert await indexed_service.count_query_calls(**CITY_ORDER) == 3
    assert recipient.id not in await indexed_service.list_ids(**CITY_ORDER)
    assert await indexed_service.count_query_calls(**CITY_ORDER) == 2


async def test_recipient_missing_by_id_is_hidden() -> None:
    indexed_service = IndexedService()
    await indexed_service.query_index(**CITY_ORDER)
    recipient = indexed_service.pick_recipient(17)
    del indexed_service.tenant.recipients[recipient.id]
    indexed_service.indexes.record_changed_recipient(TENANT, recipient.id)
    assert await indexed_service.count_query_calls(**CITY_ORDER) == 3
    assert recipient.id not in await indexed_service.list_ids(**CITY_ORDER)


async def test_undated_change_is_visible_after_maximum_index_age() -> None:
    indexed_service = IndexedService(seconds=600)
    recipient = next(
        recipient
        for recipient in indexed_service.list_active_recipients()
        if recipient.primary_account and recipient.primary_account.type == "wallet"
    )
    assert recipient.id in await indexed_service.list_ids(payoutMethod="wallet", orderBy="city")
    indexed_service.remove_accounts(recipient)
    assert recipient.id in await indexed_service.list_ids(payoutMethod="wallet", orderBy="city")
    indexed_service.clock.now += 600
    assert recipient.id not in await indexed_service.list_ids(payoutMethod="wallet", orderBy="city")


async def test_full_scan_counts_undated_changes() -> None:
    """The metric shows whether the service's dates can be relied upon."""
    indexed_service = IndexedService(seconds=600)
    await indexed_service.query_index(**CITY_ORDER)
    stale_count_before = read_metric("payout_gateway_recipient_cache_stale_entries_total")
    recipients = [
        recipient
        for recipient in indexed_service.list_active_recipients()
        if recipient.primary_account
    ]
    indexed_service.remove_accounts(recipients[0])
    indexed_service.rename(recipients[1])
    indexed_service.clock.now += 600
    await indexed_service.check_equal_to_scan(**CITY_ORDER)
    assert (
        read_metric("payout_gateway_recipient_cache_stale_entries_total") - stale_count_before == 1
    )
    indexed_service.clock.now += 600
    await indexed_service.check_equal_to_scan(**CITY_ORDER)
    assert (
        read_metric("payout_gateway_recipient_cache_stale_entries_total") - stale_count_before == 1
    )


def read_metric(name: str, **labels: str) -> float:
    """Read the environment's metric; other tests count into it, too."""
    sample = REGISTRY.get_sample_value(name, {"environment": TENANT.environment, **labels})
    return sample or 0


async def test_scans_are_counted_by_outcome() -> None:
    metric_name = "payout_gateway_recipient_cache_refreshes_total"
    counts_before = {
        outcome: read_metric(metric_name, outcome=outcome)
        for outcome in ("success", "failed", "cancelled")
    }
    indexed_service = IndexedService()

    def fail_ninth_call(_call: Call) -> None:
        if len(indexed_service.calls) == 9:
            raise Unreachable("gone")

    indexed_service.before_call = fail_ninth_call
    with pytest.raises(Unreachable):
        await indexed_service.query_index(**CITY_ORDER)
    await indexed_service.check_equal_to_scan(**CITY_ORDER)
    indexed_service.clock.now += 0.8 * indexed_service.seconds
    await indexed_service.query_index(**CITY_ORDER)  # and another scan begins in the background
    await indexed_service.indexes.close()
    counts_after = {outcome: read_metric(metric_name, outcome=outcome) for outcome in counts_before}
    assert {
        outcome: counts_after[outcome] - counts_before[outcome] for outcome in counts_before
    } == {
        "success": 1,
        "failed": 1,
        "cancelled": 1,
    }


async def test_used_index_is_refreshed_in_background_before_it_expires() -> None:
    indexed_service = IndexedService(seconds=600)
    recipient = next(
        recipient
        for recipient in indexed_service.list_active_recipients()
        if recipient.primary_account and recipient.primary_account.type == "wallet"
    )
    await indexed_service.query_index(**CITY_ORDER)
    indexed_service.remove_accounts(recipient)
    indexed_service.clock.now += 500
    assert recipient.id in await indexed_service.list_ids(payoutMethod="wallet", orderBy="city")
    await wait_until(
        lambda: not [task for task in asyncio.all_tasks() if task.get_name() == "index"]
    )
    indexed_service.clock.now += 200  # it would have expired without that scan
    assert await indexed_service.count_query_calls(**CITY_ORDER) == 2
    assert recipient.id not in await indexed_service.list_ids(payoutMethod="wallet", orderBy="city")


async def test_change_listed_late_is_found_by_later_increment() -> None:
    """The service dates a change before it lists it; another, dated later, is listed first."""
    indexed_service = IndexedService()
    await indexed_service.query_index(**CITY_ORDER)
    late_recipient, prompt_recipient = (
        indexed_service.pick_recipient(3),
        indexed_service.pick_recipient(4),
    )
    indexed_service.time += 1
    earlier_date = indexed_service.tenant.now()
    indexed_service.rename(prompt_recipient)
    await indexed_service.query_index(**CITY_ORDER)
    late_recipient.fields = {
        **late_recipient.fields,
        "address": {**late_recipient.address, "city": "Zwolle"},
    }
    late_recipient.updated_at = earlier_date
    indexed_service.clock.now += CHANGE_DELAY_SECONDS / 2
    await indexed_service.check_equal_to_scan(**CITY_ORDER)


async def test_future_date_does_not_hide_earlier_changes() -> None:
    indexed_service = IndexedService()
    indexed_service.pick_recipient(8).updated_at = datetime(2099, 1, 1, tzinfo=UTC)
    await indexed_service.query_index(**CITY_ORDER)
    for _ in range(4):
        indexed_service.clock.now += CHANGE_DELAY_SECONDS
        indexed_service.time += CHANGE_DELAY_SECONDS
        indexed_service.rename(indexed_service.pick_recipient(50))
        await indexed_service.check_equal_to_scan(**CITY_ORDER)
        assert await indexed_service.count_query_calls(**CITY_ORDER) == 2


async def test_increments_advance_to_last_change() -> None:
    """A thousand simultaneous changes are not read again by every later query."""
    indexed_service = IndexedService(1000, page=250)
    await indexed_service.query_index(**CITY_ORDER)
    for recipient in indexed_service.list_active_recipients()[:700]:
        indexed_service.set_update_time(recipient)
    assert await indexed_service.count_query_calls(**CITY_ORDER) > 3
    indexed_service.clock.now += CHANGE_DELAY_SECONDS
    await indexed_service.query_index(**CITY_ORDER)
    assert await indexed_service.count_query_calls(**CITY_ORDER) == 2
    await indexed_service.check_equal_to_scan(**CITY_ORDER)


async def test_many_recipients_of_one_date_are_all_read() -> None:
    indexed_service = IndexedService(page=7)
    for recipient in indexed_service.list_active_recipients()[:150]:
        recipient.updated_at = datetime(2025, 1, 1, tzinfo=UTC)
    await indexed_service.check_equal_to_scan(**CITY_ORDER)
    for number in (2, 90, 120):
        indexed_service.archive(indexed_service.pick_recipient(number))
    await indexed_service.check_equal_to_scan(**CITY_ORDER)


# Failures


@pytest.mark.parametrize("call_offset", [1, 2])
async def test_failed_increment_is_an_error_and_repeated_by_the_next(call_offset: int) -> None:
    indexed_service = IndexedService()
    await indexed_service.query_index(**CITY_ORDER)
    recipient = indexed_service.pick_recipient(30)
    indexed_service.remove_accounts(recipient)
    indexed_service.indexes.record_changed_recipient(TENANT, recipient.id)
    failing_call_count = len(indexed_service.calls) + call_offset

    def fail_call(_call: Call) -> None:
        if len(indexed_service.calls) == failing_call_count:
            raise Unreachable("gone")

    indexed_service.before_call = fail_call
    with pytest.raises(Unreachable):
        await indexed_service.query_index(**CITY_ORDER)
    await indexed_service.check_equal_to_scan(**CITY_ORDER)


def remove_meta(body: dict[str, Any], _: Mapping[str, str]) -> dict[str, Any]:
    return {"recipients": body["recipients"]}


def remove_update_dates(body: dict[str, Any], _: Mapping[str, str]) -> dict[str, Any]:
    return {**body, "recipients": [{**row, "updatedAt": None} for row in body["recipients"]]}


def reverse_update_order(body: dict[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    rows = body["recipients"]
    return {**body, "recipients": rows[::-1] if query.get("orderBy") == "updatedAt" else rows}


@pytest.mark.parametrize("change_body", [remove_meta, remove_update_dates, reverse_update_order])
async def test_unindexable_service_is_scanned_each_time(change_body: Any) -> None:
    indexed_service = IndexedService(transform=change_body)
    for _ in range(2):
        assert await indexed_service.list_ids(**CITY_ORDER) == [
            row["id"] for row in await scan_rows(indexed_service)
        ]
    assert indexed_service.cached_count == 0


async def scan_rows(indexed_service: IndexedService) -> list[Any]:
    return [*(await indexed_service.scan_list(pageSize="1000", **CITY_ORDER)).rows]


async def test_service_without_update_order_is_scanned_each_time() -> None:
    indexed_service = IndexedService()

    def refuse_update_order(call: Call) -> None:
        if call.query.get("orderBy") == "updatedAt":
            raise Refused(400, [Problem("invalid_field", "No.", "orderBy")])

    indexed_service.before_call = refuse_update_order
    await indexed_service.check_equal_to_scan(**CITY_ORDER)
    assert indexed_service.cached_count == 0


async def test_service_with_small_pages_is_indexed_by_its_own_page_size() -> None:
    indexed_service = IndexedService(page=20)

    def refuse_large_pages(call: Call) -> None:
        if int(call.query.get("pageSize", "10")) > 100:
            raise Refused(400, [Problem("invalid_field", "Too many.", "pageSize")])

    indexed_service.before_call = refuse_large_pages
    await indexed_service.check_equal_to_scan(**CITY_ORDER)
    assert await indexed_service.count_query_calls(**CITY_ORDER) == 2
    indexed_service.archive(indexed_service.pick_recipient(7))
    indexed_service.create(2)
    assert await indexed_service.count_query_calls(**CITY_ORDER) == 3
    await indexed_service.check_equal_to_scan(**CITY_ORDER)


async def test_cancelled_client_does_not_end_its_scan() -> None:
    """Otherwise clients with short timeouts would restart the scan forever."""
    indexed_service = IndexedService()
    is_eighth_call_reached, may_continue = asyncio.Event(), asyncio.Event()
    answer_call = indexed_service.answer_call

    async def answer_slowly(call: Call) -> Any:
        if len(indexed_service.calls) == 8:
            is_eighth_call_reached.set()
            await may_continue.wait()
        return await answer_call(call)

    cancelled_query = asyncio.create_task(
        indexed_service.listing.query(
            indexed_service.build_query(CITY_ORDER), answer_slowly, TENANT
        )
    )
    await is_eighth_call_reached.wait()
    cancelled_query.cancel()
    await asyncio.gather(cancelled_query, return_exceptions=True)
    may_continue.set()
    await wait_until(lambda: indexed_service.indexes.has_fresh_cache(TENANT))
    assert await indexed_service.count_query_calls(**CITY_ORDER) == 2


async def test_waiter_of_dropped_cache_is_answered_and_nothing_stays() -> None:
    indexed_service = IndexedService()
    is_eighth_call_reached, may_continue = asyncio.Event(), asyncio.Event()
    answer_call = indexed_service.answer_call

    async def answer_slowly(call: Call) -> Any:
        if len(indexed_service.calls) == 8 and not may_continue.is_set():
            is_eighth_call_reached.set()
            await may_continue.wait()
        return await answer_call(call)

    waiting_query = asyncio.create_task(
        indexed_service.listing.query(
            indexed_service.build_query(CITY_ORDER), answer_slowly, TENANT
        )
    )
    await is_eighth_call_reached.wait()
    await indexed_service.indexes.drop_expired_and_erased({build_erasure_count_name(TENANT): 1})
    may_continue.set()
    result = await waiting_query
    assert result.meta["records"] == (await indexed_service.scan_list(**CITY_ORDER)).meta["records"]
    assert not indexed_service.indexes.has_fresh_cache(TENANT)


def replace_accounts_with_text(body: dict[str, Any], _: Mapping[str, str]) -> dict[str, Any]:
    return {**body, "recipients": [{**row, "accounts": ["none"]} for row in body["recipients"]]}


async def test_rows_of_other_shape_are_scanned_per_query() -> None:
    indexed_service = IndexedService(transform=replace_accounts_with_text)
    result = await indexed_service.query_index(orderBy="city", pageSize="1000")
    assert len(result.rows) == len(indexed_service.list_active_recipients())
    assert indexed_service.cached_count == 0


# Limits


async def test_recipient_uses_less_than_two_kilobytes() -> None:
    indexed_service = IndexedService(400)
    recipients = [
        json_codec.dumps(views.build_recipient(indexed_service.tenant, recipient))
        for recipient in indexed_service.list_active_recipients()
    ]
    tracemalloc.start()
    try:
        entries = [RecipientEntry(json_codec.loads(text)) for text in recipients]
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used_bytes / len(entries) < 2048


async def test_list_above_capacity_is_scanned_each_time() -> None:
    indexed_service = IndexedService(index_capacity=100)
    await indexed_service.check_equal_to_scan(**CITY_ORDER)
    assert indexed_service.cached_count == 0
    calls_before = len(indexed_service.calls)
    await indexed_service.check_equal_to_scan(**CITY_ORDER)
    assert not [
        listed_item
        for listed_item in indexed_service.calls[calls_before:]
        if listed_item.query.get("orderBy") == "updatedAt"
    ]


async def test_index_that_outgrows_capacity_is_dropped() -> None:
    indexed_service = IndexedService(index_capacity=MAX_INDEXED)
    await indexed_service.query_index(**CITY_ORDER)
    assert indexed_service.cached_count > 0
    for number in range(60):
        indexed_service.create(number)
    await indexed_service.check_equal_to_scan(**CITY_ORDER)
    assert indexed_service.cached_count == 0


async def test_idle_index_is_evicted_and_used_one_is_not() -> None:
    indexed_service = IndexedService(index_capacity=MAX_INDEXED + 50)
    await indexed_service.query_index(**CITY_ORDER)
    first = indexed_service.cached_count
    await indexed_service.listing.query(
        indexed_service.build_query(CITY_ORDER), indexed_service.answer_call, OTHER_TENANT
    )
    assert (
        indexed_service.indexes.has_fresh_cache(TENANT),
        indexed_service.indexes.has_fresh_cache(OTHER_TENANT),
    ) == (True, False)
    third_tenant = Tenant("third", "sandbox")
    indexed_service.clock.now += EVICTABLE_AFTER_SECONDS
    await indexed_service.listing.query(
        indexed_service.build_query(CITY_ORDER), indexed_service.answer_call, third_tenant
    )
    assert (
        indexed_service.indexes.has_fresh_cache(TENANT),
        indexed_service.indexes.has_fresh_cache(third_tenant),
    ) == (False, True)
    assert indexed_service.cached_count == first


async def test_index_keeps_only_fields_of_answers_and_queries() -> None:
    indexed_service = IndexedService(50)
    row = views.build_recipient(indexed_service.tenant, indexed_service.pick_recipient(0)) | {
        "secretThing": "x"
    }
    field_names = {*select_answer_fields(row), *RecipientEntry.__slots__}
    assert not field_names & {"secretThing", "tags", "contactEmails", "placeOfBirth", "routeType"}


async def test_indexed_row_answers_like_the_full_row() -> None:
    indexed_service = IndexedService(120)
    rows = [
        views.build_recipient(indexed_service.tenant, recipient)
        for recipient in indexed_service.tenant.recipients.values()
    ]
    rows = [json_codec.loads(json_codec.dumps(row)) for row in rows]
    assert all(
        build_legacy_recipient(select_answer_fields(row), {}, LegacyOptions())
        == build_legacy_recipient(row, {}, LegacyOptions())
        for row in rows
    )
    for query in SAMPLE_QUERIES:
        list_query = build_list_query(query, {})
        for row in rows:
            query_fields = RecipientEntry(row)
            assert list_query.is_match(query_fields) == list_query.is_match(row), query
            assert list_query.sort_key(query_fields) == list_query.sort_key(row), query
            assert list_query.is_hidden(query_fields) == list_query.is_hidden(row), query


# Random queries and changes

SAMPLE_QUERIES: list[dict[str, str]] = [
    {**filters, **sort_options}
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
    for sort_options in (
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


def apply_change(indexed_service: IndexedService, change: str, number: int) -> None:
    """Apply one change, outside the gateway or through it."""
    recipient = indexed_service.pick_recipient(number)
    match change:
        case "rename":
            indexed_service.rename(recipient)
        case "archive":
            indexed_service.archive(recipient)
        case "vanish":
            # A service that lists its archive reveals this by neither a date nor a count.
            indexed_service.archive(recipient, updates_date=indexed_service.lists_archived)
        case "create":
            indexed_service.create(number)
        case "delete":
            indexed_service.archive(recipient)
            indexed_service.object_states[recipient.id] = {"deleted": True}
        case "disable":
            recipient.status = "suspended"
            indexed_service.set_update_time(recipient)
            indexed_service.object_states[recipient.id] = {"status": "disabled"}
        case "accounts":
            indexed_service.remove_accounts(recipient)
            indexed_service.indexes.record_changed_recipient(TENANT, recipient.id)
        case "later":
            indexed_service.clock.now += number % 20


async def check_history(
    indexed_service: IndexedService, history: list[tuple[list[tuple[str, int]], dict[str, str]]]
) -> None:
    await indexed_service.query_index(**CITY_ORDER)
    for changes, query in history:
        for change, number in changes:
            apply_change(indexed_service, change, number)
        await indexed_service.check_equal_to_scan(**query)


@given(
    history=st.lists(
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
    history: list[tuple[list[tuple[str, int]], dict[str, str]]],
    *,
    lists_archived: bool,
    filters_archived: bool,
) -> None:
    indexed_service = IndexedService(
        90, page=20, lists_archived=lists_archived, filters_archived=filters_archived
    )
    asyncio.run(check_history(indexed_service, history))


@dataclass
class MonitoredCity:
    """Records who lived in a city at each moment; an answer may reflect any of these."""

    indexed_service: IndexedService
    states: list[frozenset[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.record_state()

    def record_state(self) -> None:
        oslo_ids = (
            recipient.id
            for recipient in self.indexed_service.list_active_recipients()
            if recipient.address.get("city") == "Oslo"
        )
        self.states.append(frozenset(oslo_ids).difference(self.indexed_service.object_states))

    async def check_query(self) -> None:
        first_state = len(self.states) - 1
        found_ids = set(await self.indexed_service.list_ids(city="Oslo", orderBy="id"))
        observed_states = self.states[first_state:]
        assert (
            frozenset.intersection(*observed_states)
            <= found_ids
            <= frozenset.union(*observed_states)
        )


@pytest.mark.parametrize("seed", range(4))
async def test_concurrent_queries_and_changes_show_no_impossible_state(seed: int) -> None:
    """Changes go through the gateway: each is complete before its client's next query."""
    random_source, indexed_service = random.Random(seed), IndexedService(200, page=50)
    monitored_city = MonitoredCity(indexed_service)

    async def change() -> None:
        for _ in range(12):
            await asyncio.sleep(random_source.random() / 100)
            kind = random_source.choice(("rename", "delete", "create", "archive"))
            # Recipients created here stay: a single check could not see them come and go.
            apply_change(
                indexed_service, kind, random_source.randrange(10**6 if kind == "create" else 100)
            )
            monitored_city.record_state()

    async def query_repeatedly() -> None:
        for _ in range(4):
            try:
                await monitored_city.check_query()
            except Unreachable:  # it kept changing: an error, never a partial list
                await asyncio.sleep(random_source.random() / 100)

    await asyncio.gather(change(), *(query_repeatedly() for _ in range(4)))
    await monitored_city.check_query()
    await indexed_service.check_equal_to_scan(**CITY_ORDER)


async def test_concurrent_queries_share_one_refresh() -> None:
    indexed_service = IndexedService()
    await indexed_service.query_index(**CITY_ORDER)
    calls_before = len(indexed_service.calls)
    await asyncio.gather(*(indexed_service.query_index(**CITY_ORDER) for _ in range(10)))
    assert len(indexed_service.calls) - calls_before <= 4


# Dropped on request


@asynccontextmanager
async def open_polled_store(
    folder: Path, indexed_service: IndexedService
) -> AsyncIterator[tuple[ChangePoller, Store]]:
    state = State(url=f"sqlite:///{folder}/gateway.db", encryption_key_file=folder / "gateway.key")
    async with open_store(state) as store:
        change_poller = ChangePoller(store)
        change_poller.add_listener(indexed_service.indexes.drop_expired_and_erased)
        yield change_poller, store


async def test_erasing_a_recipient_drops_the_index(tmp_path: Path) -> None:
    indexed_service = IndexedService()
    async with open_polled_store(tmp_path, indexed_service) as (change_poller, store):
        await change_poller.poll()
        await indexed_service.query_index(**CITY_ORDER)
        await erase_recipient(store, OTHER_TENANT, "R-1")
        await change_poller.poll()
        assert indexed_service.indexes.has_fresh_cache(TENANT)
        await erase_recipient(store, TENANT, "R-1")
        await change_poller.poll()
        assert indexed_service.cached_count == 0


async def test_erasure_before_process_start_is_ignored(tmp_path: Path) -> None:
    indexed_service = IndexedService()
    async with open_polled_store(tmp_path, indexed_service) as (change_poller, store):
        await erase_recipient(store, TENANT, "R-1")
        await change_poller.poll()
        await indexed_service.query_index(**CITY_ORDER)
        await change_poller.poll()
        assert indexed_service.indexes.has_fresh_cache(TENANT)


async def test_expired_idle_index_is_dropped() -> None:
    indexed_service = IndexedService(seconds=60)
    await indexed_service.query_index(**CITY_ORDER)
    indexed_service.clock.now += 60
    await indexed_service.indexes.drop_expired_and_erased({})
    assert indexed_service.cached_count > 0
    indexed_service.clock.now += EVICTABLE_AFTER_SECONDS
    await indexed_service.indexes.drop_expired_and_erased({})
    assert indexed_service.cached_count == 0
