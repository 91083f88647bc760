import pytest

RECIPIENT_BODY = {"type": "individual", "firstName": "A", "lastName": "B", "email": "a@example.com"}


def build_government_id(**fields):
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
        ({**RECIPIENT_BODY, "email": ""}, [("empty_field", "email")]),
        ({**RECIPIENT_BODY, "email": None}, [("empty_field", "email")]),
        (
            {"type": "robot", "email": "nobody"},
            [("invalid_field", "type"), ("invalid_field", "email")],
        ),
        ({**RECIPIENT_BODY, "firstName": 7}, [("invalid_field", "firstName")]),
        ({**RECIPIENT_BODY, "email": {}}, [("invalid_field", "email")]),
        ({**RECIPIENT_BODY, "dob": "1990-02-30"}, [("invalid_field", "dob")]),
        ({**RECIPIENT_BODY, "dob": "19900228"}, [("invalid_field", "dob")]),
        ({**RECIPIENT_BODY, "dob": 1990}, [("invalid_field", "dob")]),
        ({**RECIPIENT_BODY, "passport": "****47"}, [("invalid_field", "passport")]),
        ({**RECIPIENT_BODY, "phone": "call me"}, [("invalid_field", "phone")]),
        ({**RECIPIENT_BODY, "address": "here"}, [("invalid_field", "address")]),
        (
            {**RECIPIENT_BODY, "address": {"country": "USA", "city": 5, "street1": "P.O. Box 7"}},
            [
                ("invalid_field", "address.street1"),
                ("invalid_field", "address.city"),
                ("invalid_field", "address.country"),
            ],
        ),
        ({**RECIPIENT_BODY, "address": {"country": "us"}}, [("invalid_field", "address.country")]),
        ({**RECIPIENT_BODY, "address": {"phone": "?"}}, [("invalid_field", "address.phone")]),
        ({**RECIPIENT_BODY, "governmentIds": {}}, [("invalid_field", "governmentIds")]),
        ({**RECIPIENT_BODY, "governmentIds": ["1"]}, [("invalid_field", "governmentIds[0]")]),
        (
            {**RECIPIENT_BODY, "governmentIds": [{}]},
            [
                ("empty_field", "governmentIds[0].country"),
                ("empty_field", "governmentIds[0].type"),
                ("empty_field", "governmentIds[0].value"),
            ],
        ),
        (
            {**RECIPIENT_BODY, **build_government_id(country="XX", type=5, value=5)},
            [
                ("invalid_field", "governmentIds[0].country"),
                ("invalid_field", "governmentIds[0].type"),
                ("invalid_field", "governmentIds[0].value"),
            ],
        ),
        (
            {**RECIPIENT_BODY, **build_government_id(value="****01")},
            [("invalid_field", "governmentIds[0].value")],
        ),
    ],
)
async def test_all_errors_of_a_create_are_listed(client, body, errors):
    answer = await client.call("POST", "/v1/recipients", body)
    assert (answer.status, answer.errors) == (400, errors)
    assert (await client.call("GET", "/v1/recipients")).json["meta"]["records"] == 0


@pytest.mark.parametrize(
    ("country", "min_length", "max_length"),
    [
        ("AR", 11, 11), ("AZ", 10, 10), ("BR", 11, 11), ("CL", 9, 9), ("CO", 10, 10),
        ("CR", 9, 12), ("GT", 8, 12), ("KZ", 12, 12), ("PY", 6, 11),
    ],
)  # fmt: skip
async def test_government_ids_of_individuals_have_fixed_length(
    client, country, min_length, max_length
):
    for digits, status in [
        (min_length - 1, 400),
        (min_length, 200),
        (max_length, 200),
        (max_length + 1, 400),
    ]:
        body = RECIPIENT_BODY | build_government_id(country=country, value="1" * digits)
        answer = await client.call("POST", "/v1/recipients", body)
        assert answer.status == status, digits
        if status == 400:
            assert answer.errors == [("invalid_field", "governmentIds[0].value")]


@pytest.mark.parametrize(("country", "digits"), [("AR", 11), ("BR", 14)])
async def test_government_ids_of_businesses_have_fixed_length(client, country, digits):
    body = {"type": "business", "name": "Co", "email": "co@example.com"}
    for length_difference, status in [(-1, 400), (0, 200), (1, 400)]:
        value = "1" * (digits + length_difference)
        answer = await client.call(
            "POST", "/v1/recipients", body | build_government_id(country=country, value=value)
        )
        assert answer.status == status
    response = await client.call("POST", "/v1/recipients", body | build_government_id(country="CL"))
    assert response.status == 200


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
async def test_government_ids_may_contain_separators(client, fields, status):
    body = RECIPIENT_BODY | build_government_id(**fields)
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
        (build_government_id(value="****01"), ("invalid_field", "governmentIds[0].value")),
    ],
)
async def test_refused_update_changes_nothing(client, body, error):
    recipient = await client.create_recipient()
    answer = await client.call("PATCH", f"/v1/recipients/{recipient['id']}", {"dob": None, **body})
    assert (answer.status, answer.errors) == (400, [error])
    assert await client.read_recipient(recipient) == recipient


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'"text"', b"null", b"NaN", b"\xff", b'{"a":"\\ud800"}', b"[" * 100_000]
)
async def test_body_must_be_a_json_object(client, body):
    answer = await client.call("POST", "/v1/recipients", body)
    assert (answer.status, answer.errors) == (400, [("invalid_field", None)])
