"""Recipient look-ups by email: one per address, cached until the next write."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from cachetools import TTLCache

from gateway.reads.recent_reads import TTL_SECONDS, RecentPages, RecentReads
from gateway.simulator import Service
from gateway.storage.tenants import Tenant
from mappings.effects import Call
from tests.operator_commands import wait_until_async
from tests.payouts import create_recipient, open_gateway_and_service, request_successfully
from tests.recording_service import open_recording_service
from tests.running_gateway import GatewayUnderTest, open_gateway

TENANT, OTHER_TENANT = Tenant("acme", "live"), Tenant("bolt", "live")
CALL = Call("GET", "/recipients", query={"email": "ada@example.com"}, cache_seconds=TTL_SECONDS)
ANSWER: dict[str, Any] = {"recipients": [{"id": "R-1"}]}


def test_cached_answer_is_reused_for_same_tenant_and_query_only() -> None:
    cache = RecentReads()
    cache.put(TENANT, CALL, ANSWER, cache.count_changes(TENANT))
    assert cache.get(TENANT, CALL) is ANSWER
    assert cache.get(OTHER_TENANT, CALL) is None
    assert cache.get(Tenant("acme", "sandbox"), CALL) is None
    assert cache.get(TENANT, Call("GET", "/recipients", query={"email": "bob@example.com"})) is None


def test_change_invalidates_cache_of_its_tenant_only() -> None:
    cache = RecentReads()
    for tenant in (TENANT, OTHER_TENANT):
        cache.put(tenant, CALL, ANSWER, cache.count_changes(tenant))
    cache.invalidate(TENANT)
    assert cache.get(TENANT, CALL) is None
    assert cache.get(OTHER_TENANT, CALL) is ANSWER


def test_answer_requested_before_a_change_is_not_cached() -> None:
    cache = RecentReads()
    change_count = cache.count_changes(TENANT)
    cache.invalidate(TENANT)
    cache.put(TENANT, CALL, ANSWER, change_count)
    assert cache.get(TENANT, CALL) is None


def test_answer_is_cached_for_sixty_seconds() -> None:
    recent_reads, now = RecentReads(), [1000.0]
    recent_reads._answers = TTLCache(10, TTL_SECONDS, timer=lambda: now[0])
    recent_reads.put(TENANT, CALL, ANSWER, recent_reads.count_changes(TENANT))
    now[0] += 59.9
    assert recent_reads.get(TENANT, CALL) is ANSWER
    now[0] += 0.2
    assert recent_reads.get(TENANT, CALL) is None


@pytest.mark.parametrize("recipients", [[], [{"id": "R-1"}, {"id": "R-2"}]])
def test_lookup_without_unique_recipient_is_not_cached(recipients: list[Any]) -> None:
    cache = RecentReads()
    cache.put(TENANT, CALL, {"recipients": recipients}, cache.count_changes(TENANT))
    assert cache.get(TENANT, CALL) is None


def test_cache_is_off_if_other_processes_may_write() -> None:
    cache = RecentReads(is_single_process=False)
    cache.put(TENANT, CALL, ANSWER, cache.count_changes(TENANT))
    assert cache.get(TENANT, CALL) is None


# Through the gateway


def count_lookups(service: Service) -> int:
    calls = service.list_requests("GET", "/v1/recipients")
    return sum("email=" in call.target for call in calls)


def build_batch_body(addresses: int, payments: int, amount: str = "10.00") -> dict[str, Any]:
    emails = [f"p{number % addresses}@example.com" for number in range(payments)]
    return {
        "sourceCurrency": "USD",
        "payments": [{"recipient": {"email": email}, "sourceAmount": amount} for email in emails],
    }


async def create_recipients(gateway: GatewayUnderTest, count: int) -> None:
    for number in range(count):
        await create_recipient(gateway, f"p{number}")


async def test_thousand_payments_to_two_hundred_addresses_make_two_hundred_lookups(
    tmp_path: Path,
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        await create_recipients(gateway, 200)
        response = await request_successfully(
            gateway, "POST", "/batches", build_batch_body(200, 1000)
        )
        assert response["batch"]["totalPayments"] == 1000
        assert response["batch"]["amount"] == "10000.00"
        assert count_lookups(service) == 200


async def test_lookups_are_not_repeated_until_next_write(
    tmp_path: Path,
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        await create_recipients(gateway, 3)
        body = build_batch_body(3, 6)
        body["payments"].append({"recipient": {"email": "n@example.com"}, "sourceAmount": "10.00"})
        for _ in range(3):
            assert (await gateway.request("POST", "/v1/batches", body)).status == 406
        assert count_lookups(service) == 3 + 3, (
            "a missing recipient is looked up each time: see below"
        )


async def test_recipient_that_received_an_address_elsewhere_can_be_paid_immediately(
    tmp_path: Path,
) -> None:
    """For example by the Widget, after a batch was refused because the recipient was missing."""
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        await create_recipient(gateway, "p0")
        (recipient,) = service.find_or_create_tenant().recipients.values()
        previous_email = recipient.fields["email"]
        recipient.fields["email"] = "other@example.com"
        assert (await gateway.request("POST", "/v1/batches", build_batch_body(1, 1))).status == 406
        recipient.fields["email"] = previous_email
        await request_successfully(gateway, "POST", "/batches", build_batch_body(1, 1))


async def test_recipient_change_is_visible_to_next_batch(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway, "p0")
        await request_successfully(gateway, "POST", "/batches", build_batch_body(1, 1))
        await request_successfully(
            gateway, "PATCH", f"/recipients/{recipient}", {"email": "new@example.com"}
        )
        response = await gateway.request("POST", "/v1/batches", build_batch_body(1, 1))
        assert response.status == 406
        assert response.body["errors"][0]["field"] == "payments[0].recipient.email"
        await create_recipient(gateway, "p0")
        await request_successfully(gateway, "POST", "/batches", build_batch_body(1, 1))


async def test_delayed_recipient_change_is_visible_to_next_batch(tmp_path: Path) -> None:
    """The change was not answered, and a batch looked the recipient up before it was executed."""
    is_due = asyncio.Event()
    async with (
        open_recording_service(Service(seed=1)) as recording_service,
        open_gateway(tmp_path, recording_service.url, upstream={"timeout_seconds": 1}) as gateway,
    ):
        change = (
            f"/v1/recipients/{await create_recipient(gateway, 'p0')}",
            {"email": "n@example.com"},
        )
        recording_service.add_fault("late", "PATCH", due_event=is_due)
        assert (await gateway.request("PATCH", *change)).status == 500
        await request_successfully(gateway, "POST", "/batches", build_batch_body(1, 1))
        is_due.set()

        async def is_change_confirmed() -> bool:
            return (await gateway.request("PATCH", *change)).status == 200

        await wait_until_async(is_change_confirmed)
        assert len(recording_service.list_writes("PATCH")) == 1, "its outcome was determined"
        response = await gateway.request("POST", "/v1/batches", build_batch_body(1, 1))
        assert response.status == 406, response.text


async def test_next_batch_to_same_addresses_makes_no_lookup(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        await create_recipients(gateway, 3)
        for _ in range(2):
            await request_successfully(gateway, "POST", "/batches", build_batch_body(3, 6))
        assert count_lookups(service) == 3


async def test_page_is_read_again_when_it_is_too_old() -> None:
    """Its age counts from when the call was sent: an object made since may be missing."""
    now, sent = 100.0, 0

    async def send() -> dict[str, Any]:
        nonlocal now, sent
        sent, now = sent + 1, now + 1.5  # the service takes so long
        return {"batches": [sent]}

    pages = RecentPages(lambda: now)
    call = Call("GET", "/batches", query={"page": "1"})
    assert await pages.read(TENANT, call, 0.0, send) == {"batches": [1]}
    assert await pages.read(TENANT, call, 1.5, send) == {"batches": [1]}
    assert await pages.read(TENANT, call, 1.4, send) == {"batches": [2]}
    assert await pages.read(OTHER_TENANT, call, 2.0, send) == {"batches": [3]}
    other_page = Call("GET", "/batches", query={"page": "2"})
    assert await pages.read(TENANT, other_page, 2.0, send) == {"batches": [4]}
