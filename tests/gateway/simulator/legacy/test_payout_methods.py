"""Payout methods on the legacy interface (sections 2 and 4.2)."""

import pytest

from gateway.simulator import ServiceOptions

USD = {"code": "USD", "name": "US Dollar"}
EUR = {"code": "EUR", "name": "Euro"}
HOLDUP = {"limit": 1000, "active": False}

IBANS = {"GB": "GB29NWBK60161331926819", "FR": "FR1420041010050500013M02606"}


@pytest.fixture
async def recipient_without_method(legacy, address):
    """A recipient without a payout method."""
    return await legacy.create_recipient(address=address)


def payout_path(recipient):
    return f"/recipients/{recipient['id']}/payout-methods"


def build_bank_payout(country, currency, /, **fields):
    accounts = {"bank": {"country": country, **fields}}
    return {"primary": {"method": "bank", "currency": currency}, "accounts": accounts}


async def read_payout(legacy, recipient):
    body = await legacy.request_ok("GET", payout_path(recipient))
    del body["ok"]
    return body


async def test_method_is_added_and_shown_as_documented(legacy, recipient_without_method, us_payout):
    body = await legacy.request_ok("POST", payout_path(recipient_without_method), us_payout)
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
    assert await read_payout(legacy, recipient_without_method) == {
        name: body[name] for name in body if name != "ok"
    }
    assert (await legacy.read_recipient(recipient_without_method))["payout"] == await read_payout(
        legacy, recipient_without_method
    )
    assert (await legacy.read_recipient(recipient_without_method))["status"] == "active"


async def test_wallet_is_an_address(legacy, recipient_without_method, wallet_payout):
    body = await legacy.request_ok("POST", payout_path(recipient_without_method), wallet_payout)
    assert (body["method"], body["methodDisplay"]) == ("wallet", "Wallet")
    assert body["accounts"] == {"wallet": {"address": "zoe@example.org"}}


async def test_recipient_without_method_has_none_to_read(legacy, recipient_without_method):
    assert await legacy.request_refused("GET", payout_path(recipient_without_method)) == (
        404,
        [("not_found", None)],
    )


@pytest.mark.parametrize(
    ("country", "currency", "fields", "as_shown"),
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
async def test_each_country_has_its_own_field_names(legacy, country, currency, fields, as_shown):
    bare = await legacy.create_recipient()
    body = await legacy.request_ok(
        "POST", payout_path(bare), build_bank_payout(country, currency, **fields)
    )
    account = body["accounts"]["bank"]
    assert {name: account[name] for name in as_shown} == as_shown


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
async def test_errors_use_client_field_names(legacy, recipient_without_method, body, errors):
    assert await legacy.request_refused("POST", payout_path(recipient_without_method), body) == (
        406,
        errors,
    )
    assert (await legacy.client.read_recipient(recipient_without_method))["accounts"] == []


async def test_both_kinds_may_be_added_at_once(
    legacy, recipient_without_method, us_payout, wallet_payout
):
    us_payout["accounts"] |= wallet_payout["accounts"]
    us_payout["primary"]["method"] = "wallet"
    body = await legacy.request_ok("POST", payout_path(recipient_without_method), us_payout)
    assert body["method"] == "wallet"
    assert list(body["accounts"]) == ["bank", "wallet"]


@pytest.mark.parametrize("wallet", [{"address": None}, {"address": ""}, {}])
async def test_empty_account_counts_only_for_named_method(
    legacy, recipient_without_method, us_payout, wallet
):
    us_payout["accounts"]["wallet"] = wallet
    body = await legacy.request_ok("POST", payout_path(recipient_without_method), us_payout)
    assert list(body["accounts"]) == ["bank"]
    us_payout["primary"]["method"] = "wallet"
    errors = [("empty_field", "accounts.wallet.address")]
    assert await legacy.request_refused(
        "POST", payout_path(recipient_without_method), us_payout
    ) == (406, errors)


async def test_post_replaces_method_of_same_kind(legacy, payee):
    body = build_bank_payout("US", "USD", accountNum="9876543", routing="021000021")
    got = await legacy.request_ok("POST", payout_path(payee), body)
    assert got["accounts"]["bank"]["accountNum"] == "****43"
    (account,) = (await legacy.client.read_recipient(payee))["accounts"]
    assert (account["accountNum"], account["primary"]) == ("****43", True)


@pytest.mark.parametrize("currency", ["EUR", "USD"])
async def test_post_of_shown_account_creates_no_second_one(legacy, payee, wallet_payout, currency):
    """The masked number identifies the account; other differing fields are changed in it."""
    await legacy.request_ok(
        "POST",
        payout_path(payee),
        build_bank_payout("GB", currency, accountNum="31926819", branchNum="601613"),
    )
    await legacy.request_ok("PATCH", payout_path(payee), wallet_payout)
    recipient, before = (
        legacy.service.require_recipient(payee["id"]),
        await read_payout(legacy, payee),
    )
    ids = [account.id for account in recipient.accounts]
    assert await legacy.request_ok("POST", payout_path(payee), before) == {"ok": True, **before}
    assert [account.id for account in recipient.accounts] == ids
    before["accounts"]["bank"]["name"] = "Z. Peña"
    assert await legacy.request_ok("POST", payout_path(payee), before) == {"ok": True, **before}
    held = next(account for account in recipient.accounts if account.type == "bank-transfer")
    assert (held.fields["accountNum"], held.fields["currency"]) == ("31926819", currency)
    assert held.fields["accountHolderName"] == "Z. Peña"


async def test_post_of_other_kind_keeps_existing_method(legacy, payee, wallet_payout):
    body = await legacy.request_ok("POST", payout_path(payee), wallet_payout)
    assert (body["method"], list(body["accounts"])) == ("wallet", ["bank", "wallet"])


async def test_patch_changes_only_named_fields(legacy, payee):
    before = await read_payout(legacy, payee)
    body = {"accounts": {"bank": {"bankCity": "Boston", "accountNum": "****47"}}}
    assert await legacy.request_ok("PATCH", payout_path(payee), body) == {
        "ok": True,
        "object": "updated",
    }
    after = await read_payout(legacy, payee)
    assert after["accounts"]["bank"] == before["accounts"]["bank"] | {"bankCity": "Boston"}
    account = (await legacy.client.read_recipient(payee))["accounts"][0]
    assert (
        legacy.service.require_recipient(payee["id"]).accounts[0].fields["accountNum"]
        == "0123456747"
    )
    assert account["recipientAccountId"].startswith("A-")


async def test_patch_makes_existing_method_primary(legacy, payee, wallet_payout):
    await legacy.request_ok("POST", payout_path(payee), wallet_payout)
    await legacy.request_ok(
        "PATCH", payout_path(payee), {"primary": {"method": "bank", "currency": "EUR"}}
    )
    after = await read_payout(legacy, payee)
    assert after["primary"] == {"method": "bank", "currency": {**EUR, "currency": EUR}}
    assert after["accounts"]["bank"]["currency"] == "EUR"


async def test_patch_creates_missing_method(legacy, payee, wallet_payout):
    expected = (406, [("empty_field", "accounts.wallet")])
    body = {"primary": {"method": "wallet"}}
    assert await legacy.request_refused("PATCH", payout_path(payee), body) == expected
    await legacy.request_ok("PATCH", payout_path(payee), wallet_payout)
    assert (await read_payout(legacy, payee))["method"] == "wallet"


async def test_patch_of_secondary_method_keeps_primary(legacy, payee):
    body = {"accounts": {"wallet": {"address": "zoe@example.org"}}}
    await legacy.request_ok("PATCH", payout_path(payee), body)
    after = await read_payout(legacy, payee)
    assert (after["method"], list(after["accounts"])) == ("bank", ["bank", "wallet"])


async def test_currency_alone_applies_to_primary_method(legacy, wallet_holder):
    await legacy.request_ok("PATCH", payout_path(wallet_holder), {"primary": {"currency": "EUR"}})
    assert (await legacy.read_recipient(wallet_holder))["primaryCurrency"] == "EUR"


async def test_other_country_creates_another_account(legacy, payee):
    body = {"accounts": {"bank": {"country": "DE", "accountNum": "****47"}}}
    assert await legacy.request_refused("PATCH", payout_path(payee), body) == (
        406,
        [
            ("empty_field", "primary.currency"),
            ("empty_field", "accounts.bank.iban"),
        ],
    )
    body = build_bank_payout("DE", "EUR", iban="DE89370400440532013000")
    del body["primary"]["method"]
    await legacy.request_ok("PATCH", payout_path(payee), body)
    after = await read_payout(legacy, payee)
    assert (after["accounts"]["bank"]["iban"], after["accounts"]["bank"]["routing"]) == (
        "****00",
        None,
    )
    (account,) = (await legacy.client.read_recipient(payee))["accounts"]
    assert account["primary"] is True


async def test_whole_payout_can_be_sent_back(legacy, payee, wallet_payout):
    await legacy.request_ok(
        "POST", payout_path(payee), wallet_payout | {"autoswitch": {"limit": 5, "active": True}}
    )
    whole = await read_payout(legacy, payee)
    await legacy.request_ok("PATCH", payout_path(payee), whole)
    assert await read_payout(legacy, payee) == whole


@pytest.mark.parametrize("name", ["autoswitch", "holdup"])
async def test_set_values_are_remembered(legacy, payee, name):
    await legacy.request_ok("PATCH", payout_path(payee), {name: {"active": "True"}})
    assert (await read_payout(legacy, payee))[name] == {"limit": 1000, "active": True}
    await legacy.request_ok("PATCH", payout_path(payee), {name: {"limit": 20, "active": "False"}})
    after = await read_payout(legacy, payee)
    assert after[name] == {"limit": 20, "active": False}
    other = {"autoswitch": "holdup", "holdup": "autoswitch"}[name]
    assert after[other] == HOLDUP


async def test_government_id_replaces_the_one_of_same_country(legacy, recipient_without_method):
    body = build_bank_payout("BR", "BRL", accountNum="12345", governmentId="12345678901")
    await legacy.request_ok("POST", payout_path(recipient_without_method), body)
    for value, seen in (("****01", "****01"), ("98765432109", "****09")):
        await legacy.request_ok(
            "PATCH",
            payout_path(recipient_without_method),
            {"accounts": {"bank": {"governmentId": value}}},
        )
        assert (await read_payout(legacy, recipient_without_method))["accounts"]["bank"][
            "governmentId"
        ] == seen
    masked = {"accounts": {"bank": {"governmentId": "****77"}}}
    expected = (406, [("invalid_field", "accounts.bank.governmentId")])
    assert (
        await legacy.request_refused("PATCH", payout_path(recipient_without_method), masked)
        == expected
    )


async def test_methods_without_legacy_name_keep_their_own(legacy, recipient_without_method):
    account = {"type": "mobile-wallet", "phone": "+1 555 0100", "currency": "USD"}
    await legacy.client.create_account(recipient_without_method, **account)
    after = await read_payout(legacy, recipient_without_method)
    assert (after["method"], after["methodDisplay"]) == ("mobile-wallet", "Mobile Wallet")
    assert after["accounts"] == {}
    await legacy.request_ok("PATCH", payout_path(recipient_without_method), after)
    assert await read_payout(legacy, recipient_without_method) == after


async def test_primary_or_last_of_several_accounts_is_shown(legacy, payee, us_bank):
    for number in ("1111111", "2222222"):
        await legacy.client.create_account(payee, **us_bank | {"accountNum": number})
    assert (await read_payout(legacy, payee))["accounts"]["bank"]["accountNum"] == "****47"
    await legacy.client.create_account(
        payee, type="wallet", emailAddress="a@example.com", primary=True
    )
    assert (await read_payout(legacy, payee))["accounts"]["bank"]["accountNum"] == "****22"


async def test_iban_suffices_if_current_interface_requires_more(connect_legacy, german_payout):
    legacy = await connect_legacy(options=ServiceOptions(account_number_with_iban="required"))
    german_payout["accounts"]["bank"]["iban"] = "DE89 3704 0044 0532 0130 47"[:-2] + "00"
    recipient = await legacy.create_recipient(payout=german_payout)
    account = recipient["payout"]["accounts"]["bank"]
    assert (account["iban"], account["accountNum"]) == ("****00", "****00")
    stored = legacy.service.require_recipient(recipient["id"]).accounts[0]
    assert stored.fields["accountNum"] == "0532013000"


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH"])
async def test_unknown_recipient_is_404(legacy, us_payout, method):
    body = None if method == "GET" else us_payout
    where = "/recipients/R-unknown/payout-methods"
    assert await legacy.request_refused(method, where, body) == (404, [("not_found", None)])
