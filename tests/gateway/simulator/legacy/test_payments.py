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
async def batch(legacy_client):
    return await legacy_client.create_batch()


@pytest.fixture
async def payment(legacy_client, batch, payee):
    body = legacy_client.build_payment(payee, "12.50", memo="first")
    return (await legacy_client.request_ok("POST", f"/batches/{batch['id']}/payments", body))[
        "payment"
    ]


@pytest.fixture
def payment_path(batch, payment):
    return f"/batches/{batch['id']}/payments/{payment['id']}"


async def test_payment_is_added_with_full_recipient(
    legacy_client, batch, payment, payment_path, payee
):
    assert list(payment) == PAYMENT_FIELDS
    assert re.fullmatch(r"P-[A-Z0-9]{16}", payment["id"])
    assert payment["recipient"] == payee
    assert (payment["sourceAmount"], payment["targetAmount"]) == ("12.50", "12.50")
    assert (payment["status"], payment["memo"]) == ("pending", "first")
    assert payment["batch"]["id"] == batch["id"]
    assert (await legacy_client.request_ok("GET", payment_path))["payment"] == payment
    assert (await legacy_client.request_ok("GET", f"/payments/{payment['id']}"))[
        "payment"
    ] == payment


@pytest.mark.parametrize(
    ("changes", "errors"),
    [
        ({"sourceAmount": "1.5"}, [("invalid_field", "sourceAmount")]),
        ({"sourceAmount": None}, [("empty_field", "sourceAmount")]),
        ({"sourceCurrency": "EUR"}, [("invalid_field", "sourceCurrency")]),
        ({"recipient": None}, [("empty_field", "recipient.id")]),
        ({"recipient": {"id": "R-unknown"}}, [("invalid_field", "recipient.id")]),
    ],
)
async def test_invalid_payment_is_refused(legacy_client, batch, payee, changes, errors):
    body = legacy_client.build_payment(payee) | changes
    path = f"/batches/{batch['id']}/payments"
    assert await legacy_client.request_refused("POST", path, body) == (406, errors)
    assert await legacy_client.list_payments(batch) == []


async def test_too_small_amount_for_recipient_named_by_email_is_refused(
    legacy_client, batch, payee
):
    body = {"recipient": {"email": payee["email"]}, "sourceAmount": "0.99"}
    path = f"/batches/{batch['id']}/payments"
    expected = (406, [("invalid_field", "sourceAmount")])
    assert await legacy_client.request_refused("POST", path, body) == expected


async def test_amount_that_rounds_to_zero_is_refused(legacy_client, german_payee):
    yen_batch = await legacy_client.create_batch(sourceCurrency="JPY")
    path = f"/batches/{yen_batch['id']}/payments"
    body = {
        "recipient": {"id": german_payee["id"]},
        "targetAmount": "0.01",
        "targetCurrency": "VND",
    }
    assert await legacy_client.request_refused("POST", path, body) == (
        406,
        [("invalid_field", "targetAmount")],
    )


async def test_payment_is_changed(legacy_client, clock, payment_path):
    clock.now += 5
    answer = await legacy_client.request(
        "PATCH", payment_path, {"sourceAmount": 7, "recipient": {"id": "R-other"}}
    )
    assert answer.text == '{"ok":true,"object":"updated"}'
    changed_payment = (await legacy_client.request_ok("GET", payment_path))["payment"]
    assert (changed_payment["sourceAmount"], changed_payment["memo"]) == ("7.00", "first")
    assert changed_payment["updatedAt"] > changed_payment["createdAt"]
    await legacy_client.request_ok("PATCH", payment_path, {"memo": "second"})
    assert (await legacy_client.request_ok("GET", payment_path))["payment"]["memo"] == "second"
    await legacy_client.request_ok(
        "PATCH", payment_path, {"targetAmount": "4.60", "targetCurrency": "EUR"}
    )
    changed_payment = (await legacy_client.request_ok("GET", payment_path))["payment"]
    assert (changed_payment["sourceAmount"], changed_payment["targetCurrency"]) == ("5.00", "EUR")


async def test_invalid_change_is_refused(legacy_client, payment_path):
    for body, error in [
        ({"targetAmount": "1"}, ("empty_field", "targetCurrency")),
        ({"sourceAmount": "1", "targetAmount": "1"}, ("invalid_field", "targetAmount")),
        ({"sourceAmount": "0"}, ("invalid_field", "sourceAmount")),
    ]:
        assert await legacy_client.request_refused("PATCH", payment_path, body) == (406, [error])


async def test_payment_is_deleted(legacy_client, batch, payment_path):
    answer = await legacy_client.request("DELETE", payment_path)
    assert answer.text == '{"ok":true,"object":"deleted"}'
    assert await legacy_client.request_refused("GET", payment_path) == (404, [("not_found", None)])
    assert await legacy_client.list_payments(batch) == []


async def test_payment_of_another_batch_is_404(legacy_client, payment):
    other_batch = await legacy_client.create_batch()
    for method in ("GET", "PATCH", "DELETE"):
        path = f"/batches/{other_batch['id']}/payments/{payment['id']}"
        body = {} if method == "PATCH" else None
        assert await legacy_client.request_refused(method, path, body) == (
            404,
            [("not_found", None)],
        )
    assert await legacy_client.request_refused("GET", "/payments/P-unknown") == (
        404,
        [("not_found", None)],
    )


async def test_payments_of_started_batch_are_immutable(legacy_client, batch, payment_path):
    await legacy_client.request_ok("POST", f"/batches/{batch['id']}/start-processing")
    for method in ("PATCH", "DELETE"):
        assert await legacy_client.request_refused(method, payment_path, {}) == (
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
async def test_batch_payments_are_paged_and_searched(
    legacy_client, batch, german_payee, query, memos
):
    body = legacy_client.build_payment(german_payee, memo="second")
    await legacy_client.request_ok("POST", f"/batches/{batch['id']}/payments", body)
    payment_list = await legacy_client.request_ok("GET", f"/batches/{batch['id']}/payments?{query}")
    assert [payment["memo"] for payment in payment_list["payments"]] == memos
    search_result = await legacy_client.request_ok("GET", f"/payments?{query}")
    expected = memos if "page" not in query else ["first"]
    assert sorted(payment["memo"] for payment in search_result["payments"]) == expected


async def test_payment_is_found_by_id(legacy_client, batch, payment, german_payee):
    path = f"/batches/{batch['id']}/payments"
    await legacy_client.request_ok("POST", path, legacy_client.build_payment(german_payee))
    for list_path in (path, "/payments"):
        body = await legacy_client.request_ok(
            "GET", f"{list_path}?search={payment['id'][2:].lower()}"
        )
        assert [listed_payment["id"] for listed_payment in body["payments"]] == [payment["id"]]


async def test_all_payments_are_newest_first_in_list_form(legacy_client, clock, payee):
    for memo in ("old", "new"):
        await legacy_client.create_batch(legacy_client.build_payment(payee, memo=memo))
        clock.now += 1
    body = await legacy_client.request_ok("GET", "/payments?&search=&page=1&pageSize=10")
    assert [payment["memo"] for payment in body["payments"]] == ["new", "old"]
    assert body["meta"] == {"page": 1, "pages": 1, "records": 2}
    assert list(body["payments"][0]) == [
        *PAYMENT_FIELDS,
        "method",
        "methodDisplay",
        "isSupplyPayment",
    ]
    assert body["payments"][0]["recipient"]["id"] == payee["id"]
    assert "payout" not in body["payments"][0]["recipient"]


async def test_balances_are_keyed_by_currency_and_wallet(legacy_client):
    legacy_client.service.set_wallet_balance("demo", "USD", "7")
    body = await legacy_client.request_ok("GET", "/profile/balances")
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
    service = await legacy_client.request_ok("GET", "/profile/balances/service")
    assert list(service["balances"]) == ["USD", "EUR", "GBP", "CAD", "AUD"]
    wallet = await legacy_client.request_ok("GET", "/profile/balances/wallet/")
    assert wallet["balances"] == {"wallet": body["balances"]["wallet"]}


async def test_wallet_balance_is_absent_until_set_up(legacy_client):
    path = "/profile/balances/wallet"
    assert await legacy_client.request_refused("GET", path) == (404, [("not_found", None)])
    assert "wallet" not in (await legacy_client.request_ok("GET", "/profile/balances"))["balances"]


@pytest.mark.parametrize("path", ["", "/service", "/wallet"])
async def test_balances_require_a_key(legacy_client, path):
    legacy_client.api_key = ""
    assert await legacy_client.request_refused("GET", f"/profile/balances{path}") == (
        403,
        [("invalid_api_key", None)],
    )


@pytest.mark.parametrize("code", ["CA", "ca"])
async def test_countries_require_no_key(legacy_client, code):
    legacy_client.api_key = ""
    body = await legacy_client.request_ok("GET", f"/geography/countries/{code}")
    country = body["country"]
    assert list(country) == ["name", "code", "currency", "regions"]
    assert (country["name"], country["code"]) == ("Canada", "CA")
    assert country["currency"] == {"code": "CAD", "name": "Canadian Dollar"}
    assert (len(country["regions"]), country["regions"]["QC"]) == (13, "Quebec")


@pytest.mark.parametrize(("code", "currency"), [("BT", "BTN"), ("HT", "HTG"), ("PA", "PAB")])
async def test_country_shows_its_own_currency_among_several(legacy_client, code, currency):
    body = await legacy_client.request_ok("GET", f"/geography/countries/{code}")
    assert body["country"]["currency"]["code"] == currency


async def test_there_are_222_countries_each_with_a_currency(legacy_client):
    alphabet = [chr(country) for country in range(ord("A"), ord("Z") + 1)]
    countries = {}
    for code in (first + second for first in alphabet for second in alphabet):
        answer = await legacy_client.request("GET", f"/geography/countries/{code}")
        if answer.status == 200:
            countries[code] = answer.body["country"]
        else:
            assert answer.errors == [("not_found", None)]
    assert len(countries) == 222
    assert all(
        re.fullmatch("[A-Z]{3}", country["currency"]["code"]) for country in countries.values()
    )
    assert all(country["name"] and country["currency"]["name"] for country in countries.values())
    assert not {"CU", "IR", "KP", "SY", "ZW", "IQ"} & set(countries)
    assert countries["AI"]["regions"] == {}
