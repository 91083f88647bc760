"""The list of recipients through a whole gateway, checked against a computation over all of them.

The expected answer to a query is computed from the legacy document (section 4.1) over every
recipient of the service, independently of the gateway's implementation.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import string
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import pytest
import pytest_asyncio
from aiohttp import web

from gateway.simulator import Fault, Service, Switches
from gateway.simulator.face import Face
from gateway.simulator.listing import recipients as service_list
from gateway.simulator.state import Recipient
from tests.house import Got, House, open_house

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/recipients"


# The house, in front of 500 recipients


@dataclass(slots=True)
class Town:
    """A gateway, the service behind it, and the words that this client has set through it."""

    house: House
    service: Service
    words: dict[str, str] = field(default_factory=dict)
    lists_archived: bool = False

    async def list(self, **query: Any) -> Got:
        target = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
        return await self.house.ask("GET", f"{PATH}?{target}")

    async def ids(self, **query: Any) -> list[str]:
        got = await self.list(**query)
        assert got.status == 200, got.text
        return ids_of(got)

    def calls(self) -> int:
        return len(self.service.calls("GET", PATH))

    def there(self) -> list[Recipient]:
        """Every recipient that a legacy client may see."""
        return [each for each in self.service.world().recipients.values() if not each.archived]


def ids_of(got: Got) -> list[str]:
    return [row["id"] for row in got.body["recipients"]]


def is_internal(got: Got) -> bool:
    return got.status == 500 and got.body["errors"][0]["code"] == "internal_server_error"


Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


READ_EACH_TIME = {"index": False}
"""What is tested here is the reading; the index is in ``tests.test_list_index``."""

PATIENT = {"timeout_seconds": 30}
"""A service with thousands of recipients may take its time on a machine that does much else."""


@asynccontextmanager
async def serving(handle: Handle) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(handle, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def town(
    folder: Path,
    *,
    seeded: int = 500,
    handle: Callable[[Service], Handle] | None = None,
    index: bool = False,
    **switches: Any,
) -> AsyncIterator[Town]:
    service = Service(seed=1, switches=Switches(**switches))
    service.seed_recipients(seeded, seed=7)
    async with (
        serving((handle or (lambda its: Face(its).handle))(service)) as url,
        open_house(folder, url, lists={"index": index}, upstream=PATIENT) as house,
    ):
        yield Town(house, service, lists_archived=service.switches.lists_archived)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[False, True], ids=["hidden", "listed"]
)
async def busy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Town]:
    """A service that leaves archived recipients out of its lists, and one that does not."""
    folder = tmp_path_factory.mktemp("lists")
    async with town(folder, lists_archived=request.param) as made:
        await make_busy(made)
        yield made


async def make_busy(made: Town) -> None:
    """Some are disabled, made inactive and deleted, through the gateway."""
    some = random.Random("busy").sample(made.there(), 60)
    for recipient in some[:20]:
        await _patched(made, recipient, "disabled")
    for recipient in some[20:40]:
        await _patched(made, recipient, "inactive")
    for recipient in some[40:55]:
        got = await made.house.ask("DELETE", f"{PATH}/{recipient.id}")
        assert got.status == 200
    several = [recipient.id for recipient in some[55:]]
    assert (await made.house.ask("DELETE", PATH, {"ids": several})).status == 200
    await made.list()  # what the service lists is known from here on


async def _patched(made: Town, recipient: Recipient, status: str) -> None:
    got = await made.house.ask("PATCH", f"{PATH}/{recipient.id}", {"status": status})
    assert got.status == 200
    made.words[recipient.id] = status


# What a query means (legacy interface, section 4.1)

ALPHA_3 = {
    "AUS": "AU",
    "BRA": "BR",
    "CAN": "CA",
    "COL": "CO",
    "DEU": "DE",
    "ESP": "ES",
    "FRA": "FR",
    "GBR": "GB",
    "IND": "IN",
    "JPN": "JP",
    "MEX": "MX",
    "NLD": "NL",
    "NZL": "NZ",
    "PHL": "PH",
    "POL": "PL",
    "SWE": "SE",
    "USA": "US",
}

WITHOUT_A_WORD = ("active", "incomplete", "suspended")
SERVICE_ORDERS = ("name", "email", "referenceId", "payoutMethod", "createdAt", "updatedAt")
ADDRESS_ORDERS = ("country", "city")
ORDERS = (*SERVICE_ORDERS, *ADDRESS_ORDERS, "status", "id", "complianceStatus")


@dataclass(slots=True)
class Meaning:
    """One query, read over all recipients."""

    town: Town
    query: dict[str, str]

    def get(self, name: str) -> str:
        return self.query.get(name, "")

    def page(self, name: str, default: int) -> int:
        text = self.get(name)
        return int(text) if re.fullmatch("[0-9]{1,9}", text) and int(text) else default

    def answer(self) -> tuple[list[str], dict[str, int]]:
        page, size = self.page("page", 1), self.page("pageSize", 10)
        rows = [each for each in self.town.there() if self.matches(each)]
        rows.sort(key=lambda each: each.id)
        rows.sort(key=self.key, reverse=self.get("sortBy") != "asc")
        shown = rows[(page - 1) * size : page * size]
        pages = -(-len(rows) // size)
        return [each.id for each in shown], {"page": page, "pages": pages, "records": len(rows)}

    def matches(self, each: Recipient) -> bool:
        asked = self.get
        return (
            (not asked("search") or self.found(each))
            and asked("status") in ("", self.status(each))
            and asked("complianceStatus") in ("", compliance(each))
            and (not asked("country") or each.address.get("country") == self.country())
            and asked("city") in ("", each.address.get("city"))
            and asked("payoutMethod") in ("", method(each))
            and asked("payoutCurrency").upper() in ("", currency(each))
            and self.since() <= each.created_at <= self.until()
        )

    def found(self, each: Recipient) -> bool:
        texts = (each.fields[name] or "" for name in ("name", "email", "referenceId"))
        return any(self.get("search").casefold() in text.casefold() for text in texts)

    def status(self, each: Recipient) -> str:
        return self.town.words.get(each.id, each.status)

    def country(self) -> str:
        code = self.get("country").upper()
        return ALPHA_3.get(code, code)

    def since(self) -> datetime:
        return moment(self.get("startDate")) or datetime.min.replace(tzinfo=UTC)

    def until(self) -> datetime:
        text = self.get("endDate")
        end = moment(text)
        if end is None:
            return datetime.max.replace(tzinfo=UTC)
        return end if "T" in text else end + timedelta(days=1) - timedelta(microseconds=1)

    def order(self) -> str:
        return self.get("orderBy") if self.get("orderBy") in ORDERS else "createdAt"

    def key(self, each: Recipient) -> Any:
        order = self.order()
        if order in ("createdAt", "updatedAt"):
            return each.created_at if order == "createdAt" else each.updated_at
        if order == "id":
            return each.id
        if order in ("status", "complianceStatus"):
            return self.status(each) if order == "status" else compliance(each)
        if order == "payoutMethod":
            return method(each) or ""
        text = (each.address if order in ADDRESS_ORDERS else each.fields).get(order) or ""
        # The service's own text order, if the service sorted the list.
        return text.casefold() if self.one_call() else text

    def one_call(self) -> bool:
        """Whether the current interface has this very question (its section 4.1)."""
        decided_here = (
            self.town.lists_archived,
            self.get("search"),
            self.get("city"),
            self.get("status") not in ("", "incomplete"),  # both words are in use by somebody
            self.get("complianceStatus") not in ("", "verified", "blocked"),
            self.country() not in ("", *ALPHA_3.values()),
            self.get("payoutMethod") not in ("", "wallet", "bank-transfer"),
            bool(self.get("payoutCurrency")) != (self.get("payoutMethod") == "bank-transfer"),
            moment(self.get("startDate")),
            moment(self.get("endDate")),
            self.order() not in SERVICE_ORDERS,
        )
        return not any(decided_here)


def compliance(each: Recipient) -> str:
    return "pending" if each.compliance_status == "review" else each.compliance_status


def method(each: Recipient) -> str | None:
    return each.primary.type if each.primary else None


def currency(each: Recipient) -> str | None:
    return each.primary.fields["currency"] if each.primary else None


@cache
def moment(text: str) -> datetime | None:
    for form in ("%Y-%m-%d", "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S.%f%z"):
        try:
            read = datetime.strptime(text, form)  # noqa: DTZ007 - a day has no zone
        except ValueError:
            continue
        return read if read.tzinfo else read.replace(tzinfo=UTC)
    return None


# Queries


def queries(town_: Town, n: int) -> Iterator[dict[str, str]]:
    dice = random.Random("queries")
    for _ in range(n):
        one = dice.choice(town_.there())
        every = _parameters(dice, one)
        names = dice.sample(sorted(every), dice.choice((0, 1, 1, 2, 2, 3, 4)))
        yield {**{name: every[name] for name in names}, **_manner(dice)}


def _parameters(dice: random.Random, one: Recipient) -> dict[str, str]:
    """Every filter, with a value that often fits ``one``."""
    country = one.address.get("country") or "US"
    alpha_3 = next(long for long, short in ALPHA_3.items() if short == country)
    return {
        "search": _part(dice, dice.choice((one.fields["name"], one.fields["email"], "ref-1"))),
        "status": dice.choice((*WITHOUT_A_WORD, "inactive", "disabled", "archived", "nonsense")),
        "complianceStatus": dice.choice(("pending", "verified", "blocked", "review", "nonsense")),
        "country": dice.choice((country, country.lower(), alpha_3, alpha_3.lower(), "ZZZ", "Q")),
        "city": dice.choice((one.address.get("city") or "Nowhere", "Köln", "Nowhere")),
        "payoutMethod": dice.choice(("wallet", "bank-transfer", "check", "nonsense")),
        "payoutCurrency": dice.choice((currency(one) or "USD", "USD", "EUR", "eur", "XXX")),
        "startDate": _date(dice, one),
        "endDate": _date(dice, one),
    }


def _part(dice: random.Random, text: str) -> str:
    start = dice.randrange(len(text))
    part = text[start : start + dice.randint(1, 4)].strip() or text
    return dice.choice((part, part.upper(), part.lower()))


def _date(dice: random.Random, one: Recipient) -> str:
    created = one.created_at
    east = created.astimezone(datetime.strptime("+0530", "%z").tzinfo)
    exact = f"{created:%Y-%m-%dT%H:%M:%S}.{created.microsecond // 1000:03d}Z"
    return dice.choice(
        (
            f"{created:%Y-%m-%d}",
            f"{created:%Y-%m-%d}",
            f"{created:%Y-%m-%dT%H:%M:%S}Z",
            exact,
            exact,
            east.isoformat(timespec="milliseconds"),
            "yesterday",
            "2023-02-30",
        )
    )


def _manner(dice: random.Random) -> dict[str, str]:
    """Order, page, and what is to be ignored."""
    manner: dict[str, str] = {}
    if dice.random() < 0.7:
        manner["orderBy"] = dice.choice((*ORDERS, *ORDERS, "nonsense"))
    if dice.random() < 0.6:
        manner["sortBy"] = dice.choice(("asc", "desc", "sideways"))
    if dice.random() < 0.5:
        manner["page"] = dice.choice(("1", "2", "3", "0", "-1", "x", "1.5", "999", "9" * 30))
    if dice.random() < 0.5:
        manner["pageSize"] = dice.choice(("1", "7", "20", "500", "1000", "0", "-3", "ten"))
    if dice.random() < 0.3:
        manner[dice.choice(("search", "status", "city", "startDate", "page"))] = ""
    if dice.random() < 0.3:
        manner[dice.choice(("colour", "name", "email", "currency", "Status"))] = "blue"
    return manner


async def test_200_queries_mean_what_the_legacy_document_says(busy: Town) -> None:
    one_call = 0
    for query in queries(busy, 200):
        meaning, before = Meaning(busy, query), busy.calls()
        got = await busy.list(**query)
        assert got.status == 200, (query, got.text)
        assert (ids_of(got), got.body["meta"]) == meaning.answer(), query
        if meaning.one_call():
            one_call += 1
            assert busy.calls() == before + 1, query
    assert busy.lists_archived or one_call > 20, "the queries do not try what they are to try"


@pytest.mark.parametrize("order", [*ORDERS, "firstName", "region", "dob", "nonsense"])
async def test_a_walk_over_all_pages_gives_every_recipient_once(busy: Town, order: str) -> None:
    asked = {"orderBy": order, "sortBy": "asc", "pageSize": "97"}
    first = await busy.list(**asked)
    walked = ids_of(first)
    for page in range(2, first.body["meta"]["pages"] + 1):
        walked += await busy.ids(**asked, page=page)
    assert sorted(walked) == sorted(each.id for each in busy.there())
    if order in ORDERS or order == "nonsense":
        assert walked == Meaning(busy, {**asked, "pageSize": "1000"}).answer()[0]


@pytest.mark.parametrize("order", ["city", "status", "country"])
async def test_ties_are_in_the_order_of_their_ids_in_either_direction(
    busy: Town, order: str
) -> None:
    for direction in ("asc", "desc"):
        got = await busy.list(orderBy=order, sortBy=direction, pageSize=1000)
        rows = got.body["recipients"]
        values = [row["status"] if order == "status" else row["address"][order] for row in rows]
        for value in set(values):
            tied = [row["id"] for row, its in zip(rows, values, strict=True) if its == value]
            assert tied == sorted(tied)


@pytest.mark.parametrize("most", [20, 1000], ids=["several pages", "one page"])
@pytest.mark.parametrize("index", [False, True], ids=["read each time", "index"])
async def test_an_order_of_ids_is_that_of_the_ids_which_clients_see(
    tmp_path: Path, index: bool, most: int
) -> None:
    """Clients walk such a list beside their own, to find who is missing in either."""
    long = {"recipient_id_length": 22, "max_page_size": most}
    async with town(tmp_path, seeded=50, index=index, **long) as made:
        shown = await made.ids(orderBy="id", sortBy="asc", pageSize=100)
        assert len(shown) == len(made.there())
        assert not set(shown) & {each.id for each in made.there()}, "these are no stand-ins"
        assert shown == sorted(shown)
        pages = [await made.ids(orderBy="id", page=number) for number in range(1, 6)]
        assert [id_ for page in pages for id_ in page] == shown[::-1]


async def test_text_that_is_put_in_order_here_goes_by_code_point(busy: Town) -> None:
    got = await busy.list(orderBy="city", sortBy="asc", pageSize=1000)
    cities = [row["address"]["city"] or "" for row in got.body["recipients"]]
    assert cities == sorted(cities)
    assert cities.index("Łódź") > cities.index("Utrecht")
    assert cities[-1] == "大阪"


async def test_no_list_shows_an_archived_recipient_or_a_word_that_legacy_lacks(busy: Town) -> None:
    rows = (await busy.list(pageSize=1000)).body["recipients"]
    assert {row["status"] for row in rows} == {*WITHOUT_A_WORD, "disabled", "inactive"}
    assert {row["complianceStatus"] for row in rows} == {"pending", "verified", "blocked"}
    assert {row["compliance"]["status"] for row in rows} == {"pending", "verified", "blocked"}


async def test_pending_includes_what_is_under_review_and_its_count_does_too(busy: Town) -> None:
    statuses = [each.compliance_status for each in busy.there()]
    got = await busy.list(complianceStatus="pending", pageSize=3)
    assert got.body["meta"]["records"] == statuses.count("pending") + statuses.count("review")
    assert statuses.count("review") > 5
    assert await busy.ids(complianceStatus="review") == []


async def test_a_row_of_a_list_is_the_recipient_as_it_is_read_alone(busy: Town) -> None:
    rows = (await busy.list(status="inactive", pageSize=1000)).body["recipients"]
    assert len(rows) == 20
    for row in rows[:5]:
        assert (await busy.house.ask("GET", f"{PATH}/{row['id']}")).body["recipient"] == row


async def test_lists_are_written_as_clients_in_the_field_write_them(busy: Town) -> None:
    plain = await busy.house.ask("GET", f"{PATH}?pageSize=5")
    for path in (
        f"{PATH}/?&search=&page=1&pageSize=5",
        f"{PATH}?pageSize=5&&",
        f"{PATH}/?page=&pageSize=5&status=&orderBy=&sortBy=&startDate=",
    ):
        got = await busy.house.ask("GET", path, headers={"Content-Type": "application/json"})
        assert (got.status, got.text) == (200, plain.text)
    assert plain.text.startswith('{"ok":true,"recipients":[{')


async def test_a_date_with_a_plus_sign_that_was_not_encoded_is_still_a_date(busy: Town) -> None:
    encoded = await busy.house.ask("GET", f"{PATH}?endDate=2023-01-05T12:00:00%2B02:00")
    written = await busy.house.ask("GET", f"{PATH}?endDate=2023-01-05T12:00:00+02:00")
    assert written.text == encoded.text
    assert encoded.body["meta"]["records"] < 400


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("%Y%m%d", "%Y-%m-%d"),
        ("%G-W%V-%u", "%Y-%m-%d"),
        ("%Y-%m-%dZ", "%Y-%m-%d"),
        ("%Y-%m-%d ", "%Y-%m-%d"),
        ("%Y-%m-%dt%H:%M:%Sz", "%Y-%m-%dT%H:%M:%SZ"),
    ],
)
async def test_a_date_is_taken_in_any_of_the_ways_of_iso_8601(
    busy: Town, written: str, means: str
) -> None:
    """What was taken for none was ignored, and what has no time covers its whole day."""
    created = sorted(each.created_at for each in busy.there())
    moment = created[len(created) // 2]
    for name in ("startDate", "endDate"):
        got = await busy.list(**{name: moment.strftime(written)})
        assert got.text == (await busy.list(**{name: moment.strftime(means)})).text
        assert 0 < got.body["meta"]["records"] < len(created)


# What no query may be refused for: the legacy list has no 406


@pytest.mark.parametrize(
    "query",
    [
        {"payoutMethod": "bank-transfer", "payoutCurrency": "EURO"},
        {"payoutMethod": "bank-transfer", "payoutCurrency": "E"},
        {"payoutMethod": "bank-transfer", "payoutCurrency": "1€3"},
        {"payoutCurrency": "EURO"},
        {"country": "XK"},
        {"country": "US,DE"},
        {"country": "ÜS"},
        {"status": "\x00"},
        {"search": "%"},
        {"search": "\U0001f600"},
    ],
    ids=str,
)
async def test_a_filter_that_fits_nobody_gives_an_empty_list(
    busy: Town, query: dict[str, str]
) -> None:
    got = await busy.list(**query)
    assert (got.status, got.body["recipients"]) == (200, [])
    assert got.body["meta"]["records"] == 0


@pytest.mark.parametrize(
    "query",
    [
        {"startDate": "0001-01-01"},
        {"startDate": "1000-01-01T00:00:00Z"},
        {"startDate": "soon"},
        {"endDate": "9999-12-31"},
        {"endDate": "9999-12-31T23:59:59-23:00"},
        {"page": "\u0661"},
        {"pageSize": "1_0"},
        {"sortBy": "DESC"},
        {"startDate": ["2022"]},
    ],
    ids=str,
)
async def test_a_parameter_that_makes_no_sense_or_no_difference_is_ignored(
    busy: Town, query: dict[str, str]
) -> None:
    got = await busy.list(**query)
    assert (got.status, got.body) == (200, (await busy.list()).body)


# One call, where the service can answer


@pytest_asyncio.fixture(loop_scope="module")
async def small(tmp_path: Path) -> AsyncIterator[Town]:
    """No word was set and nobody deleted; the service leaves archived ones out."""
    async with town(tmp_path, seeded=60) as made:
        yield made


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"page": "3", "pageSize": "7"},
        {"status": "active"},
        {"status": "suspended"},
        {"status": "incomplete", "country": "deu"},
        {"complianceStatus": "verified"},
        {"payoutMethod": "wallet"},
        {"payoutMethod": "bank-transfer", "payoutCurrency": "usd"},
        *({"orderBy": name, "sortBy": "asc"} for name in SERVICE_ORDERS),
    ],
    ids=str,
)
async def test_what_the_service_can_answer_itself_is_one_call(
    tmp_path: Path, query: dict[str, str]
) -> None:
    async with town(tmp_path, seeded=60) as made:
        await made.list()
        before = made.calls()
        got = await made.list(**query)
        # No recipient has a status override, so that status needs no scan.
        meaning = Meaning(made, query)
        assert ids_of(got) == _with_service_order(meaning)
        assert got.body["meta"] == meaning.answer()[1]
        assert made.calls() == before + 1


def _with_service_order(meaning: Meaning) -> list[str]:
    """Lists ids in the order of the service, which the client sees."""
    query = {**meaning.query, "status": ""}
    exact = Meaning(meaning.town, {**query, "page": "1", "pageSize": "1000"})
    kept = {each.id for each in meaning.town.there() if meaning.matches(each)}
    page, size = meaning.page("page", 1), meaning.page("pageSize", 10)
    ordered = [id_ for id_ in exact.answer()[0] if id_ in kept]
    return ordered[(page - 1) * size : page * size]


async def test_a_scan_asks_the_service_only_for_what_it_can_leave_out(tmp_path: Path) -> None:
    async with town(tmp_path, seeded=60) as made:
        await made.list(
            search="e", country="us", status="active", startDate="2022-06-01", payoutCurrency="USD"
        )
        calls = made.service.calls("GET", PATH)
    assert {
        "page": "1",
        "pageSize": "250",
        "country": "US",
        "status": "active",
        "startDate": "2022-06-01T00:00:00.000Z",
        "orderBy": "createdAt",
        "sortBy": "asc",
    } in [dict(parse_qsl(call.target.partition("?")[2])) for call in calls]


async def test_once_an_archived_recipient_was_listed_none_is_counted(tmp_path: Path) -> None:
    """A recipient archived elsewhere is not counted once a page has shown it."""
    async with town(tmp_path, lists_archived=True) as made:
        there = len(made.there())
        for page_size in (500, 1):
            got = await made.list(pageSize=page_size)
            assert got.body["meta"]["records"] == there


async def test_deleting_costs_no_reading_of_everything_once_the_service_hides_the_deleted(
    small: Town,
) -> None:
    await small.house.ask("DELETE", f"{PATH}/{small.there()[0].id}")
    await small.list()
    before = small.calls()
    got = await small.list(orderBy="name")
    assert small.calls() == before + 1
    assert got.body["meta"]["records"] == len(small.there())


async def test_a_recipient_whose_creation_could_not_be_undone_is_in_no_list_and_no_count(
    small: Town,
) -> None:
    """The service lists the recipient; the client was answered that it was not created."""
    await small.house.ask("DELETE", f"{PATH}/{small.there()[0].id}")
    await small.list()  # the service was seen to leave the deleted out
    before = {each.id for each in small.there()}
    refused = b'{"ok":false,"errors":[{"code":"invalid_field","message":"No.","field":"type"}]}'
    small.service.faults += [
        Fault("POST", f"{PATH}/*/accounts", status=400, body=refused),
        Fault("DELETE", f"{PATH}/*", status=500, body=b"{}"),
    ]
    payout = {"primary": {"method": "wallet"}, "accounts": {"wallet": {"address": "a@example.com"}}}
    body = {"type": "business", "name": "Ghost", "email": "a@example.com", "payout": payout}
    assert (await small.house.ask("POST", PATH, body)).status == 406
    assert len(small.there()) == len(before) + 1
    for asked in ({"sortBy": "asc"}, {"sortBy": "desc"}, {"orderBy": "city"}):
        got = await small.list(pageSize=1, **asked)
        assert got.body["meta"]["records"] == len(before), asked
        assert set(ids_of(got)) <= before


async def test_a_recipient_made_active_elsewhere_is_listed_with_the_service_s_word(
    small: Town,
) -> None:
    one = next(each for each in small.there() if each.status == "active")
    await small.house.ask("PATCH", f"{PATH}/{one.id}", {"status": "disabled"})
    assert await small.ids(status="disabled") == [one.id]
    assert one.id not in await small.ids(status="suspended", pageSize=100)
    one.status = "active"
    assert await small.ids(status="disabled") == []
    assert one.id in await small.ids(status="active", pageSize=100)


async def test_dates_mean_creation_and_not_the_last_update(tmp_path: Path) -> None:
    async with town(tmp_path, seeded=1) as made:
        one = made.there()[0]
        one.created_at = datetime(2023, 3, 1, 12, tzinfo=UTC)
        one.updated_at = datetime(2024, 3, 1, 12, tzinfo=UTC)
        for query, found in (
            ({"startDate": "2023-03-01"}, True),
            ({"startDate": "2023-03-02"}, False),
            ({"startDate": "2024-03-01"}, False),
            ({"startDate": "2023-03-01T12:00:00Z"}, True),
            ({"startDate": "2023-03-01T12:00:01Z"}, False),
            ({"endDate": "2023-02-28"}, False),
            ({"endDate": "2023-03-01"}, True),
            ({"endDate": "2023-12-31"}, True),
            ({"endDate": "2023-03-01T11:59:59Z"}, False),
            ({"startDate": "2023-03-01", "endDate": "2023-03-01"}, True),
            ({"startDate": "2023-03-02", "endDate": "2023-03-01"}, False),
        ):
            assert await made.ids(**query) == ([one.id] if found else []), query


# Services with pages of their own kind


def _query(request: web.BaseRequest) -> dict[str, str]:
    return dict(parse_qsl(request.raw_path.partition("?")[2]))


def _is_list(request: web.BaseRequest) -> bool:
    return request.method == "GET" and request.raw_path.partition("?")[0] == PATH


@dataclass(slots=True)
class Odd:
    """A service with unusual lists: ``answer`` transforms each list answer."""

    service: Service
    answer: Callable[[dict[str, str], dict[str, Any]], dict[str, Any]]
    refuses_above: int = 10**9

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        answer = await Face(self.service).handle(request)
        if not _is_list(request) or answer.status != 200:
            return answer
        query = _query(request)
        if int(query.get("pageSize", "10")) > self.refuses_above:
            wrong = {"code": "invalid_field", "message": "Too many.", "field": "pageSize"}
            return web.json_response({"ok": False, "errors": [wrong]}, status=400)
        assert isinstance(answer, web.Response)
        return web.json_response(self.answer(query, json.loads(answer.body)))


@asynccontextmanager
async def odd_town(
    folder: Path,
    answer: Callable[[Service, dict[str, str], dict[str, Any]], dict[str, Any]],
    *,
    index: bool,
    refuses_above: int = 10**9,
    **switches: Any,
) -> AsyncIterator[Town]:
    service = Service(seed=1, switches=Switches(**switches))
    service.seed_recipients(320, seed=7)
    odd = Odd(service, lambda query, body: answer(service, query, body), refuses_above)
    lists = {"index": index}
    async with serving(odd.handle) as url, open_house(folder, url, lists=lists) as house:
        yield Town(house, service)


def _as_it_is(_: Service, __: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
    return body


def _without_meta(_: Service, __: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
    return {"ok": True, "recipients": body["recipients"]}


def _without_counts(_: Service, __: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "meta": {"page": body["meta"]["page"]}}


def _in_text(_: Service, __: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "meta": {name: str(value) for name, value in body["meta"].items()}}


def _last_for_past_the_end(
    service: Service, query: dict[str, str], body: dict[str, Any]
) -> dict[str, Any]:
    pages = body["meta"]["pages"]
    if body["meta"]["page"] <= pages:
        return body
    return {"ok": True, **service_list(service.world(), {**query, "page": str(pages)})}


def _last_under_the_number_asked_for(
    service: Service, query: dict[str, str], body: dict[str, Any]
) -> dict[str, Any]:
    given = _last_for_past_the_end(service, query, body)
    return {**given, "meta": {**given["meta"], "page": body["meta"]["page"]}}


ODD_SERVICES = {
    "gives no meta": (_without_meta, {}),
    "gives a meta without counts": (_without_counts, {}),
    "gives its counts as text": (_in_text, {}),
    "cuts page sizes": (_as_it_is, {"max_page_size": 50}),
    "cuts page sizes and gives no meta": (_without_meta, {"max_page_size": 50}),
    "refuses large page sizes": (_as_it_is, {"refuses_above": 40}),
    "gives its last page for one past the end": (_last_for_past_the_end, {}),
    "gives its last page under the number asked for": (_last_under_the_number_asked_for, {}),
}


@pytest.fixture(scope="module", params=[False, True], ids=["read each time", "index"])
def with_index(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=ODD_SERVICES.values(), ids=ODD_SERVICES.keys()
)
async def odd(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    with_index: bool,
) -> AsyncIterator[Town]:
    answer, switches = request.param
    folder = tmp_path_factory.mktemp("odd")
    async with odd_town(folder, answer, index=with_index, **switches) as made:
        yield made


@pytest.mark.parametrize("order", ["city", "name"], ids=["decided here", "the service's order"])
async def test_a_walk_is_complete_whatever_the_service_makes_of_pages(
    odd: Town, order: str
) -> None:
    first = await odd.list(orderBy=order, sortBy="asc", pageSize=30)
    walked = ids_of(first)
    for page in range(2, first.body["meta"]["pages"] + 1):
        walked += await odd.ids(orderBy=order, sortBy="asc", pageSize=30, page=page)
    assert sorted(walked) == sorted(each.id for each in odd.there())
    assert first.body["meta"]["records"] == len(odd.there())


@pytest.mark.parametrize("order", ["city", "name"], ids=["decided here", "the service's order"])
async def test_past_the_end_is_an_empty_page_whatever_the_service_makes_of_it(
    odd: Town, order: str
) -> None:
    got = await odd.list(orderBy=order, page=99, pageSize=30)
    assert (got.status, got.body["recipients"]) == (200, [])
    assert got.body["meta"]["page"] == 99
    assert got.body["meta"]["records"] == len(odd.there())


@pytest.mark.parametrize("order", ["city", "name"], ids=["decided here", "the service's order"])
async def test_a_large_page_is_never_cut_without_the_meta_saying_so(odd: Town, order: str) -> None:
    first = await odd.list(orderBy=order, sortBy="asc", pageSize=1000)
    assert first.status == 200, first.text
    walked = ids_of(first)
    for page in range(2, first.body["meta"]["pages"] + 1):
        walked += await odd.ids(orderBy=order, sortBy="asc", pageSize=1000, page=page)
    assert sorted(walked) == sorted(each.id for each in odd.there())


# Lists that change while they are read


@pytest.mark.parametrize("seed", range(6))
async def test_recipients_created_and_deleted_while_a_scan_runs_lose_no_row(
    tmp_path: Path, seed: int
) -> None:
    """Every answer has each recipient once that existed during the whole scan."""
    dice = random.Random(seed)
    changes: list[Callable[[], None]] = []
    service = Service(seed=1, switches=Switches(max_page_size=50))
    steady = {each.id for each in service.seed_recipients(400, seed=7) if not each.archived}
    passing = service.seed_recipients(120, seed=8)
    for each in passing:
        each.status = "archived" if dice.random() < 0.5 else "active"

    def delete() -> None:
        dice.choice(passing).status = "archived"

    def create() -> None:
        late = service.seed_recipients(1, seed=dice.randrange(10**9))[0]
        late.created_at, late.status = datetime.now(UTC), "active"

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if _is_list(request) and changes:
            changes.pop()()
        return await Face(service).handle(request)

    async with serving(handle) as url, open_house(tmp_path, url, lists=READ_EACH_TIME) as house:
        made, complete = Town(house, service), 0
        for _ in range(12):
            changes[:] = [dice.choice((delete, create)) for _ in range(dice.randint(1, 9))]
            got = await made.list(orderBy="city", pageSize=1000)
            assert got.status == 200 or is_internal(got)
            if got.status == 200:
                listed = ids_of(got)
                assert steady <= set(listed)
                assert len(listed) == len(set(listed)) == got.body["meta"]["records"]
                complete += 1
        assert complete


async def test_one_deleted_and_one_created_between_two_pages_lose_no_row(tmp_path: Path) -> None:
    """The count is unchanged, but the rows after the deleted one move."""
    service = Service(seed=1, switches=Switches(max_page_size=50))
    made = sorted(service.seed_recipients(200, seed=7), key=lambda each: each.created_at)
    for each in made:
        each.status = "active"
    answered = 0

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal answered
        if _is_list(request):
            if answered == 1:
                made[0].status = "archived"
                late = service.seed_recipients(1, seed=9)[0]
                late.created_at, late.status = datetime.now(UTC), "active"
            answered += 1
        return await Face(service).handle(request)

    async with serving(handle) as url, open_house(tmp_path, url, lists=READ_EACH_TIME) as house:
        listed = await Town(house, service).ids(orderBy="city", pageSize=1000)
    assert {each.id for each in made[1:]} <= set(listed)


async def test_a_list_that_never_stands_still_is_told_as_a_failure_and_not_in_part(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, switches=Switches(max_page_size=50))
    made = [each for each in service.seed_recipients(200, seed=7) if not each.archived]

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if _is_list(request):
            made.pop().status = "archived"
        return await Face(service).handle(request)

    async with serving(handle) as url, open_house(tmp_path, url, lists=READ_EACH_TIME) as house:
        assert is_internal(await Town(house, service).list(orderBy="city"))


async def test_a_scan_of_which_one_page_fails_is_no_answer(tmp_path: Path) -> None:
    service = Service(seed=1, switches=Switches(max_page_size=50))
    service.seed_recipients(300, seed=7)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if _is_list(request) and _query(request)["page"] == "4":
            return web.Response(status=502, text="<html>bad gateway</html>")
        return await Face(service).handle(request)

    async with serving(handle) as url, open_house(tmp_path, url, lists=READ_EACH_TIME) as house:
        assert is_internal(await Town(house, service).list(orderBy="city"))


async def test_lists_asked_for_side_by_side_are_each_their_own(busy: Town) -> None:
    cases = [{"search": letter, "pageSize": "50"} for letter in string.ascii_lowercase[:12]]
    answers = await asyncio.gather(*(busy.list(**case) for case in cases))
    for case, got in zip(cases, answers, strict=True):
        assert (ids_of(got), got.body["meta"]) == Meaning(busy, case).answer()


async def test_recipients_of_another_merchant_are_in_no_list(tmp_path: Path) -> None:
    async with town(tmp_path, seeded=5) as made:
        made.service.seed_recipients(30, seed=3, merchant="another")
        for order in ("city", "name"):
            listed = await made.ids(orderBy=order, pageSize=100)
            assert set(listed) == {each.id for each in made.there()}
