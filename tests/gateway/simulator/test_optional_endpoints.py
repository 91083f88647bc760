"""Optional endpoints: batch operations that the document mentions without paths."""

import pytest

from gateway.simulator import ServiceOptions

OPTIONAL_REQUESTS = [
    ("GET", "/v1/batches"),
    ("DELETE", "/v1/batches"),
    ("GET", "/v1/batches/{id}"),
    ("PATCH", "/v1/batches/{id}"),
    ("DELETE", "/v1/batches/{id}"),
    ("GET", "/v1/batches/{id}/payments"),
    ("PATCH", "/v1/batches/{id}/payments/{payment}"),
    ("DELETE", "/v1/batches/{id}/payments/{payment}"),
]


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


async def test_optional_endpoints_can_be_disabled(connect_client, us_bank, us_address):
    client = await connect_client(options=ServiceOptions(inferred=False, lists_payments=False))
    payee = await client.create_recipient(address=us_address, account=us_bank)
    batch = await client.create_batch(client.build_payment(payee))
    summary_before = await client.read_summary(batch)
    (payment,) = summary_before["payments"]
    for method, path in [*OPTIONAL_REQUESTS, ("GET", "/v1/payments")]:
        target = path.format(id=batch["id"], payment=payment["id"])
        body = None if method == "GET" else {"ids": [batch["id"]], "memo": "x"}
        answer = await client.call(method, target, body)
        assert (answer.status, answer.errors) == (404, [("not_found", None)]), target
    assert (await client.call("GET", "/v1/nothing")).status == 404
    assert await client.read_summary(batch) == summary_before
    assert (await client.call("GET", f"/v1/payments/{payment['id']}")).status == 200
    assert (
        (await client.generate_quote(batch)).status
        == (await client.start_batch(batch)).status
        == 200
    )


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
            ("invalid_field", "update_payments[0].amount"),
            ("empty_field", "update_payments[1].id"),
            ("invalid_field", "update_payments[2].id"),
            ("invalid_field", "update_payments[3].id"),
            ("invalid_field", "update_payments[4]"),
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
