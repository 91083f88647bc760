"""Isolation of two merchants of one gateway: neither reaches objects of the other by any id.

Merchants usually have separate accounts at the service. Two merchants may also share one account,
with separate credentials: the service then shows the same objects to both, and the gateway's own
data (alias ids, drafts, memos, statuses) must stay separate.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.storage import Tenant, open_store
from gateway.storage.id_rows import load_current_ids_by_legacy_id, save_legacy_ids
from mappings import OPERATIONS, UNLISTED
from tests.payouts import (
    create_batch,
    create_recipient,
    load_payment_ids,
    open_gateway_and_service,
    request_successfully,
)
from tests.running_gateway import GatewayResponse, GatewayUnderTest
from tests.simulator import DEMO_CREDENTIALS, Service, ServiceCredentials, ServiceOptions

WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS = pytest.mark.parametrize(
    "inferred", [True, False], ids=["inferred", "documented"]
)


class OtherMerchant:
    """The second merchant of the same gateway."""

    def __init__(self, gateway: GatewayUnderTest, api_key: str) -> None:
        self.gateway = gateway
        self.headers = {"X-API-Key": api_key}

    async def request(self, method: str, path: str, body: Any = None) -> GatewayResponse:
        return await self.gateway.request(method, f"/v1{path}", body, headers=self.headers)


@asynccontextmanager
async def open_two_merchants(
    folder: Path, *, inferred: bool, one_account: bool = False
) -> AsyncIterator[tuple[Service, GatewayUnderTest, OtherMerchant]]:
    account = DEMO_CREDENTIALS.merchant if one_account else "bolt"
    keys = [DEMO_CREDENTIALS, ServiceCredentials("BOLTACCESSKEY", "bolt-secret-key", account)]
    service_options = ServiceOptions(
        inferred=inferred, recipient_id_length=22, processing_seconds=60
    )
    service = Service(credentials=keys, seed=1, options=service_options)
    async with open_gateway_and_service(folder, service) as (gateway, _simulator):
        api_key = await gateway.import_key(
            merchant="bolt",
            api_key="another-api-key-for-tests",
            access_key="BOLTACCESSKEY",
            secret_key="bolt-secret-key",
        )
        yield service, gateway, OtherMerchant(gateway, api_key)


async def load_id_spellings(
    gateway: GatewayUnderTest, merchant: str, *names: str
) -> dict[str, list[str]]:
    """Loads each id in all forms: the client's, the service's and an imported one."""
    tenant = Tenant(merchant, "sandbox")
    async with open_store(gateway.settings.state) as store:
        current = await load_current_ids_by_legacy_id(store, tenant, names)
        imported_ids = {
            f"{name[:2]}OLD{number}": current[name] for number, name in enumerate(names)
        }
        await save_legacy_ids(store, tenant, imported_ids, imported=True)
    ids_by_current = {id_: name for name, id_ in imported_ids.items()}
    return {name: [name, current[name], ids_by_current[current[name]]] for name in names}


PAYMENT = {"sourceAmount": "10.00"}


def build_body(method: str, path: str, ids: dict[str, str]) -> Any:
    """Builds a body for an operation on the ids."""
    if method == "GET" or path.endswith(("generate-quote", "start-processing")):
        return None
    if method == "DELETE":
        key = "recipient" if path == "/recipients" else "batch"
        return {"ids": [ids[key]]} if path in ("/recipients", "/batches") else None
    return {
        "/recipients/{id}": {"firstName": "Eve"},
        "/recipients/{id}/payout-methods": {
            "primary": {"method": "wallet", "currency": "USD"},
            "accounts": {"wallet": {"address": "eve@wallet.example.com"}},
        },
        "/batches": {
            "sourceCurrency": "USD",
            "payments": [{"recipient": {"id": ids["recipient"]}, **PAYMENT}],
        },
        "/batches/{id}": {"update_payments": [{"id": ids["payment"], **PAYMENT}]},
        "/batches/{id}/payments": {"recipient": {"id": ids["recipient"]}, **PAYMENT},
        "/batches/{id}/payments/{payment}": PAYMENT,
    }[path]


def build_requests(ids: dict[str, str]) -> list[tuple[str, str, Any]]:
    """Lists requests of every operation that names an object."""
    requests = []
    for operation in (*OPERATIONS, *UNLISTED):
        kind = operation.path.split("/")[1].removesuffix("s").replace("batche", "batch")
        body = None
        if kind in ids and (operation.path, operation.method) not in {
            ("/recipients", "POST"),
            ("/recipients", "GET"),
            ("/batches", "GET"),
            ("/payments", "GET"),
        }:
            body = build_body(operation.method, operation.path, ids)
            path = operation.path.replace("{id}", ids[kind]).replace("{payment}", ids["payment"])
            requests.append((operation.method, path, body))
    return requests


def test_every_operation_on_an_object_is_covered() -> None:
    ids = {"recipient": "R-1", "batch": "B-1", "payment": "P-1"}
    assert len(build_requests(ids)) == len(OPERATIONS) + len(UNLISTED) - 4 - 4


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
@pytest.mark.parametrize("is_draft", [False, True], ids=["as made", "edited"])
async def test_objects_of_another_merchant_are_unreachable_by_any_id(
    *, inferred: bool, is_draft: bool, tmp_path: Path
) -> None:
    async with open_two_merchants(tmp_path, inferred=inferred) as (service, gateway, other):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        if is_draft:
            body = {"memo": "a secret of demo", "sourceAmount": "6.00"}
            await request_successfully(
                gateway, "PATCH", f"/batches/{batch}/payments/{payment}", body
            )
        batch_before = await request_successfully(gateway, "GET", f"/batches/{batch}")
        id_spellings = await load_id_spellings(gateway, "demo", recipient, batch, payment)
        for number in range(3):
            ids = {
                "recipient": id_spellings[recipient][number],
                "batch": id_spellings[batch][number],
                "payment": id_spellings[payment][number],
            }
            for method, path, body in build_requests(ids):
                response = await other.request(method, path, body)
                assert response.status in (404, 406), (method, path, response.text)
                assert "secret" not in response.text
                assert "ada@" not in response.text
        assert await request_successfully(gateway, "GET", f"/batches/{batch}") == batch_before
        tenant = service.find_or_create_tenant("bolt")
        assert (tenant.recipients, tenant.batches, tenant.payments) == ({}, {}, {})
        assert not service.batch_starts
        for path in ("/batches", "/recipients", "/payments"):
            assert (await other.request("GET", path)).body["meta"]["records"] == 0, path


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
async def test_merchants_have_separate_lists_and_ids(*, inferred: bool, tmp_path: Path) -> None:
    async with open_two_merchants(tmp_path, inferred=inferred) as (_service, gateway, other):
        created_ids = []
        for name, headers in (("ada", {}), ("eve", other.headers)):
            recipient = await create_recipient(gateway, name, headers=headers)
            batch = await create_batch(gateway, recipient, "5.00", headers=headers)
            created_ids.append((recipient, batch, headers))
        for recipient, batch, headers in created_ids:
            batch_list = await request_successfully(gateway, "GET", "/batches", headers=headers)
            assert [row["id"] for row in batch_list["batches"]] == [batch]
            recipient_list = await request_successfully(
                gateway, "GET", "/recipients", headers=headers
            )
            assert [row["id"] for row in recipient_list["recipients"]] == [recipient]
            payments = await request_successfully(gateway, "GET", "/payments", headers=headers)
            assert [payment["batch"]["id"] for payment in payments["payments"]] == [batch]


async def test_lookup_by_email_does_not_find_another_merchants_recipient(
    tmp_path: Path,
) -> None:
    async with open_two_merchants(tmp_path, inferred=True) as (_service, gateway, other):
        await create_recipient(gateway)
        body = {
            "sourceCurrency": "USD",
            "payments": [{"recipient": {"email": "ada@example.com"}, **PAYMENT}],
        }
        await request_successfully(gateway, "POST", "/batches", body)
        response = await other.request("POST", "/batches", body)
        assert response.status == 406
        assert response.body["errors"][0]["field"] == "payments[0].recipient.email"


async def test_imported_id_belongs_to_one_merchant(tmp_path: Path) -> None:
    async with open_two_merchants(tmp_path, inferred=True) as (_service, gateway, other):
        batches = []
        for headers in ({}, other.headers):
            recipient = await create_recipient(gateway, headers=headers)
            batches.append(await create_batch(gateway, recipient, "5.00", headers=headers))
        async with open_store(gateway.settings.state) as store:
            for merchant, batch in zip(("demo", "bolt"), batches, strict=True):
                tenant = Tenant(merchant, "sandbox")
                current_ids = await load_current_ids_by_legacy_id(store, tenant, [batch])
                await save_legacy_ids(store, tenant, {"B-OLD1": current_ids[batch]}, imported=True)
        new_ids = [
            (await request_successfully(gateway, "GET", "/batches/B-OLD1", headers=headers))[
                "batch"
            ]["payments"]
            for headers in ({}, other.headers)
        ]
        assert new_ids[0] != new_ids[1]


# One account, two merchants


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
async def test_alias_ids_are_separate_for_merchants_of_one_account(
    *, inferred: bool, tmp_path: Path
) -> None:
    merchants = open_two_merchants(tmp_path, inferred=inferred, one_account=True)
    async with merchants as (service, gateway, other):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        id_spellings = await load_id_spellings(gateway, "demo", recipient, batch, payment)
        for number in (0, 2):  # the client's name, and an imported one
            ids = {
                "recipient": id_spellings[recipient][number],
                "batch": id_spellings[batch][number],
                "payment": id_spellings[payment][number],
            }
            for method, path, body in build_requests(ids):
                response = await other.request(method, path, body)
                assert response.status in (404, 406), (method, path, response.text)
        assert not service.batch_starts
        assert len(service.find_or_create_tenant().recipients) == 1
        assert (
            len(service.require_batch(next(iter(service.find_or_create_tenant().batches))).payments)
            == 1
        )


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
async def test_gateway_state_is_separate_for_merchants_of_one_account(
    *, inferred: bool, tmp_path: Path
) -> None:
    merchants = open_two_merchants(tmp_path, inferred=inferred, one_account=True)
    async with merchants as (service, gateway, other):
        recipient = await create_recipient(gateway)
        await request_successfully(
            gateway, "PATCH", f"/recipients/{recipient}", {"status": "inactive"}
        )
        (current,) = service.find_or_create_tenant().recipients
        assert (await request_successfully(gateway, "GET", f"/recipients/{recipient}"))[
            "recipient"
        ]["status"] == "inactive"
        response = await other.request("GET", f"/recipients/{current}")
        assert (response.status, response.body["recipient"]["status"]) == (200, "active")
        assert recipient not in response.text


async def test_draft_is_unreachable_for_another_merchant_by_any_id(tmp_path: Path) -> None:
    """The ids are those of the superseded batch, its replacement, and all their payments."""
    async with open_two_merchants(tmp_path, inferred=False) as (service, gateway, other):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00", "6.00")
        removed_id, remaining_id = await load_payment_ids(gateway, batch)
        await request_successfully(
            gateway, "DELETE", f"/batches/{batch}/payments/{removed_id}"
        )  # a draft from here on
        body = {"recipient": {"id": recipient}, **PAYMENT}
        added_id = (
            await request_successfully(gateway, "POST", f"/batches/{batch}/payments", body)
        )["payment"]["id"]
        await request_successfully(
            gateway, "GET", f"/batches/{batch}/summary"
        )  # creates the draft at the service
        tenant = service.find_or_create_tenant()
        batches = [batch, *tenant.batches]
        payments = [removed_id, remaining_id, added_id, *tenant.payments]
        assert (len(batches), len(payments)) == (3, 3 + 4)
        batch_before = await request_successfully(gateway, "GET", f"/batches/{batch}")
        for batch_id in batches:
            for payment_id in payments:
                ids = {"recipient": recipient, "batch": batch_id, "payment": payment_id}
                for method, path, request_body in build_requests(ids):
                    response = await other.request(method, path, request_body)
                    assert response.status in (404, 406), (method, path, response.text)
        assert await request_successfully(gateway, "GET", f"/batches/{batch}") == batch_before
        assert not service.batch_starts
        assert service.find_or_create_tenant("bolt").batches == {}


async def test_batch_change_cannot_name_payments_of_another_merchant(
    tmp_path: Path,
) -> None:
    async with open_two_merchants(tmp_path, inferred=True) as (_service, gateway, other):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        other_recipient = await create_recipient(gateway, "eve", headers=other.headers)
        other_batch = await create_batch(gateway, other_recipient, "7.00", headers=other.headers)
        for change, field in (
            ({"remove_payments": [{"id": payment}]}, "remove_payments[0].id"),
            ({"update_payments": [{"id": payment, **PAYMENT}]}, "update_payments[0].id"),
            ({"payments": [{"id": payment, **PAYMENT}]}, "payments[0].id"),
            (
                {"payments": [{"recipient": {"id": recipient}, **PAYMENT}]},
                "payments[0].recipient.id",
            ),
        ):
            response = await other.request("PATCH", f"/batches/{other_batch}", change)
            assert response.status == 406, response.text
            assert [error["field"] for error in response.body["errors"]] == [field]
        assert await load_payment_ids(gateway, batch) == [payment]
        assert len(await load_payment_ids(gateway, other_batch, headers=other.headers)) == 1


async def test_idempotency_key_belongs_to_one_api_key(tmp_path: Path) -> None:
    """Neither two merchants nor two keys of one merchant share an idempotency key."""
    async with open_two_merchants(tmp_path, inferred=True) as (service, gateway, other):
        second_key = await gateway.import_key(api_key="a-second-api-key-for-tests", name="second")
        body = {"type": "business", "name": "Ada Ltd", "email": "ada@example.com"}
        recipient_ids = []
        for key in (gateway.api_key, other.headers["X-API-Key"], second_key, gateway.api_key):
            headers = {"X-API-Key": key, "Idempotency-Key": "the-same"}
            recipient_ids.append(
                (await request_successfully(gateway, "POST", "/recipients", body, headers=headers))[
                    "recipient"
                ]["id"]
            )
        assert recipient_ids[3] == recipient_ids[0]
        assert len(set(recipient_ids)) == 3
        assert (
            len(service.find_or_create_tenant().recipients),
            len(service.find_or_create_tenant("bolt").recipients),
        ) == (2, 1)
