import pytest


@pytest.fixture
async def recipient(client):
    return await client.create_recipient()


@pytest.fixture
async def accounts_path(recipient):
    return f"/v1/recipients/{recipient['id']}/accounts"


def remove_fields(account, *names):
    return {name: value for name, value in account.items() if name not in names}


async def test_update_creates_a_new_account_id(client, recipient, accounts_path, us_bank, wallet):
    account = await client.create_account(recipient, **us_bank)
    other_account = await client.create_account(recipient, **wallet)
    old_path = f"{accounts_path}/{account['recipientAccountId']}"
    answer = await client.call("PATCH", old_path, {"bankCity": "Ithaca", "bankRegion": "NY"})
    changed_account = answer.json["account"]
    assert changed_account["recipientAccountId"] != account["recipientAccountId"]
    assert remove_fields(changed_account, "recipientAccountId") == remove_fields(
        account, "recipientAccountId"
    ) | {
        "bankCity": "Ithaca",
        "bankRegionCode": "NY",
    }
    for method in ("GET", "PATCH", "DELETE"):
        answer = await client.call(method, old_path)
        assert (answer.status, answer.errors) == (404, [("not_found", None)])
    # It keeps its position, and the other account its id.
    assert (await client.read_recipient(recipient))["accounts"] == [changed_account, other_account]


@pytest.mark.parametrize(
    ("body", "errors"),
    [
        ({}, [("empty_field", "type")]),
        ({"type": "debit-card"}, [("invalid_field", "type")]),
        ({"type": ["wallet"]}, [("invalid_field", "type")]),
        ({"type": "wallet"}, [("empty_field", "emailAddress")]),
        ({"type": "wallet", "emailAddress": "me"}, [("invalid_field", "emailAddress")]),
        (
            {"type": "wallet", "emailAddress": "a@example.com", "currency": 1, "primary": "no"},
            [("invalid_field", "currency"), ("invalid_field", "primary")],
        ),
        ({"type": "mobile-wallet"}, [("empty_field", "phoneNumber")]),
        ({"type": "mobile-wallet", "phone": "x"}, [("invalid_field", "phoneNumber")]),
        ({"type": "check"}, [("empty_field", "mailing")]),
        ({"type": "check", "mailing": "home"}, [("invalid_field", "mailing")]),
        (
            {"type": "check", "mailing": {"country": "CA", "postal": "K1A 0B1", "city": 1}},
            [
                ("empty_field", "mailing.name"),
                ("empty_field", "mailing.street1"),
                ("empty_field", "mailing.region"),
                ("invalid_field", "mailing.city"),
                ("invalid_field", "mailing.country"),
                ("invalid_field", "mailing.postal"),
            ],
        ),
        (
            {"type": "bank-transfer"},
            [
                ("empty_field", "currency"),
                ("empty_field", "country"),
                ("empty_field", "accountHolderName"),
                ("empty_field", "accountNum"),
            ],
        ),
    ],
)
async def test_all_account_errors_are_listed(client, accounts_path, body, errors):
    answer = await client.call("POST", accounts_path, body)
    assert (answer.status, answer.errors) == (400, errors)


@pytest.mark.parametrize(
    ("changes", "errors"),
    [
        ({"accountNum": None}, [("empty_field", "accountNum")]),
        ({"accountNum": "****47"}, [("invalid_field", "accountNum")]),
        ({"accountNum": "DE89370400440532013000"}, [("invalid_field", "accountNum")]),
        ({"accountNum": 123456}, [("invalid_field", "accountNum")]),
        ({"branchId": ""}, [("empty_field", "branchId")]),
        ({"branchId": "02100002"}, [("invalid_field", "branchId")]),
        ({"branchId": "02100002\u0661"}, [("invalid_field", "branchId")]),
        ({"country": "USA"}, [("invalid_field", "country")]),
        ({"currency": "usd"}, [("invalid_field", "currency")]),
        ({"swiftBic": "ABCDUS3"}, [("invalid_field", "swiftBic")]),
        ({"swiftBic": "ABCDUS33X"}, [("invalid_field", "swiftBic")]),
        ({"country": "AU", "branchId": "1234567"}, [("invalid_field", "branchId")]),
        ({"country": "GB", "branchId": "12345"}, [("invalid_field", "branchId")]),
        ({"country": "NZ", "branchId": None}, [("empty_field", "branchId")]),
        ({"country": "IN", "branchId": "12345678901"}, [("invalid_field", "branchId")]),
        ({"country": "CA"}, [("empty_field", "bankId"), ("invalid_field", "branchId")]),
        (
            {"country": "CA", "bankId": "12", "branchId": "12345"},
            [("invalid_field", "bankId")],
        ),
        (
            {"country": "ET", "branchId": None},
            [
                ("empty_field", "swiftBic"),
                ("empty_field", "bankAddress"),
                ("empty_field", "bankCity"),
            ],
        ),
        ({"country": "DE"}, [("empty_field", "iban")]),
        ({"country": "DE", "iban": "DE89370400440532013001"}, [("invalid_field", "iban")]),
        ({"country": "DE", "iban": "DE8937040044053201300"}, [("invalid_field", "iban")]),
        ({"country": "DE", "iban": "****00"}, [("invalid_field", "iban")]),
    ],
)
async def test_bank_account_requires_fields_of_its_country(
    client, accounts_path, us_bank, changes, errors
):
    answer = await client.call("POST", accounts_path, us_bank | changes)
    assert (answer.status, answer.errors) == (400, errors)


@pytest.mark.parametrize(
    "changes",
    [
        {"country": "AU", "branchId": "123456"},
        {"country": "GB", "branchId": "123456"},
        {"country": "GB", "branchId": "123456", "iban": "GB82 WEST 1234 5698 7654 32"},
        {"country": "GB", "branchId": "123456", "accountNum": "", "iban": "GB82WEST12345698765432"},
        {"country": "NZ", "branchId": "123456"},
        {"country": "IN", "branchId": "HDFC0001234"},
        {"country": "CA", "bankId": "123", "branchId": "12345"},
        {"country": "MX", "branchId": None, "accountNum": "012180001234567891"},
        {"country": "DE", "iban": "DE89370400440532013000", "accountNum": "532013000"},
        {"country": "DE", "iban": "FR1420041010050500013M02606"},
        {"country": "ET", "swiftBic": "ABCDETAA", "bankAddress": "1 A", "bankCity": "B"},
    ],
)
async def test_bank_account_with_fields_of_its_country_is_accepted(
    client, recipient, us_bank, changes
):
    await client.create_account(recipient, **(us_bank | changes))


async def test_some_countries_require_government_id_first(client, us_bank):
    recipient = await client.create_recipient(
        address={"country": "CO", "street1": "1", "city": "B", "phone": "555123"}
    )
    path = f"/v1/recipients/{recipient['id']}"
    bank = remove_fields(us_bank | {"country": "CO", "currency": "COP"}, "branchId")
    answer = await client.call("POST", f"{path}/accounts", bank)
    assert (answer.status, answer.errors) == (400, [("empty_field", "governmentIds")])
    ids = [{"country": "CO", "type": "other", "value": "1234567890"}]
    await client.call("PATCH", path, {"governmentIds": ids})
    await client.create_account(recipient, **bank)
    assert (await client.read_recipient(recipient))["status"] == "active"
    answer = await client.call("PATCH", path, {"governmentIds": None})
    assert answer.json["recipient"]["status"] == "incomplete"
