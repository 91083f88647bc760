"""Sub-merchants: the operations of section 4.4 of the current interface."""

import pytest

from gateway.simulator import ServiceOptions

MERCHANT = {
    "name": "Atelier Ünlü",
    "currency": "EUR",
    "website": "https://atelier.example.com",
    "country": "FR",
}
ONBOARDING = {
    "businessLegalName": "Atelier Ünlü SARL",
    "businessPhone": "+33 1 55 01 00 00",
    "businessWebsite": "https://atelier.example.com",
    "businessCategory": "e-commerce",
    "businessCountry": "FR",
    "businessCity": "Nîmes",
    "businessAddress": "1 rue de l'Église",
    "businessRegion": "30",
    "businessTotalMonthly": "25000",
    "businessPpm": "40",
    "businessIntlPercentage": "75",
}
BANK_ACCOUNT = {
    "accountName": "Atelier",
    "currency": "CAD",
    "bankCountry": "CA",
    "branchId": "00012",
    "bankId": "003",
    "institution": "003",
    "transit": "00012",
    "accountNum": "123456747",
    "enabled": True,
}


async def create_submerchant(client, **fields):
    body = {"merchant": MERCHANT, "onboarding": ONBOARDING, **fields}
    answer = await client.call("POST", "/v1/profile/submerchant", body)
    assert answer.status == 200, answer.text
    return answer.json["merchant"]


def use_credentials_of(client, merchant):
    client.access_key, client.secret_key = merchant["accessKey"], merchant["secretKey"]


@pytest.fixture
async def submerchant(client):
    """Create a sub-merchant; from here on the client signs with its credentials."""
    merchant = await create_submerchant(client)
    use_credentials_of(client, merchant)
    return merchant


async def test_submerchant_is_a_merchant_with_its_own_credentials(client, us_address):
    parent_recipient = await client.create_recipient(address=us_address)
    submerchant = await create_submerchant(client)
    assert set(submerchant) == {"id", "accessKey", "secretKey"}
    use_credentials_of(client, submerchant)
    assert (await client.call("GET", "/v1/recipients")).json["meta"]["records"] == 0
    path = f"/v1/recipients/{parent_recipient['id']}"
    assert (await client.call("GET", path)).errors == [("not_found", None)]
    own_recipient = await client.create_recipient()
    assert (await client.call("GET", f"/v1/recipients/{own_recipient['id']}")).status == 200
    tenant = next(
        candidate
        for candidate in client.service.tenants.values()
        if own_recipient["id"] in candidate.recipients
    )
    assert (tenant.merchant_record.parent_id, tenant.merchant_record.name) == (
        "demo",
        "Atelier Ünlü",
    )
    assert tenant.merchant_record.status == "approved_by_partner"


async def test_submerchants_have_different_credentials(client):
    first, second = await create_submerchant(client), await create_submerchant(client)
    assert not set(first.values()) & set(second.values())


async def test_incomplete_onboarding_is_pending_and_refuses_nothing(client):
    use_credentials_of(
        client, await create_submerchant(client, onboarding={"businessCity": "Nîmes"})
    )
    assert (await client.call("GET", "/v1/recipients")).status == 200
    statuses = {
        merchant.name: merchant.status for merchant in client.service.merchants.by_tenant.values()
    }
    assert statuses["Atelier Ünlü"] == "pending"


@pytest.mark.parametrize(
    ("body", "errors"),
    [
        (
            {},
            [
                ("empty_field", "merchant.name"),
                ("empty_field", "merchant.currency"),
                ("empty_field", "merchant.website"),
                ("empty_field", "merchant.country"),
            ],
        ),
        ({"merchant": "Atelier"}, [("invalid_field", "merchant")]),
        (
            {
                "merchant": MERCHANT | {"currency": "euro", "website": "atelier", "country": "XX"},
                "onboarding": {
                    "businessCategory": "bakery",
                    "businessTotalMonthly": "a lot",
                    "businessPpm": 40,
                },
            },
            [
                ("invalid_field", "merchant.currency"),
                ("invalid_field", "merchant.website"),
                ("invalid_field", "merchant.country"),
                ("invalid_field", "onboarding.businessCategory"),
                ("invalid_field", "onboarding.businessTotalMonthly"),
                ("invalid_field", "onboarding.businessPpm"),
            ],
        ),
    ],
)
async def test_all_errors_of_a_submerchant_are_listed(client, body, errors):
    answer = await client.call("POST", "/v1/profile/submerchant", body)
    assert (answer.status, answer.errors) == (400, errors)


@pytest.mark.parametrize("path", ["/v1/profile/submerchant", "/v1/profile/sandbox"])
async def test_submerchant_cannot_create_submerchants(client, submerchant, path):
    answer = await client.call("POST", path, {"merchant": MERCHANT})
    assert (answer.status, answer.errors) == (403, [("not_authorized", None)])


async def test_partner_feature_can_be_disabled(connect_client):
    client = await connect_client(options=ServiceOptions(partner=False))
    answer = await client.call("POST", "/v1/profile/submerchant", {"merchant": MERCHANT})
    assert (answer.status, answer.errors) == (403, [("not_authorized", None)])


async def test_onboarding_is_updated_with_key_of_submerchant(client):
    body = {"businessTotalMonthly": "900.50", "businessPpm": "100-500"}
    answer = await client.call("POST", "/v1/onboarding/update", body)
    assert (answer.status, answer.errors) == (403, [("not_authorized", None)])
    use_credentials_of(client, await create_submerchant(client))
    assert (await client.call("POST", "/v1/onboarding/update", body)).json == {"ok": True}
    assert (await client.call("POST", "/v1/onboarding/update", {})).json == {"ok": True}
    answer = await client.call("POST", "/v1/onboarding/update", {"businessPpm": "40"})
    assert answer.errors == [("invalid_field", "businessPpm")]


async def test_onboarding_can_be_completed(client):
    onboarding = {name: value for name, value in ONBOARDING.items() if name != "businessPpm"}
    use_credentials_of(client, await create_submerchant(client, onboarding=onboarding))
    await client.call("POST", "/v1/onboarding/update", {"businessPpm": "less-10"})
    statuses = {value.name: value.status for value in client.service.merchants.by_tenant.values()}
    assert statuses["Atelier Ünlü"] == "approved_by_partner"


async def test_funding_memo_names_the_merchant(client, submerchant):
    answer = await client.call("GET", "/v1/balances/info")
    entries = answer.json["info"]
    assert set(entries[0]) == {
        "accountAddress", "accountCity", "accountCountryCode", "accountCurrency", "accountName",
        "accountNum", "accountPostalCode", "accountRegion", "bankAddress", "bankCity",
        "bankCountry", "bankCountryCode", "bankName", "bankPostalCode", "bankRegion",
        "institution", "referenceMemo", "routingNumber",
    }  # fmt: skip
    assert all(isinstance(value, str) for entry in entries for value in entry.values())
    memos = {entry["referenceMemo"] for entry in entries}
    client.access_key, client.secret_key = "SIMULATORACCESSKEY", "simulator-secret-key"
    parents = (await client.call("GET", "/v1/balances/info")).json["info"]
    assert len(memos) == 1
    assert not memos & {entry["referenceMemo"] for entry in parents}


async def test_sandbox_submerchant_has_keys_if_requested(client):
    answer = await client.call("POST", "/v1/profile/sandbox", {})
    assert set(answer.json["merchant"]) == {"id"}
    body = {"apikey": True, "merchant": {"name": "Trial"}}
    answer = await client.call("POST", "/v1/profile/sandbox", body)
    use_credentials_of(client, answer.json["merchant"])
    assert (await client.call("GET", "/v1/recipients")).status == 200
    names = {
        merchant.name: merchant.primary_currency
        for merchant in client.service.merchants.by_tenant.values()
        if merchant.parent_id == "demo"
    }
    assert names == {"demo": "USD", "Trial": "USD"}


async def test_sandbox_submerchant_is_deleted_with_its_keys(client):
    answer = await client.call("POST", "/v1/profile/sandbox", {"apikey": True})
    submerchant = answer.json["merchant"]
    assert (await client.call("DELETE", "/v1/profile/sandbox", {"id": submerchant["id"]})).json == {
        "ok": True
    }
    answer = await client.call("DELETE", "/v1/profile/sandbox", {"id": submerchant["id"]})
    assert (answer.status, answer.errors) == (403, [("invalid_field", "id")])
    use_credentials_of(client, submerchant)
    answer = await client.call("GET", "/v1/recipients")
    assert (answer.status, answer.errors) == (401, [("invalid_api_key", None)])


async def test_parent_can_delete_only_its_own_sandbox_submerchants(client):
    other_submerchant = await create_submerchant(client)
    for deletion in ({}, {"id": "1"}, {"id": other_submerchant["id"]}):
        answer = await client.call("DELETE", "/v1/profile/sandbox", deletion)
        assert (answer.status, answer.errors) == (403, [("invalid_field", "id")])


async def test_sandbox_arguments_may_be_in_query(client):
    answer = await client.call("POST", "/v1/profile/sandbox?apikey=true")
    submerchant = answer.json["merchant"]
    assert set(submerchant) == {"id", "accessKey", "secretKey"}
    answer = await client.call("DELETE", f"/v1/profile/sandbox?id={submerchant['id']}")
    assert answer.json == {"ok": True}


async def test_bank_account_is_masked(client, submerchant):
    path = "/v1/direct-debit/bank-account/"
    answer = await client.call("POST", path, BANK_ACCOUNT)
    bank_account = answer.json["merchantBankAccount"]
    assert list(bank_account) == [
        "currency", "accountName", "fileLink", "completed", "iban", "accountNum", "swiftBic",
        "branchId", "bankId", "bankName", "bankAddress", "bankCity", "bankPostalCode",
        "bankRegion", "country", "enabled",
    ]  # fmt: skip
    assert (bank_account["accountNum"], bank_account["country"], bank_account["enabled"]) == (
        "****47",
        "CA",
        True,
    )
    answer = await client.call("POST", path, BANK_ACCOUNT | {"enabled": False})
    assert answer.json["merchantBankAccount"]["enabled"] is False


async def test_bank_account_requires_all_fields_and_trailing_slash(client, submerchant):
    path = "/v1/direct-debit/bank-account/"
    body = BANK_ACCOUNT | {"transit": "12-3", "enabled": "yes"}
    del body["bankId"]
    answer = await client.call("POST", path, body)
    assert (answer.status, answer.errors) == (
        400,
        [("empty_field", "bankId"), ("invalid_field", "transit"), ("invalid_field", "enabled")],
    )
    assert (await client.call("POST", path.rstrip("/"), BANK_ACCOUNT)).status == 404


@pytest.mark.parametrize("color", ["#1a2B3c", "1a2b3c", "#fff", "FFF"])
async def test_widget_colors_have_three_or_six_hex_digits(client, submerchant, color):
    body = {"colors": {"primary": color, "inputText": color}}
    assert (await client.call("POST", "/v1/iframe/config", body)).json == {"ok": True}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, ("empty_field", "colors")),
        ({"colors": "#fff"}, ("invalid_field", "colors")),
        ({"colors": {"border": "#ffff"}}, ("invalid_field", "colors.border")),
        ({"colors": {"subText": "red"}}, ("invalid_field", "colors.subText")),
    ],
)
async def test_invalid_widget_colors_are_refused(client, submerchant, body, error):
    answer = await client.call("POST", "/v1/iframe/config", body)
    assert (answer.status, answer.errors) == (400, [error])
