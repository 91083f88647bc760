"""Recipient look-ups by email, one for each address, and pages of batches that are used again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gateway.reads.recent_pages import RecentPages
from gateway.storage.tenants import Tenant
from mappings.effects import Call
from tests.operator_commands import wait_until_async
from tests.payouts import create_recipient, open_gateway_and_service, request_successfully
from tests.recording_service import open_recording_service
from tests.running_gateway import open_gateway
from tests.simulator import Service

TENANT, OTHER_TENANT = Tenant("acme", "live"), Tenant("bolt", "live")


def count_lookups(service: Service) -> int:
    calls = service.list_requests("GET", "/v1/recipients")
    return sum("email=" in call.target for call in calls)


def build_batch_body(emails: Iterable[str]) -> dict[str, Any]:
    payments = [{"recipient": {"email": email}, "sourceAmount": "10.00"} for email in emails]
    return {"sourceCurrency": "USD", "payments": payments}


async def test_each_of_more_than_a_thousand_addresses_is_looked_up_once(tmp_path: Path) -> None:
    """The legacy document states no maximum."""
    service = Service(seed=1)
    recipients = service.seed_recipients(1001)
    for recipient in recipients:
        recipient.status = "active"
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        emails = [recipient.fields["email"] for recipient in recipients]
        body = build_batch_body([*emails, *emails[:99]])
        response = await request_successfully(gateway, "POST", "/batches", body)
        assert response["batch"]["totalPayments"] == 1100
        assert response["batch"]["amount"] == "11000.00"
        assert count_lookups(service) == 1001


async def test_recipient_change_is_visible_to_next_batch(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway, "p0")
        await request_successfully(
            gateway, "POST", "/batches", build_batch_body(["p0@example.com"])
        )
        await request_successfully(
            gateway, "PATCH", f"/recipients/{recipient}", {"email": "new@example.com"}
        )
        response = await gateway.request(
            "POST", "/v1/batches", build_batch_body(["p0@example.com"])
        )
        assert response.status == 406
        assert response.body["errors"][0]["field"] == "payments[0].recipient.email"
        await create_recipient(gateway, "p0")
        await request_successfully(
            gateway, "POST", "/batches", build_batch_body(["p0@example.com"])
        )


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
        await request_successfully(
            gateway, "POST", "/batches", build_batch_body(["p0@example.com"])
        )
        is_due.set()

        async def is_change_confirmed() -> bool:
            return (await gateway.request("PATCH", *change)).status == 200

        await wait_until_async(is_change_confirmed)
        assert len(recording_service.list_writes("PATCH")) == 1, "its outcome was determined"
        response = await gateway.request(
            "POST", "/v1/batches", build_batch_body(["p0@example.com"])
        )
        assert response.status == 406, response.text


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
