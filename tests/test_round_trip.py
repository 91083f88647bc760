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

from gateway.simulator import Service, start
from gateway.simulator.countries import COUNTRIES, IBAN_LENGTH, IBAN_NOT_REQUIRED
from tests.house import Got, House, open_house

EXAMPLES = settings(
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

JSON = Any


# One house for all examples, in a thread of its own: hypothesis drives it from outside


@dataclass(slots=True)
class Town:
    house: House
    service: Service
    loop: asyncio.AbstractEventLoop

    def run(self, coroutine: Coroutine[Any, Any, Got]) -> Got:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def ask(self, method: str, path: str, body: JSON = None) -> Got:
        return self.run(self.house.ask(method, f"/v1{path}", body))

    def done(self, method: str, path: str, body: JSON = None) -> Got:
        got = self.ask(method, path, body)
        assert got.status == 200, (got.text, body)
        return got

    def writes(self, path: str) -> list[tuple[str, str, bytes]]:
        """Lists the upstream writes on a recipient and its accounts."""
        return [
            (call.method, call.path, call.body)
            for call in self.service.requests
            if call.method != "GET" and call.path.startswith(f"/v1{path}")
        ]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    ready: Future[Town] = Future()
    over: list[Callable[[], None]] = []

    async def live(folder: Path) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        over.append(lambda: loop.call_soon_threadsafe(stop.set))
        simulator = await start(service=Service(seed=1, requests_kept=50))
        try:
            many = {"requests_per_hour": 10**6}
            async with open_house(folder, simulator.url, limits=many) as house:
                ready.set_result(Town(house, simulator.service, loop))
                await stop.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise
        finally:
            await simulator.stop()

    folder = tmp_path_factory.mktemp("round-trip")
    thread = threading.Thread(target=lambda: asyncio.run(live(folder)))
    thread.start()
    try:
        yield ready.result(30)
    finally:
        over[0]()
        thread.join(30)


# Made-up payouts (legacy interface, sections 2 and 4.2)

BRANCHES = {"US": "9", "CA": "5", "AU": "6", "NZ": "6", "GB": "6", "IN": "11"}
EITHER_NAME = ("AU", "GB", "NZ", "IN")
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
WIRED = frozenset(
    ["AO", "BM", "BO", "BZ", "ET", "FJ", "GY", "HT", "JM", "KH", "MN", "MZ", "TO", "UZ", "ZM"]
)
BY_IBAN = sorted(IBAN_LENGTH.keys() - IBAN_NOT_REQUIRED)
BY_EITHER = sorted(IBAN_NOT_REQUIRED - BRANCHES.keys())
BY_NUMBER = sorted(COUNTRIES - IBAN_LENGTH.keys() - BRANCHES.keys())
NUMBER_IN_IBAN = ("CI", "DZ", "MA", "SN")
"""Countries whose accounts have an IBAN and, at this service, a domestic number."""

CURRENCIES = st.sampled_from(("USD", "EUR", "GBP", "JPY", "KWD", "XOF"))
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1)
ADDRESSES = st.from_regex(r"[a-zà-ÿ0-9.+_-]{1,12}@[a-z0-9]{1,9}\.(com|org)", fullmatch=True)
LEFT_OUT = st.sampled_from(("absent", None, ""))


def digits(least: int, most: int) -> st.SearchStrategy[str]:
    return st.text("0123456789", min_size=least, max_size=most)


@dataclass(slots=True)
class Made:
    """A payout as it is sent, and the expected values by full field name."""

    owner: str
    sent: dict[str, JSON]
    meant: dict[str, JSON]
    with_recipient: bool


@st.composite
def payouts(draw: st.DrawFn) -> Made:
    owner = draw(st.sampled_from(("individual", "individual", "business")))
    kinds = draw(st.sampled_from((("bank",), ("bank",), ("wallet",), ("bank", "wallet"))))
    method = draw(st.sampled_from(kinds))
    primary_currency = draw(CURRENCIES)
    meant: dict[str, JSON] = {"primary.method": method, "primary.currency": primary_currency}
    accounts: dict[str, JSON] = {}
    if "bank" in kinds:
        bank = draw(banks(owner))
        meant |= {f"accounts.bank.{name}": value for name, value in bank.items()}
        accounts["bank"] = draw(loosely(bank))
    elif draw(st.booleans()):
        accounts["bank"] = None
    if "wallet" in kinds:
        meant["accounts.wallet.address"] = address = draw(ADDRESSES)
        accounts["wallet"] = {"address": address}
    primary = {"method": method, "currency": draw(currency_forms(primary_currency))}
    sent: dict[str, JSON] = {"primary": primary, "accounts": accounts}
    for name in ("autoswitch", "holdup"):
        hold = draw(holds())
        meant |= {f"{name}.{part}": value for part, value in hold.items()}
        if hold:
            sent[name] = {part: draw(loose_values(value)) for part, value in hold.items()}
    return Made(owner, sent, meant, draw(st.booleans()))


@st.composite
def holds(draw: st.DrawFn) -> dict[str, JSON]:
    whole = {"limit": draw(st.integers(0, 10**15)), "active": draw(st.booleans())}
    return {name: whole[name] for name in draw(st.sets(st.sampled_from(sorted(whole))))}


@st.composite
def banks(draw: st.DrawFn, owner: str) -> dict[str, JSON]:
    groups = (sorted(BRANCHES), BY_IBAN, BY_EITHER, BY_NUMBER, sorted(GOVERNMENT_IDS[owner]))
    country = draw(st.sampled_from(draw(st.sampled_from((*groups, NUMBER_IN_IBAN)))))
    bank = {"country": country, **draw(numbers(country)), **draw(branches(country))}
    if count := GOVERNMENT_IDS[owner].get(country):
        bank["governmentId"] = draw(digits(count, count))
    elif country == "US" and draw(st.booleans()):
        bank["governmentId"] = draw(digits(9, 9))
    optional = {
        "currency": CURRENCIES,
        "name": TEXTS,
        "swiftBic": bics(country),
        "bankAddress": TEXTS,
        "bankCity": TEXTS,
        "bankProvince": TEXTS,
        "bankPostalCode": TEXTS,
    }
    needed = {"swiftBic", "bankAddress", "bankCity"} if country in WIRED else set()
    names = draw(st.sets(st.sampled_from(sorted(optional)))) | needed
    return {**bank, **{name: draw(optional[name]) for name in sorted(names)}}


@st.composite
def numbers(draw: st.DrawFn, country: str) -> dict[str, str]:
    if country in (*BY_IBAN, *NUMBER_IN_IBAN):
        return {"iban": draw(ibans(country))}
    number = {"accountNum": draw(digits(4, 17))}
    if country not in IBAN_LENGTH:
        return number
    iban = {"iban": draw(ibans(country))}
    return draw(st.sampled_from((number, iban, {**iban, **number})))


@st.composite
def ibans(draw: st.DrawFn, country: str) -> str:
    iban = IBAN.random(country, random=random.Random(draw(st.integers(0, 10**6))))
    return draw(st.sampled_from((str(iban), iban.formatted, str(iban).lower())))


@st.composite
def branches(draw: st.DrawFn, country: str) -> dict[str, str]:
    if country not in BRANCHES:
        return {}
    count = int(BRANCHES[country])
    shape = r"[A-Z]{4}0[0-9A-Z]{6}" if country == "IN" else rf"[0-9]{{{count}}}"
    branch = draw(st.from_regex(shape, fullmatch=True))
    if country == "CA":
        return {"branchNum": branch, "institution": draw(digits(3, 3))}
    names = {"US": [("routing",)]}.get(
        country, [("routing",), ("branchNum",), ("routing", "branchNum")]
    )
    return dict.fromkeys(draw(st.sampled_from(names)), branch)


def bics(country: str) -> st.SearchStrategy[str]:
    return st.from_regex(rf"[A-Z]{{4}}{country}[A-Z0-9]{{2}}([A-Z0-9]{{3}})?", fullmatch=True)


@st.composite
def loosely(draw: st.DrawFn, bank: dict[str, JSON]) -> dict[str, JSON]:
    """Draws another form of the same account that real clients send."""
    sent = dict(bank)
    if "currency" in sent:
        sent["currency"] = draw(currency_forms(sent["currency"]))
    if found := pycountry.countries.get(alpha_2=bank["country"]):
        sent["country"] = draw(st.sampled_from((found.alpha_2, found.alpha_3, "lower")))
        if sent["country"] == "lower":
            sent["country"] = found.alpha_2.lower()
    if "bankProvince" in sent and draw(st.booleans()):
        sent["bankRegion"] = sent.pop("bankProvince")
    number = sent.get("accountNum", "0")
    if not number.startswith("0") and draw(st.booleans()):
        sent["accountNum"] = int(number)
    for name in ("name", "bankCity", "governmentId", "iban", "accountNum", "routing"):
        if name not in sent and (way := draw(LEFT_OUT)) != "absent":
            sent[name] = way
    if draw(st.booleans()):
        sent["colour"] = {"unknown": ["to", "both"]}
    return sent


@st.composite
def currency_forms(draw: st.DrawFn, code: str) -> JSON:
    flat = {"code": code, "name": "Some money"}
    forms = (code, code.lower(), flat, {"currency": flat}, {**flat, "currency": flat})
    return draw(st.sampled_from(forms))


@st.composite
def loose_values(draw: st.DrawFn, value: JSON) -> JSON:
    return draw(st.sampled_from((value, str(value))))


# What may be lost, and what comes back besides


@dataclass(frozen=True, slots=True)
class Loss:
    """A field that is not returned, with an example payout and the reason."""

    why: str
    fits: Callable[[str, dict[str, JSON]], bool]
    example: dict[str, JSON]
    field: str


US_BANK = {"country": "US", "accountNum": "000123456789", "routing": "021000021"}


def _payout(method: str, **accounts: JSON) -> dict[str, JSON]:
    return {"primary": {"method": method, "currency": "EUR"}, "accounts": accounts}


LOST = {
    "a primary currency that is not the primary account's": Loss(
        "an account has one currency (current interface, section 2.6), and its own comes first",
        lambda name, meant: name == "primary.currency" and "accounts.bank.currency" in meant,
        _payout("bank", bank={**US_BANK, "currency": "USD"}),
        "primary.currency",
    ),
    "the name of a bank": Loss(
        "bankName is filled in by the service (current interface, section 2.6)",
        lambda name, meant: (
            name == "accounts.bank.institution" and meant["accounts.bank.country"] != "CA"
        ),
        _payout("bank", bank={**US_BANK, "institution": "Bank of the Client"}),
        "accounts.bank.institution",
    ),
    "the name of a branch": Loss(
        "answers show the branch id there; a request has no such field (legacy, section 4.2)",
        lambda name, _meant: name == "accounts.bank.branch",
        _payout("bank", bank={**US_BANK, "branch": "Main Street"}),
        "accounts.bank.branch",
    ),
    "a branch id under the name of another country": Loss(
        "branchId is routing in the US and branchNum in Canada (legacy, section 4.2)",
        lambda name, meant: (
            name in ("accounts.bank.routing", "accounts.bank.branchNum")
            and meant["accounts.bank.country"] not in EITHER_NAME
        ),
        _payout("bank", bank={**US_BANK, "branchNum": "12345"}),
        "accounts.bank.branchNum",
    ),
}

MASKED = ("accountNum", "iban", "governmentId")
OF_ITSELF = ("branch", "routing", "branchNum", "institution", "name", "currency", "accountNum")
"""Fields of a bank account that an answer may contain although they were not sent."""


def at(payout: dict[str, JSON], name: str) -> JSON:
    for part in name.split("."):
        payout = payout.get(part, {})
    return payout["code"] if name == "primary.currency" else payout


def differences(meant: dict[str, JSON], shown: dict[str, JSON]) -> list[str]:
    """Lists fields whose value in the answer is neither the expected one nor its mask."""
    return [name for name, value in meant.items() if not _is(name, value, at(shown, name))]


def _is(name: str, value: JSON, shown: JSON) -> bool:
    last = name.rpartition(".")[2]
    if last not in MASKED:
        return bool(shown == value) and type(shown) is type(value)
    plain = re.sub(r"\s", "", value).upper() if last == "iban" else value
    return shown.startswith("**") and shown.strip("*") == plain[-2:] and shown != plain


def created(town: Town, made: Made) -> str:
    """Creates a recipient with this payout, in one request or in two."""
    names = {"firstName": "Zoë", "lastName": "Peña"}
    recipient: dict[str, JSON] = {"type": made.owner, "email": "zoe@example.com"}
    recipient |= names if made.owner == "individual" else {"name": "Nordström Works"}
    street = {"street1": "1 High Street", "city": "Köln", "country": "DEU", "phone": "+49 1234567"}
    recipient["address"] = street
    if made.with_recipient:
        recipient["payout"] = made.sent
    id_: str = town.done("POST", "/recipients", recipient).body["recipient"]["id"]
    if not made.with_recipient:
        answer = town.done("POST", f"/recipients/{id_}/payout-methods", made.sent)
        assert answer.text == town.done("GET", f"/recipients/{id_}/payout-methods").text
    return id_


@EXAMPLES
@given(payouts())
def test_a_payout_comes_back_as_it_was_sent(town: Town, made: Made) -> None:
    shown = town.done("GET", f"/recipients/{created(town, made)}/payout-methods").body
    for name in differences(made.meant, shown):
        assert any(loss.fits(name, made.meant) for loss in LOST.values()), (name, made, shown)
    _check_what_is_shown_besides(made, shown)


def _check_what_is_shown_besides(made: Made, shown: dict[str, JSON]) -> None:
    assert list(shown) == [
        *("ok", "autoswitch", "holdup", "primary", "method", "methodDisplay", "accounts")
    ]
    assert shown["method"] == shown["primary"]["method"] == made.meant["primary.method"]
    currency = shown["primary"]["currency"]
    assert currency["currency"] == {"code": currency["code"], "name": currency["name"]}
    for name, unset in (("limit", 1000), ("active", False)):
        for hold in ("autoswitch", "holdup"):
            assert shown[hold][name] == made.meant.get(f"{hold}.{name}", unset)
    kinds = {name.split(".")[1] for name in made.meant if name.startswith("accounts.")}
    assert shown["accounts"].keys() == kinds
    for name, value in shown["accounts"].get("bank", {}).items():
        if f"accounts.bank.{name}" not in made.meant:
            assert value is None or name in OF_ITSELF, (name, value)


@pytest.mark.parametrize("loss", LOST.values(), ids=LOST.keys())
def test_what_is_listed_as_lost_is_lost(town: Town, loss: Loss) -> None:
    """An entry that no longer occurs must be removed from the list."""
    bank = loss.example["accounts"].get("bank", {})
    meant = {f"accounts.bank.{name}": value for name, value in bank.items()}
    meant |= {"primary.method": loss.example["primary"]["method"], "primary.currency": "EUR"}
    id_ = created(town, Made("individual", loss.example, meant, with_recipient=False))
    shown = town.done("GET", f"/recipients/{id_}/payout-methods").body
    assert differences(meant, shown) == [loss.field]
    assert loss.fits(loss.field, meant)
    assert loss.why


# The answer, sent back


def state(town: Town, id_: str) -> JSON:
    """Copies service data that answers hide: account numbers and account ids."""
    recipient = town.service.recipient(id_)
    accounts = [(one.id, one.type, one.primary, one.fields) for one in recipient.accounts]
    return copy.deepcopy((recipient.status, accounts))


@EXAMPLES
@given(payouts())
def test_a_payout_that_is_sent_back_as_it_was_shown_writes_nothing(town: Town, made: Made) -> None:
    path = f"/recipients/{created(town, made)}"
    shown, whole = town.done("GET", f"{path}/payout-methods"), town.done("GET", path)
    writes = town.writes(path)
    got = town.done("PATCH", f"{path}/payout-methods", shown.body)
    assert got.text == '{"ok":true,"object":"updated"}'
    assert town.writes(path) == writes
    assert town.done("GET", f"{path}/payout-methods").text == shown.text
    assert town.done("GET", path).text == whole.text


@EXAMPLES
@given(payouts())
def test_a_payout_that_is_posted_back_as_it_was_shown_makes_no_second_account(
    town: Town, made: Made
) -> None:
    """A mask identifies the account, so nothing is written; a wallet alone is replaced."""
    id_ = created(town, made)
    path = f"/recipients/{id_}/payout-methods"
    shown, before, writes = town.done("GET", path), state(town, id_), town.writes(path[:-15])
    assert town.done("POST", path, shown.body).text == shown.text
    assert town.done("GET", path).text == shown.text
    if "bank" in shown.body["accounts"]:
        assert (state(town, id_), town.writes(path[:-15])) == (before, writes)
    assert len(state(town, id_)[1]) == len(before[1])


GB_IBAN = "GB29NWBK60161331926819"
FORMS = {
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
@pytest.mark.parametrize("bank", FORMS.values(), ids=FORMS.keys())
def test_an_account_of_any_form_is_unchanged_where_it_is_sent_back_whole(
    town: Town, bank: dict[str, str], wallet: bool
) -> None:
    """The account is posted and patched, with read-only fields and each form of the currency."""
    more = {"wallet": {"address": "zoe@wallet.example"}} if wallet else {}
    sent = _payout("bank", bank={**bank, "currency": "EUR"}, **more)
    id_ = created(town, Made("individual", sent, {}, with_recipient=False))
    path = f"/recipients/{id_}/payout-methods"
    shown, before, writes = town.done("GET", path), state(town, id_), town.writes(path[:-15])
    flat = {"code": "EUR", "name": "Euro"}
    for currency in (shown.body["primary"]["currency"], flat, {"currency": flat}, "EUR"):
        body = {**shown.body, "primary": {"method": "bank", "currency": currency}}
        assert town.done("POST", path, body).text == shown.text
        town.done("PATCH", path, body)
        assert (state(town, id_), town.writes(path[:-15])) == (before, writes)
    assert town.done("GET", path).text == shown.text


@pytest.mark.parametrize("bank", FORMS.values(), ids=FORMS.keys())
def test_what_is_changed_in_an_account_that_is_posted_back_is_all_that_changes(
    town: Town, bank: dict[str, str]
) -> None:
    id_ = created(town, Made("individual", _payout("bank", bank=bank), {}, with_recipient=False))
    path = f"/recipients/{id_}/payout-methods"
    shown = town.done("GET", path).body
    (held,) = town.service.recipient(id_).accounts
    fields = dict(held.fields)
    shown["accounts"]["bank"]["name"] = "Zoë P. Nordström"
    assert town.done("POST", path, shown).body == shown
    assert town.done("GET", path).body == shown
    (after,) = town.service.recipient(id_).accounts
    assert after.fields == {**fields, "accountHolderName": "Zoë P. Nordström"}


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("bank", FORMS.values(), ids=FORMS.keys())
def test_a_mask_that_is_not_the_one_shown_is_refused_on_its_field(
    town: Town, bank: dict[str, str], method: str
) -> None:
    id_ = created(town, Made("individual", _payout("bank", bank=bank), {}, with_recipient=False))
    path = f"/recipients/{id_}/payout-methods"
    shown, writes = town.done("GET", path).body, town.writes(path[:-15])
    account = shown["accounts"]["bank"]
    for name in ("accountNum", "iban"):
        if account[name]:
            other = {**account, name: "****QZ"}
            got = town.ask(method, path, {**shown, "accounts": {"bank": other}})
            assert got.status == 406
            assert [one["field"] for one in got.body["errors"]] == [f"accounts.bank.{name}"]
    assert town.writes(path[:-15]) == writes


def test_a_method_that_cannot_be_set_up_here_is_unchanged_where_it_is_sent_back(town: Town) -> None:
    """A check is shown by its own name, without an entry in accounts (section 4)."""
    seeded = [one for one in town.service.seed_recipients(150, seed=2) if not one.archived]
    one = next(one for one in seeded if one.primary and one.primary.type == "check")
    path = f"/recipients/{one.id}/payout-methods"
    shown, before = town.done("GET", path), state(town, one.id)
    assert shown.body["method"] == "check"
    assert town.done("POST", path, shown.body).text == shown.text
    assert state(town, one.id) == before


@EXAMPLES
@given(payouts())
def test_a_recipient_that_is_sent_back_as_it_was_shown_is_as_it_was(town: Town, made: Made) -> None:
    _check_echo(town, created(town, made))


def _check_echo(town: Town, id_: str) -> None:
    path = f"/recipients/{id_}"
    shown, before = town.done("GET", path), state(town, id_)
    got = town.done("PATCH", path, shown.body["recipient"])
    assert got.text == '{"ok":true,"object":"updated"}'
    assert state(town, id_) == before
    assert town.done("GET", path).text == shown.text


def test_any_recipient_of_the_service_can_be_sent_back_whole(town: Town) -> None:
    """The recipients have checks or other primary accounts, no account, or no address."""
    seeded = [one for one in town.service.seed_recipients(150, seed=2) if not one.archived]
    kinds = {one.primary.type if one.primary else None for one in seeded}
    assert kinds >= {None, "bank-transfer", "wallet", "check"}
    for one in seeded:
        _check_echo(town, one.id)


@pytest.mark.parametrize("status", ["active", "inactive", "disabled", "suspended"])
def test_a_status_that_somebody_chose_is_not_moved_by_sending_the_recipient_back(
    town: Town, status: str
) -> None:
    """Without an account, the service itself would set the status to incomplete."""
    names = {"firstName": "Zoë", "lastName": "Peña", "address": {"country": "DE"}}
    body = {"type": "individual", "email": "zoe@example.com", **names}
    id_ = town.done("POST", "/recipients", body).body["recipient"]["id"]
    town.done("PATCH", f"/recipients/{id_}", {"status": status})
    shown = town.done("GET", f"/recipients/{id_}").body["recipient"]
    assert shown["status"] == status
    town.done("PATCH", f"/recipients/{id_}", shown)
    assert town.done("GET", f"/recipients/{id_}").body["recipient"]["status"] == status


@EXAMPLES
@given(payouts(), st.data())
def test_one_field_that_is_changed_in_what_was_shown_is_all_that_changes(
    town: Town, made: Made, data: st.DataObject
) -> None:
    path = f"/recipients/{created(town, made)}/payout-methods"
    shown = town.done("GET", path).body
    places = [("accounts", kind) for kind in shown["accounts"]]
    _, kind = data.draw(st.sampled_from(places))
    account = shown["accounts"][kind]
    name = "address" if kind == "wallet" else data.draw(st.sampled_from(("name", "bankCity")))
    account[name] = data.draw(ADDRESSES if kind == "wallet" else TEXTS)
    town.done("PATCH", path, shown)
    assert town.done("GET", path).body == shown


@pytest.mark.parametrize("name", ["name", "bankAddress", "bankCity", "bankProvince"])
def test_text_with_an_asterisk_in_it_is_not_taken_for_a_mask(town: Town, name: str) -> None:
    sent = _payout("bank", bank={**US_BANK, name: "M*A*S*H"})
    path = f"/recipients/{created(town, Made('individual', sent, {}, with_recipient=False))}"
    bank = town.done("GET", f"{path}/payout-methods").body["accounts"]["bank"]
    assert bank[name] == "M*A*S*H"
    changed = {"accounts": {"bank": {**bank, name: "** 47th Street **"}}}
    town.done("PATCH", f"{path}/payout-methods", changed)
    bank = town.done("GET", f"{path}/payout-methods").body["accounts"]["bank"]
    assert bank[name] == "** 47th Street **"
