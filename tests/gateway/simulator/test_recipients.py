import re

import pytest

from gateway.simulator import ServiceOptions

RECIPIENT_FIELDS = {
    "id", "referenceId", "type", "email", "name", "firstName", "lastName", "status",
    "complianceStatus", "compliance", "avatarUrl", "language", "dob", "placeOfBirth", "passport",
    "ssn", "governmentIds", "address", "routeType", "routeMinimum", "estimatedFees",
    "payoutMethod", "primaryCurrency", "accounts", "tags", "contactEmails", "createdAt",
    "updatedAt",
}  # fmt: skip


async def test_recipient_has_fields_of_create_body(client, clock):
    clock.now = 1_760_000_000.1239
    recipient = await client.create_recipient(
        referenceId="ref-1",
        passport="X123",
        dob="1990-02-28",
        phone="+1 555 0100",
        address={"street1": "Größe 1", "country": "US", "zip": "ignored"},
        governmentIds=[{"country": "US", "type": "SSN", "value": "123456789"}],
        language="fr",
        tags=["not in the create body"],
        status="suspended",
    )
    assert set(recipient) == RECIPIENT_FIELDS
    assert re.fullmatch(r"R-[A-Za-z0-9]{16}", recipient["id"])
    assert recipient["name"] == "Zoë Peña"
    assert recipient["status"] == "incomplete"
    assert (recipient["language"], recipient["tags"]) == ("en", [])
    assert recipient["complianceStatus"] == "pending"
    assert recipient["compliance"] == {"status": "pending", "checkedAt": None}
    assert recipient["governmentIds"] == [{"country": "US", "type": "SSN", "value": "****89"}]
    assert recipient["ssn"] is None
    assert recipient["address"] == {
        "street1": "Größe 1",
        "street2": None,
        "city": None,
        "region": None,
        "postalCode": None,
        "country": "US",
        "phone": "+1 555 0100",
    }
    assert (recipient["accounts"], recipient["payoutMethod"], recipient["routeMinimum"]) == (
        [],
        None,
        None,
    )
    assert recipient["createdAt"] == recipient["updatedAt"] == "2025-10-09T08:53:20.123Z"
    assert await client.read_recipient(recipient) == recipient


async def test_every_recipient_field_except_accounts_can_be_updated(client, clock, wallet):
    recipient = await client.create_recipient()
    await client.create_account(recipient, **wallet)
    clock.now += 5
    body = {
        "language": "pt-BR",
        "placeOfBirth": "Évora",
        "ssn": "987654321",
        "primaryCurrency": "EUR",
        "contactEmails": ["b@example.com"],
        "firstName": "Ana",
        "dob": None,
        "accounts": [],
        "id": "R-other",
        "complianceStatus": "verified",
        "routeMinimum": 3,
        "unknown": {},
    }
    exact_body = (
        b'{"tags":["a",1.10,12345678901234567890,{"deep":null}],"governmentIds":'
        b'[{"country":"FR","type":"other","value":"12-34","note":[1E400]}]}'
    )
    path = f"/v1/recipients/{recipient['id']}"
    assert (await client.call("PATCH", path, exact_body)).status == 200
    answer = await client.call("PATCH", path, body)
    changed_recipient = answer.json["recipient"]
    assert changed_recipient["name"] == "Ana Peña"
    assert changed_recipient["ssn"] == "****21"
    assert changed_recipient["primaryCurrency"] == "EUR"
    assert changed_recipient["contactEmails"] == ["b@example.com"]
    assert (changed_recipient["language"], changed_recipient["placeOfBirth"]) == ("pt-BR", "Évora")
    assert len(changed_recipient["accounts"]) == 1
    assert (changed_recipient["id"], changed_recipient["complianceStatus"]) == (
        recipient["id"],
        "pending",
    )
    assert changed_recipient["createdAt"] < changed_recipient["updatedAt"]
    # Numbers and unknown values are kept as they were written.
    assert '"tags":["a",1.10,12345678901234567890,{"deep":null}]' in answer.text
    assert '"value":"****34","note":[1E+400]' in answer.text


async def test_archived_recipient_accepts_status_changes_only(client, wallet):
    recipient = await client.create_recipient()
    path = f"/v1/recipients/{recipient['id']}"
    await client.create_account(recipient, **wallet)
    account = (await client.read_recipient(recipient))["accounts"][0]["recipientAccountId"]
    await client.call("DELETE", path)
    for method, target, body in [
        ("PATCH", path, {"firstName": "A"}),
        ("POST", f"{path}/accounts", wallet),
        ("PATCH", f"{path}/accounts/{account}", {}),
        ("DELETE", f"{path}/accounts/{account}", None),
    ]:
        answer = await client.call(method, target, body)
        assert (answer.status, answer.errors) == (400, [("invalid_status", None)])
    answer = await client.call("PATCH", path, {"status": "active"})
    assert answer.json["recipient"]["status"] == "active"


@pytest.mark.parametrize("filters_archived", [True, False])
async def test_archived_recipients_are_listed_only_by_status_filter(
    connect_client, filters_archived
):
    client = await connect_client(options=ServiceOptions(filters_archived=filters_archived))
    archived_recipient, recipient = [await client.create_recipient() for _ in range(2)]
    await client.call("DELETE", f"/v1/recipients/{archived_recipient['id']}")
    for query, ids in (
        ("status=archived", [archived_recipient["id"]] if filters_archived else []),
        ("status=archived&orderBy=updatedAt&startDate=2999-01-01", []),
        ("", [recipient["id"]]),
    ):
        answer = (await client.call("GET", f"/v1/recipients?{query}")).json
        assert [listed_recipient["id"] for listed_recipient in answer["recipients"]] == ids
        assert answer["meta"]["records"] == len(ids)


async def test_archived_recipient_can_be_listed_but_unreadable(connect_client):
    client = await connect_client(options=ServiceOptions(lists_archived=True, reads_archived=False))
    recipient = await client.create_recipient()
    path = f"/v1/recipients/{recipient['id']}"
    await client.call("DELETE", path)
    answer = (await client.call("GET", "/v1/recipients?status=archived")).json
    assert [listed_recipient["status"] for listed_recipient in answer["recipients"]] == ["archived"]
    for method in ("GET", "PATCH", "DELETE"):
        assert (await client.call(method, path)).status == 404
    assert (await client.call("DELETE", "/v1/recipients", {"ids": [recipient["id"]]})).status == 404


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (None, ("empty_field", "ids")),
        ({}, ("empty_field", "ids")),
        ({"ids": []}, ("empty_field", "ids")),
        ({"ids": "R-1"}, ("invalid_field", "ids")),
        ({"ids": [1]}, ("invalid_field", "ids")),
    ],
)
async def test_bulk_delete_requires_valid_ids(client, body, error):
    answer = await client.call("DELETE", "/v1/recipients", body)
    assert (answer.status, answer.errors) == (400, [error])


async def test_arguments_may_be_query_parameters(client):
    first, second = await client.create_recipient(), await client.create_recipient()
    path = f"/v1/recipients/{first['id']}?placeOfBirth=%C3%89vora"
    answer = await client.call("PATCH", path)
    assert answer.json["recipient"]["placeOfBirth"] == "Évora"
    answer = await client.call("PATCH", path, {"placeOfBirth": "Oslo"})
    assert answer.json["recipient"]["placeOfBirth"] == "Oslo"
    ids = f"{first['id']},{second['id']}"
    assert (await client.call("DELETE", f"/v1/recipients?ids={ids}")).status == 200


async def test_unknown_ids_paths_and_methods_are_not_found(client):
    recipient = await client.create_recipient()
    path = f"/v1/recipients/{recipient['id']}"
    for method, target in [
        ("GET", "/v1/recipients/R-unknown"),
        ("PATCH", "/v1/recipients/R-unknown"),
        ("DELETE", "/v1/recipients/R-unknown"),
        ("GET", "/v1/recipients/R-unknown/logs"),
        ("GET", "/v1/recipients/R-unknown/payments"),
        ("POST", "/v1/recipients/R-unknown/accounts"),
        ("GET", f"{path}/accounts"),
        ("GET", f"{path}/accounts/A-unknown"),
        ("PUT", path),
        ("POST", path),
        ("OPTIONS", path),
        ("GET", f"{path}/"),
        ("GET", path.replace("R-", "R%2D")),
        ("GET", "/v1/recipients/"),
        ("GET", "/v1/recipients/..%2Frecipients"),
        ("GET", "/recipients"),
        ("GET", "/"),
    ]:
        answer = await client.call(method, target)
        assert (answer.status, answer.errors) == (404, [("not_found", None)]), (method, target)


async def test_fields_of_answer_can_be_overridden(client):
    recipient = await client.create_recipient()
    client.service.require_recipient(recipient["id"]).overrides = {
        "routeMinimum": 30,
        "inventedLater": [None],
    }
    recipient_after = await client.read_recipient(recipient)
    assert (recipient_after["routeMinimum"], recipient_after["inventedLater"]) == (30, [None])


async def test_id_length_is_configurable_and_ids_follow_seed(connect_client):
    switches = ServiceOptions(recipient_id_length=22)
    first = await (await connect_client(seed=5, options=switches)).create_recipient()
    same_seed_recipient = await (await connect_client(seed=5, options=switches)).create_recipient()
    other_seed_recipient = await (await connect_client(seed=6, options=switches)).create_recipient()
    assert re.fullmatch(r"R-[A-Za-z0-9]{22}", first["id"])
    assert first == same_seed_recipient
    assert first["id"] != other_seed_recipient["id"]
