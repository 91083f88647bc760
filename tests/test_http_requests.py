"""HTTP requests through a whole gateway: real sockets in front, the simulator behind.

A request is checked in the order path, key, address, limit, body. Every refusal has the form of the
legacy interface and causes no upstream call.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.http import request_reader
from gateway.server import app
from tests.operator_commands import disable_immediate_read
from tests.payouts import BANK, RECIPIENT_BODY
from tests.running_gateway import KEY, GatewayUnderTest, open_gateway
from tests.simulator import Fault, Service, Simulator, start_simulator
from tests.sockets import RawResponse, assert_legacy, exchange, open_connection, wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

API_KEY = KEY["api_key"]
RECIPIENTS = "/v1/recipients"

ALLOWED_NETWORKS = ["192.0.2.0/24", "2001:db8::/32", "203.0.113.7"]

OpenGateway = Callable[..., AbstractAsyncContextManager[GatewayUnderTest]]


@pytest_asyncio.fixture(loop_scope="module")
async def simulator() -> AsyncIterator[Simulator]:
    simulator = await start_simulator(service=Service(seed=1))
    yield simulator
    await simulator.stop()


@pytest.fixture
def open_with_settings(simulator: Simulator, tmp_path: Path) -> OpenGateway:
    """Opens a gateway in front of the simulator with the settings of a test."""

    @asynccontextmanager
    async def open_with_sections(**sections: Mapping[str, Any]) -> AsyncIterator[GatewayUnderTest]:
        async with open_gateway(tmp_path, simulator.url, **sections) as gateway:
            yield gateway

    return open_with_sections


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(open_with_settings: OpenGateway) -> AsyncIterator[GatewayUnderTest]:
    """A gateway for one test, which may change its state."""
    async with open_with_settings() as http_gateway:
        yield http_gateway


# Gateways for the whole module, for requests that do not change their state.


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def module_simulator() -> AsyncIterator[Simulator]:
    simulator = await start_simulator(service=Service(seed=1))
    yield simulator
    await simulator.stop()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def module_gateway(
    module_simulator: Simulator, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayUnderTest]:
    async with open_gateway(tmp_path_factory.mktemp("standing"), module_simulator.url) as gateway:
        await gateway.import_key(api_key="bound", name="bound", allowed_ips=ALLOWED_NETWORKS)
        yield gateway


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def proxied_gateway(
    module_simulator: Simulator, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayUnderTest]:
    server_section = {"trusted_proxies": ["127.0.0.0/8", "10.0.0.0/8"]}
    folder = tmp_path_factory.mktemp("proxied")
    async with open_gateway(folder, module_simulator.url, server=server_section) as gateway:
        await gateway.import_key(api_key="bound", name="bound", allowed_ips=ALLOWED_NETWORKS)
        yield gateway


@pytest.fixture
def cleared_simulator(module_simulator: Simulator) -> Simulator:
    """The simulator of the module's gateways, without recorded requests and faults."""
    module_simulator.service.requests.clear()
    module_simulator.service.faults.clear()
    return module_simulator


@pytest.fixture
def no_immediate_read() -> Iterator[None]:
    with disable_immediate_read():
        yield


def build_request(
    method: str = "GET",
    target: str = RECIPIENTS,
    *headers: str,
    body: bytes = b"",
    key: str | None = API_KEY,
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: gateway", *headers]
    lines += [f"X-API-Key: {key}"] if key is not None else []
    lines += [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([*lines, "", ""]).encode() + body


async def send_request(gateway: GatewayUnderTest, data: bytes) -> RawResponse:
    response = await exchange(gateway.running.port, data)
    assert response is not None, "closed without an answer"
    return response


def extract_refusal(response: RawResponse) -> tuple[int, str]:
    assert_legacy(response)
    return response.status, response.code


NOT_FOUND = (404, "not_found")
INVALID_KEY = (403, "invalid_api_key")
NOT_AUTHORIZED = (403, "not_authorized")
OVER_LIMIT = (429, "rate_limit_exceeded")
INVALID = (406, "invalid_field")
INTERNAL = (500, "internal_server_error")


# The order of checks: each request fails all checks from one on, which the answer names.


async def test_request_checks_have_a_fixed_order(
    open_with_settings: OpenGateway, simulator: Simulator
) -> None:
    other_address_key, exhausted_key = "a-key-for-elsewhere", "a-key-that-is-used-up"
    async with open_with_settings(limits={"body_bytes": 1024}) as gateway:
        await gateway.import_key(
            api_key=other_address_key,
            allowed_ips=["192.0.2.1"],
            requests_per_hour=1,
            name="elsewhere",
        )
        await gateway.import_key(api_key=exhausted_key, requests_per_hour=1, name="used up")
        assert (await send_request(gateway, build_request(key=exhausted_key))).status == 200
        calls = len(simulator.service.list_requests())
        steps = [
            ("/v1/merchants", "no-such-key", NOT_FOUND),
            (RECIPIENTS, "no-such-key", INVALID_KEY),
            (RECIPIENTS, other_address_key, NOT_AUTHORIZED),
            (RECIPIENTS, exhausted_key, OVER_LIMIT),
            (RECIPIENTS, API_KEY, (413, "invalid_field")),
        ]
        for path, key, expected_refusal in steps:
            response = await send_request(
                gateway, build_request("POST", path, body=b"x" * 2000, key=key)
            )
            assert extract_refusal(response) == expected_refusal
    assert len(simulator.service.list_requests()) == calls


async def test_request_refused_before_the_rate_limit_is_not_counted(
    gateway: GatewayUnderTest,
) -> None:
    key = await gateway.import_key(
        api_key="elsewhere", allowed_ips=["192.0.2.1"], requests_per_hour=1, name="elsewhere"
    )
    for _ in range(3):
        assert (
            extract_refusal(await send_request(gateway, build_request(key=key))) == NOT_AUTHORIZED
        )
        assert (
            extract_refusal(await send_request(gateway, build_request(target="/v1/x", key=key)))
            == NOT_FOUND
        )


# The key.

BAD_KEYS = {
    "an empty key": ["X-API-Key:"],
    "spaces": ["X-API-Key:    "],
    "the beginning of a key": [f"X-API-Key: {API_KEY[:-1]}"],
    "a key and a blank inside": [f"X-API-Key: {API_KEY} {API_KEY}"],
    "a key twice": [f"X-API-Key: {API_KEY}"] * 2,
    "a good key after a bad one": ["X-API-Key: x", f"x-api-key: {API_KEY}"],
    "the secret key": [f"X-API-Key: {KEY['secret_key']}"],
    "the pair": [f"X-API-Key: {KEY['access_key']}:{KEY['secret_key']}"],
    "a key as a bearer": [f"Authorization: Bearer {API_KEY}"],
    "a key in upper case": [f"X-API-Key: {API_KEY.upper()}"],
    "a key and more": [f"X-API-Key: {API_KEY}x"],
    "a quoted key": [f'X-API-Key: "{API_KEY}"'],
    "two keys in one value": [f"X-API-Key: {API_KEY}, {API_KEY}"],
    "an empty header before a good one": ["X-API-Key:", f"X-API-Key: {API_KEY}"],
    "a non-ASCII letter after a good key": [f"X-API-Key: {API_KEY}é"],
    "full-width letters": ["X-API-Key: \uff41\uff4e-api-key-for-tests"],
    "as long as a header can be": [f"X-API-Key: {'k' * 8000}"],
    "as basic credentials": ["Authorization: Basic YW4tYXBpLWtleS1mb3ItdGVzdHM6"],
    "in a cookie": [f"Cookie: X-API-Key={API_KEY}"],
    "under a name with an underscore": [f"X_API_Key: {API_KEY}"],
    "SQL": ["X-API-Key: ' OR 1=1 --"],
}


@pytest.mark.parametrize("headers", BAD_KEYS.values(), ids=BAD_KEYS)
async def test_request_without_exactly_one_valid_key_is_refused(
    module_gateway: GatewayUnderTest, cleared_simulator: Simulator, headers: list[str]
) -> None:
    for method in ("GET", "DELETE", "POST"):
        response = await send_request(
            module_gateway, build_request(method, RECIPIENTS, *headers, key=None)
        )
        assert extract_refusal(response) == INVALID_KEY
        assert API_KEY.encode() not in response.body
    assert not cleared_simulator.service.list_requests()


async def test_key_that_is_not_text_is_refused(
    module_gateway: GatewayUnderTest, cleared_simulator: Simulator
) -> None:
    data = build_request(key="KEY").replace(b"KEY", b"\xff\xfe\x80")
    assert extract_refusal(await send_request(module_gateway, data)) == INVALID_KEY
    assert not cleared_simulator.service.list_requests()


async def test_credentials_refused_by_the_service_are_an_invalid_key(
    gateway: GatewayUnderTest,
) -> None:
    key = await gateway.import_key(
        merchant="other",
        api_key="a-key-of-a-wrong-pair",
        access_key="NOSUCHACCESSKEY",
        secret_key="no such secret",
    )
    assert extract_refusal(await send_request(gateway, build_request(key=key))) == INVALID_KEY


# The address.


BEHIND_PROXIES = {
    "an allowed client": ("192.0.2.9", 200),
    "an allowed client, mapped into IPv6": ("::ffff:192.0.2.9", 200),
    "an allowed IPv6 client": ("2001:db8::5", 200),
    "an IPv6 client elsewhere": ("2001:db9::5", 403),
    "an allowed client before another trusted proxy": ("192.0.2.9, 10.1.2.3", 200),
    "an allowed address claimed by a client elsewhere": ("192.0.2.9, 198.51.100.1", 403),
    "a mapped address claimed from elsewhere": ("::ffff:192.0.2.9, ::ffff:198.51.100.1", 403),
    "ports of all": ("192.0.2.9:61234, 10.1.2.3:443", 200),
    "a word nearest": ("192.0.2.9, unknown", 403),
    "only proxies": ("10.1.2.3", 403),
}


@pytest.mark.parametrize(("forwarded_for", "status"), BEHIND_PROXIES.values(), ids=BEHIND_PROXIES)
async def test_nearest_untrusted_address_counts_behind_trusted_proxies(
    proxied_gateway: GatewayUnderTest, cleared_simulator: Simulator, forwarded_for: str, status: int
) -> None:
    header = f"X-Forwarded-For: {forwarded_for}"
    response = await send_request(
        proxied_gateway, build_request("GET", RECIPIENTS, header, key="bound")
    )
    assert response.status == status
    assert_legacy(response)
    assert status == 200 or response.code == "not_authorized"
    assert bool(cleared_simulator.service.list_requests()) == (status == 200)


async def test_repeated_forwarded_headers_are_read_in_order(
    proxied_gateway: GatewayUnderTest,
) -> None:
    client, elsewhere, proxy = [
        f"X-Forwarded-For: {address}" for address in ("192.0.2.9", "198.51.100.1", "10.1.2.3")
    ]
    outside_response = await send_request(
        proxied_gateway, build_request("GET", RECIPIENTS, client, elsewhere, key="bound")
    )
    inside_response = await send_request(
        proxied_gateway, build_request("GET", RECIPIENTS, elsewhere, client, proxy, key="bound")
    )
    assert extract_refusal(outside_response) == NOT_AUTHORIZED
    assert inside_response.status == 200


async def test_key_without_allowed_addresses_works_from_any_address(
    proxied_gateway: GatewayUnderTest,
) -> None:
    for forwarded_for in ("198.51.100.1", "unknown", "::1"):
        response = await send_request(
            proxied_gateway, build_request("GET", RECIPIENTS, f"X-Forwarded-For: {forwarded_for}")
        )
        assert response.status == 200


async def test_ipv6_client_is_checked_by_its_own_address(open_with_settings: OpenGateway) -> None:
    async with open_with_settings(server={"host": "::1"}) as gateway:
        ipv6_key = await gateway.import_key(api_key="here", name="here", allowed_ips=["::1"])
        ipv4_key = await gateway.import_key(api_key="v4", name="v4", allowed_ips=["127.0.0.1"])
        statuses = []
        for key in (ipv6_key, ipv4_key):
            async with await open_connection(gateway.running.port, "::1") as connection:
                await connection.send(build_request(key=key))
                response = await connection.read_response()
                assert response is not None
                statuses.append(response.status)
    assert statuses == [200, 403]


async def test_loopback_client_is_allowed_if_listed(gateway: GatewayUnderTest) -> None:
    key = await gateway.import_key(api_key="local", name="local", allowed_ips=["127.0.0.0/8"])
    assert (await send_request(gateway, build_request(key=key))).status == 200


# The path and the method.


RECIPIENT_PATH = "/v1/recipients/R-1"


async def test_head_is_not_found_and_has_no_body(
    module_gateway: GatewayUnderTest, cleared_simulator: Simulator
) -> None:
    async with await open_connection(module_gateway.running.port) as connection:
        await connection.send(build_request("HEAD") + build_request("GET", "/v1/x"))
        head = await connection.read_response(bodiless=True)
        next_response = await connection.read_response()
    assert head is not None
    assert next_response is not None
    assert head.status == 404
    assert head.headers["content-type"] == "application/json; charset=utf-8"
    assert head.headers["access-control-allow-origin"] == "*"
    assert extract_refusal(next_response) == NOT_FOUND
    assert not cleared_simulator.service.list_requests()


async def test_trailing_slash_is_ignored(gateway: GatewayUnderTest) -> None:
    create_response = await gateway.request("POST", f"{RECIPIENTS}/", RECIPIENT_BODY)
    assert create_response.status == 200
    recipient_path = f"{RECIPIENTS}/{create_response.body['recipient']['id']}"
    for path in (RECIPIENTS, recipient_path, f"{recipient_path}/payments"):
        response, slash_response = (
            await gateway.request("GET", path),
            await gateway.request("GET", f"{path}/"),
        )
        assert response.status == 200
        assert slash_response.text == response.text
    assert (await gateway.request("GET", f"{recipient_path}/logs/")).status == 200
    assert (
        await gateway.request("PATCH", f"{recipient_path}/", {"firstName": "Eve"})
    ).status == 200
    assert (await gateway.request("POST", f"{recipient_path}/payout-methods/", BANK)).status == 200
    assert (await gateway.request("GET", f"{recipient_path}/payout-methods/")).status == 200
    assert (await gateway.request("DELETE", f"{recipient_path}/")).status == 200


@pytest.mark.parametrize(
    "query",
    ["%ff", "search=%ff", "search=%00", "search=%ED%A0%80", "search=%", "=", "&&&", "search", "a=b=c",
     "page=%EF%BC%92", "page=1e3", "page=" + "9" * 5000, "page=-1", "pageSize=0", "search=a;page=2",
     "page=2&page=1&page=x", "search=" + "%F0%9F%92%B8" * 200, "orderBy=__class__", "sortBy=%27"],
    ids=lambda query: query[:30],
)  # fmt: skip
async def test_malformed_query_is_answered(module_gateway: GatewayUnderTest, query: str) -> None:
    response = await send_request(module_gateway, build_request(target=f"{RECIPIENTS}?{query}"))
    assert_legacy(response)
    assert response.status == 200


# Browsers.


async def test_preflight_does_not_count_against_the_rate_limit(gateway: GatewayUnderTest) -> None:
    key = await gateway.import_key(api_key="once", name="once", requests_per_hour=1)
    for _ in range(3):
        assert (await send_request(gateway, build_request("OPTIONS", key=key))).status == 200
    assert (await send_request(gateway, build_request(key=key))).status == 200


async def test_every_answer_allows_any_origin(
    gateway: GatewayUnderTest, simulator: Simulator
) -> None:
    simulator.service.faults.append(Fault("GET", RECIPIENTS, status=500, body=b"<html>"))
    key = await gateway.import_key(api_key="bound", name="bound", allowed_ips=["192.0.2.1"])
    limited_key = await gateway.import_key(api_key="once", name="once", requests_per_hour=1)
    origin = "Origin: null"
    responses = [
        await send_request(gateway, data)
        for data in (
            build_request("GET", RECIPIENTS, origin),
            build_request("GET", RECIPIENTS, origin),
            build_request("GET", "/nowhere", origin),
            build_request("GET", RECIPIENTS, origin, key="wrong"),
            build_request("GET", RECIPIENTS, origin, key=key),
            build_request("GET", RECIPIENTS, origin, key=limited_key),
            build_request("GET", RECIPIENTS, origin, key=limited_key),
            build_request("POST", RECIPIENTS, origin, body=b"{"),
            b"nonsense\r\n\r\n",
        )
    ]
    assert [response.status for response in responses] == [
        500,
        200,
        404,
        403,
        403,
        200,
        429,
        406,
        406,
    ]
    for response in responses:
        assert_legacy(response)
        assert response.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in response.headers


# The shape of answers.


async def test_recipient_operations_answer_compact_json_beginning_with_ok(
    gateway: GatewayUnderTest,
) -> None:
    create_response = await send_request(
        gateway,
        build_request("POST", body=json.dumps(RECIPIENT_BODY | {"payout": BANK}).encode()),
    )
    assert create_response.status == 200
    assert_legacy(create_response)
    recipient_path = f"{RECIPIENTS}/{create_response.parse_json['recipient']['id']}"
    other_id = (await gateway.request("POST", RECIPIENTS, RECIPIENT_BODY)).body["recipient"]["id"]
    patch = json.dumps({"lastName": "Łovelace"}).encode()
    for data in (
        build_request("GET", RECIPIENTS),
        build_request("GET", recipient_path),
        build_request("PATCH", recipient_path, body=patch),
        build_request("GET", f"{recipient_path}/logs"),
        build_request("GET", f"{recipient_path}/payments"),
        build_request("GET", f"{recipient_path}/payout-methods"),
        build_request("POST", f"{recipient_path}/payout-methods", body=json.dumps(BANK).encode()),
        build_request("PATCH", f"{recipient_path}/payout-methods", body=json.dumps(BANK).encode()),
        build_request("DELETE", recipient_path),
        build_request("DELETE", RECIPIENTS, body=json.dumps({"ids": [other_id]}).encode()),
    ):
        response = await send_request(gateway, data)
        assert response.status == 200, data
        assert_legacy(response)
        assert response.body.startswith(b'{"ok":true,"')


async def test_non_ascii_text_is_answered_as_utf_8(gateway: GatewayUnderTest) -> None:
    ada = RECIPIENT_BODY | {"firstName": "Zoë", "lastName": "小林 🙂"}
    response = await send_request(gateway, build_request("POST", body=json.dumps(ada).encode()))
    assert "Zoë 小林 🙂".encode() in response.body


async def test_headers_do_not_disclose_the_service(gateway: GatewayUnderTest) -> None:
    for response in (
        await send_request(gateway, build_request()),
        await send_request(gateway, build_request(target="/x")),
    ):
        assert response.headers["server"] == "payout-gateway"
        assert {"set-cookie", "x-powered-by", "location"}.isdisjoint(response.headers)


async def test_service_headers_are_not_passed_on(
    gateway: GatewayUnderTest, simulator: Simulator
) -> None:
    headers = {
        "Set-Cookie": "session=1",
        "X-Internal": "host-7",
        "Content-Type": "application/json; charset=latin-1",
        "Access-Control-Allow-Origin": "https://only.example",
        "X-Request-Id": "theirs",
        "Server": "theirs",
    }
    body = b'{"ok":true,"recipients":[],"meta":{"page":1,"pages":0,"records":0}}'
    simulator.service.faults.append(
        Fault("GET", RECIPIENTS, status=200, body=body, headers=headers)
    )
    response = await send_request(gateway, build_request("GET", RECIPIENTS, "X-Request-Id: mine"))
    assert_legacy(response)
    assert response.status == 200
    assert response.headers["x-request-id"] == "mine"
    assert response.headers["server"] == "payout-gateway"
    assert {"set-cookie", "x-internal"}.isdisjoint(response.headers)


async def test_internal_error_does_not_contain_a_traceback(
    gateway: GatewayUnderTest, simulator: Simulator
) -> None:
    simulator.service.faults.append(
        Fault("GET", RECIPIENTS, status=200, body=b'{"ok":true,"recipients":7}', times=9)
    )
    response = await send_request(gateway, build_request())
    assert extract_refusal(response) == INTERNAL
    assert b"Traceback" not in response.body
    assert b"Error" not in response.body


# The limit.


def parse_limit_headers(response: RawResponse) -> tuple[int, int, int]:
    names = ("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset")
    limit, remaining, reset = (int(response.headers[name]) for name in names)
    return limit, remaining, reset


async def test_rate_limit_applies_to_one_key_only(
    gateway: GatewayUnderTest, simulator: Simulator
) -> None:
    three = await gateway.import_key(api_key="three", name="three", requests_per_hour=3)
    other_key = await gateway.import_key(api_key="other", name="other", requests_per_hour=5)
    for remaining in (2, 1, 0):
        response = await send_request(gateway, build_request(key=three))
        assert response.status == 200
        assert parse_limit_headers(response)[:2] == (3, remaining)
        assert 0 < parse_limit_headers(response)[2] <= 3601
    calls = len(simulator.service.list_requests())
    for _ in range(2):
        limited_response = await send_request(gateway, build_request(key=three))
        assert extract_refusal(limited_response) == OVER_LIMIT
        assert parse_limit_headers(limited_response)[:2] == (3, 0)
        assert 0 < int(limited_response.headers["retry-after"]) <= 3601
    assert len(simulator.service.list_requests()) == calls
    assert parse_limit_headers(await send_request(gateway, build_request(key=other_key)))[:2] == (
        5,
        4,
    )
    assert parse_limit_headers(await send_request(gateway, build_request()))[:2] == (10_000, 9_999)


async def test_key_without_limit_has_the_configured_limit(open_with_settings: OpenGateway) -> None:
    async with open_with_settings(limits={"requests_per_hour": 2}) as gateway:
        statuses = [(await send_request(gateway, build_request())).status for _ in range(3)]
        assert statuses == [200, 200, 429]


async def test_request_refused_after_the_rate_limit_is_counted(gateway: GatewayUnderTest) -> None:
    key = await gateway.import_key(api_key="two", name="two", requests_per_hour=2)
    for _ in range(2):
        response = await send_request(gateway, build_request("POST", body=b"{", key=key))
        assert extract_refusal(response) == INVALID
        assert parse_limit_headers(response)[0] == 2
    assert extract_refusal(await send_request(gateway, build_request(key=key))) == OVER_LIMIT


async def test_keys_of_one_merchant_have_separate_limits(gateway: GatewayUnderTest) -> None:
    keys = [
        await gateway.import_key(api_key=f"key-{number}", name=f"key {number}", requests_per_hour=1)
        for number in range(2)
    ]
    for key in keys:
        assert (await send_request(gateway, build_request(key=key))).status == 200
        assert extract_refusal(await send_request(gateway, build_request(key=key))) == OVER_LIMIT


async def test_concurrent_requests_do_not_exceed_the_limit(gateway: GatewayUnderTest) -> None:
    key = await gateway.import_key(api_key="five", name="five", requests_per_hour=5)
    responses = await asyncio.gather(
        *(send_request(gateway, build_request(key=key)) for _ in range(20))
    )
    assert sorted(response.status for response in responses) == [200] * 5 + [429] * 15


async def test_answer_to_unknown_key_has_no_limit_headers(gateway: GatewayUnderTest) -> None:
    response = await send_request(gateway, build_request(key="wrong"))
    assert not [name for name in response.headers if name.startswith("ratelimit")]


# The request id.


async def test_request_id_of_the_client_is_kept_and_sent_upstream(
    module_gateway: GatewayUnderTest, cleared_simulator: Simulator
) -> None:
    request_id = "client-1234:5678.9_Z"
    response = await send_request(
        module_gateway, build_request("GET", RECIPIENTS, f"X-Request-Id: {request_id}")
    )
    assert response.headers["x-request-id"] == request_id
    assert [call.headers["X-Request-Id"] for call in cleared_simulator.service.list_requests()] == [
        request_id
    ]


@pytest.mark.parametrize(
    "request_id", ["", "a b", "ü", "x" * 129, "a,b", "<script>", "a\tb", '"quoted"', "%0d%0a"]
)
async def test_malformed_request_id_is_replaced(
    module_gateway: GatewayUnderTest, cleared_simulator: Simulator, request_id: str
) -> None:
    response = await send_request(
        module_gateway, build_request("GET", RECIPIENTS, f"X-Request-Id: {request_id}")
    )
    new_request_id = response.headers["x-request-id"]
    assert new_request_id != request_id
    assert 16 <= len(new_request_id) <= 64
    assert new_request_id.isalnum()
    assert [call.headers["X-Request-Id"] for call in cleared_simulator.service.list_requests()] == [
        new_request_id
    ]


async def test_each_request_without_id_gets_a_new_id(gateway: GatewayUnderTest) -> None:
    responses = [
        await send_request(gateway, build_request(target=path))
        for path in (RECIPIENTS, "/x")
        for _ in "ab"
    ]
    assert len({response.headers["x-request-id"] for response in responses}) == 4


async def test_all_upstream_calls_have_the_request_id(
    gateway: GatewayUnderTest, simulator: Simulator
) -> None:
    body = json.dumps(RECIPIENT_BODY | {"payout": BANK, "language": "en"}).encode()
    await send_request(gateway, build_request("POST", RECIPIENTS, "X-Request-Id: mine", body=body))
    calls = simulator.service.list_requests()
    assert len(calls) > 2
    assert {call.headers["X-Request-Id"] for call in calls} == {"mine"}


async def test_client_headers_are_not_sent_upstream(
    gateway: GatewayUnderTest, simulator: Simulator
) -> None:
    sent_headers = [
        "Cookie: a=b",
        "Authorization: Bearer x",
        "X-Forwarded-For: 192.0.2.1",
        "X-Own: y",
    ]
    await send_request(
        gateway, build_request("GET", RECIPIENTS, *sent_headers, "User-Agent: client/1")
    )
    (call,) = simulator.service.list_requests()
    assert {"cookie", "x-forwarded-for", "x-own", "x-api-key"}.isdisjoint(
        name.lower() for name in call.headers
    )
    assert "client/1" not in call.headers["User-Agent"]


# The body.


async def test_body_of_exactly_the_limit_is_accepted(open_with_settings: OpenGateway) -> None:
    async with open_with_settings(limits={"body_bytes": 1024}) as gateway:
        for size, status in ((1024, 200), (1025, 413)):
            body = json.dumps(RECIPIENT_BODY).encode().ljust(size)
            assert (await send_request(gateway, build_request("POST", body=body))).status == status
            chunk = f"{size:x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
            chunked_request = (
                build_request("POST", RECIPIENTS, "Transfer-Encoding: chunked") + chunk
            )
            assert (await send_request(gateway, chunked_request)).status == status


WRITES = [
    ("POST", RECIPIENTS),
    ("DELETE", RECIPIENTS),
    ("PATCH", RECIPIENT_PATH),
    ("POST", f"{RECIPIENT_PATH}/payout-methods"),
    ("PATCH", f"{RECIPIENT_PATH}/payout-methods"),
]


@pytest.mark.parametrize("body", [b"", b'{"type":"individual"', b"[]"])
async def test_body_that_is_not_a_json_object_is_refused_without_calling_the_service(
    module_gateway: GatewayUnderTest, cleared_simulator: Simulator, body: bytes
) -> None:
    for method, path in WRITES:
        response = await send_request(module_gateway, build_request(method, path, body=body))
        assert extract_refusal(response) == INVALID
        assert response.parse_json["errors"][0]["message"]
    assert not cleared_simulator.service.list_requests()


@pytest.mark.parametrize("body", [b"", b"{}", b"not json", b"[" * 1000])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_unexpected_body_is_discarded(
    module_gateway: GatewayUnderTest, cleared_simulator: Simulator, method: str, body: bytes
) -> None:
    id_ = (await module_gateway.request("POST", RECIPIENTS, RECIPIENT_BODY)).body["recipient"]["id"]
    async with await open_connection(module_gateway.running.port) as connection:
        data = build_request(
            method, f"{RECIPIENTS}/{id_}", "Content-Type: application/json", body=body
        )
        await connection.send(data + build_request("GET", "/v1/x"))
        responses = [await connection.read_response() for _ in range(2)]
    is_last = body and method == "GET"
    assert [response.status for response in responses if response] == (
        [200] if is_last else [200, 404]
    )
    assert not [call for call in cleared_simulator.service.list_requests(method) if call.body]


# Expect: 100-continue.


async def test_100_continue_is_sent_after_the_key_is_accepted(
    gateway: GatewayUnderTest, simulator: Simulator
) -> None:
    body = json.dumps(RECIPIENT_BODY).encode()
    async with await open_connection(gateway.running.port) as connection:
        length = f"Content-Length: {len(body)}"
        await connection.send(build_request("POST", RECIPIENTS, length, "Expect: 100-continue"))
        continue_response = await connection.read_response()
        assert continue_response is not None
        assert continue_response.status == 100
        assert not simulator.service.list_requests()
        await connection.send(body)
        response = await connection.read_response()
        assert response is not None
        assert response.status == 200
        assert_legacy(response)
        await connection.send(build_request("GET", "/v1/x"))
        next_response = await connection.read_response()
        assert next_response is not None
        assert next_response.status == 404


async def test_malformed_body_after_100_continue_is_answered(
    module_gateway: GatewayUnderTest,
) -> None:
    async with await open_connection(module_gateway.running.port) as connection:
        headers = ("Transfer-Encoding: chunked", "Expect: 100-continue")
        await connection.send(build_request("POST", RECIPIENTS, *headers))
        continue_response = await connection.read_response()
        assert continue_response is not None
        assert continue_response.status == 100
        await connection.send(b"5\r\nhello\r\n0\r\n\r\n")
        response = await connection.read_response()
        assert response is not None
        assert extract_refusal(response) == INVALID


# Faults of the service.


async def test_unreachable_service_is_an_internal_error(
    gateway: GatewayUnderTest, simulator: Simulator
) -> None:
    await simulator.stop()
    for data in (
        build_request(),
        build_request("POST", body=json.dumps(RECIPIENT_BODY).encode()),
        build_request("DELETE", RECIPIENT_PATH),
    ):
        response = await send_request(gateway, data)
        assert extract_refusal(response) == INTERNAL
        assert "unknown" not in response.parse_json["errors"][0]["message"], "nothing was sent"


SERVICE_FAULTS = {
    "HTML": Fault("*", "*", status=200, body=b"<html><body>maintenance</body></html>"),
    "HTML with 502": Fault("*", "*", status=502, body=b"<html>Bad Gateway</html>"),
    "HTML with 418": Fault("*", "*", status=418, body=b"<html>teapot</html>"),
    "nothing with 503": Fault("*", "*", status=503),
    "nothing with 200": Fault("*", "*", status=200),
    "cut JSON": Fault("*", "*", status=200, body=b'{"ok":true,"recipient":{"id":"R-'),
    "JSON that is no object": Fault("*", "*", status=200, body=b"[1,2]"),
    "a redirect": Fault("*", "*", status=302, headers={"Location": "http://127.0.0.1:9/v1/x"}),
    "a permanent redirect": Fault("*", "*", status=308, headers={"Location": "/v1/batch"}),
    "a 500 that says invalid_field": Fault(
        "*", "*", status=500, body=b'{"ok":false,"errors":[{"code":"invalid_field","message":"m"}]}'
    ),
    "a code nobody knows": Fault(
        "*", "*", status=400, body=b'{"ok":false,"errors":[{"code":"kaboom","message":"m"}]}'
    ),
    "an error of the partner": Fault(
        "*",
        "*",
        status=500,
        body=b'{"ok":false,"errors":[{"code":"partner_integration_error","message":"m"}]}',
    ),
    "a dropped connection": Fault("*", "*", close="before", times=2),
    "gzip that is none": Fault(
        "*", "*", status=200, body=b'{"ok":true}', headers={"Content-Encoding": "gzip"}
    ),
}


_numbers = itertools.count()


def build_other_recipient() -> dict[str, Any]:
    """Builds a new recipient each time, because an identical body after an error is a retry."""
    return {**RECIPIENT_BODY, "email": f"ada{next(_numbers)}@example.com"}


@pytest.mark.parametrize("fault", SERVICE_FAULTS.values(), ids=SERVICE_FAULTS)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_faulty_service_is_an_internal_error_in_legacy_form(
    gateway: GatewayUnderTest, simulator: Simulator, fault: Fault, method: str
) -> None:
    simulator.service.faults.append(replace(fault, times=9))
    bodies = {"POST": json.dumps(build_other_recipient()).encode()}
    target = RECIPIENT_PATH if method == "DELETE" else RECIPIENTS
    if method == "DELETE":
        target = f"{RECIPIENTS}/{simulator.service.seed_recipients(1)[0].id}"
    response = await send_request(
        gateway, build_request(method, target, body=bodies.get(method, b""))
    )
    assert extract_refusal(response) == INTERNAL
    assert b"<html" not in response.body
    if method == "POST":
        assert len(simulator.service.list_requests("POST")) == 1, "a write is sent once"
    assert not simulator.service.list_requests("*", "/v1/batch"), "no redirect is followed"


@pytest.mark.usefixtures("no_immediate_read")
async def test_write_timeout_is_answered_as_unknown_outcome(
    open_with_settings: OpenGateway, simulator: Simulator
) -> None:
    simulator.service.faults.append(Fault("POST", RECIPIENTS, answer_delay=10))
    async with open_with_settings(upstream={"timeout_seconds": 1}) as gateway:
        response = await send_request(
            gateway, build_request("POST", body=json.dumps(RECIPIENT_BODY).encode())
        )
    assert extract_refusal(response) == INTERNAL
    assert "outcome of this request is unknown" in response.parse_json["errors"][0]["message"]
    assert len(simulator.service.list_requests("POST")) <= 1
    assert not simulator.service.list_requests("DELETE"), "what may have happened is not undone"


async def test_read_timeout_is_not_answered_as_unknown_outcome(
    open_with_settings: OpenGateway, simulator: Simulator
) -> None:
    simulator.service.faults.append(Fault("GET", RECIPIENTS, answer_delay=10))
    async with open_with_settings(upstream={"timeout_seconds": 0.3}) as gateway:
        response = await send_request(gateway, build_request())
    assert extract_refusal(response) == INTERNAL
    assert "unknown" not in response.parse_json["errors"][0]["message"]


@pytest.mark.usefixtures("no_immediate_read")
async def test_connection_dropped_after_a_write_is_answered_as_unknown_outcome(
    module_gateway: GatewayUnderTest, cleared_simulator: Simulator
) -> None:
    cleared_simulator.service.faults.append(Fault("POST", RECIPIENTS, close="after"))
    response = await send_request(
        module_gateway, build_request("POST", body=json.dumps(build_other_recipient()).encode())
    )
    assert extract_refusal(response) == INTERNAL
    assert "outcome of this request is unknown" in response.parse_json["errors"][0]["message"]
    assert len(cleared_simulator.service.list_requests("POST")) == 1


async def test_rate_limit_of_the_service_is_passed_on_with_retry_after(
    module_gateway: GatewayUnderTest, cleared_simulator: Simulator
) -> None:
    body = b'{"ok":false,"errors":[{"code":"rate_limit_exceeded","message":"Slow down"}]}'
    headers = {"Retry-After": "17"}
    # A path of its own, because lists are also read to reconcile writes of other tests.
    target = f"{RECIPIENTS}/R-limited"
    cleared_simulator.service.faults.append(
        Fault("GET", target, status=429, body=body, headers=headers)
    )
    response = await send_request(module_gateway, build_request("GET", target))
    assert extract_refusal(response) == OVER_LIMIT
    assert response.headers["retry-after"] == "17"


async def test_client_disconnect_does_not_interrupt_a_write(
    gateway: GatewayUnderTest, simulator: Simulator
) -> None:
    simulator.service.faults.append(Fault("POST", RECIPIENTS, answer_delay=0.2))
    async with await open_connection(gateway.running.port) as connection:
        body = json.dumps(RECIPIENT_BODY | {"payout": BANK, "language": "en"}).encode()
        await connection.send(build_request("POST", body=body))
        await wait_until(lambda: bool(simulator.service.list_requests("POST", RECIPIENTS)))
    await wait_until(
        lambda: bool(simulator.service.list_requests("POST", "/v1/recipients/*/accounts"))
    )
    assert simulator.service.list_requests("PATCH")


# Slow clients.


async def test_silent_connection_is_closed_after_a_timeout(
    open_with_settings: OpenGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "HEAD_SECONDS", 0.2)
    async with open_with_settings(load={"idle_seconds": 0.2}) as gateway:
        for partial_request in (
            b"",
            b"GET /v1/rec",
            b"GET /v1/recipients HTTP/1.1\r\nHost: x\r\nX-A",
        ):
            async with await open_connection(gateway.running.port) as connection:
                await connection.send(partial_request)
                assert await connection.wait_closed()


async def test_slow_header_is_cut_off_after_a_timeout(
    open_with_settings: OpenGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "HEAD_SECONDS", 0.2)
    async with (
        open_with_settings() as gateway,
        await open_connection(gateway.running.port) as connection,
    ):
        await connection.send(build_request("GET", "/v1/x"))
        assert await connection.read_response()
        await connection.send(b"GET /v1/recipients HTTP/1.1\r\nX-A: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(40):
                await connection.send(b"a")
                await asyncio.sleep(0.01)
        assert await connection.wait_closed()


async def test_stalled_body_is_refused_after_a_timeout(
    open_with_settings: OpenGateway, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_reader, "BODY_SECONDS", 0.2)
    async with (
        open_with_settings() as gateway,
        await open_connection(gateway.running.port) as connection,
    ):
        await connection.send(build_request("POST", RECIPIENTS, "Content-Length: 20") + b'{"type":')
        response = await connection.read_response()
        assert response is not None
        assert extract_refusal(response) == INVALID
    assert not simulator.service.list_requests()


async def test_slow_clients_do_not_delay_others(gateway: GatewayUnderTest) -> None:
    slow = [await open_connection(gateway.running.port) for _ in range(50)]
    for connection in slow:
        await connection.send(build_request("POST", RECIPIENTS, "Content-Length: 20") + b"{")
    assert (await send_request(gateway, build_request())).status == 200
    for connection in slow:
        await connection.close()
