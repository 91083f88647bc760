"""What clients call objects: made alike everywhere, recorded before it is told, and never another's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gateway.config.settings import State
from gateway.simulator import Fault, Service, Switches
from gateway.storage import Store, Tenant, open_store
from gateway.storage import alias_ids as house_ids
from gateway.storage.alias_ids import Ids
from gateway.storage.id_rows import Collision, current_ids, keep
from gateway.storage.keyfile import add_key
from gateway.storage.tables import ids as rows
from tests.house import House
from tests.payday import done, make_batch, make_recipient, open_town, payment_ids
from tests.states import fetch

OWNER = Tenant("acme", "live")
LONG, SECOND = "B-912Cx2pScHNSnXXO5P4ngG", "B-912Cx2pScHNSnXXO5P4ngH"
STAND_IN = re.compile("[A-Z]-[A-Z0-9]{16}")


def state_in(folder: Path, name: str = "gateway") -> State:
    return State(url=f"sqlite:///{folder}/{name}.db", encryption_key_file=folder / "gateway.key")


async def recorded(store: Store) -> dict[str, str]:
    return {row.legacy_id: row.current_id for row in await fetch(store, select(rows))}


async def test_two_instances_with_one_key_file_make_the_same_stand_in(tmp_path: Path) -> None:
    told = []
    for name in ("here", "there"):
        async with open_store(state_in(tmp_path, name)) as store:
            told.append(await Ids(store, "all").legacy(OWNER, {("batch", LONG)}))
    assert told[0] == told[1]
    assert STAND_IN.fullmatch(told[0][LONG])


async def test_a_key_that_is_added_changes_no_stand_in(tmp_path: Path) -> None:
    async with open_store(state_in(tmp_path)) as store:
        before = await Ids(store, "all").legacy(OWNER, {("batch", LONG)})
    add_key(tmp_path / "gateway.key")
    async with open_store(state_in(tmp_path, "another")) as store:
        assert await Ids(store, "all").legacy(OWNER, {("batch", LONG)}) == before


async def test_a_stand_in_is_recorded_when_it_is_told_and_stands_for_its_owner_s_object(
    tmp_path: Path,
) -> None:
    async with open_store(state_in(tmp_path)) as store:
        names = await Ids(store, "all").legacy(OWNER, {("batch", LONG), ("recipient", "R-1")})
        assert names.keys() == {LONG}
        assert await recorded(store) == {names[LONG]: LONG}
        fresh = Ids(store, "all")
        assert await fresh.current(OWNER, [names[LONG], "B-other"]) == {names[LONG]: LONG}
        for owner in (Tenant("bolt", "live"), Tenant("acme", "sandbox")):
            assert await fresh.current(owner, [names[LONG]]) == {}


async def test_what_the_very_many_ids_of_a_request_stand_for_is_not_kept_in_memory(
    tmp_path: Path,
) -> None:
    async with open_store(state_in(tmp_path)) as store:
        names = await Ids(store, "all").legacy(OWNER, {("batch", LONG)})
        fresh = Ids(store, "all")
        for keeps in (False, True):
            assert not fresh._current
            assert await fresh.current(OWNER, names.values(), keeps=keeps) == {names[LONG]: LONG}
        assert len(fresh._current) == 1


async def test_a_stand_in_that_stands_for_another_object_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        house_ids, "derive_alias_id", lambda _key, _merchant, _id: "B-SAMESAMESAMESAME"
    )
    async with open_store(state_in(tmp_path)) as store:
        known = Ids(store, "all")
        await known.legacy(OWNER, {("batch", LONG)})
        for _ in range(2):
            with pytest.raises(Collision):
                await known.legacy(OWNER, {("batch", SECOND)})
        assert await recorded(store) == {"B-SAMESAMESAMESAME": LONG}


async def test_two_of_one_answer_that_would_have_the_same_stand_in_are_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        house_ids, "derive_alias_id", lambda _key, _merchant, _id: "B-SAMESAMESAMESAME"
    )
    async with open_store(state_in(tmp_path)) as store:
        with pytest.raises(Collision):
            await Ids(store, "all").legacy(OWNER, {("batch", LONG), ("batch", SECOND)})


async def test_an_imported_name_goes_before_a_stand_in_and_both_are_understood(
    tmp_path: Path,
) -> None:
    async with open_store(state_in(tmp_path)) as store:
        names = await Ids(store, "all").legacy(OWNER, {("batch", LONG)})
        await keep(store, OWNER, {"B-OLD": LONG}, imported=True)
        fresh = Ids(store, "all")
        assert await fresh.legacy(OWNER, {("batch", LONG)}) == {LONG: "B-OLD"}
        both = {"B-OLD": LONG, names[LONG]: LONG}
        assert await fresh.current(OWNER, both) == both


async def test_pairs_are_kept_all_or_none(tmp_path: Path) -> None:
    async with open_store(state_in(tmp_path)) as store:
        await keep(store, OWNER, {"B-1": LONG}, imported=True)
        with pytest.raises(Collision):
            await keep(store, OWNER, {"B-0": SECOND, "B-1": SECOND}, imported=True)
        assert await current_ids(store, OWNER, ["B-0", "B-1"]) == {"B-1": LONG}


# Through the house


def all_ids(text: str) -> set[str]:
    return set(re.findall(r"\b[RBP]-[A-Za-z0-9]+", text))


MODES: dict[str, Any] = {
    "all": {"batch": 16, "payment": 16},
    "batches": {"batch": 16, "payment": 22},
    "none": {"batch": 22, "payment": 22},
}


@pytest.mark.parametrize("mode", MODES)
async def test_the_setting_says_what_has_stand_ins(mode: str, tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_town(tmp_path, service, legacy={"stand_ins": mode}) as (house, _simulator):
        batch = await make_batch(house, await make_recipient(house), "5.00")
        (payment,) = await payment_ids(house, batch)
        lengths = {"batch": len(batch) - 2, "payment": len(payment) - 2}
        assert lengths == MODES[mode]
        shown = await done(house, "GET", f"/batches/{batch}/payments/{payment}")
        assert (shown["payment"]["id"], shown["payment"]["batch"]["id"]) == (payment, batch)


async def test_ids_that_fit_are_never_changed(tmp_path: Path) -> None:
    switches = Switches(batch_id_length=16, payment_id_length=10, recipient_id_length=6)
    service = Service(seed=1, switches=switches)
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00")
        assert recipient in service.world().recipients
        assert batch in service.world().batches
        assert await payment_ids(house, batch) == list(service.batch(batch).payments)


async def test_long_ids_of_recipients_have_stand_ins_everywhere(tmp_path: Path) -> None:
    service = Service(seed=1, switches=Switches(recipient_id_length=22))
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        assert STAND_IN.fullmatch(recipient)
        batch = await make_batch(house, recipient, "5.00")
        (payment,) = await payment_ids(house, batch)
        known = {recipient, batch, payment}
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
            text = (await house.ask("GET", f"/v1{path}")).text
            said = all_ids(re.sub('"avatarUrl":"[^"]*"', "", text))  # an address elsewhere
            assert said, path
            assert said <= known, path


async def current_of(house: House, *legacy_ids: str) -> list[str]:
    async with open_store(house.settings.state) as store:
        found = await recorded(store)
    return [found[one] for one in legacy_ids]


async def test_current_ids_are_accepted_and_an_answer_spells_as_its_request_did(
    tmp_path: Path,
) -> None:
    service = Service(seed=1)
    async with open_town(tmp_path, service) as (house, _simulator):
        batch = await make_batch(house, await make_recipient(house), "5.00")
        (payment,) = await payment_ids(house, batch)
        current, current_payment = await current_of(house, batch, payment)
        assert current in service.world().batches
        whole = (await done(house, "GET", f"/batches/{current}"))["batch"]
        (one,) = whole["payments"]["payments"]
        assert (whole["id"], one["batch"]["id"], one["id"]) == (current, current, payment)
        mixed = (await done(house, "GET", f"/batches/{batch}/payments/{current_payment}"))[
            "payment"
        ]
        assert (mixed["id"], mixed["batch"]["id"]) == (current_payment, batch)
        body = {"update_payments": [{"id": current_payment, "memo": "changed"}]}
        await done(house, "PATCH", f"/batches/{current}", body)
        shown = (await done(house, "GET", f"/batches/{batch}/payments/{payment}"))["payment"]
        assert (shown["id"], shown["memo"]) == (payment, "changed")


async def test_ids_in_error_messages_are_those_that_the_client_knows(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_town(tmp_path, service) as (house, simulator):
        batch = await make_batch(house, await make_recipient(house), "5.00")
        (current,) = await current_of(house, batch)
        problem = {"code": "invalid_status", "message": f"Batch {current} is B-unknown0123456789ab"}
        body = json.dumps({"ok": False, "errors": [problem]}).encode()
        for sent, shown in ((batch, batch), (current, current)):
            simulator.next(Fault("POST", "/v1/batches/*/generate-quote", status=400, body=body))
            got = await house.ask("POST", f"/v1/batches/{sent}/generate-quote")
            assert got.status == 406
            message = got.body["errors"][0]["message"]
            assert message == f"Batch {shown} is B-unknown0123456789ab"


async def test_a_message_about_what_was_made_of_a_draft_has_the_ids_that_the_client_knows(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, switches=Switches(inferred=False))
    async with open_town(tmp_path, service) as (house, simulator):
        batch = await make_batch(house, await make_recipient(house), "5.00")
        (payment,) = await payment_ids(house, batch)
        await done(house, "PATCH", f"/batches/{batch}/payments/{payment}", {"memo": "changed"})
        await done(house, "GET", f"/batches/{batch}/summary")
        (anew,) = list(service.world().batches)[1:]
        (made,) = service.world().batches[anew].payments
        problem = {"code": "invalid_status", "message": f"{made} of {anew} is not ready"}
        body = json.dumps({"ok": False, "errors": [problem]}).encode()
        simulator.next(Fault("POST", "/v1/batches/*/start-processing", status=400, body=body))
        got = await house.ask("POST", f"/v1/batches/{batch}/start-processing")
        assert got.body["errors"][0]["message"] == f"{payment} of {batch} is not ready"


async def test_urls_in_activity_logs_have_the_ids_that_the_client_knows(tmp_path: Path) -> None:
    service = Service(seed=1, switches=Switches(recipient_id_length=22))
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        (current,) = await current_of(house, recipient)
        got = await house.ask("GET", f"/v1/recipients/{recipient}/logs")
        assert current not in got.text
        assert f"/recipients/{recipient}" in got.text


@pytest.mark.parametrize("inferred", [True, False])
async def test_a_search_finds_batches_and_payments_by_the_ids_that_the_client_knows(
    *, inferred: bool, tmp_path: Path
) -> None:
    service = Service(seed=1, switches=Switches(inferred=inferred))
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00", "6.00")
        await make_batch(house, recipient, "5.00")
        (found,) = (await done(house, "GET", f"/batches?search={batch[4:12].lower()}"))["batches"]
        assert found["id"] == batch


async def test_a_search_finds_payments_by_the_ids_that_the_client_knows(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_town(tmp_path, service) as (house, _simulator):
        batch = await make_batch(house, await make_recipient(house), "5.00", "6.00")
        _first, second = await payment_ids(house, batch)
        listed = await done(house, "GET", f"/batches/{batch}/payments?search={second}")
        assert [one["id"] for one in listed["payments"]] == [second]


async def test_a_payment_that_was_added_to_a_draft_is_read_by_its_id(tmp_path: Path) -> None:
    service = Service(seed=1, switches=Switches(inferred=False))
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00")
        (first,) = await payment_ids(house, batch)
        await done(house, "PATCH", f"/batches/{batch}/payments/{first}", {"memo": "a draft now"})
        body = {"recipient": {"id": recipient}, "sourceAmount": "1.00"}
        added = (await done(house, "POST", f"/batches/{batch}/payments", body))["payment"]["id"]
        await done(house, "POST", f"/batches/{batch}/start-processing")
        assert (await done(house, "GET", f"/payments/{added}"))["payment"]["id"] == added


async def test_a_payment_that_was_removed_from_a_draft_is_not_found(tmp_path: Path) -> None:
    service = Service(seed=1, switches=Switches(inferred=False))
    async with open_town(tmp_path, service) as (house, _simulator):
        batch = await make_batch(house, await make_recipient(house), "5.00", "6.00")
        first, _second = await payment_ids(house, batch)
        await done(house, "DELETE", f"/batches/{batch}/payments/{first}")
        assert (await house.ask("GET", f"/v1/batches/{batch}/payments/{first}")).status == 404
        assert (await house.ask("GET", f"/v1/payments/{first}")).status == 404


async def test_payments_keep_their_ids_when_the_summary_of_a_new_batch_cannot_be_read(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, switches=Switches(inferred=False))
    async with open_town(tmp_path, service) as (house, _simulator):
        batch = await make_batch(house, await make_recipient(house), "5.00")
        (payment,) = await payment_ids(house, batch)
        await done(house, "PATCH", f"/batches/{batch}/payments/{payment}", {"memo": "changed"})
        service.faults.append(Fault("GET", "/v1/batch/*/summary", status=500, times=1))
        await house.ask("POST", f"/v1/batches/{batch}/generate-quote")
        service.faults.clear()
        assert await payment_ids(house, batch) == [payment]
