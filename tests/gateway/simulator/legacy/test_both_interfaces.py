"""One service with both interfaces: each sees the changes of the other."""

import re

from gateway.simulator import ServiceOptions


async def test_recipient_created_by_current_interface_is_visible_to_legacy(
    legacy, us_bank, us_address
):
    recipient = await legacy.client.create_recipient(address=us_address, account=us_bank)
    read = await legacy.read_recipient(recipient)
    assert (read["status"], read["payout"]["method"]) == ("active", "bank")
    assert read["payout"]["accounts"]["bank"]["routing"] == us_bank["branchId"]


async def test_recipient_created_by_legacy_interface_is_visible_to_current(
    legacy, us_payout, address
):
    recipient = await legacy.create_recipient(payout=us_payout, address=address, ssn="123456789")
    read = await legacy.client.read_recipient(recipient)
    assert read["governmentIds"] == [{"country": "US", "type": "SSN", "value": "****89"}]
    (account,) = read["accounts"]
    assert (account["branchId"], account["accountHolderName"]) == ("021000021", "Zoë Peña")
    assert account["primary"] is True


async def test_legacy_status_word_changes_with_status(legacy, payee):
    path = f"/recipients/{payee['id']}"
    await legacy.request_ok("PATCH", path, {"status": "disabled"})
    await legacy.client.call("PATCH", f"/v1{path}", {"status": "active"})
    assert (await legacy.read_recipient(payee))["status"] == "active"
    await legacy.client.call("PATCH", f"/v1{path}", {"status": "suspended"})
    assert (await legacy.read_recipient(payee))["status"] == "suspended"
    await legacy.request_ok("PATCH", path, {"status": "inactive"})
    await legacy.client.call("PATCH", f"/v1{path}", {"placeOfBirth": "Łódź"})
    assert (await legacy.read_recipient(payee))["status"] == "inactive"


async def test_object_deleted_by_one_interface_is_gone_from_the_other(legacy, payee, german_payee):
    await legacy.request_ok("DELETE", f"/recipients/{payee['id']}")
    assert (await legacy.client.read_recipient(payee))["status"] == "archived"
    await legacy.client.call("DELETE", f"/v1/recipients/{german_payee['id']}")
    assert await legacy.request_refused("GET", f"/recipients/{german_payee['id']}") == (
        404,
        [("not_found", None)],
    )
    await legacy.client.call("PATCH", f"/v1/recipients/{german_payee['id']}", {"status": "active"})
    assert (await legacy.read_recipient(german_payee))["status"] == "active"


async def test_deleted_recipient_is_inactive_in_earlier_payments(legacy, payee):
    batch = await legacy.create_batch(legacy.build_payment(payee))
    await legacy.request_ok("DELETE", f"/recipients/{payee['id']}")
    (payment,) = await legacy.list_payments(batch)
    assert payment["recipient"]["status"] == "inactive"


async def test_batches_and_payments_have_an_id_per_interface(legacy, payee):
    batch = await legacy.client.create_batch(legacy.client.build_payment(payee))
    assert re.fullmatch(r"B-[A-Za-z0-9]{22}", batch["id"])
    (listed,) = (await legacy.request_ok("GET", "/batches"))["batches"]
    assert re.fullmatch(r"B-[A-Z0-9]{16}", listed["id"])
    (payment,) = await legacy.list_payments(listed)
    assert re.fullmatch(r"P-[A-Z0-9]{16}", payment["id"])
    await legacy.request_ok("POST", f"/batches/{listed['id']}/start-processing")
    assert (await legacy.client.read_summary(batch))["status"] == "processing"


async def test_answer_uses_the_id_of_the_request(legacy, payee):
    batch = await legacy.client.create_batch(legacy.client.build_payment(payee))
    (listed,) = (await legacy.request_ok("GET", "/batches"))["batches"]
    body = await legacy.request_ok("GET", f"/batches/{batch['id']}")
    assert body["batch"]["id"] == batch["id"]
    assert body["batch"]["payments"]["payments"][0]["batch"]["id"] == batch["id"]
    body = await legacy.request_ok("GET", f"/batches/{listed['id']}")
    assert body["batch"]["id"] == listed["id"]


async def test_short_ids_are_equal_on_both_interfaces(connect_legacy, wallet_payout):
    legacy = await connect_legacy(options=ServiceOptions(batch_id_length=16, payment_id_length=9))
    payee = await legacy.create_recipient(payout=wallet_payout)
    batch = await legacy.create_batch(legacy.build_payment(payee))
    summary = await legacy.client.read_summary(batch)
    assert [payment["id"] for payment in summary["payments"]] == [
        payment["id"] for payment in await legacy.list_payments(batch)
    ]


async def test_long_recipient_ids_are_shortened_everywhere(connect_legacy, wallet_payout):
    legacy = await connect_legacy(options=ServiceOptions(recipient_id_length=22))
    legacy.service.seed_recipients(1, 5)
    payee = await legacy.create_recipient(payout=wallet_payout)
    assert re.fullmatch(r"R-[A-Z0-9]{16}", payee["id"])
    assert await legacy.read_recipient(payee) == payee
    (logged,) = (await legacy.request_ok("GET", f"/recipients/{payee['id']}/logs"))["activities"][
        :1
    ]
    assert logged["url"] == f"/v1/recipients/{payee['id']}"
    listed = (await legacy.request_ok("GET", "/recipients"))["recipients"]
    assert all(re.fullmatch(r"R-[A-Z0-9]{16}", each["id"]) for each in listed)
    batch = await legacy.create_batch(legacy.build_payment(payee))
    (payment,) = await legacy.list_payments(batch)
    assert payment["recipient"]["id"] == payee["id"]
    await legacy.request_ok("DELETE", "/recipients", {"ids": [payee["id"]]})


async def test_equal_seeds_give_equal_data_by_either_interface(connect_legacy, us_payout, us_bank):
    one = await connect_legacy(seed=7)
    other = await connect_legacy(seed=7)
    legacy = await one.create_recipient(payout=us_payout)
    current = await other.client.create_recipient(account=us_bank)
    await other.client.create_account(current, type="wallet", emailAddress="a@example.com")
    assert legacy["id"] == current["id"]
    batch = await one.create_batch(one.build_payment(legacy))
    await other.client.create_batch(other.client.build_payment(current))
    (same,) = (await other.request_ok("GET", "/batches"))["batches"]
    assert same == batch


async def test_logs_contain_requests_of_both_interfaces(legacy, payee):
    await legacy.client.read_recipient(payee)
    body = await legacy.request_ok("GET", f"/recipients/{payee['id']}/logs")
    assert [activity["method"] for activity in body["activities"]] == ["GET", "POST"]
    assert "simulator-secret-key" not in str(body)
    assert "simulator-api-key" not in str(body)
