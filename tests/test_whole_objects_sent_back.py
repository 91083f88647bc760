"""Updates of batches and payments, by single fields and by whole objects that are sent back.

They run in front of a service with the optional endpoints and of one without: every later read
shows a change that was answered as updated, and an unchanged object that is sent back changes
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.simulator import Fault, Service, Switches
from tests.house import House
from tests.payday import done, make_recipient, open_town

SERVICES = {
    "paths": Switches(processing_seconds=60, recipient_id_length=22),
    "no paths": Switches(processing_seconds=60, inferred=False, answers="bare"),
}


@dataclass(slots=True)
class Town:
    house: House
    service: Service
    payee: str

    async def make(self, *payments: dict[str, Any], **fields: Any) -> str:
        paid = [{"recipient": {"id": self.payee}, **one} for one in payments]
        body = {"sourceCurrency": "USD", "payments": paid, **fields}
        return str((await done(self.house, "POST", "/batches", body))["batch"]["id"])

    async def read(self, batch: str) -> dict[str, Any]:
        return dict((await done(self.house, "GET", f"/batches/{batch}"))["batch"])

    async def payments(self, batch: str) -> list[dict[str, Any]]:
        return list((await self.read(batch))["payments"]["payments"])

    async def shown(self, batch: str, name: str) -> Any:
        """A field of a batch, wherever it is shown."""
        listed = (await done(self.house, "GET", f"/batches?search={batch}"))["batches"]
        summary = (await done(self.house, "GET", f"/batches/{batch}/summary"))["batchSummary"]
        found = {str(one[name] or ""): one[name] for one in (*listed, summary)}
        found |= {str(one[name] or ""): one[name] for one in [await self.read(batch)]}
        assert len(found) == 1, found
        return next(iter(found))

    async def patch(self, batch: str, body: Any) -> None:
        assert await done(self.house, "PATCH", f"/batches/{batch}", body) == {
            "ok": True,
            "object": "updated",
        }

    def writes(self) -> list[tuple[str, str]]:
        return [(one.method, one.target) for one in self.service.calls() if one.method != "GET"]


@pytest_asyncio.fixture(params=SERVICES)
async def town(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Town]:
    service = Service(seed=1, switches=SERVICES[request.param])
    async with open_town(tmp_path, service) as (house, _simulator):
        yield Town(house, service, await make_recipient(house))


IN_EUROS = {"targetAmount": "7.00", "targetCurrency": "EUR", "memo": "in euros"}


# A batch


async def test_a_description_is_changed_and_cleared_and_shown_everywhere(town: Town) -> None:
    batch = await town.make({"sourceAmount": "5.00"}, description="April")
    assert await town.shown(batch, "description") == "April"
    for sent, shown in (
        ("May", "May"),
        ("June", "June"),
        ("", "June"),
        (None, ""),
        ("July", "July"),
    ):
        await town.patch(batch, {"description": sent})
        assert await town.shown(batch, "description") == shown
    started = await done(town.house, "POST", f"/batches/{batch}/start-processing")
    assert started["batch"]["description"] == "July"
    got = await town.house.ask("PATCH", f"/v1/batches/{batch}", {"description": "late"})
    assert (got.status, got.body["errors"][0]["code"]) == (406, "invalid_status")


async def test_a_description_alone_supersedes_no_batch(town: Town) -> None:
    batch = await town.make({"sourceAmount": "5.00"}, description="April")
    await town.patch(batch, {"description": "May"})
    await town.shown(batch, "description")
    assert len(town.service.world().batches) == 1


async def test_a_description_is_changed_with_payments_and_in_a_draft(town: Town) -> None:
    batch = await town.make({"sourceAmount": "5.00"}, description="April")
    await town.patch(batch, {"description": "May"})
    (payment,) = await town.payments(batch)
    changed = {"id": payment["id"], "sourceAmount": "6.00"}
    await town.patch(batch, {"description": "June", "update_payments": [changed]})
    assert await town.shown(batch, "description") == "June"
    more = {"recipient": {"id": town.payee}, "sourceAmount": "9.00"}
    await town.patch(batch, {"payments": [more]})
    assert await town.shown(batch, "description") == "June"
    assert [one["sourceAmount"] for one in await town.payments(batch)] == ["6.00", "9.00"]
    await town.patch(batch, {"payments": [more], "description": None})
    assert await town.shown(batch, "description") == ""
    made = [*town.service.world().batches.values()][-1]
    assert (made.description, len(made.payments)) == ("", 3), "the service has it as it is shown"


async def test_who_changes_the_description_elsewhere_is_shown(town: Town) -> None:
    batch = await town.make({"sourceAmount": "5.00"}, description="April")
    await town.patch(batch, {"description": "May"})
    (real,) = town.service.world().batches.values()
    real.description = "by the dashboard"
    assert await town.shown(batch, "description") == "by the dashboard"
    await town.patch(batch, {"description": "June"})
    assert await town.shown(batch, "description") == "June"


async def test_a_currency_is_changed_only_while_there_are_no_payments(town: Town) -> None:
    batch = await town.make()
    await town.patch(batch, {"sourceCurrency": "EUR"})
    assert await town.shown(batch, "currency") == "EUR"
    more = {"recipient": {"id": town.payee}, "sourceAmount": "9.00"}
    await town.patch(batch, {"sourceCurrency": "CAD", "payments": [more]})
    assert await town.shown(batch, "currency") == "CAD"
    (payment,) = await town.payments(batch)
    assert payment["sourceCurrency"] == "CAD"
    got = await town.house.ask("PATCH", f"/v1/batches/{batch}", {"sourceCurrency": "USD"})
    assert (got.status, got.body["errors"][0]["field"]) == (406, "sourceCurrency")
    assert got.body["errors"][0]["code"] == "invalid_field"
    await town.patch(batch, {"sourceCurrency": "CAD"})
    assert await town.shown(batch, "currency") == "CAD"
    await done(town.house, "POST", f"/batches/{batch}/start-processing")
    started = [one for one in town.service.world().batches.values() if one.state != "open"]
    assert [(one.currency, len(one.payments)) for one in started] == [("CAD", 1)]


async def test_a_currency_that_the_service_refuses_leaves_the_batch_as_it_was(town: Town) -> None:
    batch = await town.make(description="April")
    fault = Fault("POST", "/v1/batches", status=400, body=REFUSED)
    town.service.faults.append(fault)
    body = {"sourceCurrency": "XXX", "description": "May"}
    got = await town.house.ask("PATCH", f"/v1/batches/{batch}", body)
    assert (got.status, got.body["errors"][0]["field"]) == (406, "sourceCurrency")
    assert await town.shown(batch, "currency") == "USD"
    assert await town.shown(batch, "description") == "April"
    more = {"recipient": {"id": town.payee}, "sourceAmount": "9.00"}
    await done(town.house, "POST", f"/batches/{batch}/payments", more)


REFUSED = (
    b'{"ok":false,"errors":[{"code":"invalid_field","message":"Not paid in","field":"currency"}]}'
)


async def test_a_change_of_currency_that_was_not_answered_is_one_batch(tmp_path: Path) -> None:
    service = Service(seed=1, switches=SERVICES["paths"])
    async with open_town(tmp_path, service) as (house, _simulator):
        town = Town(house, service, await make_recipient(house))
        batch = await town.make()
        service.faults.append(Fault("POST", "/v1/batches", close="after"))
        more = {"recipient": {"id": town.payee}, "sourceAmount": "9.00"}
        await town.patch(batch, {"sourceCurrency": "EUR", "payments": [more]})
        (listed,) = (await done(house, "GET", "/batches"))["batches"]
        assert (listed["id"], listed["currency"], listed["amount"]) == (batch, "EUR", "9.00")
        assert len(service.world().batches) == 2, "the one that is superseded, and the other"


async def test_a_refused_part_leaves_the_whole_as_it_was(town: Town) -> None:
    batch = await town.make({"sourceAmount": "5.00"}, description="April")
    body = {"description": "May", "sourceCurrency": "EUR", "payments": [{"sourceAmount": "1.5"}]}
    got = await town.house.ask("PATCH", f"/v1/batches/{batch}", body)
    assert got.status == 406
    assert {one["field"] for one in got.body["errors"]} == {
        "sourceCurrency",
        "payments[0].sourceAmount",
        "payments[0].recipient.id",
    }
    assert await town.shown(batch, "description") == "April"


async def test_a_whole_batch_sent_back_changes_nothing_but_what_was_changed(town: Town) -> None:
    batch = await town.make({"sourceAmount": "5.00", "memo": "one"}, IN_EUROS, description="April")
    before = await town.read(batch)
    sent = len(town.writes())
    await town.patch(batch, before)
    await town.patch(batch, {**before, "payments": before["payments"]["payments"]})
    assert len(town.writes()) == sent
    assert await town.read(batch) == before
    changed = {**before["payments"]["payments"][1], "memo": "changed"}
    page = {**before["payments"], "payments": [before["payments"]["payments"][0], changed]}
    await town.patch(batch, {**before, "description": "May", "payments": page})
    after = await town.read(batch)
    assert after["description"] == "May"
    assert [one["memo"] for one in after["payments"]["payments"]] == ["one", "changed"]
    amounts = [
        (one["sourceAmount"], two["targetAmount"], two["targetCurrency"])
        for one, two in (whole["payments"]["payments"] for whole in (before, after))
    ]
    assert amounts == [("5.00", "7.00", "EUR")] * 2


# A payment


async def one_payment(town: Town, batch: str, payment: str) -> dict[str, Any]:
    read = await done(town.house, "GET", f"/batches/{batch}/payments/{payment}")
    return dict(read["payment"])


async def test_a_payment_sent_back_as_it_was_read_is_unchanged(town: Town) -> None:
    batch = await town.make(
        {"sourceAmount": "5.00", "memo": "one"}, IN_EUROS, {"sourceAmount": "8"}
    )
    listed = await town.payments(batch)
    sent = len(town.writes())
    for one in listed:
        path = f"/batches/{batch}/payments/{one['id']}"
        await done(town.house, "PATCH", path, one)
        await done(town.house, "PATCH", path, await one_payment(town, batch, one["id"]))
        numbers = {"sourceAmount": float(one["sourceAmount"]), "memo": one["memo"]}
        await done(town.house, "PATCH", path, numbers)
    assert len(town.writes()) == sent
    assert await town.payments(batch) == listed


async def test_one_side_is_changed_in_a_payment_sent_back(town: Town) -> None:
    batch = await town.make({"sourceAmount": "5.00"}, IN_EUROS)
    source, target = await town.payments(batch)
    path = f"/batches/{batch}/payments"
    await done(town.house, "PATCH", f"{path}/{source['id']}", {**source, "sourceAmount": "6.00"})
    await done(town.house, "PATCH", f"{path}/{target['id']}", {**target, "targetAmount": "8.00"})
    after = await town.payments(batch)
    assert [after[0]["sourceAmount"], after[1]["targetAmount"]] == ["6.00", "8.00"]
    assert after[1]["targetCurrency"] == "EUR"
    to_dollars = {**after[1], "targetCurrency": "USD"}
    await done(town.house, "PATCH", f"{path}/{target['id']}", to_dollars)
    after = await town.payments(batch)
    assert (after[1]["targetAmount"], after[1]["targetCurrency"]) == ("8.00", "USD")
    both = {**after[0], "sourceAmount": "7.00", "targetAmount": "7.50"}
    got = await town.house.ask("PATCH", f"/v1{path}/{source['id']}", both)
    assert (got.status, got.body["errors"][0]["field"]) == (406, "targetAmount")


async def test_amounts_that_only_a_service_writes_are_taken_as_they_were_shown(
    town: Town,
) -> None:
    batch = await town.make({"sourceAmount": "5.00"})
    real = next(iter(town.service.world().payments.values()))
    real.extra = {"targetAmount": "1.625", "targetCurrency": "KWD"}
    (shown,) = await town.payments(batch)
    assert shown["targetAmount"] == "1.625"
    path = f"/batches/{batch}/payments/{shown['id']}"
    await done(town.house, "PATCH", path, shown)
    await town.patch(batch, {"update_payments": [shown]})
    for wrong in ("1.626", "1.5", "0", "1e3", "-5.00"):
        got = await town.house.ask("PATCH", f"/v1{path}", {**shown, "targetAmount": wrong})
        assert (got.status, got.body["errors"][0]["field"]) == (406, "targetAmount"), wrong
        body = {"update_payments": [{**shown, "targetAmount": wrong}]}
        got = await town.house.ask("PATCH", f"/v1/batches/{batch}", body)
        assert got.status == 406, wrong
        assert got.body["errors"][0]["field"] == "update_payments[0].targetAmount"


async def test_null_clears_a_memo_and_an_empty_text_leaves_it(town: Town) -> None:
    batch = await town.make({"sourceAmount": "5.00", "memo": "one"}, {**IN_EUROS, "memo": "two"})
    first, second = [one["id"] for one in await town.payments(batch)]
    path = f"/batches/{batch}/payments/{first}"
    for sent, shown in (("", "one"), ("new", "new"), (None, ""), (None, ""), ("again", "again")):
        await done(town.house, "PATCH", path, {"memo": sent})
        assert ((await one_payment(town, batch, first))["memo"] or "") == shown
    await town.patch(batch, {"update_payments": [{"id": second, "memo": None}]})
    memos = [one["memo"] or "" for one in await town.payments(batch)]
    assert memos == ["again", ""]
    received = await done(town.house, "GET", f"/recipients/{town.payee}/payments")
    assert sorted(one["memo"] or "" for one in received["payments"]) == ["", "again"]
    await done(town.house, "POST", f"/batches/{batch}/generate-quote")
    assert [one["memo"] or "" for one in await town.payments(batch)] == ["again", ""]


async def test_what_changes_nothing_holds_up_no_other_change(town: Town) -> None:
    batch = await town.make({"sourceAmount": "5.00", "memo": "one"}, description="April")
    whole = await town.read(batch)
    (payment,) = whole["payments"]["payments"]
    path = f"/batches/{batch}/payments/{payment['id']}"

    def more(amount: int) -> dict[str, Any]:
        return {"recipient": {"id": town.payee}, "sourceAmount": f"{amount}.00"}

    for turn in range(10, 40, 10):
        adding = f"/batches/{batch}/payments"
        await asyncio.gather(
            *(done(town.house, "POST", adding, more(turn + number)) for number in range(3)),
            *(town.patch(batch, {"description": "April"}) for _ in range(3)),
            *(done(town.house, "PATCH", path, payment) for _ in range(3)),
        )
        async with asyncio.timeout(2):
            await town.patch(batch, {"payments": [more(turn + 3)]})
    assert len(await town.payments(batch)) == 13
