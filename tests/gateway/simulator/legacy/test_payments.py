"""Payments, balances and countries on the legacy interface (sections 4.4 to 4.6)."""

import re

import pytest

PAYMENT_FIELDS = [
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
def payment_path(batch, payment):
    return f"/batches/{batch['id']}/payments/{payment['id']}"


async def test_payment_is_added_with_full_recipient(legacy, batch, payment, payment_path, payee):
    assert list(payment) == PAYMENT_FIELDS
    assert re.fullmatch(r"P-[A-Z0-9]{16}", payment["id"])
    assert payment["recipient"] == payee
    assert (payment["sourceAmount"], payment["targetAmount"]) == ("12.50", "12.50")
    assert (payment["status"], payment["memo"]) == ("pending", "first")
    assert payment["batch"]["id"] == batch["id"]
    assert (await legacy.request_ok("GET", payment_path))["payment"] == payment
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
async def test_invalid_payment_is_refused(legacy, batch, payee, changed, errors):
    body = legacy.build_payment(payee) | changed
    where = f"/batches/{batch['id']}/payments"
    assert await legacy.request_refused("POST", where, body) == (406, errors)
    assert await legacy.list_payments(batch) == []


async def test_too_small_amount_for_recipient_named_by_email_is_refused(legacy, batch, payee):
    body = {"recipient": {"email": payee["email"]}, "sourceAmount": "0.99"}
    where = f"/batches/{batch['id']}/payments"
    expected = (406, [("invalid_field", "sourceAmount")])
    assert await legacy.request_refused("POST", where, body) == expected


async def test_amount_that_rounds_to_zero_is_refused(legacy, german_payee):
    made = await legacy.create_batch(sourceCurrency="JPY")
    where = f"/batches/{made['id']}/payments"
    body = {
        "recipient": {"id": german_payee["id"]},
        "targetAmount": "0.01",
        "targetCurrency": "VND",
    }
    assert await legacy.request_refused("POST", where, body) == (
        406,
        [("invalid_field", "targetAmount")],
    )


async def test_payment_is_changed(legacy, clock, payment_path):
    clock.now += 5
    answer = await legacy.request(
        "PATCH", payment_path, {"sourceAmount": 7, "recipient": {"id": "R-other"}}
    )
    assert answer.text == '{"ok":true,"object":"updated"}'
    after = (await legacy.request_ok("GET", payment_path))["payment"]
    assert (after["sourceAmount"], after["memo"]) == ("7.00", "first")
    assert after["updatedAt"] > after["createdAt"]
    await legacy.request_ok("PATCH", payment_path, {"memo": "second"})
    assert (await legacy.request_ok("GET", payment_path))["payment"]["memo"] == "second"
    await legacy.request_ok(
        "PATCH", payment_path, {"targetAmount": "4.60", "targetCurrency": "EUR"}
    )
    after = (await legacy.request_ok("GET", payment_path))["payment"]
    assert (after["sourceAmount"], after["targetCurrency"]) == ("5.00", "EUR")


async def test_invalid_change_is_refused(legacy, payment_path):
    for body, error in [
        ({"targetAmount": "1"}, ("empty_field", "targetCurrency")),
        ({"sourceAmount": "1", "targetAmount": "1"}, ("invalid_field", "targetAmount")),
        ({"sourceAmount": "0"}, ("invalid_field", "sourceAmount")),
    ]:
        assert await legacy.request_refused("PATCH", payment_path, body) == (406, [error])


async def test_payment_is_deleted(legacy, batch, payment_path):
    answer = await legacy.request("DELETE", payment_path)
    assert answer.text == '{"ok":true,"object":"deleted"}'
    assert await legacy.request_refused("GET", payment_path) == (404, [("not_found", None)])
    assert await legacy.list_payments(batch) == []


async def test_payment_of_another_batch_is_404(legacy, payment):
    other = await legacy.create_batch()
    for method in ("GET", "PATCH", "DELETE"):
        where = f"/batches/{other['id']}/payments/{payment['id']}"
        body = {} if method == "PATCH" else None
        assert await legacy.request_refused(method, where, body) == (404, [("not_found", None)])
    assert await legacy.request_refused("GET", "/payments/P-unknown") == (
        404,
        [("not_found", None)],
    )


async def test_payments_of_started_batch_are_immutable(legacy, batch, payment_path):
    await legacy.request_ok("POST", f"/batches/{batch['id']}/start-processing")
    for method in ("PATCH", "DELETE"):
        assert await legacy.request_refused(method, payment_path, {}) == (
            406,
            [("invalid_status", None)],
        )


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
async def test_batch_payments_are_paged_and_searched(legacy, batch, german_payee, query, memos):
    body = legacy.build_payment(german_payee, memo="second")
    await legacy.request_ok("POST", f"/batches/{batch['id']}/payments", body)
    got = await legacy.request_ok("GET", f"/batches/{batch['id']}/payments?{query}")
    assert [each["memo"] for each in got["payments"]] == memos
    found = await legacy.request_ok("GET", f"/payments?{query}")
    expected = memos if "page" not in query else ["first"]
    assert sorted(each["memo"] for each in found["payments"]) == expected


async def test_payment_is_found_by_id(legacy, batch, payment, german_payee):
    where = f"/batches/{batch['id']}/payments"
    await legacy.request_ok("POST", where, legacy.build_payment(german_payee))
    for listed in (where, "/payments"):
        body = await legacy.request_ok("GET", f"{listed}?search={payment['id'][2:].lower()}")
        assert [each["id"] for each in body["payments"]] == [payment["id"]]


async def test_all_payments_are_newest_first_in_list_form(legacy, clock, payee):
    for memo in ("old", "new"):
        await legacy.create_batch(legacy.build_payment(payee, memo=memo))
        clock.now += 1
    body = await legacy.request_ok("GET", "/payments?&search=&page=1&pageSize=10")
    assert [each["memo"] for each in body["payments"]] == ["new", "old"]
    assert body["meta"] == {"page": 1, "pages": 1, "records": 2}
    assert list(body["payments"][0]) == [
        *PAYMENT_FIELDS,
        "method",
        "methodDisplay",
        "isSupplyPayment",
    ]
    assert body["payments"][0]["recipient"]["id"] == payee["id"]
    assert "payout" not in body["payments"][0]["recipient"]


async def test_balances_are_keyed_by_currency_and_wallet(legacy):
    legacy.service.set_wallet_balance("demo", "USD", "7")
    body = await legacy.request_ok("GET", "/profile/balances")
    assert list(body["balances"]) == ["USD", "EUR", "GBP", "CAD", "AUD", "wallet"]
    assert list(body["balances"]["USD"]) == [
        "primary", "amount", "currency", "type", "accountNumber"
    ]  # fmt: skip
    assert body["balances"]["EUR"] == {
        "primary": False, "amount": "1000000.00", "currency": "EUR", "type": "service",
        "accountNumber": None,
    }  # fmt: skip
    assert body["balances"]["wallet"] == {
        "primary": False, "amount": "7.00", "currency": "USD", "type": "wallet",
        "accountNumber": "demo@example.com",
    }  # fmt: skip
    service = await legacy.request_ok("GET", "/profile/balances/service")
    assert list(service["balances"]) == ["USD", "EUR", "GBP", "CAD", "AUD"]
    wallet = await legacy.request_ok("GET", "/profile/balances/wallet/")
    assert wallet["balances"] == {"wallet": body["balances"]["wallet"]}


async def test_wallet_balance_is_absent_until_set_up(legacy):
    where = "/profile/balances/wallet"
    assert await legacy.request_refused("GET", where) == (404, [("not_found", None)])
    assert "wallet" not in (await legacy.request_ok("GET", "/profile/balances"))["balances"]


@pytest.mark.parametrize("path", ["", "/service", "/wallet"])
async def test_balances_require_a_key(legacy, path):
    legacy.api_key = ""
    assert await legacy.request_refused("GET", f"/profile/balances{path}") == (
        403,
        [("invalid_api_key", None)],
    )


@pytest.mark.parametrize("code", ["CA", "ca"])
async def test_countries_require_no_key(legacy, code):
    legacy.api_key = ""
    body = await legacy.request_ok("GET", f"/geography/countries/{code}")
    country = body["country"]
    assert list(country) == ["name", "code", "currency", "regions"]
    assert (country["name"], country["code"]) == ("Canada", "CA")
    assert country["currency"] == {"code": "CAD", "name": "Canadian Dollar"}
    assert (len(country["regions"]), country["regions"]["QC"]) == (13, "Quebec")


@pytest.mark.parametrize(("code", "currency"), [("BT", "BTN"), ("HT", "HTG"), ("PA", "PAB")])
async def test_country_shows_its_own_currency_among_several(legacy, code, currency):
    body = await legacy.request_ok("GET", f"/geography/countries/{code}")
    assert body["country"]["currency"]["code"] == currency


async def test_there_are_222_countries_each_with_a_currency(legacy):
    letters = [chr(each) for each in range(ord("A"), ord("Z") + 1)]
    found = {}
    for code in (first + second for first in letters for second in letters):
        answer = await legacy.request("GET", f"/geography/countries/{code}")
        if answer.status == 200:
            found[code] = answer.body["country"]
        else:
            assert answer.errors == [("not_found", None)]
    assert len(found) == 222
    assert all(re.fullmatch("[A-Z]{3}", each["currency"]["code"]) for each in found.values())
    assert all(each["name"] and each["currency"]["name"] for each in found.values())
    assert not {"CU", "IR", "KP", "SY", "ZW", "IQ"} & set(found)
    assert found["AI"]["regions"] == {}
