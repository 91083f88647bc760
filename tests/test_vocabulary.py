"""Configured vocabularies of both interfaces, with an unmodified client, through a whole gateway.

The default words of the documents are then unused; neither side sees them or the words of the
other.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.running_gateway import GatewayResponse, GatewayUnderTest, open_gateway
from tests.simulator import Service, Vocabulary, start_simulator

pytestmark = pytest.mark.asyncio(loop_scope="module")

VOCABULARY = {
    "legacy": {
        "wallet": "paypal",
        "service": "acme",
        "service_total": "AcmeTotal",
        "avatar_url": "gravatarUrl",
    },
    "current": {
        "wallet": "payco",
        "avatar_url": "pictureUrl",
        "scheme": "prsign",
        "timestamp_header": "X-PR-Timestamp",
    },
}
SERVICE_VOCABULARY = Vocabulary(
    scheme="prsign", timestamp_header="X-PR-Timestamp", wallet="payco", avatar_url="pictureUrl"
)
DEFAULT_WORDS = ("wallet", "avatarUrl")
SERVICE_WORDS = ("payco", "pictureUrl")
CLIENT_WORDS = ("paypal", "gravatarUrl")

ADDRESS = "zoe@example.org"
PAYPAL = {
    "primary": {"method": "paypal", "currency": "USD"},
    "accounts": {"paypal": {"address": ADDRESS}},
}
BANK = {
    "primary": {"method": "bank", "currency": "USD"},
    "accounts": {"bank": {"country": "US", "accountNum": "0123456789", "routing": "021000021"}},
}


def _check_absent_words(words: tuple[str, ...], text: str) -> None:
    assert not [word for word in words if f'"{word}"' in text or f"={word}" in text], text


@dataclass(slots=True)
class GatewayAndService:
    gateway: GatewayUnderTest
    service: Service

    async def request(self, method: str, path: str, body: Any = None) -> GatewayResponse:
        """Sends a request, and checks the answer and the upstream calls for foreign words."""
        request_count = len(self.service.requests)
        response = await self.gateway.request(method, f"/v1{path}", body)
        _check_absent_words((*DEFAULT_WORDS, *SERVICE_WORDS), response.text)
        for call in list(self.service.requests)[request_count:]:
            _check_absent_words(
                (*DEFAULT_WORDS, *CLIENT_WORDS), f"{call.target} {call.body.decode()}"
            )
            assert call.headers["X-PR-Timestamp"]
            assert call.headers["Authorization"].startswith("prsign ")
        return response

    async def request_successfully(
        self, method: str, path: str, body: Any = None
    ) -> dict[str, Any]:
        response = await self.request(method, path, body)
        assert response.status == 200, response.text
        body_: dict[str, Any] = response.body
        return body_

    async def request_refused(
        self, method: str, path: str, body: Any
    ) -> list[tuple[str, str | None]]:
        response = await self.request(method, path, body)
        assert response.status == 406, response.text
        return [(error["code"], error.get("field")) for error in response.body["errors"]]

    async def create_recipient(self, **fields: Any) -> str:
        recipient_body = {
            "type": "individual",
            "firstName": "Zoë",
            "lastName": "Peña",
            "email": ADDRESS,
        }
        id_: str = (
            await self.request_successfully("POST", "/recipients", {**recipient_body, **fields})
        )["recipient"]["id"]
        return id_

    async def load_payout(self, id_: str) -> dict[str, Any]:
        return await self.request_successfully("GET", f"/recipients/{id_}/payout-methods")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway_and_service(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[GatewayAndService]:
    service = Service(seed=1, vocabulary=SERVICE_VOCABULARY)
    service.seed_recipients(40, seed=3)
    simulator = await start_simulator(service=service)
    try:
        folder: Path = tmp_path_factory.mktemp("vocabulary")
        async with open_gateway(folder, simulator.url, vocabulary=VOCABULARY) as gateway:
            yield GatewayAndService(gateway, service)
    finally:
        await simulator.stop()


async def test_method_display_follows_the_clients_vocabulary(
    gateway_and_service: GatewayAndService,
) -> None:
    id_ = await gateway_and_service.create_recipient(payout=PAYPAL)
    response = await gateway_and_service.gateway.request(
        "GET", f"/v1/recipients/{id_}/payout-methods"
    )
    assert response.body["methodDisplay"] == "Paypal"


async def test_list_filter_is_translated_in_one_call(
    gateway_and_service: GatewayAndService,
) -> None:
    request_count = len(gateway_and_service.service.requests)
    body = await gateway_and_service.request_successfully(
        "GET", "/recipients?payoutMethod=paypal&pageSize=500"
    )
    [call] = list(gateway_and_service.service.requests)[request_count:]
    assert "payoutMethod=payco" in call.target
    recipients = gateway_and_service.service.find_or_create_tenant().recipients.values()
    expected_ids = [
        recipient.id
        for recipient in recipients
        if not recipient.is_archived
        and recipient.primary_account
        and recipient.primary_account.type == "payco"
    ]
    assert sorted(recipient["id"] for recipient in body["recipients"]) == sorted(expected_ids)
    assert expected_ids


# Errors


async def test_account_under_an_unknown_name_is_ignored(
    gateway_and_service: GatewayAndService,
) -> None:
    id_ = await gateway_and_service.create_recipient(payout=PAYPAL)
    payout = {
        "accounts": {"wallet": {"address": "other@example.org"}, "payco": {"address": "x@y.z"}}
    }
    await gateway_and_service.request_successfully(
        "PATCH", f"/recipients/{id_}/payout-methods", payout
    )
    assert (await gateway_and_service.load_payout(id_))["accounts"] == {
        "paypal": {"address": ADDRESS}
    }


# Free text


@pytest.mark.parametrize("word", [*DEFAULT_WORDS, *SERVICE_WORDS, *CLIENT_WORDS])
async def test_free_text_is_not_translated(
    gateway_and_service: GatewayAndService, word: str
) -> None:
    """Neither on its way to the service nor on its way back."""
    address = dict.fromkeys(("street1", "street2", "city", "region", "postalCode"), word)
    names = {"firstName": word, "lastName": word, "referenceId": word, "passport": word}
    bank = {
        "accountNum": "0123456789",
        "routing": "021000021",
        **dict.fromkeys(("name", "bankAddress", "bankCity", "bankProvince"), word),
    }
    accounts = {"bank": {"country": "US", **bank}, "paypal": {"address": f"{word}@example.org"}}
    payout = {"primary": {"method": "paypal", "currency": "USD"}, "accounts": accounts}
    recipient_body = {"type": "individual", "email": f"{word}@example.org", **names}
    recipient_body |= {"address": {**address, "country": "US"}, "payout": payout}
    response = await gateway_and_service.gateway.request("POST", "/v1/recipients", recipient_body)
    assert response.status == 200, response.text
    id_ = response.body["recipient"]["id"]
    stored_recipient = gateway_and_service.service.require_recipient(id_)
    assert {name: stored_recipient.fields[name] for name in names} == names
    assert {name: stored_recipient.address[name] for name in address} == address
    recipient = (await gateway_and_service.gateway.request("GET", f"/v1/recipients/{id_}")).body[
        "recipient"
    ]
    assert {name: recipient[name] for name in names} == names
    assert {name: recipient["address"][name] for name in address} == address
    shown_accounts = recipient["payout"]["accounts"]
    assert shown_accounts["paypal"] == {"address": f"{word}@example.org"}
    assert {
        shown_accounts["bank"][name] for name in ("name", "bankAddress", "bankCity", "bankProvince")
    } == {word}
    search_response = await gateway_and_service.gateway.request(
        "GET", f"/v1/recipients?search={word}&orderBy=city&pageSize=500"
    )
    assert id_ in [recipient["id"] for recipient in search_response.body["recipients"]]


async def test_recipient_log_is_not_translated(gateway_and_service: GatewayAndService) -> None:
    id_ = await gateway_and_service.create_recipient(payout=PAYPAL)
    response = await gateway_and_service.gateway.request("GET", f"/v1/recipients/{id_}/logs")
    requests = [json.loads(activity["request"] or "{}") for activity in response.body["activities"]]
    assert "payco" in [request.get("type") for request in requests]


async def test_vocabularies_may_swap_words(
    tmp_path: Path,
) -> None:
    """The legacy word ``a`` is the current word ``b``, and no word becomes the current ``a``."""
    simulator = await start_simulator(
        service=Service(seed=1, vocabulary=Vocabulary(wallet="gravatarUrl"))
    )
    vocabulary = {
        "legacy": {"wallet": "wallets", "avatar_url": "wallet"},
        "current": {"wallet": "gravatarUrl"},
    }
    try:
        async with open_gateway(tmp_path, simulator.url, vocabulary=vocabulary) as gateway:
            setup = GatewayAndService(gateway, simulator.service)
            payout = {
                "primary": {"method": "wallets"},
                "accounts": {"wallets": {"address": ADDRESS}},
            }
            recipient_body = {
                "type": "business",
                "name": "Nordström",
                "email": ADDRESS,
                "payout": payout,
            }
            response = await setup.gateway.request("POST", "/v1/recipients", recipient_body)
            assert response.status == 200, response.text
            recipient = response.body["recipient"]
            assert recipient["payout"]["method"] == "wallets"
            assert recipient["wallet"].startswith("https://example.com/avatars/")
            [account] = setup.service.require_recipient(recipient["id"]).accounts
            assert account.type == "gravatarUrl"
    finally:
        await simulator.stop()
