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

from gateway.simulator import Service, Words, start
from tests.house import Got, House, open_house

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
WORDS = Words(
    scheme="prsign", timestamp_header="X-PR-Timestamp", wallet="payco", avatar_url="pictureUrl"
)
NEUTRAL = ("wallet", "avatarUrl")
THE_SERVICE_S = ("payco", "pictureUrl")
THE_CLIENT_S = ("paypal", "gravatarUrl")

ADDRESS = "zoe@example.org"
PAYPAL = {
    "primary": {"method": "paypal", "currency": "USD"},
    "accounts": {"paypal": {"address": ADDRESS}},
}
BANK = {
    "primary": {"method": "bank", "currency": "USD"},
    "accounts": {"bank": {"country": "US", "accountNum": "0123456789", "routing": "021000021"}},
}


def _check_words(words: tuple[str, ...], text: str) -> None:
    assert not [word for word in words if f'"{word}"' in text or f"={word}" in text], text


@dataclass(slots=True)
class Town:
    house: House
    service: Service

    async def ask(self, method: str, path: str, body: Any = None) -> Got:
        """Sends a request, and checks the answer and the upstream calls for foreign words."""
        seen = len(self.service.requests)
        got = await self.house.ask(method, f"/v1{path}", body)
        _check_words((*NEUTRAL, *THE_SERVICE_S), got.text)
        for call in list(self.service.requests)[seen:]:
            _check_words((*NEUTRAL, *THE_CLIENT_S), f"{call.target} {call.body.decode()}")
            assert call.headers["X-PR-Timestamp"]
            assert call.headers["Authorization"].startswith("prsign ")
        return got

    async def done(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        got = await self.ask(method, path, body)
        assert got.status == 200, got.text
        body_: dict[str, Any] = got.body
        return body_

    async def refused(self, method: str, path: str, body: Any) -> list[tuple[str, str | None]]:
        got = await self.ask(method, path, body)
        assert got.status == 406, got.text
        return [(one["code"], one.get("field")) for one in got.body["errors"]]

    async def create(self, **fields: Any) -> str:
        person = {"type": "individual", "firstName": "Zoë", "lastName": "Peña", "email": ADDRESS}
        id_: str = (await self.done("POST", "/recipients", {**person, **fields}))["recipient"]["id"]
        return id_

    async def payout(self, id_: str) -> dict[str, Any]:
        return await self.done("GET", f"/recipients/{id_}/payout-methods")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def town(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    service = Service(seed=1, words=WORDS)
    service.seed_recipients(40, seed=3)
    simulator = await start(service=service)
    try:
        folder: Path = tmp_path_factory.mktemp("vocabulary")
        async with open_house(folder, simulator.url, vocabulary=VOCABULARY) as house:
            yield Town(house, service)
    finally:
        await simulator.stop()


async def test_a_recipient_can_be_created_with_a_method_of_the_client_s_word(town: Town) -> None:
    id_ = await town.create(payout=PAYPAL)
    [account] = town.service.recipient(id_).accounts
    assert (account.type, account.fields["emailAddress"]) == ("payco", ADDRESS)


@pytest.mark.parametrize(
    "path", ["/recipients/{}", "/recipients?search={}", "/recipients?city=Oulu"]
)
async def test_a_recipient_is_read_and_listed_in_the_client_s_words(town: Town, path: str) -> None:
    reference = f"ref-of-{abs(hash(path))}"
    id_ = await town.create(payout=PAYPAL, address={"city": "Oulu"}, referenceId=reference)
    body = await town.done("GET", path.format(reference if "search" in path else id_))
    shown = body.get("recipient") or next(one for one in body["recipients"] if one["id"] == id_)
    assert shown["payoutMethod"] == "paypal"
    assert shown["gravatarUrl"] == f"https://example.com/avatars/{id_}.png"
    assert shown["payout"]["method"] == shown["payout"]["primary"]["method"] == "paypal"
    assert shown["payout"]["accounts"] == {"paypal": {"address": ADDRESS}}


async def test_a_method_is_displayed_in_the_client_s_word(town: Town) -> None:
    id_ = await town.create(payout=PAYPAL)
    got = await town.house.ask("GET", f"/v1/recipients/{id_}/payout-methods")
    assert got.body["methodDisplay"] == "Paypal"


async def test_a_payout_method_can_be_added_read_and_changed_in_the_client_s_words(
    town: Town,
) -> None:
    id_ = await town.create(payout=BANK)
    path = f"/recipients/{id_}/payout-methods"
    added = await town.done("POST", path, PAYPAL)
    assert added == await town.payout(id_)
    assert added["primary"]["method"] == "paypal"
    assert added["accounts"]["paypal"] == {"address": ADDRESS}
    await town.done("PATCH", path, {"accounts": {"paypal": {"address": "new@example.org"}}})
    assert (await town.payout(id_))["accounts"]["paypal"] == {"address": "new@example.org"}
    await town.done("PATCH", path, {"primary": {"method": "bank"}})
    assert (await town.payout(id_))["method"] == "bank"
    await town.done("PATCH", path, {"primary": {"method": "paypal"}})
    assert (await town.payout(id_))["method"] == "paypal"
    assert [one.type for one in town.service.recipient(id_).accounts] == ["bank-transfer", "payco"]


async def test_what_was_shown_can_be_sent_back_whole(town: Town) -> None:
    id_ = await town.create(payout=PAYPAL)
    before = [(one.id, one.fields) for one in town.service.recipient(id_).accounts]
    shown = (await town.done("GET", f"/recipients/{id_}"))["recipient"]
    await town.done("PATCH", f"/recipients/{id_}", shown)
    await town.done("PATCH", f"/recipients/{id_}/payout-methods", await town.payout(id_))
    assert before == [(one.id, one.fields) for one in town.service.recipient(id_).accounts]


async def test_a_list_is_filtered_by_the_client_s_word_in_one_call_with_the_service_s(
    town: Town,
) -> None:
    before = len(town.service.requests)
    body = await town.done("GET", "/recipients?payoutMethod=paypal&pageSize=500")
    [call] = list(town.service.requests)[before:]
    assert "payoutMethod=payco" in call.target
    recipients = town.service.world().recipients.values()
    expected = [
        one.id
        for one in recipients
        if not one.archived and one.primary and one.primary.type == "payco"
    ]
    assert sorted(one["id"] for one in body["recipients"]) == sorted(expected)
    assert expected


async def test_a_list_that_is_read_whole_knows_the_client_s_word_as_well(town: Town) -> None:
    query = "payoutMethod=paypal&pageSize=500"
    one_call = await town.done("GET", f"/recipients?{query}&orderBy=createdAt")
    scanned = await town.done("GET", f"/recipients?{query}&payoutCurrency=USD&orderBy=createdAt")
    assert scanned["recipients"] == one_call["recipients"]


async def test_a_summary_is_told_in_the_client_s_words(town: Town) -> None:
    address = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
    id_ = await town.create(payout=BANK, address=address)
    payments = [{"recipient": {"id": id_}, "sourceAmount": "50.00"}]
    sent = {"sourceCurrency": "USD", "payments": payments}
    batch = (await town.done("POST", "/batches", sent))["batch"]["id"]
    summary = (await town.done("GET", f"/batches/{batch}/summary"))["batchSummary"]
    assert summary["AcmeTotal"]["count"] == 1
    assert summary["merchantBalances"].keys() == {"AcmeTotal", "GatewayTotal"}
    assert summary["methods"]["bank-transfer"]["accountType"] == "acme"
    assert summary["methods"]["paypal"]["accountType"] == "paypal"
    assert "ServiceTotal" not in summary


# Errors


async def test_what_is_missing_is_told_under_the_client_s_name(town: Town) -> None:
    payout = {"primary": {"method": "paypal"}, "accounts": {"paypal": {}}}
    person = {"type": "business", "name": "Nordström", "email": ADDRESS, "payout": payout}
    assert await town.refused("POST", "/recipients", person) == [
        ("empty_field", "payout.accounts.paypal.address")
    ]


async def test_an_account_that_is_missing_is_told_under_the_client_s_name(town: Town) -> None:
    id_ = await town.create(payout=BANK)
    path, body = f"/recipients/{id_}/payout-methods", {"primary": {"method": "paypal"}}
    for method in ("POST", "PATCH"):
        assert await town.refused(method, path, body) == [("empty_field", "accounts.paypal")]


async def test_what_the_gateway_refuses_is_told_under_the_client_s_name(town: Town) -> None:
    id_ = await town.create()
    body = {**PAYPAL, "accounts": {"paypal": {"address": "nobody"}}}
    assert await town.refused("POST", f"/recipients/{id_}/payout-methods", body) == [
        ("invalid_field", "accounts.paypal.address")
    ]


async def test_what_the_service_refuses_is_told_under_the_client_s_name(town: Town) -> None:
    """``zoe@example`` is an address to the gateway, and none to this service."""
    id_ = await town.create(payout=PAYPAL)
    path, sent = f"/recipients/{id_}", {"accounts": {"paypal": {"address": "zoe@example"}}}
    told = [("invalid_field", "accounts.paypal.address")]
    assert await town.refused("PATCH", f"{path}/payout-methods", sent) == told
    assert await town.refused("POST", f"{path}/payout-methods", {**PAYPAL, **sent}) == told
    assert await town.refused("PATCH", path, {"payout": sent}) == [
        ("invalid_field", "payout.accounts.paypal.address")
    ]


async def test_no_message_says_another_s_word(town: Town) -> None:
    """Not only ``field``: people read the message."""
    path = f"/v1/recipients/{await town.create(payout=BANK)}/payout-methods"
    for address in ("nobody", "zoe@example", None, ""):
        body = {**PAYPAL, "accounts": {"paypal": {"address": address}}}
        got = await town.house.ask("POST", path, body)
        assert got.status == 406
        for word in (*NEUTRAL, *THE_SERVICE_S, "emailAddress"):
            assert word not in got.text


async def test_an_account_under_a_word_of_nobody_s_is_an_unknown_field(town: Town) -> None:
    id_ = await town.create(payout=PAYPAL)
    sent = {"accounts": {"wallet": {"address": "other@example.org"}, "payco": {"address": "x@y.z"}}}
    await town.done("PATCH", f"/recipients/{id_}/payout-methods", sent)
    assert (await town.payout(id_))["accounts"] == {"paypal": {"address": ADDRESS}}


async def test_a_method_of_the_service_s_word_is_not_the_client_s(town: Town) -> None:
    id_ = await town.create(payout=BANK)
    body = {"primary": {"method": "payco"}, "accounts": {"paypal": {"address": ADDRESS}}}
    got = await town.house.ask("POST", f"/v1/recipients/{id_}/payout-methods", body)
    assert got.status == 406
    assert [one["field"] for one in got.body["errors"]] == ["primary.method"]


# Free text


@pytest.mark.parametrize("word", [*NEUTRAL, *THE_SERVICE_S, *THE_CLIENT_S])
async def test_free_text_that_happens_to_be_such_a_word_is_not_touched(
    town: Town, word: str
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
    sent = {"type": "individual", "email": f"{word}@example.org", **names}
    sent |= {"address": {**address, "country": "US"}, "payout": payout}
    got = await town.house.ask("POST", "/v1/recipients", sent)
    assert got.status == 200, got.text
    id_ = got.body["recipient"]["id"]
    held = town.service.recipient(id_)
    assert {name: held.fields[name] for name in names} == names
    assert {name: held.address[name] for name in address} == address
    shown = (await town.house.ask("GET", f"/v1/recipients/{id_}")).body["recipient"]
    assert {name: shown[name] for name in names} == names
    assert {name: shown["address"][name] for name in address} == address
    told = shown["payout"]["accounts"]
    assert told["paypal"] == {"address": f"{word}@example.org"}
    assert {told["bank"][name] for name in ("name", "bankAddress", "bankCity", "bankProvince")} == {
        word
    }
    found = await town.house.ask("GET", f"/v1/recipients?search={word}&orderBy=city&pageSize=500")
    assert id_ in [one["id"] for one in found.body["recipients"]]


async def test_the_log_of_a_recipient_is_told_as_the_service_wrote_it(town: Town) -> None:
    id_ = await town.create(payout=PAYPAL)
    got = await town.house.ask("GET", f"/v1/recipients/{id_}/logs")
    requests = [json.loads(one["request"] or "{}") for one in got.body["activities"]]
    assert "payco" in [one.get("type") for one in requests]


async def test_payments_show_their_recipient_in_the_client_s_words(town: Town) -> None:
    id_ = await town.create(payout=PAYPAL)
    town.service.seed_payments(id_, 2)
    body = await town.done("GET", f"/recipients/{id_}/payments")
    assert [one["recipient"]["payoutMethod"] for one in body["payments"]] == ["paypal"] * 2
    assert "gravatarUrl" in body["payments"][0]["recipient"]


async def test_the_words_of_one_side_may_be_those_of_the_other_the_other_way_round(
    tmp_path: Path,
) -> None:
    """A legacy ``a`` that is the current ``b``, beside nothing that would be a current ``a``."""
    simulator = await start(service=Service(seed=1, words=Words(wallet="gravatarUrl")))
    words = {
        "legacy": {"wallet": "wallets", "avatar_url": "wallet"},
        "current": {"wallet": "gravatarUrl"},
    }
    try:
        async with open_house(tmp_path, simulator.url, vocabulary=words) as house:
            town = Town(house, simulator.service)
            payout = {
                "primary": {"method": "wallets"},
                "accounts": {"wallets": {"address": ADDRESS}},
            }
            person = {"type": "business", "name": "Nordström", "email": ADDRESS, "payout": payout}
            got = await town.house.ask("POST", "/v1/recipients", person)
            assert got.status == 200, got.text
            shown = got.body["recipient"]
            assert shown["payout"]["method"] == "wallets"
            assert shown["wallet"].startswith("https://example.com/avatars/")
            [account] = town.service.recipient(shown["id"]).accounts
            assert account.type == "gravatarUrl"
    finally:
        await simulator.stop()
