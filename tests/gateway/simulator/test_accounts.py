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


async def test_iban_is_masked(client, recipient, german_bank):
    account = await client.create_account(recipient, **german_bank, swiftBic="cobadeff")
    assert (account["accountNum"], account["iban"]) == (None, "****00")


async def test_other_methods_have_their_own_fields(client, recipient, wallet):
    mailing_address = {
        "name": "Zoë Peña",
        "street1": "PO Box 7",
        "city": "Austin",
        "region": "TX",
        "country": "US",
        "postal": "73301-0001",
    }
    wallet = await client.create_account(recipient, **wallet)
    check = await client.create_account(recipient, type="check", mailing=mailing_address)
    mobile_wallet = await client.create_account(
        recipient, type="mobile-wallet", phone="+1 555 0100"
    )
    assert remove_fields(wallet, "recipientAccountId") == {
        "primary": True,
        "currency": "USD",
        "type": "wallet",
        "emailAddress": "zoe@example.org",
    }
    assert check["mailing"] == mailing_address
    assert mobile_wallet["phoneNumber"] == "+1 555 0100"


async def test_first_account_is_primary_and_only_one_is(
    client, recipient, accounts_path, us_bank, wallet
):
    async def list_primary_values():
        recipient_details = await client.read_recipient(recipient)
        types = [account["type"] for account in recipient_details["accounts"] if account["primary"]]
        return [*types, recipient_details["payoutMethod"], recipient_details["primaryCurrency"]]

    first = await client.create_account(recipient, **us_bank, primary=False)
    assert first["primary"] is True
    second = await client.create_account(recipient, **wallet, currency="EUR")
    assert second["primary"] is False
    assert await list_primary_values() == ["bank-transfer", "bank-transfer", "USD"]
    third = await client.create_account(recipient, **wallet, primary=True)
    assert third["primary"] is True
    assert await list_primary_values() == ["wallet", "wallet", "USD"]
    await client.call("PATCH", f"{accounts_path}/{second['recipientAccountId']}", {"primary": True})
    assert await list_primary_values() == ["wallet", "wallet", "EUR"]
    await client.call("PATCH", f"{accounts_path}/{first['recipientAccountId']}", {"primary": True})
    assert await list_primary_values() == ["bank-transfer", "bank-transfer", "USD"]


async def test_primary_account_cannot_be_demoted(client, recipient, accounts_path, wallet):
    account = await client.create_account(recipient, **wallet)
    target = f"{accounts_path}/{account['recipientAccountId']}"
    answer = await client.call("PATCH", target, {"primary": False})
    assert (answer.status, answer.errors) == (400, [("invalid_field", "primary")])
    answer = await client.call("PATCH", target, {"primary": "yes"})
    assert answer.errors == [("invalid_field", "primary")]


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


async def test_updated_account_is_validated_as_a_whole(client, recipient, accounts_path, us_bank):
    account = await client.create_account(recipient, **us_bank)
    target = f"{accounts_path}/{account['recipientAccountId']}"
    for body, error in [
        ({"accountNum": "****47"}, ("invalid_field", "accountNum")),
        ({"iban": "****00"}, ("invalid_field", "iban")),
        ({"branchId": None}, ("empty_field", "branchId")),
        ({"country": "AU"}, ("invalid_field", "branchId")),
        ({"country": "DE"}, ("empty_field", "iban")),
        ({"type": "wallet"}, ("invalid_field", "type")),
    ]:
        answer = await client.call("PATCH", target, body)
        assert (answer.status, answer.errors) == (400, [error])
    assert (await client.call("GET", target)).json["account"] == account
    body = {"country": "AU", "currency": "AUD", "branchId": "123456", "type": "bank-transfer"}
    assert (await client.call("PATCH", target, body)).json["account"]["currency"] == "AUD"
    assert (await client.read_recipient(recipient))["primaryCurrency"] == "AUD"


async def test_deleting_primary_account_promotes_another(
    client, recipient, accounts_path, us_bank, wallet
):
    first = await client.create_account(recipient, **us_bank)
    second = await client.create_account(recipient, **wallet, currency="EUR")
    answer = await client.call("DELETE", f"{accounts_path}/{first['recipientAccountId']}")
    assert (answer.status, answer.json) == (200, {"ok": True, "object": "deleted"})
    recipient_after = await client.read_recipient(recipient)
    assert recipient_after["accounts"] == [second | {"primary": True}]
    assert (recipient_after["payoutMethod"], recipient_after["primaryCurrency"]) == (
        "wallet",
        "EUR",
    )


async def test_recipient_without_account_is_incomplete(client, us_address, us_bank):
    recipient = await client.create_recipient(address=us_address, account=us_bank)
    assert recipient["status"] == "active"
    account = recipient["accounts"][0]["recipientAccountId"]
    await client.call("DELETE", f"/v1/recipients/{recipient['id']}/accounts/{account}")
    recipient_after = await client.read_recipient(recipient)
    assert (
        recipient_after["status"],
        recipient_after["accounts"],
        recipient_after["payoutMethod"],
    ) == ("incomplete", [], None)


async def test_account_belongs_to_one_recipient(client, recipient, wallet):
    account = await client.create_account(recipient, **wallet)
    other_recipient = await client.create_recipient()
    target = f"/v1/recipients/{other_recipient['id']}/accounts/{account['recipientAccountId']}"
    for method in ("GET", "PATCH", "DELETE"):
        assert (await client.call(method, target)).status == 404


async def test_account_change_updates_recipient_date(client, clock, recipient, wallet):
    clock.now += 60
    await client.create_account(recipient, **wallet)
    recipient_after = await client.read_recipient(recipient)
    assert recipient["updatedAt"] < recipient_after["updatedAt"]
    assert recipient["createdAt"] == recipient_after["createdAt"]


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
