"""Batches that are used through both interfaces at once: an edit and a start never both win."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator import Fault, Service, Simulator, Switches, payments
from gateway.storage import Ledger, Tenant, open_store
from gateway.writes.player import Player
from mappings.batch_bodies import SIGNED_ADDS
from mappings.effects import AwaitFacts
from tests.house import House
from tests.operating import eventually, post
from tests.payday import done, make_batch, make_recipient, open_town, payment_ids
from tests.signed import Client, asked, refused
from tests.sockets import Heard, until, wire

OWNER = Tenant("demo", "sandbox")
CLIENT = Client()
FROZEN = (500, "internal_server_error")
WRONG_STATUS = (400, "invalid_status")
SERVICES = pytest.mark.parametrize("inferred", [True, False], ids=["inferred", "documented"])


def service_of(*, inferred: bool) -> Service:
    return Service(seed=1, switches=Switches(inferred=inferred, processing_seconds=60))


async def signed(house: House, method: str, path: str, body: bytes = b"") -> Heard:
    headers = ["Content-Type: application/json"] if body else []
    data = CLIENT.request(method, f"/v1{path}", body, *headers, stamp=int(time.time()))
    return await asked(house, data)


async def begin(house: House, upstream: str) -> Heard:
    return await signed(house, "POST", f"/batches/{upstream}/start-processing")


async def facts_of(house: House, upstream: str, kind: str = "batch") -> dict[str, Any]:
    async with open_store(house.settings.state) as store:
        ledger = Ledger(store)
        alias = await ledger.recall(OWNER, "alias", upstream)
        return (
            alias
            if kind == "alias"
            else await ledger.recall(OWNER, kind, alias.get("id", upstream))
        )


def upstream_ids(simulator: Simulator) -> list[str]:
    """Lists the service's ids of the batches in the order of creation."""
    return list(simulator.service.world().batches)


async def edit(house: House, batch: str, amount: str = "9.00") -> Any:
    (payment,) = await payment_ids(house, batch)
    body = {"sourceAmount": amount}
    return await house.ask("PATCH", f"/v1/batches/{batch}/payments/{payment}", body)


async def open_batch(house: House, simulator: Simulator) -> tuple[str, str, str]:
    """Creates a batch that pays 5.00; returns recipient, batch and the service's batch id."""
    recipient = await make_recipient(house)
    batch = await make_batch(house, recipient, "5.00")
    (upstream,) = upstream_ids(simulator)
    return recipient, batch, upstream


@SERVICES
async def test_a_batch_made_through_the_legacy_face_is_started_through_the_signed_one(
    *, inferred: bool, tmp_path: Path
) -> None:
    async with open_town(tmp_path, service_of(inferred=inferred)) as (house, simulator):
        batch = await make_batch(house, await make_recipient(house), "5.00")
        (upstream,) = upstream_ids(simulator)
        answer = await begin(house, upstream)
        assert answer.status == 200
        assert answer.json["batch"]["id"] == upstream
        facts = await facts_of(house, upstream)
        assert (facts["phase"], facts["version"]) == ("sent", 2)
        assert facts["started"]
        assert (await done(house, "GET", f"/batches/{batch}"))["batch"]["status"] == "processing"
        again = await house.ask("POST", f"/v1/batches/{batch}/start-processing")
        assert (again.status, again.body["errors"][0]["code"]) == (406, "invalid_status")
        assert (await edit(house, batch)).status == 406
    assert len(simulator.service.starts) == 1


async def test_an_abandoned_batch_is_never_started_nor_changed_and_the_one_in_its_place_is(
    tmp_path: Path,
) -> None:
    async with open_town(tmp_path, service_of(inferred=False)) as (house, simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00")
        (first,) = upstream_ids(simulator)
        assert (await edit(house, batch)).status == 200
        assert (await facts_of(house, first, "alias"))["abandoned"]
        calls = len(simulator.service.calls("POST")) + len(simulator.service.calls("PATCH"))
        assert refused(await begin(house, first)) == WRONG_STATUS
        payment = b'{"recipient":{"id":"%s"},"amount":"1.00","currency":"USD"}' % recipient.encode()
        for method, path in (
            ("POST", f"/batches/{first}/payments"),
            ("POST", f"/batches/{first}/generate-quote"),
            ("PATCH", f"/batches/{first}"),
            ("DELETE", f"/batches/{first}"),
            ("POST", f"/batches/%{ord('B'):x}{first[1:]}/start-processing/"),
        ):
            body = b"" if method == "DELETE" else payment
            assert refused(await signed(house, method, path, body)) == WRONG_STATUS
        assert len(simulator.service.calls("POST")) + len(simulator.service.calls("PATCH")) == calls
        assert (await signed(house, "GET", f"/batch/{first}/summary")).status == 200
        await done(house, "POST", f"/batches/{batch}/generate-quote")
        second = upstream_ids(simulator)[1]
        assert (await begin(house, second)).status == 200
        assert refused(await begin(house, first)) == WRONG_STATUS
        assert (await done(house, "GET", f"/batches/{batch}"))["batch"]["status"] == "processing"
    (started,) = simulator.service.starts
    assert started.batch_id == second


@SERVICES
async def test_of_an_edit_there_and_a_start_here_at_once_one_wins(
    *, inferred: bool, tmp_path: Path
) -> None:
    service = service_of(inferred=inferred)
    async with open_town(tmp_path, service) as (house, simulator):
        recipient = await make_recipient(house)
        for number in range(25):
            batch = await make_batch(house, recipient, "5.00")
            upstream = upstream_ids(simulator)[-1]
            (payment,) = await payment_ids(house, batch)
            service.starts.clear()

            async def change(
                batch: str = batch, payment: str = payment, number: int = number
            ) -> Any:
                await asyncio.sleep(number % 5 / 1000)
                body = {"sourceAmount": "9.00"}
                return await house.ask("PATCH", f"/v1/batches/{batch}/payments/{payment}", body)

            edited, started = await asyncio.gather(change(), begin(house, upstream))
            assert edited.status in (200, 406)
            assert started.status == 200 or refused(started) == WRONG_STATUS
            assert 200 in (edited.status, started.status)
            assert len(service.starts) == (started.status == 200)
            if started.status == 200:
                # What was paid is what was answered, and nothing is paid a second time.
                paid = [one.terms.source for one in service.batch(upstream).payments.values()]
                assert [str(one) for one in paid] == ["9.00" if edited.status == 200 else "5.00"]
                again = await house.ask("POST", f"/v1/batches/{batch}/start-processing")
                assert again.status == 406
                assert len(service.starts) == 1


@SERVICES
async def test_a_start_that_is_under_way_here_keeps_an_edit_out_there(
    *, inferred: bool, tmp_path: Path
) -> None:
    async with open_town(tmp_path, service_of(inferred=inferred)) as (house, simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00")
        upstream = upstream_ids(simulator)[-1]
        fault = Fault("POST", "/v1/batches/*/start-processing", delay=0.5)
        simulator.next(fault)
        starting = asyncio.ensure_future(begin(house, upstream))
        await asyncio.sleep(0.2)
        assert (await edit(house, batch)).status == 406
        assert refused(await begin(house, upstream)) == WRONG_STATUS
        assert (await starting).status == 200
    assert len(simulator.service.starts) == 1


async def test_a_batch_made_elsewhere_is_started_once_and_can_be_read_and_listed_afterwards(
    tmp_path: Path,
) -> None:
    async with open_town(tmp_path, service_of(inferred=False)) as (house, simulator):
        recipient = await make_recipient(house)
        listed = await done(house, "GET", f"/recipients/{recipient}")
        assert listed
        (theirs,) = simulator.service.world().recipients
        made = await signed(
            house,
            "POST",
            "/batches",
            b'{"currency":"USD","payments":[{"recipient":{"id":"%s"},"amount":"5.00","currency":"USD"}]}'
            % theirs.encode(),
        )
        assert made.status == 200
        upstream = made.json["batch"]["id"]
        assert (await begin(house, upstream)).status == 200
        again = await begin(house, upstream)
        assert refused(again) == WRONG_STATUS  # the service's own word: the ledger let it go on
        assert len(simulator.service.calls("POST", "/v1/batches/*/start-processing")) == 2
        assert (await done(house, "GET", f"/batches/{upstream}"))["batch"]["status"] == "processing"
        rows = (await done(house, "GET", "/batches"))["batches"]
        assert [row["status"] for row in rows] == ["processing"]
        assert (await edit(house, upstream)).status == 406
    assert len(simulator.service.starts) == 1


def adds(recipient: str, amount: str) -> bytes:
    payment = {"recipient": {"id": recipient}, "amount": amount, "currency": "USD"}
    return json.dumps(payment).encode()


@SERVICES
async def test_what_is_added_here_while_it_is_edited_there_is_paid(
    tmp_path: Path, *, inferred: bool
) -> None:
    async with open_town(tmp_path, service_of(inferred=inferred)) as (house, simulator):
        recipient, batch, upstream = await open_batch(house, simulator)
        path = f"/batches/{upstream}/payments"
        simulator.service.faults.append(Fault("POST", f"/v1{path}", delay=0.6))
        adding = asyncio.ensure_future(signed(house, "POST", path, adds(recipient, "7.00")))
        await asyncio.sleep(0.2)
        edited, added = await edit(house, batch), await adding
        assert (edited.status, added.status) == (200, 200)
        started = await done(house, "POST", f"/batches/{batch}/start-processing")
        assert started["batch"]["amount"] == "16.00"
        assert len(simulator.service.starts) == 1
        whole = (await done(house, "GET", f"/batches/{batch}"))["batch"]["payments"]["payments"]
        assert sorted(one["sourceAmount"] for one in whole) == ["7.00", "9.00"]


async def test_what_is_added_here_after_an_edit_there_has_read_the_batch_is_paid(
    tmp_path: Path,
) -> None:
    async with open_town(tmp_path, service_of(inferred=False)) as (house, simulator):
        recipient, batch, upstream = await open_batch(house, simulator)
        (payment,) = await payment_ids(house, batch)
        simulator.service.faults.append(
            Fault("GET", f"/v1/batch/{upstream}/summary", answer_delay=0.5)
        )
        path, change = f"/v1/batches/{batch}/payments/{payment}", {"sourceAmount": "9.00"}
        editing = asyncio.ensure_future(house.ask("PATCH", path, change))
        await asyncio.sleep(0.2)
        added = await signed(
            house, "POST", f"/batches/{upstream}/payments", adds(recipient, "7.00")
        )
        assert (added.status, editing.done(), (await editing).status) == (200, False, 200)
        started = await done(house, "POST", f"/batches/{batch}/start-processing")
        assert started["batch"]["amount"] == "16.00"


async def test_what_is_added_here_while_an_edit_there_makes_a_draft_is_refused(
    tmp_path: Path,
) -> None:
    async with open_town(tmp_path, service_of(inferred=False)) as (house, simulator):
        recipient, batch, upstream = await open_batch(house, simulator)
        path = f"/batches/{upstream}/payments"
        # Each look at the batch takes a while: the one for the path comes once it is taken.
        summary = f"/v1/batch/{upstream}/summary"
        simulator.service.faults.append(Fault("GET", summary, delay=0.4, times=9))
        editing = asyncio.ensure_future(edit(house, batch))

        async def is_taken() -> bool:
            return (await facts_of(house, upstream)).get("phase") == "editing"

        await eventually(is_taken)
        added, edited = await signed(house, "POST", path, adds(recipient, "7.00")), await editing
        assert edited.status == 200
        assert refused(added) == WRONG_STATUS
        assert simulator.service.calls("POST", f"/v1{path}") == []


async def test_an_addition_here_whose_answer_is_lost_holds_edits_up_there_until_it_is_over(
    tmp_path: Path,
) -> None:
    sections = {"upstream": {"timeout_seconds": 1}}
    async with open_town(tmp_path, service_of(inferred=False), **sections) as (house, simulator):
        recipient, batch, upstream = await open_batch(house, simulator)
        path = f"/batches/{upstream}/payments"
        (payment,) = await payment_ids(house, batch)
        edit = partial(
            house.ask, "PATCH", f"/v1/batches/{batch}/payments/{payment}", {"sourceAmount": "9.00"}
        )
        simulator.service.faults.append(Fault("POST", f"/v1{path}", close="after"))
        assert (await signed(house, "POST", path, adds(recipient, "7.00"))).status == 500
        edited = await edit()
        assert (edited.status, edited.headers["Retry-After"]) == (500, "1")
        async with open_store(house.settings.state) as store:
            lost = {"lost": "2026-01-01T00:00:00+00:00"}
            await Ledger(store).record(OWNER, "signed", upstream, lost)
        assert (await edit()).status == 200
        started = await done(house, "POST", f"/batches/{batch}/start-processing")
        assert started["batch"]["amount"] == "16.00"


@SERVICES
async def test_an_edit_that_met_a_start_which_is_refused_edits_what_is_there(
    *, inferred: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway has no record of a batch that was created elsewhere."""
    plain, over = Player._awaited, asyncio.Event()

    async def awaited(player: Player, step: AwaitFacts, owner: Tenant) -> Any:
        await over.wait()
        return await plain(player, step, owner)

    monkeypatch.setattr(Player, "_awaited", awaited)
    async with open_town(tmp_path, service_of(inferred=inferred)) as (house, simulator):
        recipient = await make_recipient(house)
        payment = {"recipient": {"id": recipient}, "amount": "5.00", "currency": "USD"}
        body = json.dumps({"currency": "USD", "payments": [payment]}).encode()
        batch = (await signed(house, "POST", "/batches", body)).json["batch"]["id"]
        refusal = b'{"ok":false,"errors":[{"code":"expired_quote","message":"Quote expired"}]}'
        start, read = "/v1/batches/*/start-processing", "/v1/batch/*/summary"
        simulator.next(Fault("POST", start, status=400, body=refusal, delay=1.2))
        simulator.next(Fault("GET", read, answer_delay=0.8))
        more = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        adding = asyncio.ensure_future(house.ask("POST", f"/v1/batches/{batch}/payments", more))
        await asyncio.sleep(0.1)
        assert refused(await begin(house, batch)) == (400, "expired_quote")
        over.set()
        assert (await adding).status == 200
        assert (await facts_of(house, batch))["upstream"] == batch
        shown = (await done(house, "GET", f"/batches/{batch}"))["batch"]
        assert (shown["amount"], shown["currency"]) == ("12.00", "USD")
        await done(house, "POST", f"/batches/{batch}/start-processing")
    (started,) = simulator.service.starts
    assert len(simulator.service.batch(started.batch_id).payments) == 2


async def test_a_start_that_is_refused_there_can_be_tried_again(tmp_path: Path) -> None:
    async with open_town(tmp_path, service_of(inferred=True)) as (house, simulator):
        await make_batch(house, await make_recipient(house), "5.00")
        (upstream,) = upstream_ids(simulator)
        body = b'{"ok":false,"errors":[{"code":"expired_quote","message":"Quote expired"}]}'
        simulator.next(Fault("POST", "/v1/batches/*/start-processing", status=400, body=body))
        assert refused(await begin(house, upstream)) == (400, "expired_quote")
        assert (await facts_of(house, upstream))["phase"] == "sent"
        assert (await begin(house, upstream)).status == 200


async def test_a_start_whose_answer_is_lost_is_not_sent_again_and_keeps_the_batch(
    tmp_path: Path,
) -> None:
    async with open_town(tmp_path, service_of(inferred=True)) as (house, simulator):
        batch = await make_batch(house, await make_recipient(house), "5.00")
        (upstream,) = upstream_ids(simulator)
        simulator.next(Fault("POST", "/v1/batches/*/start-processing", close="after"))
        assert refused(await begin(house, upstream)) == (500, "internal_server_error")
        assert (await facts_of(house, upstream))["phase"] == "starting"
        assert refused(await begin(house, upstream)) == WRONG_STATUS
        assert (await edit(house, batch)).status == 406
    assert len(simulator.service.starts) == 1


async def test_a_start_that_never_left_leaves_the_batch_as_it_was(tmp_path: Path) -> None:
    async with open_town(tmp_path, service_of(inferred=True)) as (house, simulator):
        await make_batch(house, await make_recipient(house), "5.00")
        (upstream,) = upstream_ids(simulator)
        await simulator.stop()
        assert refused(await begin(house, upstream)) == (500, "internal_server_error")
        assert (await facts_of(house, upstream))["phase"] == "sent"


async def test_a_client_that_goes_away_leaves_its_start_to_be_answered(tmp_path: Path) -> None:
    async with open_town(tmp_path, service_of(inferred=True)) as (house, simulator):
        await make_batch(house, await make_recipient(house), "5.00")
        (upstream,) = upstream_ids(simulator)
        simulator.next(Fault("POST", "/v1/batches/*/start-processing", delay=0.3))
        target = f"/v1/batches/{upstream}/start-processing"
        async with await wire(house.running.port) as connection:
            await connection.say(CLIENT.request("POST", target, stamp=int(time.time())))
            await asyncio.sleep(0.1)
        for _ in range(100):
            if (await facts_of(house, upstream)).get("started"):
                break
            await asyncio.sleep(0.05)
        assert (await facts_of(house, upstream))["phase"] == "sent"
    assert len(simulator.service.starts) == 1


# Recipients.


async def test_a_signed_write_on_a_recipient_is_seen_by_the_legacy_face_at_once(
    tmp_path: Path,
) -> None:
    """Payments name recipients by email; the lookup is cached."""
    async with open_town(tmp_path, service_of(inferred=True)) as (house, simulator):
        await make_recipient(house, "ada")
        (theirs,) = simulator.service.world().recipients
        payment = {"recipient": {"email": "ada@example.com"}, "sourceAmount": "5.00"}
        body = {"sourceCurrency": "USD", "payments": [payment]}
        asked_for = "/v1/recipients"
        await done(house, "POST", "/batches", body)
        await done(house, "POST", "/batches", body)
        assert len(simulator.service.calls("GET", asked_for)) == 1
        changed = await signed(
            house, "PATCH", f"/recipients/{theirs}", b'{"email":"countess@example.com"}'
        )
        assert changed.status == 200
        got = await house.ask("POST", "/v1/batches", body)
        assert got.status == 406
        assert got.body["errors"][0]["field"] == "payments[0].recipient.email"


async def test_a_signed_read_of_a_recipient_forgets_nothing(tmp_path: Path) -> None:
    async with open_town(tmp_path, service_of(inferred=True)) as (house, simulator):
        await make_recipient(house, "ada")
        payment = {"recipient": {"email": "ada@example.com"}, "sourceAmount": "5.00"}
        body = {"sourceCurrency": "USD", "payments": [payment]}
        await done(house, "POST", "/batches", body)
        assert (await signed(house, "GET", "/recipients/R-none")).status == 404
        await done(house, "POST", "/batches", body)
        assert len(simulator.service.calls("GET", "/v1/recipients")) == 1


# Starts of unknown outcome.


@pytest.mark.parametrize("close", ["before", "after"])
async def test_a_start_whose_answer_is_lost_is_found_out_about_like_any_other(
    close: str, tmp_path: Path
) -> None:
    """Reads of the batch fail meanwhile, so that the outcome cannot be found earlier."""
    async with post(tmp_path, inferred=True) as here:
        await make_batch(here.house, await make_recipient(here.house), "5.00")
        (upstream,) = here.service.world().batches
        here.breaks("GET", "/v1/batch/*/summary", times=1000, status=503)
        here.breaks("POST", "/v1/batches/*/start-processing", close=close)
        assert refused(await begin(here.house, upstream)) == (500, "internal_server_error")
        (listed,) = (await here.told("writes", "unsettled"))["writes"]
        assert (listed["operation"], listed["request_id"] != "") == ("start_signed_batch", True)
        assert refused(await begin(here.house, upstream)) == (500, "internal_server_error")
        here.service.faults.clear()
        await here.lapse()
        again = await begin(here.house, upstream)
        if close == "after":
            assert refused(again) == WRONG_STATUS
        else:
            assert again.status == 200
        assert len(here.service.starts) == 1
        assert (await facts_of(here.house, upstream))["phase"] == "sent"
        assert (await here.told("writes", "unsettled"))["writes"] == []


async def test_signed_writes_stop_where_an_operator_froze_them_and_reads_go_on(
    tmp_path: Path,
) -> None:
    async with post(tmp_path, inferred=True) as here:
        await make_batch(here.house, await make_recipient(here.house), "5.00")
        (upstream,) = here.service.world().batches
        await here.says("freeze", "--merchant", "demo")
        calls = here.sent("POST", "*")
        for path in (f"/batches/{upstream}/start-processing", f"/batches/{upstream}/payments"):
            assert refused(await signed(here.house, "POST", path)) == FROZEN
        assert (await signed(here.house, "GET", f"/batch/{upstream}/summary")).status == 200
        assert here.sent("POST", "*") == calls
        await here.says("unfreeze", "--merchant", "demo")
        assert (await begin(here.house, upstream)).status == 200


async def test_what_waited_for_an_edit_is_not_sent_once_writes_are_frozen(tmp_path: Path) -> None:
    async with post(tmp_path, seconds=15, inferred=True) as here:
        recipient = await make_recipient(here.house)
        batch = await make_batch(here.house, recipient, "5.00")
        (upstream,) = here.service.world().batches
        here.breaks("PATCH", "/v1/batches/*/payments/*", delay=3)
        editing = asyncio.ensure_future(edit(here.house, batch))

        async def is_taken() -> bool:
            return (await facts_of(here.house, upstream)).get("phase") == "editing"

        await eventually(is_taken)
        path = f"/batches/{upstream}/payments"
        adding = asyncio.ensure_future(signed(here.house, "POST", path, adds(recipient, "7.00")))
        await here.says("freeze", "--merchant", "demo")
        assert refused(await adding) == FROZEN
        assert here.sent("POST", f"/v1{path}") == 0
        assert (await editing).status == 200


@SERVICES
async def test_an_edit_there_waits_for_what_was_under_way_here_and_for_nothing_that_came_later(
    *, inferred: bool, tmp_path: Path
) -> None:
    async with open_town(tmp_path, service_of(inferred=inferred)) as (house, simulator):
        recipient, batch, upstream = await open_batch(house, simulator)
        path = f"/batches/{upstream}/payments"
        simulator.next(Fault("POST", f"/v1{path}", answer_delay=3))
        first = asyncio.ensure_future(signed(house, "POST", path, adds(recipient, "6.00")))
        await until(lambda: len(simulator.service.batch(upstream).payments) == 2)
        more = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        adding = asyncio.ensure_future(house.ask("POST", f"/v1/batches/{batch}/payments", more))

        async def is_taken() -> bool:
            return (await facts_of(house, upstream)).get("phase") == "editing"

        await eventually(is_taken)
        last = await signed(house, "POST", path, adds(recipient, "8.00"))
        assert [(await first).status, (await adding).status, last.status] == [200] * 3
    paid = [one.terms.source for one in simulator.service.batch(upstream).payments.values()]
    assert [str(one) for one in paid] == ["5.00", "6.00", "7.00", "8.00"]


SIGNED_BODIES: dict[str, dict[str, Any]] = {
    "in the batch's currency": {"amount": "7.00", "currency": "USD"},
    "in another currency": {"amount": "7.00", "currency": "EUR"},
    "without decimals": {"amount": "7", "currency": "USD"},
}


@SERVICES
@pytest.mark.parametrize("body", SIGNED_BODIES.values(), ids=SIGNED_BODIES)
async def test_a_payment_added_here_is_no_difference_when_the_batch_is_started_there(
    body: dict[str, Any], *, inferred: bool, tmp_path: Path
) -> None:
    legacy = {"verify_before_start": "refuse"}
    async with open_town(tmp_path, service_of(inferred=inferred), legacy=legacy) as (house, there):
        recipient, batch, upstream = await open_batch(house, there)
        add = json.dumps({"recipient": {"id": recipient}, **body}).encode()
        added = await signed(house, "POST", f"/batches/{upstream}/payments", add)
        assert added.status == 200, added
        started = await done(house, "POST", f"/batches/{batch}/start-processing")
        assert started["batch"]["totalPayments"] == 2


@pytest.mark.parametrize("edited", [False, True])
async def test_a_payment_added_here_explains_no_other(*, edited: bool, tmp_path: Path) -> None:
    """For example, one of the same amount that is added directly at the service."""
    legacy = {"verify_before_start": "refuse"}
    async with open_town(tmp_path, service_of(inferred=True), legacy=legacy) as (house, there):
        recipient, batch, upstream = await open_batch(house, there)
        path = f"/batches/{upstream}/payments"
        assert (await signed(house, "POST", path, adds(recipient, "7.00"))).status == 200
        body = json.loads(adds(recipient, "8.00" if edited else "7.00"))
        world = there.service.world()
        payments.create(world, world.batches[upstream], body)
        got = await house.ask("POST", f"/v1/batches/{batch}/start-processing")
        assert (got.status, got.body["errors"][0]["code"]) == (406, "invalid_status")
        assert there.service.starts == []


async def test_a_payment_whose_addition_is_refused_here_is_not_known(tmp_path: Path) -> None:
    async with open_town(tmp_path, service_of(inferred=True)) as (house, there):
        recipient, _, upstream = await open_batch(house, there)
        refused_add = await signed(
            house, "POST", f"/batches/{upstream}/payments", adds(recipient, "0.00")
        )
        assert refused_add.status == 400
        assert await facts_of(house, upstream, SIGNED_ADDS) == {}
