"""Lists of payments, and balances."""

from gateway.simulator import ServiceOptions, Vocabulary


async def test_all_payments_are_listed_newest_first(client, clock, payee, german_payee):
    await client.create_batch(
        client.build_payment(payee, "1.00"), client.build_payment(german_payee, "2.00")
    )
    clock.now += 1
    batch = await client.create_batch()
    last_payment = await client.add_payment(
        batch, client.build_payment(payee, "3.00", memo="Größe")
    )
    answer = (await client.call("GET", "/v1/payments")).json
    assert answer["meta"] == {"page": 1, "pages": 1, "records": 3}
    assert [payment["sourceAmount"] for payment in answer["payments"]] == ["3.00", "2.00", "1.00"]
    assert answer["payments"][0] == last_payment
    page = (await client.call("GET", "/v1/payments?page=2&pageSize=2&search=")).json
    assert [payment["sourceAmount"] for payment in page["payments"]] == ["1.00"]
    search_result = (await client.call("GET", "/v1/payments?search=gr%C3%B6")).json
    assert search_result["payments"] == [last_payment]
    assert (await client.call("GET", "/v1/payments?pageSize=0")).status == 400


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
    payment_by_id = (await client.call("GET", f"/v1/payments/{seeded_payments[0]['id']}")).json[
        "payment"
    ]
    assert payment_by_id in answer["payments"]
    assert (await client.call("GET", "/v1/payments?pageSize=20")).json["meta"]["records"] == 5


async def test_payment_shows_current_recipient(client, payee):
    payment = await client.add_payment(await client.create_batch(), client.build_payment(payee))
    client.service.set_compliance(payee["id"], "verified")
    await client.call("PATCH", f"/v1/recipients/{payee['id']}", {"firstName": "Ana"})
    shown_payment = (await client.call("GET", f"/v1/payments/{payment['id']}")).json["payment"]
    assert shown_payment["recipient"] == await client.read_recipient(payee) != payee
    assert shown_payment["compliance"] == {
        "status": "verified",
        "checkedAt": "2025-10-09T08:53:20.000Z",
    }


async def test_unknown_payment_is_not_found(client):
    answer = await client.call("GET", "/v1/payments/P-none")
    assert (answer.status, answer.errors) == (404, [("not_found", None)])


async def test_balances_are_keyed_by_currency(client):
    client.service.set_balance("demo", "USD", "12.5")
    answer = (await client.call("GET", "/v1/balance")).json
    assert list(answer["balances"]) == ["USD", "EUR", "GBP", "CAD", "AUD"]
    assert answer["balances"]["USD"] == {
        "primary": True,
        "amount": "12.50",
        "currency": "USD",
        "type": "service",
        "accountNumber": None,
    }
    assert answer["balances"]["EUR"]["amount"] == "1000000.00"
    assert [balance["primary"] for balance in answer["balances"].values()] == [True] + [False] * 4


async def test_wallet_balance_appears_once_set(client):
    client.service.set_wallet_balance("demo", "USD", "7")
    balances = (await client.call("GET", "/v1/balance")).json["balances"]
    assert balances["wallet"] == {
        "primary": False,
        "amount": "7.00",
        "currency": "USD",
        "type": "wallet",
        "accountNumber": "demo@example.com",
    }


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


async def test_started_batch_changes_balance(client, clock, payee):
    batch = await client.create_batch(client.build_payment(payee, "10.00"))
    client.service.set_payment_outcome(payee["id"], "returned")
    await client.start_batch(batch)

    async def dollars():
        return (await client.call("GET", "/v1/balance")).json["balances"]["USD"]["amount"]

    assert await dollars() == "999989.00"
    clock.now += 2
    assert await dollars() == "999999.00"
