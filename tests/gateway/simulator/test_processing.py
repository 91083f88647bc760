"""Processing of started batches, and the balance that pays for them."""

import asyncio
from decimal import Decimal

import aiohttp
import pytest

from gateway.simulator import BatchStart, Fault, ServiceCredentials, ServiceOptions


async def require_start_refused(client, batch):
    """Return the errors of a refused start, after checking that nothing changed."""
    answer = await client.start_batch(batch)
    assert answer.status == 400
    assert client.service.batch_starts == []
    assert (await client.read_summary(batch))["sentAt"] is None
    return answer.errors


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


async def test_single_payment_read_is_processed_after_delay(client, clock, payee):
    batch = await client.create_batch(client.build_payment(payee))
    (payment,) = (await client.read_summary(batch))["payments"]
    await client.start_batch(batch)
    clock.now += 2
    processed_payment = (await client.call("GET", f"/v1/payments/{payment['id']}")).json["payment"]
    assert (processed_payment["status"], processed_payment["processedAt"]) == (
        "processed",
        "2025-10-09T08:53:22.000Z",
    )
    assert client.service.require_payment(payment["id"]).status == "processed"
    assert client.service.require_batch(batch["id"]).state == "processed"


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


async def test_balance_must_cover_payouts_and_fees(client, payee):
    client.service.set_balance("demo", "USD", "10.99")
    batch = await client.create_batch(client.build_payment(payee))
    assert await require_start_refused(client, batch) == [("invalid_status", None)]
    client.service.set_balance("demo", "USD", "11.00")
    assert (await client.start_batch(batch)).status == 200


async def test_empty_batch_is_not_started(client):
    assert await require_start_refused(client, await client.create_batch()) == [
        ("invalid_status", None)
    ]
    assert (await client.start_batch({"id": "B-none"})).errors == [("not_found", None)]


async def test_batch_starts_only_with_payable_recipients(client, payee, us_bank, us_address):
    incomplete, suspended_recipient = (
        await client.create_recipient(),
        await client.create_recipient(address=us_address, account=us_bank),
    )
    batch = await client.create_batch(
        client.build_payment(payee),
        client.build_payment(incomplete),
        client.build_payment(suspended_recipient),
    )
    path = f"/v1/recipients/{suspended_recipient['id']}"
    await client.call("PATCH", path, {"status": "suspended"})
    expected_errors = [
        ("invalid_status", f"payments[{position}].recipient.id") for position in (1, 2)
    ]
    assert await require_start_refused(client, batch) == expected_errors
    await client.call("PATCH", path, {"status": "active"})
    await client.call("PATCH", f"/v1/recipients/{incomplete['id']}", {"address": us_address})
    await client.create_account(incomplete, **us_bank)
    assert (await client.start_batch(batch)).status == 200
    # This recipient had no account when the payment was created, and costs a fee now.
    payments = (await client.read_summary(batch))["payments"]
    assert [payment["fees"] for payment in payments] == ["1.00"] * 3
    assert payments[1]["method"] == "bank-transfer"
    assert client.service.read_balance("demo", "USD") == Decimal("999967.00")


async def test_bank_transfer_below_minimum_is_not_processed(
    client, payee, german_payee, wallet_holder
):
    client.service.require_recipient(payee["id"]).overrides = {"routeMinimum": 50}
    client.service.require_recipient(wallet_holder["id"]).overrides = {"routeMinimum": "50"}
    batch = await client.create_batch(
        client.build_payment(payee, "49.99"),
        client.build_payment(german_payee, "1.99"),
        client.build_payment(german_payee, "2.00"),
        client.build_payment(wallet_holder, "1.00"),
    )
    expected_errors = [("invalid_field", f"payments[{position}].amount") for position in (0, 1)]
    assert await require_start_refused(client, batch) == expected_errors
    await client.call("DELETE", f"/v1/recipients/{german_payee['id']}")
    assert await require_start_refused(client, batch) == expected_errors[:1]


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


async def test_processed_payment_stays_processed(client, clock, payee):
    batch = await client.create_batch(client.build_payment(payee))
    await client.start_batch(batch)
    clock.now += 2
    client.service.set_payment_outcome(payee["id"], "failed")
    assert (await client.read_summary(batch))["status"] == "processed"


async def test_batch_of_failed_payments_has_failed(client, clock, payee):
    client.service.set_payment_outcome(payee["id"], "failed")
    batch = await client.create_batch(client.build_payment(payee), client.build_payment(payee))
    await client.start_batch(batch)
    clock.now += 2
    assert (await client.read_summary(batch))["status"] == "failed"


@pytest.mark.parametrize("seconds", [0, 5])
async def test_started_batch_is_not_edited_or_deleted(client, clock, payee, seconds):
    batch = await client.create_batch(client.build_payment(payee))
    (payment,) = (await client.read_summary(batch))["payments"]
    await client.start_batch(batch)
    clock.now += seconds
    summary_before = await client.read_summary(batch)
    path = f"/v1/batches/{batch['id']}"
    for method, target, body in (
        ("POST", f"{path}/payments", client.build_payment(payee)),
        ("PATCH", path, {"description": "late"}),
        ("DELETE", path, None),
        ("DELETE", "/v1/batches", {"ids": [batch["id"]]}),
        ("PATCH", f"{path}/payments/{payment['id']}", {"amount": "1.00"}),
        ("DELETE", f"{path}/payments/{payment['id']}", None),
    ):
        answer = await client.call(method, target, body)
        assert (answer.status, answer.errors) == (400, [("invalid_status", None)]), target
    assert await client.read_summary(batch) == summary_before


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


@pytest.mark.parametrize(("is_executed", "created_count"), [(False, 0), (True, 1)])
async def test_create_can_return_an_error(client, payee, is_executed, created_count):
    client.simulator.inject_fault(Fault("POST", "/v1/batches", status=502, executes=is_executed))
    answer = await client.call(
        "POST", "/v1/batches", {"currency": "USD", "payments": [client.build_payment(payee)]}
    )
    assert answer.status == 502
    assert [client.service.creation_counts[name] for name in ("batch", "payment")] == [
        created_count,
        created_count,
    ]


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
