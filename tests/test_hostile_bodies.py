"""Bodies that cost much more than their size are refused in linear time, with bounded answers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from gateway.payloads import json_codec
from mappings import legacy, request_bodies
from mappings.errors import MAX_ERRORS
from mappings.failures import Invalid
from tests.running_gateway import GatewayUnderTest, open_gateway
from tests.signed_requests import open_raw_service

NO_SERVICE = "http://127.0.0.1:9"


async def post_body(
    gateway: GatewayUnderTest, data: bytes, path: str = "/v1/batches", **headers: str
):
    sent_headers = {"Content-Type": "application/json", **headers}
    return await gateway.request("POST", path, data=data, headers=sent_headers)


def test_duplicate_keys_are_found_in_one_pass():
    # To compare each key with all others would take longer than a test may.
    names = [*range(400_000), 399_999]
    data = b"{" + b",".join(b'"%d":1' % name for name in names) + b"}"
    with pytest.raises(json_codec.JsonError, match="'399999' twice"):
        json_codec.loads(data)


async def test_body_of_many_tiny_values_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    parsed = []
    monkeypatch.setattr(json_codec, "loads", lambda *args: parsed.append(args))
    async with open_gateway(tmp_path, NO_SERVICE) as gateway:
        for item in (b"[]", b"1e1", b"{}"):
            body = b'{"a":[' + b",".join([item] * 4_000_000) + b"]}"
            response = await post_body(
                gateway, gzip.compress(body, 1), **{"Content-Encoding": "gzip"}
            )
            assert (response.status, response.body["ok"]) == (413, False), item
    assert parsed == []


async def test_body_nested_too_deep_is_refused(tmp_path: Path):
    async with open_gateway(tmp_path, NO_SERVICE) as gateway:
        for depth in (65, 5_000, 500_000):
            response = await post_body(gateway, b'{"a":' + b"[" * depth + b"]" * depth + b"}")
            assert (response.status, response.body["errors"][0]["code"]) == (
                406,
                "invalid_field",
            ), depth


@pytest.mark.parametrize(
    ("path", "body", "expected_count"),
    [
        ("/v1/batches", {"sourceCurrency": "USD", "payments": [1] * 5_000}, 5_000),
        ("/v1/batches", {"sourceCurrency": "USD", "payments": [{"a": 1}] * 5_000}, 10_000),
        ("/v1/batches", {"sourceCurrency": "USD", "payments": [[]] * 200_000}, 200_000),
    ],
)
async def test_at_most_a_hundred_errors_are_reported(
    tmp_path: Path, path: str, body: object, expected_count: int
):
    async with open_gateway(tmp_path, NO_SERVICE) as gateway:
        response = await post_body(gateway, json.dumps(body).encode(), path)
    errors = response.body["errors"]
    assert (response.status, len(errors)) == (406, MAX_ERRORS)
    assert errors[-1]["message"].endswith(f" … and {expected_count - MAX_ERRORS:,} more")
    assert all("more" not in error["message"] for error in errors[:-1])
    assert errors[0]["field"].startswith("payments[0]")


def build_batch_by_addresses(count: int) -> dict[str, object]:
    """Builds payments to ``count`` addresses, some of them twice, and to one recipient by id."""
    addresses = [f"payee-{number}@example.com" for number in range(count)]
    payments = [
        {"recipient": {"email": entry}, "sourceAmount": "1.00"}
        for entry in [*addresses, *addresses[:500]]
    ]
    known_payment = {"recipient": {"id": "R-1234"}, "sourceAmount": "1.00"}
    return {"sourceCurrency": "USD", "payments": [known_payment, *payments]}


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/batches"), ("PATCH", "/v1/batches/B-1")]
)
@pytest.mark.parametrize("count", [10_001, 12_000])
async def test_too_many_addresses_are_refused_before_the_first_call(
    tmp_path: Path, method: str, path: str, count: int
):
    async with open_raw_service() as service:
        async with open_gateway(tmp_path, service.url) as gateway:
            response = await gateway.request(method, path, build_batch_by_addresses(count))
    (error,) = response.body["errors"]
    assert (response.status, error["code"]) == (406, "invalid_field")
    assert error["field"] == "payments[10001].recipient.email"
    assert "10,000" in error["message"]
    assert service.requests == []


async def test_each_address_is_looked_up_once(tmp_path: Path):
    async with open_raw_service() as service:
        async with open_gateway(tmp_path, service.url) as gateway:
            response = await gateway.request("POST", "/v1/batches", build_batch_by_addresses(1_000))
    assert response.status == 406, "the service knows none of them"
    assert len({request.target for request in service.requests}) == len(service.requests) == 1_000


def test_errors_of_list_items_are_bounded():
    with pytest.raises(Invalid) as error_info:
        request_bodies.parse_body(legacy.RecipientIdsBody, {"ids": [1.5] * 50_000})
    assert len(error_info.value.problems) < 3 * MAX_ERRORS
    assert len(error_info.value.problems) + error_info.value.omitted_count == 50_000
