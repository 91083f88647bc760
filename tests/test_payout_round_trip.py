"""Payout details that a client sends are returned by later reads, and can be sent back.

Hypothesis generates payouts, which go through a whole gateway to the simulator. All fields that are
not returned as they were sent are listed in ``EXPECTED_LOSSES``, each with its reason.
"""

from __future__ import annotations

import asyncio
import copy
import random
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pycountry
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schwifty import IBAN

from gateway.simulator.countries import COUNTRIES, IBAN_COUNTRIES, OPTIONAL_IBAN_COUNTRIES
from tests.running_gateway import GatewayResponse, GatewayUnderTest, open_gateway
from tests.simulator import Service, start_simulator

EXAMPLES = settings(
    max_examples=30,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

JSON = Any


# One gateway for all examples, in its own thread, because hypothesis is synchronous


@dataclass(slots=True)
class GatewayInThread:
    gateway: GatewayUnderTest
    service: Service
    loop: asyncio.AbstractEventLoop

    def wait_for(self, coroutine: Coroutine[Any, Any, GatewayResponse]) -> GatewayResponse:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def request(self, method: str, path: str, body: JSON = None) -> GatewayResponse:
        return self.wait_for(self.gateway.request(method, f"/v1{path}", body))

    def request_successfully(self, method: str, path: str, body: JSON = None) -> GatewayResponse:
        response = self.request(method, path, body)
        assert response.status == 200, (response.text, body)
        return response

    def list_writes(self, path: str) -> list[tuple[str, str, bytes]]:
        """Lists the upstream writes on a recipient and its accounts."""
        return [
            (call.method, call.path, call.body)
            for call in self.service.requests
            if call.method != "GET" and call.path.startswith(f"/v1{path}")
        ]


@pytest.fixture(scope="module")
def gateway_in_thread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayInThread]:
    future: Future[GatewayInThread] = Future()
    stop_callbacks: list[Callable[[], None]] = []

    async def run_gateway(folder: Path) -> None:
        stop_event, loop = asyncio.Event(), asyncio.get_running_loop()
        stop_callbacks.append(lambda: loop.call_soon_threadsafe(stop_event.set))
        simulator = await start_simulator(service=Service(seed=1))
        try:
            limits = {"requests_per_hour": 10**6}
            async with open_gateway(folder, simulator.url, limits=limits) as gateway:
                future.set_result(GatewayInThread(gateway, simulator.service, loop))
                await stop_event.wait()
        except BaseException as error:
            if not future.done():
                future.set_exception(error)
            raise
        finally:
            await simulator.stop()

    folder = tmp_path_factory.mktemp("round-trip")
    thread = threading.Thread(target=lambda: asyncio.run(run_gateway(folder)))
    thread.start()
    try:
        yield future.result(30)
    finally:
        stop_callbacks[0]()
        thread.join(30)


# Made-up payouts (legacy interface, sections 2 and 4.2)

BRANCH_ID_LENGTHS = {"US": "9", "CA": "5", "AU": "6", "NZ": "6", "GB": "6", "IN": "11"}
BRANCH_NAME_COUNTRIES = ("AU", "GB", "NZ", "IN")
"""Countries in which clients may send the branch id as ``routing``, ``branchNum`` or both."""

GOVERNMENT_IDS = {
    "individual": {
        "AR": 11,
        "AZ": 10,
        "BR": 11,
        "CL": 9,
        "CO": 10,
        "CR": 10,
        "GT": 9,
        "KZ": 12,
        "PY": 7,
    },
    "business": {"AR": 11, "BR": 14},
}
WIRE_COUNTRIES = frozenset(
    ["AO", "BM", "BO", "BZ", "ET", "FJ", "GY", "HT", "JM", "KH", "MN", "MZ", "TO", "UZ", "ZM"]
)
IBAN_ONLY_COUNTRIES = sorted(IBAN_COUNTRIES - OPTIONAL_IBAN_COUNTRIES)
IBAN_OR_NUMBER_COUNTRIES = sorted(OPTIONAL_IBAN_COUNTRIES - BRANCH_ID_LENGTHS.keys())
NUMBER_COUNTRIES = sorted(COUNTRIES - IBAN_COUNTRIES - BRANCH_ID_LENGTHS.keys())
IBAN_AND_NUMBER_COUNTRIES = ("CI", "DZ", "MA", "SN")
"""Countries whose accounts have an IBAN and, at this service, a domestic number."""

CURRENCIES = st.sampled_from(("USD", "EUR", "GBP", "JPY", "KWD", "XOF"))
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1)
ADDRESSES = st.from_regex(r"[a-zà-ÿ0-9.+_-]{1,12}@[a-z0-9]{1,9}\.(com|org)", fullmatch=True)
OMITTED_VALUES = st.sampled_from(("absent", None, ""))


def draw_digits(min_count: int, max_count: int) -> st.SearchStrategy[str]:
    return st.text("0123456789", min_size=min_count, max_size=max_count)


@dataclass(slots=True)
class DrawnPayout:
    """A payout as it is sent, and the expected values by full field name."""

    owner_type: str
    body: dict[str, JSON]
    expected: dict[str, JSON]
    with_recipient: bool


@st.composite
def draw_payout(draw: st.DrawFn) -> DrawnPayout:
    owner_type = draw(st.sampled_from(("individual", "individual", "business")))
    kinds = draw(st.sampled_from((("bank",), ("bank",), ("wallet",), ("bank", "wallet"))))
    method = draw(st.sampled_from(kinds))
    primary_currency = draw(CURRENCIES)
    expected: dict[str, JSON] = {"primary.method": method, "primary.currency": primary_currency}
    accounts: dict[str, JSON] = {}
    if "bank" in kinds:
        bank = draw(draw_bank(owner_type))
        expected |= {f"accounts.bank.{name}": value for name, value in bank.items()}
        accounts["bank"] = draw(draw_loose_form(bank))
    elif draw(st.booleans()):
        accounts["bank"] = None
    if "wallet" in kinds:
        expected["accounts.wallet.address"] = address = draw(ADDRESSES)
        accounts["wallet"] = {"address": address}
    primary = {"method": method, "currency": draw(draw_currency_form(primary_currency))}
    payout: dict[str, JSON] = {"primary": primary, "accounts": accounts}
    for name in ("autoswitch", "holdup"):
        hold = draw(draw_hold())
        expected |= {f"{name}.{name_in_hold}": value for name_in_hold, value in hold.items()}
        if hold:
            payout[name] = {
                name_in_hold: draw(draw_loose_value(value)) for name_in_hold, value in hold.items()
            }
    return DrawnPayout(owner_type, payout, expected, draw(st.booleans()))


@st.composite
def draw_hold(draw: st.DrawFn) -> dict[str, JSON]:
    hold = {"limit": draw(st.integers(0, 10**15)), "active": draw(st.booleans())}
    return {name: hold[name] for name in draw(st.sets(st.sampled_from(sorted(hold))))}


@st.composite
def draw_bank(draw: st.DrawFn, owner_type: str) -> dict[str, JSON]:
    groups = (
        sorted(BRANCH_ID_LENGTHS),
        IBAN_ONLY_COUNTRIES,
        IBAN_OR_NUMBER_COUNTRIES,
        NUMBER_COUNTRIES,
        sorted(GOVERNMENT_IDS[owner_type]),
    )
    country = draw(st.sampled_from(draw(st.sampled_from((*groups, IBAN_AND_NUMBER_COUNTRIES)))))
    bank = {"country": country, **draw(draw_number(country)), **draw(draw_branch(country))}
    if count := GOVERNMENT_IDS[owner_type].get(country):
        bank["governmentId"] = draw(draw_digits(count, count))
    elif country == "US" and draw(st.booleans()):
        bank["governmentId"] = draw(draw_digits(9, 9))
    optional = {
        "currency": CURRENCIES,
        "name": TEXTS,
        "swiftBic": draw_bic(country),
        "bankAddress": TEXTS,
        "bankCity": TEXTS,
        "bankProvince": TEXTS,
        "bankPostalCode": TEXTS,
    }
    needed = {"swiftBic", "bankAddress", "bankCity"} if country in WIRE_COUNTRIES else set()
    names = draw(st.sets(st.sampled_from(sorted(optional)))) | needed
    return {**bank, **{name: draw(optional[name]) for name in sorted(names)}}


@st.composite
def draw_number(draw: st.DrawFn, country: str) -> dict[str, str]:
    if country in (*IBAN_ONLY_COUNTRIES, *IBAN_AND_NUMBER_COUNTRIES):
        return {"iban": draw(draw_iban(country))}
    number = {"accountNum": draw(draw_digits(4, 17))}
    if country not in IBAN_COUNTRIES:
        return number
    iban = {"iban": draw(draw_iban(country))}
    return draw(st.sampled_from((number, iban, {**iban, **number})))


@st.composite
def draw_iban(draw: st.DrawFn, country: str) -> str:
    iban = IBAN.random(country, random=random.Random(draw(st.integers(0, 10**6))))
    return draw(st.sampled_from((str(iban), iban.formatted, str(iban).lower())))


@st.composite
def draw_branch(draw: st.DrawFn, country: str) -> dict[str, str]:
    if country not in BRANCH_ID_LENGTHS:
        return {}
    count = int(BRANCH_ID_LENGTHS[country])
    shape = r"[A-Z]{4}0[0-9A-Z]{6}" if country == "IN" else rf"[0-9]{{{count}}}"
    branch = draw(st.from_regex(shape, fullmatch=True))
    if country == "CA":
        return {"branchNum": branch, "institution": draw(draw_digits(3, 3))}
    names = {"US": [("routing",)]}.get(
        country, [("routing",), ("branchNum",), ("routing", "branchNum")]
    )
    return dict.fromkeys(draw(st.sampled_from(names)), branch)


def draw_bic(country: str) -> st.SearchStrategy[str]:
    return st.from_regex(rf"[A-Z]{{4}}{country}[A-Z0-9]{{2}}([A-Z0-9]{{3}})?", fullmatch=True)


@st.composite
def draw_loose_form(draw: st.DrawFn, bank: dict[str, JSON]) -> dict[str, JSON]:
    """Draws another form of the same account that real clients send."""
    loose_bank = dict(bank)
    if "currency" in loose_bank:
        loose_bank["currency"] = draw(draw_currency_form(loose_bank["currency"]))
    if country := pycountry.countries.get(alpha_2=bank["country"]):
        loose_bank["country"] = draw(st.sampled_from((country.alpha_2, country.alpha_3, "lower")))
        if loose_bank["country"] == "lower":
            loose_bank["country"] = country.alpha_2.lower()
    if "bankProvince" in loose_bank and draw(st.booleans()):
        loose_bank["bankRegion"] = loose_bank.pop("bankProvince")
    number = loose_bank.get("accountNum", "0")
    if not number.startswith("0") and draw(st.booleans()):
        loose_bank["accountNum"] = int(number)
    for name in ("name", "bankCity", "governmentId", "iban", "accountNum", "routing"):
        if name not in loose_bank and (omitted_value := draw(OMITTED_VALUES)) != "absent":
            loose_bank[name] = omitted_value
    if draw(st.booleans()):
        loose_bank["colour"] = {"unknown": ["to", "both"]}
    return loose_bank


@st.composite
def draw_currency_form(draw: st.DrawFn, code: str) -> JSON:
    flat = {"code": code, "name": "Some money"}
    forms = (code, code.lower(), flat, {"currency": flat}, {**flat, "currency": flat})
    return draw(st.sampled_from(forms))


@st.composite
def draw_loose_value(draw: st.DrawFn, value: JSON) -> JSON:
    return draw(st.sampled_from((value, str(value))))


# Fields that may be lost, and fields that are added


@dataclass(frozen=True, slots=True)
class ExpectedLoss:
    """A field that is not returned, with an example payout and the reason."""

    reason: str
    applies_to: Callable[[str, dict[str, JSON]], bool]
    example: dict[str, JSON]
    field: str


US_BANK = {"country": "US", "accountNum": "000123456789", "routing": "021000021"}


def _build_payout(method: str, **accounts: JSON) -> dict[str, JSON]:
    return {"primary": {"method": method, "currency": "EUR"}, "accounts": accounts}


EXPECTED_LOSSES = {
    "a primary currency that is not the primary account's": ExpectedLoss(
        "an account has one currency (current interface, section 2.6), and its own comes first",
        lambda name, expected: name == "primary.currency" and "accounts.bank.currency" in expected,
        _build_payout("bank", bank={**US_BANK, "currency": "USD"}),
        "primary.currency",
    ),
    "the name of a bank": ExpectedLoss(
        "bankName is filled in by the service (current interface, section 2.6)",
        lambda name, expected: (
            name == "accounts.bank.institution" and expected["accounts.bank.country"] != "CA"
        ),
        _build_payout("bank", bank={**US_BANK, "institution": "Bank of the Client"}),
        "accounts.bank.institution",
    ),
    "the name of a branch": ExpectedLoss(
        "answers show the branch id there; a request has no such field (legacy interface, section 4.2)",
        lambda name, _expected: name == "accounts.bank.branch",
        _build_payout("bank", bank={**US_BANK, "branch": "Main Street"}),
        "accounts.bank.branch",
    ),
    "a branch id under the name of another country": ExpectedLoss(
        "branchId is routing in the US and branchNum in Canada (legacy interface, section 4.2)",
        lambda name, expected: (
            name in ("accounts.bank.routing", "accounts.bank.branchNum")
            and expected["accounts.bank.country"] not in BRANCH_NAME_COUNTRIES
        ),
        _build_payout("bank", bank={**US_BANK, "branchNum": "12345"}),
        "accounts.bank.branchNum",
    ),
}

MASKED_FIELDS = ("accountNum", "iban", "governmentId")
ADDED_FIELDS = ("branch", "routing", "branchNum", "institution", "name", "currency", "accountNum")
"""Fields of a bank account that an answer may contain although they were not sent."""


def find_field(payout: dict[str, JSON], name: str) -> JSON:
    for key in name.split("."):
        payout = payout.get(key, {})
    return payout["code"] if name == "primary.currency" else payout


def list_differences(expected: dict[str, JSON], shown_payout: dict[str, JSON]) -> list[str]:
    """Lists fields whose value in the answer is neither the expected one nor its mask."""
    return [
        name
        for name, value in expected.items()
        if not _is_shown(name, value, find_field(shown_payout, name))
    ]


def _is_shown(name: str, value: JSON, shown_payout: JSON) -> bool:
    last = name.rpartition(".")[2]
    if last not in MASKED_FIELDS:
        return bool(shown_payout == value) and type(shown_payout) is type(value)
    normalized = re.sub(r"\s", "", value).upper() if last == "iban" else value
    return (
        shown_payout.startswith("**")
        and shown_payout.strip("*") == normalized[-2:]
        and shown_payout != normalized
    )


def create_recipient(gateway_in_thread: GatewayInThread, payout: DrawnPayout) -> str:
    """Creates a recipient with this payout, in one request or in two."""
    names = {"firstName": "Zoë", "lastName": "Peña"}
    recipient: dict[str, JSON] = {"type": payout.owner_type, "email": "zoe@example.com"}
    recipient |= names if payout.owner_type == "individual" else {"name": "Nordström Works"}
    street = {"street1": "1 High Street", "city": "Köln", "country": "DEU", "phone": "+49 1234567"}
    recipient["address"] = street
    if payout.with_recipient:
        recipient["payout"] = payout.body
    id_: str = gateway_in_thread.request_successfully("POST", "/recipients", recipient).body[
        "recipient"
    ]["id"]
    if not payout.with_recipient:
        response = gateway_in_thread.request_successfully(
            "POST", f"/recipients/{id_}/payout-methods", payout.body
        )
        assert (
            response.text
            == gateway_in_thread.request_successfully(
                "GET", f"/recipients/{id_}/payout-methods"
            ).text
        )
    return id_


@EXAMPLES
@given(draw_payout())
def test_payout_is_shown_as_sent(gateway_in_thread: GatewayInThread, payout: DrawnPayout) -> None:
    shown_payout = gateway_in_thread.request_successfully(
        "GET", f"/recipients/{create_recipient(gateway_in_thread, payout)}/payout-methods"
    ).body
    for name in list_differences(payout.expected, shown_payout):
        assert any(loss.applies_to(name, payout.expected) for loss in EXPECTED_LOSSES.values()), (
            name,
            payout,
            shown_payout,
        )
    _check_added_fields(payout, shown_payout)


def _check_added_fields(payout: DrawnPayout, shown_payout: dict[str, JSON]) -> None:
    assert list(shown_payout) == [
        *("ok", "autoswitch", "holdup", "primary", "method", "methodDisplay", "accounts")
    ]
    assert (
        shown_payout["method"]
        == shown_payout["primary"]["method"]
        == payout.expected["primary.method"]
    )
    currency = shown_payout["primary"]["currency"]
    assert currency["currency"] == {"code": currency["code"], "name": currency["name"]}
    for name, unset in (("limit", 1000), ("active", False)):
        for hold in ("autoswitch", "holdup"):
            assert shown_payout[hold][name] == payout.expected.get(f"{hold}.{name}", unset)
    kinds = {name.split(".")[1] for name in payout.expected if name.startswith("accounts.")}
    assert shown_payout["accounts"].keys() == kinds
    for name, value in shown_payout["accounts"].get("bank", {}).items():
        if f"accounts.bank.{name}" not in payout.expected:
            assert value is None or name in ADDED_FIELDS, (name, value)


@pytest.mark.parametrize("loss", EXPECTED_LOSSES.values(), ids=EXPECTED_LOSSES.keys())
def test_expected_losses_occur(gateway_in_thread: GatewayInThread, loss: ExpectedLoss) -> None:
    """An entry that no longer occurs must be removed from the list."""
    bank = loss.example["accounts"].get("bank", {})
    expected = {f"accounts.bank.{name}": value for name, value in bank.items()}
    expected |= {"primary.method": loss.example["primary"]["method"], "primary.currency": "EUR"}
    id_ = create_recipient(
        gateway_in_thread, DrawnPayout("individual", loss.example, expected, with_recipient=False)
    )
    shown_payout = gateway_in_thread.request_successfully(
        "GET", f"/recipients/{id_}/payout-methods"
    ).body
    assert list_differences(expected, shown_payout) == [loss.field]
    assert loss.applies_to(loss.field, expected)
    assert loss.reason


# The answer, sent back


def copy_service_state(gateway_in_thread: GatewayInThread, id_: str) -> JSON:
    """Copies service data that answers hide: account numbers and account ids."""
    recipient = gateway_in_thread.service.require_recipient(id_)
    accounts = [
        (account.id, account.type, account.is_primary, account.fields)
        for account in recipient.accounts
    ]
    return copy.deepcopy((recipient.status, accounts))


@EXAMPLES
@given(draw_payout())
def test_patch_with_the_shown_payout_writes_nothing(
    gateway_in_thread: GatewayInThread, payout: DrawnPayout
) -> None:
    path = f"/recipients/{create_recipient(gateway_in_thread, payout)}"
    shown_payout, recipient_body = (
        gateway_in_thread.request_successfully("GET", f"{path}/payout-methods"),
        gateway_in_thread.request_successfully("GET", path),
    )
    writes = gateway_in_thread.list_writes(path)
    response = gateway_in_thread.request_successfully(
        "PATCH", f"{path}/payout-methods", shown_payout.body
    )
    assert response.text == '{"ok":true,"object":"updated"}'
    assert gateway_in_thread.list_writes(path) == writes
    assert (
        gateway_in_thread.request_successfully("GET", f"{path}/payout-methods").text
        == shown_payout.text
    )
    assert gateway_in_thread.request_successfully("GET", path).text == recipient_body.text


@EXAMPLES
@given(draw_payout())
def test_post_with_the_shown_payout_creates_no_account(
    gateway_in_thread: GatewayInThread, payout: DrawnPayout
) -> None:
    """A mask identifies the account, so nothing is written; a wallet alone is replaced."""
    id_ = create_recipient(gateway_in_thread, payout)
    path = f"/recipients/{id_}/payout-methods"
    shown_payout, state_before, writes = (
        gateway_in_thread.request_successfully("GET", path),
        copy_service_state(gateway_in_thread, id_),
        gateway_in_thread.list_writes(path[:-15]),
    )
    assert (
        gateway_in_thread.request_successfully("POST", path, shown_payout.body).text
        == shown_payout.text
    )
    assert gateway_in_thread.request_successfully("GET", path).text == shown_payout.text
    if "bank" in shown_payout.body["accounts"]:
        assert (
            copy_service_state(gateway_in_thread, id_),
            gateway_in_thread.list_writes(path[:-15]),
        ) == (state_before, writes)
    assert len(copy_service_state(gateway_in_thread, id_)[1]) == len(state_before[1])


GB_IBAN = "GB29NWBK60161331926819"
ACCOUNT_FORMS = {
    "US": {"country": "US", "accountNum": "0123456789", "routing": "021000021"},
    "CA": {"country": "CA", "accountNum": "1234567", "branchNum": "12345", "institution": "003"},
    "GB by its sort code": {"country": "GB", "accountNum": "31926819", "branchNum": "601613"},
    "GB by its IBAN": {"country": "GB", "iban": GB_IBAN},
    "GB by both": {"country": "GB", "iban": GB_IBAN, "accountNum": "31926819", "routing": "601613"},
    "AU": {"country": "AU", "accountNum": "12345678", "routing": "062000"},
    "NZ": {"country": "NZ", "accountNum": "12345678", "branchNum": "010002"},
    "IN": {"country": "IN", "accountNum": "12345678901", "routing": "HDFC0000001"},
    "DE": {"country": "DE", "iban": "DE89370400440532013000", "swiftBic": "COBADEFFXXX"},
    "FR": {"country": "FR", "iban": "FR1420041010050500013M02606"},
    "BR by its number": {"country": "BR", "accountNum": "123456789", "governmentId": "12345678909"},
    "BR by its IBAN": {
        "country": "BR",
        "iban": "BR1800360305000010009795493C1",
        "governmentId": "12345678909",
    },
    "MX": {"country": "MX", "accountNum": "032180000118359719", "bankProvince": "JAL"},
    "AR": {"country": "AR", "accountNum": "2850590940090418135201", "governmentId": "20123456786"},
    "JP": {"country": "JP", "accountNum": "1234567", "swiftBic": "BOTKJPJT", "bankCity": "Tokyo"},
    "JM by wire": {
        "country": "JM",
        "accountNum": "1234567",
        "swiftBic": "NCBJJMKX",
        "bankAddress": "1 King Street",
        "bankCity": "Kingston",
    },
}
"""A bank account of each form that a country has (current interface, sections 2.4 and 2.6)."""


@pytest.mark.parametrize("wallet", [False, True], ids=["alone", "beside a wallet"])
@pytest.mark.parametrize("bank", ACCOUNT_FORMS.values(), ids=ACCOUNT_FORMS.keys())
def test_account_of_any_form_is_unchanged_when_sent_back(
    gateway_in_thread: GatewayInThread, bank: dict[str, str], wallet: bool
) -> None:
    """The account is posted and patched, with read-only fields and each form of the currency."""
    wallet_accounts = {"wallet": {"address": "zoe@wallet.example"}} if wallet else {}
    payout = _build_payout("bank", bank={**bank, "currency": "EUR"}, **wallet_accounts)
    id_ = create_recipient(
        gateway_in_thread, DrawnPayout("individual", payout, {}, with_recipient=False)
    )
    path = f"/recipients/{id_}/payout-methods"
    shown_payout, state_before, writes = (
        gateway_in_thread.request_successfully("GET", path),
        copy_service_state(gateway_in_thread, id_),
        gateway_in_thread.list_writes(path[:-15]),
    )
    flat = {"code": "EUR", "name": "Euro"}
    for currency in (shown_payout.body["primary"]["currency"], flat, {"currency": flat}, "EUR"):
        body = {**shown_payout.body, "primary": {"method": "bank", "currency": currency}}
        assert gateway_in_thread.request_successfully("POST", path, body).text == shown_payout.text
        gateway_in_thread.request_successfully("PATCH", path, body)
        assert (
            copy_service_state(gateway_in_thread, id_),
            gateway_in_thread.list_writes(path[:-15]),
        ) == (state_before, writes)
    assert gateway_in_thread.request_successfully("GET", path).text == shown_payout.text


@pytest.mark.parametrize("bank", ACCOUNT_FORMS.values(), ids=ACCOUNT_FORMS.keys())
def test_only_the_changed_field_of_a_posted_account_changes(
    gateway_in_thread: GatewayInThread, bank: dict[str, str]
) -> None:
    id_ = create_recipient(
        gateway_in_thread,
        DrawnPayout("individual", _build_payout("bank", bank=bank), {}, with_recipient=False),
    )
    path = f"/recipients/{id_}/payout-methods"
    shown_payout = gateway_in_thread.request_successfully("GET", path).body
    (account_before,) = gateway_in_thread.service.require_recipient(id_).accounts
    fields = dict(account_before.fields)
    shown_payout["accounts"]["bank"]["name"] = "Zoë P. Nordström"
    assert gateway_in_thread.request_successfully("POST", path, shown_payout).body == shown_payout
    assert gateway_in_thread.request_successfully("GET", path).body == shown_payout
    (account_after,) = gateway_in_thread.service.require_recipient(id_).accounts
    assert account_after.fields == {**fields, "accountHolderName": "Zoë P. Nordström"}


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("bank", ACCOUNT_FORMS.values(), ids=ACCOUNT_FORMS.keys())
def test_wrong_mask_is_refused_on_its_field(
    gateway_in_thread: GatewayInThread, bank: dict[str, str], method: str
) -> None:
    id_ = create_recipient(
        gateway_in_thread,
        DrawnPayout("individual", _build_payout("bank", bank=bank), {}, with_recipient=False),
    )
    path = f"/recipients/{id_}/payout-methods"
    shown_payout, writes = (
        gateway_in_thread.request_successfully("GET", path).body,
        gateway_in_thread.list_writes(path[:-15]),
    )
    account = shown_payout["accounts"]["bank"]
    for name in ("accountNum", "iban"):
        if account[name]:
            other_account = {**account, name: "****QZ"}
            response = gateway_in_thread.request(
                method, path, {**shown_payout, "accounts": {"bank": other_account}}
            )
            assert response.status == 406
            assert [error["field"] for error in response.body["errors"]] == [
                f"accounts.bank.{name}"
            ]
    assert gateway_in_thread.list_writes(path[:-15]) == writes


def test_unsupported_method_is_unchanged_when_sent_back(gateway_in_thread: GatewayInThread) -> None:
    """A check is shown by its own name, without an entry in accounts (section 4)."""
    seeded = [
        recipient
        for recipient in gateway_in_thread.service.seed_recipients(150, seed=4)
        if not recipient.is_archived
    ]
    recipient = next(
        entry for entry in seeded if [account.type for account in entry.accounts] == ["check"]
    )
    path = f"/recipients/{recipient.id}/payout-methods"
    shown_payout, state_before = (
        gateway_in_thread.request_successfully("GET", path),
        copy_service_state(gateway_in_thread, recipient.id),
    )
    assert shown_payout.body["method"] == "check"
    assert (
        gateway_in_thread.request_successfully("POST", path, shown_payout.body).text
        == shown_payout.text
    )
    assert copy_service_state(gateway_in_thread, recipient.id) == state_before


@EXAMPLES
@given(draw_payout())
def test_patch_with_the_shown_recipient_changes_nothing(
    gateway_in_thread: GatewayInThread, payout: DrawnPayout
) -> None:
    _check_echo(gateway_in_thread, create_recipient(gateway_in_thread, payout))


def _check_echo(gateway_in_thread: GatewayInThread, id_: str) -> None:
    path = f"/recipients/{id_}"
    shown_payout, state_before = (
        gateway_in_thread.request_successfully("GET", path),
        copy_service_state(gateway_in_thread, id_),
    )
    response = gateway_in_thread.request_successfully("PATCH", path, shown_payout.body["recipient"])
    assert response.text == '{"ok":true,"object":"updated"}'
    assert copy_service_state(gateway_in_thread, id_) == state_before
    assert gateway_in_thread.request_successfully("GET", path).text == shown_payout.text


def test_any_recipient_can_be_sent_back(gateway_in_thread: GatewayInThread) -> None:
    """The recipients have checks or other primary accounts, no account, or no address."""
    seeded = [
        recipient
        for recipient in gateway_in_thread.service.seed_recipients(150, seed=4)
        if not recipient.is_archived
    ]
    kinds = {entry.primary_account.type if entry.primary_account else None for entry in seeded}
    assert kinds >= {None, "bank-transfer", "wallet", "check"}
    for entry in seeded:
        _check_echo(gateway_in_thread, entry.id)


@pytest.mark.parametrize("status", ["active", "inactive", "disabled", "suspended"])
def test_status_is_kept_when_the_recipient_is_sent_back(
    gateway_in_thread: GatewayInThread, status: str
) -> None:
    """Without an account, the service itself would set the status to incomplete."""
    names = {"firstName": "Zoë", "lastName": "Peña", "address": {"country": "DE"}}
    body = {"type": "individual", "email": "zoe@example.com", **names}
    id_ = gateway_in_thread.request_successfully("POST", "/recipients", body).body["recipient"][
        "id"
    ]
    gateway_in_thread.request_successfully("PATCH", f"/recipients/{id_}", {"status": status})
    recipient_body = gateway_in_thread.request_successfully("GET", f"/recipients/{id_}").body[
        "recipient"
    ]
    assert recipient_body["status"] == status
    gateway_in_thread.request_successfully("PATCH", f"/recipients/{id_}", recipient_body)
    assert (
        gateway_in_thread.request_successfully("GET", f"/recipients/{id_}").body["recipient"][
            "status"
        ]
        == status
    )


@EXAMPLES
@given(draw_payout(), st.data())
def test_only_the_changed_field_of_a_patched_payout_changes(
    gateway_in_thread: GatewayInThread, payout: DrawnPayout, data: st.DataObject
) -> None:
    path = f"/recipients/{create_recipient(gateway_in_thread, payout)}/payout-methods"
    shown_payout = gateway_in_thread.request_successfully("GET", path).body
    places = [("accounts", kind) for kind in shown_payout["accounts"]]
    _, kind = data.draw(st.sampled_from(places))
    account = shown_payout["accounts"][kind]
    name = "address" if kind == "wallet" else data.draw(st.sampled_from(("name", "bankCity")))
    account[name] = data.draw(ADDRESSES if kind == "wallet" else TEXTS)
    gateway_in_thread.request_successfully("PATCH", path, shown_payout)
    assert gateway_in_thread.request_successfully("GET", path).body == shown_payout


@pytest.mark.parametrize("name", ["name", "bankAddress", "bankCity", "bankProvince"])
def test_text_with_asterisks_is_not_a_mask(gateway_in_thread: GatewayInThread, name: str) -> None:
    payout = _build_payout("bank", bank={**US_BANK, name: "M*A*S*H"})
    path = f"/recipients/{create_recipient(gateway_in_thread, DrawnPayout('individual', payout, {}, with_recipient=False))}"
    bank = gateway_in_thread.request_successfully("GET", f"{path}/payout-methods").body["accounts"][
        "bank"
    ]
    assert bank[name] == "M*A*S*H"
    change = {"accounts": {"bank": {**bank, name: "** 47th Street **"}}}
    gateway_in_thread.request_successfully("PATCH", f"{path}/payout-methods", change)
    bank = gateway_in_thread.request_successfully("GET", f"{path}/payout-methods").body["accounts"][
        "bank"
    ]
    assert bank[name] == "** 47th Street **"


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_masked_wallet_address_is_treated_as_a_masked_number(
    gateway_in_thread: GatewayInThread, method: str
) -> None:
    """The one that is shown is unchanged, any other is refused, and none is sent."""
    payout = _build_payout("wallet", wallet={"address": "zoe@example.com"})
    id_ = create_recipient(
        gateway_in_thread, DrawnPayout("individual", payout, {}, with_recipient=False)
    )
    (account,) = gateway_in_thread.service.require_recipient(id_).accounts
    account.fields["emailAddress"] = "z**@example.com"  # as a service may show it
    path = f"/recipients/{id_}/payout-methods"
    shown_payout = gateway_in_thread.request_successfully("GET", path).body
    assert shown_payout["accounts"] == {"wallet": {"address": "z**@example.com"}}
    writes = gateway_in_thread.list_writes(path[:-15])
    gateway_in_thread.request_successfully(method, path, shown_payout)
    other_payout = {**shown_payout, "accounts": {"wallet": {"address": "a**@example.com"}}}
    response = gateway_in_thread.request(method, path, other_payout)
    assert response.status == 406
    assert [error["field"] for error in response.body["errors"]] == ["accounts.wallet.address"]
    assert gateway_in_thread.list_writes(path[:-15]) == writes


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize(
    ("code", "nested_code", "expected"),
    [("EUR", "USD", "EUR"), ("USD", "EUR", "EUR"), ("EUR", "EUR", "EUR"), ("USD", "", "USD")],
)
def test_changed_form_of_the_primary_currency_counts(
    gateway_in_thread: GatewayInThread, method: str, code: str, nested_code: str, expected: str
) -> None:
    """Answers show both forms of the document, and clients change the one that they know."""
    payout = _build_payout("bank", bank={**US_BANK, "currency": "USD"})
    id_ = create_recipient(
        gateway_in_thread, DrawnPayout("individual", payout, {}, with_recipient=False)
    )
    path = f"/recipients/{id_}/payout-methods"
    shown_payout = gateway_in_thread.request_successfully("GET", path).body
    shown_payout["primary"]["currency"]["code"] = code
    shown_payout["primary"]["currency"]["currency"]["code"] = nested_code
    gateway_in_thread.request_successfully(method, path, shown_payout)
    shown_payout = gateway_in_thread.request_successfully("GET", path).body
    assert shown_payout["primary"]["currency"]["code"] == expected
    assert shown_payout["accounts"]["bank"]["currency"] == expected
