"""Payout methods on the legacy interface (sections 2 and 4.2)."""

import pytest

from gateway.simulator import ServiceOptions

USD = {"code": "USD", "name": "US Dollar"}
EUR = {"code": "EUR", "name": "Euro"}
HOLDUP = {"limit": 1000, "active": False}

IBANS = {"GB": "GB29NWBK60161331926819", "FR": "FR1420041010050500013M02606"}


@pytest.fixture
async def recipient_without_method(legacy_client, address):
    """A recipient without a payout method."""
    return await legacy_client.create_recipient(address=address)


def payout_path(recipient):
    return f"/recipients/{recipient['id']}/payout-methods"


def build_bank_payout(country, currency, /, **fields):
    accounts = {"bank": {"country": country, **fields}}
    return {"primary": {"method": "bank", "currency": currency}, "accounts": accounts}


async def read_payout(legacy_client, recipient):
    body = await legacy_client.request_ok("GET", payout_path(recipient))
    del body["ok"]
    return body


async def test_method_is_added_and_shown_as_documented(
    legacy_client, recipient_without_method, us_payout
):
    body = await legacy_client.request_ok("POST", payout_path(recipient_without_method), us_payout)
    assert list(body) == [
        "ok", "autoswitch", "holdup", "primary", "method", "methodDisplay", "accounts"
    ]  # fmt: skip
    assert (body["autoswitch"], body["holdup"]) == (HOLDUP, HOLDUP)
    assert body["primary"] == {"method": "bank", "currency": {**USD, "currency": USD}}
    assert (body["method"], body["methodDisplay"]) == ("bank", "Bank Transfer")
    account = body["accounts"]["bank"]
    assert list(account) == [
        "institution", "branch", "branchNum", "currency", "country", "name", "accountNum",
        "routing", "iban", "swiftBic", "bankAddress", "bankCity", "bankProvince",
        "bankPostalCode", "governmentId",
    ]  # fmt: skip
    assert account["name"] == "Zoë Peña"
    assert (account["accountNum"], account["routing"]) == ("****47", "021000021")
    assert (account["branch"], account["branchNum"]) == ("021000021", None)
    assert await read_payout(legacy_client, recipient_without_method) == {
        name: body[name] for name in body if name != "ok"
    }
    assert (await legacy_client.read_recipient(recipient_without_method))[
        "payout"
    ] == await read_payout(legacy_client, recipient_without_method)
    assert (await legacy_client.read_recipient(recipient_without_method))["status"] == "active"


async def test_wallet_is_an_address(legacy_client, recipient_without_method, wallet_payout):
    body = await legacy_client.request_ok(
        "POST", payout_path(recipient_without_method), wallet_payout
    )
    assert (body["method"], body["methodDisplay"]) == ("wallet", "Wallet")
    assert body["accounts"] == {"wallet": {"address": "zoe@example.org"}}


async def test_recipient_without_method_has_none_to_read(legacy_client, recipient_without_method):
    assert await legacy_client.request_refused("GET", payout_path(recipient_without_method)) == (
        404,
        [("not_found", None)],
    )


@pytest.mark.parametrize(
    ("country", "currency", "fields", "expected_fields"),
    [
        ("CA", "CAD", {"accountNum": "1234567", "institution": "003", "branchNum": "00012"},
         {"institution": "003", "branch": "00012", "branchNum": "00012", "routing": None}),
        ("AU", "AUD", {"accountNum": 1234567, "routing": "062-000"},
         {"branch": "062000", "branchNum": "062000", "routing": "062000"}),
        ("MX", "MXN", {"accountNum": "123456789012345678", "branchNum": "1"}, {"branch": None}),
        ("NZ", "NZD", {"accountNum": "1234567", "branchNum": "062000"}, {"branch": "062000"}),
        ("IN", "INR", {"accountNum": "1234567", "branchNum": "HRBR0123456"},
         {"branchNum": "HRBR0123456"}),
        ("GB", "GBP", {"iban": IBANS["GB"]}, {"branch": "601613", "iban": "****19"}),
        ("FRA", "EUR", {"iban": IBANS["FR"]}, {"country": "FR", "accountNum": None}),
        ("BR", "BRL", {"accountNum": "12345", "governmentId": "12345678901"},
         {"governmentId": "****01"}),
        ("JP", "JPY", {"accountNum": "12345", "bankRegion": "13", "bankCity": "東京"},
         {"bankProvince": "13", "bankCity": "東京"}),
        ("US", "USD", {"accountNum": "12345", "routing": "021000021", "bankProvince": "NY",
         "name": "Z. Peña", "governmentId": "123456789", "currency": "EUR"},
         {"bankProvince": "NY", "name": "Z. Peña", "governmentId": "****89", "currency": "EUR"}),
    ],
)  # fmt: skip
async def test_each_country_has_its_own_field_names(
    legacy_client, country, currency, fields, expected_fields
):
    recipient = await legacy_client.create_recipient()
    body = await legacy_client.request_ok(
        "POST", payout_path(recipient), build_bank_payout(country, currency, **fields)
    )
    account = body["accounts"]["bank"]
    assert {name: account[name] for name in expected_fields} == expected_fields


@pytest.mark.parametrize(
    ("body", "errors"),
    [
        ({}, [("empty_field", "primary.method")]),
        ({"primary": "bank"}, [("invalid_field", "primary")]),
        ({"accounts": {"bank": {"country": "JP", "accountNum": "12345"}}},
         [("empty_field", "primary.currency")]),
        (build_bank_payout("JP", "JPY", accountNum="12345", currency="yen!"),
         [("invalid_field", "accounts.bank.currency")]),
        (build_bank_payout("JP", "yen!", accountNum="12345"), [("invalid_field", "primary.currency")]),
        ({"accounts": {"wallet": {}}, "primary": {"method": "wallet"}},
         [("empty_field", "accounts.wallet.address")]),
        ({"primary": {"method": "check"}}, [("invalid_field", "primary.method")]),
        ({"primary": {"method": "bank"}}, [("empty_field", "accounts.bank")]),
        ({"primary": {"method": "wallet"}, "accounts": {"wallet": {"address": "me"}}},
         [("invalid_field", "accounts.wallet.address")]),
        ({"primary": {"method": "wallet"}, "accounts": {"wallet": {"address": "", "x": 1}}},
         [("empty_field", "accounts.wallet.address")]),
        (build_bank_payout("US", None, accountNum="12345"),
         [("empty_field", "primary.currency"), ("empty_field", "accounts.bank.routing")]),
        (build_bank_payout("US", "USD", accountNum="12345", routing="12"),
         [("invalid_field", "accounts.bank.routing")]),
        (build_bank_payout("US", "USD", accountNum="12345", branchNum="021000021"),
         [("empty_field", "accounts.bank.routing")]),
        (build_bank_payout("CA", "CAD", accountNum="12345"),
         [("empty_field", "accounts.bank.institution"),
          ("empty_field", "accounts.bank.branchNum")]),
        (build_bank_payout("AU", "AUD", accountNum="12345"), [("empty_field", "accounts.bank.branchNum")]),
        (build_bank_payout("AU", "AUD", accountNum="12345", routing="1"),
         [("invalid_field", "accounts.bank.routing")]),
        (build_bank_payout("DE", "EUR", iban="DE89370400440532013001"),
         [("invalid_field", "accounts.bank.iban")]),
        (build_bank_payout("JP", "JPY", accountNum="DE89370400440532013000"),
         [("invalid_field", "accounts.bank.accountNum")]),
        (build_bank_payout("JP", "JPY", accountNum="****47"), [("invalid_field", "accounts.bank.accountNum")]),
        (build_bank_payout("JP", "JPY", accountNum="12345", swiftBic="A", bankRegion=7.5),
         [("invalid_field", "accounts.bank.bankRegion"),
          ("invalid_field", "accounts.bank.swiftBic")]),
        (build_bank_payout("BR", "BRL", accountNum="12345"), [("empty_field", "accounts.bank.governmentId")]),
        (build_bank_payout("BR", "BRL", accountNum="12345", governmentId="1"),
         [("invalid_field", "accounts.bank.governmentId")]),
        (build_bank_payout("UZ", "UZS", accountNum="12345"),
         [("empty_field", "accounts.bank.swiftBic"),
          ("empty_field", "accounts.bank.bankAddress"),
          ("empty_field", "accounts.bank.bankCity")]),
        (build_bank_payout("XX", "USD", accountNum="12345"), [("invalid_field", "accounts.bank.country")]),
        ({"primary": {"method": "bank", "currency": "USD"}, "holdup": {"limit": "many"},
          "autoswitch": {"active": "perhaps"}, "accounts": {"bank": []}},
         [("invalid_field", "autoswitch.active"), ("invalid_field", "holdup.limit"),
          ("invalid_field", "accounts.bank")]),
    ],
)  # fmt: skip
async def test_errors_use_client_field_names(legacy_client, recipient_without_method, body, errors):
    assert await legacy_client.request_refused(
        "POST", payout_path(recipient_without_method), body
    ) == (
        406,
        errors,
    )
    assert (await legacy_client.client.read_recipient(recipient_without_method))["accounts"] == []


async def test_both_kinds_may_be_added_at_once(
    legacy_client, recipient_without_method, us_payout, wallet_payout
):
    us_payout["accounts"] |= wallet_payout["accounts"]
    us_payout["primary"]["method"] = "wallet"
    body = await legacy_client.request_ok("POST", payout_path(recipient_without_method), us_payout)
    assert body["method"] == "wallet"
    assert list(body["accounts"]) == ["bank", "wallet"]


@pytest.mark.parametrize("wallet", [{"address": None}, {"address": ""}, {}])
async def test_empty_account_counts_only_for_named_method(
    legacy_client, recipient_without_method, us_payout, wallet
):
    us_payout["accounts"]["wallet"] = wallet
    body = await legacy_client.request_ok("POST", payout_path(recipient_without_method), us_payout)
    assert list(body["accounts"]) == ["bank"]
    us_payout["primary"]["method"] = "wallet"
    errors = [("empty_field", "accounts.wallet.address")]
    assert await legacy_client.request_refused(
        "POST", payout_path(recipient_without_method), us_payout
    ) == (406, errors)


async def test_post_replaces_method_of_same_kind(legacy_client, payee):
    body = build_bank_payout("US", "USD", accountNum="9876543", routing="021000021")
    payout = await legacy_client.request_ok("POST", payout_path(payee), body)
    assert payout["accounts"]["bank"]["accountNum"] == "****43"
    (account,) = (await legacy_client.client.read_recipient(payee))["accounts"]
    assert (account["accountNum"], account["primary"]) == ("****43", True)


@pytest.mark.parametrize("currency", ["EUR", "USD"])
async def test_post_of_shown_account_creates_no_second_one(
    legacy_client, payee, wallet_payout, currency
):
    """The masked number identifies the account; other differing fields are changed in it."""
    await legacy_client.request_ok(
        "POST",
        payout_path(payee),
        build_bank_payout("GB", currency, accountNum="31926819", branchNum="601613"),
    )
    await legacy_client.request_ok("PATCH", payout_path(payee), wallet_payout)
    recipient, payout = (
        legacy_client.service.require_recipient(payee["id"]),
        await read_payout(legacy_client, payee),
    )
    ids = [account.id for account in recipient.accounts]
    assert await legacy_client.request_ok("POST", payout_path(payee), payout) == {
        "ok": True,
        **payout,
    }
    assert [account.id for account in recipient.accounts] == ids
    payout["accounts"]["bank"]["name"] = "Z. Peña"
    assert await legacy_client.request_ok("POST", payout_path(payee), payout) == {
        "ok": True,
        **payout,
    }
    bank_account = next(
        account for account in recipient.accounts if account.type == "bank-transfer"
    )
    assert (bank_account.fields["accountNum"], bank_account.fields["currency"]) == (
        "31926819",
        currency,
    )
    assert bank_account.fields["accountHolderName"] == "Z. Peña"


async def test_post_of_other_kind_keeps_existing_method(legacy_client, payee, wallet_payout):
    body = await legacy_client.request_ok("POST", payout_path(payee), wallet_payout)
    assert (body["method"], list(body["accounts"])) == ("wallet", ["bank", "wallet"])


async def test_patch_changes_only_named_fields(legacy_client, payee):
    payout_before = await read_payout(legacy_client, payee)
    body = {"accounts": {"bank": {"bankCity": "Boston", "accountNum": "****47"}}}
    assert await legacy_client.request_ok("PATCH", payout_path(payee), body) == {
        "ok": True,
        "object": "updated",
    }
    payout_after = await read_payout(legacy_client, payee)
    assert payout_after["accounts"]["bank"] == payout_before["accounts"]["bank"] | {
        "bankCity": "Boston"
    }
    account = (await legacy_client.client.read_recipient(payee))["accounts"][0]
    assert (
        legacy_client.service.require_recipient(payee["id"]).accounts[0].fields["accountNum"]
        == "0123456747"
    )
    assert account["recipientAccountId"].startswith("A-")


async def test_patch_makes_existing_method_primary(legacy_client, payee, wallet_payout):
    await legacy_client.request_ok("POST", payout_path(payee), wallet_payout)
    await legacy_client.request_ok(
        "PATCH", payout_path(payee), {"primary": {"method": "bank", "currency": "EUR"}}
    )
    payout_after = await read_payout(legacy_client, payee)
    assert payout_after["primary"] == {"method": "bank", "currency": {**EUR, "currency": EUR}}
    assert payout_after["accounts"]["bank"]["currency"] == "EUR"


async def test_patch_creates_missing_method(legacy_client, payee, wallet_payout):
    expected = (406, [("empty_field", "accounts.wallet")])
    body = {"primary": {"method": "wallet"}}
    assert await legacy_client.request_refused("PATCH", payout_path(payee), body) == expected
    await legacy_client.request_ok("PATCH", payout_path(payee), wallet_payout)
    assert (await read_payout(legacy_client, payee))["method"] == "wallet"


async def test_patch_of_secondary_method_keeps_primary(legacy_client, payee):
    body = {"accounts": {"wallet": {"address": "zoe@example.org"}}}
    await legacy_client.request_ok("PATCH", payout_path(payee), body)
    payout_after = await read_payout(legacy_client, payee)
    assert (payout_after["method"], list(payout_after["accounts"])) == ("bank", ["bank", "wallet"])


async def test_currency_alone_applies_to_primary_method(legacy_client, wallet_holder):
    await legacy_client.request_ok(
        "PATCH", payout_path(wallet_holder), {"primary": {"currency": "EUR"}}
    )
    assert (await legacy_client.read_recipient(wallet_holder))["primaryCurrency"] == "EUR"


async def test_other_country_creates_another_account(legacy_client, payee):
    body = {"accounts": {"bank": {"country": "DE", "accountNum": "****47"}}}
    assert await legacy_client.request_refused("PATCH", payout_path(payee), body) == (
        406,
        [
            ("empty_field", "primary.currency"),
            ("empty_field", "accounts.bank.iban"),
        ],
    )
    body = build_bank_payout("DE", "EUR", iban="DE89370400440532013000")
    del body["primary"]["method"]
    await legacy_client.request_ok("PATCH", payout_path(payee), body)
    payout_after = await read_payout(legacy_client, payee)
    assert (
        payout_after["accounts"]["bank"]["iban"],
        payout_after["accounts"]["bank"]["routing"],
    ) == (
        "****00",
        None,
    )
    (account,) = (await legacy_client.client.read_recipient(payee))["accounts"]
    assert account["primary"] is True


async def test_whole_payout_can_be_sent_back(legacy_client, payee, wallet_payout):
    await legacy_client.request_ok(
        "POST", payout_path(payee), wallet_payout | {"autoswitch": {"limit": 5, "active": True}}
    )
    full_payout = await read_payout(legacy_client, payee)
    await legacy_client.request_ok("PATCH", payout_path(payee), full_payout)
    assert await read_payout(legacy_client, payee) == full_payout


@pytest.mark.parametrize("name", ["autoswitch", "holdup"])
async def test_set_values_are_remembered(legacy_client, payee, name):
    await legacy_client.request_ok("PATCH", payout_path(payee), {name: {"active": "True"}})
    assert (await read_payout(legacy_client, payee))[name] == {"limit": 1000, "active": True}
    await legacy_client.request_ok(
        "PATCH", payout_path(payee), {name: {"limit": 20, "active": "False"}}
    )
    payout_after = await read_payout(legacy_client, payee)
    assert payout_after[name] == {"limit": 20, "active": False}
    other_name = {"autoswitch": "holdup", "holdup": "autoswitch"}[name]
    assert payout_after[other_name] == HOLDUP


async def test_government_id_replaces_the_one_of_same_country(
    legacy_client, recipient_without_method
):
    body = build_bank_payout("BR", "BRL", accountNum="12345", governmentId="12345678901")
    await legacy_client.request_ok("POST", payout_path(recipient_without_method), body)
    for value, expected_mask in (("****01", "****01"), ("98765432109", "****09")):
        await legacy_client.request_ok(
            "PATCH",
            payout_path(recipient_without_method),
            {"accounts": {"bank": {"governmentId": value}}},
        )
        assert (await read_payout(legacy_client, recipient_without_method))["accounts"]["bank"][
            "governmentId"
        ] == expected_mask
    masked_payout = {"accounts": {"bank": {"governmentId": "****77"}}}
    expected = (406, [("invalid_field", "accounts.bank.governmentId")])
    assert (
        await legacy_client.request_refused(
            "PATCH", payout_path(recipient_without_method), masked_payout
        )
        == expected
    )


async def test_methods_without_legacy_name_keep_their_own(legacy_client, recipient_without_method):
    account = {"type": "mobile-wallet", "phone": "+1 555 0100", "currency": "USD"}
    await legacy_client.client.create_account(recipient_without_method, **account)
    payout_after = await read_payout(legacy_client, recipient_without_method)
    assert (payout_after["method"], payout_after["methodDisplay"]) == (
        "mobile-wallet",
        "Mobile Wallet",
    )
    assert payout_after["accounts"] == {}
    await legacy_client.request_ok("PATCH", payout_path(recipient_without_method), payout_after)
    assert await read_payout(legacy_client, recipient_without_method) == payout_after


async def test_primary_or_last_of_several_accounts_is_shown(legacy_client, payee, us_bank):
    for number in ("1111111", "2222222"):
        await legacy_client.client.create_account(payee, **us_bank | {"accountNum": number})
    assert (await read_payout(legacy_client, payee))["accounts"]["bank"]["accountNum"] == "****47"
    await legacy_client.client.create_account(
        payee, type="wallet", emailAddress="a@example.com", primary=True
    )
    assert (await read_payout(legacy_client, payee))["accounts"]["bank"]["accountNum"] == "****22"


async def test_iban_suffices_if_current_interface_requires_more(
    connect_legacy_client, german_payout
):
    legacy_client = await connect_legacy_client(
        options=ServiceOptions(account_number_with_iban="required")
    )
    german_payout["accounts"]["bank"]["iban"] = "DE89 3704 0044 0532 0130 47"[:-2] + "00"
    recipient = await legacy_client.create_recipient(payout=german_payout)
    account = recipient["payout"]["accounts"]["bank"]
    assert (account["iban"], account["accountNum"]) == ("****00", "****00")
    stored_account = legacy_client.service.require_recipient(recipient["id"]).accounts[0]
    assert stored_account.fields["accountNum"] == "0532013000"


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH"])
async def test_unknown_recipient_is_404(legacy_client, us_payout, method):
    body = None if method == "GET" else us_payout
    path = "/recipients/R-unknown/payout-methods"
    assert await legacy_client.request_refused(method, path, body) == (404, [("not_found", None)])
