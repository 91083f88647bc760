"""Payout methods on the legacy interface (sections 2 and 4.2)."""

import pytest

from gateway.simulator import Switches

USD = {"code": "USD", "name": "US Dollar"}
EUR = {"code": "EUR", "name": "Euro"}
HOLD = {"limit": 1000, "active": False}

IBANS = {"GB": "GB29NWBK60161331926819", "FR": "FR1420041010050500013M02606"}


@pytest.fixture
async def bare(legacy, address):
    """A recipient without a payout method."""
    return await legacy.create_recipient(address=address)


def path(recipient):
    return f"/recipients/{recipient['id']}/payout-methods"


def bank(country, currency, /, **fields):
    accounts = {"bank": {"country": country, **fields}}
    return {"primary": {"method": "bank", "currency": currency}, "accounts": accounts}


async def shown(legacy, recipient):
    got = await legacy.request_ok("GET", path(recipient))
    del got["ok"]
    return got


async def test_a_method_is_added_and_shown_as_the_document_has_it(legacy, bare, us):
    got = await legacy.request_ok("POST", path(bare), us)
    assert list(got) == [
        "ok", "autoswitch", "holdup", "primary", "method", "methodDisplay", "accounts"
    ]  # fmt: skip
    assert (got["autoswitch"], got["holdup"]) == (HOLD, HOLD)
    assert got["primary"] == {"method": "bank", "currency": {**USD, "currency": USD}}
    assert (got["method"], got["methodDisplay"]) == ("bank", "Bank Transfer")
    account = got["accounts"]["bank"]
    assert list(account) == [
        "institution", "branch", "branchNum", "currency", "country", "name", "accountNum",
        "routing", "iban", "swiftBic", "bankAddress", "bankCity", "bankProvince",
        "bankPostalCode", "governmentId",
    ]  # fmt: skip
    assert account["name"] == "Zoë Peña"
    assert (account["accountNum"], account["routing"]) == ("****47", "021000021")
    assert (account["branch"], account["branchNum"]) == ("021000021", None)
    assert await shown(legacy, bare) == {name: got[name] for name in got if name != "ok"}
    assert (await legacy.read_recipient(bare))["payout"] == await shown(legacy, bare)
    assert (await legacy.read_recipient(bare))["status"] == "active"


async def test_a_wallet_is_an_address(legacy, bare, purse):
    got = await legacy.request_ok("POST", path(bare), purse)
    assert (got["method"], got["methodDisplay"]) == ("wallet", "Wallet")
    assert got["accounts"] == {"wallet": {"address": "zoe@example.org"}}


async def test_without_a_method_there_is_nothing_to_read(legacy, bare):
    assert await legacy.request_refused("GET", path(bare)) == (404, [("not_found", None)])


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
async def test_each_country_has_its_own_words(legacy, country, currency, fields, as_shown):
    bare = await legacy.create_recipient()
    got = await legacy.request_ok("POST", path(bare), bank(country, currency, **fields))
    account = got["accounts"]["bank"]
    assert {name: account[name] for name in as_shown} == as_shown


@pytest.mark.parametrize(
    ("body", "errors"),
    [
        ({}, [("empty_field", "primary.method")]),
        ({"primary": "bank"}, [("invalid_field", "primary")]),
        ({"accounts": {"bank": {"country": "JP", "accountNum": "12345"}}},
         [("empty_field", "primary.currency")]),
        (bank("JP", "JPY", accountNum="12345", currency="yen!"),
         [("invalid_field", "accounts.bank.currency")]),
        (bank("JP", "yen!", accountNum="12345"), [("invalid_field", "primary.currency")]),
        ({"accounts": {"wallet": {}}, "primary": {"method": "wallet"}},
         [("empty_field", "accounts.wallet.address")]),
        ({"primary": {"method": "check"}}, [("invalid_field", "primary.method")]),
        ({"primary": {"method": "bank"}}, [("empty_field", "accounts.bank")]),
        ({"primary": {"method": "wallet"}, "accounts": {"wallet": {"address": "me"}}},
         [("invalid_field", "accounts.wallet.address")]),
        ({"primary": {"method": "wallet"}, "accounts": {"wallet": {"address": "", "x": 1}}},
         [("empty_field", "accounts.wallet.address")]),
        (bank("US", None, accountNum="12345"),
         [("empty_field", "primary.currency"), ("empty_field", "accounts.bank.routing")]),
        (bank("US", "USD", accountNum="12345", routing="12"),
         [("invalid_field", "accounts.bank.routing")]),
        (bank("US", "USD", accountNum="12345", branchNum="021000021"),
         [("empty_field", "accounts.bank.routing")]),
        (bank("CA", "CAD", accountNum="12345"),
         [("empty_field", "accounts.bank.institution"),
          ("empty_field", "accounts.bank.branchNum")]),
        (bank("AU", "AUD", accountNum="12345"), [("empty_field", "accounts.bank.branchNum")]),
        (bank("AU", "AUD", accountNum="12345", routing="1"),
         [("invalid_field", "accounts.bank.routing")]),
        (bank("DE", "EUR", iban="DE89370400440532013001"),
         [("invalid_field", "accounts.bank.iban")]),
        (bank("JP", "JPY", accountNum="DE89370400440532013000"),
         [("invalid_field", "accounts.bank.accountNum")]),
        (bank("JP", "JPY", accountNum="****47"), [("invalid_field", "accounts.bank.accountNum")]),
        (bank("JP", "JPY", accountNum="12345", swiftBic="A", bankRegion=7.5),
         [("invalid_field", "accounts.bank.bankRegion"),
          ("invalid_field", "accounts.bank.swiftBic")]),
        (bank("BR", "BRL", accountNum="12345"), [("empty_field", "accounts.bank.governmentId")]),
        (bank("BR", "BRL", accountNum="12345", governmentId="1"),
         [("invalid_field", "accounts.bank.governmentId")]),
        (bank("UZ", "UZS", accountNum="12345"),
         [("empty_field", "accounts.bank.swiftBic"),
          ("empty_field", "accounts.bank.bankAddress"),
          ("empty_field", "accounts.bank.bankCity")]),
        (bank("XX", "USD", accountNum="12345"), [("invalid_field", "accounts.bank.country")]),
        ({"primary": {"method": "bank", "currency": "USD"}, "holdup": {"limit": "many"},
          "autoswitch": {"active": "perhaps"}, "accounts": {"bank": []}},
         [("invalid_field", "autoswitch.active"), ("invalid_field", "holdup.limit"),
          ("invalid_field", "accounts.bank")]),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_told_in_the_clients_words(legacy, bare, body, errors):
    assert await legacy.request_refused("POST", path(bare), body) == (406, errors)
    assert (await legacy.client.read_recipient(bare))["accounts"] == []


async def test_both_kinds_may_be_added_at_once(legacy, bare, us, purse):
    us["accounts"] |= purse["accounts"]
    us["primary"]["method"] = "wallet"
    got = await legacy.request_ok("POST", path(bare), us)
    assert got["method"] == "wallet"
    assert list(got["accounts"]) == ["bank", "wallet"]


@pytest.mark.parametrize("wallet", [{"address": None}, {"address": ""}, {}])
async def test_an_account_of_nothing_is_none_but_for_the_method_that_is_named(
    legacy, bare, us, wallet
):
    us["accounts"]["wallet"] = wallet
    got = await legacy.request_ok("POST", path(bare), us)
    assert list(got["accounts"]) == ["bank"]
    us["primary"]["method"] = "wallet"
    errors = [("empty_field", "accounts.wallet.address")]
    assert await legacy.request_refused("POST", path(bare), us) == (406, errors)


async def test_a_post_of_a_kind_takes_the_place_of_the_one_before(legacy, payee):
    body = bank("US", "USD", accountNum="9876543", routing="021000021")
    got = await legacy.request_ok("POST", path(payee), body)
    assert got["accounts"]["bank"]["accountNum"] == "****43"
    (account,) = (await legacy.client.read_recipient(payee))["accounts"]
    assert (account["accountNum"], account["primary"]) == ("****43", True)


@pytest.mark.parametrize("currency", ["EUR", "USD"])
async def test_a_post_of_the_account_that_was_shown_makes_no_second_one(
    legacy, payee, purse, currency
):
    """The masked number identifies the account; other differing fields are changed in it."""
    await legacy.request_ok(
        "POST", path(payee), bank("GB", currency, accountNum="31926819", branchNum="601613")
    )
    await legacy.request_ok("PATCH", path(payee), purse)
    recipient, before = legacy.service.recipient(payee["id"]), await shown(legacy, payee)
    ids = [one.id for one in recipient.accounts]
    assert await legacy.request_ok("POST", path(payee), before) == {"ok": True, **before}
    assert [one.id for one in recipient.accounts] == ids
    before["accounts"]["bank"]["name"] = "Z. Peña"
    assert await legacy.request_ok("POST", path(payee), before) == {"ok": True, **before}
    held = next(one for one in recipient.accounts if one.type == "bank-transfer")
    assert (held.fields["accountNum"], held.fields["currency"]) == ("31926819", currency)
    assert held.fields["accountHolderName"] == "Z. Peña"


async def test_a_post_of_another_kind_leaves_the_one_before(legacy, payee, purse):
    got = await legacy.request_ok("POST", path(payee), purse)
    assert (got["method"], list(got["accounts"])) == ("wallet", ["bank", "wallet"])


async def test_a_patch_changes_what_it_names(legacy, payee):
    before = await shown(legacy, payee)
    body = {"accounts": {"bank": {"bankCity": "Boston", "accountNum": "****47"}}}
    assert await legacy.request_ok("PATCH", path(payee), body) == {"ok": True, "object": "updated"}
    after = await shown(legacy, payee)
    assert after["accounts"]["bank"] == before["accounts"]["bank"] | {"bankCity": "Boston"}
    account = (await legacy.client.read_recipient(payee))["accounts"][0]
    assert legacy.service.recipient(payee["id"]).accounts[0].fields["accountNum"] == "0123456747"
    assert account["recipientAccountId"].startswith("A-")


async def test_a_patch_makes_a_method_primary_that_is_there(legacy, payee, purse):
    await legacy.request_ok("POST", path(payee), purse)
    await legacy.request_ok(
        "PATCH", path(payee), {"primary": {"method": "bank", "currency": "EUR"}}
    )
    after = await shown(legacy, payee)
    assert after["primary"] == {"method": "bank", "currency": {**EUR, "currency": EUR}}
    assert after["accounts"]["bank"]["currency"] == "EUR"


async def test_a_patch_makes_a_method_that_is_not_there(legacy, payee, purse):
    expected = (406, [("empty_field", "accounts.wallet")])
    body = {"primary": {"method": "wallet"}}
    assert await legacy.request_refused("PATCH", path(payee), body) == expected
    await legacy.request_ok("PATCH", path(payee), purse)
    assert (await shown(legacy, payee))["method"] == "wallet"


async def test_a_patch_of_a_method_that_is_not_primary_leaves_the_primary_one(legacy, payee):
    body = {"accounts": {"wallet": {"address": "zoe@example.org"}}}
    await legacy.request_ok("PATCH", path(payee), body)
    after = await shown(legacy, payee)
    assert (after["method"], list(after["accounts"])) == ("bank", ["bank", "wallet"])


async def test_a_currency_alone_is_the_primary_methods(legacy, wallet_holder):
    await legacy.request_ok("PATCH", path(wallet_holder), {"primary": {"currency": "EUR"}})
    assert (await legacy.read_recipient(wallet_holder))["primaryCurrency"] == "EUR"


async def test_another_country_makes_another_account(legacy, payee):
    body = {"accounts": {"bank": {"country": "DE", "accountNum": "****47"}}}
    assert await legacy.request_refused("PATCH", path(payee), body) == (
        406,
        [
            ("empty_field", "primary.currency"),
            ("empty_field", "accounts.bank.iban"),
        ],
    )
    body = bank("DE", "EUR", iban="DE89370400440532013000")
    del body["primary"]["method"]
    await legacy.request_ok("PATCH", path(payee), body)
    after = await shown(legacy, payee)
    assert (after["accounts"]["bank"]["iban"], after["accounts"]["bank"]["routing"]) == (
        "****00",
        None,
    )
    (account,) = (await legacy.client.read_recipient(payee))["accounts"]
    assert account["primary"] is True


async def test_a_whole_payout_may_be_sent_back(legacy, payee, purse):
    await legacy.request_ok(
        "POST", path(payee), purse | {"autoswitch": {"limit": 5, "active": True}}
    )
    whole = await shown(legacy, payee)
    await legacy.request_ok("PATCH", path(payee), whole)
    assert await shown(legacy, payee) == whole


@pytest.mark.parametrize("name", ["autoswitch", "holdup"])
async def test_what_was_set_is_remembered(legacy, payee, name):
    await legacy.request_ok("PATCH", path(payee), {name: {"active": "True"}})
    assert (await shown(legacy, payee))[name] == {"limit": 1000, "active": True}
    await legacy.request_ok("PATCH", path(payee), {name: {"limit": 20, "active": "False"}})
    after = await shown(legacy, payee)
    assert after[name] == {"limit": 20, "active": False}
    other = {"autoswitch": "holdup", "holdup": "autoswitch"}[name]
    assert after[other] == HOLD


async def test_a_government_id_takes_the_place_of_that_countrys(legacy, bare):
    body = bank("BR", "BRL", accountNum="12345", governmentId="12345678901")
    await legacy.request_ok("POST", path(bare), body)
    for value, seen in (("****01", "****01"), ("98765432109", "****09")):
        await legacy.request_ok(
            "PATCH", path(bare), {"accounts": {"bank": {"governmentId": value}}}
        )
        assert (await shown(legacy, bare))["accounts"]["bank"]["governmentId"] == seen
    masked = {"accounts": {"bank": {"governmentId": "****77"}}}
    expected = (406, [("invalid_field", "accounts.bank.governmentId")])
    assert await legacy.request_refused("PATCH", path(bare), masked) == expected


async def test_methods_without_a_legacy_word_keep_their_own(legacy, bare):
    account = {"type": "mobile-wallet", "phone": "+1 555 0100", "currency": "USD"}
    await legacy.client.create_account(bare, **account)
    after = await shown(legacy, bare)
    assert (after["method"], after["methodDisplay"]) == ("mobile-wallet", "Mobile Wallet")
    assert after["accounts"] == {}
    await legacy.request_ok("PATCH", path(bare), after)
    assert await shown(legacy, bare) == after


async def test_of_several_accounts_the_primary_one_is_shown_or_the_last(legacy, payee, us_bank):
    for number in ("1111111", "2222222"):
        await legacy.client.create_account(payee, **us_bank | {"accountNum": number})
    assert (await shown(legacy, payee))["accounts"]["bank"]["accountNum"] == "****47"
    await legacy.client.create_account(
        payee, type="wallet", emailAddress="a@example.com", primary=True
    )
    assert (await shown(legacy, payee))["accounts"]["bank"]["accountNum"] == "****22"


async def test_an_iban_is_enough_where_the_current_face_asks_for_more(connect_legacy, germany):
    legacy = await connect_legacy(switches=Switches(account_number_with_iban="required"))
    germany["accounts"]["bank"]["iban"] = "DE89 3704 0044 0532 0130 47"[:-2] + "00"
    made = await legacy.create_recipient(payout=germany)
    account = made["payout"]["accounts"]["bank"]
    assert (account["iban"], account["accountNum"]) == ("****00", "****00")
    stored = legacy.service.recipient(made["id"]).accounts[0]
    assert stored.fields["accountNum"] == "0532013000"


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH"])
async def test_an_unknown_recipient_is_404(legacy, us, method):
    body = None if method == "GET" else us
    where = "/recipients/R-unknown/payout-methods"
    assert await legacy.request_refused(method, where, body) == (404, [("not_found", None)])
