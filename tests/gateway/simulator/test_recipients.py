import pytest


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
