"""Concurrent requests on one batch: one wins, and the amounts that are paid are those that were
answered.

The tests run many rounds over real sockets, and force the worst order by delayed answers.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.simulator import Fault, Service, Switches
from gateway.storage import Ledger, open_store
from tests.house import Got, House
from tests.payday import done, make_batch, make_recipient, open_town, payment_ids
from tests.state import TENANT

ROUNDS = 25
REFUSAL = b'{"ok":false,"errors":[{"code":"rate_limit_exceeded","message":"Slow down."}]}'
SERVICES = pytest.mark.parametrize("inferred", [True, False], ids=["inferred", "documented"])


def service_of(*, inferred: bool) -> Service:
    return Service(seed=1, switches=Switches(inferred=inferred, processing_seconds=60))


def paid(service: Service) -> list[str]:
    """Returns the amounts of the only batch in the service's list of starts."""
    (started,) = service.starts
    batch = service.batch(started.batch_id)
    return [str(payment.terms.source) for payment in batch.payments.values()]


def is_lost(got: Got) -> bool:
    return got.status == 406 and [one["code"] for one in got.body["errors"]] == ["invalid_status"]


async def edit(house: House, batch: str, payment: str, amount: str = "9.00") -> Got:
    body = {"sourceAmount": amount}
    return await house.ask("PATCH", f"/v1/batches/{batch}/payments/{payment}", body)


async def begin(house: House, batch: str) -> Got:
    return await house.ask("POST", f"/v1/batches/{batch}/start-processing")


@SERVICES
async def test_of_an_edit_and_a_start_at_once_one_wins(*, inferred: bool, tmp_path: Path) -> None:
    service = service_of(inferred=inferred)
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        for number in range(ROUNDS):
            batch = await make_batch(house, recipient, "5.00")
            (payment,) = await payment_ids(house, batch)
            if number % 3 == 2:  # an edited batch may be a draft
                assert (await edit(house, batch, payment, "5.00")).status == 200
            service.starts.clear()
            both = (edit(house, batch, payment), begin(house, batch))
            edited, started = await asyncio.gather(*both)
            assert edited.status == 200 or is_lost(edited), edited.text
            assert started.status == 200 or is_lost(started), started.text
            assert 200 in (edited.status, started.status)
            assert len(service.starts) == (started.status == 200)
            if started.status == 200:
                assert paid(service) == ["9.00" if edited.status == 200 else "5.00"]
            elif not service.starts:
                assert (await begin(house, batch)).status == 200
                assert paid(service) == ["9.00"]


@SERVICES
async def test_of_a_deletion_and_a_start_at_once_one_wins(
    *, inferred: bool, tmp_path: Path
) -> None:
    service = service_of(inferred=inferred)
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        for _ in range(ROUNDS):
            batch = await make_batch(house, recipient, "5.00")
            service.starts.clear()
            deletion = house.ask("DELETE", f"/v1/batches/{batch}")
            deleted, started = await asyncio.gather(deletion, begin(house, batch))
            assert len(service.starts) == (started.status == 200)
            assert (deleted.status == 200) == (started.status != 200)
            assert deleted.status == 200 or is_lost(deleted), deleted.text


@SERVICES
async def test_of_many_starts_at_once_one_is_made(*, inferred: bool, tmp_path: Path) -> None:
    service = service_of(inferred=inferred)
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        for number in range(ROUNDS):
            batch = await make_batch(house, recipient, "5.00")
            if number % 2:
                (payment,) = await payment_ids(house, batch)
                assert (await edit(house, batch, payment)).status == 200
            service.starts.clear()
            several = await asyncio.gather(*(begin(house, batch) for _ in range(4)))
            # Identical requests in flight join the first; later ones find a started batch.
            assert {200} <= {got.status for got in several} <= {200, 406}
            assert len(service.starts) == 1


async def make_draft(house: House, recipient: str, amount: str = "9.00") -> str:
    """Creates a draft: without optional endpoints, an edit supersedes the service's batch."""
    batch = await make_batch(house, recipient, "5.00")
    (payment,) = await payment_ids(house, batch)
    assert (await edit(house, batch, payment, amount)).status == 200
    return batch


async def being_made_real(house: House) -> None:
    """Waits until the ledger has the phase ``making`` for the only batch."""
    async with open_store(house.settings.state) as store, asyncio.timeout(10):
        phase = None
        while phase != "making":
            await asyncio.sleep(0.01)
            (facts,) = (await Ledger(store).recall_all(TENANT, "batch")).values()
            phase = facts.get("phase")


async def look(house: House, batch: str) -> Got:
    return await house.ask("GET", f"/v1/batches/{batch}/summary")


async def requote(house: House, batch: str) -> Got:
    return await house.ask("POST", f"/v1/batches/{batch}/generate-quote")


async def test_a_draft_is_made_real_once(tmp_path: Path) -> None:
    service = service_of(inferred=False)
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        for _ in range(ROUNDS):
            batch = await make_draft(house, recipient)
            before = service.created["batch"]
            several = (look(house, batch), requote(house, batch), begin(house, batch))
            looked, quoted, started = await asyncio.gather(*several)
            assert looked.status == 200, looked.text
            assert quoted.status == 200 or is_lost(quoted), "a batch that was started has no quote"
            assert started.status == 200 or is_lost(started), started.text
            assert service.created["batch"] == before + 1


async def test_reads_that_need_a_draft_made_real_all_go_on_with_the_one_that_was_made(
    tmp_path: Path,
) -> None:
    service = service_of(inferred=False)
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        for _ in range(ROUNDS):
            batch = await make_draft(house, recipient)
            before = service.created["batch"]
            several = [ask(house, batch) for ask in (look, requote) for _ in range(3)]
            answers = await asyncio.gather(*several)
            assert {got.status for got in answers} == {200}, [got.text for got in answers]
            assert service.created["batch"] == before + 1
            (payment,) = await payment_ids(house, batch)
            for quoted in answers[3:]:
                (shown,) = quoted.body["batch"]["payments"]["payments"]
                assert (shown["id"], shown["sourceAmount"]) == (payment, "9.00")


async def test_a_summary_waits_while_another_request_makes_the_draft_real(tmp_path: Path) -> None:
    service = service_of(inferred=False)
    async with open_town(tmp_path, service) as (house, simulator):
        recipient = await make_recipient(house)
        batch = await make_draft(house, recipient)
        before = service.created["batch"]
        simulator.next(Fault("POST", "/v1/batches", delay=0.4))
        first = asyncio.create_task(requote(house, batch))
        await being_made_real(house)
        started, looked = await asyncio.gather(begin(house, batch), look(house, batch))
        assert (started.status, looked.status) == (200, 200), looked.text
        assert looked.body["batchSummary"]["total"]["value"] == 9
        assert (await first).status == 200
        assert service.created["batch"] == before + 1


async def test_who_waited_for_one_that_was_refused_makes_the_draft_real_itself(
    tmp_path: Path,
) -> None:
    service = service_of(inferred=False)
    async with open_town(tmp_path, service) as (house, simulator):
        recipient = await make_recipient(house)
        batch = await make_draft(house, recipient)
        before = service.created["batch"]
        simulator.next(Fault("POST", "/v1/batches", status=429, body=REFUSAL, delay=0.4))
        first = asyncio.create_task(look(house, batch))
        await being_made_real(house)
        assert (await look(house, batch)).status == 200
        assert (await first).status == 429
        assert service.created["batch"] == before + 1


async def test_a_summary_that_waited_for_a_deletion_finds_nothing(tmp_path: Path) -> None:
    service = service_of(inferred=False)
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        for _ in range(ROUNDS):
            batch = await make_draft(house, recipient)
            deletion = house.ask("DELETE", f"/v1/batches/{batch}")
            deleted, looked = await asyncio.gather(deletion, look(house, batch))
            assert deleted.status == 200 or is_lost(deleted)
            assert looked.status in ({200, 404} if deleted.status == 200 else {200}), looked.text


async def test_a_summary_of_a_draft_whose_making_was_lost_is_not_answered_by_making_it_again(
    tmp_path: Path,
) -> None:
    service = service_of(inferred=False)
    upstream = {"timeout_seconds": 2}
    async with open_town(tmp_path, service, upstream=upstream) as (house, simulator):
        recipient = await make_recipient(house)
        batch = await make_draft(house, recipient)
        simulator.next(Fault("POST", "/v1/batches", close="after"))
        assert (await look(house, batch)).status == 500, "the outcome is unknown"
        before = service.created["batch"]
        assert (await look(house, batch)).status == 500, "it still is"
        assert service.created["batch"] == before, "nothing was sent while it is unknown"


@SERVICES
async def test_edits_at_once_are_all_made_one_after_the_other(
    *, inferred: bool, tmp_path: Path
) -> None:
    """The batch stays open: the legacy document gives no reason to refuse any of them."""
    service = service_of(inferred=inferred)
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        for _ in range(ROUNDS // 5):
            batch = await make_batch(house, recipient, "1.00", "1.00", "1.00")
            those = await payment_ids(house, batch)
            edits = [edit(house, batch, payment, "9.00") for payment in those[1:]]
            removal = house.ask("DELETE", f"/v1/batches/{batch}/payments/{those[0]}")
            amounts = [f"{number}.00" for number in range(2, 8)]
            adds = [add(house, batch, recipient, amount) for amount in amounts]
            answers = await asyncio.gather(*edits, removal, *adds)
            assert {got.status for got in answers} == {200}, [got.text for got in answers]
            added = [got.body["payment"] for got in answers[-len(adds) :]]
            assert [one["sourceAmount"] for one in added] == amounts
            assert len({one["id"] for one in added}) == len(added)
            service.starts.clear()
            assert (await begin(house, batch)).status == 200
            assert sorted(paid(service)) == sorted(["9.00", "9.00", *amounts])


async def add(house: House, batch: str, recipient: str, amount: str) -> Got:
    body = {"recipient": {"id": recipient}, "sourceAmount": amount}
    return await house.ask("POST", f"/v1/batches/{batch}/payments", body)


@SERVICES
async def test_of_removals_of_one_payment_at_once_one_finds_it(
    *, inferred: bool, tmp_path: Path
) -> None:
    service = service_of(inferred=inferred)
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00", "6.00")
        payment, _other = await payment_ids(house, batch)
        several = (house.ask("DELETE", f"/v1/batches/{batch}/payments/{payment}") for _ in range(4))
        answers = await asyncio.gather(*several)
        assert {200} <= {got.status for got in answers} <= {200, 404}
        assert (await begin(house, batch)).status == 200, "those that found nothing let it go"
        assert paid(service) == ["6.00"]


async def test_an_edit_that_waited_and_is_refused_lets_the_batch_go(tmp_path: Path) -> None:
    service = service_of(inferred=True)
    async with open_town(tmp_path, service) as (house, simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00")
        simulator.next(Fault("POST", "/v1/batches/*/payments", delay=0.4))
        simulator.next(Fault("POST", "/v1/batches/*/payments", status=429, body=REFUSAL))
        first = asyncio.create_task(add(house, batch, recipient, "6.00"))
        await asyncio.sleep(0.1)
        assert (await add(house, batch, recipient, "7.00")).status == 429
        assert (await first).status == 200
        assert (await begin(house, batch)).status == 200
        assert paid(service) == ["5.00", "6.00"]


async def test_an_edit_does_not_wait_for_a_start(tmp_path: Path) -> None:
    service = service_of(inferred=True)
    async with open_town(tmp_path, service) as (house, simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00")
        simulator.next(Fault("POST", "/v1/batches/*/start-processing", answer_delay=0.5))
        start = asyncio.create_task(begin(house, batch))
        await asyncio.sleep(0.1)
        assert is_lost(await add(house, batch, recipient, "6.00"))
        assert (await start).status == 200
        assert paid(service) == ["5.00"]


# The worst order: the first request to read the batch is the last to change it


@SERVICES
@pytest.mark.parametrize("late", ["edit", "delete", "remove", "start"])
async def test_who_read_the_batch_before_it_was_started_cannot_change_it_after(
    *, inferred: bool, late: str, tmp_path: Path
) -> None:
    service = service_of(inferred=inferred)
    async with open_town(tmp_path, service) as (house, simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00", "6.00")
        payment, _other = await payment_ids(house, batch)
        simulator.next(Fault("GET", "/v1/batch/*/summary", answer_delay=0.5))
        request = {
            "edit": lambda: edit(house, batch, payment),
            "delete": lambda: house.ask("DELETE", f"/v1/batches/{batch}"),
            "remove": lambda: house.ask("DELETE", f"/v1/batches/{batch}/payments/{payment}"),
            "start": lambda: begin(house, batch),
        }[late]
        slow = asyncio.create_task(request())
        await asyncio.sleep(0.1)
        assert (await begin(house, batch)).status == 200
        if late == "start":
            assert (await slow).status == 200, "an identical request joins the open one"
        else:
            assert is_lost(await slow), "the batch was started meanwhile"
        assert (await done(house, "GET", f"/batches/{batch}"))["batch"]["status"] == "processing"
        assert is_lost(await begin(house, batch))
        assert len(service.starts) == 1
        assert paid(service) == ["5.00", "6.00"]


@SERVICES
async def test_start_that_read_the_batch_before_an_edit_pays_what_the_edit_left(
    *, inferred: bool, tmp_path: Path
) -> None:
    service = service_of(inferred=inferred)
    async with open_town(tmp_path, service) as (house, simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00")
        (payment,) = await payment_ids(house, batch)
        simulator.next(Fault("GET", "/v1/batch/*/summary", answer_delay=0.5))
        slow = asyncio.create_task(begin(house, batch))
        await asyncio.sleep(0.1)
        assert (await edit(house, batch, payment)).status == 200
        assert (await slow).status == 200
        assert len(service.starts) == 1
        assert paid(service) == ["9.00"]


async def test_an_abandoned_batch_is_started_by_none_of_its_ids(tmp_path: Path) -> None:
    service = service_of(inferred=False)
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00")
        (payment,) = await payment_ids(house, batch)
        for amount in ("6.00", "7.00"):  # each edit supersedes the service's batch
            assert (await edit(house, batch, payment, amount)).status == 200
            await done(house, "POST", f"/batches/{batch}/generate-quote")
        first, second, third = service.world().batches
        assert (await begin(house, second)).status in (404, 406)
        assert not service.starts
        assert (await begin(house, third)).status == 200
        assert is_lost(await begin(house, batch))
        assert is_lost(await begin(house, first))
        assert len(service.starts) == 1


async def test_by_two_ids_of_one_batch_an_edit_and_a_start_do_not_both_win(tmp_path: Path) -> None:
    """After an edit, the service's id of the batch differs from the client's id."""
    service = service_of(inferred=False)
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00")
        (payment,) = await payment_ids(house, batch)
        assert (await edit(house, batch, payment, "6.00")).status == 200
        await done(house, "POST", f"/batches/{batch}/generate-quote")
        current = list(service.world().batches)[-1]
        (its_payment,) = service.batch(current).payments
        edited = await edit(house, current, its_payment, "9.00")
        assert edited.status in (200, 404)
        assert (await begin(house, batch)).status == 200
        assert paid(service) == ["9.00" if edited.status == 200 else "6.00"]
        assert (await begin(house, current)).status in (404, 406)
        assert len(service.starts) == 1


async def test_two_payments_added_under_one_request_id_are_two(tmp_path: Path) -> None:
    """Clients choose X-Request-Id, and some send the same value with every request."""
    service = Service(seed=1, switches=Switches(inferred=False))
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "1.00", "2.00")
        (first, _second) = await payment_ids(house, batch)
        await done(house, "DELETE", f"/batches/{batch}/payments/{first}")  # a draft from here on
        same = {"headers": {"X-Request-Id": "the-same-every-time"}}
        added = [
            (
                await done(
                    house,
                    "POST",
                    f"/batches/{batch}/payments",
                    {"recipient": {"id": recipient}, "sourceAmount": amount},
                    **same,
                )
            )["payment"]["id"]
            for amount in ("3.00", "4.00")
        ]
        assert len({*added, *await payment_ids(house, batch)}) == 3
        await done(house, "DELETE", f"/batches/{batch}/payments/{added[0]}")
        assert len(await payment_ids(house, batch)) == 2
