"""Edits of a batch in front of a service that cannot edit: clients keep the ids and times of their
batch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gateway.simulator import Fault, Service, Switches
from tests.house import House
from tests.payday import done, make_batch, make_recipient, open_town, payment_ids


async def dates(house: House, batch: str) -> dict[str, Any]:
    """Returns creation times of a batch and its payments, and checks that all reads agree."""
    read = (await done(house, "GET", f"/batches/{batch}"))["batch"]
    (listed,) = (await done(house, "GET", "/batches"))["batches"]
    payments = read["payments"]["payments"]
    of_batch = {read["createdAt"], listed["createdAt"]}
    of_batch |= {payment["batch"]["createdAt"] for payment in payments}
    payee = payments[0]["recipient"]["id"]
    received = (await done(house, "GET", f"/recipients/{payee}/payments"))["payments"]
    of_batch |= {payment["batch"]["createdAt"] for payment in received}
    (created,) = of_batch
    of_payments = {one["id"]: one["createdAt"] for one in payments}
    assert {one["id"]: one["createdAt"] for one in received} == of_payments
    newest_first = sorted(of_payments.values(), reverse=True)
    assert [one["createdAt"] for one in received] == newest_first
    return {"batch": created, **of_payments}


async def test_dates_of_creation_stay_when_an_edited_batch_is_made_anew(tmp_path: Path) -> None:
    service = Service(seed=1, switches=Switches(inferred=False, processing_seconds=60))
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "1.00", "2.00")
        first, second = await payment_ids(house, batch)
        before = await dates(house, batch)
        await done(house, "PATCH", f"/batches/{batch}/payments/{first}", {"sourceAmount": "9.00"})
        more = {"recipient": {"id": recipient}, "sourceAmount": "3.00"}
        added = (await done(house, "POST", f"/batches/{batch}/payments", more))["payment"]
        assert before["batch"] < added["createdAt"] == added["updatedAt"]
        kept = {**before, added["id"]: added["createdAt"]}
        assert await dates(house, batch) == kept
        quoted = (await done(house, "POST", f"/batches/{batch}/generate-quote"))["batch"]
        assert quoted["createdAt"] == before["batch"]
        assert await dates(house, batch) == kept
        started = (await done(house, "POST", f"/batches/{batch}/start-processing"))["batch"]
        assert started["createdAt"] == before["batch"]
        summary = (await done(house, "GET", f"/batches/{batch}/summary"))["batchSummary"]
        assert summary["createdAt"] == before["batch"]
        shown = await done(house, "GET", f"/batches/{batch}/payments/{second}")
        assert shown["payment"]["createdAt"] == before[second]


def only_tells(service: Service, summary: dict[str, Any]) -> None:
    """Makes every summary of the service return these fields only."""
    body = json.dumps({"ok": True, "batchSummary": summary}).encode()
    service.faults.append(Fault("GET", "/v1/batch/*/summary", status=200, body=body, times=100))


async def test_a_batch_whose_payments_the_service_does_not_tell_is_edited_too(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, switches=Switches(inferred=False, processing_seconds=60))
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient, "5.00", "7.00")
        only_tells(service, {"status": "open"})
        more = {"payments": [{"recipient": {"id": recipient}, "sourceAmount": "6.00"}]}
        await done(house, "PATCH", f"/batches/{batch}", more)
        first, second, added = await payment_ids(house, batch)
        assert len({first, second, added}) == 3
        await done(house, "DELETE", f"/batches/{batch}/payments/{second}")
        assert await payment_ids(house, batch) == [first, added]
        await done(house, "POST", f"/batches/{batch}/start-processing")
        service.faults.clear()
        left, made = service.world().batches.values()
        assert (left.sent_at, made.sent_at is None) == (None, False)
        assert [str(one.terms.source) for one in made.payments.values()] == ["5.00", "6.00"]


async def test_a_batch_of_which_nobody_tells_whom_it_pays_becomes_no_draft_and_can_be_started(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, switches=Switches(inferred=False, processing_seconds=60))
    async with open_town(tmp_path, service) as (house, _simulator):
        batch = await make_batch(house, await make_recipient(house), "5.00")
        (payment,) = await payment_ids(house, batch)
        (current,) = next(iter(service.world().batches.values())).payments
        payments = [{"id": current, "sourceAmount": "5.00"}]
        only_tells(service, {"status": "open", "payments": payments})
        change = {"sourceAmount": "6.00"}
        refused = await house.ask("PATCH", f"/v1/batches/{batch}/payments/{payment}", change)
        assert (refused.status, refused.body["errors"][0]["code"]) == (406, "invalid_status")
        assert [one["id"] for one in (await done(house, "GET", "/batches"))["batches"]] == [batch]
        await done(house, "POST", f"/batches/{batch}/start-processing")
        (made,) = service.world().batches.values()
        assert [str(one.terms.source) for one in made.payments.values()] == ["5.00"]


async def test_payments_of_which_nobody_tells_whom_they_pay_keep_no_recipient_s_from_being_shown(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, switches=Switches(inferred=False, processing_seconds=60))
    async with open_town(tmp_path, service) as (house, _simulator):
        ada = await make_recipient(house)
        batch = await make_batch(house, ada, "5.00")
        elsewhere = {"id": "P-ELSEWHERE", "sourceAmount": "7.00", "memo": "made elsewhere"}
        only_tells(service, {"status": "open", "payments": [elsewhere]})
        more = {"recipient": {"id": ada}, "sourceAmount": "6.00"}
        await done(house, "POST", f"/batches/{batch}/payments", more)
        service.faults.clear()
        shown = await done(house, "GET", f"/recipients/{ada}/payments")
        assert {one["sourceAmount"] for one in shown["payments"]} == {"5.00", "6.00"}
