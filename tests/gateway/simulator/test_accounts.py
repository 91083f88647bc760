import re

import pytest

from gateway.simulator import ServiceOptions

BANK_FIELDS = {
    "recipientAccountId", "primary", "currency", "type", "country", "accountHolderName",
    "accountNum", "iban", "swiftBic", "bankId", "branchId", "bankName", "bankAddress", "bankCity",
    "bankRegionCode", "bankPostalCode",
}  # fmt: skip


@pytest.fixture
async def recipient(client):
    return await client.create_recipient()


@pytest.fixture
async def accounts_path(recipient):
    return f"/v1/recipients/{recipient['id']}/accounts"


def remove_fields(account, *names):
    return {name: value for name, value in account.items() if name not in names}


async def test_bank_account_is_masked_and_has_bank_details(
    client, recipient, accounts_path, us_bank
):
    bank_fields = us_bank | {
        "bankRegion": "NY",
        "bankCity": "Ithaca",
        "bankName": "Mine",
        "odd": [1],
    }
    account = await client.create_account(recipient, **bank_fields)
    assert set(account) == BANK_FIELDS
    assert re.fullmatch(r"A-[A-Za-z0-9]{16}", account["recipientAccountId"])
    assert (account["accountNum"], account["iban"]) == ("****47", None)
    assert account["bankRegionCode"] == "NY"
    assert account["bankName"] not in (None, "", "Mine")
    assert account["primary"] is True
    response = await client.call("GET", f"{accounts_path}/{account['recipientAccountId']}")
    assert response.json == {"ok": True, "account": account}
    recipient_after = await client.read_recipient(recipient)
    assert recipient_after["accounts"] == [account]
    assert (recipient_after["payoutMethod"], recipient_after["primaryCurrency"]) == (
        "bank-transfer",
        "USD",
    )


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


async def test_account_number_can_be_required_with_iban(connect_client, german_bank):
    client = await connect_client(options=ServiceOptions(account_number_with_iban="required"))
    recipient = await client.create_recipient()
    path = f"/v1/recipients/{recipient['id']}/accounts"
    answer = await client.call("POST", path, german_bank)
    assert (answer.status, answer.errors) == (400, [("empty_field", "accountNum")])
    await client.create_account(recipient, **german_bank, accountNum="532013000")


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


async def test_recipient_without_government_id_can_stay_incomplete(connect_client, us_bank):
    client = await connect_client(options=ServiceOptions(missing_government_id="incomplete"))
    recipient = await client.create_recipient(
        address={"country": "CO", "street1": "1", "city": "B", "phone": "555123"}
    )
    bank = remove_fields(us_bank | {"country": "CO", "currency": "COP"}, "branchId")
    await client.create_account(recipient, **bank)
    assert (await client.read_recipient(recipient))["status"] == "incomplete"


@pytest.mark.parametrize(
    ("changes", "route", "expected_minimum"),
    [
        ({}, "ach", "1"),
        ({"country": "GB", "branchId": "123456", "currency": "GBP"}, "fps", "1"),
        ({"country": "DE", "iban": "DE89370400440532013000", "currency": "EUR"}, "sepa", "2"),
        ({"country": "CA", "bankId": "123", "branchId": "12345"}, "eft", "1"),
        ({"country": "MX", "currency": "MXN"}, "transfer", "5"),
        (
            {"country": "FJ", "swiftBic": "ABCDFJAA", "bankAddress": "1", "bankCity": "B"},
            "wire",
            "30",
        ),
    ],
)
async def test_route_depends_on_country_and_account(
    client, us_bank, changes, route, expected_minimum
):
    address = {"street1": "1 High Street", "city": "Austin", "country": "US", "phone": "555123"}
    recipient = await client.create_recipient(address=address, account=us_bank | changes)
    assert (recipient["routeType"], recipient["routeMinimum"]) == (route, expected_minimum)
    assert re.fullmatch(r"[0-9]+\.[0-9]{2}", recipient["estimatedFees"])
