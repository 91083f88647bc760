"""Optional endpoints: batch operations that the document mentions without paths."""

import pytest

from gateway.simulator import ServiceOptions

OPTIONAL_REQUESTS = [
    ("GET", "/v1/batches"),
    ("DELETE", "/v1/batches"),
    ("GET", "/v1/batches/{id}"),
    ("PATCH", "/v1/batches/{id}"),
    ("DELETE", "/v1/batches/{id}"),
    ("GET", "/v1/batches/{id}/payments"),
    ("PATCH", "/v1/batches/{id}/payments/{payment}"),
    ("DELETE", "/v1/batches/{id}/payments/{payment}"),
]


@pytest.fixture
async def batch(client, payee, german_payee):
    return await client.create_batch(
        client.build_payment(payee, "10.00", memo="one"),
        client.build_payment(german_payee, "20.00", memo="two"),
    )


@pytest.fixture
async def batch_path(batch):
    return f"/v1/batches/{batch['id']}"


@pytest.fixture
async def payments(client, batch):
    return (await client.read_summary(batch))["payments"]


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_optional_endpoints_can_be_disabled(connect_client, us_bank, us_address, status):
    client = await connect_client(
        options=ServiceOptions(inferred=False, lists_payments=False, inferred_status=status)
    )
    payee = await client.create_recipient(address=us_address, account=us_bank)
    batch = await client.create_batch(client.build_payment(payee))
    summary_before = await client.read_summary(batch)
    (payment,) = summary_before["payments"]
    for method, path in [*OPTIONAL_REQUESTS, ("GET", "/v1/payments")]:
        target = path.format(id=batch["id"], payment=payment["id"])
        body = None if method == "GET" else {"ids": [batch["id"]], "memo": "x"}
        answer = await client.call(method, target, body)
        assert (answer.status, answer.errors) == (status, [("not_found", None)]), target
    assert (await client.call("GET", "/v1/nothing")).status == 404
    assert await client.read_summary(batch) == summary_before
    assert (await client.call("GET", f"/v1/payments/{payment['id']}")).status == 200
    assert (
        (await client.generate_quote(batch)).status
        == (await client.start_batch(batch)).status
        == 200
    )


async def test_batches_are_listed_newest_first(client, clock):
    created_batches = []
    for number in range(12):
        clock.now += number % 2
        created_batches.append(await client.create_batch(description=str(number)))
    answer = (await client.call("GET", "/v1/batches")).json
    assert answer["meta"] == {"page": 1, "pages": 2, "records": 12}
    assert answer["batches"] == created_batches[:1:-1]
    page = (await client.call("GET", "/v1/batches?page=2&pageSize=5&search=")).json
    assert page["batches"] == created_batches[6:1:-1]
    part = created_batches[3]["id"][5:15].swapcase()
    search_result = (await client.call("GET", f"/v1/batches?search={part}")).json
    assert (search_result["batches"], search_result["meta"]["records"]) == ([created_batches[3]], 1)
    assert (await client.call("GET", "/v1/batches?page=x")).errors == [("invalid_field", "page")]


async def test_batch_is_read_with_first_page_of_payments(client, batch, batch_path, payments):
    answer = (await client.call("GET", batch_path)).json
    expected_batch = {
        **batch,
        "payments": {"payments": payments, "meta": {"page": 1, "pages": 1, "records": 2}},
    }
    assert answer == {"ok": True, "batch": expected_batch}
    answer = (await client.call("GET", f"{batch_path}?pageSize=1&page=2")).json
    assert answer["batch"]["payments"]["payments"] == payments[1:]
    assert (await client.call("GET", "/v1/batches/B-none")).errors == [("not_found", None)]


async def test_batch_payments_are_listed_and_searched(client, batch_path, payments):
    answer = (await client.call("GET", f"{batch_path}/payments")).json
    assert answer == {
        "ok": True,
        "payments": payments,
        "meta": {"page": 1, "pages": 1, "records": 2},
    }
    for search_text, expected_payments in (
        ("TWO", payments[1:]),
        (payments[0]["id"], payments[:1]),
        ("zz", []),
    ):
        answer = (await client.call("GET", f"{batch_path}/payments?search={search_text}")).json
        assert answer["payments"] == expected_payments


async def test_batch_is_edited(client, clock, batch, payments, payee):
    clock.now += 3
    body = {
        "description": "edited",
        "currency": "USD",
        "payments": [client.build_payment(payee, "1.00", memo="three")],
        "update_payments": [{"id": payments[0]["id"], "amount": "9.20", "currency": "EUR"}],
        "remove_payments": [{"id": payments[1]["id"]}],
    }
    answer = await client.call("PATCH", f"/v1/batches/{batch['id']}", body)
    assert answer.json == {"ok": True, "object": "updated"}
    summary = await client.read_summary(batch)
    assert (summary["description"], summary["amount"]) == ("edited", "11.00")
    assert summary["updatedAt"] == "2025-10-09T08:53:23.000Z"
    changed_payment, added_payment = summary["payments"]
    assert (changed_payment["id"], changed_payment["memo"]) == (payments[0]["id"], "one")
    assert (changed_payment["sourceAmount"], changed_payment["targetCurrency"]) == ("10.00", "EUR")
    assert changed_payment["updatedAt"] != changed_payment["createdAt"] == payments[0]["createdAt"]
    assert added_payment["memo"] == "three"
    assert (await client.call("GET", f"/v1/payments/{payments[1]['id']}")).status == 404
    assert client.service.creation_counts["payment"] == 3


async def test_edit_is_all_or_nothing(client, batch, batch_path, payments, payee):
    summary_before = await client.read_summary(batch)
    first_item, second_item = ({"id": payment["id"]} for payment in payments)
    body = {
        "description": 5,
        "currency": "EUR",
        "payments": [client.build_payment(payee), {}],
        "update_payments": [{**first_item, "amount": "0"}, {}, {"id": "P-none"}, {"id": 7}, 3],
        "remove_payments": [first_item, second_item, second_item],
    }
    answer = await client.call("PATCH", batch_path, body)
    assert (answer.status, answer.errors) == (
        400,
        [
            ("invalid_field", "currency"),
            ("invalid_field", "description"),
            ("empty_field", "payments[1].recipient.id"),
            ("empty_field", "payments[1].amount"),
            ("empty_field", "payments[1].currency"),
            ("invalid_field", "update_payments[0].amount"),
            ("empty_field", "update_payments[1].id"),
            ("invalid_field", "update_payments[2].id"),
            ("invalid_field", "update_payments[3].id"),
            ("invalid_field", "update_payments[4]"),
            ("invalid_field", "remove_payments[0].id"),
            ("invalid_field", "remove_payments[2].id"),
        ],
    )
    unknown_payee_payment = {"recipient": {"id": "R-nobody"}, "amount": "1", "currency": "USD"}
    answer = await client.call(
        "PATCH", batch_path, {"payments": [unknown_payee_payment], "remove_payments": [first_item]}
    )
    assert (answer.status, answer.errors) == (404, [("not_found", "payments[0].recipient.id")])
    assert await client.read_summary(batch) == summary_before


async def test_payment_is_edited(client, batch, batch_path, payments, german_payee):
    target = f"{batch_path}/payments/{payments[0]['id']}"
    body = {"amount": "12", "memo": "", "recipient": {"id": german_payee["id"]}}
    assert (await client.call("PATCH", target, body)).json == {"ok": True, "object": "updated"}
    changed_payment = (await client.read_summary(batch))["payments"][0]
    assert (changed_payment["sourceAmount"], changed_payment["memo"]) == ("12.00", "")
    assert changed_payment["recipient"] == payments[0]["recipient"]
    answer = await client.call("PATCH", target, {"amount": "1.5", "currency": "", "memo": []})
    assert answer.errors == [
        ("invalid_field", "amount"), ("empty_field", "currency"), ("invalid_field", "memo"),
    ]  # fmt: skip


async def test_payment_is_deleted(client, batch, batch_path, payments, payee):
    target = f"{batch_path}/payments/{payments[0]['id']}"
    assert (await client.call("DELETE", target)).json == {"ok": True, "object": "deleted"}
    assert (await client.call("DELETE", target)).status == 404
    assert (await client.call("GET", f"/v1/payments/{payments[0]['id']}")).status == 404
    assert (await client.read_summary(batch))["totalPayments"] == 1
    answer = (await client.call("GET", f"/v1/recipients/{payee['id']}/payments")).json
    assert answer["payments"] == []


async def test_payment_of_another_batch_is_not_found(client, payments):
    other_batch = await client.create_batch()
    target = f"/v1/batches/{other_batch['id']}/payments/{payments[0]['id']}"
    for method in ("PATCH", "DELETE"):
        assert (await client.call(method, target)).errors == [("not_found", None)]
    assert (await client.call("GET", f"/v1/payments/{payments[0]['id']}")).status == 200


async def test_batch_is_deleted_with_its_payments(client, batch, batch_path, payments):
    assert (await client.call("DELETE", batch_path)).json == {"ok": True, "object": "deleted"}
    for target in (
        batch_path,
        f"/v1/batch/{batch['id']}/summary",
        f"/v1/payments/{payments[0]['id']}",
    ):
        assert (await client.call("GET", target)).status == 404
    assert (await client.call("DELETE", batch_path)).status == 404


async def test_pending_batch_can_be_edited_and_deleted(client, batch_path, payments):
    client.service.set_balance("demo", "USD", "0")
    assert (await client.call("GET", batch_path)).json["batch"]["status"] == "pending"
    assert (await client.call("PATCH", batch_path, {"description": "x"})).status == 200
    assert (await client.call("DELETE", f"{batch_path}/payments/{payments[0]['id']}")).status == 200
    assert (await client.call("DELETE", batch_path)).status == 200


async def test_batches_are_deleted_all_or_none(client, batch, payee):
    other_batch, started_batch = (
        await client.create_batch(),
        await client.create_batch(client.build_payment(payee)),
    )
    await client.start_batch(started_batch)
    ids = [batch["id"], other_batch["id"]]

    async def delete(ids):
        return await client.call("DELETE", "/v1/batches", {"ids": ids})

    assert (await delete([])).errors == [("empty_field", "ids")]
    assert (await delete([7])).errors == [("invalid_field", "ids")]
    assert (await delete([*ids, "B-none"])).errors == [("not_found", None)]
    assert (await delete([*ids, started_batch["id"]])).errors == [("invalid_status", None)]
    assert len(client.service.find_or_create_tenant().batches) == 3
    assert (await delete([*ids, ids[0]])).json == {"ok": True, "object": "deleted"}
    assert list(client.service.find_or_create_tenant().batches) == [started_batch["id"]]
