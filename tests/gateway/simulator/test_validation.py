import pytest

from gateway.simulator import Switches

PERSON = {"type": "individual", "firstName": "A", "lastName": "B", "email": "a@example.com"}


def government_id(**fields):
    return {"governmentIds": [{"country": "BR", "type": "other", "value": "12345678901", **fields}]}


@pytest.mark.parametrize(
    ("body", "errors"),
    [
        ({}, [("empty_field", "type"), ("empty_field", "email")]),
        (
            {"type": "individual"},
            [("empty_field", "firstName"), ("empty_field", "lastName"), ("empty_field", "email")],
        ),
        ({"type": "business", "email": "a@example.com"}, [("empty_field", "name")]),
        ({**PERSON, "email": ""}, [("empty_field", "email")]),
        ({**PERSON, "email": None}, [("empty_field", "email")]),
        (
            {"type": "robot", "email": "nobody"},
            [("invalid_field", "type"), ("invalid_field", "email")],
        ),
        ({**PERSON, "firstName": 7}, [("invalid_field", "firstName")]),
        ({**PERSON, "email": {}}, [("invalid_field", "email")]),
        ({**PERSON, "dob": "1990-02-30"}, [("invalid_field", "dob")]),
        ({**PERSON, "dob": "19900228"}, [("invalid_field", "dob")]),
        ({**PERSON, "dob": 1990}, [("invalid_field", "dob")]),
        ({**PERSON, "passport": "****47"}, [("invalid_field", "passport")]),
        ({**PERSON, "phone": "call me"}, [("invalid_field", "phone")]),
        ({**PERSON, "address": "here"}, [("invalid_field", "address")]),
        (
            {**PERSON, "address": {"country": "USA", "city": 5, "street1": "P.O. Box 7"}},
            [
                ("invalid_field", "address.street1"),
                ("invalid_field", "address.city"),
                ("invalid_field", "address.country"),
            ],
        ),
        ({**PERSON, "address": {"country": "us"}}, [("invalid_field", "address.country")]),
        ({**PERSON, "address": {"phone": "?"}}, [("invalid_field", "address.phone")]),
        ({**PERSON, "governmentIds": {}}, [("invalid_field", "governmentIds")]),
        ({**PERSON, "governmentIds": ["1"]}, [("invalid_field", "governmentIds[0]")]),
        (
            {**PERSON, "governmentIds": [{}]},
            [
                ("empty_field", "governmentIds[0].country"),
                ("empty_field", "governmentIds[0].type"),
                ("empty_field", "governmentIds[0].value"),
            ],
        ),
        (
            {**PERSON, **government_id(country="XX", type=5, value=5)},
            [
                ("invalid_field", "governmentIds[0].country"),
                ("invalid_field", "governmentIds[0].type"),
                ("invalid_field", "governmentIds[0].value"),
            ],
        ),
        (
            {**PERSON, **government_id(value="****01")},
            [("invalid_field", "governmentIds[0].value")],
        ),
    ],
)
async def test_a_create_is_told_all_that_is_wrong(client, body, errors):
    answer = await client.call("POST", "/v1/recipients", body)
    assert (answer.status, answer.errors) == (400, errors)
    assert (await client.call("GET", "/v1/recipients")).json["meta"]["records"] == 0


@pytest.mark.parametrize(
    ("country", "least", "most"),
    [
        ("AR", 11, 11), ("AZ", 10, 10), ("BR", 11, 11), ("CL", 9, 9), ("CO", 10, 10),
        ("CR", 9, 12), ("GT", 8, 12), ("KZ", 12, 12), ("PY", 6, 11),
    ],
)  # fmt: skip
async def test_government_ids_of_individuals_have_their_digits(client, country, least, most):
    for digits, status in [(least - 1, 400), (least, 200), (most, 200), (most + 1, 400)]:
        body = PERSON | government_id(country=country, value="1" * digits)
        answer = await client.call("POST", "/v1/recipients", body)
        assert answer.status == status, digits
        if status == 400:
            assert answer.errors == [("invalid_field", "governmentIds[0].value")]


@pytest.mark.parametrize(("country", "digits"), [("AR", 11), ("BR", 14)])
async def test_government_ids_of_businesses_have_theirs(client, country, digits):
    body = {"type": "business", "name": "Co", "email": "co@example.com"}
    for wrong, status in [(-1, 400), (0, 200), (1, 400)]:
        value = "1" * (digits + wrong)
        answer = await client.call(
            "POST", "/v1/recipients", body | government_id(country=country, value=value)
        )
        assert answer.status == status
    free = await client.call("POST", "/v1/recipients", body | government_id(country="CL"))
    assert free.status == 200


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"value": "123.456.789-01"}, 200),
        ({"country": "CL", "value": "12.345.678-K"}, 200),
        ({"country": "US", "type": "SSN", "value": "123-45-6789"}, 200),
        ({"country": "US", "type": "SSN", "value": "12345678"}, 400),
        ({"type": "passport", "value": "AB1"}, 200),
        ({"country": "FR", "type": "tax-card", "value": "anything"}, 200),
    ],
)
async def test_government_ids_are_read_as_people_write_them(client, fields, status):
    body = PERSON | government_id(**fields)
    assert (await client.call("POST", "/v1/recipients", body)).status == status


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"email": ""}, ("empty_field", "email")),
        ({"firstName": None}, ("empty_field", "firstName")),
        ({"type": "business", "name": ""}, ("empty_field", "name")),
        ({"language": "english"}, ("invalid_field", "language")),
        ({"ssn": "****89"}, ("invalid_field", "ssn")),
        ({"primaryCurrency": "euro"}, ("invalid_field", "primaryCurrency")),
        ({"tags": "a"}, ("invalid_field", "tags")),
        ({"contactEmails": ["a"]}, ("invalid_field", "contactEmails")),
        (government_id(value="****01"), ("invalid_field", "governmentIds[0].value")),
    ],
)
async def test_an_update_is_checked_and_changes_nothing_when_refused(client, body, error):
    made = await client.create_recipient()
    answer = await client.call("PATCH", f"/v1/recipients/{made['id']}", {"dob": None, **body})
    assert (answer.status, answer.errors) == (400, [error])
    assert await client.read_recipient(made) == made


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'"text"', b"null", b"NaN", b"\xff", b'{"a":"\\ud800"}', b"[" * 100_000]
)
async def test_a_body_is_a_json_object(client, body):
    answer = await client.call("POST", "/v1/recipients", body)
    assert (answer.status, answer.errors) == (400, [("invalid_field", None)])


async def test_a_body_says_that_it_is_json(client):
    for kind, status in [("text/plain", 400), ("Application/JSON; charset=utf-8", 200)]:
        answer = await client.call("POST", "/v1/recipients", PERSON, headers={"Content-Type": kind})
        assert answer.status == status


async def test_validation_can_be_406(connect):
    client = await connect(switches=Switches(validation_status=406))
    made = await client.create_recipient()
    path = f"/v1/recipients/{made['id']}"
    assert (await client.call("POST", "/v1/recipients", {})).status == 406
    assert (await client.call("POST", f"{path}/accounts", {})).status == 406
    assert (await client.call("GET", "/v1/recipients/R-unknown")).status == 404
    await client.call("DELETE", path)
    assert (await client.call("POST", f"{path}/accounts", {})).errors[0][0] == "invalid_status"
    assert (await client.call("POST", f"{path}/accounts", {})).status == 400


JUNK = [
    None,
    True,
    0,
    -1,
    1.5,
    "",
    " ",
    "*",
    "\u0661",
    "x" * 5000,
    [],
    [None],
    ["1"],
    {},
    {"a": {}},
]
FIELDS = [
    "type", "name", "firstName", "lastName", "email", "referenceId", "passport", "dob", "phone",
    "status", "language", "placeOfBirth", "ssn", "primaryCurrency", "tags", "contactEmails",
    "address", "governmentIds", "account", "accounts",
]  # fmt: skip
ACCOUNT_FIELDS = [
    "type", "currency", "country", "accountHolderName", "accountNum", "iban", "swiftBic", "bankId",
    "branchId", "bankAddress", "bankCity", "bankRegion", "bankPostalCode", "primary",
    "emailAddress", "phone", "phoneNumber", "mailing",
]  # fmt: skip


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: repr(junk)[:20])
async def test_junk_is_never_an_internal_error(client, us_bank, junk):
    made = await client.create_recipient()
    path = f"/v1/recipients/{made['id']}"
    bank = us_bank | {"country": "CO"}
    ids = {"country": "CO", "type": "other", "value": "1"}
    writes = [
        ("POST", "/v1/recipients", {**PERSON, "account": bank, each: junk}) for each in FIELDS
    ]
    writes += [("PATCH", path, {each: junk}) for each in FIELDS]
    writes += [
        ("PATCH", path, {"governmentIds": [{**ids, each: junk}]}) for each in ("country", *ids)
    ]
    writes += [
        ("PATCH", path, {"address": {each: junk}}) for each in ("street1", "country", "phone")
    ]
    writes += [
        ("POST", f"{path}/accounts", {**us_bank, "type": kind, each: junk})
        for kind in ("bank-transfer", "wallet", "check", "mobile-wallet")
        for each in ACCOUNT_FIELDS
    ]
    writes += [
        ("POST", f"{path}/accounts", {"type": "check", "mailing": {each: junk}})
        for each in ("name", "country", "postal")
    ]
    for method, target, body in writes:
        answer = await client.call(method, target, body)
        assert answer.status in (200, 400), (method, target, body, answer.text)
    assert (await client.call("GET", "/v1/recipients?pageSize=1000")).status == 200
