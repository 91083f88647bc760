"""One service, two faces: each sees what the other has done."""

import re

from gateway.simulator import Switches


async def test_a_recipient_made_on_the_current_face_is_seen(legacy, us_bank, us_address):
    made = await legacy.client.recipient(address=us_address, account=us_bank)
    read = await legacy.read(made)
    assert (read["status"], read["payout"]["method"]) == ("active", "bank")
    assert read["payout"]["accounts"]["bank"]["routing"] == us_bank["branchId"]


async def test_a_recipient_made_on_the_legacy_face_is_seen(legacy, us, address):
    made = await legacy.recipient(payout=us, address=address, ssn="123456789")
    read = await legacy.client.read(made)
    assert read["governmentIds"] == [{"country": "US", "type": "SSN", "value": "****89"}]
    (account,) = read["accounts"]
    assert (account["branchId"], account["accountHolderName"]) == ("021000021", "Zoë Peña")
    assert account["primary"] is True


async def test_a_word_for_a_status_goes_with_the_status(legacy, payee):
    path = f"/recipients/{payee['id']}"
    await legacy.done("PATCH", path, {"status": "disabled"})
    await legacy.client.call("PATCH", f"/v1{path}", {"status": "active"})
    assert (await legacy.read(payee))["status"] == "active"
    await legacy.client.call("PATCH", f"/v1{path}", {"status": "suspended"})
    assert (await legacy.read(payee))["status"] == "suspended"
    await legacy.done("PATCH", path, {"status": "inactive"})
    await legacy.client.call("PATCH", f"/v1{path}", {"placeOfBirth": "Łódź"})
    assert (await legacy.read(payee))["status"] == "inactive"


async def test_what_one_face_deletes_is_gone_on_the_other(legacy, payee, german):
    await legacy.done("DELETE", f"/recipients/{payee['id']}")
    assert (await legacy.client.read(payee))["status"] == "archived"
    await legacy.client.call("DELETE", f"/v1/recipients/{german['id']}")
    assert await legacy.refused("GET", f"/recipients/{german['id']}") == (
        404,
        [("not_found", None)],
    )
    await legacy.client.call("PATCH", f"/v1/recipients/{german['id']}", {"status": "active"})
    assert (await legacy.read(german))["status"] == "active"


async def test_a_deleted_recipient_is_inactive_in_payments_made_before(legacy, payee):
    batch = await legacy.batch(legacy.pay(payee))
    await legacy.done("DELETE", f"/recipients/{payee['id']}")
    (payment,) = await legacy.payments(batch)
    assert payment["recipient"]["status"] == "inactive"


async def test_batches_and_payments_have_an_id_on_each_face(legacy, payee):
    made = await legacy.client.batch(legacy.client.pay(payee))
    assert re.fullmatch(r"B-[A-Za-z0-9]{22}", made["id"])
    (listed,) = (await legacy.done("GET", "/batches"))["batches"]
    assert re.fullmatch(r"B-[A-Z0-9]{16}", listed["id"])
    (payment,) = await legacy.payments(listed)
    assert re.fullmatch(r"P-[A-Z0-9]{16}", payment["id"])
    await legacy.done("POST", f"/batches/{listed['id']}/start-processing")
    assert (await legacy.client.summary(made))["status"] == "processing"


async def test_an_id_is_spelled_as_the_request_spelled_it(legacy, payee):
    made = await legacy.client.batch(legacy.client.pay(payee))
    (listed,) = (await legacy.done("GET", "/batches"))["batches"]
    got = await legacy.done("GET", f"/batches/{made['id']}")
    assert got["batch"]["id"] == made["id"]
    assert got["batch"]["payments"]["payments"][0]["batch"]["id"] == made["id"]
    got = await legacy.done("GET", f"/batches/{listed['id']}")
    assert got["batch"]["id"] == listed["id"]


async def test_ids_that_fit_are_the_same_on_both_faces(connect_legacy, purse):
    legacy = await connect_legacy(switches=Switches(batch_id_length=16, payment_id_length=9))
    payee = await legacy.recipient(payout=purse)
    batch = await legacy.batch(legacy.pay(payee))
    summary = await legacy.client.summary(batch)
    assert [each["id"] for each in summary["payments"]] == [
        each["id"] for each in await legacy.payments(batch)
    ]


async def test_longer_ids_of_recipients_are_shortened_everywhere(connect_legacy, purse):
    legacy = await connect_legacy(switches=Switches(recipient_id_length=22))
    legacy.service.seed_recipients(1, 5)
    payee = await legacy.recipient(payout=purse)
    assert re.fullmatch(r"R-[A-Z0-9]{16}", payee["id"])
    assert await legacy.read(payee) == payee
    (logged,) = (await legacy.done("GET", f"/recipients/{payee['id']}/logs"))["activities"][:1]
    assert logged["url"] == f"/v1/recipients/{payee['id']}"
    listed = (await legacy.done("GET", "/recipients"))["recipients"]
    assert all(re.fullmatch(r"R-[A-Z0-9]{16}", each["id"]) for each in listed)
    batch = await legacy.batch(legacy.pay(payee))
    (payment,) = await legacy.payments(batch)
    assert payment["recipient"]["id"] == payee["id"]
    await legacy.done("DELETE", "/recipients", {"ids": [payee["id"]]})


async def test_equal_seeds_make_equal_worlds_whichever_face_is_used(connect_legacy, us, us_bank):
    one = await connect_legacy(seed=7)
    other = await connect_legacy(seed=7)
    legacy = await one.recipient(payout=us)
    current = await other.client.recipient(account=us_bank)
    await other.client.account(current, type="wallet", emailAddress="a@example.com")
    assert legacy["id"] == current["id"]
    batch = await one.batch(one.pay(legacy))
    await other.client.batch(other.client.pay(current))
    (same,) = (await other.done("GET", "/batches"))["batches"]
    assert same == batch


async def test_logs_have_the_requests_of_both_faces(legacy, payee):
    await legacy.client.read(payee)
    got = await legacy.done("GET", f"/recipients/{payee['id']}/logs")
    assert [each["method"] for each in got["activities"]] == ["GET", "POST"]
    assert "simulator-secret-key" not in str(got)
    assert "simulator-api-key" not in str(got)
