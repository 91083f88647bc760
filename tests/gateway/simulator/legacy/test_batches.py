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


def batch_path(batch, suffix=""):
    return f"/batches/{batch['id']}{suffix}"


async def read_batch(legacy_client, batch):
    return (await legacy_client.request_ok("GET", batch_path(batch)))["batch"]


async def test_batch_has_documented_fields_in_order(legacy_client, payee):
    batch = await legacy_client.create_batch(
        legacy_client.build_payment(payee, "10.25"),
        legacy_client.build_payment(payee, 5),
        description="May",
    )
    assert list(batch) == BATCH_FIELDS
    assert re.fullmatch(r"B-[A-Z0-9]{16}", batch["id"])
    assert batch | {"id": ""} == {
        "id": "", "status": "open", "amount": "15.25", "totalPayments": 2, "currency": "USD",
        "description": "May", "sentAt": None, "completedAt": None,
        "createdAt": "2025-10-09T08:53:20.000Z", "updatedAt": "2025-10-09T08:53:20.000Z",
    }  # fmt: skip


async def test_batch_by_id_has_payments_with_reduced_recipients(legacy_client, payee):
    batch = await legacy_client.create_batch(
        *[legacy_client.build_payment(payee, f"{n + 1}.00") for n in range(11)]
    )
    batch_details = await read_batch(legacy_client, batch)
    assert list(batch_details) == [*BATCH_FIELDS, "payments"]
    assert batch_details["payments"]["meta"] == {"page": 1, "pages": 2, "records": 11}
    payment_details = batch_details["payments"]["payments"][0]
    assert len(batch_details["payments"]["payments"]) == 10
    assert list(payment_details) == LISTED_PAYMENT_FIELDS
    assert list(payment_details["batch"]) == [
        "id",
        "createdAt",
        "updatedAt",
        "sentAt",
        "completedAt",
    ]
    assert payment_details["batch"]["id"] == batch["id"]
    assert payment_details["recipient"] == {
        "id": payee["id"], "referenceId": None, "email": "zoe@example.com", "name": "Zoë Peña",
        "status": "active", "country": "US", "countryCode": "US",
    }  # fmt: skip
    assert (payment_details["method"], payment_details["methodDisplay"]) == (
        "bank-transfer",
        "Bank Transfer",
    )
    assert (
        payment_details["isSupplyPayment"],
        payment_details["memo"],
        payment_details["processedAt"],
    ) == (False, "", None)


async def test_empty_batch_can_be_created(legacy_client):
    batch = await legacy_client.create_batch()
    assert (batch["amount"], batch["totalPayments"]) == ("0.00", 0)


async def test_payments_have_source_or_target_amount(legacy_client, german_payee):
    target = {"recipient": {"id": german_payee["id"]}, "targetAmount": 92, "targetCurrency": "EUR"}
    batch = await legacy_client.create_batch(
        legacy_client.build_payment(german_payee, "100.00", memo="Größe"), target
    )
    first, second = await legacy_client.list_payments(batch)
    assert (first["sourceAmount"], first["targetAmount"]) == ("100.00", "92.00")
    assert (second["sourceAmount"], second["targetAmount"]) == ("100.00", "92.00")
    assert (first["exchangeRate"], first["fxRate"], first["fees"]) == ("0.92", "0.92", "1.00")
    assert (first["targetCurrency"], first["targetCurrencyName"]) == ("EUR", "Euro")
    assert first["memo"] == "Größe"


async def test_recipient_can_be_named_by_email(legacy_client, payee):
    batch = await legacy_client.create_batch(
        {"recipient": {"email": payee["email"]}, "sourceAmount": "5"}
    )
    (payment,) = await legacy_client.list_payments(batch)
    assert payment["recipient"]["id"] == payee["id"]


async def test_batch_currency_can_come_from_payments(legacy_client, payee):
    payments = [
        legacy_client.build_payment(payee, sourceCurrency="CAD"),
        legacy_client.build_payment(payee),
    ]
    body = {"payments": payments}
    created_batch = (await legacy_client.request_ok("POST", "/batches", body))["batch"]
    assert created_batch["currency"] == "CAD"


@pytest.mark.parametrize(
    "amount",
    ["0", "0.00", "-1", "+1", "1.0", "1.001", "1e2", "1,000", " 1", "1_0", "٣", True, [], 1.5, -3],
)
async def test_other_amount_is_refused(legacy_client, payee, amount):
    body = {
        "sourceCurrency": "USD",
        "payments": [
            legacy_client.build_payment(payee),
            legacy_client.build_payment(payee, amount),
        ],
    }
    expected = (406, [("invalid_field", "payments[1].sourceAmount")])
    assert await legacy_client.request_refused("POST", "/batches", body) == expected


@pytest.mark.parametrize("number_text", [b"1e2", b"1.000E+1", b"10.0", b"1.000"])
async def test_number_is_validated_as_written(legacy_client, payee, number_text):
    body = b'{"sourceCurrency":"USD","payments":[{"recipient":{"id":"%b"},"sourceAmount":%b}]}'
    data = body % (payee["id"].encode(), number_text)
    answer = await legacy_client.request("POST", "/batches", data=data)
    assert answer.errors == [("invalid_field", "payments[0].sourceAmount")]
    answer = await legacy_client.request(
        "POST", "/batches", data=data.replace(number_text, b"10.00")
    )
    assert answer.body["batch"]["amount"] == "10.00"


async def test_large_sum_keeps_all_digits(legacy_client, payee):
    batch = await legacy_client.create_batch(
        legacy_client.build_payment(payee, "99999999999999999999.99"),
        legacy_client.build_payment(payee, 10**20),
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
async def test_invalid_batch_is_refused_and_not_created(legacy_client, body, errors):
    assert await legacy_client.request_refused("POST", "/batches", body) == (406, errors)
    assert (await legacy_client.request_ok("GET", "/batches"))["batches"] == []


async def test_errors_of_each_payment_are_listed(legacy_client, payee):
    body = {
        "payments": [
            legacy_client.build_payment(payee, sourceCurrency="USD"),
            legacy_client.build_payment(payee, sourceCurrency="EUR"),
            legacy_client.build_payment(payee, targetAmount="1", targetCurrency="EUR"),
            {"recipient": {"id": payee["id"]}, "targetAmount": "1"},
            {"recipient": {"id": payee["id"]}, "targetAmount": "1", "targetCurrency": "XTS"},
            legacy_client.build_payment(payee, memo=["x"]),
        ]
    }
    assert await legacy_client.request_refused("POST", "/batches", body) == (
        406,
        [
            ("invalid_field", "payments[1].sourceCurrency"),
            ("invalid_field", "payments[2].targetAmount"),
            ("empty_field", "payments[3].targetCurrency"),
            ("invalid_field", "payments[4].targetCurrency"),
            ("invalid_field", "payments[5].memo"),
        ],
    )


@pytest.mark.parametrize("status", ["disabled", "suspended", None])
async def test_unpayable_recipient_is_refused(legacy_client, payee, status):
    recipient_path = f"/recipients/{payee['id']}"
    if status is None:
        await legacy_client.request_ok("DELETE", recipient_path)
    else:
        await legacy_client.request_ok("PATCH", recipient_path, {"status": status})
    body = {"sourceCurrency": "USD", "payments": [legacy_client.build_payment(payee)]}
    expected = (406, [("invalid_status", "payments[0].recipient.id")])
    assert await legacy_client.request_refused("POST", "/batches", body) == expected
    body["payments"] = [{"recipient": {"email": payee["email"]}, "sourceAmount": "1"}]
    code = "invalid_field" if status is None else "invalid_status"
    expected = (406, [(code, "payments[0].recipient.email")])
    assert await legacy_client.request_refused("POST", "/batches", body) == expected


async def test_ambiguous_email_is_refused(legacy_client, payee):
    other_recipient = await legacy_client.create_recipient()
    body = {"sourceCurrency": "USD"}
    body["payments"] = [{"recipient": {"email": payee["email"]}, "sourceAmount": "1"}]
    answer = await legacy_client.request("POST", "/batches", body)
    assert answer.errors == [("invalid_field", "payments[0].recipient.email")]
    assert "several" in answer.text
    await legacy_client.request_ok("DELETE", f"/recipients/{other_recipient['id']}")
    await legacy_client.request_ok("POST", "/batches", body)


async def test_payments_are_added_changed_and_removed_in_one_edit(
    legacy_client, clock, payee, german_payee
):
    batch = await legacy_client.create_batch(
        *[legacy_client.build_payment(payee, f"{n}.00") for n in (1, 2, 3)]
    )
    first, second, third = await legacy_client.list_payments(batch)
    clock.now += 60
    body = {
        "payments": [
            legacy_client.build_payment(german_payee, "40.00"),
            {"id": third["id"], "targetAmount": "9.20", "targetCurrency": "EUR"},
        ],
        "update_payments": [{"id": first["id"], "sourceAmount": 10, "memo": "more"}],
        "remove_payments": [{"id": second["id"]}],
        "description": "April",
        "unknown": "ignored",
    }
    answer = await legacy_client.request("PATCH", batch_path(batch), body)
    assert answer.text == '{"ok":true,"object":"updated"}'
    batch_after = await read_batch(legacy_client, batch)
    assert (batch_after["description"], batch_after["amount"]) == ("April", "60.00")
    assert [
        (payment["sourceAmount"], payment["memo"])
        for payment in batch_after["payments"]["payments"]
    ] == [
        ("10.00", "more"),
        ("10.00", ""),
        ("40.00", ""),
    ]
    assert batch_after["updatedAt"] > batch_after["createdAt"]
    answer = await legacy_client.request(
        "PATCH", batch_path(batch), {**batch_after, "description": None}
    )
    assert answer.text == '{"ok":true,"object":"updated"}'
    batch_again = await read_batch(legacy_client, batch)
    assert batch_again == {**batch_after, "description": "", "updatedAt": batch_again["updatedAt"]}
    answer = await legacy_client.request("PATCH", batch_path(batch), {"sourceCurrency": "EUR"})
    assert (answer.status, answer.errors) == (406, [("invalid_field", "sourceCurrency")])


async def test_edit_is_all_or_nothing(legacy_client, payee):
    batch = await legacy_client.create_batch(
        legacy_client.build_payment(payee), legacy_client.build_payment(payee)
    )
    first_id, second_id = (payment["id"] for payment in await legacy_client.list_payments(batch))
    body = {
        "payments": [{"id": "P-unknown", "sourceAmount": "1"}],
        "update_payments": [{"id": first_id, "sourceAmount": "99.00"}, {"sourceAmount": "1"}],
        "remove_payments": [{"id": first_id}, {"id": second_id}, {"id": "P-unknown"}, {"id": 7}],
    }
    assert await legacy_client.request_refused("PATCH", batch_path(batch), body) == (
        406,
        [
            ("invalid_field", "payments[0].id"),
            ("empty_field", "update_payments[1].id"),
            ("invalid_field", "remove_payments[0].id"),
            ("invalid_field", "remove_payments[2].id"),
            ("invalid_field", "remove_payments[3].id"),
        ],
    )
    assert (await read_batch(legacy_client, batch))["amount"] == "20.00"


async def test_batch_is_deleted(legacy_client, payee):
    batch = await legacy_client.create_batch(legacy_client.build_payment(payee))
    (payment,) = await legacy_client.list_payments(batch)
    answer = await legacy_client.request("DELETE", batch_path(batch))
    assert answer.text == '{"ok":true,"object":"deleted"}'
    for path in (batch_path(batch), batch_path(batch, "/payments"), f"/payments/{payment['id']}"):
        assert await legacy_client.request_refused("GET", path) == (404, [("not_found", None)])


async def test_batches_are_deleted_all_or_none(legacy_client, payee):
    batch = [await legacy_client.create_batch(legacy_client.build_payment(payee)) for _ in range(3)]
    ids = [other_batch["id"] for other_batch in batch]
    await legacy_client.request_ok("POST", batch_path(batch[2], "/start-processing"))
    assert await legacy_client.request_refused("DELETE", "/batches", {"ids": ids}) == (
        406,
        [("invalid_status", None)],
    )
    assert await legacy_client.request_refused(
        "DELETE", "/batches", {"ids": [*ids, "B-unknown"]}
    ) == (
        404,
        [("not_found", None)],
    )
    assert await legacy_client.request_refused("DELETE", "/batches", {}) == (
        406,
        [("empty_field", "ids")],
    )
    assert await legacy_client.request_refused("DELETE", "/batches") == (
        406,
        [("invalid_field", None)],
    )
    assert await legacy_client.request_ok("DELETE", "/batches", {"ids": ids[:2]}) == {
        "ok": True,
        "object": "deleted",
    }
    assert [
        other_batch["id"]
        for other_batch in (await legacy_client.request_ok("GET", "/batches"))["batches"]
    ] == ids[2:]


async def test_list_is_newest_first_and_searchable_by_id(legacy_client, clock):
    created_batches = []
    for _ in range(12):
        created_batches.append(await legacy_client.create_batch())
        clock.now += 1
    body = await legacy_client.request_ok("GET", "/batches?page=2&pageSize=5")
    assert body["meta"] == {"page": 2, "pages": 3, "records": 12}
    assert body["batches"] == created_batches[::-1][5:10]
    searched_batch = created_batches[4]
    body = await legacy_client.request_ok(
        "GET", f"/batches?search={searched_batch['id'][4:12].lower()}"
    )
    assert body["batches"] == [searched_batch]
    body = await legacy_client.request_ok("GET", "/batches?search=&page=0&pageSize=x")
    assert (body["meta"]["page"], len(body["batches"])) == (1, 10)
    current_id = next(iter(legacy_client.service.find_or_create_tenant().batches))
    assert (await legacy_client.request_ok("GET", f"/batches?search={current_id}"))["batches"] == []


async def test_quote_updates_rates_of_bank_transfers(legacy_client, german_payee, wallet_holder):
    batch = await legacy_client.create_batch(
        legacy_client.build_payment(german_payee, "100.00"),
        legacy_client.build_payment(wallet_holder, "10.00"),
    )
    answer = await legacy_client.request("POST", batch_path(batch, "/generate-quote"))
    quoted_payments = answer.body["batch"]["payments"]["payments"]
    assert [payment["targetAmount"] for payment in quoted_payments] == ["92.05", "10.00"]
    assert quoted_payments == await legacy_client.list_payments(batch)
    summary = (await legacy_client.request_ok("GET", batch_path(batch, "/summary")))["batchSummary"]
    assert summary["quoteExpiredAt"] == "2025-10-09T09:23:20.000Z"


async def test_expired_quote_is_refused_until_renewed(legacy_client, clock, payee):
    batch = await legacy_client.create_batch(legacy_client.build_payment(payee))
    await legacy_client.request_ok("POST", batch_path(batch, "/generate-quote"))
    clock.now += 1800
    start_path = batch_path(batch, "/start-processing")
    assert await legacy_client.request_refused("POST", start_path) == (
        406,
        [("expired_quote", None)],
    )
    await legacy_client.request_ok("POST", batch_path(batch, "/generate-quote"))
    await legacy_client.request_ok("POST", start_path)


async def test_batch_life_cycle(legacy_client, clock, payee, german_payee):
    batch = await legacy_client.create_batch(
        legacy_client.build_payment(payee, "100.00"),
        legacy_client.build_payment(german_payee, "50.00"),
    )
    legacy_client.service.set_payment_outcome(german_payee["id"], "returned")
    answer = await legacy_client.request("POST", batch_path(batch, "/start-processing"), data=b"")
    assert list(answer.body["batch"]) == BATCH_FIELDS
    assert (answer.body["batch"]["status"], answer.body["batch"]["sentAt"]) == (
        "processing",
        "2025-10-09T08:53:20.000Z",
    )
    refusal = (406, [("invalid_status", None)])
    for state in ("processing", "complete"):
        assert (await read_batch(legacy_client, batch))["status"] == state
        for method, suffix, body in [
            ("PATCH", "", {}), ("DELETE", "", None), ("POST", "/generate-quote", None),
            ("POST", "/start-processing", None), ("POST", "/payments", legacy_client.build_payment(payee)),
        ]:  # fmt: skip
            assert (
                await legacy_client.request_refused(method, batch_path(batch, suffix), body)
                == refusal
            )
        clock.now += 2
    completed_batch = await read_batch(legacy_client, batch)
    assert completed_batch["completedAt"] == "2025-10-09T08:53:22.000Z"
    assert [payment["status"] for payment in completed_batch["payments"]["payments"]] == [
        "processed",
        "returned",
    ]
    # 50.00 was returned; its fee of 1.00 was not.
    assert legacy_client.service.read_balance("demo", "USD") == Decimal("999898.00")


async def test_batch_of_failed_payments_is_complete(legacy_client, clock, payee):
    legacy_client.service.set_payment_outcome(payee["id"], "failed")
    batch = await legacy_client.create_batch(legacy_client.build_payment(payee))
    await legacy_client.request_ok("POST", batch_path(batch, "/start-processing"))
    clock.now += 3
    assert (await read_batch(legacy_client, batch))["status"] == "complete"
    (payment,) = await legacy_client.list_payments(batch)
    assert (payment["status"], payment["processedAt"]) == ("failed", None)


async def test_unstartable_batch_is_refused(legacy_client, payee, german_payee, wallet_holder):
    refusal = (406, [("invalid_status", None)])
    empty_batch = await legacy_client.create_batch()
    assert (
        await legacy_client.request_refused("POST", batch_path(empty_batch, "/start-processing"))
        == refusal
    )
    unfunded_batch = await legacy_client.create_batch(
        legacy_client.build_payment(payee, "1000000.00")
    )
    assert unfunded_batch["status"] == "pending"
    assert (
        await legacy_client.request_refused("POST", batch_path(unfunded_batch, "/start-processing"))
        == refusal
    )
    small_batch = await legacy_client.create_batch(
        legacy_client.build_payment(german_payee, "1.00"),
        {"recipient": {"id": german_payee["id"]}, "targetAmount": "1", "targetCurrency": "EUR"},
    )
    answer = await legacy_client.request("POST", batch_path(small_batch, "/start-processing"))
    # No sent field is at fault, so the message names the payment.
    assert answer.errors == [("invalid_field", None)] * 2
    for error, payment in zip(
        answer.body["errors"], await legacy_client.list_payments(small_batch), strict=True
    ):
        assert payment["id"] in error["message"]
    suspended_batch = await legacy_client.create_batch(
        legacy_client.build_payment(payee), legacy_client.build_payment(wallet_holder)
    )
    await legacy_client.request_ok(
        "PATCH", f"/recipients/{wallet_holder['id']}", {"status": "disabled"}
    )
    assert (
        await legacy_client.request_refused(
            "POST", batch_path(suspended_batch, "/start-processing")
        )
        == refusal
    )


async def test_pending_batch_can_be_edited_and_opens_once_funded(legacy_client, payee):
    batch = await legacy_client.create_batch(legacy_client.build_payment(payee, "1000000.00"))
    await legacy_client.request_ok(
        "PATCH", batch_path(batch), {"payments": [legacy_client.build_payment(payee)]}
    )
    legacy_client.service.set_balance("demo", "USD", "2000000.00")
    assert (await read_batch(legacy_client, batch))["status"] == "open"


async def test_summary_has_every_field(legacy_client, clock, payee, wallet_holder):
    legacy_client.service.set_wallet_balance("demo", "USD", "77.70")
    batch = await legacy_client.create_batch(
        legacy_client.build_payment(payee, "100.10"),
        legacy_client.build_payment(payee, "0.05"),
        legacy_client.build_payment(wallet_holder, "20.00"),
    )
    clock.now += 5
    answer = await legacy_client.request("GET", batch_path(batch, "/summary"))
    batch_summary = answer.body["batchSummary"]
    assert list(batch_summary) == [
        "id", "processed_by", "errors", "serverTime", "status", "currency", "description",
        "sentAt", "completedAt", "createdAt", "updatedAt", "quoteExpiredAt", "methods",
        "ServiceTotal", "GatewayTotal", "total", "merchantBalances", "enoughFunds",
    ]  # fmt: skip
    assert (batch_summary["id"], batch_summary["processed_by"], batch_summary["errors"]) == (
        batch["id"],
        "API",
        [],
    )
    assert batch_summary["serverTime"] == "2025-10-09T08:53:25.000Z"
    assert list(batch_summary["methods"]) == ["bank-transfer", "wallet"]
    bank = {
        "count": 2, "value": Decimal("100.15"), "fees": Decimal(2), "recipientFees": 0,
        "merchantFees": Decimal(2), "net": Decimal("102.15"),
    }  # fmt: skip
    wallet_totals = {
        "count": 1, "value": 20, "fees": 0, "recipientFees": 0, "merchantFees": 0, "net": 20
    }  # fmt: skip
    assert batch_summary["methods"]["bank-transfer"] == {
        **bank, "accountType": "service", "displayName": "Bank Transfer"
    }  # fmt: skip
    assert batch_summary["methods"]["wallet"] == {
        **wallet_totals, "accountType": "wallet", "displayName": "Wallet"
    }  # fmt: skip
    assert (batch_summary["ServiceTotal"], batch_summary["GatewayTotal"]) == (bank, wallet_totals)
    assert batch_summary["total"] == {name: bank[name] + wallet_totals[name] for name in bank}
    assert batch_summary["merchantBalances"] == {
        "GatewayTotal": Decimal("77.70"), "ServiceTotal": Decimal(1_000_000)
    }  # fmt: skip
    assert batch_summary["enoughFunds"] is True
    assert '"value":100.15,"fees":2,' in answer.text
    assert '"GatewayTotal":77.7,' in answer.text


async def test_summary_of_empty_or_unfunded_batch(legacy_client, payee):
    batch = await legacy_client.create_batch(sourceCurrency="JPY")
    batch_summary = (await legacy_client.request_ok("GET", batch_path(batch, "/summary")))[
        "batchSummary"
    ]
    assert list(batch_summary["methods"]) == ["bank-transfer", "wallet"]
    assert (batch_summary["total"]["count"], batch_summary["merchantBalances"]["ServiceTotal"]) == (
        0,
        0,
    )
    unfunded_batch = await legacy_client.create_batch(
        legacy_client.build_payment(payee, "1000000.00")
    )
    batch_summary = (await legacy_client.request_ok("GET", batch_path(unfunded_batch, "/summary")))[
        "batchSummary"
    ]
    assert (batch_summary["status"], batch_summary["enoughFunds"]) == ("pending", False)


@pytest.mark.parametrize(
    ("method", "suffix"),
    [
        ("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/summary"), ("GET", "/payments"),
        ("POST", "/payments"), ("POST", "/generate-quote"), ("POST", "/start-processing"),
    ],
)  # fmt: skip
async def test_unknown_batch_is_404(legacy_client, method, suffix):
    path = f"/batches/B-unknown{suffix}"
    body = {} if (method, suffix) in {("PATCH", ""), ("POST", "/payments")} else None
    assert await legacy_client.request_refused(method, path, body) == (404, [("not_found", None)])
