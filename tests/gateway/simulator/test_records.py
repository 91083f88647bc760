"""Activity logs, payments, offline payments, and recorded requests."""

import json

import pytest


@pytest.fixture
async def recipient(client):
    return await client.create_recipient()


@pytest.fixture
async def recipient_path(recipient):
    return f"/v1/recipients/{recipient['id']}"


async def test_activity_of_recipient_is_logged(client, clock, recipient, recipient_path):
    clock.now += 1
    body = {"placeOfBirth": "Málaga"}
    response = await client.call(
        "PATCH", recipient_path, body, headers={"X-API-Key": "stray-secret"}
    )
    await client.call("PATCH", recipient_path, {"email": ""})
    answer = await client.call("GET", f"{recipient_path}/logs")
    assert answer.json["meta"] == {"page": 1, "pages": 1, "records": 3}
    refused_activity, patch_activity, create_activity = answer.json["activities"]
    assert (refused_activity["code"], patch_activity["code"], create_activity["code"]) == (
        400,
        200,
        200,
    )
    assert (create_activity["method"], create_activity["url"]) == ("POST", "/v1/recipients")
    headers = patch_activity.pop("headers")
    assert patch_activity == {
        "ip": "127.0.0.1",
        "url": recipient_path,
        "method": "PATCH",
        "request": json.dumps(body),
        "response": response.text,
        "code": 200,
        "source": "api",
        "testMode": True,
        "createdAt": "2025-10-09T08:53:21.000Z",
    }
    assert headers["Authorization"] == headers["X-API-Key"] == "****"
    assert headers["Content-Type"] == "application/json"
    # Reading the log adds no entry to it; reading the recipient does.
    assert (await client.call("GET", f"{recipient_path}/logs")).json["meta"]["records"] == 3
    await client.read_recipient(recipient)
    page = (await client.call("GET", f"{recipient_path}/logs?page=2&pageSize=3")).json
    assert (len(page["activities"]), page["meta"]["pages"]) == (1, 2)


async def test_seeded_payments_are_listed(client, recipient, recipient_path):
    answer = await client.call("GET", f"{recipient_path}/payments")
    assert answer.json == {
        "ok": True,
        "payments": [],
        "meta": {"page": 1, "pages": 0, "records": 0},
    }
    client.service.seed_payments(recipient["id"], 12, seed=3)
    first = (await client.call("GET", f"{recipient_path}/payments")).json
    assert (len(first["payments"]), first["meta"]["pages"]) == (10, 2)
    payment = first["payments"][0]
    assert set(payment) == {
        "id", "recipient", "status", "sourceAmount", "targetAmount", "exchangeRate", "fxRate",
        "fees", "recipientFees", "merchantFees", "memo", "sourceCurrency", "sourceCurrencyName",
        "targetCurrency", "targetCurrencyName", "compliance", "processedAt", "createdAt",
        "updatedAt", "batch",
    }  # fmt: skip
    assert payment["recipient"] == await client.read_recipient(recipient)
    assert set(payment["batch"]) == {"id", "createdAt", "updatedAt", "sentAt", "completedAt"}
    assert len(payment["batch"]["id"]) == len("B-") + 22
    assert (await client.call("GET", f"{recipient_path}/payments?page=0")).status == 400


async def test_requests_are_kept_without_secrets(connect_client):
    client = await connect_client(max_kept_requests=3)
    await client.call("GET", "/v1/recipients?search=%C3%A9&page=1", headers={"X-API-Key": "k"})
    await client.call("POST", "/v1/recipients", b'{"type": "individual"}')
    client.secret_key = "wrong"
    await client.call("GET", "/v1/nothing")
    list_request, create_request, refused_request = client.service.requests
    assert (list_request.method, list_request.target) == (
        "GET",
        "/v1/recipients?search=%C3%A9&page=1",
    )
    assert (list_request.path, list_request.status) == ("/v1/recipients", 200)
    assert list_request.headers["authorization"] == "svcsign SIMULATORACCESSKEY:****"
    assert list_request.headers["x-api-key"] == "****"
    assert (create_request.body, create_request.status) == (b'{"type": "individual"}', 400)
    assert refused_request.status == 401
    assert client.service.list_requests("GET") == [list_request, refused_request]
    assert client.service.list_requests(path="/v1/recipients") == [list_request, create_request]
    assert client.service.list_requests("GET", "/v1/*") == [list_request, refused_request]
    assert client.service.list_requests("GET", "/*") == []
    client.secret_key = "simulator-secret-key"
    await client.call("GET", "/v1/recipients")
    assert len(client.service.requests) == 3
    assert list_request not in client.service.requests


async def test_body_size_is_unlimited(client):
    body = {"type": "individual", "firstName": "A", "lastName": "B", "email": "a@example.com"}
    answer = await client.call("POST", "/v1/recipients", {**body, "ballast": "x" * 3_000_000})
    assert answer.status == 200
