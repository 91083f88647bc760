"""Batches on the legacy interface (sections 2, 3 and 4.3)."""

import re
from decimal import Decimal

import pytest

BATCH_FIELDS = [
    "id", "status", "amount", "totalPayments", "currency", "description", "sentAt",
    "completedAt", "createdAt", "updatedAt",
]  # fmt: skip
LISTED_PAYMENT_FIELDS = [
    "id", "recipient", "status", "sourceAmount", "targetAmount", "exchangeRate", "fxRate", "fees",
    "recipientFees", "merchantFees", "memo", "sourceCurrency", "sourceCurrencyName",
    "targetCurrency", "targetCurrencyName", "compliance", "processedAt", "createdAt",
    "updatedAt", "batch", "method", "methodDisplay", "isSupplyPayment",
]  # fmt: skip


def batch_path(batch, tail=""):
    return f"/batches/{batch['id']}{tail}"


async def read_batch(legacy, batch):
    return (await legacy.request_ok("GET", batch_path(batch)))["batch"]


async def test_batch_has_documented_fields_in_order(legacy, payee):
    batch = await legacy.create_batch(
        legacy.build_payment(payee, "10.25"), legacy.build_payment(payee, 5), description="May"
    )
    assert list(batch) == BATCH_FIELDS
    assert re.fullmatch(r"B-[A-Z0-9]{16}", batch["id"])
    assert batch | {"id": ""} == {
        "id": "", "status": "open", "amount": "15.25", "totalPayments": 2, "currency": "USD",
        "description": "May", "sentAt": None, "completedAt": None,
        "createdAt": "2025-10-09T08:53:20.000Z", "updatedAt": "2025-10-09T08:53:20.000Z",
    }  # fmt: skip


async def test_batch_by_id_has_payments_with_reduced_recipients(legacy, payee):
    batch = await legacy.create_batch(
        *[legacy.build_payment(payee, f"{n + 1}.00") for n in range(11)]
    )
    whole = await read_batch(legacy, batch)
    assert list(whole) == [*BATCH_FIELDS, "payments"]
    assert whole["payments"]["meta"] == {"page": 1, "pages": 2, "records": 11}
    shown = whole["payments"]["payments"][0]
    assert len(whole["payments"]["payments"]) == 10
    assert list(shown) == LISTED_PAYMENT_FIELDS
    assert list(shown["batch"]) == ["id", "createdAt", "updatedAt", "sentAt", "completedAt"]
    assert shown["batch"]["id"] == batch["id"]
    assert shown["recipient"] == {
        "id": payee["id"], "referenceId": None, "email": "zoe@example.com", "name": "Zoë Peña",
        "status": "active", "country": "US", "countryCode": "US",
    }  # fmt: skip
    assert (shown["method"], shown["methodDisplay"]) == ("bank-transfer", "Bank Transfer")
    assert (shown["isSupplyPayment"], shown["memo"], shown["processedAt"]) == (False, "", None)


async def test_empty_batch_can_be_created(legacy):
    batch = await legacy.create_batch()
    assert (batch["amount"], batch["totalPayments"]) == ("0.00", 0)


async def test_payments_have_source_or_target_amount(legacy, german_payee):
    target = {"recipient": {"id": german_payee["id"]}, "targetAmount": 92, "targetCurrency": "EUR"}
    batch = await legacy.create_batch(
        legacy.build_payment(german_payee, "100.00", memo="Größe"), target
    )
    first, second = await legacy.list_payments(batch)
    assert (first["sourceAmount"], first["targetAmount"]) == ("100.00", "92.00")
    assert (second["sourceAmount"], second["targetAmount"]) == ("100.00", "92.00")
    assert (first["exchangeRate"], first["fxRate"], first["fees"]) == ("0.92", "0.92", "1.00")
    assert (first["targetCurrency"], first["targetCurrencyName"]) == ("EUR", "Euro")
    assert first["memo"] == "Größe"


async def test_recipient_can_be_named_by_email(legacy, payee):
    batch = await legacy.create_batch({"recipient": {"email": payee["email"]}, "sourceAmount": "5"})
    (shown,) = await legacy.list_payments(batch)
    assert shown["recipient"]["id"] == payee["id"]


async def test_batch_currency_can_come_from_payments(legacy, payee):
    payments = [legacy.build_payment(payee, sourceCurrency="CAD"), legacy.build_payment(payee)]
    body = {"payments": payments}
    made = (await legacy.request_ok("POST", "/batches", body))["batch"]
    assert made["currency"] == "CAD"


@pytest.mark.parametrize(
    "amount",
    ["0", "0.00", "-1", "+1", "1.0", "1.001", "1e2", "1,000", " 1", "1_0", "٣", True, [], 1.5, -3],
)
async def test_other_amount_is_refused(legacy, payee, amount):
    body = {
        "sourceCurrency": "USD",
        "payments": [legacy.build_payment(payee), legacy.build_payment(payee, amount)],
    }
    expected = (406, [("invalid_field", "payments[1].sourceAmount")])
    assert await legacy.request_refused("POST", "/batches", body) == expected


@pytest.mark.parametrize("written", [b"1e2", b"1.000E+1", b"10.0", b"1.000"])
async def test_number_is_validated_as_written(legacy, payee, written):
    body = b'{"sourceCurrency":"USD","payments":[{"recipient":{"id":"%b"},"sourceAmount":%b}]}'
    data = body % (payee["id"].encode(), written)
    answer = await legacy.request("POST", "/batches", data=data)
    assert answer.errors == [("invalid_field", "payments[0].sourceAmount")]
    answer = await legacy.request("POST", "/batches", data=data.replace(written, b"10.00"))
    assert answer.body["batch"]["amount"] == "10.00"


async def test_large_sum_keeps_all_digits(legacy, payee):
    batch = await legacy.create_batch(
        legacy.build_payment(payee, "99999999999999999999.99"), legacy.build_payment(payee, 10**20)
    )
    assert batch["amount"] == "199999999999999999999.99"
    assert batch["status"] == "pending"


ERRORS = [
    ({}, [("empty_field", "sourceCurrency")]),
    ({"sourceCurrency": "dollar"}, [("invalid_field", "sourceCurrency")]),
    ({"sourceCurrency": "XTS"}, [("invalid_field", "sourceCurrency")]),
    ({"sourceCurrency": "USD", "payments": {}}, [("invalid_field", "payments")]),
    ({"sourceCurrency": "USD", "payments": ["x"]}, [("invalid_field", "payments[0]")]),
    ({"sourceCurrency": "USD", "description": 7.5}, [("invalid_field", "description")]),
    (
        {"sourceCurrency": "USD", "payments": [{}]},
        [
            ("empty_field", "payments[0].recipient.id"),
            ("empty_field", "payments[0].sourceAmount"),
        ],
    ),
    (
        {"sourceCurrency": "USD", "payments": [{"recipient": "R-1", "sourceAmount": "1"}]},
        [("invalid_field", "payments[0].recipient")],
    ),
    (
        {"sourceCurrency": "USD", "payments": [{"recipient": {"id": "R-1"}, "sourceAmount": "1"}]},
        [("invalid_field", "payments[0].recipient.id")],
    ),
    (
        {"sourceCurrency": "USD", "payments": [{"recipient": {"email": "a@b.example"}, "sourceAmount": "1"}]},
        [("invalid_field", "payments[0].recipient.email")],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("body", "errors"), ERRORS)
async def test_invalid_batch_is_refused_and_not_created(legacy, body, errors):
    assert await legacy.request_refused("POST", "/batches", body) == (406, errors)
    assert (await legacy.request_ok("GET", "/batches"))["batches"] == []


async def test_errors_of_each_payment_are_listed(legacy, payee):
    body = {
        "payments": [
            legacy.build_payment(payee, sourceCurrency="USD"),
            legacy.build_payment(payee, sourceCurrency="EUR"),
            legacy.build_payment(payee, targetAmount="1", targetCurrency="EUR"),
            {"recipient": {"id": payee["id"]}, "targetAmount": "1"},
            {"recipient": {"id": payee["id"]}, "targetAmount": "1", "targetCurrency": "XTS"},
            legacy.build_payment(payee, memo=["x"]),
        ]
    }
    assert await legacy.request_refused("POST", "/batches", body) == (
        406,
        [
            ("invalid_field", "payments[1].sourceCurrency"),
            ("invalid_field", "payments[2].targetAmount"),
            ("empty_field", "payments[3].targetCurrency"),
            ("invalid_field", "payments[4].targetCurrency"),
            ("invalid_field", "payments[5].memo"),
        ],
    )


@pytest.mark.parametrize("word", ["disabled", "suspended", None])
async def test_unpayable_recipient_is_refused(legacy, payee, word):
    where = f"/recipients/{payee['id']}"
    if word is None:
        await legacy.request_ok("DELETE", where)
    else:
        await legacy.request_ok("PATCH", where, {"status": word})
    body = {"sourceCurrency": "USD", "payments": [legacy.build_payment(payee)]}
    expected = (406, [("invalid_status", "payments[0].recipient.id")])
    assert await legacy.request_refused("POST", "/batches", body) == expected
    body["payments"] = [{"recipient": {"email": payee["email"]}, "sourceAmount": "1"}]
    code = "invalid_field" if word is None else "invalid_status"
    expected = (406, [(code, "payments[0].recipient.email")])
    assert await legacy.request_refused("POST", "/batches", body) == expected


async def test_ambiguous_email_is_refused(legacy, payee):
    other = await legacy.create_recipient()
    body = {"sourceCurrency": "USD"}
    body["payments"] = [{"recipient": {"email": payee["email"]}, "sourceAmount": "1"}]
    answer = await legacy.request("POST", "/batches", body)
    assert answer.errors == [("invalid_field", "payments[0].recipient.email")]
    assert "several" in answer.text
    await legacy.request_ok("DELETE", f"/recipients/{other['id']}")
    await legacy.request_ok("POST", "/batches", body)


async def test_payments_are_added_changed_and_removed_in_one_edit(
    legacy, clock, payee, german_payee
):
    batch = await legacy.create_batch(*[legacy.build_payment(payee, f"{n}.00") for n in (1, 2, 3)])
    first, second, third = await legacy.list_payments(batch)
    clock.now += 60
    body = {
        "payments": [
            legacy.build_payment(german_payee, "40.00"),
            {"id": third["id"], "targetAmount": "9.20", "targetCurrency": "EUR"},
        ],
        "update_payments": [{"id": first["id"], "sourceAmount": 10, "memo": "more"}],
        "remove_payments": [{"id": second["id"]}],
        "description": "April",
        "unknown": "ignored",
    }
    answer = await legacy.request("PATCH", batch_path(batch), body)
    assert answer.text == '{"ok":true,"object":"updated"}'
    after = await read_batch(legacy, batch)
    assert (after["description"], after["amount"]) == ("April", "60.00")
    assert [
        (payment["sourceAmount"], payment["memo"]) for payment in after["payments"]["payments"]
    ] == [
        ("10.00", "more"),
        ("10.00", ""),
        ("40.00", ""),
    ]
    assert after["updatedAt"] > after["createdAt"]
    answer = await legacy.request("PATCH", batch_path(batch), {**after, "description": None})
    assert answer.text == '{"ok":true,"object":"updated"}'
    again = await read_batch(legacy, batch)
    assert again == {**after, "description": "", "updatedAt": again["updatedAt"]}
    answer = await legacy.request("PATCH", batch_path(batch), {"sourceCurrency": "EUR"})
    assert (answer.status, answer.errors) == (406, [("invalid_field", "sourceCurrency")])


async def test_edit_is_all_or_nothing(legacy, payee):
    batch = await legacy.create_batch(legacy.build_payment(payee), legacy.build_payment(payee))
    one, two = (payment["id"] for payment in await legacy.list_payments(batch))
    body = {
        "payments": [{"id": "P-unknown", "sourceAmount": "1"}],
        "update_payments": [{"id": one, "sourceAmount": "99.00"}, {"sourceAmount": "1"}],
        "remove_payments": [{"id": one}, {"id": two}, {"id": "P-unknown"}, {"id": 7}],
    }
    assert await legacy.request_refused("PATCH", batch_path(batch), body) == (
        406,
        [
            ("invalid_field", "payments[0].id"),
            ("empty_field", "update_payments[1].id"),
            ("invalid_field", "remove_payments[0].id"),
            ("invalid_field", "remove_payments[2].id"),
            ("invalid_field", "remove_payments[3].id"),
        ],
    )
    assert (await read_batch(legacy, batch))["amount"] == "20.00"


async def test_batch_is_deleted(legacy, payee):
    batch = await legacy.create_batch(legacy.build_payment(payee))
    (payment,) = await legacy.list_payments(batch)
    answer = await legacy.request("DELETE", batch_path(batch))
    assert answer.text == '{"ok":true,"object":"deleted"}'
    for where in (batch_path(batch), batch_path(batch, "/payments"), f"/payments/{payment['id']}"):
        assert await legacy.request_refused("GET", where) == (404, [("not_found", None)])


async def test_batches_are_deleted_all_or_none(legacy, payee):
    batch = [await legacy.create_batch(legacy.build_payment(payee)) for _ in range(3)]
    ids = [each["id"] for each in batch]
    await legacy.request_ok("POST", batch_path(batch[2], "/start-processing"))
    assert await legacy.request_refused("DELETE", "/batches", {"ids": ids}) == (
        406,
        [("invalid_status", None)],
    )
    assert await legacy.request_refused("DELETE", "/batches", {"ids": [*ids, "B-unknown"]}) == (
        404,
        [("not_found", None)],
    )
    assert await legacy.request_refused("DELETE", "/batches", {}) == (406, [("empty_field", "ids")])
    assert await legacy.request_refused("DELETE", "/batches") == (406, [("invalid_field", None)])
    assert await legacy.request_ok("DELETE", "/batches", {"ids": ids[:2]}) == {
        "ok": True,
        "object": "deleted",
    }
    assert [each["id"] for each in (await legacy.request_ok("GET", "/batches"))["batches"]] == ids[
        2:
    ]


async def test_list_is_newest_first_and_searchable_by_id(legacy, clock):
    made = []
    for _ in range(12):
        made.append(await legacy.create_batch())
        clock.now += 1
    body = await legacy.request_ok("GET", "/batches?page=2&pageSize=5")
    assert body["meta"] == {"page": 2, "pages": 3, "records": 12}
    assert body["batches"] == made[::-1][5:10]
    wanted = made[4]
    body = await legacy.request_ok("GET", f"/batches?search={wanted['id'][4:12].lower()}")
    assert body["batches"] == [wanted]
    body = await legacy.request_ok("GET", "/batches?search=&page=0&pageSize=x")
    assert (body["meta"]["page"], len(body["batches"])) == (1, 10)
    real = next(iter(legacy.service.find_or_create_tenant().batches))
    assert (await legacy.request_ok("GET", f"/batches?search={real}"))["batches"] == []


async def test_quote_updates_rates_of_bank_transfers(legacy, german_payee, wallet_holder):
    batch = await legacy.create_batch(
        legacy.build_payment(german_payee, "100.00"), legacy.build_payment(wallet_holder, "10.00")
    )
    answer = await legacy.request("POST", batch_path(batch, "/generate-quote"))
    quoted = answer.body["batch"]["payments"]["payments"]
    assert [payment["targetAmount"] for payment in quoted] == ["92.05", "10.00"]
    assert quoted == await legacy.list_payments(batch)
    summary = (await legacy.request_ok("GET", batch_path(batch, "/summary")))["batchSummary"]
    assert summary["quoteExpiredAt"] == "2025-10-09T09:23:20.000Z"


async def test_expired_quote_is_refused_until_renewed(legacy, clock, payee):
    batch = await legacy.create_batch(legacy.build_payment(payee))
    await legacy.request_ok("POST", batch_path(batch, "/generate-quote"))
    clock.now += 1800
    start = batch_path(batch, "/start-processing")
    assert await legacy.request_refused("POST", start) == (406, [("expired_quote", None)])
    await legacy.request_ok("POST", batch_path(batch, "/generate-quote"))
    await legacy.request_ok("POST", start)


async def test_batch_life_cycle(legacy, clock, payee, german_payee):
    batch = await legacy.create_batch(
        legacy.build_payment(payee, "100.00"), legacy.build_payment(german_payee, "50.00")
    )
    legacy.service.set_outcome(german_payee["id"], "returned")
    answer = await legacy.request("POST", batch_path(batch, "/start-processing"), data=b"")
    assert list(answer.body["batch"]) == BATCH_FIELDS
    assert (answer.body["batch"]["status"], answer.body["batch"]["sentAt"]) == (
        "processing",
        "2025-10-09T08:53:20.000Z",
    )
    refused = (406, [("invalid_status", None)])
    for state in ("processing", "complete"):
        assert (await read_batch(legacy, batch))["status"] == state
        for method, tail, body in [
            ("PATCH", "", {}), ("DELETE", "", None), ("POST", "/generate-quote", None),
            ("POST", "/start-processing", None), ("POST", "/payments", legacy.build_payment(payee)),
        ]:  # fmt: skip
            assert await legacy.request_refused(method, batch_path(batch, tail), body) == refused
        clock.now += 2
    done = await read_batch(legacy, batch)
    assert done["completedAt"] == "2025-10-09T08:53:22.000Z"
    assert [payment["status"] for payment in done["payments"]["payments"]] == [
        "processed",
        "returned",
    ]
    # 50.00 was returned; its fee of 1.00 was not.
    assert legacy.service.read_balance("demo", "USD") == Decimal("999898.00")


async def test_batch_of_failed_payments_is_complete(legacy, clock, payee):
    legacy.service.set_outcome(payee["id"], "failed")
    batch = await legacy.create_batch(legacy.build_payment(payee))
    await legacy.request_ok("POST", batch_path(batch, "/start-processing"))
    clock.now += 3
    assert (await read_batch(legacy, batch))["status"] == "complete"
    (payment,) = await legacy.list_payments(batch)
    assert (payment["status"], payment["processedAt"]) == ("failed", None)


async def test_unstartable_batch_is_refused(legacy, payee, german_payee, wallet_holder):
    refused = (406, [("invalid_status", None)])
    empty = await legacy.create_batch()
    assert await legacy.request_refused("POST", batch_path(empty, "/start-processing")) == refused
    poor = await legacy.create_batch(legacy.build_payment(payee, "1000000.00"))
    assert poor["status"] == "pending"
    assert await legacy.request_refused("POST", batch_path(poor, "/start-processing")) == refused
    small = await legacy.create_batch(
        legacy.build_payment(german_payee, "1.00"),
        {"recipient": {"id": german_payee["id"]}, "targetAmount": "1", "targetCurrency": "EUR"},
    )
    answer = await legacy.request("POST", batch_path(small, "/start-processing"))
    # No sent field is at fault, so the message names the payment.
    assert answer.errors == [("invalid_field", None)] * 2
    for error, payment in zip(
        answer.body["errors"], await legacy.list_payments(small), strict=True
    ):
        assert payment["id"] in error["message"]
    stopped = await legacy.create_batch(
        legacy.build_payment(payee), legacy.build_payment(wallet_holder)
    )
    await legacy.request_ok("PATCH", f"/recipients/{wallet_holder['id']}", {"status": "disabled"})
    assert await legacy.request_refused("POST", batch_path(stopped, "/start-processing")) == refused


async def test_pending_batch_can_be_edited_and_opens_once_funded(legacy, payee):
    batch = await legacy.create_batch(legacy.build_payment(payee, "1000000.00"))
    await legacy.request_ok("PATCH", batch_path(batch), {"payments": [legacy.build_payment(payee)]})
    legacy.service.set_balance("demo", "USD", "2000000.00")
    assert (await read_batch(legacy, batch))["status"] == "open"


async def test_summary_has_every_field(legacy, clock, payee, wallet_holder):
    legacy.service.set_wallet_balance("demo", "USD", "77.70")
    batch = await legacy.create_batch(
        legacy.build_payment(payee, "100.10"),
        legacy.build_payment(payee, "0.05"),
        legacy.build_payment(wallet_holder, "20.00"),
    )
    clock.now += 5
    answer = await legacy.request("GET", batch_path(batch, "/summary"))
    shown = answer.body["batchSummary"]
    assert list(shown) == [
        "id", "processed_by", "errors", "serverTime", "status", "currency", "description",
        "sentAt", "completedAt", "createdAt", "updatedAt", "quoteExpiredAt", "methods",
        "ServiceTotal", "GatewayTotal", "total", "merchantBalances", "enoughFunds",
    ]  # fmt: skip
    assert (shown["id"], shown["processed_by"], shown["errors"]) == (batch["id"], "API", [])
    assert shown["serverTime"] == "2025-10-09T08:53:25.000Z"
    assert list(shown["methods"]) == ["bank-transfer", "wallet"]
    bank = {
        "count": 2, "value": Decimal("100.15"), "fees": Decimal(2), "recipientFees": 0,
        "merchantFees": Decimal(2), "net": Decimal("102.15"),
    }  # fmt: skip
    purse = {
        "count": 1, "value": 20, "fees": 0, "recipientFees": 0, "merchantFees": 0, "net": 20
    }  # fmt: skip
    assert shown["methods"]["bank-transfer"] == {
        **bank, "accountType": "service", "displayName": "Bank Transfer"
    }  # fmt: skip
    assert shown["methods"]["wallet"] == {
        **purse, "accountType": "wallet", "displayName": "Wallet"
    }  # fmt: skip
    assert (shown["ServiceTotal"], shown["GatewayTotal"]) == (bank, purse)
    assert shown["total"] == {name: bank[name] + purse[name] for name in bank}
    assert shown["merchantBalances"] == {
        "GatewayTotal": Decimal("77.70"), "ServiceTotal": Decimal(1_000_000)
    }  # fmt: skip
    assert shown["enoughFunds"] is True
    assert '"value":100.15,"fees":2,' in answer.text
    assert '"GatewayTotal":77.7,' in answer.text


async def test_summary_of_empty_or_unfunded_batch(legacy, payee):
    batch = await legacy.create_batch(sourceCurrency="JPY")
    shown = (await legacy.request_ok("GET", batch_path(batch, "/summary")))["batchSummary"]
    assert list(shown["methods"]) == ["bank-transfer", "wallet"]
    assert (shown["total"]["count"], shown["merchantBalances"]["ServiceTotal"]) == (0, 0)
    poor = await legacy.create_batch(legacy.build_payment(payee, "1000000.00"))
    shown = (await legacy.request_ok("GET", batch_path(poor, "/summary")))["batchSummary"]
    assert (shown["status"], shown["enoughFunds"]) == ("pending", False)


@pytest.mark.parametrize(
    ("method", "tail"),
    [
        ("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/summary"), ("GET", "/payments"),
        ("POST", "/payments"), ("POST", "/generate-quote"), ("POST", "/start-processing"),
    ],
)  # fmt: skip
async def test_unknown_batch_is_404(legacy, method, tail):
    where = f"/batches/B-unknown{tail}"
    body = {} if (method, tail) in {("PATCH", ""), ("POST", "/payments")} else None
    assert await legacy.request_refused(method, where, body) == (404, [("not_found", None)])
