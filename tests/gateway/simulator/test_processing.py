"""Processing of started batches, and the balance that pays for them."""

import asyncio
from decimal import Decimal

import aiohttp
import pytest

from gateway.simulator import BatchStart, Fault, ServiceCredentials, ServiceOptions


async def test_started_batch_is_processed_after_delay(client, clock, payee, german_payee):
    batch = await client.create_batch(
        client.build_payment(payee, "10.00"), client.build_payment(german_payee, "5.50")
    )
    clock.now += 10
    started_batch = (await client.start_batch(batch)).json["batch"]
    assert (started_batch["status"], started_batch["sentAt"]) == (
        "processing",
        "2025-10-09T08:53:30.000Z",
    )
    assert client.service.batch_starts == [BatchStart("demo", "sandbox", batch["id"], clock.now)]
    clock.now += 1.999
    summary = await client.read_summary(batch)
    assert (summary["status"], summary["completedAt"]) == ("processing", None)
    assert {listed_payment["status"] for listed_payment in summary["payments"]} == {"pending"}
    clock.now += 60
    summary = await client.read_summary(batch)
    assert summary["status"] == "processed"
    assert summary["completedAt"] == summary["updatedAt"] == "2025-10-09T08:53:32.000Z"
    for payment in summary["payments"]:
        assert payment["status"] == "processed"
        assert payment["processedAt"] == payment["batch"]["completedAt"] == summary["completedAt"]
        assert payment["batch"]["sentAt"] == started_batch["sentAt"]


async def test_processing_time_and_final_status_are_configurable(
    connect_client, us_bank, us_address
):
    client = await connect_client(
        options=ServiceOptions(processing_seconds=0, processed_word="complete")
    )
    payee = await client.create_recipient(address=us_address, account=us_bank)
    batch = await client.create_batch(client.build_payment(payee))
    assert (await client.start_batch(batch)).json["batch"]["status"] == "processing"
    assert (await client.read_summary(batch))["status"] == "complete"


async def test_balance_is_debited_once(client, clock, payee, german_payee):
    batch = await client.create_batch(
        client.build_payment(payee, "10.00"), client.build_payment(german_payee, "9.20", "EUR")
    )
    client.service.set_balance("demo", "USD", "22.00")
    await client.start_batch(batch)
    assert client.service.read_balance("demo", "USD") == 0
    # The rest would not cover the batch again; a started batch still does not turn pending.
    assert (await client.read_summary(batch))["status"] == "processing"
    answer = await client.start_batch(batch)
    assert (answer.status, answer.errors) == (400, [("invalid_status", None)])
    clock.now += 5
    answer = await client.start_batch(batch)
    assert (answer.status, answer.errors) == (400, [("invalid_status", None)])
    assert len(client.service.batch_starts) == 1
    assert client.service.read_balance("demo", "USD") == 0
    assert client.service.read_balance("demo", "EUR") == Decimal("1000000.00")


async def test_concurrent_starts_start_batch_once(client, payee):
    batch = await client.create_batch(client.build_payment(payee))
    answers = await asyncio.gather(*(client.start_batch(batch) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [200] + [400] * 7
    assert len(client.service.batch_starts) == 1


async def test_two_batches_cannot_spend_the_same_balance(client, payee):
    client.service.set_balance("demo", "USD", "15.00")
    first, second = (
        await client.create_batch(client.build_payment(payee)),
        await client.create_batch(client.build_payment(payee)),
    )
    assert (first["status"], second["status"]) == ("open", "open")
    assert (await client.start_batch(first)).status == 200
    assert (await client.read_summary(second))["status"] == "pending"
    assert (await client.start_batch(second)).errors == [("invalid_status", None)]


@pytest.mark.parametrize("outcome", ["failed", "returned"])
async def test_failed_payment_is_refunded(client, clock, payee, german_payee, outcome):
    client.service.set_payment_outcome(german_payee["id"], outcome)
    batch = await client.create_batch(
        client.build_payment(payee, "10.00"), client.build_payment(german_payee, "5.50")
    )
    await client.start_batch(batch)
    assert client.service.read_balance("demo", "USD") == Decimal("999982.50")
    clock.now += 2
    summary = await client.read_summary(batch)
    assert summary["status"] == "processed"
    assert [payment["status"] for payment in summary["payments"]] == ["processed", outcome]
    processed_at = summary["payments"][1]["processedAt"]
    assert processed_at == (None if outcome == "failed" else summary["completedAt"])
    assert client.service.read_balance("demo", "USD") == Decimal("999988.00")
    await client.read_summary(batch)
    assert client.service.read_balance("demo", "USD") == Decimal("999988.00")


@pytest.mark.parametrize(("close_time", "expected_start_count"), [("before", 0), ("after", 1)])
async def test_start_can_lose_its_answer(client, payee, close_time, expected_start_count):
    batch = await client.create_batch(client.build_payment(payee))
    client.simulator.inject_fault(Fault("POST", "/v1/batches/*/start-processing", close=close_time))
    with pytest.raises(aiohttp.ClientConnectionError):
        await client.start_batch(batch)
    assert len(client.service.batch_starts) == expected_start_count
    assert (await client.read_summary(batch))["status"] == (
        "processing" if expected_start_count else "open"
    )


async def test_records_cover_all_merchants(client, payee, us_bank, us_address):
    await client.start_batch(await client.create_batch(client.build_payment(payee)))
    client.service.add_credentials(ServiceCredentials("AK2", "two", "other", "live"))
    client.access_key, client.secret_key = "AK2", "two"
    payee = await client.create_recipient(address=us_address, account=us_bank)
    batch = await client.create_batch(client.build_payment(payee))
    await client.start_batch(batch)
    assert [(batch_start.merchant, batch_start.environment) for batch_start in client.service.batch_starts] == [
        ("demo", "sandbox"), ("other", "live"),
    ]  # fmt: skip
    assert client.service.creation_counts == {
        "recipient": 2,
        "account": 2,
        "batch": 2,
        "payment": 2,
    }
    assert client.service.read_balance("other", "USD", environment="live") == Decimal("999989.00")
