"""Processing of started batches, and the balance that pays for them."""

import asyncio
from decimal import Decimal

import pytest

from tests.gateway.simulator.conftest import ADDRESS, US_BANK
from tests.simulator import BatchStart, ServiceOptions


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


async def test_balance_is_debited_once(client, clock, payee, german_payee):
    batch = await client.create_batch(
        client.build_payment(payee, "10.00"), client.build_payment(german_payee, "9.20", "EUR")
    )
    balances = client.service.find_or_create_tenant().balances
    balances["USD"] = Decimal(22)
    await client.start_batch(batch)
    assert balances["USD"] == 0
    # The rest would not cover the batch again; a started batch still does not turn pending.
    assert (await client.read_summary(batch))["status"] == "processing"
    answer = await client.start_batch(batch)
    assert (answer.status, answer.errors) == (400, [("invalid_status", None)])
    clock.now += 5
    answer = await client.start_batch(batch)
    assert (answer.status, answer.errors) == (400, [("invalid_status", None)])
    assert len(client.service.batch_starts) == 1
    assert balances["USD"] == 0
    assert balances["EUR"] == Decimal("1000000.00")


async def test_concurrent_starts_start_batch_once(client, payee):
    batch = await client.create_batch(client.build_payment(payee))
    answers = await asyncio.gather(*(client.start_batch(batch) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [200] + [400] * 7
    assert len(client.service.batch_starts) == 1


async def test_two_batches_cannot_spend_the_same_balance(client, payee):
    client.service.find_or_create_tenant().balances["USD"] = Decimal(15)
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
    balances = client.service.find_or_create_tenant().balances
    client.service.require_recipient(german_payee["id"]).outcome = outcome
    batch = await client.create_batch(
        client.build_payment(payee, "10.00"), client.build_payment(german_payee, "5.50")
    )
    await client.start_batch(batch)
    assert balances["USD"] == Decimal("999982.50")
    clock.now += 2
    summary = await client.read_summary(batch)
    assert summary["status"] == "processed"
    assert [payment["status"] for payment in summary["payments"]] == ["processed", outcome]
    processed_at = summary["payments"][1]["processedAt"]
    assert processed_at == (None if outcome == "failed" else summary["completedAt"])
    assert balances["USD"] == Decimal("999988.00")
    await client.read_summary(batch)
    assert balances["USD"] == Decimal("999988.00")


async def test_expired_quote_cannot_be_started_and_can_be_renewed(connect_client, clock):
    client = await connect_client(options=ServiceOptions(quote_seconds=60))
    payee = await client.create_recipient(address=ADDRESS, account=US_BANK)
    batch = await client.create_batch(client.build_payment(payee))
    quote_path = f"/v1/batches/{batch['id']}/generate-quote"
    await client.call("POST", quote_path)
    clock.now += 60
    answer = await client.start_batch(batch)
    assert (answer.status, answer.errors) == (400, [("expired_quote", None)])
    assert client.service.batch_starts == []
    await client.call("POST", quote_path)
    clock.now += 59
    assert (await client.start_batch(batch)).status == 200
