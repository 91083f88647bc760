"""The list of recipients on the legacy interface (section 4.1, List query parameters)."""

import pytest

from gateway.simulator.legacy.recipient_list import ORDERS

DAY = 86_400


@pytest.fixture
async def people(legacy, us, germany, purse, address):
    """Four recipients, created a day apart from 2025-10-09T08:53:20 on, and a deleted one."""
    clock = legacy.service.clock
    made = [
        await legacy.create_recipient(
            email="ana@north.example.com", firstName="Ana", lastName="Müller", referenceId="X-1",
            address=address, payout=us,
        )
    ]  # fmt: skip
    clock.now += DAY
    made.append(
        await legacy.create_recipient(
            email="bob@example.org", firstName="Bob", lastName="Ängström", referenceId="x-2",
            address=address | {"country": "DE", "city": "Köln"}, payout=germany,
        )
    )  # fmt: skip
    clock.now += DAY
    made.append(
        await legacy.create_recipient(
            email="cy@example.com", firstName="Anabel", lastName="Cy", address={"country": "FR"},
            payout=purse,
        )
    )  # fmt: skip
    clock.now += DAY
    business = {"type": "business", "name": "Zebra Ana & Co", "email": "dot@example.com"}
    made.append((await legacy.request_ok("POST", "/recipients", business))["recipient"])
    gone = await legacy.create_recipient(email="gone@example.com", address=address, payout=us)
    await legacy.request_ok("DELETE", f"/recipients/{gone['id']}")
    return made


async def found(legacy, query, order="orderBy=createdAt&sortBy=asc"):
    got = await legacy.request_ok("GET", f"/recipients?{order}&{query}")
    assert got["meta"]["records"] >= len(got["recipients"])
    return [each["email"].partition("@")[0] for each in got["recipients"]]


async def test_a_list_shows_whole_recipients_the_newest_first(legacy, people):
    got = await legacy.request_ok("GET", "/recipients")
    assert got["recipients"] == people[::-1]
    assert got["meta"] == {"page": 1, "pages": 1, "records": 4}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("search=ANA", ["ana", "cy", "dot"]),
        ("search=%C3%BCll", ["ana"]),
        ("search=example.com", ["ana", "cy", "dot"]),
        ("search=-2", ["bob"]),
        ("search=nobody", []),
        ("status=active", ["ana", "bob", "cy"]),
        ("status=incomplete", ["dot"]),
        ("status=suspended", []),
        ("status=archived", []),
        ("complianceStatus=pending", ["ana", "bob", "cy", "dot"]),
        ("complianceStatus=verified", []),
        ("country=DE", ["bob"]),
        ("country=DEU", ["bob"]),
        ("country=de", ["bob"]),
        ("payoutCurrency=eur", ["bob"]),
        ("country=US,DE", []),
        ("city=Austin", ["ana"]),
        ("city=k%C3%B6ln", ["bob"]),
        ("payoutMethod=bank-transfer", ["ana", "bob"]),
        ("payoutMethod=wallet", ["cy"]),
        ("payoutMethod=wallet&payoutCurrency=EUR", []),
        ("payoutCurrency=USD", ["ana", "cy"]),
        ("search=&status=&country=&unknown=1", ["ana", "bob", "cy", "dot"]),
        ("status=active&search=ana&country=US", ["ana"]),
    ],
)
async def test_parameters_leave_some(legacy, people, query, expected):
    assert await found(legacy, query) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("startDate=2025-10-11T08:53:20.000Z", ["cy", "dot"]),
        ("startDate=2025-10-11T08:53:20.001Z", ["dot"]),
        ("startDate=2025-10-11", ["cy", "dot"]),
        ("endDate=2025-10-10", ["ana", "bob"]),
        ("endDate=2025-10-10T08:53:19Z", ["ana"]),
        ("startDate=2025-10-10&endDate=2025-10-11", ["bob", "cy"]),
        ("startDate=yesterday&endDate=2025-13-01", ["ana", "bob", "cy", "dot"]),
    ],
)
async def test_dates_are_those_of_the_creation(legacy, people, clock, query, expected):
    clock.now += DAY
    await legacy.request_ok("PATCH", f"/recipients/{people[0]['id']}", {"language": "de"})
    assert await found(legacy, query) == expected


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("orderBy=name", ["dot", "bob", "cy", "ana"]),
        ("orderBy=name&sortBy=asc", ["ana", "cy", "bob", "dot"]),
        ("orderBy=email&sortBy=asc", ["ana", "bob", "cy", "dot"]),
        ("orderBy=country&sortBy=asc", ["dot", "bob", "cy", "ana"]),
        ("orderBy=city&sortBy=desc", ["bob", "ana"]),
        ("orderBy=referenceId&sortBy=desc", ["bob", "ana"]),
        ("orderBy=payoutMethod&sortBy=desc", ["cy"]),
        ("orderBy=updatedAt&sortBy=desc", ["dot", "cy", "bob", "ana"]),
        ("orderBy=nonsense&sortBy=up", ["dot", "cy", "bob", "ana"]),
    ],
)
async def test_the_order_is_asked_for(legacy, people, order, expected):
    assert (await found(legacy, "", order))[: len(expected)] == expected


@pytest.mark.parametrize("name", sorted(ORDERS))
async def test_every_order_runs_both_ways_with_ties_by_id(legacy, people, name):
    got = await legacy.request_ok("GET", f"/recipients?orderBy={name}&sortBy=asc")
    again = await legacy.request_ok("GET", f"/recipients?orderBy={name}&sortBy=desc")
    assert {each["id"] for each in got["recipients"]} == {each["id"] for each in people}
    assert {each["id"] for each in again["recipients"]} == {each["id"] for each in people}


async def test_equal_ones_are_in_the_order_of_their_ids(legacy):
    ids = sorted([(await legacy.create_recipient())["id"] for _ in range(5)])
    for direction in ("asc", "desc"):
        got = await legacy.request_ok("GET", f"/recipients?orderBy=status&sortBy={direction}")
        assert [each["id"] for each in got["recipients"]] == ids


async def test_statuses_are_found_by_the_words_that_are_shown(legacy, people):
    for each, word in zip(people, ("inactive", "disabled", "suspended"), strict=False):
        await legacy.request_ok("PATCH", f"/recipients/{each['id']}", {"status": word})
    assert await found(legacy, "status=inactive") == ["ana"]
    assert await found(legacy, "status=disabled") == ["bob"]
    assert await found(legacy, "status=suspended") == ["cy"]
    assert await found(legacy, "status=active") == []
    order = "orderBy=status&sortBy=asc"
    assert await found(legacy, "", order) == ["bob", "ana", "dot", "cy"]


async def test_pending_includes_what_is_under_review(legacy, people):
    legacy.service.set_compliance(people[0]["id"], "review")
    legacy.service.set_compliance(people[1]["id"], "blocked")
    assert await found(legacy, "complianceStatus=pending") == ["ana", "cy", "dot"]
    assert await found(legacy, "complianceStatus=blocked") == ["bob"]


@pytest.mark.parametrize(
    ("query", "page", "emails"),
    [
        ("pageSize=3&page=2", {"page": 2, "pages": 2, "records": 4}, ["dot"]),
        ("pageSize=3&page=9", {"page": 9, "pages": 2, "records": 4}, []),
        ("pageSize=0&page=-1", {"page": 1, "pages": 1, "records": 4}, ["ana", "bob", "cy", "dot"]),
        ("pageSize=x&page=1.5", {"page": 1, "pages": 1, "records": 4}, ["ana", "bob", "cy", "dot"]),
        ("search=nobody", {"page": 1, "pages": 0, "records": 0}, []),
    ],
)  # fmt: skip
async def test_pages(legacy, people, query, page, emails):
    got = await legacy.request_ok("GET", f"/recipients?orderBy=createdAt&sortBy=asc&{query}")
    assert got["meta"] == page
    assert [each["email"].partition("@")[0] for each in got["recipients"]] == emails


async def test_made_up_recipients_are_all_readable_by_a_legacy_client(legacy):
    seeded = legacy.service.seed_recipients(600, 3)
    kept = {each.id for each in seeded if not each.archived}
    got = await legacy.request_ok("GET", "/recipients?pageSize=1000")
    assert {each["id"] for each in got["recipients"]} == kept
    methods = {each["payout"]["method"] for each in got["recipients"]}
    assert methods >= {None, "bank", "wallet", "mobile-wallet"}
