"""Source and target amounts, exchange rates, and quotes."""

from decimal import Decimal

from gateway.simulator import ServiceOptions

CENT = Decimal("0.01")


async def test_exchange_is_exact_for_amounts_of_any_size(client, german_payee):
    amount = "123456789012345678901234567.89"
    batch = await client.create_batch(client.build_payment(german_payee, amount))
    numerator = int(amount.replace(".", "")) * 92
    cents = (numerator + 50) // 100
    assert await client.list_amounts(batch) == [(amount, f"{cents // 100}.{cents % 100:02d}")]


async def test_quote_expires_after_configured_time(client, clock, payee):
    batch = await client.create_batch(client.build_payment(payee))
    clock.now += 1
    quoted_batch = (await client.generate_quote(batch)).json["batch"]
    assert quoted_batch["quoteExpiredAt"] == "2025-10-09T09:23:21.000Z"
    assert quoted_batch["updatedAt"] == "2025-10-09T08:53:21.000Z"
    assert {
        name: value
        for name, value in (await client.read_summary(batch)).items()
        if name in quoted_batch
    } == quoted_batch


async def test_quote_updates_bank_transfer_rates_only(client, german_payee, wallet_holder, payee):
    batch = await client.create_batch(
        client.build_payment(german_payee, "1000.00"),
        client.build_payment(german_payee, "1000.00", "EUR"),
        client.build_payment(wallet_holder, "1000.00"),
        client.build_payment(payee, "1000.00"),
    )
    amounts = [await client.list_amounts(batch)]
    for _ in range(2):
        quoted_batch = (await client.generate_quote(batch)).json["batch"]
        amounts.append(await client.list_amounts(batch))
        sources = sum(Decimal(source) for source, _ in amounts[-1])
        assert quoted_batch["amount"] == str(sources)
    assert [payment[0] for payment in amounts] == [
        ("1000.00", "920.00"), ("1000.00", "920.46"), ("1000.00", "920.92"),
    ]  # fmt: skip
    assert [payment[1] for payment in amounts] == [
        ("1086.96", "1000.00"), ("1086.41", "1000.00"), ("1085.87", "1000.00"),
    ]  # fmt: skip
    assert [payment[2] for payment in amounts] == [("1000.00", "920.00")] * 3
    assert [payment[3] for payment in amounts] == [("1000.00", "1000.00")] * 3
    rates = [payment["exchangeRate"] for payment in (await client.read_summary(batch))["payments"]]
    assert rates == ["0.92092", "0.92092", "0.92", "1"]


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
