"""A vocabulary without any default word, at the gateway and at both interfaces of the service.

The same requests go to the gateway and to the service's own legacy interface: both give the same
answers, and no default word appears in any answer or call.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from gateway.config.settings import Settings
from gateway.docgen.openapi import build_openapi_document
from gateway.server.demo import simulator_words
from gateway.simulator import DEMO_API_KEY, WALLET_FUNDS, Service, Simulator, Switches, start
from tests.house import House, open_house

pytestmark = pytest.mark.asyncio(loop_scope="module")

VOCABULARY = {
    "legacy": {
        "wallet": "paypal",
        "service": "acme",
        "service_total": "AcmeTotal",
        "avatar_url": "gravatarUrl",
        "wallet_method_display": "PayPal",
        "bank_method_display": "Bank transfer",
        "wallet_display_name": "PayPal account",
        "bank_display_name": "BANK",
        "wallet_account_type": "PayPaL",
        "service_account_type": "AcMe",
    },
    "current": {
        "scheme": "prsign",
        "timestamp_header": "X-PR-Timestamp",
        "wallet": "payco",
        "avatar_url": "pictureUrl",
        "balance_path": "/v1/funds",
        "summary_path": "/v1/batches/{id}/report",
        "batch_currency": "sourceCurrency",
    },
}
DEFAULT = re.compile(
    r"wallet|\bavatarurl|servicetotal|\"service\"|/service\b|svcsign", re.IGNORECASE
)
THE_OTHER_SIDE_S = re.compile(r"payco|pictureUrl")

PAYPAL = {
    "primary": {"method": "paypal", "currency": "USD"},
    "accounts": {"paypal": {"address": "zoe@example.org"}},
}
BANK = {
    "primary": {"method": "bank", "currency": "USD"},
    "accounts": {"bank": {"country": "US", "accountNum": "0123456789", "routing": "021000021"}},
}
ZOE = {
    "type": "individual",
    "firstName": "Zoë",
    "lastName": "Peña",
    "email": "zoe@example.org",
    "address": {"street1": "1 Main Street", "city": "Oulu", "region": "NY", "country": "US"},
}


@dataclass(slots=True)
class Side:
    """The gateway, or the service's own legacy interface."""

    url: str
    api_key: str
    session: aiohttp.ClientSession

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"X-API-Key": self.api_key}
        async with self.session.request(
            method, f"{self.url}/v1{path}", json=body, headers=headers
        ) as answer:
            text = await answer.text()
            assert not DEFAULT.search(text), (method, path, text)
            assert not THE_OTHER_SIDE_S.search(text), (method, path, text)
            return answer.status, await answer.json()

    async def done(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = await self.ask(method, path, body)
        assert status == 200, (method, path, answer)
        return answer

    async def refused(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        status, answer = await self.ask(method, path, body)
        assert status != 200, (method, path, answer)
        return status, [(one["code"], one.get("field")) for one in answer["errors"]]

    async def make(self, payout: Any, **fields: Any) -> str:
        made = await self.done("POST", "/recipients", {**ZOE, "payout": payout, **fields})
        return str(made["recipient"]["id"])


@dataclass(slots=True)
class Town:
    gateway: Side
    service: Side
    simulator: Simulator

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.gateway, self.service


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["inferred", "documented"])
async def town(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Town]:
    words = simulator_words(Settings(vocabulary=VOCABULARY).vocabulary)
    switches = Switches(inferred=request.param == "inferred")
    service = Service(seed=1, words=words, switches=switches, wallet_balance=WALLET_FUNDS)
    simulator = await start(service=service, legacy_port=0)
    assert simulator.legacy is not None
    folder: Path = tmp_path_factory.mktemp("words")
    try:
        async with open_house(folder, simulator.url, vocabulary=VOCABULARY) as house:
            yield Town(_of(house), _beside(house, simulator.legacy.url), simulator)
        for call in service.calls():
            said = f"{call.target} {call.body.decode()}"
            assert not DEFAULT.search(said), said
            assert "paypal" not in said
    finally:
        await simulator.stop()


def _of(house: House) -> Side:
    return Side(house.running.url, house.api_key, house.session)


def _beside(house: House, url: str) -> Side:
    return Side(url, DEMO_API_KEY, house.session)


async def test_recipients_and_their_payout_methods(town: Town) -> None:
    for side in town.sides:
        id_ = await side.make(PAYPAL)
        shown = (await side.done("GET", f"/recipients/{id_}"))["recipient"]
        assert "gravatarUrl" in shown
        assert shown["payoutMethod"] == shown["payout"]["method"] == "paypal"
        assert shown["payout"]["methodDisplay"] == "PayPal"
        assert shown["payout"]["accounts"] == PAYPAL["accounts"]
        path = f"/recipients/{id_}/payout-methods"
        await side.done("PATCH", path, BANK)
        payout = await side.done("GET", path)
        assert (payout["method"], payout["methodDisplay"]) == ("bank", "Bank transfer")
        assert payout["accounts"]["paypal"] == {"address": "zoe@example.org"}
        await side.done("POST", path, PAYPAL)
        await side.done("PATCH", path, {"primary": {"method": "paypal"}})
        await side.done("PATCH", f"/recipients/{id_}", {**shown, "firstName": "Zoe"})
        await side.done("GET", f"/recipients/{id_}/payments")


async def test_a_list_is_filtered_by_the_word(town: Town) -> None:
    for side in town.sides:
        reference = f"ref-{side.url[-5:]}"
        ids = [await side.make(payout, referenceId=reference) for payout in (PAYPAL, BANK)]
        for word, id_ in zip(("paypal", "bank-transfer"), ids, strict=True):
            query = f"?search={reference}&payoutMethod={word}"
            found = (await side.done("GET", f"/recipients{query}"))["recipients"]
            assert [one["id"] for one in found] == [id_]


async def test_balances_are_kept_apart_by_the_words(town: Town) -> None:
    gateway, service = [
        [await side.done("GET", f"/profile/balances{path}") for path in ("", "/acme", "/paypal")]
        for side in town.sides
    ]
    assert gateway == service
    whole, of_service, of_paypal = (one["balances"] for one in gateway)
    assert whole == of_service | of_paypal
    assert of_paypal.keys() == {"paypal"}
    assert of_paypal["paypal"]["type"] == "paypal"
    assert {one["type"] for one in of_service.values()} == {"acme"}
    for side in town.sides:
        for path in ("wallet", "service", "payco"):
            async with side.session.get(
                f"{side.url}/v1/profile/balances/{path}", headers={"X-API-Key": side.api_key}
            ) as answer:
                assert answer.status == 404


async def test_a_batch_and_its_summary(town: Town) -> None:
    summaries = []
    for side in town.sides:
        ids = [await side.make(payout) for payout in (PAYPAL, BANK)]
        payments = [{"recipient": {"id": id_}, "sourceAmount": "50.00"} for id_ in ids]
        made = await side.done("POST", "/batches", {"sourceCurrency": "USD", "payments": payments})
        path = f"/batches/{made['batch']['id']}"
        whole = (await side.done("GET", path))["batch"]
        listed = whole["payments"]["payments"]
        assert {(one["method"], one["methodDisplay"]) for one in listed} == {
            ("paypal", "PayPal"),
            ("bank-transfer", "Bank transfer"),
        }
        for one in listed:
            payment = (await side.done("GET", f"{path}/payments/{one['id']}"))["payment"]
            assert "gravatarUrl" in payment["recipient"]
        await side.done("PATCH", path, {"remove_payments": [{"id": listed[0]["id"]}]})
        await side.done("POST", f"{path}/payments", payments[0])
        await side.done("POST", f"{path}/generate-quote")
        summary = (await side.done("GET", f"{path}/summary"))["batchSummary"]
        labels = {
            method: (one["accountType"], one["displayName"])
            for method, one in summary["methods"].items()
        }
        assert labels == {
            "paypal": ("PayPaL", "PayPal account"),
            "bank-transfer": ("AcMe", "BANK"),
        }
        assert summary["AcmeTotal"]["count"] == summary["GatewayTotal"]["count"] == 1
        assert summary["merchantBalances"].keys() == {"AcmeTotal", "GatewayTotal"}
        await side.done("POST", f"{path}/start-processing")
        await side.done("GET", "/batches")
        await side.done("GET", "/payments")
        summaries.append(summary)
    gateway, service = summaries
    for name in ("methods", "AcmeTotal", "GatewayTotal", "total"):
        assert gateway[name] == service[name]


NOBODY = {**PAYPAL, "accounts": {"paypal": {"address": "nobody"}}}
WRONG = (
    NOBODY,
    {**PAYPAL, "accounts": {"paypal": {"address": "zoe@example"}}},
    {"primary": {"method": "paypal"}, "accounts": {}},
    {"primary": {"method": "paypal"}, "accounts": {"paypal": {}}},
    {"primary": {"method": "payco"}, "accounts": {}},
    {"primary": {"method": "wallet"}, "accounts": {"wallet": {"address": "zoe@example.org"}}},
    {"accounts": PAYPAL["accounts"] | BANK["accounts"]},
    {**PAYPAL, "accounts": {"paypal": "zoe@example.org"}},
)


@pytest.mark.parametrize("body", WRONG, ids=str)
@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_errors_name_the_client_s_fields(town: Town, method: str, body: Any) -> None:
    answers = []
    for side in town.sides:
        path = f"/recipients/{await side.make(BANK)}/payout-methods"
        answers.append(await side.ask(method, path, body))
    (status, gateway), (control, service) = answers
    assert status == control
    named = [
        [(one["code"], one.get("field")) for one in answer.get("errors", [])]
        for answer in (gateway, service)
    ]
    assert sorted(named[0]) == sorted(named[1])


async def test_errors_of_a_recipient_s_payout_do_so_too(town: Town) -> None:
    for side in town.sides:
        told = await side.refused("POST", "/recipients", {**ZOE, "payout": NOBODY})
        assert told == (406, [("invalid_field", "payout.accounts.paypal.address")])


async def test_the_description_of_the_interface_has_the_labels() -> None:
    words = Settings(vocabulary=VOCABULARY).vocabulary.for_mappings()
    schemas = build_openapi_document(words, ())["components"]["schemas"]
    account_type = schemas["MethodFigures"]["properties"]["accountType"]
    assert account_type["enum"] == ["AcMe", "PayPaL"]
    assert schemas["Payout"]["properties"]["methodDisplay"]["examples"] == [
        "PayPal",
        "Bank transfer",
    ]
