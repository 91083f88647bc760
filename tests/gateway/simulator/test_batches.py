"""Creating batches, adding payments to them, and reading them back."""

import re

import pytest

from gateway.simulator import ServiceCredentials, ServiceOptions, Vocabulary

BATCH_FIELDS = {
    "id", "status", "amount", "totalPayments", "currency", "description", "sentAt", "completedAt",
    "createdAt", "updatedAt", "quoteExpiredAt",
}  # fmt: skip
PAYMENT_FIELDS = {
    "id", "recipient", "status", "sourceAmount", "targetAmount", "exchangeRate", "fxRate", "fees",
    "recipientFees", "merchantFees", "memo", "sourceCurrency", "sourceCurrencyName",
    "targetCurrency", "targetCurrencyName", "compliance", "processedAt", "createdAt", "updatedAt",
    "batch",
}  # fmt: skip
LISTED_PAYMENT_FIELDS = PAYMENT_FIELDS | {"method", "methodDisplay", "isSupplyPayment"}
UNKNOWN_PAYEE_PAYMENT = {"recipient": {"id": "R-nobody"}, "amount": "1.00", "currency": "USD"}


async def count_created(client):
    return {name: client.service.creation_counts[name] for name in ("batch", "payment")}


async def test_batch_is_created_with_payments(client, payee, german_payee):
    batch = await client.create_batch(
        client.build_payment(payee, "10.10", memo="née"), client.build_payment(german_payee, "7")
    )
    assert (batch["amount"], batch["totalPayments"]) == ("17.10", 2)
    assert await count_created(client) == {"batch": 1, "payment": 2}
    summary = await client.read_summary(batch)
    first, second = summary.pop("payments")
    assert summary == batch
    assert set(first) == LISTED_PAYMENT_FIELDS
    assert re.fullmatch(r"P-[A-Za-z0-9]{22}", first["id"])
    assert first["recipient"] == {
        "id": payee["id"],
        "referenceId": None,
        "email": "zoe@example.com",
        "name": "Zoë Peña",
        "status": "active",
        "country": "US",
    }
    assert (first["status"], first["memo"], second["memo"]) == ("pending", "née", "")
    assert (first["method"], first["methodDisplay"]) == ("bank-transfer", "Bank Transfer")
    assert (first["fees"], first["merchantFees"], first["recipientFees"]) == (
        "1.00",
        "1.00",
        "0.00",
    )
    assert first["batch"] == {
        name: batch[name] for name in ("id", "sentAt", "completedAt", "createdAt", "updatedAt")
    }


@pytest.mark.parametrize(
    "amount",
    [
        "0", "0.00", "-1.00", "+1.00", "1.0", "1.000", "1.", ".50", "1e2", "1,00", "1_000",
        " 1.00", "1.00\n", "\u0661", "NaN", "", None, 1, 1.5, True, [], "9" * 31,
    ],
)  # fmt: skip
async def test_amount_must_be_positive_with_at_most_two_decimals(client, payee, amount):
    code = "empty_field" if amount in ("", None) else "invalid_field"
    answer = await client.call(
        "POST",
        "/v1/batches",
        {
            "currency": "USD",
            "payments": [client.build_payment(payee), client.build_payment(payee, amount)],
        },
    )
    assert (answer.status, answer.errors) == (400, [(code, "payments[1].amount")])
    assert await count_created(client) == {"batch": 0, "payment": 0}


async def test_large_amounts_are_exact(client, payee):
    large_amount = "9" * 30 + ".99"
    batch = await client.create_batch(
        client.build_payment(payee, large_amount), client.build_payment(payee, "0.02")
    )
    assert batch["amount"] == "1" + "0" * 30 + ".01"
    assert batch["status"] == "pending"


@pytest.mark.parametrize(
    ("body", "errors"),
    [
        ({}, [("empty_field", "currency")]),
        ({"currency": "usd"}, [("invalid_field", "currency")]),
        ({"currency": "XXX"}, [("invalid_field", "currency")]),
        ({"currency": 5}, [("invalid_field", "currency")]),
        (
            {"currency": "USD", "description": 5, "payments": {}},
            [("invalid_field", "description"), ("invalid_field", "payments")],
        ),
        (
            {"payments": ["all", {}]},
            [
                ("empty_field", "currency"),
                ("invalid_field", "payments[0]"),
                ("empty_field", "payments[1].recipient.id"),
                ("empty_field", "payments[1].amount"),
                ("empty_field", "payments[1].currency"),
            ],
        ),
        (
            {
                "currency": "USD",
                "payments": [
                    {"recipient": "R-1", "amount": "x", "currency": "euros", "memo": 7},
                    {"recipient": {"email": "a@example.com"}, "amount": "1", "currency": "USD"},
                ],
            },
            [
                ("invalid_field", "payments[0].recipient"),
                ("invalid_field", "payments[0].amount"),
                ("invalid_field", "payments[0].currency"),
                ("invalid_field", "payments[0].memo"),
                ("empty_field", "payments[1].recipient.id"),
            ],
        ),
    ],
)
async def test_all_errors_of_a_create_are_listed(client, body, errors):
    answer = await client.call("POST", "/v1/batches", body)
    assert (answer.status, answer.errors) == (400, errors)
    assert client.service.find_or_create_tenant().batches == {}


async def test_validation_status_can_be_406(connect_client):
    client = await connect_client(options=ServiceOptions(validation_status=406))
    assert (await client.call("POST", "/v1/batches", {})).status == 406
    batch = await client.create_batch()
    assert (await client.start_batch(batch)).status == 400


async def test_unknown_recipient_can_be_an_invalid_field(connect_client):
    client = await connect_client(options=ServiceOptions(unknown_recipient=400))
    body = {
        "currency": "USD",
        "payments": [UNKNOWN_PAYEE_PAYMENT, {**UNKNOWN_PAYEE_PAYMENT, "amount": ""}],
    }
    answer = await client.call("POST", "/v1/batches", body)
    assert (answer.status, answer.errors) == (
        400,
        [
            ("invalid_field", "payments[0].recipient.id"),
            ("invalid_field", "payments[1].recipient.id"),
            ("empty_field", "payments[1].amount"),
        ],
    )


async def test_archived_recipient_can_be_unknown(connect_client):
    client = await connect_client(options=ServiceOptions(reads_archived=False))
    archived_recipient = await client.create_recipient()
    await client.call("DELETE", f"/v1/recipients/{archived_recipient['id']}")
    body = {"currency": "USD", "payments": [client.build_payment(archived_recipient)]}
    answer = await client.call("POST", "/v1/batches", body)
    assert (answer.status, answer.errors) == (404, [("not_found", "payments[0].recipient.id")])


async def test_batch_is_invisible_to_another_merchant(client, payee):
    batch = await client.create_batch(client.build_payment(payee))
    (payment,) = (await client.read_summary(batch))["payments"]
    client.service.add_credentials(ServiceCredentials("AK2", "two", "other"))
    client.access_key, client.secret_key = "AK2", "two"
    for target in (f"/v1/batch/{batch['id']}/summary", f"/v1/payments/{payment['id']}"):
        assert (await client.call("GET", target)).status == 404
    assert (
        (await client.start_batch(batch)).status
        == (await client.generate_quote(batch)).status
        == 404
    )
    answer = await client.call(
        "POST", "/v1/batches", {"currency": "USD", "payments": [client.build_payment(payee)]}
    )
    assert answer.errors == [("not_found", "payments[0].recipient.id")]


async def test_writes_can_answer_with_id_only(connect_client, us_bank, us_address):
    client = await connect_client(options=ServiceOptions(answers="bare"))
    payee = await client.create_recipient(address=us_address, account=us_bank)
    batch = await client.create_batch(client.build_payment(payee))
    assert set(batch) == {"id"}
    added_payment = await client.add_payment(batch, client.build_payment(payee, "1"))
    assert set(added_payment) == {"id"}
    path = f"/v1/batches/{batch['id']}"
    bare_answer = {"ok": True}
    assert (await client.call("PATCH", path, {"description": "x"})).json == bare_answer
    target = f"{path}/payments/{added_payment['id']}"
    assert (await client.call("PATCH", target, {"memo": "x"})).json == bare_answer
    assert (await client.generate_quote(batch)).json == bare_answer
    payment = (await client.call("GET", f"/v1/payments/{added_payment['id']}")).json["payment"]
    assert (set(payment), payment["memo"]) == (PAYMENT_FIELDS, "x")
    assert (await client.call("DELETE", target)).json == bare_answer
    summary = await client.read_summary(batch)
    assert set(summary) == BATCH_FIELDS | {"payments"}
    assert set(summary["payments"][0]) == LISTED_PAYMENT_FIELDS
    assert (await client.start_batch(batch)).json == bare_answer
    other_batch = await client.create_batch()
    assert (await client.call("DELETE", f"/v1/batches/{other_batch['id']}")).json == bare_answer


async def test_vocabulary_and_id_lengths_are_configurable(connect_client, us_bank, us_address):
    client = await connect_client(
        vocabulary=Vocabulary(
            batch_currency="sourceCurrency",
            summary_path="/v1/batches/{id}/summary",
            summary="digest",
        ),
        options=ServiceOptions(batch_id_length=16, payment_id_length=20),
    )
    answer = await client.call("POST", "/v1/batches", {"currency": "USD"})
    assert answer.errors == [("empty_field", "sourceCurrency")]
    payee = await client.create_recipient(address=us_address, account=us_bank)
    batch = await client.create_batch(client.build_payment(payee), sourceCurrency="USD")
    assert (len(batch["id"]), batch["currency"]) == (len("B-") + 16, "USD")
    answer = await client.call("GET", f"/v1/batches/{batch['id']}/summary")
    assert len(answer.json["digest"]["payments"][0]["id"]) == len("P-") + 20
    assert (await client.call("GET", f"/v1/batch/{batch['id']}/summary")).status == 404


async def test_fields_of_answers_can_be_overridden(client, payee):
    batch = await client.create_batch(client.build_payment(payee))
    client.service.require_batch(batch["id"]).overrides = {"status": "accepted", "dealId": "D-1"}
    (payment,) = (await client.read_summary(batch))["payments"]
    client.service.require_payment(payment["id"]).overrides = {"status": "held"}
    summary = await client.read_summary(batch)
    assert (summary["status"], summary["dealId"]) == ("accepted", "D-1")
    assert summary["payments"][0]["status"] == "held"
