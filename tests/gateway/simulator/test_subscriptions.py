"""Webhook subscriptions: section 4.5 of the current interface."""

import pytest

from gateway.simulator import ServiceCredentials

HOOK = {"action": "created", "model": "recipient", "target": "https://hooks.example.com/payouts"}
PATH = "/v1/subscriptions"


@pytest.fixture
async def hook(client):
    return (await client.call("POST", PATH, HOOK)).json["subscription"]


async def test_subscription_is_created_and_read(client, hook):
    assert list(hook) == ["id", "action", "model", "target"]
    assert hook == {"id": hook["id"], **HOOK}
    answer = await client.call("GET", f"{PATH}/{hook['id']}")
    assert answer.json == {"ok": True, "subscription": hook}


async def test_subscriptions_are_a_plain_list(client, hook):
    other = (await client.call("POST", PATH, HOOK | {"action": "*", "model": "*"})).json
    answer = await client.call("GET", PATH)
    assert answer.json == {"ok": True, "subscriptions": [hook, other["subscription"]]}


async def test_update_is_answered_without_envelope(client, hook):
    answer = await client.call("PATCH", f"{PATH}/{hook['id']}", {"action": "upload-completed"})
    assert answer.text == (
        '{"ok":true,"action":"upload-completed","model":"recipient",'
        '"target":"https://hooks.example.com/payouts"}'
    )
    read = await client.call("GET", f"{PATH}/{hook['id']}")
    assert read.json["subscription"]["action"] == "upload-completed"


async def test_deleted_subscription_is_not_found(client, hook):
    path = f"{PATH}/{hook['id']}"
    assert (await client.call("DELETE", path)).json == {"ok": True}
    for method in ("GET", "PATCH", "DELETE"):
        answer = await client.call(method, path)
        assert (answer.status, answer.errors) == (404, [("not_found", None)])
    assert (await client.call("GET", PATH)).json["subscriptions"] == []


@pytest.mark.parametrize(
    ("changed", "errors"),
    [
        ({"action": None, "model": ""}, [("empty_field", "action"), ("empty_field", "model")]),
        ({"action": "started"}, [("invalid_field", "action")]),
        ({"model": "invoice"}, [("invalid_field", "model")]),
        ({"target": "hooks.example.com"}, [("invalid_field", "target")]),
        ({"target": 7, "model": []}, [("invalid_field", "model"), ("invalid_field", "target")]),
    ],
)
async def test_only_documented_values_are_accepted(client, hook, changed, errors):
    answer = await client.call("POST", PATH, HOOK | changed)
    assert (answer.status, answer.errors) == (400, errors)
    answer = await client.call("PATCH", f"{PATH}/{hook['id']}", changed)
    assert (answer.status, answer.errors) == (400, errors)
    assert (await client.call("GET", PATH)).json["subscriptions"] == [hook]


async def test_subscriptions_belong_to_one_merchant(client, hook):
    client.service.add_credentials(ServiceCredentials("OTHER", "other-secret", "other"))
    client.access_key, client.secret_key = "OTHER", "other-secret"
    assert (await client.call("GET", PATH)).json["subscriptions"] == []
    assert (await client.call("GET", f"{PATH}/{hook['id']}")).status == 404
