"""Edits of a batch in front of a service that cannot edit: clients keep the ids and times of their
batch.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from time import time
from typing import Any

import pytest

from gateway.simulator.state import Payment
from mappings import batch_reads
from tests.operator_commands import open_operated_gateway, wait_until_async
from tests.payouts import (
    create_batch,
    create_recipient,
    load_payment_ids,
    open_gateway_and_service,
    request_successfully,
)
from tests.running_gateway import GatewayUnderTest
from tests.service_summaries import load_service_summary, show_summary
from tests.signed_requests import SigningClient, send_raw, send_signed
from tests.simulator import Fault, Service, ServiceOptions
from tests.state import record_statements


def list_started_payments(service: Service) -> list[Payment]:
    """Returns the payments of the only batch that was started."""
    (start,) = service.batch_starts
    return [*service.require_batch(start.batch_id).payments.values()]


async def load_creation_times(gateway: GatewayUnderTest, batch: str) -> dict[str, Any]:
    """Returns creation times of a batch and its payments, and checks that all reads agree."""
    batch_body = (await request_successfully(gateway, "GET", f"/batches/{batch}"))["batch"]
    (listed_batch,) = (await request_successfully(gateway, "GET", "/batches"))["batches"]
    payments = batch_body["payments"]["payments"]
    batch_times = {batch_body["createdAt"], listed_batch["createdAt"]}
    batch_times |= {payment["batch"]["createdAt"] for payment in payments}
    payee = payments[0]["recipient"]["id"]
    recipient_payments = (
        await request_successfully(gateway, "GET", f"/recipients/{payee}/payments")
    )["payments"]
    batch_times |= {payment["batch"]["createdAt"] for payment in recipient_payments}
    (batch_created_at,) = batch_times
    payment_times = {entry["id"]: entry["createdAt"] for entry in payments}
    assert {entry["id"]: entry["createdAt"] for entry in recipient_payments} == payment_times
    newest_first = sorted(payment_times.values(), reverse=True)
    assert [entry["createdAt"] for entry in recipient_payments] == newest_first
    return {"batch": batch_created_at, **payment_times}


async def test_creation_times_are_kept_when_an_edited_batch_is_replaced(tmp_path: Path) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False, processing_seconds=60))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "1.00", "2.00")
        first, second = await load_payment_ids(gateway, batch)
        original_times = await load_creation_times(gateway, batch)
        await request_successfully(
            gateway, "PATCH", f"/batches/{batch}/payments/{first}", {"sourceAmount": "9.00"}
        )
        payment = {"recipient": {"id": recipient}, "sourceAmount": "3.00"}
        added_payment = (
            await request_successfully(gateway, "POST", f"/batches/{batch}/payments", payment)
        )["payment"]
        assert original_times["batch"] < added_payment["createdAt"] == added_payment["updatedAt"]
        expected_times = {**original_times, added_payment["id"]: added_payment["createdAt"]}
        assert await load_creation_times(gateway, batch) == expected_times
        quoted_batch = (
            await request_successfully(gateway, "POST", f"/batches/{batch}/generate-quote")
        )["batch"]
        assert quoted_batch["createdAt"] == original_times["batch"]
        assert await load_creation_times(gateway, batch) == expected_times
        started_batch = (
            await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        )["batch"]
        assert started_batch["createdAt"] == original_times["batch"]
        summary = (await request_successfully(gateway, "GET", f"/batches/{batch}/summary"))[
            "batchSummary"
        ]
        assert summary["createdAt"] == original_times["batch"]
        shown_payment = await request_successfully(
            gateway, "GET", f"/batches/{batch}/payments/{second}"
        )
        assert shown_payment["payment"]["createdAt"] == original_times[second]


def restrict_summaries(service: Service, summary: dict[str, Any]) -> None:
    """Makes every summary of the service return these fields only."""
    body = json.dumps({"ok": True, "batchSummary": summary}).encode()
    service.faults.append(Fault("GET", "/v1/batch/*/summary", status=200, body=body, times=100))


async def test_batch_with_unlisted_payments_is_edited(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False, processing_seconds=60))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00", "7.00")
        restrict_summaries(service, {"status": "open"})
        added_payments = {"payments": [{"recipient": {"id": recipient}, "sourceAmount": "6.00"}]}
        await request_successfully(gateway, "PATCH", f"/batches/{batch}", added_payments)
        first, second, added_id = await load_payment_ids(gateway, batch)
        assert len({first, second, added_id}) == 3
        await request_successfully(gateway, "DELETE", f"/batches/{batch}/payments/{second}")
        assert await load_payment_ids(gateway, batch) == [first, added_id]
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        service.faults.clear()
        original_batch, replacement_batch = service.find_or_create_tenant().batches.values()
        assert (original_batch.sent_at, replacement_batch.sent_at is None) == (None, False)
        assert [
            str(payment.terms.source_amount) for payment in replacement_batch.payments.values()
        ] == [
            "5.00",
            "6.00",
        ]


async def test_page_of_a_proxy_does_not_say_that_a_recipient_does_not_exist(tmp_path: Path) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False, processing_seconds=60))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        path = f"/batches/{batch}/payments"
        (payment,) = await load_payment_ids(gateway, batch)
        await request_successfully(gateway, "PATCH", f"{path}/{payment}", {"sourceAmount": "5.50"})
        service.faults.append(Fault("GET", "/v1/recipients/*", status=404, times=50))
        body = {"recipient": {"id": recipient}, "sourceAmount": "6.00"}
        assert (await gateway.request("POST", f"/v1{path}", body)).status == 500
        service.faults.clear()
        await request_successfully(gateway, "POST", path, body)
        assert len(await load_payment_ids(gateway, batch)) == 2


async def test_batch_with_unknown_payees_is_not_edited_but_started(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False, processing_seconds=60))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        (current,) = next(iter(service.find_or_create_tenant().batches.values())).payments
        payments = [{"id": current, "sourceAmount": "5.00"}]
        restrict_summaries(service, {"status": "open", "payments": payments})
        change = {"sourceAmount": "6.00"}
        response = await gateway.request("PATCH", f"/v1/batches/{batch}/payments/{payment}", change)
        assert (response.status, response.body["errors"][0]["code"]) == (406, "invalid_status")
        assert [
            row["id"] for row in (await request_successfully(gateway, "GET", "/batches"))["batches"]
        ] == [batch]
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        (service_batch,) = service.find_or_create_tenant().batches.values()
        assert [str(entry.terms.source_amount) for entry in service_batch.payments.values()] == [
            "5.00"
        ]


async def test_payments_with_unknown_payees_do_not_hide_those_of_a_recipient(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False, processing_seconds=60))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        ada = await create_recipient(gateway)
        batch = await create_batch(gateway, ada, "5.00")
        unknown_payment = {"id": "P-ELSEWHERE", "sourceAmount": "7.00", "memo": "made elsewhere"}
        restrict_summaries(service, {"status": "open", "payments": [unknown_payment]})
        added_payment = {"recipient": {"id": ada}, "sourceAmount": "6.00"}
        await request_successfully(gateway, "POST", f"/batches/{batch}/payments", added_payment)
        service.faults.clear()
        payment_list = await request_successfully(gateway, "GET", f"/recipients/{ada}/payments")
        assert {payment["sourceAmount"] for payment in payment_list["payments"]} == {"5.00", "6.00"}


async def test_edit_of_a_draft_reads_and_writes_the_rows_that_it_names(tmp_path: Path) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False, processing_seconds=60))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, *[f"{number}.00" for number in range(1, 31)])
        first, second, third, *_others = await load_payment_ids(gateway, batch)
        path = f"/batches/{batch}/payments"
        await request_successfully(gateway, "PATCH", f"{path}/{first}", {"sourceAmount": "41.00"})
        payment = {"recipient": {"id": recipient}, "sourceAmount": "44.00"}
        changes = {"update_payments": [{"id": second, "sourceAmount": "42.00"}]}
        with record_statements("draft_payments") as statements:
            await request_successfully(gateway, "GET", f"{path}/{second}")
            await request_successfully(
                gateway, "PATCH", f"{path}/{first}", {"sourceAmount": "43.00"}
            )
            await request_successfully(gateway, "PATCH", f"/batches/{batch}", changes)
            await request_successfully(gateway, "DELETE", f"{path}/{third}")
            await request_successfully(gateway, "POST", path, payment)
            assert not [text for text, _values in statements if "position >" in text]
        written = [text.split()[0] for text, _ in statements if not text.startswith("SELECT")]
        assert written == ["INSERT", "INSERT", "DELETE", "INSERT"]
        listed = await request_successfully(gateway, "GET", f"{path}?pageSize=100")
        assert [payment["sourceAmount"] for payment in listed["payments"]] == [
            *("43.00", "42.00"),
            *(f"{number}.00" for number in range(4, 31)),
            "44.00",
        ]


async def test_payments_that_the_service_shows_with_one_id_are_all_submitted(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False, processing_seconds=60))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00", "7.00")
        (service_batch,) = service.find_or_create_tenant().batches.values()
        first_id = next(iter(service_batch.payments))
        payee = next(iter(service.find_or_create_tenant().recipients))
        payments = [
            {"id": first_id, "sourceAmount": amount, "recipient": {"id": payee}}
            for amount in ("5.00", "7.00")
        ]
        restrict_summaries(service, {"status": "open", "payments": payments})
        added_payment = {"recipient": {"id": recipient}, "sourceAmount": "6.00"}
        await request_successfully(gateway, "POST", f"/batches/{batch}/payments", added_payment)
        service.faults.clear()
        await request_successfully(gateway, "POST", f"/batches/{batch}/generate-quote")
        *_, replacement_batch = service.find_or_create_tenant().batches.values()
        assert [
            str(payment.terms.source_amount) for payment in replacement_batch.payments.values()
        ] == ["5.00", "7.00", "6.00"]


async def list_payments_without_batch(gateway: GatewayUnderTest, batch: str) -> list[Any]:
    listed = await request_successfully(gateway, "GET", f"/batches/{batch}/payments")
    return [{**payment, "batch": None} for payment in listed["payments"]]


async def test_an_edit_changes_nothing_that_payments_show_except_the_edited_terms(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False, processing_seconds=60))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "3.00", "5.00", "7.61")
        (service_batch,) = service.find_or_create_tenant().batches.values()
        payee = next(iter(service.find_or_create_tenant().recipients))
        terms = (
            {"sourceAmount": "3", "targetAmount": 2.76, "targetCurrency": "EUR"},
            {"sourceAmount": "5", "targetAmount": "5", "targetCurrency": "USD"},
            {"sourceAmount": "7.61", "targetAmount": "7", "targetCurrency": "EUR"},
        )
        fees = {"fees": 0.5, "recipientFees": "0", "merchantFees": "0.5"}
        rates = {"exchangeRate": "0.92", "fxRate": 0.92}
        compliance = {"status": "verified", "checkedAt": "2026-03-01T09:00:00.000Z"}
        summary_payments = [
            {"id": id_, "recipient": {"id": payee}, "compliance": compliance}
            | {**fees, **rates, **payment_terms}
            for id_, payment_terms in zip(service_batch.payments, terms, strict=True)
        ]
        restrict_summaries(service, {"status": "open", "payments": summary_payments})
        first, edited, last = await list_payments_without_batch(gateway, batch)
        assert (first["sourceAmount"], first["exchangeRate"]) == ("3", "0.92")
        path = f"/batches/{batch}/payments"
        change = {**edited, "sourceAmount": "9", "recipient": None}
        await request_successfully(gateway, "PATCH", f"{path}/{edited['id']}", change)
        service.faults.clear()
        shown = await list_payments_without_batch(gateway, batch)
        new_terms = {"sourceAmount": "9.00", "targetAmount": "9.00"}
        unknown = dict.fromkeys([*fees, *rates])
        changed = {**edited, **new_terms, **unknown, "updatedAt": shown[1]["updatedAt"]}
        for payment in (*shown, first, last, changed):
            del payment["recipient"]  # a draft shows more of it than this summary
            del payment["method"], payment["methodDisplay"]
        assert shown == [first, changed, last]
        body = (await request_successfully(gateway, "GET", f"/batches/{batch}"))["batch"]
        assert body["amount"] == "19.61"
        # Without a target amount, it means nothing.
        first_path = f"{path}/{first['id']}"
        await request_successfully(gateway, "PATCH", first_path, {"targetCurrency": "JPY"})
        # Sent back as it was read: nothing changes but the memo.
        await request_successfully(gateway, "PATCH", first_path, {**first, "memo": "rent"})
        shown = await list_payments_without_batch(gateway, batch)
        assert shown[0].items() >= {**terms[0], "targetAmount": "2.76", "memo": "rent"}.items()
        await request_successfully(gateway, "POST", f"/batches/{batch}/generate-quote")
        shown = await list_payments_without_batch(gateway, batch)
        assert [(payment["sourceAmount"], payment["exchangeRate"]) for payment in shown] == [
            ("3.00", "1"),
            ("9.00", "1"),
            ("7.61", "1"),
        ]


async def send_signed_add(
    gateway: GatewayUnderTest, service: Service, amount: str, currency: str = "USD"
) -> None:
    """Adds a payment to the service's only batch, for its newest recipient."""
    tenant = service.find_or_create_tenant()
    ((batch,), (*_, recipient)) = tenant.batches, tenant.recipients
    body = {"recipient": {"id": recipient}, "amount": amount, "currency": currency}
    path, data = f"/batches/{batch}/payments", json.dumps(body).encode()
    assert (await send_signed(gateway, "POST", path, data)).status == 200


@pytest.mark.parametrize("kind", ["created", "created beside a signed one", "added"])
async def test_edit_loses_no_payment_that_the_summary_does_not_show_yet(
    kind: str, tmp_path: Path
) -> None:
    has_added, has_signed = kind == "added", "signed" in kind
    service = Service(seed=1, options=ServiceOptions(inferred=False))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        amounts = ["10.00"] if has_added else ["10.00", "20.00"]
        batch = await create_batch(gateway, recipient, *amounts)
        payment = (await load_payment_ids(gateway, batch))[0]
        if has_signed:
            await create_recipient(gateway, "bob")
            await send_signed_add(gateway, service, "30.00")
        summary = await load_service_summary(gateway, service)
        if has_added:
            added = {"recipient": {"id": recipient}, "sourceAmount": "20.00"}
            await request_successfully(gateway, "POST", f"/batches/{batch}/payments", added)
        else:
            del summary["batchSummary"]["payments"][1]
        show_summary(service, summary)
        path, change = f"/batches/{batch}/payments/{payment}", {"sourceAmount": "11.00"}
        response = await gateway.request("PATCH", f"/v1{path}", change)
        assert response.status == 500
        assert int(response.headers["Retry-After"]) > 0
        assert "nothing was done" in response.body["errors"][0]["message"]
        service.faults.clear()
        await request_successfully(gateway, "PATCH", path, change)
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        payments = list_started_payments(service)
        expected_amounts = ["11.00", "20.00", *(["30.00"] if has_signed else [])]
        assert sorted(str(payment.amount) for payment in payments) == expected_amounts


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_started_batch_is_not_superseded_although_the_summary_shows_it_as_open(
    method: str, tmp_path: Path
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "10.00")
        summary = await load_service_summary(gateway, service)
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        show_summary(service, summary)
        payment = summary["batchSummary"]["payments"][0]["id"]
        body = {"remove_payments": [{"id": payment}]} if method == "PATCH" else None
        response = await gateway.request(method, f"/v1/batches/{batch}", body)
        assert (response.status, response.body["errors"][0]["code"]) == (406, "invalid_status")
        service.faults.clear()
        assert len(await load_payment_ids(gateway, batch)) == 1


async def test_batch_with_payments_that_nothing_shows_is_not_superseded(tmp_path: Path) -> None:
    options = ServiceOptions(inferred=False, deviations=frozenset({"summary"}))
    service = Service(seed=1, options=options)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        (current_recipient,) = service.find_or_create_tenant().recipients
        payment = {"recipient": {"id": current_recipient}, "amount": "10.00", "currency": "USD"}
        body = json.dumps({"currency": "USD", "payments": [payment]}).encode()
        header = "Content-Type: application/json"
        request = SigningClient().build_request(
            "POST", "/v1/batches", body, header, stamp=int(time())
        )
        batch = (await send_raw(gateway, request)).parse_json["batch"]["id"]
        added = {"payments": [{"recipient": {"id": recipient}, "sourceAmount": "5.00"}]}
        response = await gateway.request("PATCH", f"/v1/batches/{batch}", added)
        assert (response.status, response.body["errors"][0]["code"]) == (406, "invalid_status")
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        assert [start.batch_id for start in service.batch_starts] == [batch]


@pytest.mark.parametrize("meta", [{"records": 2}, {"page": 1, "pages": 2}], ids=repr)
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["created here", "elsewhere"])
async def test_payment_on_a_page_of_the_summary_is_edited(
    is_elsewhere: bool, meta: dict[str, Any], tmp_path: Path
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        (current_recipient,) = service.find_or_create_tenant().recipients
        if is_elsewhere:
            payment = {"recipient": {"id": current_recipient}, "currency": "USD"}
            payments = [{**payment, "amount": amount} for amount in ("5.00", "7.00")]
            data = json.dumps({"currency": "USD", "payments": payments}).encode()
            batch = (await send_signed(gateway, "POST", "/batches", data)).parse_json["batch"]["id"]
        else:
            batch = await create_batch(gateway, recipient, "5.00", "7.00")
        first, _ = await load_payment_ids(gateway, batch)
        summary = await load_service_summary(gateway, service)
        fields = summary["batchSummary"]
        del fields["totalPayments"]
        fields["payments"] = {"payments": fields["payments"][:1], "meta": meta}
        show_summary(service, summary)
        assert first in await load_payment_ids(gateway, batch)
        path = f"/batches/{batch}/payments/{first}"
        await request_successfully(gateway, "PATCH", path, {"sourceAmount": "6.00"})
        payments = service.find_or_create_tenant().payments.values()
        assert [str(payment.amount) for payment in payments] == ["6.00", "7.00"]


@pytest.mark.parametrize("count", [{"totalPayments": 2}, {"meta": {"records": 2}}], ids=repr)
async def test_batch_with_more_payments_than_are_shown_is_not_superseded(
    count: dict[str, Any], tmp_path: Path
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (service_batch,) = service.find_or_create_tenant().batches.values()
        (shown,) = service_batch.payments.values()
        row = {"id": shown.id, "recipient": {"id": shown.recipient.id}, "sourceAmount": "5.00"}
        restrict_summaries(service, {"status": "open", "payments": [row], **count})
        added = {"payments": [{"recipient": {"id": recipient}, "sourceAmount": "6.00"}]}
        response = await gateway.request("PATCH", f"/v1/batches/{batch}", added)
        assert response.status == 500
        assert "Retry-After" in response.headers
        assert [*service.find_or_create_tenant().batches] == [service_batch.id]
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        assert [start.batch_id for start in service.batch_starts] == [service_batch.id]


async def test_draft_is_started_although_the_service_does_not_show_its_new_batch_yet(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "10.00", "20.00")
        (payment, _) = await load_payment_ids(gateway, batch)
        path = f"/batches/{batch}/payments/{payment}"
        await request_successfully(gateway, "PATCH", path, {"sourceAmount": "11.00"})
        refusal = b'{"ok":false,"errors":[{"code":"not_found","message":"Not found."}]}'
        service.faults.append(Fault("GET", "/v1/batch/*/summary", status=404, body=refusal))
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        assert service.faults == []
        payments = list_started_payments(service)
        assert sorted(str(payment.amount) for payment in payments) == ["11.00", "20.00"]


@pytest.mark.parametrize("is_of_batch", [False, True], ids=["payment", "batch"])
async def test_amount_is_set_back_although_the_service_does_not_show_the_change_yet(
    is_of_batch: bool, tmp_path: Path
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "10.00")
        (payment,) = await load_payment_ids(gateway, batch)
        show_summary(service, await load_service_summary(gateway, service))
        for amount in ("90.00", "10.00"):
            change = {"sourceAmount": amount}
            path, body = (
                (f"/batches/{batch}", {"update_payments": [{"id": payment, **change}]})
                if is_of_batch
                else (f"/batches/{batch}/payments/{payment}", change)
            )
            await request_successfully(gateway, "PATCH", path, body)
        service.faults.clear()
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        (paid,) = list_started_payments(service)
        assert str(paid.amount) == "10.00"


async def test_target_currency_is_set_back_although_the_change_is_not_shown_yet(
    tmp_path: Path,
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        target = {"targetAmount": "10.00", "targetCurrency": "EUR"}
        payment = {"recipient": {"id": await create_recipient(gateway)}, **target}
        body = {"sourceCurrency": "USD", "payments": [payment]}
        batch = (await request_successfully(gateway, "POST", "/batches", body))["batch"]["id"]
        (payment_id,) = await load_payment_ids(gateway, batch)
        show_summary(service, await load_service_summary(gateway, service))
        for currency in ("GBP", "EUR"):
            path, change = (
                f"/batches/{batch}/payments/{payment_id}",
                {**target, "targetCurrency": currency},
            )
            await request_successfully(gateway, "PATCH", path, change)
        (paid,) = service.find_or_create_tenant().payments.values()
        assert (str(paid.amount), paid.currency) == ("10.00", "EUR")


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_draft_has_the_payments_as_they_were_last_changed(
    method: str, tmp_path: Path
) -> None:
    """The service can change payments but no batch, and does not show the last change yet."""
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "10.00", "20.00")
        payment = (await load_payment_ids(gateway, batch))[0]
        summary = await load_service_summary(gateway, service)
        change = {"sourceAmount": "11.00"} if method == "PATCH" else None
        await request_successfully(gateway, method, f"/batches/{batch}/payments/{payment}", change)
        show_summary(service, summary)
        service.faults.append(Fault("PATCH", "/v1/batches/*", status=404, times=100))
        added = {"payments": [{"recipient": {"id": recipient}, "sourceAmount": "30.00"}]}
        response = await gateway.request("PATCH", f"/v1/batches/{batch}", added)
        assert response.status == 500
        assert "nothing was done" in response.body["errors"][0]["message"]
        service.faults = [fault for fault in service.faults if fault.method == "PATCH"]
        await request_successfully(gateway, "PATCH", f"/batches/{batch}", added)
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        payments = list_started_payments(service)
        expected = ["11.00", "20.00", "30.00"] if method == "PATCH" else ["20.00", "30.00"]
        assert sorted(str(payment.amount) for payment in payments) == expected


async def test_signed_add_that_may_have_happened_does_not_explain_a_removed_payment(
    tmp_path: Path,
) -> None:
    """The service can remove payments but edit no batch, and still shows the removed one."""
    async with open_operated_gateway(tmp_path, seconds=1) as setup:
        gateway, service = setup.gateway, setup.service
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "10.00", "20.00")
        (removed, _) = await load_payment_ids(gateway, batch)
        (upstream,) = service.find_or_create_tenant().batches
        setup.add_fault("POST", f"/v1/batches/{upstream}/payments", close="before")
        body = {"recipient": {"id": recipient}, "amount": "30.00", "currency": "USD"}
        data = json.dumps(body).encode()
        assert (
            await send_signed(gateway, "POST", f"/batches/{upstream}/payments", data)
        ).status == 500
        await setup.age_sent_writes()
        summary = await load_service_summary(gateway, service)
        path = f"/v1/batches/{batch}/payments/{removed}"

        async def is_removed() -> bool:
            return (await gateway.request("DELETE", path)).status == 200

        await wait_until_async(is_removed)
        show_summary(service, summary)
        setup.add_fault("PATCH", "/v1/batches/*", status=404, times=100)
        added = {"payments": [{"recipient": {"id": recipient}, "sourceAmount": "40.00"}]}
        response = await gateway.request("PATCH", f"/v1/batches/{batch}", added)
        assert response.status == 500
        assert "nothing was done" in response.body["errors"][0]["message"]


async def test_edit_loses_no_signed_addition_that_the_summary_does_not_show_yet(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "10.00")
        (payment,) = await load_payment_ids(gateway, batch)
        summary = await load_service_summary(gateway, service)
        await send_signed_add(gateway, service, "20.00")
        show_summary(service, summary)
        path, change = f"/batches/{batch}/payments/{payment}", {"sourceAmount": "11.00"}
        response = await gateway.request("PATCH", f"/v1{path}", change)
        assert response.status == 500
        assert "nothing was done" in response.body["errors"][0]["message"]
        service.faults.clear()
        await request_successfully(gateway, "PATCH", path, change)
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        payments = list_started_payments(service)
        assert sorted(str(payment.amount) for payment in payments) == ["11.00", "20.00"]


async def test_edit_does_not_wait_for_signed_additions_that_an_earlier_edit_has_seen(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "10.00")
        path = f"/batches/{batch}"
        (payment,) = await load_payment_ids(gateway, batch)
        await send_signed_add(gateway, service, "30.00")
        for amount in ("11.00", "12.00"):
            change = {"sourceAmount": amount}
            await request_successfully(gateway, "PATCH", f"{path}/payments/{payment}", change)
            await request_successfully(gateway, "POST", f"{path}/generate-quote")
        await request_successfully(gateway, "POST", f"{path}/start-processing")
        payments = list_started_payments(service)
        assert [str(payment.amount) for payment in payments] == ["12.00", "30.00"]


async def test_edit_keeps_the_currency_in_which_a_signed_request_has_added_a_payment(
    tmp_path: Path,
) -> None:
    """The service also shows its amount in the batch's currency, by the rate of that moment."""
    service = Service(seed=1, options=ServiceOptions(inferred=False))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "10.00")
        (payment,) = await load_payment_ids(gateway, batch)
        await send_signed_add(gateway, service, "20.00", "EUR")
        await send_signed_add(gateway, service, "30.00")
        path = f"/batches/{batch}/payments/{payment}"
        await request_successfully(gateway, "PATCH", path, {"sourceAmount": "11.00"})
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        payments = list_started_payments(service)
        assert sorted((str(payment.amount), payment.currency) for payment in payments) == [
            ("11.00", "USD"),
            ("20.00", "EUR"),
            ("30.00", "USD"),
        ]


async def test_edit_keeps_the_currencies_of_a_batch_that_a_signed_request_has_created(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        await create_recipient(gateway)
        (recipient,) = service.find_or_create_tenant().recipients
        terms = [("10.00", "USD"), ("20.00", "EUR"), ("30.00", "USD")]
        payments = [
            {"recipient": {"id": recipient}, "amount": amount, "currency": currency}
            for amount, currency in terms
        ]
        data = json.dumps({"currency": "USD", "payments": payments}).encode()
        batch = (await send_signed(gateway, "POST", "/batches", data)).parse_json["batch"]["id"]
        payment = (await load_payment_ids(gateway, batch))[0]
        path = f"/batches/{batch}/payments/{payment}"
        await request_successfully(gateway, "PATCH", path, {"sourceAmount": "11.00"})
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        assert [
            (str(payment.amount), payment.currency) for payment in list_started_payments(service)
        ] == [("11.00", "USD"), *terms[1:]]


async def test_start_is_not_refused_for_good_while_the_only_payment_is_not_shown_yet(
    tmp_path: Path,
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient)
        summary = await load_service_summary(gateway, service)
        added = {"recipient": {"id": recipient}, "sourceAmount": "20.00"}
        await request_successfully(gateway, "POST", f"/batches/{batch}/payments", added)
        show_summary(service, summary)
        path = f"/batches/{batch}/start-processing"
        response = await gateway.request("POST", f"/v1{path}")
        assert (response.status, response.headers["Retry-After"]) == (500, "5")
        service.faults.clear()
        await request_successfully(gateway, "POST", path)
        assert len(service.batch_starts) == 1


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE", "PATCH batch"])
async def test_payment_that_was_just_added_is_not_taken_for_an_unknown_one(
    method: str, tmp_path: Path
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "10.00")
        summary = await load_service_summary(gateway, service)
        added = {"recipient": {"id": recipient}, "sourceAmount": "20.00"}
        path = f"/batches/{batch}/payments"
        payment = (await request_successfully(gateway, "POST", path, added))["payment"]["id"]
        show_summary(service, summary)
        path = f"{path}/{payment}"
        change: dict[str, Any] | None = {"sourceAmount": "30.00"} if method == "PATCH" else None
        if method == "PATCH batch":
            method, path = "PATCH", f"/batches/{batch}"
            change = {"remove_payments": [{"id": payment}]}
        response = await gateway.request(method, f"/v1{path}", change)
        assert (response.status, response.headers["Retry-After"]) == (500, "5")
        service.faults.clear()
        await request_successfully(gateway, method, path, change)


async def test_amount_is_set_back_after_another_change_that_is_not_shown_either(
    tmp_path: Path,
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "10.00")
        (payment,) = await load_payment_ids(gateway, batch)
        show_summary(service, await load_service_summary(gateway, service))
        path = f"/batches/{batch}/payments"
        await request_successfully(gateway, "PATCH", f"{path}/{payment}", {"sourceAmount": "90.00"})
        added = {"recipient": {"id": recipient}, "sourceAmount": "20.00"}
        await request_successfully(gateway, "POST", path, added)
        await request_successfully(gateway, "PATCH", f"{path}/{payment}", {"sourceAmount": "10.00"})
        (upstream,) = service.find_or_create_tenant().batches.values()
        amounts = [str(payment.amount) for payment in upstream.payments.values()]
        assert sorted(amounts) == ["10.00", "20.00"]


async def test_cleared_memo_stays_cleared_after_a_removal_that_may_not_be_shown_yet(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=True, processing_seconds=60))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _):
        recipient = await create_recipient(gateway)
        payment = {"recipient": {"id": recipient}, "amount": "1.00", "currency": "USD"}
        body = json.dumps({"currency": "USD", "payments": [payment] * 2}).encode()
        response = await send_signed(gateway, "POST", "/batches", body)
        batch = response.parse_json["batch"]["id"]
        removed_id, _ = await load_payment_ids(gateway, batch)
        added = {"recipient": {"id": recipient}, "sourceAmount": "10.00", "memo": "March"}
        edit = {"payments": [added], "remove_payments": [{"id": removed_id}]}
        await request_successfully(gateway, "PATCH", f"/batches/{batch}", edit)
        _, added_id = await load_payment_ids(gateway, batch)
        path = f"/batches/{batch}/payments/{added_id}"
        assert (await request_successfully(gateway, "GET", path))["payment"]["memo"] == "March"
        await request_successfully(gateway, "PATCH", path, {"memo": None})
        assert not (await request_successfully(gateway, "GET", path))["payment"]["memo"]


async def test_added_payment_is_not_taken_for_a_signed_one_after_a_removal(tmp_path: Path) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=True, processing_seconds=60))
    add_path = "/v1/batches/*/payments"
    service.faults.append(
        Fault("POST", add_path, status=200, body=b'{"ok":true}', executes=True, times=2)
    )
    async with open_gateway_and_service(tmp_path, service) as (gateway, _):
        recipient = await create_recipient(gateway)
        payment = {"recipient": {"id": recipient}, "amount": "1.00", "currency": "USD"}
        body = json.dumps({"currency": "USD", "payments": [payment]}).encode()
        response = await send_signed(gateway, "POST", "/batches", body)
        batch = response.parse_json["batch"]["id"]
        (removed_id,) = await load_payment_ids(gateway, batch)
        await request_successfully(gateway, "DELETE", f"/batches/{batch}/payments/{removed_id}")
        path = f"/batches/{batch}/payments"
        await send_signed(gateway, "POST", path, json.dumps(payment).encode())
        ids_before = await load_payment_ids(gateway, batch)
        added = {"recipient": {"id": recipient}, "sourceAmount": "1.00"}
        payment = (await request_successfully(gateway, "POST", path, added))["payment"]
        assert payment["id"] not in ids_before


@pytest.mark.parametrize("method", ["DELETE", "PATCH"])
async def test_edit_keeps_no_payment_as_it_was_before_a_signed_change_that_is_not_shown_yet(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=True))
    upstream_section = {"inferred_operations": "avoid"}
    async with open_gateway_and_service(tmp_path, service, upstream=upstream_section) as (
        gateway,
        _simulator,
    ):
        batch = await create_batch(gateway, await create_recipient(gateway), "10.00", "20.00")
        (_, payment) = await load_payment_ids(gateway, batch)
        (upstream,) = service.find_or_create_tenant().batches
        summary = await load_service_summary(gateway, service)
        changed, *_ = service.require_batch(upstream).payments
        signed_path = f"/batches/{upstream}/payments/{changed}"
        body = b"" if method == "DELETE" else b'{"sourceAmount":"5.00"}'
        assert (await send_signed(gateway, method, signed_path, body)).status == 200
        show_summary(service, summary)
        path, change = f"/batches/{batch}/payments/{payment}", {"sourceAmount": "21.00"}
        response = await gateway.request("PATCH", f"/v1{path}", change)
        assert response.status == 500
        assert "nothing was done" in response.body["errors"][0]["message"]
        service.faults.clear()
        monkeypatch.setattr(batch_reads, "MAX_READ_LAG", timedelta())
        await request_successfully(gateway, "PATCH", path, change)
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        amounts = [str(payment.amount) for payment in list_started_payments(service)]
        assert sorted(amounts) == (["21.00"] if method == "DELETE" else ["21.00", "5.00"])


@pytest.mark.parametrize("method", ["DELETE", "PATCH"])
async def test_edit_waits_for_a_signed_change_without_a_response_that_is_not_shown_yet(
    method: str, tmp_path: Path
) -> None:
    """It may have been carried out just before its timestamp expired."""
    sections = {"upstream": {"inferred_operations": "avoid"}}
    async with open_operated_gateway(tmp_path, sections=sections) as setup:
        gateway, service = setup.gateway, setup.service
        batch = await create_batch(gateway, await create_recipient(gateway), "10.00", "20.00")
        (_, payment) = await load_payment_ids(gateway, batch)
        (upstream,) = service.find_or_create_tenant().batches
        summary = await load_service_summary(gateway, service)
        changed, *_ = service.require_batch(upstream).payments
        setup.add_fault(method, "/v1/batches/*/payments/*", close="after")
        signed_path = f"/batches/{upstream}/payments/{changed}"
        body = b"" if method == "DELETE" else b'{"sourceAmount":"5.00"}'
        assert (await send_signed(gateway, method, signed_path, body)).status == 500
        await setup.age_sent_writes()

        async def is_resolved() -> bool:
            return not await setup.list_writes_in_doubt()

        await wait_until_async(is_resolved)
        show_summary(service, summary)
        path, change = f"/v1/batches/{batch}/payments/{payment}", {"sourceAmount": "21.00"}
        response = await gateway.request("PATCH", path, change)
        assert response.status == 500
        assert "nothing was done" in response.body["errors"][0]["message"]


@pytest.mark.parametrize("is_of_batch", [True, False])
async def test_amount_is_set_back_although_a_signed_change_of_it_is_not_shown_yet(
    is_of_batch: bool, tmp_path: Path
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "10.00")
        (payment,) = await load_payment_ids(gateway, batch)
        summary = await load_service_summary(gateway, service)
        (upstream,) = service.find_or_create_tenant().batches
        (changed,) = service.require_batch(upstream).payments.values()
        signed_path = f"/batches/{upstream}/payments/{changed.id}"
        await send_signed(gateway, "PATCH", signed_path, b'{"sourceAmount":"99.00"}')
        show_summary(service, summary)
        path, change = f"/batches/{batch}/payments/{payment}", {"sourceAmount": "10.00"}
        if is_of_batch:
            path, change = f"/batches/{batch}", {"update_payments": [{"id": payment, **change}]}
        await request_successfully(gateway, "PATCH", path, change)
        assert str(changed.amount) == "10.00"
