"""Alias ids: deterministic, recorded before they are sent, and never shared by two objects."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gateway.config.settings import State
from gateway.storage import Store, Tenant, open_store
from gateway.storage import alias_ids as house_ids
from gateway.storage.alias_ids import AliasIds
from gateway.storage.id_rows import IdCollisionError, load_current_ids_by_legacy_id, save_legacy_ids
from gateway.storage.key_file import add_encryption_key
from gateway.storage.tables import legacy_ids as rows
from tests.payouts import (
    create_batch,
    create_recipient,
    load_payment_ids,
    open_gateway_and_service,
    request_successfully,
)
from tests.running_gateway import KEY, GatewayUnderTest
from tests.simulator import Fault, Service, ServiceOptions
from tests.state import fetch

TENANT = Tenant("acme", "live")
FIRST_CURRENT_ID, SECOND_CURRENT_ID = "B-912Cx2pScHNSnXXO5P4ngG", "B-912Cx2pScHNSnXXO5P4ngH"
ALIAS_ID = re.compile("[A-Z]-[A-Z0-9]{16}")


def build_state(folder: Path, name: str = "gateway") -> State:
    return State(url=f"sqlite:///{folder}/{name}.db", encryption_key_file=folder / "gateway.key")


async def load_recorded_ids(store: Store) -> dict[str, str]:
    return {row.legacy_id: row.current_id for row in await fetch(store, select(rows))}


async def test_instances_with_one_key_file_derive_the_same_alias_id(tmp_path: Path) -> None:
    legacy_ids_by_instance = []
    for name in ("here", "there"):
        async with open_store(build_state(tmp_path, name)) as store:
            legacy_ids_by_instance.append(
                await AliasIds(store, "all").find_or_create_legacy_ids(
                    TENANT, {("batch", FIRST_CURRENT_ID)}
                )
            )
    assert legacy_ids_by_instance[0] == legacy_ids_by_instance[1]
    assert ALIAS_ID.fullmatch(legacy_ids_by_instance[0][FIRST_CURRENT_ID])


async def test_added_encryption_key_changes_no_alias_id(tmp_path: Path) -> None:
    async with open_store(build_state(tmp_path)) as store:
        legacy_ids_before = await AliasIds(store, "all").find_or_create_legacy_ids(
            TENANT, {("batch", FIRST_CURRENT_ID)}
        )
    add_encryption_key(tmp_path / "gateway.key")
    async with open_store(build_state(tmp_path, "another")) as store:
        assert (
            await AliasIds(store, "all").find_or_create_legacy_ids(
                TENANT, {("batch", FIRST_CURRENT_ID)}
            )
            == legacy_ids_before
        )


async def test_alias_id_is_recorded_before_it_is_sent_and_resolves_for_its_tenant(
    tmp_path: Path,
) -> None:
    async with open_store(build_state(tmp_path)) as store:
        names = await AliasIds(store, "all").find_or_create_legacy_ids(
            TENANT, {("batch", FIRST_CURRENT_ID), ("recipient", "R-1")}
        )
        assert names.keys() == {FIRST_CURRENT_ID}
        assert await load_recorded_ids(store) == {names[FIRST_CURRENT_ID]: FIRST_CURRENT_ID}
        fresh_alias_ids = AliasIds(store, "all")
        assert await fresh_alias_ids.map_legacy_to_current_ids(
            TENANT, [names[FIRST_CURRENT_ID], "B-other"]
        ) == {names[FIRST_CURRENT_ID]: FIRST_CURRENT_ID}
        for other_tenant in (Tenant("bolt", "live"), Tenant("acme", "sandbox")):
            assert (
                await fresh_alias_ids.map_legacy_to_current_ids(
                    other_tenant, [names[FIRST_CURRENT_ID]]
                )
                == {}
            )


async def test_ids_of_large_request_are_not_cached(
    tmp_path: Path,
) -> None:
    async with open_store(build_state(tmp_path)) as store:
        names = await AliasIds(store, "all").find_or_create_legacy_ids(
            TENANT, {("batch", FIRST_CURRENT_ID)}
        )
        fresh_alias_ids = AliasIds(store, "all")
        for is_cached in (False, True):
            assert not fresh_alias_ids._current_ids
            assert await fresh_alias_ids.map_legacy_to_current_ids(
                TENANT, names.values(), is_cached=is_cached
            ) == {names[FIRST_CURRENT_ID]: FIRST_CURRENT_ID}
        assert len(fresh_alias_ids._current_ids) == 1


async def test_alias_id_of_another_object_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        house_ids, "derive_alias_id", lambda _key, _merchant, _id: "B-SAMESAMESAMESAME"
    )
    async with open_store(build_state(tmp_path)) as store:
        alias_ids = AliasIds(store, "all")
        await alias_ids.find_or_create_legacy_ids(TENANT, {("batch", FIRST_CURRENT_ID)})
        for _ in range(2):
            with pytest.raises(IdCollisionError):
                await alias_ids.find_or_create_legacy_ids(TENANT, {("batch", SECOND_CURRENT_ID)})
        assert await load_recorded_ids(store) == {"B-SAMESAMESAMESAME": FIRST_CURRENT_ID}


async def test_colliding_alias_ids_of_one_answer_are_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        house_ids, "derive_alias_id", lambda _key, _merchant, _id: "B-SAMESAMESAMESAME"
    )
    async with open_store(build_state(tmp_path)) as store:
        with pytest.raises(IdCollisionError):
            await AliasIds(store, "all").find_or_create_legacy_ids(
                TENANT, {("batch", FIRST_CURRENT_ID), ("batch", SECOND_CURRENT_ID)}
            )


async def test_imported_id_precedes_alias_id_and_both_resolve(
    tmp_path: Path,
) -> None:
    async with open_store(build_state(tmp_path)) as store:
        names = await AliasIds(store, "all").find_or_create_legacy_ids(
            TENANT, {("batch", FIRST_CURRENT_ID)}
        )
        await save_legacy_ids(store, TENANT, {"B-OLD": FIRST_CURRENT_ID}, imported=True)
        fresh_alias_ids = AliasIds(store, "all")
        assert await fresh_alias_ids.find_or_create_legacy_ids(
            TENANT, {("batch", FIRST_CURRENT_ID)}
        ) == {FIRST_CURRENT_ID: "B-OLD"}
        names_of_batch = {"B-OLD": FIRST_CURRENT_ID, names[FIRST_CURRENT_ID]: FIRST_CURRENT_ID}
        assert (
            await fresh_alias_ids.map_legacy_to_current_ids(TENANT, names_of_batch)
            == names_of_batch
        )


async def test_id_pairs_are_saved_all_or_none(tmp_path: Path) -> None:
    async with open_store(build_state(tmp_path)) as store:
        await save_legacy_ids(store, TENANT, {"B-1": FIRST_CURRENT_ID}, imported=True)
        with pytest.raises(IdCollisionError):
            await save_legacy_ids(
                store, TENANT, {"B-0": SECOND_CURRENT_ID, "B-1": SECOND_CURRENT_ID}, imported=True
            )
        assert await load_current_ids_by_legacy_id(store, TENANT, ["B-0", "B-1"]) == {
            "B-1": FIRST_CURRENT_ID
        }


# Through the gateway


def find_ids(text: str) -> set[str]:
    return set(re.findall(r"\b[RBP]-[A-Za-z0-9]+", text))


ID_LENGTHS_BY_MODE: dict[str, Any] = {
    "all": {"batch": 16, "payment": 16},
    "batches": {"batch": 16, "payment": 22},
    "none": {"batch": 22, "payment": 22},
}


@pytest.mark.parametrize("stand_in_setting", ID_LENGTHS_BY_MODE)
async def test_setting_selects_which_ids_have_aliases(
    stand_in_setting: str, tmp_path: Path
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(
        tmp_path, service, legacy={"stand_ins": stand_in_setting}
    ) as (
        gateway,
        _simulator,
    ):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        id_lengths = {"batch": len(batch) - 2, "payment": len(payment) - 2}
        assert id_lengths == ID_LENGTHS_BY_MODE[stand_in_setting]
        body = await request_successfully(gateway, "GET", f"/batches/{batch}/payments/{payment}")
        assert (body["payment"]["id"], body["payment"]["batch"]["id"]) == (payment, batch)


async def test_short_ids_are_never_replaced(tmp_path: Path) -> None:
    switches = ServiceOptions(batch_id_length=16, payment_id_length=10, recipient_id_length=6)
    service = Service(seed=1, options=switches)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        assert recipient in service.find_or_create_tenant().recipients
        assert batch in service.find_or_create_tenant().batches
        assert await load_payment_ids(gateway, batch) == list(service.require_batch(batch).payments)


async def test_long_recipient_ids_have_aliases_everywhere(tmp_path: Path) -> None:
    service = Service(seed=1, options=ServiceOptions(recipient_id_length=22))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        assert ALIAS_ID.fullmatch(recipient)
        batch = await create_batch(gateway, recipient, "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        known_ids = {recipient, batch, payment}
        for path in (
            f"/recipients/{recipient}",
            "/recipients",
            f"/recipients/{recipient}/payments",
            f"/recipients/{recipient}/logs",
            f"/batches/{batch}",
            "/batches",
            f"/batches/{batch}/payments",
            f"/batches/{batch}/payments/{payment}",
            f"/payments/{payment}",
            "/payments",
        ):
            text = (await gateway.request("GET", f"/v1{path}")).text
            ids_in_text = find_ids(re.sub('"avatarUrl":"[^"]*"', "", text))  # a URL of another host
            assert ids_in_text, path
            assert ids_in_text <= known_ids, path


async def resolve_current_ids(gateway: GatewayUnderTest, *legacy_ids: str) -> list[str]:
    async with open_store(gateway.settings.state) as store:
        recorded_ids = await load_recorded_ids(store)
    return [recorded_ids[id_] for id_ in legacy_ids]


async def test_current_ids_are_accepted_and_echoed(
    tmp_path: Path,
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        current_batch, current_payment = await resolve_current_ids(gateway, batch, payment)
        assert current_batch in service.find_or_create_tenant().batches
        batch_details = (await request_successfully(gateway, "GET", f"/batches/{current_batch}"))[
            "batch"
        ]
        (listed_payment,) = batch_details["payments"]["payments"]
        assert (batch_details["id"], listed_payment["batch"]["id"], listed_payment["id"]) == (
            current_batch,
            current_batch,
            payment,
        )
        mixed_payment = (
            await request_successfully(
                gateway, "GET", f"/batches/{batch}/payments/{current_payment}"
            )
        )["payment"]
        assert (mixed_payment["id"], mixed_payment["batch"]["id"]) == (current_payment, batch)
        body = {"update_payments": [{"id": current_payment, "memo": "changed"}]}
        await request_successfully(gateway, "PATCH", f"/batches/{current_batch}", body)
        changed_payment = (
            await request_successfully(gateway, "GET", f"/batches/{batch}/payments/{payment}")
        )["payment"]
        assert (changed_payment["id"], changed_payment["memo"]) == (payment, "changed")


async def test_error_messages_use_client_ids(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        (current_id,) = await resolve_current_ids(gateway, batch)
        problem = {
            "code": "invalid_status",
            "message": f"Batch {current_id} is B-unknown0123456789ab",
        }
        body = json.dumps({"ok": False, "errors": [problem]}).encode()
        for sent_id, expected_id in ((batch, batch), (current_id, current_id)):
            simulator.service.faults.append(
                Fault("POST", "/v1/batches/*/generate-quote", status=400, body=body)
            )
            response = await gateway.request("POST", f"/v1/batches/{sent_id}/generate-quote")
            assert response.status == 406
            message = response.body["errors"][0]["message"]
            assert message == f"Batch {expected_id} is B-unknown0123456789ab"


async def test_error_message_about_created_draft_uses_client_ids(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False))
    async with open_gateway_and_service(tmp_path, service) as (gateway, simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        await request_successfully(
            gateway, "PATCH", f"/batches/{batch}/payments/{payment}", {"memo": "changed"}
        )
        await request_successfully(gateway, "GET", f"/batches/{batch}/summary")
        (replacement_batch,) = list(service.find_or_create_tenant().batches)[1:]
        (replacement_payment,) = service.find_or_create_tenant().batches[replacement_batch].payments
        problem = {
            "code": "invalid_status",
            "message": f"{replacement_payment} of {replacement_batch} is not ready",
        }
        body = json.dumps({"ok": False, "errors": [problem]}).encode()
        simulator.service.faults.append(
            Fault("POST", "/v1/batches/*/start-processing", status=400, body=body)
        )
        response = await gateway.request("POST", f"/v1/batches/{batch}/start-processing")
        assert response.body["errors"][0]["message"] == f"{payment} of {batch} is not ready"


async def test_urls_in_activity_logs_use_client_ids(tmp_path: Path) -> None:
    service = Service(seed=1, options=ServiceOptions(recipient_id_length=22))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        (current_id,) = await resolve_current_ids(gateway, recipient)
        response = await gateway.request("GET", f"/v1/recipients/{recipient}/logs")
        assert current_id not in response.text
        assert f"/recipients/{recipient}" in response.text


@pytest.mark.parametrize("has_optional_endpoints", [True, False])
async def test_search_finds_batches_and_payments_by_client_ids(
    *, has_optional_endpoints: bool, tmp_path: Path
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=has_optional_endpoints))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00", "6.00")
        await create_batch(gateway, recipient, "5.00")
        (found_batch,) = (
            await request_successfully(gateway, "GET", f"/batches?search={batch[4:12].lower()}")
        )["batches"]
        assert found_batch["id"] == batch


async def test_payment_search_uses_client_ids(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00", "6.00")
        _first_payment, second = await load_payment_ids(gateway, batch)
        payment_list = await request_successfully(
            gateway, "GET", f"/batches/{batch}/payments?search={second}"
        )
        assert [payment["id"] for payment in payment_list["payments"]] == [second]


async def test_payment_added_to_draft_is_read_by_its_id(tmp_path: Path) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (first,) = await load_payment_ids(gateway, batch)
        await request_successfully(
            gateway, "PATCH", f"/batches/{batch}/payments/{first}", {"memo": "a draft now"}
        )
        body = {"recipient": {"id": recipient}, "sourceAmount": "1.00"}
        added_payment_id = (
            await request_successfully(gateway, "POST", f"/batches/{batch}/payments", body)
        )["payment"]["id"]
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        assert (await request_successfully(gateway, "GET", f"/payments/{added_payment_id}"))[
            "payment"
        ]["id"] == added_payment_id


async def test_payment_removed_from_draft_is_not_found(tmp_path: Path) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00", "6.00")
        first, _second_payment = await load_payment_ids(gateway, batch)
        await request_successfully(gateway, "DELETE", f"/batches/{batch}/payments/{first}")
        assert (await gateway.request("GET", f"/v1/batches/{batch}/payments/{first}")).status == 404
        assert (await gateway.request("GET", f"/v1/payments/{first}")).status == 404


async def test_payments_keep_ids_if_summary_of_new_batch_is_unreadable(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=False))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        await request_successfully(
            gateway, "PATCH", f"/batches/{batch}/payments/{payment}", {"memo": "changed"}
        )
        service.faults.append(Fault("GET", "/v1/batch/*/summary", status=500, times=1))
        await gateway.request("POST", f"/v1/batches/{batch}/generate-quote")
        service.faults.clear()
        assert await load_payment_ids(gateway, batch) == [payment]


async def test_existing_object_in_the_response_to_a_create_has_its_imported_id(
    tmp_path: Path,
) -> None:
    """As of a service that creates no second recipient with an address."""
    service = Service(seed=1)
    (existing,) = service.seed_recipients(1, seed=2)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _):
        async with open_store(gateway.settings.state) as store:
            tenant = Tenant(KEY["merchant"], KEY["environment"])
            await save_legacy_ids(store, tenant, {"R-OLD": existing.id}, imported=True)
        shown = {**existing.fields, "id": existing.id, "status": "active"}
        body = json.dumps({"ok": True, "recipient": shown}, default=str).encode()
        service.faults.append(Fault("POST", "/v1/recipients", status=200, body=body))
        assert await create_recipient(gateway) == "R-OLD"
