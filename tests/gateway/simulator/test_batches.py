"""Creating batches, adding payments to them, and reading them back."""

import pytest

from gateway.simulator import ServiceCredentials, ServiceOptions


async def count_created(client):
    return {name: client.service.creation_counts[name] for name in ("batch", "payment")}


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


async def test_expired_quote_cannot_be_started_and_can_be_renewed(
    connect_client, clock, us_bank, us_address
):
    client = await connect_client(options=ServiceOptions(quote_seconds=60))
    payee = await client.create_recipient(address=us_address, account=us_bank)
    batch = await client.create_batch(client.build_payment(payee))
    await client.generate_quote(batch)
    clock.now += 60
    answer = await client.start_batch(batch)
    assert (answer.status, answer.errors) == (400, [("expired_quote", None)])
    assert client.service.batch_starts == []
    await client.generate_quote(batch)
    clock.now += 59
    assert (await client.start_batch(batch)).status == 200


@pytest.fixture
async def batch(client, payee, german_payee):
    return await client.create_batch(
        client.build_payment(payee, "10.00", memo="one"),
        client.build_payment(german_payee, "20.00", memo="two"),
    )


@pytest.fixture
async def batch_path(batch):
    return f"/v1/batches/{batch['id']}"


@pytest.fixture
async def payments(client, batch):
    return (await client.read_summary(batch))["payments"]


async def test_edit_is_all_or_nothing(client, batch, batch_path, payments, payee):
    summary_before = await client.read_summary(batch)
    first_item, second_item = ({"id": payment["id"]} for payment in payments)
    body = {
        "description": 5,
        "currency": "EUR",
        "payments": [client.build_payment(payee), {}],
        "update_payments": [{**first_item, "amount": "0"}, {}, {"id": "P-none"}, {"id": 7}, 3],
        "remove_payments": [first_item, second_item, second_item],
    }
    answer = await client.call("PATCH", batch_path, body)
    assert (answer.status, answer.errors) == (
        400,
        [
            ("invalid_field", "currency"),
            ("invalid_field", "description"),
            ("empty_field", "payments[1].recipient.id"),
            ("empty_field", "payments[1].amount"),
            ("empty_field", "payments[1].currency"),
            ("invalid_field", "update_payments[4]"),
            ("invalid_field", "update_payments[0].amount"),
            ("empty_field", "update_payments[1].id"),
            ("invalid_field", "update_payments[2].id"),
            ("invalid_field", "update_payments[3].id"),
            ("invalid_field", "remove_payments[0].id"),
            ("invalid_field", "remove_payments[2].id"),
        ],
    )
    unknown_payee_payment = {"recipient": {"id": "R-nobody"}, "amount": "1", "currency": "USD"}
    answer = await client.call(
        "PATCH", batch_path, {"payments": [unknown_payee_payment], "remove_payments": [first_item]}
    )
    assert (answer.status, answer.errors) == (404, [("not_found", "payments[0].recipient.id")])
    assert await client.read_summary(batch) == summary_before
