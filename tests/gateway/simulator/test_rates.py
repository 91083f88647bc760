"""Source and target amounts, exchange rates, and quotes."""

from decimal import ROUND_HALF_UP, Decimal

from gateway.simulator import ServiceOptions

CENT = Decimal("0.01")


def round_to_cents(value):
    return str(value.quantize(CENT, ROUND_HALF_UP))


async def read_only_payment(client, batch):
    (payment,) = (await client.read_summary(batch))["payments"]
    return payment


async def test_same_currency_has_rate_one(client, payee):
    payment = await read_only_payment(
        client, await client.create_batch(client.build_payment(payee, "10.10"))
    )
    assert (payment["sourceAmount"], payment["targetAmount"]) == ("10.10", "10.10")
    assert (payment["exchangeRate"], payment["fxRate"]) == ("1", "1")
    assert payment["sourceCurrencyName"] == payment["targetCurrencyName"] == "US Dollar"


async def test_amount_in_batch_currency_is_source_amount(client, german_payee):
    payment = await read_only_payment(
        client, await client.create_batch(client.build_payment(german_payee, "10.07"))
    )
    assert (payment["sourceAmount"], payment["sourceCurrency"]) == ("10.07", "USD")
    assert (payment["exchangeRate"], payment["targetCurrency"]) == ("0.92", "EUR")
    assert payment["targetAmount"] == round_to_cents(Decimal("10.07") * Decimal("0.92")) == "9.26"
    assert payment["targetCurrencyName"] == "Euro"


async def test_amount_in_other_currency_is_target_amount(client, payee, german_payee):
    batch = await client.create_batch(
        client.build_payment(german_payee, "10", "EUR"), client.build_payment(payee, "5000", "JPY")
    )
    assert await client.list_amounts(batch) == [("10.87", "10.00"), ("32.22", "5000.00")]
    assert batch["amount"] == "43.09"
    payment = (await client.read_summary(batch))["payments"][1]
    assert (payment["targetCurrency"], payment["exchangeRate"]) == ("JPY", "155.2")


async def test_amounts_are_rounded_half_up(client, wallet):
    """1.50 at 0.79 is 1.185; 0.25 at two units per dollar is 0.125."""
    payee = await client.create_recipient(account={**wallet, "currency": "GBP"})
    batch = await client.create_batch(
        client.build_payment(payee, "1.50"),
        client.build_payment(payee, "1.49"),
        client.build_payment(payee, "0.25", "BZD"),
    )
    assert await client.list_amounts(batch) == [
        ("1.50", "1.19"),
        ("1.49", "1.18"),
        ("0.13", "0.25"),
    ]


async def test_exchange_is_exact_for_amounts_of_any_size(client, german_payee):
    amount = "123456789012345678901234567.89"
    batch = await client.create_batch(client.build_payment(german_payee, amount))
    numerator = int(amount.replace(".", "")) * 92
    cents = (numerator + 50) // 100
    assert await client.list_amounts(batch) == [(amount, f"{cents // 100}.{cents % 100:02d}")]


async def test_amount_that_rounds_to_zero_is_refused(client, payee):
    body = {"currency": "USD", "payments": [client.build_payment(payee, "1", "VND")]}
    answer = await client.call("POST", "/v1/batches", body)
    assert answer.errors == [("invalid_field", "payments[0].amount")]


async def test_account_in_unsupported_currency_uses_batch_currency(client, wallet):
    payee = await client.create_recipient(account={**wallet, "currency": "XXX"})
    payment = await read_only_payment(
        client, await client.create_batch(client.build_payment(payee))
    )
    assert (payment["targetCurrency"], payment["targetAmount"]) == ("USD", "10.00")


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


async def test_quote_reads_account_again(client, payee, german_bank):
    batch = await client.create_batch(client.build_payment(payee))
    await client.create_account(payee, **german_bank, primary=True)
    assert await client.list_amounts(batch) == [("10.00", "10.00")]
    await client.generate_quote(batch)
    assert await client.list_amounts(batch) == [("10.00", "9.20")]


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


async def test_unknown_or_started_batch_is_not_quoted(client, payee):
    answer = await client.generate_quote({"id": "B-none"})
    assert (answer.status, answer.errors) == (404, [("not_found", None)])
    batch = await client.create_batch(client.build_payment(payee))
    await client.start_batch(batch)
    answer = await client.generate_quote(batch)
    assert (answer.status, answer.errors) == (400, [("invalid_status", None)])
