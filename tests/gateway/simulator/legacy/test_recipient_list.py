"""The list of recipients on the legacy interface (section 4.1, List query parameters)."""

import pytest

from gateway.simulator.legacy.recipient_list import SORT_KEYS

DAY_SECONDS = 86_400


@pytest.fixture
async def recipients(legacy_client, us_payout, german_payout, wallet_payout, address):
    """Four recipients, created a day apart from 2025-10-09T08:53:20 on, and a deleted one."""
    clock = legacy_client.service.clock
    recipient = [
        await legacy_client.create_recipient(
            email="ana@north.example.com", firstName="Ana", lastName="Müller", referenceId="X-1",
            address=address, payout=us_payout,
        )
    ]  # fmt: skip
    clock.now += DAY_SECONDS
    recipient.append(
        await legacy_client.create_recipient(
            email="bob@example.org", firstName="Bob", lastName="Ängström", referenceId="x-2",
            address=address | {"country": "DE", "city": "Köln"}, payout=german_payout,
        )
    )  # fmt: skip
    clock.now += DAY_SECONDS
    recipient.append(
        await legacy_client.create_recipient(
            email="cy@example.com", firstName="Anabel", lastName="Cy", address={"country": "FR"},
            payout=wallet_payout,
        )
    )  # fmt: skip
    clock.now += DAY_SECONDS
    business = {"type": "business", "name": "Zebra Ana & Co", "email": "dot@example.com"}
    recipient.append((await legacy_client.request_ok("POST", "/recipients", business))["recipient"])
    archived_recipient = await legacy_client.create_recipient(
        email="gone@example.com", address=address, payout=us_payout
    )
    await legacy_client.request_ok("DELETE", f"/recipients/{archived_recipient['id']}")
    return recipient


async def list_email_names(legacy_client, query, order="orderBy=createdAt&sortBy=asc"):
    body = await legacy_client.request_ok("GET", f"/recipients?{order}&{query}")
    assert body["meta"]["records"] >= len(body["recipients"])
    return [recipient["email"].partition("@")[0] for recipient in body["recipients"]]


async def test_list_has_full_recipients_newest_first(legacy_client, recipients):
    body = await legacy_client.request_ok("GET", "/recipients")
    assert body["recipients"] == recipients[::-1]
    assert body["meta"] == {"page": 1, "pages": 1, "records": 4}


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
async def test_parameters_filter_the_list(legacy_client, recipients, query, expected):
    assert await list_email_names(legacy_client, query) == expected


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
async def test_date_filters_use_creation_date(legacy_client, recipients, clock, query, expected):
    clock.now += DAY_SECONDS
    await legacy_client.request_ok(
        "PATCH", f"/recipients/{recipients[0]['id']}", {"language": "de"}
    )
    assert await list_email_names(legacy_client, query) == expected


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
async def test_order_is_configurable(legacy_client, recipients, order, expected):
    assert (await list_email_names(legacy_client, "", order))[: len(expected)] == expected


@pytest.mark.parametrize("name", sorted(SORT_KEYS))
async def test_every_order_runs_both_ways_with_ties_by_id(legacy_client, recipients, name):
    body = await legacy_client.request_ok("GET", f"/recipients?orderBy={name}&sortBy=asc")
    descending_body = await legacy_client.request_ok(
        "GET", f"/recipients?orderBy={name}&sortBy=desc"
    )
    assert {recipient["id"] for recipient in body["recipients"]} == {
        recipient["id"] for recipient in recipients
    }
    assert {recipient["id"] for recipient in descending_body["recipients"]} == {
        recipient["id"] for recipient in recipients
    }


async def test_equal_recipients_are_ordered_by_id(legacy_client):
    ids = sorted([(await legacy_client.create_recipient())["id"] for _ in range(5)])
    for direction in ("asc", "desc"):
        body = await legacy_client.request_ok(
            "GET", f"/recipients?orderBy=status&sortBy={direction}"
        )
        assert [recipient["id"] for recipient in body["recipients"]] == ids


async def test_status_filter_uses_shown_words(legacy_client, recipients):
    for recipient, status in zip(recipients, ("inactive", "disabled", "suspended"), strict=False):
        await legacy_client.request_ok(
            "PATCH", f"/recipients/{recipient['id']}", {"status": status}
        )
    assert await list_email_names(legacy_client, "status=inactive") == ["ana"]
    assert await list_email_names(legacy_client, "status=disabled") == ["bob"]
    assert await list_email_names(legacy_client, "status=suspended") == ["cy"]
    assert await list_email_names(legacy_client, "status=active") == []
    order = "orderBy=status&sortBy=asc"
    assert await list_email_names(legacy_client, "", order) == ["bob", "ana", "dot", "cy"]


async def test_pending_filter_includes_recipients_under_review(legacy_client, recipients):
    legacy_client.service.set_compliance(recipients[0]["id"], "review")
    legacy_client.service.set_compliance(recipients[1]["id"], "blocked")
    assert await list_email_names(legacy_client, "complianceStatus=pending") == ["ana", "cy", "dot"]
    assert await list_email_names(legacy_client, "complianceStatus=blocked") == ["bob"]


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
async def test_list_is_paged(legacy_client, recipients, query, page, emails):
    body = await legacy_client.request_ok(
        "GET", f"/recipients?orderBy=createdAt&sortBy=asc&{query}"
    )
    assert body["meta"] == page
    assert [recipient["email"].partition("@")[0] for recipient in body["recipients"]] == emails


async def test_seeded_recipients_are_all_readable_by_legacy_client(legacy_client):
    seeded_recipients = legacy_client.service.seed_recipients(600, 3)
    listed_ids = {recipient.id for recipient in seeded_recipients if not recipient.is_archived}
    body = await legacy_client.request_ok("GET", "/recipients?pageSize=1000")
    assert {recipient["id"] for recipient in body["recipients"]} == listed_ids
    methods = {recipient["payout"]["method"] for recipient in body["recipients"]}
    assert methods >= {None, "bank", "wallet", "mobile-wallet"}
