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


async def test_business_has_name_and_optional_contact(client):
    body = {"type": "business", "name": "Café Orléans", "email": "pay@example.com"}
    answer = await client.call("POST", "/v1/recipients", body)
    assert answer.json["recipient"]["name"] == "Café Orléans"
    assert answer.json["recipient"]["firstName"] is None


async def test_two_recipients_may_share_an_email(client):
    first, second = await client.create_recipient(), await client.create_recipient()
    assert first["id"] != second["id"]


@pytest.mark.parametrize("name", ["account", "accounts"])
async def test_accounts_may_be_created_with_recipient(client, us_bank, us_address, name):
    nested_accounts = us_bank if name == "account" else [us_bank]
    recipient = await client.create_recipient(address=us_address, **{name: nested_accounts})
    assert recipient["status"] == "active"
    assert [account["primary"] for account in recipient["accounts"]] == [True]
    assert (recipient["payoutMethod"], recipient["primaryCurrency"]) == ("bank-transfer", "USD")
    assert (recipient["routeType"], recipient["routeMinimum"]) == ("ach", "1")


async def test_recipient_with_invalid_account_is_not_created(client, us_bank):
    body = {"type": "individual", "firstName": "A", "lastName": "B", "email": "a@example.com"}
    del us_bank["branchId"]
    answer = await client.call("POST", "/v1/recipients", {**body, "accounts": [us_bank]})
    assert (answer.status, answer.errors) == (400, [("empty_field", "accounts[0].branchId")])
    answer = await client.call("POST", "/v1/recipients", {**body, "account": "bank"})
    assert answer.errors == [("invalid_field", "account")]
    assert (await client.call("GET", "/v1/recipients")).json["meta"]["records"] == 0


async def test_recipient_with_address_and_account_becomes_active(client, us_bank, us_address):
    recipient = await client.create_recipient()
    await client.create_account(recipient, **us_bank)
    assert (await client.read_recipient(recipient))["status"] == "incomplete"
    path = f"/v1/recipients/{recipient['id']}"
    for name in ("country", "street1", "city"):
        body = {"address": {name: us_address[name]}}
        updated_recipient = (await client.call("PATCH", path, body)).json["recipient"]
    assert updated_recipient["status"] == "active"
    # The address was merged field by field.
    assert updated_recipient["address"]["street1"] == us_address["street1"]
    answer = await client.call("PATCH", path, {"address": {"city": None}})
    assert answer.json["recipient"]["status"] == "incomplete"
    answer = await client.call("PATCH", path, {"address": None})
    assert set(answer.json["recipient"]["address"].values()) == {None}


@pytest.mark.parametrize("address", [{"country": "FR"}, None])
async def test_wallet_requires_no_address(client, wallet, address):
    recipient = await client.create_recipient(address=address)
    await client.create_account(recipient, **wallet)
    assert (await client.read_recipient(recipient))["status"] == "active"


async def test_some_countries_require_phone_for_bank_transfers(client, us_bank):
    recipient = await client.create_recipient(
        address={"country": "ZA", "street1": "1 A", "city": "B"}
    )
    bank = us_bank | {"country": "ZA", "currency": "ZAR"}
    del bank["branchId"]
    await client.create_account(recipient, **bank)
    assert (await client.read_recipient(recipient))["status"] == "incomplete"
    body = {"phone": "+27 21 555 0100"}
    answer = await client.call("PATCH", f"/v1/recipients/{recipient['id']}", body)
    assert answer.json["recipient"]["status"] == "active"
    assert answer.json["recipient"]["address"]["phone"] == "+27 21 555 0100"


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


async def test_status_set_by_client_persists(client, us_bank, us_address):
    recipient = await client.create_recipient(address=us_address, account=us_bank)
    path = f"/v1/recipients/{recipient['id']}"
    answer = await client.call("PATCH", path, {"status": "suspended"})
    assert answer.json["recipient"]["status"] == "suspended"
    answer = await client.call("PATCH", path, {"address": {"city": "Waco"}})
    assert answer.json["recipient"]["status"] == "suspended"
    answer = await client.call("PATCH", path, {"status": "active"})
    assert answer.json["recipient"]["status"] == "active"
    for status in ("inactive", "disabled", "archived", "incomplete", None, 1, ["active"]):
        answer = await client.call("PATCH", path, {"status": status})
        assert (answer.status, answer.errors) == (400, [("invalid_field", "status")])


async def test_status_can_be_set_in_any_state(client):
    recipient = await client.create_recipient()
    answer = await client.call("PATCH", f"/v1/recipients/{recipient['id']}", {"status": "active"})
    assert answer.json["recipient"]["status"] == "active"


async def test_deleted_recipient_is_archived(client):
    recipient = await client.create_recipient()
    path = f"/v1/recipients/{recipient['id']}"
    answer = await client.call("DELETE", path)
    assert (answer.status, answer.json) == (200, {"ok": True})
    assert (await client.read_recipient(recipient))["status"] == "archived"
    assert (await client.call("GET", "/v1/recipients")).json["meta"]["records"] == 0
    assert (await client.call("DELETE", path)).status == 200


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


async def test_recipients_are_deleted_all_or_none(client):
    ids = [(await client.create_recipient())["id"] for _ in range(3)]
    answer = await client.call("DELETE", "/v1/recipients", {"ids": [*ids, "R-unknown"]})
    assert (answer.status, answer.errors) == (404, [("not_found", None)])
    assert (await client.call("GET", "/v1/recipients")).json["meta"]["records"] == 3
    answer = await client.call("DELETE", "/v1/recipients", {"ids": ids[:2]})
    assert (answer.status, answer.json) == (200, {"ok": True})
    assert (await client.call("GET", "/v1/recipients")).json["meta"]["records"] == 1


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


@pytest.mark.parametrize("status", ["pending", "review", "verified", "blocked"])
async def test_compliance_status_can_be_set(client, status):
    recipient = await client.create_recipient()
    client.service.set_compliance(recipient["id"], status)
    recipient_after = await client.read_recipient(recipient)
    assert recipient_after["complianceStatus"] == recipient_after["compliance"]["status"] == status
    assert (recipient_after["compliance"]["checkedAt"] is None) == (status == "pending")


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
