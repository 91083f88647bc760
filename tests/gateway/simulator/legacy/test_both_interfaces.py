"""One service with both interfaces: each sees the changes of the other."""

import re

from tests.simulator import ServiceOptions


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
    legacy_client, payee, wallet_payout
):
    other_payee = await legacy_client.create_recipient(payout=wallet_payout)
    await legacy_client.request_ok("DELETE", f"/recipients/{payee['id']}")
    assert (await legacy_client.client.read_recipient(payee))["status"] == "archived"
    await legacy_client.client.call("DELETE", f"/v1/recipients/{other_payee['id']}")
    assert await legacy_client.request_refused("GET", f"/recipients/{other_payee['id']}") == (
        404,
        [("not_found", None)],
    )
    await legacy_client.client.call(
        "PATCH", f"/v1/recipients/{other_payee['id']}", {"status": "active"}
    )
    assert (await legacy_client.read_recipient(other_payee))["status"] == "active"


async def test_batches_and_payments_have_an_id_per_interface(legacy_client, payee):
    batch = await legacy_client.client.create_batch(legacy_client.client.build_payment(payee))
    assert re.fullmatch(r"B-[A-Za-z0-9]{22}", batch["id"])
    (listed_batch,) = (await legacy_client.request_ok("GET", "/batches"))["batches"]
    assert re.fullmatch(r"B-[A-Z0-9]{16}", listed_batch["id"])
    (payment,) = await legacy_client.list_payments(listed_batch)
    assert re.fullmatch(r"P-[A-Z0-9]{16}", payment["id"])
    await legacy_client.request_ok("POST", f"/batches/{listed_batch['id']}/start-processing")
    assert (await legacy_client.client.read_summary(batch))["status"] == "processing"


async def test_short_ids_are_equal_on_both_interfaces(connect_legacy_client, wallet_payout):
    legacy_client = await connect_legacy_client(
        options=ServiceOptions(batch_id_length=16, payment_id_length=9)
    )
    payee = await legacy_client.create_recipient(payout=wallet_payout)
    batch = await legacy_client.create_batch(payee)
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
    batch = await legacy_client.create_batch(payee)
    (payment,) = await legacy_client.list_payments(batch)
    assert payment["recipient"]["id"] == payee["id"]
    await legacy_client.request_ok("DELETE", "/recipients", {"ids": [payee["id"]]})
