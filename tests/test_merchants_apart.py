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

from gateway.simulator import DEMO_KEY, Key, Service, Switches
from gateway.storage import Tenant, open_store
from gateway.storage.id_rows import current_ids, keep
from mappings import OPERATIONS, UNLISTED
from tests.house import Got, House
from tests.payday import done, make_batch, make_recipient, open_town, payment_ids

KINDS = pytest.mark.parametrize("inferred", [True, False], ids=["inferred", "documented"])


class Other:
    """The second merchant of the same gateway."""

    def __init__(self, house: House, api_key: str) -> None:
        self.house = house
        self.headers = {"X-API-Key": api_key}

    async def ask(self, method: str, path: str, body: Any = None) -> Got:
        return await self.house.ask(method, f"/v1{path}", body, headers=self.headers)


@asynccontextmanager
async def two_merchants(
    folder: Path, *, inferred: bool, one_account: bool = False
) -> AsyncIterator[tuple[Service, House, Other]]:
    account = DEMO_KEY.merchant if one_account else "bolt"
    keys = [DEMO_KEY, Key("BOLTACCESSKEY", "bolt-secret-key", account)]
    switches = Switches(inferred=inferred, recipient_id_length=22, processing_seconds=60)
    service = Service(keys=keys, seed=1, switches=switches)
    async with open_town(folder, service) as (house, _simulator):
        api_key = await house.import_key(
            merchant="bolt",
            api_key="another-api-key-for-tests",
            access_key="BOLTACCESSKEY",
            secret_key="bolt-secret-key",
        )
        yield service, house, Other(house, api_key)


async def spellings(house: House, merchant: str, *names: str) -> dict[str, list[str]]:
    """Loads each id in all forms: the client's, the service's and an imported one."""
    owner = Tenant(merchant, "sandbox")
    async with open_store(house.settings.state) as store:
        current = await current_ids(store, owner, names)
        old = {f"{name[:2]}OLD{number}": current[name] for number, name in enumerate(names)}
        await keep(store, owner, old, imported=True)
    by_current = {id_: name for name, id_ in old.items()}
    return {name: [name, current[name], by_current[current[name]]] for name in names}


PAYMENT = {"sourceAmount": "10.00"}


def bodies(method: str, path: str, ids: dict[str, str]) -> Any:
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


def requests(ids: dict[str, str]) -> list[tuple[str, str, Any]]:
    """Lists requests of every operation that names an object."""
    asked = []
    for one in (*OPERATIONS, *UNLISTED):
        kind = one.path.split("/")[1].removesuffix("s").replace("batche", "batch")
        body = None
        if kind in ids and (one.path, one.method) not in {
            ("/recipients", "POST"),
            ("/recipients", "GET"),
            ("/batches", "GET"),
            ("/payments", "GET"),
        }:
            body = bodies(one.method, one.path, ids)
            path = one.path.replace("{id}", ids[kind]).replace("{payment}", ids["payment"])
            asked.append((one.method, path, body))
    return asked


def test_every_operation_that_names_an_object_is_asked() -> None:
    ids = {"recipient": "R-1", "batch": "B-1", "payment": "P-1"}
    assert len(requests(ids)) == len(OPERATIONS) + len(UNLISTED) - 4 - 4


@KINDS
@pytest.mark.parametrize("drafted", [False, True], ids=["as made", "edited"])
async def test_no_operation_reaches_another_merchant_s_objects_by_any_spelling(
    *, inferred: bool, drafted: bool, tmp_path: Path
) -> None:
    async with two_merchants(tmp_path, inferred=inferred) as (service, house, other):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00")
        (payment,) = await payment_ids(house, batch)
        if drafted:
            body = {"memo": "a secret of demo", "sourceAmount": "6.00"}
            await done(house, "PATCH", f"/batches/{batch}/payments/{payment}", body)
        before = await done(house, "GET", f"/batches/{batch}")
        spelled = await spellings(house, "demo", recipient, batch, payment)
        for number in range(3):
            ids = {
                "recipient": spelled[recipient][number],
                "batch": spelled[batch][number],
                "payment": spelled[payment][number],
            }
            for method, path, body in requests(ids):
                got = await other.ask(method, path, body)
                assert got.status in (404, 406), (method, path, got.text)
                assert "secret" not in got.text
                assert "ada@" not in got.text
        assert await done(house, "GET", f"/batches/{batch}") == before
        world = service.world("bolt")
        assert (world.recipients, world.batches, world.payments) == ({}, {}, {})
        assert not service.starts
        for path in ("/batches", "/recipients", "/payments"):
            assert (await other.ask("GET", path)).body["meta"]["records"] == 0, path


@KINDS
async def test_each_merchant_has_its_own_lists_and_ids(*, inferred: bool, tmp_path: Path) -> None:
    async with two_merchants(tmp_path, inferred=inferred) as (_service, house, other):
        made = []
        for name, headers in (("ada", {}), ("eve", other.headers)):
            recipient = await make_recipient(house, name, headers=headers)
            batch = await make_batch(house, recipient, "5.00", headers=headers)
            made.append((recipient, batch, headers))
        for recipient, batch, headers in made:
            listed = await done(house, "GET", "/batches", headers=headers)
            assert [one["id"] for one in listed["batches"]] == [batch]
            people = await done(house, "GET", "/recipients", headers=headers)
            assert [one["id"] for one in people["recipients"]] == [recipient]
            payments = await done(house, "GET", "/payments", headers=headers)
            assert [one["batch"]["id"] for one in payments["payments"]] == [batch]


async def test_a_look_up_by_address_is_never_answered_with_another_merchant_s(
    tmp_path: Path,
) -> None:
    async with two_merchants(tmp_path, inferred=True) as (_service, house, other):
        await make_recipient(house)
        body = {
            "sourceCurrency": "USD",
            "payments": [{"recipient": {"email": "ada@example.com"}, **PAYMENT}],
        }
        await done(house, "POST", "/batches", body)
        got = await other.ask("POST", "/batches", body)
        assert got.status == 406
        assert got.body["errors"][0]["field"] == "payments[0].recipient.email"


async def test_an_imported_id_is_its_merchant_s_alone(tmp_path: Path) -> None:
    async with two_merchants(tmp_path, inferred=True) as (_service, house, other):
        batches = []
        for headers in ({}, other.headers):
            recipient = await make_recipient(house, headers=headers)
            batches.append(await make_batch(house, recipient, "5.00", headers=headers))
        async with open_store(house.settings.state) as store:
            for merchant, batch in zip(("demo", "bolt"), batches, strict=True):
                owner = Tenant(merchant, "sandbox")
                found = await current_ids(store, owner, [batch])
                await keep(store, owner, {"B-OLD1": found[batch]}, imported=True)
        created = [
            (await done(house, "GET", "/batches/B-OLD1", headers=headers))["batch"]["payments"]
            for headers in ({}, other.headers)
        ]
        assert created[0] != created[1]


# One account, two merchants


@KINDS
async def test_of_one_account_stand_ins_are_each_merchant_s_own(
    *, inferred: bool, tmp_path: Path
) -> None:
    together = two_merchants(tmp_path, inferred=inferred, one_account=True)
    async with together as (service, house, other):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00")
        (payment,) = await payment_ids(house, batch)
        spelled = await spellings(house, "demo", recipient, batch, payment)
        for number in (0, 2):  # the client's name, and an imported one
            ids = {
                "recipient": spelled[recipient][number],
                "batch": spelled[batch][number],
                "payment": spelled[payment][number],
            }
            for method, path, body in requests(ids):
                got = await other.ask(method, path, body)
                assert got.status in (404, 406), (method, path, got.text)
        assert not service.starts
        assert len(service.world().recipients) == 1
        assert len(service.batch(next(iter(service.world().batches))).payments) == 1


@KINDS
async def test_of_one_account_what_only_the_gateway_knows_is_not_told(
    *, inferred: bool, tmp_path: Path
) -> None:
    together = two_merchants(tmp_path, inferred=inferred, one_account=True)
    async with together as (service, house, other):
        recipient = await make_recipient(house)
        await done(house, "PATCH", f"/recipients/{recipient}", {"status": "inactive"})
        (current,) = service.world().recipients
        assert (await done(house, "GET", f"/recipients/{recipient}"))["recipient"][
            "status"
        ] == "inactive"
        told = await other.ask("GET", f"/recipients/{current}")
        assert (told.status, told.body["recipient"]["status"]) == (200, "active")
        assert recipient not in told.text


async def test_no_id_that_a_draft_ever_had_reaches_it_for_another_merchant(tmp_path: Path) -> None:
    """The ids are those of the superseded batch, its replacement, and all their payments."""
    async with two_merchants(tmp_path, inferred=False) as (service, house, other):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00", "6.00")
        gone, kept = await payment_ids(house, batch)
        await done(house, "DELETE", f"/batches/{batch}/payments/{gone}")  # a draft from here on
        body = {"recipient": {"id": recipient}, **PAYMENT}
        added = (await done(house, "POST", f"/batches/{batch}/payments", body))["payment"]["id"]
        await done(house, "GET", f"/batches/{batch}/summary")  # creates the draft at the service
        world = service.world()
        batches = [batch, *world.batches]
        payments = [gone, kept, added, *world.payments]
        assert (len(batches), len(payments)) == (3, 3 + 4)
        before = await done(house, "GET", f"/batches/{batch}")
        for batch_id in batches:
            for payment_id in payments:
                ids = {"recipient": recipient, "batch": batch_id, "payment": payment_id}
                for method, path, sent in requests(ids):
                    got = await other.ask(method, path, sent)
                    assert got.status in (404, 406), (method, path, got.text)
        assert await done(house, "GET", f"/batches/{batch}") == before
        assert not service.starts
        assert service.world("bolt").batches == {}


async def test_another_merchant_s_payments_cannot_be_named_in_the_change_of_one_s_own_batch(
    tmp_path: Path,
) -> None:
    async with two_merchants(tmp_path, inferred=True) as (_service, house, other):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00")
        (payment,) = await payment_ids(house, batch)
        theirs = await make_recipient(house, "eve", headers=other.headers)
        own = await make_batch(house, theirs, "7.00", headers=other.headers)
        for change, field in (
            ({"remove_payments": [{"id": payment}]}, "remove_payments[0].id"),
            ({"update_payments": [{"id": payment, **PAYMENT}]}, "update_payments[0].id"),
            ({"payments": [{"id": payment, **PAYMENT}]}, "payments[0].id"),
            (
                {"payments": [{"recipient": {"id": recipient}, **PAYMENT}]},
                "payments[0].recipient.id",
            ),
        ):
            got = await other.ask("PATCH", f"/batches/{own}", change)
            assert got.status == 406, got.text
            assert [one["field"] for one in got.body["errors"]] == [field]
        assert await payment_ids(house, batch) == [payment]
        assert len(await payment_ids(house, own, headers=other.headers)) == 1


async def test_an_idempotency_key_is_its_own_key_s_alone(tmp_path: Path) -> None:
    """Neither two merchants nor two keys of one merchant share an idempotency key."""
    async with two_merchants(tmp_path, inferred=True) as (service, house, other):
        second = await house.import_key(api_key="a-second-api-key-for-tests", name="second")
        body = {"type": "business", "name": "Ada Ltd", "email": "ada@example.com"}
        made = []
        for key in (house.api_key, other.headers["X-API-Key"], second, house.api_key):
            headers = {"X-API-Key": key, "Idempotency-Key": "the-same"}
            made.append(
                (await done(house, "POST", "/recipients", body, headers=headers))["recipient"]["id"]
            )
        assert made[3] == made[0]
        assert len(set(made)) == 3
        assert (len(service.world().recipients), len(service.world("bolt").recipients)) == (2, 1)
