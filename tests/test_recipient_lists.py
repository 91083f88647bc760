"""The list of recipients through a whole gateway, checked against a computation over all of them.

The expected answer to a query is computed from section 4.1 of the legacy interface over every
recipient of the service, independently of the gateway's implementation.
"""

from __future__ import annotations

import json
import random
import re
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

from gateway.simulator.current_interface import list_recipients as service_list
from gateway.simulator.requests import AcceptedRequest
from gateway.simulator.state import Recipient
from tests.running_gateway import GatewayResponse, GatewayUnderTest, open_gateway
from tests.simulator import Fault, RequestHandler, Service, ServiceOptions

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/recipients"


# The gateway, in front of more recipients than it reads in one page


@dataclass(slots=True)
class GatewayAndService:
    """A gateway, the service behind it, and the words that this client has set through it."""

    gateway: GatewayUnderTest
    service: Service
    status_overrides: dict[str, str] = field(default_factory=dict)
    lists_archived: bool = False

    async def list_recipients(self, **query: Any) -> GatewayResponse:
        target = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
        return await self.gateway.request("GET", f"{PATH}?{target}")

    async def load_ids(self, **query: Any) -> list[str]:
        response = await self.list_recipients(**query)
        assert response.status == 200, response.text
        return extract_ids(response)

    def count_calls(self) -> int:
        return len(self.service.list_requests("GET", PATH))

    def list_visible(self) -> list[Recipient]:
        """Every recipient that a legacy client may see."""
        return [
            recipient
            for recipient in self.service.find_or_create_tenant().recipients.values()
            if not recipient.is_archived
        ]


def extract_ids(response: GatewayResponse) -> list[str]:
    return [row["id"] for row in response.body["recipients"]]


def is_internal(response: GatewayResponse) -> bool:
    return response.status == 500 and response.body["errors"][0]["code"] == "internal_server_error"


Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


WITHOUT_INDEX = {"index": False}
"""What is tested here is the reading; the index is in ``tests.test_recipient_index``."""

LONG_TIMEOUT = {"timeout_seconds": 30}
"""A service with thousands of recipients may take its time on a machine that does much else."""


@asynccontextmanager
async def serve_handler(handle: Handle) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(handle, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def open_gateway_and_service(
    folder: Path,
    *,
    seeded: int = 320,
    handle: Callable[[Service], Handle] | None = None,
    index: bool = False,
    **service_options: Any,
) -> AsyncIterator[GatewayAndService]:
    service = Service(seed=1, options=ServiceOptions(**service_options))
    service.seed_recipients(seeded, seed=7)
    async with (
        serve_handler((handle or (lambda service: RequestHandler(service).handle))(service)) as url,
        open_gateway(folder, url, lists={"index": index}, upstream=LONG_TIMEOUT) as gateway,
    ):
        yield GatewayAndService(gateway, service, lists_archived=service.options.lists_archived)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[False, True], ids=["hidden", "listed"]
)
async def changed_recipients(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayAndService]:
    """A service that leaves archived recipients out of its lists, and one that does not."""
    folder = tmp_path_factory.mktemp("lists")
    async with open_gateway_and_service(folder, lists_archived=request.param) as setup:
        await change_recipients(setup)
        yield setup


async def change_recipients(setup: GatewayAndService) -> None:
    """Disables, deactivates and deletes some recipients through the gateway."""
    sample = random.Random("busy").sample(setup.list_visible(), 60)
    for recipient in sample[:20]:
        await _patch_status(setup, recipient, "disabled")
    for recipient in sample[20:40]:
        await _patch_status(setup, recipient, "inactive")
    for recipient in sample[40:55]:
        response = await setup.gateway.request("DELETE", f"{PATH}/{recipient.id}")
        assert response.status == 200
    deleted_ids = [recipient.id for recipient in sample[55:]]
    assert (await setup.gateway.request("DELETE", PATH, {"ids": deleted_ids})).status == 200
    await setup.list_recipients()  # what the service lists is known from here on


async def _patch_status(setup: GatewayAndService, recipient: Recipient, status: str) -> None:
    response = await setup.gateway.request("PATCH", f"{PATH}/{recipient.id}", {"status": status})
    assert response.status == 200
    setup.status_overrides[recipient.id] = status


# What a query means (legacy interface, section 4.1)

ALPHA_3_COUNTRIES = {
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

SERVICE_STATUSES = ("active", "incomplete", "suspended")
SERVICE_ORDERS = ("name", "email", "referenceId", "payoutMethod", "createdAt", "updatedAt")
ADDRESS_ORDERS = ("country", "city")
ORDERS = (*SERVICE_ORDERS, *ADDRESS_ORDERS, "status", "id", "complianceStatus")


@dataclass(slots=True)
class ExpectedList:
    """One query, read over all recipients."""

    setup: GatewayAndService
    query: dict[str, str]

    def get(self, name: str) -> str:
        return self.query.get(name, "")

    def parse_page(self, name: str, default: int) -> int:
        text = self.get(name)
        return int(text) if re.fullmatch("[0-9]{1,9}", text) and int(text) else default

    def build_answer(self) -> tuple[list[str], dict[str, int]]:
        page, size = self.parse_page("page", 1), self.parse_page("pageSize", 10)
        rows = [recipient for recipient in self.setup.list_visible() if self.matches(recipient)]
        rows.sort(key=lambda value: value.id)
        rows.sort(key=self.build_sort_key, reverse=self.get("sortBy") != "asc")
        page_rows = rows[(page - 1) * size : page * size]
        pages = -(-len(rows) // size)
        return [entry.id for entry in page_rows], {
            "page": page,
            "pages": pages,
            "records": len(rows),
        }

    def matches(self, recipient: Recipient) -> bool:
        get = self.get
        return (
            (not get("search") or self.matches_search(recipient))
            and get("status") in ("", self.find_status(recipient))
            and get("complianceStatus") in ("", find_compliance(recipient))
            and (not get("country") or recipient.address.get("country") == self.parse_country())
            and get("city") in ("", recipient.address.get("city"))
            and get("payoutMethod") in ("", find_method(recipient))
            and get("payoutCurrency").upper() in ("", find_currency(recipient))
            and self.parse_start() <= recipient.created_at <= self.parse_end()
        )

    def matches_search(self, recipient: Recipient) -> bool:
        texts = (recipient.fields[name] or "" for name in ("name", "email", "referenceId"))
        return any(self.get("search").casefold() in text.casefold() for text in texts)

    def find_status(self, recipient: Recipient) -> str:
        return self.setup.status_overrides.get(recipient.id, recipient.status)

    def parse_country(self) -> str:
        code = self.get("country").upper()
        return ALPHA_3_COUNTRIES.get(code, code)

    def parse_start(self) -> datetime:
        return parse_moment(self.get("startDate")) or datetime.min.replace(tzinfo=UTC)

    def parse_end(self) -> datetime:
        text = self.get("endDate")
        parsed_end = parse_moment(text)
        if parsed_end is None:
            return datetime.max.replace(tzinfo=UTC)
        return (
            parsed_end
            if "T" in text
            else parsed_end + timedelta(days=1) - timedelta(microseconds=1)
        )

    def find_order(self) -> str:
        return self.get("orderBy") if self.get("orderBy") in ORDERS else "createdAt"

    def build_sort_key(self, recipient: Recipient) -> Any:
        order = self.find_order()
        if order in ("createdAt", "updatedAt"):
            return recipient.created_at if order == "createdAt" else recipient.updated_at
        if order == "id":
            return recipient.id
        if order in ("status", "complianceStatus"):
            return self.find_status(recipient) if order == "status" else find_compliance(recipient)
        if order == "payoutMethod":
            return find_method(recipient) or ""
        text = (recipient.address if order in ADDRESS_ORDERS else recipient.fields).get(order) or ""
        return text.casefold()

    def is_one_call(self) -> bool:
        """Whether the current interface has this very question (its section 4.1)."""
        reasons = (
            self.setup.lists_archived,
            self.get("search"),
            self.get("city"),
            self.get("status") not in ("", "incomplete"),  # recipients have both statuses
            self.get("complianceStatus") not in ("", "verified", "blocked"),
            self.parse_country() not in ("", *ALPHA_3_COUNTRIES.values()),
            self.get("payoutMethod") not in ("", "wallet", "bank-transfer"),
            bool(self.get("payoutCurrency")) != (self.get("payoutMethod") == "bank-transfer"),
            parse_moment(self.get("startDate")),
            parse_moment(self.get("endDate")),
            self.find_order() not in SERVICE_ORDERS,
        )
        return not any(reasons)


def find_compliance(recipient: Recipient) -> str:
    return "pending" if recipient.compliance_status == "review" else recipient.compliance_status


def find_method(recipient: Recipient) -> str | None:
    return recipient.primary_account.type if recipient.primary_account else None


def find_currency(recipient: Recipient) -> str | None:
    return recipient.primary_account.fields["currency"] if recipient.primary_account else None


@cache
def parse_moment(text: str) -> datetime | None:
    for time_format in ("%Y-%m-%d", "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S.%f%z"):
        try:
            read = datetime.strptime(text, time_format)  # noqa: DTZ007 - a day has no zone
        except ValueError:
            continue
        return read if read.tzinfo else read.replace(tzinfo=UTC)
    return None


# Queries


def iterate_queries(setup: GatewayAndService, count: int) -> Iterator[dict[str, str]]:
    rng = random.Random("queries")
    for _ in range(count):
        recipient = rng.choice(setup.list_visible())
        filters = _draw_filters(rng, recipient)
        names = rng.sample(sorted(filters), rng.choice((0, 1, 1, 2, 2, 3, 4)))
        yield {**{name: filters[name] for name in names}, **_draw_order_and_page(rng)}


def _draw_filters(rng: random.Random, recipient: Recipient) -> dict[str, str]:
    """Every filter, with a value that often matches ``recipient``."""
    country = recipient.address.get("country") or "US"
    alpha_3 = next(
        alpha_3_code
        for alpha_3_code, alpha_2_code in ALPHA_3_COUNTRIES.items()
        if alpha_2_code == country
    )
    return {
        "search": _draw_part(
            rng, rng.choice((recipient.fields["name"], recipient.fields["email"], "ref-1"))
        ),
        "status": rng.choice((*SERVICE_STATUSES, "inactive", "disabled", "archived", "nonsense")),
        "complianceStatus": rng.choice(("pending", "verified", "blocked", "review", "nonsense")),
        "country": rng.choice((country, country.lower(), alpha_3, alpha_3.lower(), "ZZZ", "Q")),
        "city": rng.choice((recipient.address.get("city") or "Nowhere", "Köln", "Nowhere")),
        "payoutMethod": rng.choice(("wallet", "bank-transfer", "check", "nonsense")),
        "payoutCurrency": rng.choice(
            (find_currency(recipient) or "USD", "USD", "EUR", "eur", "XXX")
        ),
        "startDate": _draw_date(rng, recipient),
        "endDate": _draw_date(rng, recipient),
    }


def _draw_part(rng: random.Random, text: str) -> str:
    start_index = rng.randrange(len(text))
    substring = text[start_index : start_index + rng.randint(1, 4)].strip() or text
    return rng.choice((substring, substring.upper(), substring.lower()))


def _draw_date(rng: random.Random, recipient: Recipient) -> str:
    created_at = recipient.created_at
    shifted = created_at.astimezone(datetime.strptime("+0530", "%z").tzinfo)
    milliseconds_form = f"{created_at:%Y-%m-%dT%H:%M:%S}.{created_at.microsecond // 1000:03d}Z"
    return rng.choice(
        (
            f"{created_at:%Y-%m-%d}",
            f"{created_at:%Y-%m-%d}",
            f"{created_at:%Y-%m-%dT%H:%M:%S}Z",
            milliseconds_form,
            milliseconds_form,
            shifted.isoformat(timespec="milliseconds"),
            "yesterday",
            "2023-02-30",
        )
    )


def _draw_order_and_page(rng: random.Random) -> dict[str, str]:
    """Order, page, and what is to be ignored."""
    query: dict[str, str] = {}
    if rng.random() < 0.7:
        query["orderBy"] = rng.choice((*ORDERS, *ORDERS, "nonsense"))
    if rng.random() < 0.6:
        query["sortBy"] = rng.choice(("asc", "desc", "sideways"))
    if rng.random() < 0.5:
        query["page"] = rng.choice(("1", "2", "3", "0", "-1", "x", "1.5", "999", "9" * 30))
    if rng.random() < 0.5:
        query["pageSize"] = rng.choice(("1", "7", "20", "500", "1000", "0", "-3", "ten"))
    if rng.random() < 0.3:
        query[rng.choice(("search", "status", "city", "startDate", "page"))] = ""
    if rng.random() < 0.3:
        query[rng.choice(("colour", "name", "email", "currency", "Status"))] = "blue"
    return query


async def test_queries_match_the_legacy_document(changed_recipients: GatewayAndService) -> None:
    one_call = 0
    for query in iterate_queries(changed_recipients, 50):
        expected_list, call_count = (
            ExpectedList(changed_recipients, query),
            changed_recipients.count_calls(),
        )
        response = await changed_recipients.list_recipients(**query)
        assert response.status == 200, (query, response.text)
        assert (extract_ids(response), response.body["meta"]) == expected_list.build_answer(), query
        if expected_list.is_one_call():
            one_call += 1
            assert changed_recipients.count_calls() == call_count + 1, query
    assert changed_recipients.lists_archived or one_call > 10, (
        "the queries do not try what they are to try"
    )


@pytest.mark.parametrize("order", ["city", "name", "firstName"])
async def test_pages_contain_every_recipient_once(
    changed_recipients: GatewayAndService, order: str
) -> None:
    query = {"orderBy": order, "sortBy": "asc", "pageSize": "97"}
    first_response = await changed_recipients.list_recipients(**query)
    listed_ids = extract_ids(first_response)
    for page in range(2, first_response.body["meta"]["pages"] + 1):
        listed_ids += await changed_recipients.load_ids(**query, page=page)
    assert sorted(listed_ids) == sorted(
        recipient.id for recipient in changed_recipients.list_visible()
    )
    if order in ORDERS:
        assert (
            listed_ids
            == ExpectedList(changed_recipients, {**query, "pageSize": "1000"}).build_answer()[0]
        )


@pytest.mark.parametrize("max_page_size", [20, 1000], ids=["several pages", "one page"])
@pytest.mark.parametrize("index", [False, True], ids=["read each time", "index"])
async def test_order_by_id_uses_the_ids_of_the_client(
    tmp_path: Path, index: bool, max_page_size: int
) -> None:
    """Clients compare such a list with their own to find missing recipients."""
    service_options = {"recipient_id_length": 22, "max_page_size": max_page_size}
    async with open_gateway_and_service(
        tmp_path, seeded=50, index=index, **service_options
    ) as setup:
        listed_ids = await setup.load_ids(orderBy="id", sortBy="asc", pageSize=100)
        assert len(listed_ids) == len(setup.list_visible())
        assert not set(listed_ids) & {recipient.id for recipient in setup.list_visible()}, (
            "these are no stand-ins"
        )
        assert listed_ids == sorted(listed_ids)
        pages = [await setup.load_ids(orderBy="id", page=number) for number in range(1, 6)]
        assert [id_ for page in pages for id_ in page] == listed_ids[::-1]


async def test_archived_recipients_and_unknown_statuses_are_not_listed(
    changed_recipients: GatewayAndService,
) -> None:
    rows = (await changed_recipients.list_recipients(pageSize=1000)).body["recipients"]
    assert {row["status"] for row in rows} == {*SERVICE_STATUSES, "disabled", "inactive"}
    assert {row["complianceStatus"] for row in rows} == {"pending", "verified", "blocked"}
    assert {row["compliance"]["status"] for row in rows} == {"pending", "verified", "blocked"}


async def test_pending_includes_recipients_under_review(
    changed_recipients: GatewayAndService,
) -> None:
    statuses = [recipient.compliance_status for recipient in changed_recipients.list_visible()]
    response = await changed_recipients.list_recipients(complianceStatus="pending", pageSize=3)
    assert response.body["meta"]["records"] == statuses.count("pending") + statuses.count("review")
    assert statuses.count("review") > 5
    assert await changed_recipients.load_ids(complianceStatus="review") == []


async def test_list_row_equals_the_recipient(changed_recipients: GatewayAndService) -> None:
    rows = (await changed_recipients.list_recipients(status="inactive", pageSize=1000)).body[
        "recipients"
    ]
    assert len(rows) == 20
    for row in rows[:5]:
        assert (await changed_recipients.gateway.request("GET", f"{PATH}/{row['id']}")).body[
            "recipient"
        ] == row


async def test_redundant_query_separators_are_ignored(
    changed_recipients: GatewayAndService,
) -> None:
    plain_response = await changed_recipients.gateway.request("GET", f"{PATH}?pageSize=5")
    for path in (
        f"{PATH}/?&search=&page=1&pageSize=5",
        f"{PATH}?pageSize=5&&",
        f"{PATH}/?page=&pageSize=5&status=&orderBy=&sortBy=&startDate=",
    ):
        response = await changed_recipients.gateway.request(
            "GET", path, headers={"Content-Type": "application/json"}
        )
        assert (response.status, response.text) == (200, plain_response.text)
    assert plain_response.text.startswith('{"ok":true,"recipients":[{')


async def test_date_with_unencoded_plus_sign_is_parsed(
    changed_recipients: GatewayAndService,
) -> None:
    encoded_response = await changed_recipients.gateway.request(
        "GET", f"{PATH}?endDate=2023-01-05T12:00:00%2B02:00"
    )
    unencoded_response = await changed_recipients.gateway.request(
        "GET", f"{PATH}?endDate=2023-01-05T12:00:00+02:00"
    )
    assert unencoded_response.text == encoded_response.text
    assert encoded_response.body["meta"]["records"] < len(changed_recipients.list_visible())


@pytest.mark.parametrize(
    ("date_text", "expected_form"),
    [
        ("%Y%m%d", "%Y-%m-%d"),
        ("%G-W%V-%u", "%Y-%m-%d"),
        ("%Y-%m-%dZ", "%Y-%m-%d"),
        ("%Y-%m-%d ", "%Y-%m-%d"),
        ("%Y-%m-%dt%H:%M:%Sz", "%Y-%m-%dT%H:%M:%SZ"),
    ],
)
async def test_iso_8601_date_forms_are_accepted(
    changed_recipients: GatewayAndService, date_text: str, expected_form: str
) -> None:
    """Forms that were once ignored as invalid; a date without a time covers its whole day."""
    creation_times = sorted(recipient.created_at for recipient in changed_recipients.list_visible())
    middle_time = creation_times[len(creation_times) // 2]
    for name in ("startDate", "endDate"):
        response = await changed_recipients.list_recipients(
            **{name: middle_time.strftime(date_text)}
        )
        assert (
            response.text
            == (
                await changed_recipients.list_recipients(
                    **{name: middle_time.strftime(expected_form)}
                )
            ).text
        )
        assert 0 < response.body["meta"]["records"] < len(creation_times)


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
async def test_filter_without_match_gives_an_empty_list(
    changed_recipients: GatewayAndService, query: dict[str, str]
) -> None:
    response = await changed_recipients.list_recipients(**query)
    assert (response.status, response.body["recipients"]) == (200, [])
    assert response.body["meta"]["records"] == 0


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
async def test_meaningless_parameter_is_ignored(
    changed_recipients: GatewayAndService, query: dict[str, str]
) -> None:
    response = await changed_recipients.list_recipients(**query)
    assert (response.status, response.body) == (
        200,
        (await changed_recipients.list_recipients()).body,
    )


# One call if the service supports the query


@pytest_asyncio.fixture(loop_scope="module")
async def small_service(tmp_path: Path) -> AsyncIterator[GatewayAndService]:
    """No status was set and no recipient deleted; the service omits archived recipients."""
    async with open_gateway_and_service(tmp_path, seeded=60) as setup:
        yield setup


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
async def test_query_supported_by_the_service_takes_one_call(
    tmp_path: Path, query: dict[str, str]
) -> None:
    async with open_gateway_and_service(tmp_path, seeded=60) as setup:
        await setup.list_recipients()
        call_count = setup.count_calls()
        response = await setup.list_recipients(**query)
        # No recipient has a status override, so that status needs no scan.
        expected_list = ExpectedList(setup, query)
        assert extract_ids(response) == _list_in_service_order(expected_list)
        assert response.body["meta"] == expected_list.build_answer()[1]
        assert setup.count_calls() == call_count + 1


def _list_in_service_order(expected_list: ExpectedList) -> list[str]:
    """Lists ids in the order of the service, which the client sees."""
    query = {**expected_list.query, "status": ""}
    full_list = ExpectedList(expected_list.setup, {**query, "page": "1", "pageSize": "1000"})
    matching_ids = {
        recipient.id
        for recipient in expected_list.setup.list_visible()
        if expected_list.matches(recipient)
    }
    page, size = expected_list.parse_page("page", 1), expected_list.parse_page("pageSize", 10)
    ordered_ids = [id_ for id_ in full_list.build_answer()[0] if id_ in matching_ids]
    return ordered_ids[(page - 1) * size : page * size]


async def test_scan_passes_supported_filters_to_the_service(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, seeded=60) as setup:
        await setup.list_recipients(
            search="e", country="us", status="active", startDate="2022-06-01", payoutCurrency="USD"
        )
        calls = setup.service.list_requests("GET", PATH)
    assert {
        "page": "1",
        "pageSize": "250",
        "country": "US",
        "status": "active",
        "startDate": "2022-06-01T00:00:00.000Z",
        "orderBy": "createdAt",
        "sortBy": "asc",
    } in [dict(parse_qsl(call.target.partition("?")[2])) for call in calls]


async def test_archived_recipients_are_not_counted_once_seen(tmp_path: Path) -> None:
    """A recipient archived elsewhere is not counted once a page has shown it."""
    async with open_gateway_and_service(tmp_path, lists_archived=True) as setup:
        recipient_count = len(setup.list_visible())
        for page_size in (500, 1):
            response = await setup.list_recipients(pageSize=page_size)
            assert response.body["meta"]["records"] == recipient_count


async def test_list_after_deletion_takes_one_call_if_the_service_hides_archived(
    small_service: GatewayAndService,
) -> None:
    await small_service.gateway.request("DELETE", f"{PATH}/{small_service.list_visible()[0].id}")
    await small_service.list_recipients()
    call_count = small_service.count_calls()
    response = await small_service.list_recipients(orderBy="name")
    assert small_service.count_calls() == call_count + 1
    assert response.body["meta"]["records"] == len(small_service.list_visible())


async def test_recipient_of_a_failed_creation_is_not_listed(
    small_service: GatewayAndService,
) -> None:
    """The service lists the recipient; the client was answered that it was not created."""
    await small_service.gateway.request("DELETE", f"{PATH}/{small_service.list_visible()[0].id}")
    await small_service.list_recipients()  # the service was seen to leave the deleted out
    ids_before = {recipient.id for recipient in small_service.list_visible()}
    refusal = b'{"ok":false,"errors":[{"code":"invalid_field","message":"No.","field":"type"}]}'
    small_service.service.faults += [
        Fault("POST", f"{PATH}/*/accounts", status=400, body=refusal),
        Fault("DELETE", f"{PATH}/*", status=500, body=b"{}"),
    ]
    payout = {"primary": {"method": "wallet"}, "accounts": {"wallet": {"address": "a@example.com"}}}
    body = {"type": "business", "name": "Ghost", "email": "a@example.com", "payout": payout}
    assert (await small_service.gateway.request("POST", PATH, body)).status == 406
    assert len(small_service.list_visible()) == len(ids_before) + 1
    for query in ({"sortBy": "asc"}, {"sortBy": "desc"}, {"orderBy": "city"}):
        response = await small_service.list_recipients(pageSize=1, **query)
        assert response.body["meta"]["records"] == len(ids_before), query
        assert set(extract_ids(response)) <= ids_before


async def test_status_changed_elsewhere_is_listed(
    small_service: GatewayAndService,
) -> None:
    recipient = next(
        recipient for recipient in small_service.list_visible() if recipient.status == "active"
    )
    await small_service.gateway.request("PATCH", f"{PATH}/{recipient.id}", {"status": "disabled"})
    assert await small_service.load_ids(status="disabled") == [recipient.id]
    assert recipient.id not in await small_service.load_ids(status="suspended", pageSize=100)
    recipient.status = "active"
    assert await small_service.load_ids(status="disabled") == []
    assert recipient.id in await small_service.load_ids(status="active", pageSize=100)


async def test_date_filters_apply_to_creation(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path, seeded=3) as setup:
        recipient, *others = setup.list_visible()
        for other in others:
            other.status = "archived"
        recipient.created_at = datetime(2023, 3, 1, 12, tzinfo=UTC)
        recipient.updated_at = datetime(2024, 3, 1, 12, tzinfo=UTC)
        for query, expected_count in (
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
            assert await setup.load_ids(**query) == ([recipient.id] if expected_count else []), (
                query
            )


# Services with pages of their own kind


def _parse_query(request: web.BaseRequest) -> dict[str, str]:
    return dict(parse_qsl(request.raw_path.partition("?")[2]))


def _is_list(request: web.BaseRequest) -> bool:
    return request.method == "GET" and request.raw_path.partition("?")[0] == PATH


@dataclass(slots=True)
class UnusualListService:
    """A service with unusual lists: ``change_body`` transforms the body of each list."""

    service: Service
    change_body: Callable[[dict[str, str], dict[str, Any]], dict[str, Any]]
    refuses_above: int = 10**9

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await RequestHandler(self.service).handle(request)
        if not _is_list(request) or response.status != 200:
            return response
        query = _parse_query(request)
        if int(query.get("pageSize", "10")) > self.refuses_above:
            error = {"code": "invalid_field", "message": "Too many.", "field": "pageSize"}
            return web.json_response({"ok": False, "errors": [error]}, status=400)
        assert isinstance(response, web.Response)
        return web.json_response(self.change_body(query, json.loads(response.body)))


@asynccontextmanager
async def open_gateway_with_unusual_service(
    folder: Path,
    change_body: Callable[[Service, dict[str, str], dict[str, Any]], dict[str, Any]],
    *,
    index: bool,
    refuses_above: int = 10**9,
    **service_options: Any,
) -> AsyncIterator[GatewayAndService]:
    service = Service(seed=1, options=ServiceOptions(**service_options))
    service.seed_recipients(280, seed=7)
    unusual_service = UnusualListService(
        service, lambda query, body: change_body(service, query, body), refuses_above
    )
    lists = {"index": index}
    async with (
        serve_handler(unusual_service.handle) as url,
        open_gateway(folder, url, lists=lists) as gateway,
    ):
        yield GatewayAndService(gateway, service)


def _keep_body(_: Service, __: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
    return body


def _drop_meta(_: Service, __: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
    return {"ok": True, "recipients": body["recipients"]}


def _drop_counts(_: Service, __: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "meta": {"page": body["meta"]["page"]}}


def _write_counts_as_text(_: Service, __: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "meta": {name: str(value) for name, value in body["meta"].items()}}


def _repeat_last_page(
    service: Service, query: dict[str, str], body: dict[str, Any]
) -> dict[str, Any]:
    pages = body["meta"]["pages"]
    if body["meta"]["page"] <= pages:
        return body
    return {
        "ok": True,
        **service_list(
            AcceptedRequest(service.find_or_create_tenant(), {**query, "page": str(pages)})
        ),
    }


def _repeat_last_page_with_requested_number(
    service: Service, query: dict[str, str], body: dict[str, Any]
) -> dict[str, Any]:
    last_page = _repeat_last_page(service, query, body)
    return {**last_page, "meta": {**last_page["meta"], "page": body["meta"]["page"]}}


UNUSUAL_SERVICES = {
    "gives no meta": (_drop_meta, {}),
    "gives a meta without counts": (_drop_counts, {}),
    "gives its counts as text": (_write_counts_as_text, {}),
    "cuts page sizes": (_keep_body, {"max_page_size": 70}),
    "cuts page sizes and gives no meta": (_drop_meta, {"max_page_size": 70}),
    "refuses large page sizes": (_keep_body, {"refuses_above": 60}),
    "gives its last page for one past the end": (_repeat_last_page, {}),
    "gives its last page under the number asked for": (_repeat_last_page_with_requested_number, {}),
}


READINGS = {"index": (True, "city"), "read each time": (False, "city"), "service": (False, "name")}
"""Who finds the page, and an order that lets it; the index has all orders itself."""


@pytest.fixture(scope="module", params=READINGS.values(), ids=READINGS)
def reading(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def order(reading: tuple[bool, str]) -> str:
    return reading[1]


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=UNUSUAL_SERVICES.values(),
    ids=UNUSUAL_SERVICES.keys(),
)
async def unusual_service(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    reading: tuple[bool, str],
) -> AsyncIterator[GatewayAndService]:
    change_body, service_options = request.param
    folder = tmp_path_factory.mktemp("odd")
    async with open_gateway_with_unusual_service(
        folder, change_body, index=reading[0], **service_options
    ) as setup:
        yield setup


async def test_pages_are_complete_with_unusual_services(
    unusual_service: GatewayAndService, order: str
) -> None:
    """The meta says if a large page is cut, and a page past the end is empty."""
    visible_ids = sorted(recipient.id for recipient in unusual_service.list_visible())
    for page_size in (55, 1000):
        query = {"orderBy": order, "sortBy": "asc", "pageSize": page_size}
        first_response = await unusual_service.list_recipients(**query)
        assert first_response.status == 200, first_response.text
        assert first_response.body["meta"]["records"] == len(visible_ids)
        listed_ids = extract_ids(first_response)
        for page in range(2, first_response.body["meta"]["pages"] + 1):
            listed_ids += await unusual_service.load_ids(**query, page=page)
        assert sorted(listed_ids) == visible_ids, page_size
    response = await unusual_service.list_recipients(orderBy=order, page=99, pageSize=55)
    assert (response.status, response.body["recipients"]) == (200, [])
    assert response.body["meta"]["page"] == 99
    assert response.body["meta"]["records"] == len(visible_ids)


# Lists that change while they are read


async def test_deletion_and_creation_between_pages_do_not_lose_rows(tmp_path: Path) -> None:
    """The count is unchanged, but the rows after the deleted one move."""
    service = Service(seed=1, options=ServiceOptions(max_page_size=50))
    seeded = sorted(service.seed_recipients(200, seed=7), key=lambda value: value.created_at)
    for entry in seeded:
        entry.status = "active"
    answered_count = 0

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal answered_count
        if _is_list(request):
            if answered_count == 1:
                seeded[0].status = "archived"
                new_recipient = service.seed_recipients(1, seed=9)[0]
                new_recipient.created_at, new_recipient.status = datetime.now(UTC), "active"
            answered_count += 1
        return await RequestHandler(service).handle(request)

    async with (
        serve_handler(handle) as url,
        open_gateway(tmp_path, url, lists=WITHOUT_INDEX) as gateway,
    ):
        listed_ids = await GatewayAndService(gateway, service).load_ids(
            orderBy="city", pageSize=1000
        )
    assert {entry.id for entry in seeded[1:]} <= set(listed_ids)


async def test_constantly_changing_list_is_an_internal_error(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, options=ServiceOptions(max_page_size=50))
    creation_times = [
        recipient for recipient in service.seed_recipients(200, seed=7) if not recipient.is_archived
    ]

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if _is_list(request):
            creation_times.pop().status = "archived"
        return await RequestHandler(service).handle(request)

    async with (
        serve_handler(handle) as url,
        open_gateway(tmp_path, url, lists=WITHOUT_INDEX) as gateway,
    ):
        assert is_internal(
            await GatewayAndService(gateway, service).list_recipients(orderBy="city")
        )


async def test_scan_with_a_failed_page_is_an_internal_error(tmp_path: Path) -> None:
    service = Service(seed=1, options=ServiceOptions(max_page_size=50))
    service.seed_recipients(300, seed=7)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if _is_list(request) and _parse_query(request)["page"] == "4":
            return web.Response(status=502, text="<html>bad gateway</html>")
        return await RequestHandler(service).handle(request)

    async with (
        serve_handler(handle) as url,
        open_gateway(tmp_path, url, lists=WITHOUT_INDEX) as gateway,
    ):
        assert is_internal(
            await GatewayAndService(gateway, service).list_recipients(orderBy="city")
        )
