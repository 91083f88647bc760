"""A complete payout through the gateway, in front of every kind of service.

A service may have the optional endpoints or none of them, and may answer fully or barely: the
legacy client gets the same bytes, except for ids and times.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator import Service, Switches, start
from tests.house import House, open_house
from tests.payday import done, make_recipient, open_town, payment_ids

ADDRESS = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
BANK = {
    "primary": {"method": "bank", "currency": "USD"},
    "accounts": {"bank": {"country": "US", "accountNum": "1234567", "routing": "021000021"}},
}
WALLET = {
    "primary": {"method": "wallet", "currency": "USD"},
    "accounts": {"wallet": {"address": "ada@wallet.example.com"}},
}
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
ID = re.compile(r"\b[RBPA]-[A-Za-z0-9]{10,}\b")


class Run:
    """Sends requests, and keeps the answers without times and with numbered ids."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.said: list[str] = []
        self.names: dict[str, str] = {}

    async def look(self, path: str) -> Any:
        """Sends an unrecorded read: drafts lack fields that only the service computes."""
        got = await self.house.ask("GET", f"/v1{path}")
        assert got.status == 200, got.text
        return got.body

    async def ask(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        got = await self.house.ask(method, f"/v1{path}", body)
        assert got.status == status, (method, path, got.text)
        text = ID.sub(
            lambda found: self.names.setdefault(found[0], f"ID{len(self.names)}"), got.text
        )
        text = TIME.sub("TIME", text)
        for id_ in ID.findall(got.text):
            assert len(id_) <= 18, f"{id_} does not fit a legacy client"
        self.said.append(f"{method} {ID.sub(lambda found: self.names[found[0]], path)} {text}")
        return got.body


async def payout_run(run: Run) -> None:
    people = []
    for number, payout in enumerate((BANK, WALLET, BANK)):
        made = await run.ask(
            "POST",
            "/recipients",
            {
                "type": "individual",
                "firstName": "Ada",
                "lastName": f"Number {number}",
                "email": f"ada{number}@example.com",
                "address": ADDRESS,
                "payout": payout,
            },
        )
        people.append(made["recipient"]["id"])
    await run.ask("GET", "/profile/balances")
    batch = (
        await run.ask(
            "POST",
            "/batches",
            {
                "sourceCurrency": "USD",
                "description": "Löhne im Oktober",
                "payments": [
                    {
                        "recipient": {"id": people[0]},
                        "sourceAmount": "100.10",
                        "memo": "Rechnung 17",
                    },
                    {
                        "recipient": {"email": "ada1@example.com"},
                        "targetAmount": 25,
                        "targetCurrency": "EUR",
                    },
                ],
            },
        )
    )["batch"]["id"]
    whole = (await run.ask("GET", f"/batches/{batch}"))["batch"]
    first, second = [payment["id"] for payment in whole["payments"]["payments"]]
    third = (
        await run.ask(
            "POST",
            f"/batches/{batch}/payments",
            {
                "recipient": {"id": people[2]},
                "sourceAmount": "7.05",
                "memo": "third",
            },
        )
    )["payment"]["id"]
    await run.ask("PATCH", f"/batches/{batch}/payments/{first}", {"sourceAmount": "120.00"})
    shown = (await run.look(f"/batches/{batch}/payments/{first}"))["payment"]
    assert shown["sourceAmount"] == "120.00"
    await run.ask(
        "PATCH",
        f"/batches/{batch}",
        {
            "payments": [{"recipient": {"id": people[0]}, "sourceAmount": "1.00"}],
            "update_payments": [{"id": third, "memo": "third, changed"}],
            "remove_payments": [{"id": second}],
        },
    )
    (found,) = (await run.look(f"/batches/{batch}/payments?search=changed"))["payments"]
    assert (found["id"], found["memo"]) == (third, "third, changed")
    await run.ask("DELETE", f"/batches/{batch}/payments/{third}")
    shown = (await run.look(f"/batches/{batch}"))["batch"]
    assert (shown["status"], shown["amount"], shown["totalPayments"]) == ("open", "121.00", 2)
    assert [one["recipient"]["name"] for one in shown["payments"]["payments"]] == [
        "Ada Number 0"
    ] * 2
    (listed,) = (await run.look("/batches"))["batches"]
    assert (listed["id"], listed["amount"]) == (batch, "121.00")
    await run.ask("POST", f"/batches/{batch}/generate-quote")
    await run.ask("GET", f"/batches/{batch}/summary")
    await run.ask("POST", f"/batches/{batch}/start-processing")
    for _ in range(100):
        status = (await run.house.ask("GET", f"/v1/batches/{batch}")).body["batch"]["status"]
        if status == "complete":
            break
        assert status == "processing"
        await asyncio.sleep(0.05)
    await run.ask("GET", f"/batches/{batch}")
    await run.ask("POST", f"/batches/{batch}/start-processing", status=406)
    await run.ask("DELETE", f"/batches/{batch}", status=406)
    await run.ask("GET", f"/batches/{batch}/payments/{first}")
    paid = (await run.look(f"/recipients/{people[0]}/payments"))["payments"]
    assert len(paid) == 2, "none of a batch that was abandoned"
    assert first in {one["id"] for one in paid}
    assert {one["batch"]["id"] for one in paid} == {batch}
    await run.ask("GET", f"/payments/{first}")
    other = (await run.ask("POST", "/batches", {"sourceCurrency": "USD"}))["batch"]["id"]
    await run.ask("DELETE", f"/batches/{other}")
    await run.ask("GET", f"/batches/{other}", status=404)
    await run.ask("GET", "/batches?pageSize=5")
    await run.ask("GET", "/profile/balances/service")


COMBINATIONS = [
    {"inferred": inferred, "answers": answers}
    for inferred in (True, False)
    for answers in ("full", "bare")
]


@pytest.fixture(scope="module")
def first_run() -> dict[str, list[str]]:
    return {}


@pytest.mark.parametrize("kind", COMBINATIONS, ids=json.dumps)
async def test_a_payout_run_is_the_same_in_front_of_every_kind_of_service(
    kind: dict[str, Any], tmp_path: Path, first_run: dict[str, list[str]]
) -> None:
    switches = Switches(**kind, processing_seconds=1, lists_payments=False)
    service = Service(switches=switches, seed=1)
    simulator = await start(service=service)
    try:
        async with open_house(tmp_path, simulator.url) as house:
            run = Run(house)
            await payout_run(run)
    finally:
        await simulator.stop()
    assert len(service.starts) == 1
    expected = first_run.setdefault("said", run.said)
    assert run.said == expected


@pytest.mark.parametrize("answers", ["full", "bare"])
async def test_the_amount_that_a_client_fixed_is_what_a_draft_pays(
    answers: Any, tmp_path: Path
) -> None:
    """The other amount is computed by the service at a changing rate, and must not be sent."""
    service = Service(switches=Switches(inferred=False, answers=answers), seed=1)
    async with open_town(tmp_path, service) as (house, _simulator):
        payee = {"id": await make_recipient(house)}
        euros = {"recipient": payee, "targetAmount": "25.00", "targetCurrency": "EUR"}
        dollars = {"recipient": payee, "sourceAmount": "10.00"}
        body = {"sourceCurrency": "USD", "payments": [euros, dollars]}
        batch = (await done(house, "POST", "/batches", body))["batch"]["id"]
        await done(house, "POST", f"/batches/{batch}/payments", {**dollars, "sourceAmount": "7.00"})
        _, second, _ = await payment_ids(house, batch)
        path = f"/batches/{batch}/payments/{second}"
        await done(house, "PATCH", path, {"sourceAmount": "12.00"})
        await done(house, "POST", f"/batches/{batch}/generate-quote")
    made = [one for one in service.calls("POST") if one.path == "/v1/batches"]
    sent = [(one["amount"], one["currency"]) for one in json.loads(made[-1].body)["payments"]]
    assert sent == [("25.00", "EUR"), ("12.00", "USD"), ("7.00", "USD")]


IN_EUROS = {
    "primary": {"method": "bank", "currency": "EUR"},
    "accounts": {"bank": {"country": "DE", "iban": "DE89370400440532013000"}},
}


@pytest.mark.parametrize("answers", ["full", "bare"])
async def test_a_target_amount_in_the_batches_own_currency_stays_what_a_draft_pays(
    answers: Any, tmp_path: Path
) -> None:
    """The payment arrives in the account's currency, in an amount that the service computes."""
    service = Service(switches=Switches(inferred=False, answers=answers), seed=1)
    async with open_town(tmp_path, service) as (house, _simulator):
        payee = {"id": await make_recipient(house)}
        await done(house, "POST", f"/recipients/{payee['id']}/payout-methods", IN_EUROS)
        fixed = {"recipient": payee, "targetAmount": "25.03", "targetCurrency": "USD"}
        other = {"recipient": {"id": await make_recipient(house, "bob")}, "sourceAmount": "10.00"}
        body = {"sourceCurrency": "USD", "payments": [fixed, other]}
        batch = (await done(house, "POST", "/batches", body))["batch"]["id"]
        first, second = await payment_ids(house, batch)
        await done(house, "DELETE", f"/batches/{batch}/payments/{second}")
        draft = (await done(house, "GET", f"/batches/{batch}"))["batch"]
        assert draft["amount"] == "25.03"
        assert [one["id"] for one in draft["payments"]["payments"]] == [first]
        await done(house, "POST", f"/batches/{batch}/generate-quote")
    made = [one for one in service.calls("POST") if one.path == "/v1/batches"]
    sent = [(one["amount"], one["currency"]) for one in json.loads(made[-1].body)["payments"]]
    assert sent == [("25.03", "USD")]
