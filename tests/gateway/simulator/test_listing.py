import itertools

import pytest

from gateway.simulator import ServiceOptions


async def list_recipients(client, query=""):
    answer = await client.call("GET", f"/v1/recipients{query}")
    assert answer.status == 200, answer.text
    return answer.json


async def list_email_names(client, query):
    """List the emails of the found recipients, without domain, in the answer's order."""
    answer = await list_recipients(client, f"?orderBy=createdAt&sortBy=asc&{query}")
    return [recipient["email"].split("@")[0] for recipient in answer["recipients"]]


@pytest.fixture
def account_sets(us_bank, german_bank, wallet):
    return [us_bank], [german_bank], [wallet, us_bank]


@pytest.fixture
async def recipients(client, clock, account_sets, us_address):
    """Four recipients, created a day apart from 2025-10-09 on."""
    day = 86_400
    recipient = [
        await client.create_recipient(
            email="ana@north.example.com",
            firstName="Ana",
            lastName="Müller",
            referenceId="X-1",
            address=us_address,
            accounts=account_sets[0],
        )
    ]
    clock.now += day
    recipient.append(
        await client.create_recipient(
            email="bob@example.org",
            firstName="Bob",
            lastName="Ängström",
            referenceId="x-2",
            address=us_address | {"country": "DE"},
            accounts=account_sets[1],
        )
    )
    clock.now += day
    recipient.append(
        await client.create_recipient(
            email="cy@example.com",
            firstName="Anabel",
            lastName="Cy",
            address={"country": "FR"},
            accounts=account_sets[2],
        )
    )
    clock.now += day
    business = {"type": "business", "name": "Zebra Ana & Co", "email": "dot@example.com"}
    answer = await client.call("POST", "/v1/recipients", business)
    recipient.append(answer.json["recipient"])
    clock.now += day
    return recipient


async def test_list_contains_full_recipients(client, recipients):
    answer = await list_recipients(client, "?orderBy=createdAt&sortBy=asc")
    assert answer["recipients"] == recipients
    assert answer["meta"] == {"page": 1, "pages": 1, "records": 4}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("search=ana", ["ana", "cy"]),
        ("search=ANA", ["ana", "cy"]),
        ("search=north", ["ana"]),
        ("search=example", ["bob", "cy", "dot"]),
        ("search=x-", ["ana", "bob"]),
        ("search=ze", ["dot"]),
        ("search=na", []),
        ("search=M%C3%BCller", []),
        ("name=m%C3%BCll", ["ana"]),
        ("name=ana", ["ana", "cy"]),
        ("name=bob%20%C3%A4ng", ["bob"]),
        ("name=x-", []),
        ("email=ana@north.example.com", ["ana"]),
        ("email=ana%40north.example.com", ["ana"]),
        ("email=ana", []),
        ("referenceId=X-1", ["ana"]),
        ("referenceId=X-", []),
        ("status=active", ["ana", "bob", "cy"]),
        ("status=incomplete", ["dot"]),
        ("status=suspended", []),
        ("country=US", ["ana"]),
        ("country=US,DE", ["ana", "bob"]),
        ("payoutMethod=wallet", ["cy"]),
        ("payoutMethod=check", []),
        ("payoutMethod=bank-transfer&currency=USD", ["ana"]),
        ("payoutMethod=bank-transfer&currency=EUR", ["bob"]),
        ("currency=USD", ["ana"]),
        ("country=US&status=incomplete", []),
        ("search=&status=&country=", ["ana", "bob", "cy", "dot"]),
        ("unknown=1&city=Austin", ["ana", "bob", "cy", "dot"]),
    ],
)
async def test_parameters_filter_the_list(client, recipients, query, expected):
    assert await list_email_names(client, query) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("startDate=2025-10-11T08:53:20.000Z", ["ana", "cy", "dot"]),
        ("startDate=2025-10-11T08:53:20.001Z", ["ana", "dot"]),
        ("endDate=2025-10-11T08:53:20Z", ["bob", "cy"]),
        ("endDate=2025-10-11T08:53:19.999Z", ["bob"]),
        ("startDate=2025-10-10&endDate=2025-10-12", ["bob", "cy"]),
        ("endDate=2025-10-09", []),
    ],
)
async def test_date_filters_use_update_date(client, recipients, query, expected):
    body = {"placeOfBirth": "Kraków"}
    await client.call("PATCH", f"/v1/recipients/{recipients[0]['id']}", body)
    assert await list_email_names(client, query) == expected


async def test_compliance_filter_has_no_review_status(client, recipients):
    for recipient, status in zip(
        recipients, ("pending", "review", "verified", "blocked"), strict=True
    ):
        client.service.set_compliance(recipient["id"], status)
    assert await list_email_names(client, "complianceStatus=pending") == ["ana"]
    assert await list_email_names(client, "complianceStatus=verified") == ["cy"]
    assert await list_email_names(client, "complianceStatus=blocked") == ["dot"]
    assert (await client.call("GET", "/v1/recipients?complianceStatus=review")).status == 400


@pytest.mark.parametrize(
    ("query", "errors"),
    [
        ("orderBy=status", [("invalid_field", "orderBy")]),
        ("orderBy=name,email", [("invalid_field", "orderBy")]),
        ("sortBy=up", [("invalid_field", "sortBy")]),
        ("payoutMethod=bank-transfer", [("empty_field", "currency")]),
        ("payoutMethod=bank", [("invalid_field", "payoutMethod")]),
        ("payoutMethod=mobile-wallet", [("invalid_field", "payoutMethod")]),
        ("currency=euro", [("invalid_field", "currency")]),
        ("country=USA", [("invalid_field", "country")]),
        ("country=US,", [("invalid_field", "country")]),
        ("status=inactive", [("invalid_field", "status")]),
        ("startDate=yesterday", [("invalid_field", "startDate")]),
        ("startDate=2025-02-30", [("invalid_field", "startDate")]),
        ("endDate=2025-10-10T00:00:00%2B02:00", [("invalid_field", "endDate")]),
        ("page=0", [("invalid_field", "page")]),
        ("pageSize=-1", [("invalid_field", "pageSize")]),
        (
            "page=x&pageSize=1.5&orderBy=id",
            [
                ("invalid_field", "page"),
                ("invalid_field", "pageSize"),
                ("invalid_field", "orderBy"),
            ],
        ),
    ],
)
async def test_invalid_query_is_refused(client, query, errors):
    answer = await client.call("GET", f"/v1/recipients?{query}")
    assert (answer.status, answer.errors) == (400, errors)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("name", ["ana", "cy", "bob", "dot"]),
        ("email", ["ana", "bob", "cy", "dot"]),
        ("referenceId", ["cy", "dot", "ana", "bob"]),
        ("payoutMethod", ["dot", "ana", "bob", "cy"]),
        ("createdAt", ["ana", "bob", "cy", "dot"]),
        ("updatedAt", ["bob", "cy", "dot", "ana"]),
    ],
)
async def test_list_has_six_orders_and_two_directions(client, recipients, order, expected):
    await client.call("PATCH", f"/v1/recipients/{recipients[0]['id']}", {"placeOfBirth": "Łódź"})

    async def in_order(query):
        answer = await list_recipients(client, f"?{query}")
        return [recipient["email"].split("@")[0] for recipient in answer["recipients"]]

    def ties_by_id(emails, key):
        """Equal recipients are in the order of their ids, in either direction."""
        ids = {name["email"].split("@")[0]: name["id"] for name in recipients}
        groups = [list(group) for _, group in itertools.groupby(emails, key)]
        return [name for group in groups for name in sorted(group, key=ids.__getitem__)]

    equal_values = {"cy": "", "dot": ""} if order == "referenceId" else {}
    equal_values = {"ana": "bank", "bob": "bank"} if order == "payoutMethod" else equal_values

    def key(email):
        return equal_values.get(email, email)

    assert await in_order(f"orderBy={order}&sortBy=asc") == ties_by_id(expected, key)
    descending = ties_by_id(expected[::-1], key)
    assert await in_order(f"orderBy={order}&sortBy=desc") == descending
    assert await in_order(f"orderBy={order}") == descending


async def test_default_order_is_last_updated_first(client, recipients):
    await client.call("PATCH", f"/v1/recipients/{recipients[0]['id']}", {"placeOfBirth": "Łódź"})
    answer = (await list_recipients(client))["recipients"]
    assert [recipient["id"] for recipient in answer] == [recipients[i]["id"] for i in (0, 3, 2, 1)]


async def test_default_page_size_is_ten(client):
    for number in range(23):
        await client.create_recipient(email=f"p{number:02d}@example.com")
    pages = [
        await list_recipients(client, f"?orderBy=email&sortBy=asc&page={n}") for n in (1, 2, 3, 4)
    ]
    assert [len(page["recipients"]) for page in pages] == [10, 10, 3, 0]
    assert [page["meta"] for page in pages] == [
        {"page": n, "pages": 3, "records": 23} for n in (1, 2, 3, 4)
    ]
    emails = [recipient["email"] for page in pages for recipient in page["recipients"]]
    assert emails == [f"p{number:02d}@example.com" for number in range(23)]
    assert (await list_recipients(client, "?pageSize=5"))["meta"]["pages"] == 5


async def test_page_size_is_limited(connect_client):
    client = await connect_client(options=ServiceOptions(max_page_size=2))
    for _ in range(3):
        await client.create_recipient()
    answer = await list_recipients(client, "?pageSize=1000")
    assert len(answer["recipients"]) == 2
    assert answer["meta"] == {"page": 1, "pages": 2, "records": 3}
