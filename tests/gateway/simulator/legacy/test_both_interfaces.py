"""One service with both interfaces: each sees the changes of the other."""

import re

from gateway.simulator import ServiceOptions


async def test_recipient_created_by_current_interface_is_visible_to_legacy(
    legacy_client, us_bank, us_address
):
    recipient = await legacy_client.client.create_recipient(address=us_address, account=us_bank)
    legacy_recipient = await legacy_client.read_recipient(recipient)
    assert (legacy_recipient["status"], legacy_recipient["payout"]["method"]) == ("active", "bank")
    assert legacy_recipient["payout"]["accounts"]["bank"]["routing"] == us_bank["branchId"]


async def test_recipient_created_by_legacy_interface_is_visible_to_current(
    legacy_client, us_payout, address
):
    recipient = await legacy_client.create_recipient(
        payout=us_payout, address=address, ssn="123456789"
    )
    current_recipient = await legacy_client.client.read_recipient(recipient)
    assert current_recipient["governmentIds"] == [
        {"country": "US", "type": "SSN", "value": "****89"}
    ]
    (account,) = current_recipient["accounts"]
    assert (account["branchId"], account["accountHolderName"]) == ("021000021", "Zoë Peña")
    assert account["primary"] is True


async def test_legacy_status_word_changes_with_status(legacy_client, payee):
    path = f"/recipients/{payee['id']}"
    await legacy_client.request_ok("PATCH", path, {"status": "disabled"})
    await legacy_client.client.call("PATCH", f"/v1{path}", {"status": "active"})
    assert (await legacy_client.read_recipient(payee))["status"] == "active"
    await legacy_client.client.call("PATCH", f"/v1{path}", {"status": "suspended"})
    assert (await legacy_client.read_recipient(payee))["status"] == "suspended"
    await legacy_client.request_ok("PATCH", path, {"status": "inactive"})
    await legacy_client.client.call("PATCH", f"/v1{path}", {"placeOfBirth": "Łódź"})
    assert (await legacy_client.read_recipient(payee))["status"] == "inactive"


async def test_object_deleted_by_one_interface_is_gone_from_the_other(
    legacy_client, payee, german_payee
):
    await legacy_client.request_ok("DELETE", f"/recipients/{payee['id']}")
    assert (await legacy_client.client.read_recipient(payee))["status"] == "archived"
    await legacy_client.client.call("DELETE", f"/v1/recipients/{german_payee['id']}")
    assert await legacy_client.request_refused("GET", f"/recipients/{german_payee['id']}") == (
        404,
        [("not_found", None)],
    )
    await legacy_client.client.call(
        "PATCH", f"/v1/recipients/{german_payee['id']}", {"status": "active"}
    )
    assert (await legacy_client.read_recipient(german_payee))["status"] == "active"


async def test_deleted_recipient_is_inactive_in_earlier_payments(legacy_client, payee):
    batch = await legacy_client.create_batch(legacy_client.build_payment(payee))
    await legacy_client.request_ok("DELETE", f"/recipients/{payee['id']}")
    (payment,) = await legacy_client.list_payments(batch)
    assert payment["recipient"]["status"] == "inactive"


async def test_batches_and_payments_have_an_id_per_interface(legacy_client, payee):
    batch = await legacy_client.client.create_batch(legacy_client.client.build_payment(payee))
    assert re.fullmatch(r"B-[A-Za-z0-9]{22}", batch["id"])
    (listed_batch,) = (await legacy_client.request_ok("GET", "/batches"))["batches"]
    assert re.fullmatch(r"B-[A-Z0-9]{16}", listed_batch["id"])
    (payment,) = await legacy_client.list_payments(listed_batch)
    assert re.fullmatch(r"P-[A-Z0-9]{16}", payment["id"])
    await legacy_client.request_ok("POST", f"/batches/{listed_batch['id']}/start-processing")
    assert (await legacy_client.client.read_summary(batch))["status"] == "processing"


async def test_answer_uses_the_id_of_the_request(legacy_client, payee):
    batch = await legacy_client.client.create_batch(legacy_client.client.build_payment(payee))
    (listed_batch,) = (await legacy_client.request_ok("GET", "/batches"))["batches"]
    body = await legacy_client.request_ok("GET", f"/batches/{batch['id']}")
    assert body["batch"]["id"] == batch["id"]
    assert body["batch"]["payments"]["payments"][0]["batch"]["id"] == batch["id"]
    body = await legacy_client.request_ok("GET", f"/batches/{listed_batch['id']}")
    assert body["batch"]["id"] == listed_batch["id"]


async def test_short_ids_are_equal_on_both_interfaces(connect_legacy_client, wallet_payout):
    legacy_client = await connect_legacy_client(
        options=ServiceOptions(batch_id_length=16, payment_id_length=9)
    )
    payee = await legacy_client.create_recipient(payout=wallet_payout)
    batch = await legacy_client.create_batch(legacy_client.build_payment(payee))
    summary = await legacy_client.client.read_summary(batch)
    assert [payment["id"] for payment in summary["payments"]] == [
        payment["id"] for payment in await legacy_client.list_payments(batch)
    ]


async def test_long_recipient_ids_are_shortened_everywhere(connect_legacy_client, wallet_payout):
    legacy_client = await connect_legacy_client(options=ServiceOptions(recipient_id_length=22))
    legacy_client.service.seed_recipients(1, 5)
    payee = await legacy_client.create_recipient(payout=wallet_payout)
    assert re.fullmatch(r"R-[A-Z0-9]{16}", payee["id"])
    assert await legacy_client.read_recipient(payee) == payee
    (activity,) = (await legacy_client.request_ok("GET", f"/recipients/{payee['id']}/logs"))[
        "activities"
    ][:1]
    assert activity["url"] == f"/v1/recipients/{payee['id']}"
    listed_recipients = (await legacy_client.request_ok("GET", "/recipients"))["recipients"]
    assert all(
        re.fullmatch(r"R-[A-Z0-9]{16}", listed_recipient["id"])
        for listed_recipient in listed_recipients
    )
    batch = await legacy_client.create_batch(legacy_client.build_payment(payee))
    (payment,) = await legacy_client.list_payments(batch)
    assert payment["recipient"]["id"] == payee["id"]
    await legacy_client.request_ok("DELETE", "/recipients", {"ids": [payee["id"]]})


async def test_equal_seeds_give_equal_data_by_either_interface(
    connect_legacy_client, us_payout, us_bank
):
    first_client = await connect_legacy_client(seed=7)
    second_client = await connect_legacy_client(seed=7)
    legacy_recipient = await first_client.create_recipient(payout=us_payout)
    current_recipient = await second_client.client.create_recipient(account=us_bank)
    await second_client.client.create_account(
        current_recipient, type="wallet", emailAddress="a@example.com"
    )
    assert legacy_recipient["id"] == current_recipient["id"]
    batch = await first_client.create_batch(first_client.build_payment(legacy_recipient))
    await second_client.client.create_batch(second_client.client.build_payment(current_recipient))
    (second_batch,) = (await second_client.request_ok("GET", "/batches"))["batches"]
    assert second_batch == batch


async def test_logs_contain_requests_of_both_interfaces(legacy_client, payee):
    await legacy_client.client.read_recipient(payee)
    body = await legacy_client.request_ok("GET", f"/recipients/{payee['id']}/logs")
    assert [activity["method"] for activity in body["activities"]] == ["GET", "POST"]
    assert "simulator-secret-key" not in str(body)
    assert "simulator-api-key" not in str(body)


async def test_iban_suffices_if_current_interface_requires_more(
    connect_legacy_client, german_payout
):
    legacy_client = await connect_legacy_client(
        options=ServiceOptions(account_number_with_iban="required")
    )
    german_payout["accounts"]["bank"]["iban"] = "DE89 3704 0044 0532 0130 47"[:-2] + "00"
    recipient = await legacy_client.create_recipient(payout=german_payout)
    account = recipient["payout"]["accounts"]["bank"]
    assert (account["iban"], account["accountNum"]) == ("****00", "****00")
    stored_account = legacy_client.service.require_recipient(recipient["id"]).accounts[0]
    assert stored_account.fields["accountNum"] == "0532013000"
