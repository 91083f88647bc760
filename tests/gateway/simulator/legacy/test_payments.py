"""Payments, balances and countries on the legacy interface (sections 4.4 to 4.6)."""

import re

import pytest

FIELDS = [
    "id", "recipient", "status", "sourceAmount", "targetAmount", "exchangeRate", "fxRate", "fees",
    "recipientFees", "merchantFees", "memo", "sourceCurrency", "sourceCurrencyName",
    "targetCurrency", "targetCurrencyName", "compliance", "processedAt", "createdAt",
    "updatedAt", "batch",
]  # fmt: skip


@pytest.fixture
async def batch(legacy):
    return await legacy.create_batch()


@pytest.fixture
async def payment(legacy, batch, payee):
    body = legacy.build_payment(payee, "12.50", memo="first")
    return (await legacy.request_ok("POST", f"/batches/{batch['id']}/payments", body))["payment"]


@pytest.fixture
def path(batch, payment):
    return f"/batches/{batch['id']}/payments/{payment['id']}"


async def test_a_payment_is_added_with_the_full_recipient(legacy, batch, payment, path, payee):
    assert list(payment) == FIELDS
    assert re.fullmatch(r"P-[A-Z0-9]{16}", payment["id"])
    assert payment["recipient"] == payee
    assert (payment["sourceAmount"], payment["targetAmount"]) == ("12.50", "12.50")
    assert (payment["status"], payment["memo"]) == ("pending", "first")
    assert payment["batch"]["id"] == batch["id"]
    assert (await legacy.request_ok("GET", path))["payment"] == payment
    assert (await legacy.request_ok("GET", f"/payments/{payment['id']}"))["payment"] == payment


@pytest.mark.parametrize(
    ("changed", "errors"),
    [
        ({"sourceAmount": "1.5"}, [("invalid_field", "sourceAmount")]),
        ({"sourceAmount": None}, [("empty_field", "sourceAmount")]),
        ({"sourceCurrency": "EUR"}, [("invalid_field", "sourceCurrency")]),
        ({"recipient": None}, [("empty_field", "recipient.id")]),
        ({"recipient": {"id": "R-unknown"}}, [("invalid_field", "recipient.id")]),
    ],
)
async def test_what_is_wrong_with_a_payment_is_told(legacy, batch, payee, changed, errors):
    body = legacy.build_payment(payee) | changed
    where = f"/batches/{batch['id']}/payments"
    assert await legacy.request_refused("POST", where, body) == (406, errors)
    assert await legacy.list_payments(batch) == []


async def test_an_amount_too_small_for_who_was_looked_up_is_refused(legacy, batch, payee):
    body = {"recipient": {"email": payee["email"]}, "sourceAmount": "0.99"}
    where = f"/batches/{batch['id']}/payments"
    expected = (406, [("invalid_field", "sourceAmount")])
    assert await legacy.request_refused("POST", where, body) == expected


async def test_what_is_nothing_in_the_other_currency_is_refused(legacy, german):
    made = await legacy.create_batch(sourceCurrency="JPY")
    where = f"/batches/{made['id']}/payments"
    body = {"recipient": {"id": german["id"]}, "targetAmount": "0.01", "targetCurrency": "VND"}
    assert await legacy.request_refused("POST", where, body) == (
        406,
        [("invalid_field", "targetAmount")],
    )


async def test_a_payment_is_changed(legacy, clock, path):
    clock.now += 5
    got = await legacy.request("PATCH", path, {"sourceAmount": 7, "recipient": {"id": "R-other"}})
    assert got.text == '{"ok":true,"object":"updated"}'
    after = (await legacy.request_ok("GET", path))["payment"]
    assert (after["sourceAmount"], after["memo"]) == ("7.00", "first")
    assert after["updatedAt"] > after["createdAt"]
    await legacy.request_ok("PATCH", path, {"memo": "second"})
    assert (await legacy.request_ok("GET", path))["payment"]["memo"] == "second"
    await legacy.request_ok("PATCH", path, {"targetAmount": "4.60", "targetCurrency": "EUR"})
    after = (await legacy.request_ok("GET", path))["payment"]
    assert (after["sourceAmount"], after["targetCurrency"]) == ("5.00", "EUR")


async def test_a_wrong_change_is_refused(legacy, path):
    for body, error in [
        ({"targetAmount": "1"}, ("empty_field", "targetCurrency")),
        ({"sourceAmount": "1", "targetAmount": "1"}, ("invalid_field", "targetAmount")),
        ({"sourceAmount": "0"}, ("invalid_field", "sourceAmount")),
    ]:
        assert await legacy.request_refused("PATCH", path, body) == (406, [error])


async def test_a_payment_is_deleted(legacy, batch, path):
    got = await legacy.request("DELETE", path)
    assert got.text == '{"ok":true,"object":"deleted"}'
    assert await legacy.request_refused("GET", path) == (404, [("not_found", None)])
    assert await legacy.list_payments(batch) == []


async def test_a_payment_of_another_batch_is_404(legacy, payment):
    other = await legacy.create_batch()
    for method in ("GET", "PATCH", "DELETE"):
        where = f"/batches/{other['id']}/payments/{payment['id']}"
        body = {} if method == "PATCH" else None
        assert await legacy.request_refused(method, where, body) == (404, [("not_found", None)])
    assert await legacy.request_refused("GET", "/payments/P-unknown") == (
        404,
        [("not_found", None)],
    )


async def test_a_started_batchs_payments_stay(legacy, batch, path):
    await legacy.request_ok("POST", f"/batches/{batch['id']}/start-processing")
    for method in ("PATCH", "DELETE"):
        assert await legacy.request_refused(method, path, {}) == (406, [("invalid_status", None)])


@pytest.mark.parametrize(
    ("query", "memos"),
    [
        ("", ["first", "second"]),
        ("search=SECOND", ["second"]),
        ("search=german%40", ["second"]),
        ("search=pe%C3%B1a", ["first", "second"]),
        ("search=nobody", []),
        ("page=2&pageSize=1", ["second"]),
    ],
)
@pytest.mark.usefixtures("payment")
async def test_a_batchs_payments_are_paged_and_searched(legacy, batch, german, query, memos):
    body = legacy.build_payment(german, memo="second")
    await legacy.request_ok("POST", f"/batches/{batch['id']}/payments", body)
    got = await legacy.request_ok("GET", f"/batches/{batch['id']}/payments?{query}")
    assert [each["memo"] for each in got["payments"]] == memos
    found = await legacy.request_ok("GET", f"/payments?{query}")
    expected = memos if "page" not in query else ["first"]
    assert sorted(each["memo"] for each in found["payments"]) == expected


async def test_a_payment_is_found_by_its_id(legacy, batch, payment, german):
    where = f"/batches/{batch['id']}/payments"
    await legacy.request_ok("POST", where, legacy.build_payment(german))
    for listed in (where, "/payments"):
        got = await legacy.request_ok("GET", f"{listed}?search={payment['id'][2:].lower()}")
        assert [each["id"] for each in got["payments"]] == [payment["id"]]


async def test_all_payments_are_the_newest_first_as_batches_list_them(legacy, clock, payee):
    for memo in ("old", "new"):
        await legacy.create_batch(legacy.build_payment(payee, memo=memo))
        clock.now += 1
    got = await legacy.request_ok("GET", "/payments?&search=&page=1&pageSize=10")
    assert [each["memo"] for each in got["payments"]] == ["new", "old"]
    assert got["meta"] == {"page": 1, "pages": 1, "records": 2}
    assert list(got["payments"][0]) == [*FIELDS, "method", "methodDisplay", "isSupplyPayment"]
    assert got["payments"][0]["recipient"]["id"] == payee["id"]
    assert "payout" not in got["payments"][0]["recipient"]


async def test_balances_are_an_object_by_currency_and_wallet(legacy):
    legacy.service.set_wallet_balance("demo", "USD", "7")
    got = await legacy.request_ok("GET", "/profile/balances")
    assert list(got["balances"]) == ["USD", "EUR", "GBP", "CAD", "AUD", "wallet"]
    assert list(got["balances"]["USD"]) == [
        "primary", "amount", "currency", "type", "accountNumber"
    ]  # fmt: skip
    assert got["balances"]["EUR"] == {
        "primary": False, "amount": "1000000.00", "currency": "EUR", "type": "service",
        "accountNumber": None,
    }  # fmt: skip
    assert got["balances"]["wallet"] == {
        "primary": False, "amount": "7.00", "currency": "USD", "type": "wallet",
        "accountNumber": "demo@example.com",
    }  # fmt: skip
    service = await legacy.request_ok("GET", "/profile/balances/service")
    assert list(service["balances"]) == ["USD", "EUR", "GBP", "CAD", "AUD"]
    wallet = await legacy.request_ok("GET", "/profile/balances/wallet/")
    assert wallet["balances"] == {"wallet": got["balances"]["wallet"]}


async def test_there_is_no_wallet_balance_until_it_is_set_up(legacy):
    where = "/profile/balances/wallet"
    assert await legacy.request_refused("GET", where) == (404, [("not_found", None)])
    assert "wallet" not in (await legacy.request_ok("GET", "/profile/balances"))["balances"]


@pytest.mark.parametrize("path", ["", "/service", "/wallet"])
async def test_balances_need_a_key(legacy, path):
    legacy.api_key = ""
    assert await legacy.request_refused("GET", f"/profile/balances{path}") == (
        403,
        [("invalid_api_key", None)],
    )


@pytest.mark.parametrize("code", ["CA", "ca"])
async def test_a_country_needs_no_key(legacy, code):
    legacy.api_key = ""
    got = await legacy.request_ok("GET", f"/geography/countries/{code}")
    country = got["country"]
    assert list(country) == ["name", "code", "currency", "regions"]
    assert (country["name"], country["code"]) == ("Canada", "CA")
    assert country["currency"] == {"code": "CAD", "name": "Canadian Dollar"}
    assert (len(country["regions"]), country["regions"]["QC"]) == (13, "Quebec")


@pytest.mark.parametrize(("code", "currency"), [("BT", "BTN"), ("HT", "HTG"), ("PA", "PAB")])
async def test_of_several_currencies_a_country_has_its_own(legacy, code, currency):
    got = await legacy.request_ok("GET", f"/geography/countries/{code}")
    assert got["country"]["currency"]["code"] == currency


async def test_there_are_222_countries_each_with_a_currency(legacy):
    letters = [chr(each) for each in range(ord("A"), ord("Z") + 1)]
    found = {}
    for code in (first + second for first in letters for second in letters):
        got = await legacy.request("GET", f"/geography/countries/{code}")
        if got.status == 200:
            found[code] = got.body["country"]
        else:
            assert got.errors == [("not_found", None)]
    assert len(found) == 222
    assert all(re.fullmatch("[A-Z]{3}", each["currency"]["code"]) for each in found.values())
    assert all(each["name"] and each["currency"]["name"] for each in found.values())
    assert not {"CU", "IR", "KP", "SY", "ZW", "IQ"} & set(found)
    assert found["AI"]["regions"] == {}
