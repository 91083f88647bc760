"""Every state of an API key on every path with every method.

A request is checked in the order path, key, address, limit, body (contract, section 1). A refused
request causes no upstream call.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import pytest_asyncio

from gateway.auth.key_rows import load_listed_keys, revoke_key
from gateway.auth.keys import ApiKeyStore
from gateway.legacy_api.routes import Routes
from gateway.storage import open_store
from mappings import OPERATIONS, UNLISTED
from mappings.effects import Operation, Vocabulary
from tests.payouts import create_batch, create_recipient, request_successfully
from tests.running_gateway import KEY, GatewayUnderTest, open_gateway
from tests.simulator import (
    DEMO_CREDENTIALS,
    Service,
    ServiceCredentials,
    Simulator,
    start_simulator,
)
from tests.sockets import RawConnection, RawResponse, assert_legacy, exchange, open_connection

pytestmark = pytest.mark.asyncio(loop_scope="module")

API_KEY = KEY["api_key"]
KEY_OF_OTHER_ADDRESS = "a-key-for-elsewhere"
REVOKED_KEY = "a-key-that-was-revoked"
EXHAUSTED_KEY = "a-key-that-is-used-up"
KEY_WITHOUT_ENVIRONMENT = "a-key-of-no-environment"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "CONNECT",
           "PROPFIND", "LINK", "BREW")  # fmt: skip
EXAMPLE_IDS = {"recipients": "R-1", "batches": "B-1", "payments": "P-1", "countries": "CA"}


def fill_path(path: str) -> str:
    """Returns an operation's path with example ids and the default vocabulary."""
    parts = path.split("/")
    path_parts = [
        EXAMPLE_IDS[parts[position - 1]] if "{" in part else part
        for position, part in enumerate(parts)
    ]
    return "/v1" + re.sub("[<>]", "", "/".join(path_parts))


PATHS: dict[str, dict[str, Operation]] = {}
for operation in (*OPERATIONS, *UNLISTED):
    PATHS.setdefault(fill_path(operation.path), {})[operation.method] = operation


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def simulator() -> AsyncIterator[Simulator]:
    simulator = await start_simulator(service=Service(seed=1))
    yield simulator
    await simulator.stop()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gateway(
    simulator: Simulator, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayUnderTest]:
    async with open_gateway(tmp_path_factory.mktemp("access"), simulator.url) as http_gateway:
        await import_other_keys(http_gateway)
        yield http_gateway


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def proxied_gateway(
    simulator: Simulator, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayUnderTest]:
    """A gateway that trusts the tests' address as a proxy."""
    server_section = {"trusted_proxies": ["127.0.0.1"]}
    folder = tmp_path_factory.mktemp("proxied")
    async with open_gateway(folder, simulator.url, server=server_section) as gateway:
        await import_other_keys(gateway)
        yield gateway


async def import_other_keys(gateway: GatewayUnderTest) -> None:
    await gateway.import_key(
        api_key=KEY_OF_OTHER_ADDRESS, name="elsewhere", allowed_ips=["192.0.2.1"]
    )
    await gateway.import_key(api_key=EXHAUSTED_KEY, name="used up", requests_per_hour=1)
    await gateway.import_key(api_key=REVOKED_KEY, name="revoked")
    async with open_store(gateway.settings.state) as store:
        revoked_key = next(key for key in await load_listed_keys(store) if key.name == "revoked")
        await revoke_key(store, revoked_key.id)
    request_bytes = build_request("GET", "/v1/recipients", f"X-API-Key: {EXHAUSTED_KEY}")
    assert (await exchange(gateway.running.port, request_bytes)) is not None


def build_request(method: str, path: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: gateway", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


INVALID_KEY = (403, "invalid_api_key")
NOT_AUTHORIZED = (403, "not_authorized")
OVER_LIMIT = (429, "rate_limit_exceeded")
NOT_FOUND = (404, "not_found")

KEY_STATES: dict[str, tuple[list[str], tuple[int, str]]] = {
    "no key": ([], INVALID_KEY),
    "an unknown key": (["X-API-Key: nobody-has-this-key"], INVALID_KEY),
    "a revoked key": ([f"X-API-Key: {REVOKED_KEY}"], INVALID_KEY),
    "the access key": ([f"X-API-Key: {KEY['access_key']}"], INVALID_KEY),
    "a key from elsewhere": ([f"X-API-Key: {KEY_OF_OTHER_ADDRESS}"], NOT_AUTHORIZED),
    "a key from elsewhere, and a claim": (
        [f"X-API-Key: {KEY_OF_OTHER_ADDRESS}", "X-Forwarded-For: 192.0.2.1", "X-Real-IP: 192.0.2.1",
         "Forwarded: for=192.0.2.1", "X-Client-IP: 192.0.2.1", "True-Client-IP: 192.0.2.1",
         "CF-Connecting-IP: 192.0.2.1"], NOT_AUTHORIZED,
    ),
    "a key that is used up": ([f"X-API-Key: {EXHAUSTED_KEY}"], OVER_LIMIT),
}  # fmt: skip


def iterate_combinations() -> Iterator[tuple[str, str, Operation | None]]:
    for path, operations in PATHS.items():
        for method in METHODS:
            yield method, path, operations.get(method)


def build_expected_answer(
    method: str, operation: Operation | None, refusal: tuple[int, str]
) -> tuple[int, str]:
    if method == "OPTIONS" or (operation is not None and operation.is_keyless):
        return 200, ""
    return refusal if operation else NOT_FOUND


def summarize_answer(response: RawResponse, method: str) -> tuple[int, str]:
    if method == "HEAD":
        return response.status, "not_found"
    assert_legacy(response)
    return response.status, "" if response.status == 200 else response.code


async def request_on_connection(
    connection: RawConnection, method: str, path: str, headers: list[str]
) -> tuple[int, str]:
    await connection.send(build_request(method, path, *headers))
    response = await connection.read_response(bodiless=method == "HEAD")
    assert response is not None, (method, path)
    return summarize_answer(response, method)


async def check_refused_everywhere(
    gateway: GatewayUnderTest, simulator: Simulator, headers: list[str], refusal: Any
) -> None:
    """Checks every path and method; an unknown method closes its connection."""
    calls = len(simulator.service.requests)
    connection = await open_connection(gateway.running.port)
    for method, path, operation in iterate_combinations():
        response = await request_on_connection(connection, method, path, headers)
        assert response == build_expected_answer(method, operation, refusal), (method, path)
        if method in ("BREW", "CONNECT"):
            await connection.close()
            connection = await open_connection(gateway.running.port)
    await connection.close()
    assert len(simulator.service.requests) == calls


async def test_matrix_covers_every_route() -> None:
    matches = {path: Routes(Vocabulary()).match(path) for path in PATHS}
    for path, match in matches.items():
        assert match is not None
        assert match.route.operations == PATHS[path]
    assert sum(len(operations) for operations in PATHS.values()) == len(OPERATIONS) + len(UNLISTED)


@pytest.mark.parametrize(("headers", "refusal"), KEY_STATES.values(), ids=KEY_STATES)
async def test_invalid_key_is_refused_on_every_path_and_method(
    gateway: GatewayUnderTest, simulator: Simulator, headers: list[str], refusal: tuple[int, str]
) -> None:
    await check_refused_everywhere(gateway, simulator, headers, refusal)


async def test_client_address_behind_trusted_proxy_is_checked(
    proxied_gateway: GatewayUnderTest, simulator: Simulator
) -> None:
    forwarded_for = "X-Forwarded-For: 192.0.2.1, 198.51.100.1"
    headers = [f"X-API-Key: {KEY_OF_OTHER_ADDRESS}", forwarded_for]
    await check_refused_everywhere(proxied_gateway, simulator, headers, NOT_AUTHORIZED)


VALID_KEY_HEADERS = [
    [f"X-API-Key: {API_KEY}"],
    [f"x-api-key: {API_KEY}"],
    [f"X-API-KEY:   {API_KEY}  "],
    [f"x-aPi-kEy:\t{API_KEY}\t"],
    [f"X-API-Key: {API_KEY}", "X-Forwarded-For: 192.0.2.1"],
]


@pytest.mark.parametrize("headers", VALID_KEY_HEADERS)
async def test_valid_key_is_accepted_on_every_operation_without_body(
    gateway: GatewayUnderTest, headers: list[str]
) -> None:
    for method, path, operation in iterate_combinations():
        if operation is None or operation.body_shape is not None:
            continue
        async with await open_connection(gateway.running.port) as connection:
            status, code = await request_on_connection(connection, method, path, headers)
        assert status in (200, 404), (method, path)
        assert code in ("", "not_found")


@pytest.mark.parametrize("state", ["no key", "a key from elsewhere", "a key that is used up"])
async def test_refused_request_is_answered_without_reading_its_body(
    gateway: GatewayUnderTest, simulator: Simulator, state: str
) -> None:
    headers, refusal = KEY_STATES[state]
    calls = len(simulator.service.requests)
    waiting = ["Content-Length: 999999999", "Expect: 100-continue"]
    for method, path, operation in iterate_combinations():
        if operation is not None and operation.body_shape is not None:
            data = build_request(method, path, *headers, *waiting)
            response = await exchange(gateway.running.port, data)
            assert response is not None
            assert summarize_answer(response, method) == refusal
    assert len(simulator.service.requests) == calls


async def test_oversized_body_is_refused_on_every_operation_with_body(
    gateway: GatewayUnderTest, simulator: Simulator
) -> None:
    calls = len(simulator.service.requests)
    headers = [f"X-API-Key: {API_KEY}", "Content-Length: 999999999", "Expect: 100-continue"]
    for method, path, operation in iterate_combinations():
        if operation is not None and operation.body_shape is not None:
            response = await exchange(gateway.running.port, build_request(method, path, *headers))
            assert response is not None
            assert summarize_answer(response, method) == (413, "invalid_field")
    assert len(simulator.service.requests) == calls


@pytest.mark.parametrize("path", ["/v1/none", "/v1/recipients/R-1/none", "/v1/batch/B-1/summary"])
async def test_unknown_path_is_answered_alike_with_any_key(
    gateway: GatewayUnderTest, simulator: Simulator, path: str
) -> None:
    calls = len(simulator.service.requests)
    for headers, _refusal in [*KEY_STATES.values(), (VALID_KEY_HEADERS[0], None)]:
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            response = await exchange(gateway.running.port, build_request(method, path, *headers))
            assert response is not None
            assert summarize_answer(response, method) == NOT_FOUND
    assert len(simulator.service.requests) == calls


async def test_preflight_lists_methods_without_calling_the_service(
    gateway: GatewayUnderTest, simulator: Simulator
) -> None:
    calls = len(simulator.service.requests)
    for path, operations in PATHS.items():
        response = await exchange(
            gateway.running.port,
            build_request(
                "OPTIONS",
                path,
                "Origin: https://a.example",
                "Access-Control-Request-Method: POST",
                "Access-Control-Request-Headers: x-api-key, content-type",
            ),
        )
        assert response is not None
        assert summarize_answer(response, "OPTIONS") == (200, "")
        allowed = response.headers["access-control-allow-methods"].split(", ")
        assert sorted(allowed) == sorted([*operations, "OPTIONS"]), path
        assert response.headers["access-control-allow-headers"] == "X-API-Key, Content-Type"
    assert len(simulator.service.requests) == calls


# Environments.


async def test_key_only_reaches_its_environment(tmp_path: Path) -> None:
    live_pair = ServiceCredentials("LIVEACCESSKEY", "live-secret-key", "demo", "live")
    live_simulator = await start_simulator(service=Service(credentials=[live_pair], seed=2))
    sandbox = await start_simulator(service=Service(credentials=[DEMO_CREDENTIALS], seed=2))
    environments = {"live": {"base_url": live_simulator.url}}
    try:
        async with open_gateway(tmp_path, sandbox.url, environments=environments) as gateway:
            key = await gateway.import_key(
                environment="live",
                api_key="a-live-key-for-tests",
                access_key=live_pair.access_key,
                secret_key=live_pair.secret_key,
            )
            with_live = {"headers": {"X-API-Key": key}}
            recipient = await create_recipient(gateway)
            batch = await create_batch(gateway, recipient, "5.00")
            request_count = len(live_simulator.service.requests)
            assert request_count == 0, "a sandbox key makes no call of live"
            for path in (f"/v1/recipients/{recipient}", f"/v1/batches/{batch}"):
                assert (await gateway.request("GET", path, **with_live)).status == 404
            assert (await request_successfully(gateway, "GET", "/batches", **with_live))[
                "batches"
            ] == []
            sandbox_calls = len(sandbox.service.requests)
            await create_batch(
                gateway, await create_recipient(gateway, **with_live), "7.00", **with_live
            )
            assert len(sandbox.service.requests) == sandbox_calls
            assert [
                row["id"]
                for row in (await request_successfully(gateway, "GET", "/batches"))["batches"]
            ] == [batch]
    finally:
        await live_simulator.stop()
        await sandbox.stop()


async def test_key_of_unconfigured_environment_is_refused_as_invalid(
    tmp_path: Path, simulator: Simulator
) -> None:
    async with open_gateway(tmp_path, simulator.url) as gateway:
        key = await gateway.import_key(
            environment="live",
            api_key=KEY_WITHOUT_ENVIRONMENT,
            access_key="LIVE",
            secret_key="live-secret",
        )
        await check_refused_everywhere(gateway, simulator, [f"X-API-Key: {key}"], INVALID_KEY)


# Keys are looked up by their hash, so that no comparison leaks how much of a key matches.


class UncomparableKey(str):
    """A key that fails the test if it is compared or hashed as text."""

    __slots__ = ()

    def _fail_on_comparison(self, *_arguments: object) -> NoReturn:
        raise AssertionError("an API key was compared")

    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = _fail_on_comparison  # type: ignore[assignment]
    __contains__ = startswith = endswith = find = index = _fail_on_comparison  # type: ignore[assignment]

    __hash__ = _fail_on_comparison  # type: ignore[assignment]


@pytest.mark.parametrize("key", [API_KEY, API_KEY[:-1], f"{API_KEY}x", "nobody-has-this-key"])
async def test_api_key_is_never_compared_as_text(gateway: GatewayUnderTest, key: str) -> None:
    async with open_store(gateway.settings.state) as store, ApiKeyStore(store) as keyring:
        for _known_by_now in range(3):
            api_key = await keyring.find_active_key(UncomparableKey(key))
            assert bool(api_key) == bool(str.__eq__(key, API_KEY))
