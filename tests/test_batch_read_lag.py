"""Batches and payments that the service shows a little later than it confirms them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.operator_commands import open_operated_gateway
from tests.payouts import (
    create_batch,
    create_recipient,
    load_payment_ids,
    open_gateway_and_service,
    request_successfully,
)
from tests.service_summaries import hide_path, load_service_summary, show_summary
from tests.signed_requests import send_signed
from tests.simulator import Fault, Service


async def test_batch_just_created_and_deleted_elsewhere_is_not_found(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "10.00")
        (upstream,) = service.find_or_create_tenant().batches
        assert (await send_signed(gateway, "DELETE", f"/batches/{upstream}")).status == 200
        response = await gateway.request("GET", f"/v1/batches/{batch}")
        assert (response.status, response.body["errors"][0]["code"]) == (404, "not_found")


async def test_payment_just_added_is_found_by_its_id_alone(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient)
        summary = await load_service_summary(gateway, service)
        added = {"recipient": {"id": recipient}, "sourceAmount": "20.00"}
        path = f"/batches/{batch}/payments"
        payment = (await request_successfully(gateway, "POST", path, added))["payment"]["id"]
        hide_path(service, "/v1/payments/*")
        answer = await request_successfully(gateway, "GET", f"/payments/{payment}")
        assert (answer["payment"]["id"], answer["payment"]["batch"]["id"]) == (payment, batch)
        show_summary(service, summary)
        assert summary["batchSummary"]["payments"] == []
        response = await gateway.request("GET", f"/v1/payments/{payment}")
        assert (response.status, response.body["errors"][0]["code"]) == (404, "not_found")
        service.faults.clear()
        await request_successfully(gateway, "DELETE", f"{path}/{payment}")
        assert await load_payment_ids(gateway, batch) == []
        response = await gateway.request("GET", f"/v1/payments/{payment}")
        assert (response.status, response.body["errors"][0]["code"]) == (404, "not_found")


async def test_payment_that_nothing_shows_yet_has_an_id_by_which_it_is_found(
    tmp_path: Path,
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient)
        summary_path, path = "/v1/batch/*/summary", f"/batches/{batch}/payments"
        old_summary = await load_service_summary(gateway, service)
        service.faults += [
            Fault("POST", "/v1/batches/*/payments", status=200, body=b'{"ok":true}', executes=True),
            Fault("GET", summary_path),  # read before the payment is added
            Fault("GET", summary_path, status=503, times=100),
        ]
        added = {"recipient": {"id": recipient}, "sourceAmount": "20.00"}
        payment = (await request_successfully(gateway, "POST", path, added))["payment"]["id"]
        service.faults.clear()
        show_summary(service, old_summary)
        response = await gateway.request("GET", f"/v1{path}/{payment}")
        assert (response.status, "Retry-After" in response.headers) == (500, True)
        service.faults.clear()
        answer = await request_successfully(gateway, "GET", f"{path}/{payment}")
        assert answer["payment"]["sourceAmount"] == "20.00"
        assert await request_successfully(gateway, "GET", f"/payments/{payment}") == answer
        change = {"id": payment, "sourceAmount": "30.00"}
        await request_successfully(
            gateway, "PATCH", f"/batches/{batch}", {"update_payments": [change]}
        )
        await request_successfully(gateway, "PATCH", f"{path}/{payment}", {"sourceAmount": "40.00"})
        answer = await request_successfully(gateway, "GET", f"{path}/{payment}")
        assert answer["payment"]["sourceAmount"] == "40.00"
        await request_successfully(gateway, "DELETE", f"{path}/{payment}")
        assert await load_payment_ids(gateway, batch) == []


async def test_submitted_draft_that_is_not_shown_yet_is_not_missing(tmp_path: Path) -> None:
    service, upstream = Service(seed=1), {"inferred_operations": "avoid"}
    async with open_gateway_and_service(tmp_path, service, upstream=upstream) as (gateway, _):
        batch = await create_batch(gateway, await create_recipient(gateway), "10.00")
        (payment,) = await load_payment_ids(gateway, batch)
        path = f"/batches/{batch}"
        change = {"sourceAmount": "30.00"}
        await request_successfully(gateway, "PATCH", f"{path}/payments/{payment}", change)
        hide_path(service, "/v1/batch/*/summary")
        quote = (await request_successfully(gateway, "POST", f"{path}/generate-quote"))["batch"]
        assert (quote["id"], quote["amount"], quote["status"]) == (batch, "30.00", "open")
        assert [row["id"] for row in quote["payments"]["payments"]] == [payment]
        later_requests: list[tuple[str, str, Any]] = [
            ("GET", "", None),
            ("GET", f"/payments/{payment}", None),
            ("POST", "/generate-quote", None),
            ("PATCH", f"/payments/{payment}", change),
            ("POST", "/start-processing", None),
        ]
        for method, action, body in later_requests:
            response = await gateway.request(method, f"/v1{path}{action}", body)
            assert (response.status, "Retry-After" in response.headers) == (500, True)
        assert service.batch_starts == []
        service.faults.clear()
        await request_successfully(gateway, "POST", f"{path}/start-processing")
        assert await load_payment_ids(gateway, batch) == [payment]


@pytest.mark.parametrize("change", ["add", "edit"])
async def test_start_is_not_refused_for_a_change_that_the_service_does_not_show_yet(
    change: str, tmp_path: Path
) -> None:
    service, legacy = Service(seed=1), {"verify_before_start": "refuse"}
    async with open_gateway_and_service(tmp_path, service, legacy=legacy) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "10.00")
        summary = await load_service_summary(gateway, service)
        if change == "add":
            added = {"recipient": {"id": recipient}, "sourceAmount": "20.00"}
            await request_successfully(gateway, "POST", f"/batches/{batch}/payments", added)
        else:
            (payment,) = await load_payment_ids(gateway, batch)
            path = f"/batches/{batch}/payments/{payment}"
            await request_successfully(gateway, "PATCH", path, {"sourceAmount": "30.00"})
        show_summary(service, summary)
        response = await gateway.request("POST", f"/v1/batches/{batch}/start-processing")
        assert (response.status, "Retry-After" in response.headers) == (500, True)
        assert service.batch_starts == []
        service.faults.clear()
        answer = await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        assert answer["batch"]["amount"] == "30.00"


@pytest.mark.parametrize("has_bare_response", [False, True])
async def test_batch_that_is_shown_as_before_its_start_is_processing_and_not_started_again(
    has_bare_response: bool, tmp_path: Path
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "10.00")
        show_summary(service, await load_service_summary(gateway, service))
        path = f"/batches/{batch}/start-processing"
        if has_bare_response:
            (current_id,) = service.find_or_create_tenant().batches
            current_path, body = f"/v1/batches/{current_id}/start-processing", b'{"ok":true}'
            service.faults.append(Fault("POST", current_path, 200, body, executes=True))
        answer = await request_successfully(gateway, "POST", path)
        assert answer["batch"]["status"] == "processing"
        assert answer["batch"]["sentAt"]
        read_path = f"/batches/{batch}"
        reads = [
            (await request_successfully(gateway, "GET", read_path))["batch"],
            (await request_successfully(gateway, "GET", f"{read_path}/summary"))["batchSummary"],
            (await request_successfully(gateway, "GET", "/batches"))["batches"][0],
        ]
        assert [each["status"] for each in reads] == ["processing"] * 3
        assert all(each["sentAt"] for each in reads)
        requests = [each for each in service.requests if each.method == "POST"]
        response = await gateway.request("POST", f"/v1{path}")
        assert (response.status, response.body["errors"][0]["code"]) == (406, "invalid_status")
        assert [each for each in service.requests if each.method == "POST"] == requests


@pytest.mark.parametrize("is_dated", [True, False])
async def test_reading_from_before_an_add_does_not_prove_that_its_payment_was_deleted(
    is_dated: bool, tmp_path: Path
) -> None:
    """Neither if the service does not show when it last changed the batch."""
    service, summary_path = Service(seed=1), "/v1/batch/*/summary"
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient)
        old_summary = await load_service_summary(gateway, service)
        if not is_dated:
            del old_summary["batchSummary"]["updatedAt"]
        added = {"recipient": {"id": recipient}, "sourceAmount": "20.00"}
        path = f"/batches/{batch}/payments"
        payment = (await request_successfully(gateway, "POST", path, added))["payment"]["id"]
        service.faults += [
            Fault("GET", summary_path),  # by which the deletion finds its payment
            Fault("DELETE", "/v1/batches/*/payments/*", close="before"),
        ]
        show_summary(service, old_summary)
        response = await gateway.request("DELETE", f"/v1{path}/{payment}")
        assert (response.status, "Retry-After" in response.headers) == (500, True)
        service.faults.clear()
        assert await load_payment_ids(gateway, batch) == [payment]


async def test_deletion_without_a_response_is_proved_when_readings_are_up_to_date(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        gateway, service = setup.gateway, setup.service
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "10.00", "11.00")
        payment, _ = await load_payment_ids(gateway, batch)
        setup.add_fault("DELETE", "/v1/batches/*/payments/*", close="after")
        deletion = ("DELETE", f"/v1/batches/{batch}/payments/{payment}")
        assert (await gateway.request(*deletion)).status == 500
        summary = await load_service_summary(gateway, service)
        del summary["batchSummary"]["updatedAt"]
        show_summary(service, summary)
        assert (await gateway.request(*deletion)).status == 500
        await setup.age_sent_writes()
        response = await gateway.request(*deletion)
        assert (response.status, response.headers["Idempotent-Replayed"]) == (200, "true")
        assert setup.count_calls("DELETE", "/v1/batches/*/payments/*") == 1


@pytest.mark.parametrize("is_dated", [True, False])
async def test_reading_from_before_a_change_does_not_prove_that_it_was_taken_back(
    is_dated: bool, tmp_path: Path
) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        gateway, service = setup.gateway, setup.service
        recipient = await create_recipient(gateway)
        batch_id = await create_batch(gateway, recipient, "10.00")
        (payment_id,) = await load_payment_ids(gateway, batch_id)
        path = f"/batches/{batch_id}/payments/{payment_id}"
        old_summary = await load_service_summary(gateway, service)
        await request_successfully(gateway, "PATCH", path, {"sourceAmount": "12.00"})
        new_summary = await load_service_summary(gateway, service)
        if not is_dated:
            del old_summary["batchSummary"]["updatedAt"], new_summary["batchSummary"]["updatedAt"]
        show_summary(service, new_summary)
        setup.add_fault("PATCH", "/v1/batches/*/payments/*", close="before")
        change = ("PATCH", f"/v1{path}", {"sourceAmount": "10.00"})
        assert (await gateway.request(*change)).status == 500
        service.faults.clear()
        show_summary(service, old_summary)
        assert (await gateway.request(*change)).status == 500
        service.faults.clear()
        await setup.age_sent_writes()
        assert (await gateway.request(*change)).status == 200
        (payment,) = service.require_batch(new_summary["batchSummary"]["id"]).payments.values()
        assert payment.amount == 10


@pytest.mark.parametrize("method", ["DELETE", "PATCH"])
async def test_payment_whose_id_the_service_does_not_show_yet_is_not_taken_for_removed(
    method: str, tmp_path: Path
) -> None:
    """Another currency makes the batch again, whose payments have ids of the gateway at first."""
    async with open_operated_gateway(tmp_path) as setup:
        gateway, service = setup.gateway, setup.service
        payment = {"recipient": {"id": await create_recipient(gateway)}, "sourceAmount": "10.00"}
        created = await request_successfully(gateway, "POST", "/batches", {"sourceCurrency": "USD"})
        path = f"/batches/{created['batch']['id']}"
        body = {"sourceCurrency": "EUR", "payments": [payment]}
        await request_successfully(gateway, "PATCH", path, body)
        show_summary(service, {"ok": True, "batchSummary": {"status": "open"}})
        (payment_id,) = await load_payment_ids(gateway, created["batch"]["id"])
        setup.add_fault(method, "*", close="before")
        removal: tuple[Any, ...] = ("DELETE", f"/v1{path}/payments/{payment_id}")
        if method == "PATCH":
            removal = ("PATCH", f"/v1{path}", {"remove_payments": [{"id": payment_id}]})
        assert (await gateway.request(*removal)).status == 500
        service.faults.clear()
        await setup.age_sent_writes()
        response = await gateway.request(*removal)
        batch = [*service.find_or_create_tenant().batches.values()][-1]
        assert "Idempotent-Replayed" not in response.headers
        assert (response.status == 200) == (not batch.payments), response.text
