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
from gateway.simulator import DEMO_KEY, Key, Service, Simulator, start
from gateway.storage import open_store
from mappings import OPERATIONS, UNLISTED
from mappings.effects import Operation, Vocabulary
from tests.house import KEY, House, open_house
from tests.payday import done, make_batch, make_recipient
from tests.sockets import Heard, Wire, assert_legacy, heard, wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

API_KEY = KEY["api_key"]
ELSEWHERE = "a-key-for-elsewhere"
REVOKED = "a-key-that-was-revoked"
USED_UP = "a-key-that-is-used-up"
UNCONFIGURED = "a-key-of-no-environment"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "CONNECT",
           "PROPFIND", "LINK", "BREW")  # fmt: skip
IDS = {"recipients": "R-1", "batches": "B-1", "payments": "P-1", "countries": "CA"}


def filled(path: str) -> str:
    """Returns an operation's path with example ids and the default vocabulary."""
    parts = path.split("/")
    named = [IDS[parts[place - 1]] if "{" in part else part for place, part in enumerate(parts)]
    return "/v1" + re.sub("[<>]", "", "/".join(named))


PATHS: dict[str, dict[str, Operation]] = {}
for one in (*OPERATIONS, *UNLISTED):
    PATHS.setdefault(filled(one.path), {})[one.method] = one


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def behind() -> AsyncIterator[Simulator]:
    simulator = await start(service=Service(seed=1))
    yield simulator
    await simulator.stop()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def house(
    behind: Simulator, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[House]:
    async with open_house(tmp_path_factory.mktemp("access"), behind.url) as house:
        await import_the_others(house)
        yield house


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def proxied(
    behind: Simulator, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[House]:
    """A gateway that trusts the tests' address as a proxy."""
    trusted = {"trusted_proxies": ["127.0.0.1"]}
    folder = tmp_path_factory.mktemp("proxied")
    async with open_house(folder, behind.url, server=trusted) as house:
        await import_the_others(house)
        yield house


async def import_the_others(house: House) -> None:
    await house.import_key(api_key=ELSEWHERE, name="elsewhere", allowed_ips=["192.0.2.1"])
    await house.import_key(api_key=USED_UP, name="used up", requests_per_hour=1)
    await house.import_key(api_key=REVOKED, name="revoked")
    async with open_store(house.settings.state) as store:
        leaving = next(key for key in await load_listed_keys(store) if key.name == "revoked")
        await revoke_key(store, leaving.id)
    spent = request("GET", "/v1/recipients", f"X-API-Key: {USED_UP}")
    assert (await heard(house.running.port, spent)) is not None


def request(method: str, path: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: gateway", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


INVALID_KEY = (403, "invalid_api_key")
NOT_AUTHORIZED = (403, "not_authorized")
OVER_LIMIT = (429, "rate_limit_exceeded")
NOT_FOUND = (404, "not_found")

STATES: dict[str, tuple[list[str], tuple[int, str]]] = {
    "no key": ([], INVALID_KEY),
    "an empty key": (["X-API-Key:"], INVALID_KEY),
    "an unknown key": (["X-API-Key: nobody-has-this-key"], INVALID_KEY),
    "a revoked key": ([f"X-API-Key: {REVOKED}"], INVALID_KEY),
    "the beginning of a key": ([f"X-API-Key: {API_KEY[:-1]}"], INVALID_KEY),
    "a key and a blank inside": ([f"X-API-Key: {API_KEY} {API_KEY}"], INVALID_KEY),
    "a key twice": ([f"X-API-Key: {API_KEY}"] * 2, INVALID_KEY),
    "a good key after a bad one": (["X-API-Key: x", f"x-api-key: {API_KEY}"], INVALID_KEY),
    "a key that is too long": ([f"X-API-Key: {'k' * 4000}"], INVALID_KEY),
    "a key that is not ASCII": (["X-API-Key: schl\u00fcssel"], INVALID_KEY),
    "the access key": ([f"X-API-Key: {KEY['access_key']}"], INVALID_KEY),
    "the secret key": ([f"X-API-Key: {KEY['secret_key']}"], INVALID_KEY),
    "the pair": ([f"X-API-Key: {KEY['access_key']}:{KEY['secret_key']}"], INVALID_KEY),
    "a key as a bearer": ([f"Authorization: Bearer {API_KEY}"], INVALID_KEY),
    "a key from elsewhere": ([f"X-API-Key: {ELSEWHERE}"], NOT_AUTHORIZED),
    "a key from elsewhere, and a claim": (
        [f"X-API-Key: {ELSEWHERE}", "X-Forwarded-For: 192.0.2.1", "X-Real-IP: 192.0.2.1",
         "Forwarded: for=192.0.2.1"], NOT_AUTHORIZED,
    ),
    "a key that is used up": ([f"X-API-Key: {USED_UP}"], OVER_LIMIT),
}  # fmt: skip


def combinations() -> Iterator[tuple[str, str, Operation | None]]:
    for path, operations in PATHS.items():
        for method in METHODS:
            yield method, path, operations.get(method)


def expected(method: str, operation: Operation | None, refusal: tuple[int, str]) -> tuple[int, str]:
    if method == "OPTIONS" or (operation is not None and operation.is_keyless):
        return 200, ""
    return refusal if operation else NOT_FOUND


def told(answer: Heard, method: str) -> tuple[int, str]:
    if method == "HEAD":
        return answer.status, "not_found"
    assert_legacy(answer)
    return answer.status, "" if answer.status == 200 else answer.code


async def asked(connection: Wire, method: str, path: str, headers: list[str]) -> tuple[int, str]:
    await connection.say(request(method, path, *headers))
    answer = await connection.answer(bodiless=method == "HEAD")
    assert answer is not None, (method, path)
    return told(answer, method)


async def refuses(house: House, behind: Simulator, headers: list[str], refusal: Any) -> None:
    """Checks every path and method; an unknown method closes its connection."""
    calls = len(behind.service.requests)
    connection = await wire(house.running.port)
    for method, path, operation in combinations():
        said = await asked(connection, method, path, headers)
        assert said == expected(method, operation, refusal), (method, path)
        if method in ("BREW", "CONNECT"):
            await connection.close()
            connection = await wire(house.running.port)
    await connection.close()
    assert len(behind.service.requests) == calls


async def test_the_matrix_has_every_route() -> None:
    matched = {path: Routes(Vocabulary()).match(path) for path in PATHS}
    for path, found in matched.items():
        assert found is not None
        assert found.route.operations == PATHS[path]
    assert sum(len(operations) for operations in PATHS.values()) == len(OPERATIONS) + len(UNLISTED)


@pytest.mark.parametrize(("headers", "refusal"), STATES.values(), ids=STATES)
async def test_whoever_may_not_reaches_nothing_by_any_path_and_method(
    house: House, behind: Simulator, headers: list[str], refusal: tuple[int, str]
) -> None:
    await refuses(house, behind, headers, refusal)


FORGED = ["198.51.100.1", "192.0.2.1, 198.51.100.1", "unknown", ""]


@pytest.mark.parametrize("forwarded", FORGED)
async def test_behind_a_trusted_proxy_a_client_elsewhere_reaches_nothing_either(
    proxied: House, behind: Simulator, forwarded: str
) -> None:
    headers = [f"X-API-Key: {ELSEWHERE}", f"X-Forwarded-For: {forwarded}"]
    await refuses(proxied, behind, headers, NOT_AUTHORIZED)


GOOD = [
    [f"X-API-Key: {API_KEY}"],
    [f"x-api-key: {API_KEY}"],
    [f"X-API-KEY:   {API_KEY}  "],
    [f"X-API-Key: {API_KEY}", "X-Forwarded-For: 192.0.2.1"],
]


@pytest.mark.parametrize("headers", GOOD)
async def test_a_good_key_passes_every_check_that_needs_no_body(
    house: House, headers: list[str]
) -> None:
    for method, path, operation in combinations():
        if operation is None or operation.body_shape is not None:
            continue
        async with await wire(house.running.port) as connection:
            status, code = await asked(connection, method, path, headers)
        assert status in (200, 404), (method, path)
        assert code in ("", "not_found")


@pytest.mark.parametrize("state", ["no key", "a key from elsewhere", "a key that is used up"])
async def test_who_is_refused_is_not_asked_for_a_body_of_any_size(
    house: House, behind: Simulator, state: str
) -> None:
    headers, refusal = STATES[state]
    calls = len(behind.service.requests)
    waiting = ["Content-Length: 999999999", "Expect: 100-continue"]
    for method, path, operation in combinations():
        if operation is not None and operation.body_shape is not None:
            data = request(method, path, *headers, *waiting)
            answer = await heard(house.running.port, data)
            assert answer is not None
            assert told(answer, method) == refusal
    assert len(behind.service.requests) == calls


async def test_an_overlong_body_is_refused_on_every_path_that_takes_one(
    house: House, behind: Simulator
) -> None:
    calls = len(behind.service.requests)
    long = [f"X-API-Key: {API_KEY}", "Content-Length: 999999999", "Expect: 100-continue"]
    for method, path, operation in combinations():
        if operation is not None and operation.body_shape is not None:
            answer = await heard(house.running.port, request(method, path, *long))
            assert answer is not None
            assert told(answer, method) == (413, "invalid_field")
    assert len(behind.service.requests) == calls


@pytest.mark.parametrize("path", ["/v1/none", "/v1/recipients/R-1/none", "/v1/batch/B-1/summary"])
async def test_of_an_unknown_path_everybody_hears_the_same(
    house: House, behind: Simulator, path: str
) -> None:
    calls = len(behind.service.requests)
    for headers, _refusal in [*STATES.values(), (GOOD[0], None)]:
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            answer = await heard(house.running.port, request(method, path, *headers))
            assert answer is not None
            assert told(answer, method) == NOT_FOUND
    assert len(behind.service.requests) == calls


async def test_a_preflight_tells_of_every_path_its_methods_and_asks_nobody(
    house: House, behind: Simulator
) -> None:
    calls = len(behind.service.requests)
    for path, operations in PATHS.items():
        answer = await heard(
            house.running.port, request("OPTIONS", path, "Origin: https://a.example")
        )
        assert answer is not None
        allowed = answer.headers["access-control-allow-methods"].split(", ")
        assert sorted(allowed) == sorted([*operations, "OPTIONS"]), path
        assert answer.headers["access-control-allow-headers"] == "X-API-Key, Content-Type"
    assert len(behind.service.requests) == calls


# Environments.


async def test_a_key_of_an_environment_reaches_that_one_and_sees_no_other(tmp_path: Path) -> None:
    live_pair = Key("LIVEACCESSKEY", "live-secret-key", "demo", "live")
    live = await start(service=Service(keys=[live_pair], seed=2))
    sandbox = await start(service=Service(keys=[DEMO_KEY], seed=2))
    environments = {"live": {"base_url": live.url}}
    try:
        async with open_house(tmp_path, sandbox.url, environments=environments) as house:
            key = await house.import_key(
                environment="live",
                api_key="a-live-key-for-tests",
                access_key=live_pair.access_key,
                secret_key=live_pair.secret_key,
            )
            with_live = {"headers": {"X-API-Key": key}}
            recipient = await make_recipient(house)
            batch = await make_batch(house, recipient, "5.00")
            seen = len(live.service.requests)
            assert seen == 0, "a sandbox key makes no call of live"
            for path in (f"/v1/recipients/{recipient}", f"/v1/batches/{batch}"):
                assert (await house.ask("GET", path, **with_live)).status == 404
            assert (await done(house, "GET", "/batches", **with_live))["batches"] == []
            sandbox_calls = len(sandbox.service.requests)
            await make_batch(house, await make_recipient(house, **with_live), "7.00", **with_live)
            assert len(sandbox.service.requests) == sandbox_calls
            assert [one["id"] for one in (await done(house, "GET", "/batches"))["batches"]] == [
                batch
            ]
    finally:
        await live.stop()
        await sandbox.stop()


async def test_a_key_of_an_environment_that_is_not_configured_is_refused_as_invalid(
    tmp_path: Path, behind: Simulator
) -> None:
    async with open_house(tmp_path, behind.url) as house:
        key = await house.import_key(
            environment="live", api_key=UNCONFIGURED, access_key="LIVE", secret_key="live-secret"
        )
        await refuses(house, behind, [f"X-API-Key: {key}"], INVALID_KEY)


# Keys are looked up by their hash, so that no comparison leaks how much of a key matches.


class Uncomparable(str):
    """A key that fails the test if it is compared or hashed as text."""

    __slots__ = ()

    def _compared(self, *_others: object) -> NoReturn:
        raise AssertionError("an API key was compared")

    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = _compared  # type: ignore[assignment]
    __contains__ = startswith = endswith = find = index = _compared  # type: ignore[assignment]

    __hash__ = _compared  # type: ignore[assignment]


@pytest.mark.parametrize("key", [API_KEY, API_KEY[:-1], f"{API_KEY}x", "nobody-has-this-key"])
async def test_no_key_is_ever_compared_with_another_as_text(house: House, key: str) -> None:
    async with open_store(house.settings.state) as store, ApiKeyStore(store) as keyring:
        for _known_by_now in range(3):
            found = await keyring.find(Uncomparable(key))
            assert bool(found) == bool(str.__eq__(key, API_KEY))
