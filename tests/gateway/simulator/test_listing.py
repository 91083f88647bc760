import pytest


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
