"""Authentication, paths and errors of the legacy interface (sections 5 and 7)."""

import pytest

from tests.simulator import ServiceCredentials

UNKNOWN_ROUTES = (
    ("GET", "/nothing"),
    ("GET", "/recipients/R-1/nothing"),
    ("PUT", "/recipients/R-1"),
    ("POST", "/profile/balances"),
    ("GET", "/recipients//"),
    ("GET", "/balance"),
    ("GET", "/batch/B-1/summary"),
    ("POST", "/recipients/R-1/accounts"),
)


@pytest.mark.parametrize("headers", [{"X-API-Key": ""}, {"X-API-Key": "wrong"}, {"X-API-Key": "é"}])
async def test_missing_or_unknown_key_is_403(legacy_client, headers):
    answer = await legacy_client.request("GET", "/recipients", headers=headers)
    assert (answer.status, answer.errors) == (403, [("invalid_api_key", None)])


async def test_key_reads_its_own_merchant_only(legacy_client):
    legacy_client.service.add_credentials(
        ServiceCredentials("A", "a", "other", "live", "other-key")
    )
    recipient = await legacy_client.create_recipient()
    legacy_client.api_key = "other-key"
    assert (await legacy_client.request_ok("GET", "/recipients"))["meta"]["records"] == 0
    path = f"/recipients/{recipient['id']}"
    assert await legacy_client.request_refused("GET", path) == (404, [("not_found", None)])


@pytest.mark.parametrize(("method", "path"), UNKNOWN_ROUTES)
async def test_unknown_path_or_method_is_404_with_and_without_key(legacy_client, method, path):
    for key in (legacy_client.api_key, "wrong"):
        answer = await legacy_client.request(method, path, headers={"X-API-Key": key})
        assert (answer.status, answer.errors) == (404, [("not_found", None)])


@pytest.mark.parametrize(
    "body", [b"{", b'"text"', b"[]", b"\xff", b'{"a": "\\ud800"}', b"1" * 5000]
)
async def test_non_object_body_is_406(legacy_client, body):
    answer = await legacy_client.request("POST", "/recipients", data=body)
    assert (answer.status, answer.errors) == (406, [("invalid_field", None)])


async def test_cors_allows_every_origin(legacy_client):
    answer = await legacy_client.request("OPTIONS", "/recipients/R-1", headers={"X-API-Key": ""})
    assert answer.status == 200
    methods = answer.headers["Access-Control-Allow-Methods"]
    assert set(methods.split(", ")) == {"GET", "PATCH", "DELETE"}
    assert answer.headers["Access-Control-Allow-Headers"] == "X-API-Key, Content-Type"
    for response in (
        answer,
        await legacy_client.request("GET", "/recipients", headers={"X-API-Key": "no"}),
    ):
        assert response.headers["Access-Control-Allow-Origin"] == "*"
    assert (await legacy_client.request("OPTIONS", "/nothing")).status == 404
