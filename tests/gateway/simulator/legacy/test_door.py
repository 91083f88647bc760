"""Authentication, paths and errors of the legacy interface (sections 5 and 7)."""

import pytest

from gateway.simulator import Fault, Key
from gateway.simulator.legacy.operations import OPERATIONS

UNKNOWN = (
    ("GET", "/nothing"),
    ("GET", "/recipients/R-1/nothing"),
    ("PUT", "/recipients/R-1"),
    ("POST", "/profile/balances"),
    ("GET", "/recipients//"),
    ("GET", "/balance"),
    ("GET", "/batch/B-1/summary"),
    ("POST", "/recipients/R-1/accounts"),
)


def test_there_are_all_29_operations_and_two_that_clients_use():
    assert len(OPERATIONS) == 29 + 2


@pytest.mark.parametrize("headers", [{"X-API-Key": ""}, {"X-API-Key": "wrong"}, {"X-API-Key": "é"}])
async def test_a_missing_or_unknown_key_is_403(legacy, headers):
    got = await legacy.request("GET", "/recipients", headers=headers)
    assert (got.status, got.errors) == (403, [("invalid_api_key", None)])


async def test_the_key_of_a_pair_does_not_open_the_legacy_face(legacy):
    legacy.service.add_key(Key("ACCESS", "secret", "other"))
    for key in ("ACCESS", "secret"):
        got = await legacy.request("GET", "/recipients", headers={"X-API-Key": key})
        assert got.status == 403


@pytest.mark.parametrize("name", ["x-api-key", "X-API-KEY", "X-Api-Key"])
async def test_the_header_may_have_any_case(legacy, name):
    got = await legacy.request("GET", "/recipients", headers={name: legacy.api_key})
    assert got.status == 200


async def test_a_key_opens_its_own_merchants_world_only(legacy):
    legacy.service.add_key(Key("A", "a", "other", "live", "other-key"))
    made = await legacy.create_recipient()
    legacy.api_key = "other-key"
    assert (await legacy.request_ok("GET", "/recipients"))["meta"]["records"] == 0
    path = f"/recipients/{made['id']}"
    assert await legacy.request_refused("GET", path) == (404, [("not_found", None)])


@pytest.mark.parametrize(("method", "path"), UNKNOWN)
async def test_a_path_or_method_that_does_not_exist_is_404_with_and_without_a_key(
    legacy, method, path
):
    for key in (legacy.api_key, "wrong"):
        got = await legacy.request(method, path, headers={"X-API-Key": key})
        assert (got.status, got.errors) == (404, [("not_found", None)])


@pytest.mark.parametrize(
    "body", [b"{", b'"text"', b"[]", b"\xff", b'{"a": "\\ud800"}', b"1" * 5000]
)
async def test_a_body_that_is_no_json_object_is_406(legacy, body):
    got = await legacy.request("POST", "/recipients", data=body)
    assert (got.status, got.errors) == (406, [("invalid_field", None)])


async def test_a_write_may_say_any_content_type_and_a_path_end_with_a_slash(legacy):
    body = b'{"type":"business","name":"Acme","email":"acme@example.com"}'
    for path in ("/recipients", "/recipients/"):
        for kind in ("text/plain", "application/json", "application/x-www-form-urlencoded"):
            got = await legacy.request("POST", path, data=body, headers={"Content-Type": kind})
            assert got.status == 200
    listed = await legacy.request_ok("GET", "/recipients/?&search=&page=1&pageSize=10")
    assert listed["meta"] == {"page": 1, "pages": 1, "records": 6}


async def test_a_browser_may_call_from_anywhere(legacy):
    got = await legacy.request("OPTIONS", "/recipients/R-1", headers={"X-API-Key": ""})
    assert got.status == 200
    assert got.headers["Access-Control-Allow-Methods"] == "GET, PATCH, DELETE"
    assert got.headers["Access-Control-Allow-Headers"] == "X-API-Key, Content-Type"
    for each in (got, await legacy.request("GET", "/recipients", headers={"X-API-Key": "no"})):
        assert each.headers["Access-Control-Allow-Origin"] == "*"
    assert (await legacy.request("OPTIONS", "/nothing")).status == 404


async def test_a_fault_meets_the_face_that_it_was_meant_for(legacy):
    said = b'{"ok":false,"errors":[{"code":"internal_server_error","message":"no"}]}'
    legacy.client.simulator.next(Fault("GET", "*", status=500, body=said))
    legacy.client.simulator.next(Fault("GET", "*", status=500, body=said, face="legacy"))
    assert (await legacy.request("GET", "/recipients")).status == 500
    assert (await legacy.request("GET", "/recipients")).status == 200
    assert (await legacy.client.call("GET", "/v1/recipients")).status == 500
    assert (await legacy.client.call("GET", "/v1/recipients")).status == 200


async def test_what_breaks_inside_is_a_500_that_tells_nothing(legacy, caplog):
    made = await legacy.create_recipient()
    legacy.service.recipient(made["id"]).fields = {}
    got = await legacy.request("GET", f"/recipients/{made['id']}")
    assert (got.status, got.errors) == (500, [("internal_server_error", None)])
    assert [each.levelname for each in caplog.records] == ["ERROR"]


async def test_requests_of_both_faces_are_kept_apart_and_without_the_key(legacy):
    await legacy.request("GET", "/recipients?search=x")
    await legacy.client.call("GET", "/v1/recipients")
    (seen,) = legacy.service.calls(face="legacy")
    assert (seen.target, seen.status) == ("/v1/recipients?search=x", 200)
    assert seen.headers["X-API-Key"] == "****"
    assert len(legacy.service.calls()) == 1
