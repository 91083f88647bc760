"""Webhook subscriptions: section 4.5 of the current interface."""

import pytest

from gateway.simulator import ServiceCredentials

HOOK = {"action": "created", "model": "recipient", "target": "https://hooks.example.com/payouts"}
PATH = "/v1/subscriptions"


@pytest.fixture
async def subscription(client):
    return (await client.call("POST", PATH, HOOK)).json["subscription"]


async def test_subscription_is_created_and_read(client, subscription):
    assert list(subscription) == ["id", "action", "model", "target"]
    assert subscription == {"id": subscription["id"], **HOOK}
    answer = await client.call("GET", f"{PATH}/{subscription['id']}")
    assert answer.json == {"ok": True, "subscription": subscription}


async def test_subscriptions_are_a_plain_list(client, subscription):
    other_subscription = (
        await client.call("POST", PATH, HOOK | {"action": "*", "model": "*"})
    ).json
    answer = await client.call("GET", PATH)
    assert answer.json == {
        "ok": True,
        "subscriptions": [subscription, other_subscription["subscription"]],
    }


async def test_update_is_answered_without_envelope(client, subscription):
    answer = await client.call(
        "PATCH", f"{PATH}/{subscription['id']}", {"action": "upload-completed"}
    )
    assert answer.text == (
        '{"ok":true,"action":"upload-completed","model":"recipient",'
        '"target":"https://hooks.example.com/payouts"}'
    )
    response = await client.call("GET", f"{PATH}/{subscription['id']}")
    assert response.json["subscription"]["action"] == "upload-completed"


async def test_deleted_subscription_is_not_found(client, subscription):
    path = f"{PATH}/{subscription['id']}"
    assert (await client.call("DELETE", path)).json == {"ok": True}
    for method in ("GET", "PATCH", "DELETE"):
        answer = await client.call(method, path)
        assert (answer.status, answer.errors) == (404, [("not_found", None)])
    assert (await client.call("GET", PATH)).json["subscriptions"] == []


@pytest.mark.parametrize(
    ("changes", "errors"),
    [
        ({"action": None, "model": ""}, [("empty_field", "action"), ("empty_field", "model")]),
        ({"action": "started"}, [("invalid_field", "action")]),
        ({"model": "invoice"}, [("invalid_field", "model")]),
        ({"target": "hooks.example.com"}, [("invalid_field", "target")]),
        ({"target": 7, "model": []}, [("invalid_field", "model"), ("invalid_field", "target")]),
    ],
)
async def test_only_documented_values_are_accepted(client, subscription, changes, errors):
    answer = await client.call("POST", PATH, HOOK | changes)
    assert (answer.status, answer.errors) == (400, errors)
    answer = await client.call("PATCH", f"{PATH}/{subscription['id']}", changes)
    assert (answer.status, answer.errors) == (400, errors)
    assert (await client.call("GET", PATH)).json["subscriptions"] == [subscription]


async def test_subscriptions_belong_to_one_merchant(client, subscription):
    client.service.add_credentials(ServiceCredentials("OTHER", "other-secret", "other"))
    client.access_key, client.secret_key = "OTHER", "other-secret"
    assert (await client.call("GET", PATH)).json["subscriptions"] == []
    assert (await client.call("GET", f"{PATH}/{subscription['id']}")).status == 404
