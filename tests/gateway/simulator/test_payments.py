"""Lists of payments, and balances."""

from gateway.simulator import ServiceOptions, Vocabulary


async def test_recipient_payments_include_batch_and_seeded_payments(
    client, clock, payee, german_payee
):
    await client.create_batch(
        client.build_payment(payee, "1.00"), client.build_payment(german_payee, "2.00")
    )
    seeded_payments = client.service.seed_payments(payee["id"], 2, seed=1)
    clock.now += 400 * 24 * 3600
    await client.create_batch(client.build_payment(payee, "3.00"))
    path = f"/v1/recipients/{payee['id']}/payments"
    answer = (await client.call("GET", path)).json
    assert answer["meta"]["records"] == 4
    creation_times = [payment["createdAt"] for payment in answer["payments"]]
    assert creation_times == sorted(creation_times, reverse=True)
    assert answer["payments"][0]["sourceAmount"] == "3.00"
    assert all(payment["recipient"] == payee for payment in answer["payments"])
    payment_by_id = (await client.call("GET", f"/v1/payments/{seeded_payments[0].id}")).json[
        "payment"
    ]
    assert payment_by_id in answer["payments"]
    assert (await client.call("GET", "/v1/payments?pageSize=20")).json["meta"]["records"] == 5


async def test_balances_can_be_a_list_with_other_path_and_names(connect_client):
    client = await connect_client(
        options=ServiceOptions(balance_shape="list"),
        vocabulary=Vocabulary(balance_path="/v1/profile/balances", service="house", wallet="purse"),
    )
    client.service.set_balance("demo", "JPY", "1")
    client.service.set_wallet_balance("demo", "USD", "7.00")
    client.service.set_balance("other", "JPY", "2")
    answer = (await client.call("GET", "/v1/profile/balances")).json["balances"]
    assert [(payment["currency"], payment["type"]) for payment in answer[-2:]] == [
        ("JPY", "house"), ("USD", "purse"),
    ]  # fmt: skip
    assert answer[-2]["amount"] == "1.00"
    assert (await client.call("GET", "/v1/balance")).status == 404
