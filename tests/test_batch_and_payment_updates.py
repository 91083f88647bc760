"""Updates of batches and payments, by single fields and by whole objects that are sent back.

They run in front of a service with the optional endpoints and of one without: every later read
shows a change that was answered as updated, and an unchanged object that is sent back changes
nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.payouts import create_recipient, open_gateway_and_service, request_successfully
from tests.running_gateway import GatewayUnderTest
from tests.simulator import Fault, Service, ServiceOptions

SERVICE_OPTIONS = {
    "paths": ServiceOptions(processing_seconds=60, recipient_id_length=22),
    "no paths": ServiceOptions(processing_seconds=60, inferred=False, answers="bare"),
}


@dataclass(slots=True)
class GatewayAndService:
    gateway: GatewayUnderTest
    service: Service
    recipient_id: str

    async def create_batch(self, *payments: dict[str, Any], **fields: Any) -> str:
        payment_bodies = [
            {"recipient": {"id": self.recipient_id}, **payment} for payment in payments
        ]
        body = {"sourceCurrency": "USD", "payments": payment_bodies, **fields}
        return str(
            (await request_successfully(self.gateway, "POST", "/batches", body))["batch"]["id"]
        )

    async def load_batch(self, batch: str) -> dict[str, Any]:
        return dict((await request_successfully(self.gateway, "GET", f"/batches/{batch}"))["batch"])

    async def load_payments(self, batch: str) -> list[dict[str, Any]]:
        return list((await self.load_batch(batch))["payments"]["payments"])

    async def load_shown_value(self, batch: str, name: str) -> Any:
        """A field of a batch, wherever it is shown."""
        listed_batches = (
            await request_successfully(self.gateway, "GET", f"/batches?search={batch}")
        )["batches"]
        summary = (await request_successfully(self.gateway, "GET", f"/batches/{batch}/summary"))[
            "batchSummary"
        ]
        values = {repr(entry[name]): entry[name] for entry in (*listed_batches, summary)}
        values |= {repr(entry[name]): entry[name] for entry in [await self.load_batch(batch)]}
        assert len(values) == 1, values
        return next(iter(values.values()))

    async def patch_batch(self, batch: str, body: Any) -> None:
        assert await request_successfully(self.gateway, "PATCH", f"/batches/{batch}", body) == {
            "ok": True,
            "object": "updated",
        }

    def list_writes(self) -> list[tuple[str, str]]:
        return [
            (call.method, call.target)
            for call in self.service.list_requests()
            if call.method != "GET"
        ]


@pytest_asyncio.fixture(params=SERVICE_OPTIONS)
async def gateway_and_service(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[GatewayAndService]:
    service = Service(seed=1, options=SERVICE_OPTIONS[request.param])
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        yield GatewayAndService(gateway, service, await create_recipient(gateway))


EURO_PAYMENT = {"targetAmount": "7.00", "targetCurrency": "EUR", "memo": "in euros"}


# A batch


async def test_description_is_changed_and_cleared_everywhere(
    gateway_and_service: GatewayAndService,
) -> None:
    batch = await gateway_and_service.create_batch({"sourceAmount": "5.00"}, description="April")
    assert await gateway_and_service.load_shown_value(batch, "description") == "April"
    for description, expected in (
        ("May", "May"),
        ("June", "June"),
        ("", "June"),
        (None, ""),
        ("July", "July"),
    ):
        await gateway_and_service.patch_batch(batch, {"description": description})
        assert await gateway_and_service.load_shown_value(batch, "description") == expected
    start_body = await request_successfully(
        gateway_and_service.gateway, "POST", f"/batches/{batch}/start-processing"
    )
    assert start_body["batch"]["description"] == "July"
    response = await gateway_and_service.gateway.request(
        "PATCH", f"/v1/batches/{batch}", {"description": "late"}
    )
    assert (response.status, response.body["errors"][0]["code"]) == (406, "invalid_status")


async def test_description_change_does_not_supersede_the_batch(
    gateway_and_service: GatewayAndService,
) -> None:
    batch = await gateway_and_service.create_batch({"sourceAmount": "5.00"}, description="April")
    await gateway_and_service.patch_batch(batch, {"description": "May"})
    await gateway_and_service.load_shown_value(batch, "description")
    assert len(gateway_and_service.service.find_or_create_tenant().batches) == 1


async def test_description_is_changed_with_payments_and_in_a_draft(
    gateway_and_service: GatewayAndService,
) -> None:
    batch = await gateway_and_service.create_batch({"sourceAmount": "5.00"}, description="April")
    await gateway_and_service.patch_batch(batch, {"description": "May"})
    (payment,) = await gateway_and_service.load_payments(batch)
    changed_payment = {"id": payment["id"], "sourceAmount": "6.00"}
    await gateway_and_service.patch_batch(
        batch, {"description": "June", "update_payments": [changed_payment]}
    )
    assert await gateway_and_service.load_shown_value(batch, "description") == "June"
    added_payment = {"recipient": {"id": gateway_and_service.recipient_id}, "sourceAmount": "9.00"}
    await gateway_and_service.patch_batch(batch, {"payments": [added_payment]})
    assert await gateway_and_service.load_shown_value(batch, "description") == "June"
    assert [entry["sourceAmount"] for entry in await gateway_and_service.load_payments(batch)] == [
        "6.00",
        "9.00",
    ]
    await gateway_and_service.patch_batch(batch, {"payments": [added_payment], "description": None})
    assert await gateway_and_service.load_shown_value(batch, "description") == ""
    draft = [*gateway_and_service.service.find_or_create_tenant().batches.values()][-1]
    assert (draft.description, len(draft.payments)) == ("", 3), "the service has it as it is shown"


async def test_description_changed_elsewhere_is_shown(
    gateway_and_service: GatewayAndService,
) -> None:
    batch = await gateway_and_service.create_batch({"sourceAmount": "5.00"}, description="April")
    await gateway_and_service.patch_batch(batch, {"description": "May"})
    (service_batch,) = gateway_and_service.service.find_or_create_tenant().batches.values()
    service_batch.description = "by the dashboard"
    assert await gateway_and_service.load_shown_value(batch, "description") == "by the dashboard"
    await gateway_and_service.patch_batch(batch, {"description": "June"})
    assert await gateway_and_service.load_shown_value(batch, "description") == "June"


async def test_currency_is_changed_only_without_payments(
    gateway_and_service: GatewayAndService,
) -> None:
    batch = await gateway_and_service.create_batch()
    await gateway_and_service.patch_batch(batch, {"sourceCurrency": "EUR"})
    assert await gateway_and_service.load_shown_value(batch, "currency") == "EUR"
    added_payment = {"recipient": {"id": gateway_and_service.recipient_id}, "sourceAmount": "9.00"}
    await gateway_and_service.patch_batch(
        batch, {"sourceCurrency": "CAD", "payments": [added_payment]}
    )
    assert await gateway_and_service.load_shown_value(batch, "currency") == "CAD"
    (payment,) = await gateway_and_service.load_payments(batch)
    assert payment["sourceCurrency"] == "CAD"
    response = await gateway_and_service.gateway.request(
        "PATCH", f"/v1/batches/{batch}", {"sourceCurrency": "USD"}
    )
    assert (response.status, response.body["errors"][0]["field"]) == (406, "sourceCurrency")
    assert response.body["errors"][0]["code"] == "invalid_field"
    await gateway_and_service.patch_batch(batch, {"sourceCurrency": "CAD"})
    assert await gateway_and_service.load_shown_value(batch, "currency") == "CAD"
    await request_successfully(
        gateway_and_service.gateway, "POST", f"/batches/{batch}/start-processing"
    )
    batch_starts = [
        row
        for row in gateway_and_service.service.find_or_create_tenant().batches.values()
        if row.state != "open"
    ]
    assert [(entry.currency, len(entry.payments)) for entry in batch_starts] == [("CAD", 1)]


async def test_refused_currency_leaves_the_batch_unchanged(
    gateway_and_service: GatewayAndService,
) -> None:
    batch = await gateway_and_service.create_batch(description="April")
    fault = Fault("POST", "/v1/batches", status=400, body=CURRENCY_REFUSAL)
    gateway_and_service.service.faults.append(fault)
    body = {"sourceCurrency": "XXX", "description": "May"}
    response = await gateway_and_service.gateway.request("PATCH", f"/v1/batches/{batch}", body)
    assert (response.status, response.body["errors"][0]["field"]) == (406, "sourceCurrency")
    assert await gateway_and_service.load_shown_value(batch, "currency") == "USD"
    assert await gateway_and_service.load_shown_value(batch, "description") == "April"
    added_payment = {"recipient": {"id": gateway_and_service.recipient_id}, "sourceAmount": "9.00"}
    await request_successfully(
        gateway_and_service.gateway, "POST", f"/batches/{batch}/payments", added_payment
    )


CURRENCY_REFUSAL = (
    b'{"ok":false,"errors":[{"code":"invalid_field","message":"Not paid in","field":"currency"}]}'
)


async def test_currency_change_in_doubt_creates_one_batch(tmp_path: Path) -> None:
    service = Service(seed=1, options=SERVICE_OPTIONS["paths"])
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        setup = GatewayAndService(gateway, service, await create_recipient(gateway))
        batch = await setup.create_batch()
        service.faults.append(Fault("POST", "/v1/batches", close="after"))
        added_payment = {"recipient": {"id": setup.recipient_id}, "sourceAmount": "9.00"}
        await setup.patch_batch(batch, {"sourceCurrency": "EUR", "payments": [added_payment]})
        (listed_batch,) = (await request_successfully(gateway, "GET", "/batches"))["batches"]
        assert (listed_batch["id"], listed_batch["currency"], listed_batch["amount"]) == (
            batch,
            "EUR",
            "9.00",
        )
        assert len(service.find_or_create_tenant().batches) == 2, (
            "the one that is superseded, and the other"
        )


async def test_partly_refused_change_leaves_the_batch_unchanged(
    gateway_and_service: GatewayAndService,
) -> None:
    batch = await gateway_and_service.create_batch({"sourceAmount": "5.00"}, description="April")
    body = {"description": "May", "sourceCurrency": "EUR", "payments": [{"sourceAmount": "1.5"}]}
    response = await gateway_and_service.gateway.request("PATCH", f"/v1/batches/{batch}", body)
    assert response.status == 406
    assert {error["field"] for error in response.body["errors"]} == {
        "sourceCurrency",
        "payments[0].sourceAmount",
        "payments[0].recipient.id",
    }
    assert await gateway_and_service.load_shown_value(batch, "description") == "April"


async def test_batch_sent_back_changes_only_changed_fields(
    gateway_and_service: GatewayAndService,
) -> None:
    batch = await gateway_and_service.create_batch(
        {"sourceAmount": "5.00", "memo": "one"}, EURO_PAYMENT, description="April"
    )
    original = await gateway_and_service.load_batch(batch)
    write_count = len(gateway_and_service.list_writes())
    await gateway_and_service.patch_batch(batch, original)
    await gateway_and_service.patch_batch(
        batch, {**original, "payments": original["payments"]["payments"]}
    )
    assert len(gateway_and_service.list_writes()) == write_count
    assert await gateway_and_service.load_batch(batch) == original
    changed_payment = {**original["payments"]["payments"][1], "memo": "changed"}
    page = {
        **original["payments"],
        "payments": [original["payments"]["payments"][0], changed_payment],
    }
    await gateway_and_service.patch_batch(
        batch, {**original, "description": "May", "payments": page}
    )
    updated = await gateway_and_service.load_batch(batch)
    assert updated["description"] == "May"
    assert [payment["memo"] for payment in updated["payments"]["payments"]] == ["one", "changed"]
    amounts = [
        (payment["sourceAmount"], two["targetAmount"], two["targetCurrency"])
        for payment, two in (
            batch_body["payments"]["payments"] for batch_body in (original, updated)
        )
    ]
    assert amounts == [("5.00", "7.00", "EUR")] * 2


# A payment


async def load_payment(
    gateway_and_service: GatewayAndService, batch: str, payment: str
) -> dict[str, Any]:
    read = await request_successfully(
        gateway_and_service.gateway, "GET", f"/batches/{batch}/payments/{payment}"
    )
    return dict(read["payment"])


async def test_payment_sent_back_is_unchanged(gateway_and_service: GatewayAndService) -> None:
    batch = await gateway_and_service.create_batch(
        {"sourceAmount": "5.00", "memo": "one"}, EURO_PAYMENT, {"sourceAmount": "8"}
    )
    payments = await gateway_and_service.load_payments(batch)
    write_count = len(gateway_and_service.list_writes())
    for entry in payments:
        path = f"/batches/{batch}/payments/{entry['id']}"
        await request_successfully(gateway_and_service.gateway, "PATCH", path, entry)
        await request_successfully(
            gateway_and_service.gateway,
            "PATCH",
            path,
            await load_payment(gateway_and_service, batch, entry["id"]),
        )
        numbers = {"sourceAmount": float(entry["sourceAmount"]), "memo": entry["memo"]}
        await request_successfully(gateway_and_service.gateway, "PATCH", path, numbers)
    assert len(gateway_and_service.list_writes()) == write_count
    assert await gateway_and_service.load_payments(batch) == payments


async def test_one_amount_of_a_payment_sent_back_is_changed(
    gateway_and_service: GatewayAndService,
) -> None:
    batch = await gateway_and_service.create_batch({"sourceAmount": "5.00"}, EURO_PAYMENT)
    source, target = await gateway_and_service.load_payments(batch)
    path = f"/batches/{batch}/payments"
    await request_successfully(
        gateway_and_service.gateway,
        "PATCH",
        f"{path}/{source['id']}",
        {**source, "sourceAmount": "6.00"},
    )
    await request_successfully(
        gateway_and_service.gateway,
        "PATCH",
        f"{path}/{target['id']}",
        {**target, "targetAmount": "8.00"},
    )
    payments = await gateway_and_service.load_payments(batch)
    assert [payments[0]["sourceAmount"], payments[1]["targetAmount"]] == ["6.00", "8.00"]
    assert payments[1]["targetCurrency"] == "EUR"
    to_dollars = {**payments[1], "targetCurrency": "USD"}
    await request_successfully(
        gateway_and_service.gateway, "PATCH", f"{path}/{target['id']}", to_dollars
    )
    payments = await gateway_and_service.load_payments(batch)
    assert (payments[1]["targetAmount"], payments[1]["targetCurrency"]) == ("8.00", "USD")
    both = {**payments[0], "sourceAmount": "7.00", "targetAmount": "7.50"}
    response = await gateway_and_service.gateway.request("PATCH", f"/v1{path}/{source['id']}", both)
    assert (response.status, response.body["errors"][0]["field"]) == (406, "targetAmount")


async def test_shown_amounts_of_the_service_are_accepted_unchanged(
    gateway_and_service: GatewayAndService,
) -> None:
    batch = await gateway_and_service.create_batch({"sourceAmount": "5.00"})
    service_payment = next(
        iter(gateway_and_service.service.find_or_create_tenant().payments.values())
    )
    service_payment.overrides = {"targetAmount": "1.625", "targetCurrency": "KWD"}
    (shown_payment,) = await gateway_and_service.load_payments(batch)
    assert shown_payment["targetAmount"] == "1.625"
    path = f"/batches/{batch}/payments/{shown_payment['id']}"
    await request_successfully(gateway_and_service.gateway, "PATCH", path, shown_payment)
    await gateway_and_service.patch_batch(batch, {"update_payments": [shown_payment]})
    for wrong_amount in ("1.626", "1.5", "0", "1e3", "-5.00"):
        response = await gateway_and_service.gateway.request(
            "PATCH", f"/v1{path}", {**shown_payment, "targetAmount": wrong_amount}
        )
        assert (response.status, response.body["errors"][0]["field"]) == (406, "targetAmount"), (
            wrong_amount
        )
        body = {"update_payments": [{**shown_payment, "targetAmount": wrong_amount}]}
        response = await gateway_and_service.gateway.request("PATCH", f"/v1/batches/{batch}", body)
        assert response.status == 406, wrong_amount
        assert response.body["errors"][0]["field"] == "update_payments[0].targetAmount"


async def test_null_clears_a_memo_and_empty_text_keeps_it(
    gateway_and_service: GatewayAndService,
) -> None:
    batch = await gateway_and_service.create_batch(
        {"sourceAmount": "5.00", "memo": "one"}, {**EURO_PAYMENT, "memo": "two"}
    )
    first, second = [payment["id"] for payment in await gateway_and_service.load_payments(batch)]
    path = f"/batches/{batch}/payments/{first}"
    for memo, expected in (("", "one"), ("new", "new"), (None, ""), (None, ""), ("again", "again")):
        await request_successfully(gateway_and_service.gateway, "PATCH", path, {"memo": memo})
        assert ((await load_payment(gateway_and_service, batch, first))["memo"] or "") == expected
    await gateway_and_service.patch_batch(
        batch, {"update_payments": [{"id": second, "memo": None}]}
    )
    memos = [payment["memo"] or "" for payment in await gateway_and_service.load_payments(batch)]
    assert memos == ["again", ""]
    payment_list = await request_successfully(
        gateway_and_service.gateway,
        "GET",
        f"/recipients/{gateway_and_service.recipient_id}/payments",
    )
    assert sorted(payment["memo"] or "" for payment in payment_list["payments"]) == ["", "again"]
    await request_successfully(
        gateway_and_service.gateway, "POST", f"/batches/{batch}/generate-quote"
    )
    assert [
        payment["memo"] or "" for payment in await gateway_and_service.load_payments(batch)
    ] == ["again", ""]


@pytest.mark.parametrize("options", SERVICE_OPTIONS)
async def test_memo_that_is_not_sent_changes_nothing_at_the_service(
    tmp_path: Path, options: str
) -> None:
    service, legacy = Service(seed=1, options=SERVICE_OPTIONS[options]), {"send_memo": False}
    async with open_gateway_and_service(tmp_path, service, legacy=legacy) as (gateway, _simulator):
        client = GatewayAndService(gateway, service, await create_recipient(gateway))
        batch = await client.create_batch({"sourceAmount": "5.00"}, EURO_PAYMENT)
        first, second = await client.load_payments(batch)
        writes = client.list_writes()
        path = f"/batches/{batch}/payments/{first['id']}"
        await request_successfully(gateway, "PATCH", path, {"memo": "one"})
        await client.patch_batch(batch, {"update_payments": [{"id": second["id"], "memo": "two"}]})
        assert client.list_writes() == writes
        expected = [{**first, "memo": "one"}, {**second, "memo": "two"}]
        assert await client.load_payments(batch) == expected
        memo_change = {"id": first["id"], "memo": "three"}
        amount_change = {"id": second["id"], "sourceAmount": "6.00"}
        await client.patch_batch(batch, {"update_payments": [memo_change, amount_change]})
        edit = json.loads(service.list_requests("PATCH")[-1].body)
        assert [set(update) for update in edit["update_payments"]] == [{"id", "sourceAmount"}]
        memos = [payment["memo"] for payment in await client.load_payments(batch)]
        assert memos == ["three", "two"]


async def test_unchanged_update_does_not_block_other_changes(
    gateway_and_service: GatewayAndService,
) -> None:
    batch = await gateway_and_service.create_batch(
        {"sourceAmount": "5.00", "memo": "one"}, description="April"
    )
    batch_body = await gateway_and_service.load_batch(batch)
    (payment,) = batch_body["payments"]["payments"]
    path = f"/batches/{batch}/payments/{payment['id']}"

    def build_payment(amount: int) -> dict[str, Any]:
        return {
            "recipient": {"id": gateway_and_service.recipient_id},
            "sourceAmount": f"{amount}.00",
        }

    for minute in range(10, 40, 10):
        payments_path = f"/batches/{batch}/payments"
        await asyncio.gather(
            *(
                request_successfully(
                    gateway_and_service.gateway,
                    "POST",
                    payments_path,
                    build_payment(minute + number),
                )
                for number in range(3)
            ),
            *(gateway_and_service.patch_batch(batch, {"description": "April"}) for _ in range(3)),
            *(
                request_successfully(gateway_and_service.gateway, "PATCH", path, payment)
                for _ in range(3)
            ),
        )
        async with asyncio.timeout(2):
            await gateway_and_service.patch_batch(batch, {"payments": [build_payment(minute + 3)]})
    assert len(await gateway_and_service.load_payments(batch)) == 13


@pytest.mark.parametrize("named_by", ["id", "email"])
async def test_payment_added_to_a_draft_looks_like_one_that_the_service_has(
    gateway_and_service: GatewayAndService, named_by: str
) -> None:
    gateway = gateway_and_service.gateway
    batch = await gateway_and_service.create_batch(
        {"sourceAmount": "5.00"}, {"sourceAmount": "1.00"}
    )
    (_, removed), path = await gateway_and_service.load_payments(batch), f"/batches/{batch}"
    name = {"id": gateway_and_service.recipient_id, "email": "ada@example.com"}[named_by]
    payment = {"recipient": {named_by: name}, "sourceAmount": "5.00"}
    await request_successfully(gateway, "DELETE", f"{path}/payments/{removed['id']}")
    await request_successfully(gateway, "POST", f"{path}/payments", payment)
    await gateway_and_service.patch_batch(batch, {"payments": [payment]})
    # What a quote decides, and what differs between any two payments.
    excluded = {"exchangeRate", "fxRate", "fees", "recipientFees", "merchantFees"}
    excluded |= {"id", "createdAt", "updatedAt"}
    first, *others = (
        {field: value for field, value in shown.items() if field not in excluded}
        for shown in await gateway_and_service.load_payments(batch)
    )
    assert others == [first, first]
    assert (first["memo"], first["targetCurrency"]) == ("", "USD")


async def test_payments_to_unknown_recipients_are_refused_and_the_batch_is_started(
    gateway_and_service: GatewayAndService,
) -> None:
    gateway = gateway_and_service.gateway
    batch = await gateway_and_service.create_batch(
        {"sourceAmount": "5.00"}, {"sourceAmount": "1.00"}
    )
    removed = (await gateway_and_service.load_payments(batch))[1]["id"]
    unknown = {"recipient": {"id": "R-0000000000000000"}, "sourceAmount": "2.00"}

    async def add_unknown() -> None:
        body = {"payments": [unknown]}
        response = await gateway.request("PATCH", f"/v1/batches/{batch}", body)
        assert response.status == 406, response.text
        assert response.body["errors"][0]["field"] == "payments[0].recipient.id"

    # The service has the batch, or it would become a draft; then it is one.
    await add_unknown()
    await gateway_and_service.patch_batch(batch, {"remove_payments": [{"id": removed}]})
    await add_unknown()
    await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
    (payment,) = await gateway_and_service.load_payments(batch)
    assert payment["sourceAmount"] == "5.00"
