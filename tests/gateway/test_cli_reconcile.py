"""`payout-gateway reconcile`: comparison of the ledger with the service, by reads only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator import Fault, processing
from gateway.storage import Ledger
from tests.operating import Post, eventually, logged, lose_a_batch, post
from tests.payday import done, make_batch, make_recipient, payment_ids
from tests.state import TENANT


def start_elsewhere(here: Post, batch_id: str) -> None:
    """Start a batch as a person would in the service's dashboard."""
    world = here.service.world()
    processing.start(world, world.batches[batch_id])


def kinds(told: Any) -> list[str]:
    return [one["kind"] for one in told["findings"]]


async def facts(here: Post, kind: str) -> dict[str, Any]:
    async with here.store() as store:
        return await Ledger(store).recall_all(TENANT, kind)


async def test_what_agrees_is_no_finding(tmp_path: Path) -> None:
    async with post(tmp_path, processing_seconds=60) as here:
        recipient = await make_recipient(here.house)
        started = await make_batch(here.house, recipient, "5.00")
        await done(here.house, "POST", f"/batches/{started}/start-processing")
        await make_batch(here.house, recipient, "6.00")
        gone = await make_batch(here.house, recipient, "7.00")
        await done(here.house, "DELETE", f"/batches/{gone}")
        await done(here.house, "DELETE", f"/recipients/{recipient}")
        told = await here.told("reconcile")
        assert told == {
            "ok": True,
            "complete": True,
            "restored": False,
            "cleared": False,
            "frozen": False,
            "compared": {"batches": 3, "recipients": 1, "lists": 1},
            "findings": [],
            "unsettled": [],
            "unknown": [],
            "unreadable": [],
            "not_listed": [],
            "left_out": [],
        }
        said = (await here.says("reconcile")).stdout
        assert said == "Compared. Batches: 3, deleted recipients: 1.\n"


async def test_a_ledger_without_a_batch_says_that_there_was_none_to_compare(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        said = (await here.says("reconcile")).stdout
        assert said.splitlines()[-1] == ("There was no batch and no deleted recipient to compare.")


async def test_it_only_reads(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        recipient = await make_recipient(here.house)
        batch = await make_batch(here.house, recipient, "5.00")
        await done(here.house, "DELETE", f"/batches/{batch}")
        await make_batch(here.house, recipient, "5.00")
        here.service.requests.clear()
        await here.says("reconcile")
        assert {seen.method for seen in here.service.requests} == {"GET"}


async def test_an_abandoned_batch_that_was_started_elsewhere_is_an_alert(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "5.00")
        (upstream,) = here.service.world().batches
        await done(here.house, "DELETE", f"/batches/{batch}")
        assert (await here.told("reconcile"))["findings"] == []
        start_elsewhere(here, upstream)
        (found,) = (await here.told("reconcile", code=1))["findings"]
        assert (found["kind"], found["alert"]) == ("abandoned_started", True)
        assert (found["id"], found["upstream"]) == (batch, upstream)
        assert (await facts(here, "alias"))[upstream]["started"]
        (again,) = (await here.told("reconcile", code=1))["findings"]
        assert (again["alert"], again["recorded"]) == (True, False)
        assert (await here.says("reconcile", code=1)).stdout.startswith("ALERT: demo sandbox: ")


async def test_a_running_gateway_notices_it_too(tmp_path: Path) -> None:
    often = {"upstream": {"abandoned_check_seconds": 0.2}}
    async with post(tmp_path, inferred=False, sections=often) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "5.00")
        (upstream,) = here.service.world().batches
        await done(here.house, "DELETE", f"/batches/{batch}")
        assert "abandoned_batch_started" not in logged(tmp_path)
        start_elsewhere(here, upstream)

        async def is_logged() -> bool:
            return "abandoned_batch_started" in logged(tmp_path)

        await eventually(is_logged)


async def test_it_is_not_looked_for_where_an_operator_does_not_want_it(tmp_path: Path) -> None:
    never = {"upstream": {"abandoned_check_seconds": 0}}
    async with post(tmp_path, inferred=False, sections=never) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "5.00")
        await done(here.house, "DELETE", f"/batches/{batch}")
        here.service.requests.clear()
        await asyncio.sleep(0.5)
        assert here.service.calls("GET", "/v1/batch/*/summary") == []


async def test_a_batch_that_was_started_elsewhere_is_told_once_and_known_from_then_on(
    tmp_path: Path,
) -> None:
    async with post(tmp_path, processing_seconds=60) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "5.00")
        (upstream,) = here.service.world().batches
        start_elsewhere(here, upstream)
        (found,) = (await here.told("reconcile", code=1))["findings"]
        assert (found["kind"], found["id"]) == ("started_elsewhere", batch)
        assert (found["recorded"], found["alert"]) == (True, False)
        assert (await facts(here, "batch"))[upstream]["started"]
        assert (await here.told("reconcile"))["findings"] == []


def _deleted(here: Post, upstream: str) -> None:
    del here.service.world().batches[upstream]


def _paid_more(here: Post, upstream: str) -> None:
    (payment,) = here.service.world().batches[upstream].payments.values()
    payment.terms = replace(payment.terms, source=Decimal("99.00"))


DIFFERENCES: dict[str, tuple[Callable[[Post, str], None], str, str]] = {
    "deleted there": (_deleted, "missing", "the service does not have it"),
    "changed there": (
        _paid_more,
        "payments",
        "it pays 1 payment of 99.00 USD, but 1 payment of 5.00 USD was requested",
    ),
}


@pytest.mark.parametrize("case", DIFFERENCES.values(), ids=DIFFERENCES)
async def test_what_is_different_there_is_a_finding(
    case: tuple[Callable[[Post, str], None], str, str], tmp_path: Path
) -> None:
    change, kind, says = case
    async with post(tmp_path) as here:
        await make_batch(here.house, await make_recipient(here.house), "5.00")
        (upstream,) = here.service.world().batches
        change(here, upstream)
        (found,) = (await here.told("reconcile", code=1))["findings"]
        assert found["kind"] == kind
        assert says in found["says"]
        assert found["what_to_do"]


async def test_a_start_that_the_service_knows_nothing_of_is_a_finding(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        await make_batch(here.house, await make_recipient(here.house), "5.00")
        (upstream,) = here.service.world().batches
        async with here.store() as store:
            await Ledger(store).record(
                TENANT, "batch", upstream, {"started": "2026-01-01T00:00:00Z"}
            )
        assert kinds(await here.told("reconcile", code=1)) == ["not_started"]


async def test_a_change_that_nobody_carries_on_is_a_finding(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        await make_batch(here.house, await make_recipient(here.house), "5.00")
        (upstream,) = here.service.world().batches
        async with here.store() as store:
            await Ledger(store).record(TENANT, "batch", upstream, {"phase": "editing"})
        assert kinds(await here.told("reconcile", code=1)) == ["stuck"]


async def test_a_change_that_is_under_way_is_no_finding(tmp_path: Path) -> None:
    async with post(tmp_path, seconds=30) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "5.00")
        here.breaks("POST", "/v1/batches/*/start-processing", delay=6)
        path = f"/v1/batches/{batch}/start-processing"
        starting = asyncio.ensure_future(here.house.ask("POST", path))

        async def is_starting() -> bool:
            return [one["phase"] for one in (await facts(here, "batch")).values()] == ["starting"]

        await eventually(is_starting)
        assert (await here.told("reconcile"))["findings"] == []
        assert not starting.done()
        assert (await starting).status == 200


async def test_batches_that_the_ledger_does_not_know_are_information(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        recipient = await make_recipient(here.house)
        await make_batch(here.house, recipient, "5.00")
        (upstream,) = here.service.world().batches
        async with here.store() as store:
            await Ledger(store).record(
                TENANT,
                "batch",
                upstream,
                dict.fromkeys((await facts(here, "batch"))[upstream]),
            )
        told = await here.told("reconcile")
        assert [one["id"] for one in told["unknown"]] == [upstream]
        assert told["findings"] == []
        assert "For information: demo sandbox: B-" in (await here.says("reconcile")).stdout


async def test_that_a_service_lists_no_batches_is_said(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        await make_batch(here.house, await make_recipient(here.house), "5.00")
        told = await here.told("reconcile")
        assert told["not_listed"] == [{"merchant": "demo", "environment": "sandbox"}]
        said = (await here.says("reconcile")).stdout
        assert "batches: the service does not list batches" in said
        assert "cannot be found; nothing can be done here\n" in said


async def test_a_recipient_that_clients_deleted_and_that_is_active_again_is_a_finding(
    tmp_path: Path,
) -> None:
    async with post(tmp_path) as here:
        recipient = await make_recipient(here.house)
        await done(here.house, "DELETE", f"/recipients/{recipient}")
        here.service.recipient(recipient).status = "active"
        (found,) = (await here.told("reconcile", code=1))["findings"]
        assert (found["kind"], found["id"]) == ("active_again", recipient)


async def test_unsettled_writes_are_findings(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        await lose_a_batch(here)
        told = await here.told("reconcile", code=1)
        assert (told["ok"], len(told["unsettled"])) == (False, 1)
        assert "dashboard" in told["unsettled"][0]["what_to_do"]


async def test_a_draft_is_compared_with_nothing(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        batch = await make_batch(here.house, await make_recipient(here.house), "5.00")
        (payment,) = await payment_ids(here.house, batch)
        change = {"sourceAmount": "6.00"}
        await done(here.house, "PATCH", f"/batches/{batch}/payments/{payment}", change)
        assert (await here.told("reconcile"))["findings"] == []
        await done(here.house, "GET", f"/batches/{batch}/summary")
        assert (await here.told("reconcile"))["findings"] == []


# Objects that could not be read.


async def test_what_could_not_be_read_is_told_and_the_rest_is_compared(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        recipient = await make_recipient(here.house)
        for amount in ("5.00", "6.00"):
            await make_batch(here.house, recipient, amount)
        here.breaks("GET", "/v1/batch/*/summary", status=500)
        told = await here.told("reconcile", code=2)
        assert (told["complete"], len(told["unreadable"])) == (False, 1)
        assert told["compared"]["batches"] == 1
        assert "(refused, status 500)" in told["unreadable"][0]["says"]


async def test_of_a_pair_that_is_refused_it_is_not_said_that_the_service_cannot_be_reached(
    tmp_path: Path,
) -> None:
    async with post(tmp_path) as here:
        await make_batch(here.house, await make_recipient(here.house), "5.00")
        here.service.faults.append(Fault("GET", "/v1/batch/*/summary", status=401, times=9))
        (one,) = (await here.told("reconcile", code=2))["unreadable"]
        assert "(refused, status 401)" in one["says"]
        assert one["what_to_do"].startswith("run `payout-gateway keys verify`")


async def test_a_service_that_is_asked_too_often_is_asked_again(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        await make_batch(here.house, await make_recipient(here.house), "5.00")
        here.service.faults.append(
            Fault("GET", "/v1/batch/*/summary", status=429, headers={"Retry-After": "1"})
        )
        assert (await here.told("reconcile"))["unreadable"] == []


async def test_only_whom_is_asked_for_is_compared(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        await make_batch(here.house, await make_recipient(here.house), "5.00")
        told = await here.told("reconcile", "--merchant", "demo", "--environment", "sandbox")
        assert told["compared"] == {"batches": 1, "lists": 1}
        refused = await here.says("reconcile", "--merchant", "domo", code=2)
        assert "no key has this merchant" in refused.stderr
        assert refused.stdout == ""
