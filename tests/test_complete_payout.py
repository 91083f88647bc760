"""A complete payout through the gateway, in front of every kind of service.

A service may have the optional endpoints or none of them, and return all fields or few: the legacy client gets
the same bytes, except for ids and times.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.payouts import (
    create_recipient,
    load_payment_ids,
    open_gateway_and_service,
    request_successfully,
)
from tests.running_gateway import GatewayUnderTest, open_gateway
from tests.simulator import Service, ServiceOptions, start_simulator

ADDRESS = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
BANK = {
    "primary": {"method": "bank", "currency": "USD"},
    "accounts": {"bank": {"country": "US", "accountNum": "1234567", "routing": "021000021"}},
}
WALLET = {
    "primary": {"method": "wallet", "currency": "USD"},
    "accounts": {"wallet": {"address": "ada@wallet.example.com"}},
}
TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
ID_PATTERN = re.compile(r"\b[RBPA]-[A-Za-z0-9]{10,}\b")


class NormalizedSession:
    """Sends requests, and keeps the answers without times and with numbered ids."""

    def __init__(self, gateway: GatewayUnderTest) -> None:
        self.gateway = gateway
        self.exchanges: list[str] = []
        self.names: dict[str, str] = {}

    async def request_unrecorded(self, path: str) -> Any:
        """Sends an unrecorded read: drafts lack fields that only the service computes."""
        response = await self.gateway.request("GET", f"/v1{path}")
        assert response.status == 200, response.text
        return response.body

    async def request(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        response = await self.gateway.request(method, f"/v1{path}", body)
        assert response.status == status, (method, path, response.text)
        text = ID_PATTERN.sub(
            lambda match: self.names.setdefault(match[0], f"ID{len(self.names)}"), response.text
        )
        text = TIME_PATTERN.sub("TIME", text)
        for id_ in ID_PATTERN.findall(response.text):
            assert len(id_) <= 18, f"{id_} does not fit a legacy client"
        self.exchanges.append(
            f"{method} {ID_PATTERN.sub(lambda match: self.names[match[0]], path)} {text}"
        )
        return response.body


async def run_payout(run: NormalizedSession) -> None:
    recipient_ids = []
    for number, payout in enumerate((BANK, WALLET, BANK)):
        create_body = await run.request(
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
        recipient_ids.append(create_body["recipient"]["id"])
    await run.request("GET", "/profile/balances")
    batch = (
        await run.request(
            "POST",
            "/batches",
            {
                "sourceCurrency": "USD",
                "description": "Löhne im Oktober",
                "payments": [
                    {
                        "recipient": {"id": recipient_ids[0]},
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
    batch_body = (await run.request("GET", f"/batches/{batch}"))["batch"]
    first, second = [payment["id"] for payment in batch_body["payments"]["payments"]]
    third = (
        await run.request(
            "POST",
            f"/batches/{batch}/payments",
            {
                "recipient": {"id": recipient_ids[2]},
                "sourceAmount": "7.05",
                "memo": "third",
            },
        )
    )["payment"]["id"]
    await run.request("PATCH", f"/batches/{batch}/payments/{first}", {"sourceAmount": "120.00"})
    shown_body = (await run.request_unrecorded(f"/batches/{batch}/payments/{first}"))["payment"]
    assert shown_body["sourceAmount"] == "120.00"
    await run.request(
        "PATCH",
        f"/batches/{batch}",
        {
            "payments": [{"recipient": {"id": recipient_ids[0]}, "sourceAmount": "1.00"}],
            "update_payments": [{"id": third, "memo": "third, changed"}],
            "remove_payments": [{"id": second}],
        },
    )
    (found_payment,) = (await run.request_unrecorded(f"/batches/{batch}/payments?search=changed"))[
        "payments"
    ]
    assert (found_payment["id"], found_payment["memo"]) == (third, "third, changed")
    await run.request("DELETE", f"/batches/{batch}/payments/{third}")
    shown_body = (await run.request_unrecorded(f"/batches/{batch}"))["batch"]
    assert (shown_body["status"], shown_body["amount"], shown_body["totalPayments"]) == (
        "open",
        "121.00",
        2,
    )
    assert [entry["recipient"]["name"] for entry in shown_body["payments"]["payments"]] == [
        "Ada Number 0"
    ] * 2
    (listed_batch,) = (await run.request_unrecorded("/batches"))["batches"]
    assert (listed_batch["id"], listed_batch["amount"]) == (batch, "121.00")
    await run.request("POST", f"/batches/{batch}/generate-quote")
    await run.request("GET", f"/batches/{batch}/summary")
    await run.request("POST", f"/batches/{batch}/start-processing")
    for _ in range(100):
        status = (await run.gateway.request("GET", f"/v1/batches/{batch}")).body["batch"]["status"]
        if status == "complete":
            break
        assert status == "processing"
        await asyncio.sleep(0.05)
    await run.request("GET", f"/batches/{batch}")
    await run.request("POST", f"/batches/{batch}/start-processing", status=406)
    await run.request("DELETE", f"/batches/{batch}", status=406)
    await run.request("GET", f"/batches/{batch}/payments/{first}")
    recipient_payments = (await run.request_unrecorded(f"/recipients/{recipient_ids[0]}/payments"))[
        "payments"
    ]
    assert len(recipient_payments) == 2, "none of a batch that was abandoned"
    assert first in {entry["id"] for entry in recipient_payments}
    assert {entry["batch"]["id"] for entry in recipient_payments} == {batch}
    await run.request("GET", f"/payments/{first}")
    other_id = (await run.request("POST", "/batches", {"sourceCurrency": "USD"}))["batch"]["id"]
    await run.request("DELETE", f"/batches/{other_id}")
    await run.request("GET", f"/batches/{other_id}", status=404)
    await run.request("GET", "/batches?pageSize=5")
    await run.request("GET", "/profile/balances/service")


COMBINATIONS = [
    {"inferred": inferred, "answers": answers}
    for inferred in (True, False)
    for answers in ("full", "bare")
]


@pytest.fixture(scope="module")
def first_exchanges() -> dict[str, list[str]]:
    return {}


@pytest.mark.parametrize("kind", COMBINATIONS, ids=json.dumps)
async def test_payout_is_answered_alike_with_every_kind_of_service(
    kind: dict[str, Any], tmp_path: Path, first_exchanges: dict[str, list[str]]
) -> None:
    service_options = ServiceOptions(**kind, processing_seconds=1, lists_payments=False)
    service = Service(options=service_options, seed=1)
    simulator = await start_simulator(service=service)
    try:
        async with open_gateway(tmp_path, simulator.url) as gateway:
            run = NormalizedSession(gateway)
            await run_payout(run)
    finally:
        await simulator.stop()
    assert len(service.batch_starts) == 1
    expected_exchanges = first_exchanges.setdefault("said", run.exchanges)
    assert run.exchanges == expected_exchanges


@pytest.mark.parametrize("answers", ["full", "bare"])
async def test_draft_pays_the_amounts_of_the_client(answers: Any, tmp_path: Path) -> None:
    """The other amount is computed by the service at a changing rate, and must not be sent."""
    service = Service(options=ServiceOptions(inferred=False, answers=answers), seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        payee = {"id": await create_recipient(gateway)}
        euros = {"recipient": payee, "targetAmount": "25.00", "targetCurrency": "EUR"}
        dollars = {"recipient": payee, "sourceAmount": "10.00"}
        body = {"sourceCurrency": "USD", "payments": [euros, dollars]}
        batch = (await request_successfully(gateway, "POST", "/batches", body))["batch"]["id"]
        await request_successfully(
            gateway, "POST", f"/batches/{batch}/payments", {**dollars, "sourceAmount": "7.00"}
        )
        _, second, _ = await load_payment_ids(gateway, batch)
        path = f"/batches/{batch}/payments/{second}"
        await request_successfully(gateway, "PATCH", path, {"sourceAmount": "12.00"})
        await request_successfully(gateway, "POST", f"/batches/{batch}/generate-quote")
    creations = [call for call in service.list_requests("POST") if call.path == "/v1/batches"]
    sent_payments = [
        (payment["amount"], payment["currency"])
        for payment in json.loads(creations[-1].body)["payments"]
    ]
    assert sent_payments == [("25.00", "EUR"), ("12.00", "USD"), ("7.00", "USD")]


EURO_PAYOUT = {
    "primary": {"method": "bank", "currency": "EUR"},
    "accounts": {"bank": {"country": "DE", "iban": "DE89370400440532013000"}},
}


@pytest.mark.parametrize("answers", ["full", "bare"])
async def test_draft_pays_a_target_amount_in_the_batch_currency(
    answers: Any, tmp_path: Path
) -> None:
    """The payment arrives in the account's currency, in an amount that the service computes."""
    service = Service(options=ServiceOptions(inferred=False, answers=answers), seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        payee = {"id": await create_recipient(gateway)}
        await request_successfully(
            gateway, "POST", f"/recipients/{payee['id']}/payout-methods", EURO_PAYOUT
        )
        target_payment = {"recipient": payee, "targetAmount": "25.03", "targetCurrency": "USD"}
        source_payment = {
            "recipient": {"id": await create_recipient(gateway, "bob")},
            "sourceAmount": "10.00",
        }
        body = {"sourceCurrency": "USD", "payments": [target_payment, source_payment]}
        batch = (await request_successfully(gateway, "POST", "/batches", body))["batch"]["id"]
        first, second = await load_payment_ids(gateway, batch)
        await request_successfully(gateway, "DELETE", f"/batches/{batch}/payments/{second}")
        draft = (await request_successfully(gateway, "GET", f"/batches/{batch}"))["batch"]
        assert draft["amount"] == "25.03"
        assert [payment["id"] for payment in draft["payments"]["payments"]] == [first]
        await request_successfully(gateway, "POST", f"/batches/{batch}/generate-quote")
    creations = [call for call in service.list_requests("POST") if call.path == "/v1/batches"]
    sent_payments = [
        (payment["amount"], payment["currency"])
        for payment in json.loads(creations[-1].body)["payments"]
    ]
    assert sent_payments == [("25.03", "USD")]
