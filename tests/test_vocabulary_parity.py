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
from gateway.server.demo import build_simulator_vocabulary
from tests.running_gateway import GatewayUnderTest, open_gateway
from tests.simulator import (
    DEMO_API_KEY,
    WALLET_FUNDS,
    Service,
    ServiceOptions,
    Simulator,
    start_simulator,
)

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
DEFAULT_WORDS_PATTERN = re.compile(
    r"wallet|\bavatarurl|servicetotal|\"service\"|/service\b|svcsign", re.IGNORECASE
)
SERVICE_WORDS_PATTERN = re.compile(r"payco|pictureUrl|emailAddress")

PAYPAL = {
    "primary": {"method": "paypal", "currency": "USD"},
    "accounts": {"paypal": {"address": "zoe@example.org"}},
}
BANK = {
    "primary": {"method": "bank", "currency": "USD"},
    "accounts": {"bank": {"country": "US", "accountNum": "0123456789", "routing": "021000021"}},
}
RECIPIENT_BODY = {
    "type": "individual",
    "firstName": "Zoë",
    "lastName": "Peña",
    "email": "zoe@example.org",
    "address": {"street1": "1 Main Street", "city": "Oulu", "region": "NY", "country": "US"},
}


@dataclass(slots=True)
class LegacyInterface:
    """The gateway, or the service's own legacy interface."""

    url: str
    api_key: str
    session: aiohttp.ClientSession

    async def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"X-API-Key": self.api_key}
        async with self.session.request(
            method, f"{self.url}/v1{path}", json=body, headers=headers
        ) as response:
            text = await response.text()
            assert not DEFAULT_WORDS_PATTERN.search(text), (method, path, text)
            assert not SERVICE_WORDS_PATTERN.search(text), (method, path, text)
            return response.status, await response.json()

    async def request_successfully(self, method: str, path: str, body: Any = None) -> Any:
        status, response_body = await self.request(method, path, body)
        assert status == 200, (method, path, response_body)
        return response_body

    async def request_refused(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        status, response_body = await self.request(method, path, body)
        assert status != 200, (method, path, response_body)
        return status, [(error["code"], error.get("field")) for error in response_body["errors"]]

    async def create_recipient(self, payout: Any, **fields: Any) -> str:
        create_body = await self.request_successfully(
            "POST", "/recipients", {**RECIPIENT_BODY, "payout": payout, **fields}
        )
        return str(create_body["recipient"]["id"])


@dataclass(slots=True)
class GatewayAndService:
    gateway: LegacyInterface
    service: LegacyInterface
    simulator: Simulator

    @property
    def sides(self) -> tuple[LegacyInterface, LegacyInterface]:
        return self.gateway, self.service


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["inferred", "documented"])
async def gateway_and_service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayAndService]:
    simulator_words = build_simulator_vocabulary(Settings(vocabulary=VOCABULARY).vocabulary)
    service_options = ServiceOptions(inferred=request.param == "inferred")
    service = Service(
        seed=1, vocabulary=simulator_words, options=service_options, wallet_balance=WALLET_FUNDS
    )
    simulator = await start_simulator(service=service, legacy_port=0)
    folder: Path = tmp_path_factory.mktemp("words")
    try:
        async with open_gateway(folder, simulator.url, vocabulary=VOCABULARY) as gateway:
            yield GatewayAndService(
                _build_gateway_interface(gateway),
                _build_service_interface(gateway, simulator.legacy_url),
                simulator,
            )
        for call in service.list_requests():
            call_text = f"{call.target} {call.body.decode()}"
            assert not DEFAULT_WORDS_PATTERN.search(call_text), call_text
            assert "paypal" not in call_text
    finally:
        await simulator.stop()


def _build_gateway_interface(gateway: GatewayUnderTest) -> LegacyInterface:
    return LegacyInterface(gateway.running.url, gateway.api_key, gateway.session)


def _build_service_interface(gateway: GatewayUnderTest, url: str) -> LegacyInterface:
    return LegacyInterface(url, DEMO_API_KEY, gateway.session)


async def test_recipients_and_payout_methods_use_the_vocabulary(
    gateway_and_service: GatewayAndService,
) -> None:
    for interface in gateway_and_service.sides:
        id_ = await interface.create_recipient(PAYPAL)
        recipient = (await interface.request_successfully("GET", f"/recipients/{id_}"))["recipient"]
        assert "gravatarUrl" in recipient
        assert recipient["payoutMethod"] == recipient["payout"]["method"] == "paypal"
        assert recipient["payout"]["methodDisplay"] == "PayPal"
        assert recipient["payout"]["accounts"] == PAYPAL["accounts"]
        path = f"/recipients/{id_}/payout-methods"
        await interface.request_successfully("PATCH", path, BANK)
        payout = await interface.request_successfully("GET", path)
        assert (payout["method"], payout["methodDisplay"]) == ("bank", "Bank transfer")
        assert payout["accounts"]["paypal"] == {"address": "zoe@example.org"}
        await interface.request_successfully("POST", path, PAYPAL)
        await interface.request_successfully("PATCH", path, {"primary": {"method": "paypal"}})
        await interface.request_successfully(
            "PATCH", f"/recipients/{id_}", {**recipient, "firstName": "Zoe"}
        )
        await interface.request_successfully("GET", f"/recipients/{id_}/payments")


async def test_list_is_filtered_by_the_configured_word(
    gateway_and_service: GatewayAndService,
) -> None:
    for interface in gateway_and_service.sides:
        reference = f"ref-{interface.url[-5:]}"
        ids = [
            await interface.create_recipient(payout, referenceId=reference)
            for payout in (PAYPAL, BANK)
        ]
        for word, id_ in zip(("paypal", "bank-transfer"), ids, strict=True):
            query = f"?search={reference}&payoutMethod={word}"
            listed_recipients = (
                await interface.request_successfully("GET", f"/recipients{query}")
            )["recipients"]
            assert [entry["id"] for entry in listed_recipients] == [id_]


async def test_balances_are_separated_by_the_configured_words(
    gateway_and_service: GatewayAndService,
) -> None:
    gateway, service = [
        [
            await interface.request_successfully("GET", f"/profile/balances{path}")
            for path in ("", "/acme", "/paypal")
        ]
        for interface in gateway_and_service.sides
    ]
    assert gateway == service
    all_balances, service_balances, paypal_balances = (entry["balances"] for entry in gateway)
    assert all_balances == service_balances | paypal_balances
    assert paypal_balances.keys() == {"paypal"}
    assert paypal_balances["paypal"]["type"] == "paypal"
    assert {entry["type"] for entry in service_balances.values()} == {"acme"}
    for interface in gateway_and_service.sides:
        for path in ("wallet", "service", "payco"):
            async with interface.session.get(
                f"{interface.url}/v1/profile/balances/{path}",
                headers={"X-API-Key": interface.api_key},
            ) as response:
                assert response.status == 404


async def test_batch_and_summary_use_the_vocabulary(gateway_and_service: GatewayAndService) -> None:
    summaries = []
    for interface in gateway_and_service.sides:
        ids = [await interface.create_recipient(payout) for payout in (PAYPAL, BANK)]
        payments = [{"recipient": {"id": id_}, "sourceAmount": "50.00"} for id_ in ids]
        create_body = await interface.request_successfully(
            "POST", "/batches", {"sourceCurrency": "USD", "payments": payments}
        )
        path = f"/batches/{create_body['batch']['id']}"
        batch_body = (await interface.request_successfully("GET", path))["batch"]
        shown_payments = batch_body["payments"]["payments"]
        assert {(entry["method"], entry["methodDisplay"]) for entry in shown_payments} == {
            ("paypal", "PayPal"),
            ("bank-transfer", "Bank transfer"),
        }
        for entry in shown_payments:
            payment = (
                await interface.request_successfully("GET", f"{path}/payments/{entry['id']}")
            )["payment"]
            assert "gravatarUrl" in payment["recipient"]
        await interface.request_successfully(
            "PATCH", path, {"remove_payments": [{"id": shown_payments[0]["id"]}]}
        )
        await interface.request_successfully("POST", f"{path}/payments", payments[0])
        await interface.request_successfully("POST", f"{path}/generate-quote")
        summary = (await interface.request_successfully("GET", f"{path}/summary"))["batchSummary"]
        labels = {
            method: (value["accountType"], value["displayName"])
            for method, value in summary["methods"].items()
        }
        assert labels == {
            "paypal": ("PayPaL", "PayPal account"),
            "bank-transfer": ("AcMe", "BANK"),
        }
        assert summary["AcmeTotal"]["count"] == summary["GatewayTotal"]["count"] == 1
        assert summary["merchantBalances"].keys() == {"AcmeTotal", "GatewayTotal"}
        await interface.request_successfully("POST", f"{path}/start-processing")
        await interface.request_successfully("GET", "/batches")
        await interface.request_successfully("GET", "/payments")
        summaries.append(summary)
    gateway, service = summaries
    for name in ("methods", "AcmeTotal", "GatewayTotal", "total"):
        assert gateway[name] == service[name]


INVALID_WALLET = {**PAYPAL, "accounts": {"paypal": {"address": "nobody"}}}
INVALID_PAYOUTS = (
    INVALID_WALLET,
    {**PAYPAL, "accounts": {"paypal": {"address": "zoe@example"}}},
    {**PAYPAL, "accounts": {"paypal": {"address": None}}},
    {"primary": {"method": "paypal"}, "accounts": {}},
    {"primary": {"method": "paypal"}, "accounts": {"paypal": {}}},
    {"primary": {"method": "payco"}, "accounts": {}},
    {"primary": {"method": "wallet"}, "accounts": {"wallet": {"address": "zoe@example.org"}}},
    {"accounts": PAYPAL["accounts"] | BANK["accounts"]},
    {**PAYPAL, "accounts": {"paypal": "zoe@example.org"}},
)


@pytest.mark.parametrize("body", INVALID_PAYOUTS, ids=str)
@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_errors_name_the_clients_fields(
    gateway_and_service: GatewayAndService, method: str, body: Any
) -> None:
    bodies = []
    for interface in gateway_and_service.sides:
        path = f"/recipients/{await interface.create_recipient(BANK)}/payout-methods"
        bodies.append(await interface.request(method, path, body))
    (status, gateway), (control, service) = bodies
    assert status == control
    field_names = [
        [(entry["code"], entry.get("field")) for entry in body.get("errors", [])]
        for body in (gateway, service)
    ]
    assert sorted(field_names[0]) == sorted(field_names[1])


async def test_errors_of_a_recipient_payout_name_the_clients_fields(
    gateway_and_service: GatewayAndService,
) -> None:
    for interface in gateway_and_service.sides:
        errors = await interface.request_refused(
            "POST", "/recipients", {**RECIPIENT_BODY, "payout": INVALID_WALLET}
        )
        assert errors == (406, [("invalid_field", "payout.accounts.paypal.address")])
        path = f"/recipients/{await interface.create_recipient(PAYPAL)}"
        payout = {"accounts": {"paypal": {"address": "zoe@example"}}}
        assert await interface.request_refused("PATCH", path, {"payout": payout}) == errors
