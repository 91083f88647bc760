"""One service with both interfaces: each sees the changes of the other."""

import re

from gateway.simulator import Switches


async def test_a_recipient_made_on_the_current_face_is_seen(legacy, us_bank, us_address):
    made = await legacy.client.create_recipient(address=us_address, account=us_bank)
    read = await legacy.read_recipient(made)
    assert (read["status"], read["payout"]["method"]) == ("active", "bank")
    assert read["payout"]["accounts"]["bank"]["routing"] == us_bank["branchId"]


async def test_a_recipient_made_on_the_legacy_face_is_seen(legacy, us, address):
    made = await legacy.create_recipient(payout=us, address=address, ssn="123456789")
    read = await legacy.client.read_recipient(made)
    assert read["governmentIds"] == [{"country": "US", "type": "SSN", "value": "****89"}]
    (account,) = read["accounts"]
    assert (account["branchId"], account["accountHolderName"]) == ("021000021", "Zoë Peña")
    assert account["primary"] is True


async def test_a_word_for_a_status_goes_with_the_status(legacy, payee):
    path = f"/recipients/{payee['id']}"
    await legacy.request_ok("PATCH", path, {"status": "disabled"})
    await legacy.client.call("PATCH", f"/v1{path}", {"status": "active"})
    assert (await legacy.read_recipient(payee))["status"] == "active"
    await legacy.client.call("PATCH", f"/v1{path}", {"status": "suspended"})
    assert (await legacy.read_recipient(payee))["status"] == "suspended"
    await legacy.request_ok("PATCH", path, {"status": "inactive"})
    await legacy.client.call("PATCH", f"/v1{path}", {"placeOfBirth": "Łódź"})
    assert (await legacy.read_recipient(payee))["status"] == "inactive"


async def test_what_one_face_deletes_is_gone_on_the_other(legacy, payee, german):
    await legacy.request_ok("DELETE", f"/recipients/{payee['id']}")
    assert (await legacy.client.read_recipient(payee))["status"] == "archived"
    await legacy.client.call("DELETE", f"/v1/recipients/{german['id']}")
    assert await legacy.request_refused("GET", f"/recipients/{german['id']}") == (
        404,
        [("not_found", None)],
    )
    await legacy.client.call("PATCH", f"/v1/recipients/{german['id']}", {"status": "active"})
    assert (await legacy.read_recipient(german))["status"] == "active"


async def test_a_deleted_recipient_is_inactive_in_payments_made_before(legacy, payee):
    batch = await legacy.create_batch(legacy.build_payment(payee))
    await legacy.request_ok("DELETE", f"/recipients/{payee['id']}")
    (payment,) = await legacy.list_payments(batch)
    assert payment["recipient"]["status"] == "inactive"


async def test_batches_and_payments_have_an_id_on_each_face(legacy, payee):
    made = await legacy.client.create_batch(legacy.client.build_payment(payee))
    assert re.fullmatch(r"B-[A-Za-z0-9]{22}", made["id"])
    (listed,) = (await legacy.request_ok("GET", "/batches"))["batches"]
    assert re.fullmatch(r"B-[A-Z0-9]{16}", listed["id"])
    (payment,) = await legacy.list_payments(listed)
    assert re.fullmatch(r"P-[A-Z0-9]{16}", payment["id"])
    await legacy.request_ok("POST", f"/batches/{listed['id']}/start-processing")
    assert (await legacy.client.read_summary(made))["status"] == "processing"


async def test_an_id_is_spelled_as_the_request_spelled_it(legacy, payee):
    made = await legacy.client.create_batch(legacy.client.build_payment(payee))
    (listed,) = (await legacy.request_ok("GET", "/batches"))["batches"]
    got = await legacy.request_ok("GET", f"/batches/{made['id']}")
    assert got["batch"]["id"] == made["id"]
    assert got["batch"]["payments"]["payments"][0]["batch"]["id"] == made["id"]
    got = await legacy.request_ok("GET", f"/batches/{listed['id']}")
    assert got["batch"]["id"] == listed["id"]


async def test_ids_that_fit_are_the_same_on_both_faces(connect_legacy, purse):
    legacy = await connect_legacy(switches=Switches(batch_id_length=16, payment_id_length=9))
    payee = await legacy.create_recipient(payout=purse)
    batch = await legacy.create_batch(legacy.build_payment(payee))
    summary = await legacy.client.read_summary(batch)
    assert [each["id"] for each in summary["payments"]] == [
        each["id"] for each in await legacy.list_payments(batch)
    ]


async def test_longer_ids_of_recipients_are_shortened_everywhere(connect_legacy, purse):
    legacy = await connect_legacy(switches=Switches(recipient_id_length=22))
    legacy.service.seed_recipients(1, 5)
    payee = await legacy.create_recipient(payout=purse)
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


async def test_equal_seeds_make_equal_worlds_whichever_face_is_used(connect_legacy, us, us_bank):
    one = await connect_legacy(seed=7)
    other = await connect_legacy(seed=7)
    legacy = await one.create_recipient(payout=us)
    current = await other.client.create_recipient(account=us_bank)
    await other.client.create_account(current, type="wallet", emailAddress="a@example.com")
    assert legacy["id"] == current["id"]
    batch = await one.create_batch(one.build_payment(legacy))
    await other.client.create_batch(other.client.build_payment(current))
    (same,) = (await other.request_ok("GET", "/batches"))["batches"]
    assert same == batch


async def test_logs_have_the_requests_of_both_faces(legacy, payee):
    await legacy.client.read_recipient(payee)
    got = await legacy.request_ok("GET", f"/recipients/{payee['id']}/logs")
    assert [each["method"] for each in got["activities"]] == ["GET", "POST"]
    assert "simulator-secret-key" not in str(got)
    assert "simulator-api-key" not in str(got)
