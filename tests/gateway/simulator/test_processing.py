"""Processing of started batches, and the balance that pays for them."""

import asyncio
from decimal import Decimal

import aiohttp
import pytest

from gateway.simulator import Fault, Key, Start, Switches


async def refused(client, batch):
    """Return the errors of a refused start, after checking that nothing changed."""
    answer = await client.start_batch(batch)
    assert answer.status == 400
    assert client.service.starts == []
    assert (await client.read_summary(batch))["sentAt"] is None
    return answer.errors


async def test_a_started_batch_is_processed_after_a_moment(client, clock, payee, german):
    batch = await client.create_batch(
        client.build_payment(payee, "10.00"), client.build_payment(german, "5.50")
    )
    clock.now += 10
    started = (await client.start_batch(batch)).json["batch"]
    assert (started["status"], started["sentAt"]) == ("processing", "2025-10-09T08:53:30.000Z")
    assert client.service.starts == [Start("demo", "sandbox", batch["id"], clock.now)]
    clock.now += 1.999
    summary = await client.read_summary(batch)
    assert (summary["status"], summary["completedAt"]) == ("processing", None)
    assert {each["status"] for each in summary["payments"]} == {"pending"}
    clock.now += 60
    summary = await client.read_summary(batch)
    assert summary["status"] == "processed"
    assert summary["completedAt"] == summary["updatedAt"] == "2025-10-09T08:53:32.000Z"
    for payment in summary["payments"]:
        assert payment["status"] == "processed"
        assert payment["processedAt"] == payment["batch"]["completedAt"] == summary["completedAt"]
        assert payment["batch"]["sentAt"] == started["sentAt"]


async def test_a_payment_read_by_itself_is_processed_too(client, clock, payee):
    batch = await client.create_batch(client.build_payment(payee))
    (payment,) = (await client.read_summary(batch))["payments"]
    await client.start_batch(batch)
    clock.now += 2
    read = (await client.call("GET", f"/v1/payments/{payment['id']}")).json["payment"]
    assert (read["status"], read["processedAt"]) == ("processed", "2025-10-09T08:53:22.000Z")
    assert client.service.payment(payment["id"]).status == "processed"
    assert client.service.batch(batch["id"]).state == "processed"


async def test_how_long_it_takes_and_what_it_is_then_can_be_switched(connect, us_bank, us_address):
    client = await connect(switches=Switches(processing_seconds=0, processed_word="complete"))
    payee = await client.create_recipient(address=us_address, account=us_bank)
    batch = await client.create_batch(client.build_payment(payee))
    assert (await client.start_batch(batch)).json["batch"]["status"] == "processing"
    assert (await client.read_summary(batch))["status"] == "complete"


async def test_the_balance_is_debited_once(client, clock, payee, german):
    batch = await client.create_batch(
        client.build_payment(payee, "10.00"), client.build_payment(german, "9.20", "EUR")
    )
    client.service.set_balance("demo", "USD", "22.00")
    await client.start_batch(batch)
    assert client.service.balance("demo", "USD") == 0
    # The rest would not cover the batch again; a started batch still does not turn pending.
    assert (await client.read_summary(batch))["status"] == "processing"
    answer = await client.start_batch(batch)
    assert (answer.status, answer.errors) == (400, [("invalid_status", None)])
    clock.now += 5
    answer = await client.start_batch(batch)
    assert (answer.status, answer.errors) == (400, [("invalid_status", None)])
    assert len(client.service.starts) == 1
    assert client.service.balance("demo", "USD") == 0
    assert client.service.balance("demo", "EUR") == Decimal("1000000.00")


async def test_starts_at_the_same_moment_start_once(client, payee):
    batch = await client.create_batch(client.build_payment(payee))
    answers = await asyncio.gather(*(client.start_batch(batch) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [200] + [400] * 7
    assert len(client.service.starts) == 1


async def test_two_batches_cannot_spend_the_same_money(client, payee):
    client.service.set_balance("demo", "USD", "15.00")
    first, second = (
        await client.create_batch(client.build_payment(payee)),
        await client.create_batch(client.build_payment(payee)),
    )
    assert (first["status"], second["status"]) == ("open", "open")
    assert (await client.start_batch(first)).status == 200
    assert (await client.read_summary(second))["status"] == "pending"
    assert (await client.start_batch(second)).errors == [("invalid_status", None)]


async def test_the_balance_must_cover_payouts_and_fees(client, payee):
    client.service.set_balance("demo", "USD", "10.99")
    batch = await client.create_batch(client.build_payment(payee))
    assert await refused(client, batch) == [("invalid_status", None)]
    client.service.set_balance("demo", "USD", "11.00")
    assert (await client.start_batch(batch)).status == 200


async def test_an_empty_batch_is_not_started(client):
    assert await refused(client, await client.create_batch()) == [("invalid_status", None)]
    assert (await client.start_batch({"id": "B-none"})).errors == [("not_found", None)]


async def test_every_recipient_must_be_payable(client, payee, us_bank, us_address):
    incomplete, suspended = (
        await client.create_recipient(),
        await client.create_recipient(address=us_address, account=us_bank),
    )
    batch = await client.create_batch(
        client.build_payment(payee),
        client.build_payment(incomplete),
        client.build_payment(suspended),
    )
    path = f"/v1/recipients/{suspended['id']}"
    await client.call("PATCH", path, {"status": "suspended"})
    wrong = [("invalid_status", f"payments[{position}].recipient.id") for position in (1, 2)]
    assert await refused(client, batch) == wrong
    await client.call("PATCH", path, {"status": "active"})
    await client.call("PATCH", f"/v1/recipients/{incomplete['id']}", {"address": us_address})
    await client.create_account(incomplete, **us_bank)
    assert (await client.start_batch(batch)).status == 200
    # This recipient had no account when the payment was created, and costs a fee now.
    payments = (await client.read_summary(batch))["payments"]
    assert [each["fees"] for each in payments] == ["1.00"] * 3
    assert payments[1]["method"] == "bank-transfer"
    assert client.service.balance("demo", "USD") == Decimal("999967.00")


async def test_a_bank_transfer_below_the_minimum_is_not_processed(
    client, payee, german, wallet_holder
):
    client.service.recipient(payee["id"]).extra = {"routeMinimum": 50}
    client.service.recipient(wallet_holder["id"]).extra = {"routeMinimum": "50"}
    batch = await client.create_batch(
        client.build_payment(payee, "49.99"),
        client.build_payment(german, "1.99"),
        client.build_payment(german, "2.00"),
        client.build_payment(wallet_holder, "1.00"),
    )
    wrong = [("invalid_field", f"payments[{position}].amount") for position in (0, 1)]
    assert await refused(client, batch) == wrong
    await client.call("DELETE", f"/v1/recipients/{german['id']}")
    assert await refused(client, batch) == wrong[:1]


@pytest.mark.parametrize("outcome", ["failed", "returned"])
async def test_what_does_not_arrive_comes_back(client, clock, payee, german, outcome):
    client.service.set_outcome(german["id"], outcome)
    batch = await client.create_batch(
        client.build_payment(payee, "10.00"), client.build_payment(german, "5.50")
    )
    await client.start_batch(batch)
    assert client.service.balance("demo", "USD") == Decimal("999982.50")
    clock.now += 2
    summary = await client.read_summary(batch)
    assert summary["status"] == "processed"
    assert [each["status"] for each in summary["payments"]] == ["processed", outcome]
    processed = summary["payments"][1]["processedAt"]
    assert processed == (None if outcome == "failed" else summary["completedAt"])
    assert client.service.balance("demo", "USD") == Decimal("999988.00")
    await client.read_summary(batch)
    assert client.service.balance("demo", "USD") == Decimal("999988.00")


async def test_what_has_arrived_stays_so(client, clock, payee):
    batch = await client.create_batch(client.build_payment(payee))
    await client.start_batch(batch)
    clock.now += 2
    client.service.set_outcome(payee["id"], "failed")
    assert (await client.read_summary(batch))["status"] == "processed"


async def test_a_batch_of_which_nothing_arrives_has_failed(client, clock, payee):
    client.service.set_outcome(payee["id"], "failed")
    batch = await client.create_batch(client.build_payment(payee), client.build_payment(payee))
    await client.start_batch(batch)
    clock.now += 2
    assert (await client.read_summary(batch))["status"] == "failed"


@pytest.mark.parametrize("after", [0, 5])
async def test_nothing_is_edited_or_deleted_after_the_start(client, clock, payee, after):
    batch = await client.create_batch(client.build_payment(payee))
    (payment,) = (await client.read_summary(batch))["payments"]
    await client.start_batch(batch)
    clock.now += after
    before = await client.read_summary(batch)
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
    assert await client.read_summary(batch) == before


@pytest.mark.parametrize(("when", "starts"), [("before", 0), ("after", 1)])
async def test_a_start_can_lose_its_answer(client, payee, when, starts):
    batch = await client.create_batch(client.build_payment(payee))
    client.simulator.next(Fault("POST", "/v1/batches/*/start-processing", close=when))
    with pytest.raises(aiohttp.ClientConnectionError):
        await client.start_batch(batch)
    assert len(client.service.starts) == starts
    assert (await client.read_summary(batch))["status"] == ("processing" if starts else "open")


@pytest.mark.parametrize(("executes", "created_count"), [(False, 0), (True, 1)])
async def test_a_create_can_answer_something_else(client, payee, executes, created_count):
    client.simulator.next(Fault("POST", "/v1/batches", status=502, executes=executes))
    answer = await client.call(
        "POST", "/v1/batches", {"currency": "USD", "payments": [client.build_payment(payee)]}
    )
    assert answer.status == 502
    assert [client.service.created[name] for name in ("batch", "payment")] == [
        created_count,
        created_count,
    ]


async def test_the_books_are_the_whole_services(client, payee, us_bank, us_address):
    await client.start_batch(await client.create_batch(client.build_payment(payee)))
    client.service.add_key(Key("AK2", "two", "other", "live"))
    client.access_key, client.secret_key = "AK2", "two"
    payee = await client.create_recipient(address=us_address, account=us_bank)
    batch = await client.create_batch(client.build_payment(payee))
    await client.start_batch(batch)
    assert [(each.merchant, each.environment) for each in client.service.starts] == [
        ("demo", "sandbox"), ("other", "live"),
    ]  # fmt: skip
    assert client.service.created == {"recipient": 2, "account": 2, "batch": 2, "payment": 2}
    assert client.service.balance("other", "USD", environment="live") == Decimal("999989.00")
