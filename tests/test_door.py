"""HTTP requests through a whole gateway: real sockets in front, the simulator behind.

A request is checked in the order path, key, address, limit, body. Every refusal has the form of the
legacy interface and causes no upstream call.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.auth.key_rows import load_listed_keys, revoke_key
from gateway.config.settings import Misconfigured
from gateway.simulator import Fault, Service, Simulator, start
from gateway.storage import open_store
from tests.house import KEY, House, open_house
from tests.operating import no_reading_at_once
from tests.sockets import Heard, assert_legacy, heard, until, wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

API_KEY = KEY["api_key"]
RECIPIENTS = "/v1/recipients"
ADA = {"type": "individual", "firstName": "Ada", "lastName": "Lovelace", "email": "ada@example.com"}
PAYOUT = {
    "primary": {"method": "bank", "currency": "USD"},
    "accounts": {"bank": {"country": "US", "accountNum": "1234567", "routing": "021000021"}},
}

NETWORKS = ["192.0.2.0/24", "2001:db8::/32", "203.0.113.7"]

Build = Callable[..., AbstractAsyncContextManager[House]]


@pytest_asyncio.fixture(loop_scope="module")
async def simulator() -> AsyncIterator[Simulator]:
    simulator = await start(service=Service(seed=1))
    yield simulator
    await simulator.stop()


@pytest.fixture
def build(simulator: Simulator, tmp_path: Path) -> Build:
    """Opens a gateway in front of the simulator with the settings of a test."""

    @asynccontextmanager
    async def build(**sections: Mapping[str, Any]) -> AsyncIterator[House]:
        async with open_house(tmp_path, simulator.url, **sections) as house:
            yield house

    return build


@pytest_asyncio.fixture(loop_scope="module")
async def house(build: Build) -> AsyncIterator[House]:
    """A gateway for one test, which may change its state."""
    async with build() as house:
        yield house


# Gateways for the whole module, for requests that do not change their state.


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def service_behind() -> AsyncIterator[Simulator]:
    simulator = await start(service=Service(seed=1))
    yield simulator
    await simulator.stop()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def standing(
    service_behind: Simulator, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[House]:
    async with open_house(tmp_path_factory.mktemp("standing"), service_behind.url) as house:
        await house.import_key(api_key="bound", name="bound", allowed_ips=NETWORKS)
        yield house


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def proxied(
    service_behind: Simulator, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[House]:
    trusted = {"trusted_proxies": ["127.0.0.0/8", "10.0.0.0/8"]}
    folder = tmp_path_factory.mktemp("proxied")
    async with open_house(folder, service_behind.url, server=trusted) as house:
        await house.import_key(api_key="bound", name="bound", allowed_ips=NETWORKS)
        yield house


@pytest.fixture
def behind(service_behind: Simulator) -> Simulator:
    """The simulator of the module's gateways, without recorded requests and faults."""
    service_behind.service.requests.clear()
    service_behind.service.faults.clear()
    return service_behind


@pytest.fixture
def not_seen_at_once() -> Iterator[None]:
    with no_reading_at_once():
        yield


def request(
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


async def asked(house: House, data: bytes) -> Heard:
    answer = await heard(house.running.port, data)
    assert answer is not None, "closed without an answer"
    return answer


def refused(answer: Heard) -> tuple[int, str]:
    assert_legacy(answer)
    return answer.status, answer.code


NOT_FOUND = (404, "not_found")
INVALID_KEY = (403, "invalid_api_key")
NOT_AUTHORIZED = (403, "not_authorized")
OVER_LIMIT = (429, "rate_limit_exceeded")
INVALID = (406, "invalid_field")
INTERNAL = (500, "internal_server_error")


# The order of checks: each request fails all checks from one on, which the answer names.


async def test_checks_are_made_in_their_order(build: Build, simulator: Simulator) -> None:
    elsewhere, used_up = "a-key-for-elsewhere", "a-key-that-is-used-up"
    async with build(limits={"body_bytes": 1024}) as house:
        await house.import_key(
            api_key=elsewhere, allowed_ips=["192.0.2.1"], requests_per_hour=1, name="elsewhere"
        )
        await house.import_key(api_key=used_up, requests_per_hour=1, name="used up")
        assert (await asked(house, request(key=used_up))).status == 200
        calls = len(simulator.service.calls())
        steps = [
            ("/v1/merchants", "no-such-key", NOT_FOUND),
            (RECIPIENTS, "no-such-key", INVALID_KEY),
            (RECIPIENTS, elsewhere, NOT_AUTHORIZED),
            (RECIPIENTS, used_up, OVER_LIMIT),
            (RECIPIENTS, API_KEY, (413, "invalid_field")),
        ]
        for path, key, expected in steps:
            answer = await asked(house, request("POST", path, body=b"x" * 2000, key=key))
            assert refused(answer) == expected
    assert len(simulator.service.calls()) == calls


async def test_a_request_that_fails_before_the_limit_does_not_count(house: House) -> None:
    key = await house.import_key(
        api_key="elsewhere", allowed_ips=["192.0.2.1"], requests_per_hour=1, name="elsewhere"
    )
    for _ in range(3):
        assert refused(await asked(house, request(key=key))) == NOT_AUTHORIZED
        assert refused(await asked(house, request(target="/v1/x", key=key))) == NOT_FOUND


# The key.

BAD_KEYS = {
    "no header": [],
    "an empty value": ["X-API-Key:"],
    "spaces": ["X-API-Key:    "],
    "an unknown key": ["X-API-Key: nobody-has-this-key"],
    "a key in upper case": [f"X-API-Key: {API_KEY.upper()}"],
    "the beginning of a key": [f"X-API-Key: {API_KEY[:-1]}"],
    "a key and more": [f"X-API-Key: {API_KEY}x"],
    "a quoted key": [f'X-API-Key: "{API_KEY}"'],
    "two keys in one value": [f"X-API-Key: {API_KEY}, {API_KEY}"],
    "the header twice": [f"X-API-Key: {API_KEY}", "X-API-Key: other"],
    "the header twice, the good one last": ["X-API-Key: other", f"X-API-Key: {API_KEY}"],
    "the header twice with one key": [f"X-API-Key: {API_KEY}"] * 2,
    "the header twice in two cases": [f"X-API-Key: {API_KEY}", f"x-api-key: {API_KEY}"],
    "an empty header before a good one": ["X-API-Key:", f"X-API-Key: {API_KEY}"],
    "letters that are not ASCII": ["X-API-Key: schlüssel-日本語"],
    "a non-ASCII letter after a good key": [f"X-API-Key: {API_KEY}é"],
    "full-width letters": ["X-API-Key: \uff41\uff4e-api-key-for-tests"],
    "longer than any key": [f"X-API-Key: {'k' * 513}"],
    "as long as a header can be": [f"X-API-Key: {'k' * 8000}"],
    "as a bearer": [f"Authorization: Bearer {API_KEY}"],
    "as basic credentials": ["Authorization: Basic YW4tYXBpLWtleS1mb3ItdGVzdHM6"],
    "in a cookie": [f"Cookie: X-API-Key={API_KEY}"],
    "under a name with an underscore": [f"X_API_Key: {API_KEY}"],
    "the access key": [f"X-API-Key: {KEY['access_key']}"],
    "the secret key": [f"X-API-Key: {KEY['secret_key']}"],
    "SQL": ["X-API-Key: ' OR 1=1 --"],
}


@pytest.mark.parametrize("headers", BAD_KEYS.values(), ids=BAD_KEYS)
async def test_without_one_good_key_the_answer_is_invalid_api_key(
    standing: House, behind: Simulator, headers: list[str]
) -> None:
    for method in ("GET", "DELETE", "POST"):
        answer = await asked(standing, request(method, RECIPIENTS, *headers, key=None))
        assert refused(answer) == INVALID_KEY
        assert API_KEY.encode() not in answer.body
    assert not behind.service.calls()


async def test_bytes_that_are_no_text_are_no_key(standing: House, behind: Simulator) -> None:
    data = request(key="KEY").replace(b"KEY", b"\xff\xfe\x80")
    assert refused(await asked(standing, data)) == INVALID_KEY
    assert not behind.service.calls()


async def test_a_revoked_key_is_invalid(house: House, simulator: Simulator) -> None:
    await house.import_key(api_key="a-key-to-be-revoked", name="leaving")
    async with open_store(house.settings.state) as store:
        leaving = next(key for key in await load_listed_keys(store) if key.name == "leaving")
        await revoke_key(store, leaving.id)
    assert refused(await asked(house, request(key="a-key-to-be-revoked"))) == INVALID_KEY
    assert not simulator.service.calls()


@pytest.mark.parametrize("name", ["X-API-Key", "x-api-key", "X-API-KEY", "X-Api-Key", "x-aPi-kEy"])
async def test_the_name_of_the_key_header_is_taken_in_any_case(standing: House, name: str) -> None:
    answer = await asked(standing, request("GET", RECIPIENTS, f"{name}: {API_KEY}", key=None))
    assert answer.status == 200


@pytest.mark.parametrize("value", [f"  {API_KEY}", f"{API_KEY}  ", f"\t{API_KEY}\t"])
async def test_blanks_around_a_key_are_not_part_of_it(standing: House, value: str) -> None:
    answer = await asked(standing, request("GET", RECIPIENTS, f"X-API-Key:{value}", key=None))
    assert answer.status == 200


async def test_a_pair_that_the_service_refuses_is_an_invalid_key(house: House) -> None:
    key = await house.import_key(
        merchant="other",
        api_key="a-key-of-a-wrong-pair",
        access_key="NOSUCHACCESSKEY",
        secret_key="no such secret",
    )
    assert refused(await asked(house, request(key=key))) == INVALID_KEY


# The address.


@pytest.mark.parametrize(
    "forwarded",
    [
        [],
        ["X-Forwarded-For: 192.0.2.1"],
        ["X-Forwarded-For: 192.0.2.1, 192.0.2.2"],
        ["X-Forwarded-For: 192.0.2.1"] * 2,
        ["x-forwarded-for: 2001:db8::1"],
        ["Forwarded: for=192.0.2.1"],
        ["X-Real-IP: 192.0.2.1"],
        ["X-Client-IP: 192.0.2.1", "True-Client-IP: 192.0.2.1", "CF-Connecting-IP: 192.0.2.1"],
    ],
)
async def test_a_client_elsewhere_cannot_claim_an_allowed_address(
    standing: House, behind: Simulator, forwarded: list[str]
) -> None:
    answer = await asked(standing, request("GET", RECIPIENTS, *forwarded, key="bound"))
    assert refused(answer) == NOT_AUTHORIZED
    assert not behind.service.calls()


BEHIND_PROXIES = {
    "an allowed client": ("192.0.2.9", 200),
    "a single allowed address": ("203.0.113.7", 200),
    "an allowed client, mapped into IPv6": ("::ffff:192.0.2.9", 200),
    "an allowed IPv6 client": ("2001:db8:1::9", 200),
    "an allowed IPv6 client in long form": ("2001:0DB8:0001:0000:0000:0000:0000:0009", 200),
    "an allowed client before another trusted proxy": ("192.0.2.9, 10.1.2.3", 200),
    "an allowed client, without spaces": ("192.0.2.9,10.1.2.3", 200),
    "a client elsewhere": ("198.51.100.1", 403),
    "an IPv6 client elsewhere": ("2001:db9::1", 403),
    "an allowed address claimed by a client elsewhere": ("192.0.2.9, 198.51.100.1", 403),
    "the same before another trusted proxy": ("192.0.2.9, 198.51.100.1, 10.1.2.3", 403),
    "a mapped address claimed from elsewhere": ("::ffff:192.0.2.9, ::ffff:198.51.100.1", 403),
    "an allowed client with its port": ("192.0.2.9:61234", 200),
    "an allowed IPv6 client with its port": ("[2001:db8:1::9]:61234", 200),
    "an allowed IPv6 client in brackets": ("[2001:db8:1::9]", 200),
    "ports of all": ("192.0.2.9:61234, 10.1.2.3:443", 200),
    "a client elsewhere with its port": ("192.0.2.9:61234, 198.51.100.1:61234", 403),
    "a port that is none": ("192.0.2.9:http", 403),
    "no port behind the colon": ("192.0.2.9:", 403),
    "a word in brackets": ("[unknown]:61234", 403),
    "nothing": ("", 403),
    "a word": ("unknown", 403),
    "a word nearest": ("192.0.2.9, unknown", 403),
    "an empty hop": ("192.0.2.9,", 403),
    "an octal address": ("192.0.02.9", 403),
    "a short address": ("192.0.9", 403),
    "a number": ("3221225993", 403),
    "only proxies": ("10.1.2.3", 403),
}


@pytest.mark.parametrize(("forwarded", "status"), BEHIND_PROXIES.values(), ids=BEHIND_PROXIES)
async def test_behind_trusted_proxies_the_nearest_other_address_counts(
    proxied: House, behind: Simulator, forwarded: str, status: int
) -> None:
    header = f"X-Forwarded-For: {forwarded}"
    answer = await asked(proxied, request("GET", RECIPIENTS, header, key="bound"))
    assert answer.status == status
    assert_legacy(answer)
    assert status == 200 or answer.code == "not_authorized"
    assert bool(behind.service.calls()) == (status == 200)


async def test_forwarded_headers_sent_twice_are_read_in_their_order(proxied: House) -> None:
    twice = ["X-Forwarded-For: 192.0.2.9", "X-Forwarded-For: 198.51.100.1"]
    outside = await asked(proxied, request("GET", RECIPIENTS, *twice, key="bound"))
    inside = await asked(proxied, request("GET", RECIPIENTS, *reversed(twice), key="bound"))
    assert refused(outside) == NOT_AUTHORIZED
    assert inside.status == 200


async def test_a_key_without_addresses_works_from_any(proxied: House) -> None:
    for forwarded in ("198.51.100.1", "unknown", "::1"):
        answer = await asked(proxied, request("GET", RECIPIENTS, f"X-Forwarded-For: {forwarded}"))
        assert answer.status == 200


async def test_a_client_over_ipv6_has_its_own_address(build: Build) -> None:
    async with build(server={"host": "::1"}) as house:
        here = await house.import_key(api_key="here", name="here", allowed_ips=["::1"])
        mapped = await house.import_key(api_key="v4", name="v4", allowed_ips=["127.0.0.1"])
        statuses = []
        for key in (here, mapped):
            async with await wire(house.running.port, "::1") as connection:
                await connection.say(request(key=key))
                answer = await connection.answer()
                assert answer is not None
                statuses.append(answer.status)
    assert statuses == [200, 403]


async def test_a_client_over_loopback_is_admitted_where_that_is_allowed(house: House) -> None:
    key = await house.import_key(api_key="local", name="local", allowed_ips=["127.0.0.0/8"])
    assert (await asked(house, request(key=key))).status == 200


# The path and the method.

UNKNOWN_PATHS = [
    "/",
    "/v1",
    "/v1/",
    "/v2/recipients",
    "/recipients",
    "/V1/recipients",
    "/v1/Recipients",
    "/v1/recipient",
    "/v1/recipientss",
    "/v1/recipients/R-1/unknown",
    "/v1/recipients/R-1/logs/1",
    "/v1/recipients/R-1/accounts",
    "/v1/recipients/R-1/offlinePayments",
    "/v1/merchants",
    "/healthz",
    "/metrics",
    "/favicon.ico",
    "/v1/recipients//",
    "//v1/recipients",
    "/v1//recipients",
    "/v1/recipients//R-1",
    "/v1/recipients/R-1//logs",
    "/v1/recipients/R-1/logs//",
    "/v1/./recipients",
    "/v1/recipients/.",
    "/v1/recipients/..",
    "/v1/recipients/../recipients",
    "/v1/recipients/R-1/../R-2",
    "/v1/recipients/R-1/..%2f..%2fbatch",
    "/v1/recipients/..%2Fprofile%2Fsubmerchant",
    "/v1/recipients/%2e%2e/batch",
    "/v1/recipients/%2E",
    "/v1/recipients/R-1%2flogs",
    "/v1/recipients/R-1%2Flogs",
    "/v1/recipients/R-1%5clogs",
    "/v1/recipients/R-1%00",
    "/v1/recipients/R-1%00/logs",
    "/v1/recipients/%52-1",
    "/v1/%72ecipients",
    "/v1/recipients/R%2D1",
    "/v1/recipients/R-1%20",
    "/v1/recipients/R-1%0a",
    "/v1/recipients/R-1%0d%0aX:1",
    "/v1/recipients/R-1%3fpage=1",
    "/v1/recipients/R-1%23",
    "/v1/recipients/R-1%252flogs",
    "/v1/recipients/R-1;x=1",
    "/v1/recipients/R-1,R-2",
    "/v1/recipients/R-1@x",
    "/v1/recipients/R-",
    "/v1/recipients/R_1",
    "/v1/recipients/r-1",
    "/v1/recipients/1",
    "/v1/recipients/B-1",
    "/v1/recipients/R-%C3%BC",
    "/v1/recipients/R-1*",
    "/v1/recipients/R-" + "1" * 65,
    "/v1/recipients/{id}",
    "/v1/recipients/:id",
    "/" + "a" * 6000,
]


@pytest.mark.parametrize("path", UNKNOWN_PATHS, ids=lambda path: path[:40])
async def test_an_unknown_path_is_not_found_and_goes_no_further(
    standing: House, behind: Simulator, path: str
) -> None:
    for method in ("GET", "POST", "PATCH", "DELETE", "OPTIONS"):
        assert refused(await asked(standing, request(method, path))) == NOT_FOUND
    assert not behind.service.calls()


ONE = "/v1/recipients/R-1"
UNKNOWN_METHODS = [
    *[(method, RECIPIENTS) for method in ("PUT", "PATCH", "TRACE", "CONNECT", "PROPFIND", "PURGE")],
    *[(method, ONE) for method in ("POST", "PUT", "TRACE", "LINK", "LOCK", "SEARCH")],
    *[(method, f"{ONE}/logs") for method in ("POST", "PATCH", "DELETE", "PUT")],
    *[(method, f"{ONE}/payments") for method in ("POST", "PATCH", "DELETE")],
    *[(method, f"{ONE}/payout-methods") for method in ("DELETE", "PUT", "MKCOL")],
]


@pytest.mark.parametrize(("method", "path"), UNKNOWN_METHODS)
async def test_a_method_that_a_path_does_not_have_is_not_found(
    standing: House, behind: Simulator, method: str, path: str
) -> None:
    for target in (path, f"{path}/", f"{path}?page=1"):
        assert refused(await asked(standing, request(method, target))) == NOT_FOUND
        assert refused(await asked(standing, request(method, target, key=None))) == NOT_FOUND
    assert not behind.service.calls()


@pytest.mark.parametrize("method", ["BREW", "GETS"])
async def test_a_method_that_nobody_knows_is_not_found(standing: House, method: str) -> None:
    assert refused(await asked(standing, request(method))) == NOT_FOUND


async def test_head_is_not_found_and_has_no_body(standing: House, behind: Simulator) -> None:
    async with await wire(standing.running.port) as connection:
        await connection.say(request("HEAD") + request("GET", "/v1/x"))
        head = await connection.answer(bodiless=True)
        after = await connection.answer()
    assert head is not None
    assert after is not None
    assert head.status == 404
    assert head.headers["content-type"] == "application/json; charset=utf-8"
    assert head.headers["access-control-allow-origin"] == "*"
    assert refused(after) == NOT_FOUND
    assert not behind.service.calls()


async def test_a_trailing_slash_is_as_good_as_none(house: House) -> None:
    created = await house.ask("POST", f"{RECIPIENTS}/", ADA)
    assert created.status == 200
    one = f"{RECIPIENTS}/{created.body['recipient']['id']}"
    for path in (RECIPIENTS, one, f"{one}/payments"):
        plain, slashed = await house.ask("GET", path), await house.ask("GET", f"{path}/")
        assert plain.status == 200
        assert slashed.text == plain.text
    assert (await house.ask("GET", f"{one}/logs/")).status == 200
    assert (await house.ask("PATCH", f"{one}/", {"firstName": "Eve"})).status == 200
    assert (await house.ask("POST", f"{one}/payout-methods/", PAYOUT)).status == 200
    assert (await house.ask("GET", f"{one}/payout-methods/")).status == 200
    assert (await house.ask("DELETE", f"{one}/")).status == 200


async def test_empty_parameters_after_a_slash_are_as_good_as_none(house: House) -> None:
    await house.ask("POST", RECIPIENTS, ADA)
    loose = await house.ask("GET", "/v1/recipients/?&search=&page=1&pageSize=10")
    assert loose.status == 200
    assert loose.text == (await house.ask("GET", RECIPIENTS)).text


@pytest.mark.parametrize(
    "query",
    ["%ff", "search=%ff", "search=%00", "search=%ED%A0%80", "search=%", "=", "&&&", "search", "a=b=c",
     "page=%EF%BC%92", "page=1e3", "page=" + "9" * 5000, "page=-1", "pageSize=0", "search=a;page=2",
     "page=2&page=1&page=x", "search=" + "%F0%9F%92%B8" * 200, "orderBy=__class__", "sortBy=%27"],
    ids=lambda query: query[:30],
)  # fmt: skip
async def test_a_query_of_any_kind_is_answered(standing: House, query: str) -> None:
    answer = await asked(standing, request(target=f"{RECIPIENTS}?{query}"))
    assert_legacy(answer)
    assert answer.status == 200


async def test_an_absolute_target_is_read_from_its_path_on(standing: House) -> None:
    for target in ("http://gateway/v1/recipients", "HTTPS://elsewhere:1/v1/recipients?page=1"):
        assert (await asked(standing, request(target=target))).status == 200


# Browsers.

METHODS = {
    RECIPIENTS: {"POST", "GET", "DELETE", "OPTIONS"},
    ONE: {"GET", "PATCH", "DELETE", "OPTIONS"},
    f"{ONE}/logs": {"GET", "OPTIONS"},
    f"{ONE}/payments": {"GET", "OPTIONS"},
    f"{ONE}/payout-methods": {"POST", "GET", "PATCH", "OPTIONS"},
}


@pytest.mark.parametrize(("path", "methods"), METHODS.items())
async def test_a_preflight_is_answered_here_for_any_origin(
    standing: House, behind: Simulator, path: str, methods: set[str]
) -> None:
    answer = await asked(
        standing,
        request(
            "OPTIONS",
            path,
            "Origin: https://shop.example",
            "Access-Control-Request-Method: POST",
            "Access-Control-Request-Headers: x-api-key, content-type",
            key=None,
        ),
    )
    assert_legacy(answer)
    assert answer.status == 200
    assert set(answer.headers["access-control-allow-methods"].split(", ")) == methods
    allowed = answer.headers["access-control-allow-headers"].lower().split(", ")
    assert allowed == ["x-api-key", "content-type"]
    assert not behind.service.calls()


async def test_a_preflight_does_not_count_against_a_key(house: House) -> None:
    key = await house.import_key(api_key="once", name="once", requests_per_hour=1)
    for _ in range(3):
        assert (await asked(house, request("OPTIONS", key=key))).status == 200
    assert (await asked(house, request(key=key))).status == 200


async def test_every_answer_is_readable_from_any_origin(house: House, simulator: Simulator) -> None:
    simulator.next(Fault("GET", RECIPIENTS, status=500, body=b"<html>"))
    key = await house.import_key(api_key="bound", name="bound", allowed_ips=["192.0.2.1"])
    once = await house.import_key(api_key="once", name="once", requests_per_hour=1)
    origin = "Origin: null"
    answers = [
        await asked(house, data)
        for data in (
            request("GET", RECIPIENTS, origin),
            request("GET", RECIPIENTS, origin),
            request("GET", "/nowhere", origin),
            request("GET", RECIPIENTS, origin, key="wrong"),
            request("GET", RECIPIENTS, origin, key=key),
            request("GET", RECIPIENTS, origin, key=once),
            request("GET", RECIPIENTS, origin, key=once),
            request("POST", RECIPIENTS, origin, body=b"{"),
            b"nonsense\r\n\r\n",
        )
    ]
    assert [answer.status for answer in answers] == [500, 200, 404, 403, 403, 200, 429, 406, 406]
    for answer in answers:
        assert_legacy(answer)
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


# The shape of answers.


async def test_all_eleven_operations_answer_compact_json_that_begins_with_ok(
    house: House,
) -> None:
    created = await asked(
        house, request("POST", body=json.dumps(ADA | {"payout": PAYOUT}).encode())
    )
    assert created.status == 200
    assert_legacy(created)
    one = f"{RECIPIENTS}/{created.json['recipient']['id']}"
    other = (await house.ask("POST", RECIPIENTS, ADA)).body["recipient"]["id"]
    patch = json.dumps({"lastName": "Łovelace"}).encode()
    for data in (
        request("GET", RECIPIENTS),
        request("GET", one),
        request("PATCH", one, body=patch),
        request("GET", f"{one}/logs"),
        request("GET", f"{one}/payments"),
        request("GET", f"{one}/payout-methods"),
        request("POST", f"{one}/payout-methods", body=json.dumps(PAYOUT).encode()),
        request("PATCH", f"{one}/payout-methods", body=json.dumps(PAYOUT).encode()),
        request("DELETE", one),
        request("DELETE", RECIPIENTS, body=json.dumps({"ids": [other]}).encode()),
    ):
        answer = await asked(house, data)
        assert answer.status == 200, data
        assert_legacy(answer)
        assert answer.body.startswith(b'{"ok":true,"')


async def test_text_that_is_not_ascii_comes_back_as_utf_8(house: House) -> None:
    ada = ADA | {"firstName": "Zoë", "lastName": "小林 🙂"}
    created = await asked(house, request("POST", body=json.dumps(ada).encode()))
    assert "Zoë 小林 🙂".encode() in created.body


async def test_headers_say_nothing_of_what_is_behind(house: House) -> None:
    for answer in (await asked(house, request()), await asked(house, request(target="/x"))):
        assert answer.headers["server"] == "payout-gateway"
        assert {"set-cookie", "x-powered-by", "location"}.isdisjoint(answer.headers)


async def test_headers_of_the_service_are_not_passed_on(house: House, simulator: Simulator) -> None:
    headers = {
        "Set-Cookie": "session=1",
        "X-Internal": "host-7",
        "Content-Type": "application/json; charset=latin-1",
        "Access-Control-Allow-Origin": "https://only.example",
        "X-Request-Id": "theirs",
        "Server": "theirs",
    }
    body = b'{"ok":true,"recipients":[],"meta":{"page":1,"pages":0,"records":0}}'
    simulator.next(Fault("GET", RECIPIENTS, status=200, body=body, headers=headers))
    answer = await asked(house, request("GET", RECIPIENTS, "X-Request-Id: mine"))
    assert_legacy(answer)
    assert answer.status == 200
    assert answer.headers["x-request-id"] == "mine"
    assert answer.headers["server"] == "payout-gateway"
    assert {"set-cookie", "x-internal"}.isdisjoint(answer.headers)


async def test_an_error_inside_is_no_traceback(house: House, simulator: Simulator) -> None:
    simulator.next(
        Fault("GET", RECIPIENTS, status=200, body=b'{"ok":true,"recipients":7}', times=9)
    )
    answer = await asked(house, request())
    assert refused(answer) == INTERNAL
    assert b"Traceback" not in answer.body
    assert b"Error" not in answer.body


# The limit.


def limits(answer: Heard) -> tuple[int, int, int]:
    names = ("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset")
    limit, remaining, reset = (int(answer.headers[name]) for name in names)
    return limit, remaining, reset


async def test_the_request_over_a_keys_limit_is_refused_and_other_keys_are_untouched(
    house: House, simulator: Simulator
) -> None:
    three = await house.import_key(api_key="three", name="three", requests_per_hour=3)
    other = await house.import_key(api_key="other", name="other", requests_per_hour=5)
    for left in (2, 1, 0):
        answer = await asked(house, request(key=three))
        assert answer.status == 200
        assert limits(answer)[:2] == (3, left)
        assert 0 < limits(answer)[2] <= 3601
    calls = len(simulator.service.calls())
    for _ in range(2):
        over = await asked(house, request(key=three))
        assert refused(over) == OVER_LIMIT
        assert limits(over)[:2] == (3, 0)
        assert 0 < int(over.headers["retry-after"]) <= 3601
    assert len(simulator.service.calls()) == calls
    assert limits(await asked(house, request(key=other)))[:2] == (5, 4)
    assert limits(await asked(house, request()))[:2] == (10_000, 9_999)


async def test_a_key_without_a_figure_has_the_configured_one(build: Build) -> None:
    async with build(limits={"requests_per_hour": 2}) as house:
        statuses = [(await asked(house, request())).status for _ in range(3)]
        assert statuses == [200, 200, 429]


async def test_a_request_that_fails_after_the_limit_counts(house: House) -> None:
    key = await house.import_key(api_key="two", name="two", requests_per_hour=2)
    for _ in range(2):
        bad = await asked(house, request("POST", body=b"{", key=key))
        assert refused(bad) == INVALID
        assert limits(bad)[0] == 2
    assert refused(await asked(house, request(key=key))) == OVER_LIMIT


async def test_two_keys_of_one_merchant_are_counted_apart(house: House) -> None:
    keys = [
        await house.import_key(api_key=f"key-{number}", name=f"key {number}", requests_per_hour=1)
        for number in range(2)
    ]
    for key in keys:
        assert (await asked(house, request(key=key))).status == 200
        assert refused(await asked(house, request(key=key))) == OVER_LIMIT


async def test_requests_side_by_side_do_not_get_past_the_limit(house: House) -> None:
    key = await house.import_key(api_key="five", name="five", requests_per_hour=5)
    answers = await asyncio.gather(*(asked(house, request(key=key)) for _ in range(20)))
    assert sorted(answer.status for answer in answers) == [200] * 5 + [429] * 15


async def test_an_answer_to_nobody_known_tells_no_limit(house: House) -> None:
    answer = await asked(house, request(key="wrong"))
    assert not [name for name in answer.headers if name.startswith("ratelimit")]


# The request id.


async def test_a_request_id_is_taken_and_sent_on(standing: House, behind: Simulator) -> None:
    given = "client-1234:5678.9_Z"
    answer = await asked(standing, request("GET", RECIPIENTS, f"X-Request-Id: {given}"))
    assert answer.headers["x-request-id"] == given
    assert [call.headers["X-Request-Id"] for call in behind.service.calls()] == [given]


@pytest.mark.parametrize(
    "given", ["", "a b", "ü", "x" * 129, "a,b", "<script>", "a\tb", '"quoted"', "%0d%0a"]
)
async def test_a_request_id_of_another_form_is_replaced(
    standing: House, behind: Simulator, given: str
) -> None:
    answer = await asked(standing, request("GET", RECIPIENTS, f"X-Request-Id: {given}"))
    made = answer.headers["x-request-id"]
    assert made != given
    assert 16 <= len(made) <= 64
    assert made.isalnum()
    assert [call.headers["X-Request-Id"] for call in behind.service.calls()] == [made]


async def test_a_request_id_is_made_for_each_request(house: House) -> None:
    answers = [
        await asked(house, request(target=path)) for path in (RECIPIENTS, "/x") for _ in "ab"
    ]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 4


async def test_all_calls_of_one_request_have_its_id(house: House, simulator: Simulator) -> None:
    body = json.dumps(ADA | {"payout": PAYOUT, "language": "en"}).encode()
    await asked(house, request("POST", RECIPIENTS, "X-Request-Id: mine", body=body))
    calls = simulator.service.calls()
    assert len(calls) > 2
    assert {call.headers["X-Request-Id"] for call in calls} == {"mine"}


async def test_nothing_of_the_clients_headers_reaches_the_service(
    house: House, simulator: Simulator
) -> None:
    sent = ["Cookie: a=b", "Authorization: Bearer x", "X-Forwarded-For: 192.0.2.1", "X-Own: y"]
    await asked(house, request("GET", RECIPIENTS, *sent, "User-Agent: client/1"))
    (call,) = simulator.service.calls()
    assert {"cookie", "x-forwarded-for", "x-own", "x-api-key"}.isdisjoint(
        name.lower() for name in call.headers
    )
    assert "client/1" not in call.headers["User-Agent"]


# The body.


async def test_a_declared_length_over_the_limit_is_refused_before_the_body_is_sent(
    build: Build, simulator: Simulator
) -> None:
    async with build(limits={"body_bytes": 1024}) as house:
        for method, path in (("POST", RECIPIENTS), ("PATCH", ONE), ("DELETE", RECIPIENTS)):
            async with await wire(house.running.port) as connection:
                await connection.say(request(method, path, "Content-Length: 1025"))
                answer = await connection.answer()
                assert answer is not None
                assert refused(answer) == (413, "invalid_field")
                assert answer.headers["connection"] == "close"
    assert not simulator.service.calls()


async def test_a_chunked_body_over_the_limit_is_refused_on_the_way(
    build: Build, simulator: Simulator
) -> None:
    async with (
        build(limits={"body_bytes": 1024}) as house,
        await wire(house.running.port) as client,
    ):
        await client.say(request("POST", RECIPIENTS, "Transfer-Encoding: chunked"))
        for _ in range(3):
            await client.say(b"200\r\n" + b" " * 0x200 + b"\r\n")
        answer = await client.answer()
        assert answer is not None
        assert refused(answer) == (413, "invalid_field")
    assert not simulator.service.calls()


async def test_a_body_of_exactly_the_limit_is_read(build: Build) -> None:
    async with build(limits={"body_bytes": 1024}) as house:
        for size, status in ((1024, 200), (1025, 413)):
            body = json.dumps(ADA).encode().ljust(size)
            assert (await asked(house, request("POST", body=body))).status == status
            chunk = f"{size:x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
            chunked = request("POST", RECIPIENTS, "Transfer-Encoding: chunked") + chunk
            assert (await asked(house, chunked)).status == status


async def test_a_body_in_many_pieces_is_read_whole(house: House) -> None:
    body = json.dumps(ADA).encode()
    async with await wire(house.running.port) as connection:
        await connection.say(request("POST", RECIPIENTS, f"Content-Length: {len(body)}"))
        for start_ in range(0, len(body), 16):
            await connection.say(body[start_ : start_ + 16])
            await asyncio.sleep(0.001)
        answer = await connection.answer()
    assert answer is not None
    assert answer.status == 200


BAD_BODIES = {
    "nothing": b"",
    "blanks": b" \n ",
    "a word": b"hello",
    "cut off": b'{"type":"individual"',
    "a comma too many": b'{"type":"individual",}',
    "single quotes": b"{'type':'individual'}",
    "two values": b"{} {}",
    "something after it": json.dumps(ADA).encode() + b"x",
    "a comment": b'{/* */"type":"individual"}',
    "a form": b"type=individual&email=ada%40example.com",
    "XML": b"<recipient/>",
    "an array": b"[]",
    "an array of objects": json.dumps([ADA]).encode(),
    "text": b'"text"',
    "a number": b"7",
    "null": b"null",
    "true": b"true",
    "a key twice": b'{"type":"individual","type":"business"}',
    "a key twice, deeper": json.dumps(ADA).encode()[:-1] + b',"address":{"city":"a","city":"b"}}',
    "a key twice, escaped": b'{"type":"individual","\\u0074ype":"business"}',
    "a lone high surrogate": json.dumps(ADA | {"lastName": "\ud800"}).encode(),
    "a lone low surrogate": json.dumps(ADA | {"lastName": "\udc00x"}).encode(),
    "a surrogate in a key": json.dumps(ADA | {"\ud800": "x"}).encode(),
    "a surrogate in UTF-8": json.dumps(ADA).encode().replace(b"Ada", b"\xed\xa0\x80"),
    "NaN": json.dumps(ADA | {"memo": float("nan")}).encode(),
    "Infinity": json.dumps(ADA | {"memo": float("inf")}).encode(),
    "minus Infinity": json.dumps(ADA | {"memo": float("-inf")}).encode(),
    "a number without end": json.dumps(ADA).encode()[:-1] + b',"memo":' + b"9" * 5000 + b"}",
    "an exponent without end": json.dumps(ADA).encode()[:-1] + b',"memo":1e999999999}',
    "an array without end": b"[" * 100_000,
    "objects without end": b'{"a":' * 100_000,
    "deeply nested": json.dumps(ADA).encode()[:-1]
    + b',"a":' + b"[" * 100 + b"]" * 100 + b"}",
    "Latin-1": json.dumps(ADA | {"firstName": "Zoë"}, ensure_ascii=False).encode("latin-1"),
    "UTF-16": json.dumps(ADA).encode("utf-16"),
    "UTF-32": json.dumps(ADA).encode("utf-32"),
    "a NUL after it": json.dumps(ADA).encode() + b"\0",
    "a control character in text": json.dumps(ADA).encode().replace(b"Ada", b"A\x01a"),
    "two byte order marks": b"\xef\xbb\xbf" * 2 + json.dumps(ADA).encode(),
}  # fmt: skip

WRITES = [
    ("POST", RECIPIENTS),
    ("DELETE", RECIPIENTS),
    ("PATCH", ONE),
    ("POST", f"{ONE}/payout-methods"),
    ("PATCH", f"{ONE}/payout-methods"),
]


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_a_body_that_is_no_json_object_is_an_invalid_field_and_goes_no_further(
    standing: House, behind: Simulator, body: bytes
) -> None:
    for method, path in WRITES:
        answer = await asked(standing, request(method, path, body=body))
        assert refused(answer) == INVALID
        assert answer.json["errors"][0]["message"]
    assert not behind.service.calls()


async def test_a_body_may_begin_with_a_byte_order_mark(standing: House) -> None:
    body = b"\xef\xbb\xbf" + json.dumps(ADA).encode()
    assert (await asked(standing, request("POST", body=body))).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["Content-Type:"],
        ["Content-Type: application/json; charset=utf-8"],
        ["Content-Type: text/plain"],
        ["Content-Type: application/x-www-form-urlencoded"],
        ["Content-Type: nonsense"],
    ],
)
async def test_a_write_is_read_as_json_whatever_its_content_type(
    standing: House, headers: list[str]
) -> None:
    body = json.dumps(ADA).encode()
    assert (await asked(standing, request("POST", RECIPIENTS, *headers, body=body))).status == 200


@pytest.mark.parametrize("body", [b"", b"{}", b"not json", b"[" * 1000])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_body_that_is_not_asked_for_is_dropped(
    standing: House, behind: Simulator, method: str, body: bytes
) -> None:
    id_ = (await standing.ask("POST", RECIPIENTS, ADA)).body["recipient"]["id"]
    async with await wire(standing.running.port) as connection:
        data = request(method, f"{RECIPIENTS}/{id_}", "Content-Type: application/json", body=body)
        await connection.say(data + request("GET", "/v1/x"))
        answers = [await connection.answer() for _ in range(2)]
    is_last = body and method == "GET"
    assert [answer.status for answer in answers if answer] == ([200] if is_last else [200, 404])
    assert not [call for call in behind.service.calls(method) if call.body]


async def test_a_compressed_body_is_read(standing: House) -> None:
    body = gzip.compress(json.dumps(ADA).encode())
    sent = request("POST", RECIPIENTS, "Content-Encoding: gzip", body=body)
    assert (await asked(standing, sent)).status == 200


# Expect: 100-continue.


async def test_a_body_is_asked_for_only_once_the_key_was_accepted(
    house: House, simulator: Simulator
) -> None:
    body = json.dumps(ADA).encode()
    async with await wire(house.running.port) as connection:
        length = f"Content-Length: {len(body)}"
        await connection.say(request("POST", RECIPIENTS, length, "Expect: 100-continue"))
        asks = await connection.answer()
        assert asks is not None
        assert asks.status == 100
        assert not simulator.service.calls()
        await connection.say(body)
        answer = await connection.answer()
        assert answer is not None
        assert answer.status == 200
        assert_legacy(answer)
        await connection.say(request("GET", "/v1/x"))
        after = await connection.answer()
        assert after is not None
        assert after.status == 404


@pytest.mark.parametrize(
    ("target", "key", "length", "status"),
    [
        ("/v1/x", API_KEY, 100, 404),
        (RECIPIENTS, None, 100, 403),
        (RECIPIENTS, "wrong", 100, 403),
        (RECIPIENTS, "elsewhere", 100, 403),
        (RECIPIENTS, "used up", 100, 429),
        (RECIPIENTS, API_KEY, 100_000, 413),
    ],
)
async def test_a_body_is_not_asked_for_where_the_answer_is_no_already(
    build: Build, target: str, key: str | None, length: int, status: int
) -> None:
    async with build(limits={"body_bytes": 1024}) as house:
        await house.import_key(api_key="elsewhere", name="elsewhere", allowed_ips=["192.0.2.1"])
        await house.import_key(api_key="used-up", name="used up", requests_per_hour=1)
        await asked(house, request(key="used-up"))
        headers = (f"Content-Length: {length}", "Expect: 100-continue")
        named = key and key.replace(" ", "-")
        answer = await asked(house, request("POST", target, *headers, key=named))
    assert answer.status == status
    assert_legacy(answer)


@pytest.mark.parametrize("expect", ["100-Continue", "100-CONTINUE"])
async def test_expect_is_read_in_any_case(standing: House, expect: str) -> None:
    async with await wire(standing.running.port) as connection:
        await connection.say(request("POST", RECIPIENTS, "Content-Length: 2", f"Expect: {expect}"))
        asks = await connection.answer()
        await connection.say(b"[]")
        answer = await connection.answer()
    assert asks is not None
    assert asks.status == 100
    assert answer is not None
    assert refused(answer) == INVALID


async def test_a_malformed_body_after_100_is_still_answered(standing: House) -> None:
    async with await wire(standing.running.port) as connection:
        headers = ("Transfer-Encoding: chunked", "Expect: 100-continue")
        await connection.say(request("POST", RECIPIENTS, *headers))
        asks = await connection.answer()
        assert asks is not None
        assert asks.status == 100
        await connection.say(b"5\r\nhello\r\n0\r\n\r\n")
        answer = await connection.answer()
        assert answer is not None
        assert refused(answer) == INVALID


# Faults of the service.


async def test_a_service_that_is_down_is_an_internal_error(
    house: House, simulator: Simulator
) -> None:
    await simulator.stop()
    for data in (request(), request("POST", body=json.dumps(ADA).encode()), request("DELETE", ONE)):
        answer = await asked(house, data)
        assert refused(answer) == INTERNAL
        assert "unknown" not in answer.json["errors"][0]["message"], "nothing was sent"


IN_TROUBLE = {
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


_number = itertools.count()


def another() -> dict[str, Any]:
    """Builds a new recipient each time, because an identical body after an error is a retry."""
    return {**ADA, "email": f"ada{next(_number)}@example.com"}


@pytest.mark.parametrize("fault", IN_TROUBLE.values(), ids=IN_TROUBLE)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_a_service_in_trouble_is_an_internal_error_in_the_legacy_form(
    house: House, simulator: Simulator, fault: Fault, method: str
) -> None:
    simulator.next(replace(fault, times=9))
    bodies = {"POST": json.dumps(another()).encode()}
    target = ONE if method == "DELETE" else RECIPIENTS
    if method == "DELETE":
        target = f"{RECIPIENTS}/{simulator.service.seed_recipients(1)[0].id}"
    answer = await asked(house, request(method, target, body=bodies.get(method, b"")))
    assert refused(answer) == INTERNAL
    assert b"<html" not in answer.body
    if method == "POST":
        assert len(simulator.service.calls("POST")) == 1, "a write is sent once"
    assert not simulator.service.calls("*", "/v1/batch"), "no redirect is followed"


@pytest.mark.usefixtures("not_seen_at_once")
async def test_a_timeout_after_a_write_says_that_the_outcome_is_unknown(
    build: Build, simulator: Simulator
) -> None:
    simulator.next(Fault("POST", RECIPIENTS, answer_delay=10))
    async with build(upstream={"timeout_seconds": 1}) as house:
        answer = await asked(house, request("POST", body=json.dumps(ADA).encode()))
    assert refused(answer) == INTERNAL
    assert "outcome of this request is unknown" in answer.json["errors"][0]["message"]
    assert len(simulator.service.calls("POST")) <= 1
    assert not simulator.service.calls("DELETE"), "what may have happened is not undone"


async def test_a_timeout_of_a_read_does_not_say_that_anything_is_unknown(
    build: Build, simulator: Simulator
) -> None:
    simulator.next(Fault("GET", RECIPIENTS, answer_delay=10))
    async with build(upstream={"timeout_seconds": 0.3}) as house:
        answer = await asked(house, request())
    assert refused(answer) == INTERNAL
    assert "unknown" not in answer.json["errors"][0]["message"]


@pytest.mark.parametrize("body", [b"<html>", b'{"ok":true,"recipient":{"id"', b"", b"[]"])
@pytest.mark.usefixtures("not_seen_at_once")
async def test_an_unreadable_answer_to_a_write_says_that_the_outcome_is_unknown(
    standing: House, behind: Simulator, body: bytes
) -> None:
    behind.next(Fault("POST", RECIPIENTS, status=200, body=body, executes=True))
    answer = await asked(standing, request("POST", body=json.dumps(another()).encode()))
    assert refused(answer) == INTERNAL
    assert "outcome of this request is unknown" in answer.json["errors"][0]["message"]


@pytest.mark.usefixtures("not_seen_at_once")
async def test_a_connection_dropped_after_a_write_says_that_the_outcome_is_unknown(
    standing: House, behind: Simulator
) -> None:
    behind.next(Fault("POST", RECIPIENTS, close="after"))
    answer = await asked(standing, request("POST", body=json.dumps(another()).encode()))
    assert refused(answer) == INTERNAL
    assert "outcome of this request is unknown" in answer.json["errors"][0]["message"]
    assert len(behind.service.calls("POST")) == 1


async def test_the_services_own_limit_is_passed_on_with_its_wait(
    standing: House, behind: Simulator
) -> None:
    body = b'{"ok":false,"errors":[{"code":"rate_limit_exceeded","message":"Slow down"}]}'
    headers = {"Retry-After": "17"}
    # A path of its own, because lists are also read to reconcile writes of other tests.
    target = f"{RECIPIENTS}/R-limited"
    behind.next(Fault("GET", target, status=429, body=body, headers=headers))
    answer = await asked(standing, request("GET", target))
    assert refused(answer) == OVER_LIMIT
    assert answer.headers["retry-after"] == "17"


async def test_a_client_that_goes_away_does_not_stop_a_write_half_way(
    house: House, simulator: Simulator
) -> None:
    simulator.next(Fault("POST", RECIPIENTS, answer_delay=0.2))
    async with await wire(house.running.port) as connection:
        body = json.dumps(ADA | {"payout": PAYOUT, "language": "en"}).encode()
        await connection.say(request("POST", body=body))
        await until(lambda: bool(simulator.service.calls("POST", RECIPIENTS)))
    await until(lambda: bool(simulator.service.calls("POST", "/v1/recipients/*/accounts")))
    assert simulator.service.calls("PATCH")


# Slow clients.


async def test_a_connection_that_says_nothing_is_closed_in_time(
    build: Build,
) -> None:
    load = {"idle_seconds": 0.2, "head_seconds": 0.2}
    async with build(load=load) as house:
        for sent in (b"", b"GET /v1/rec", b"GET /v1/recipients HTTP/1.1\r\nHost: x\r\nX-A"):
            async with await wire(house.running.port) as connection:
                await connection.say(sent)
                assert await connection.closed()


async def test_a_header_that_comes_a_byte_at_a_time_is_cut_off_in_time(
    build: Build,
) -> None:
    async with (
        build(load={"head_seconds": 0.2}) as house,
        await wire(house.running.port) as connection,
    ):
        await connection.say(request("GET", "/v1/x"))
        assert await connection.answer()
        await connection.say(b"GET /v1/recipients HTTP/1.1\r\nX-A: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(40):
                await connection.say(b"a")
                await asyncio.sleep(0.01)
        assert await connection.closed()


async def test_a_body_that_stops_coming_is_refused_in_time(
    build: Build, simulator: Simulator
) -> None:
    async with (
        build(load={"body_seconds": 0.2}) as house,
        await wire(house.running.port) as connection,
    ):
        await connection.say(request("POST", RECIPIENTS, "Content-Length: 20") + b'{"type":')
        answer = await connection.answer()
        assert answer is not None
        assert refused(answer) == INVALID
    assert not simulator.service.calls()


async def test_a_slow_client_holds_up_no_other(house: House) -> None:
    slow = [await wire(house.running.port) for _ in range(50)]
    for connection in slow:
        await connection.say(request("POST", RECIPIENTS, "Content-Length: 20") + b"{")
    assert (await asked(house, request())).status == 200
    for connection in slow:
        await connection.close()


async def test_a_connection_is_kept_for_the_next_request(standing: House) -> None:
    async with await wire(standing.running.port) as connection:
        for target in (RECIPIENTS, "/v1/x", RECIPIENTS):
            await connection.say(request(target=target))
            assert await connection.answer()
        assert await connection.silent()


async def test_a_client_that_asks_to_close_is_closed(standing: House) -> None:
    async with await wire(standing.running.port) as connection:
        await connection.say(request("GET", RECIPIENTS, "Connection: close"))
        assert await connection.answer()
        assert await connection.closed()


async def test_http_1_0_is_answered_and_closed(standing: House) -> None:
    async with await wire(standing.running.port) as connection:
        await connection.say(request().replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = await connection.answer()
        assert answer is not None
        assert answer.status == 200
        assert await connection.closed()


async def test_a_port_that_is_taken_is_an_error_at_the_start(build: Build) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(Misconfigured, match="in use"),
    ):
        async with build(server={"port": taken.getsockname()[1]}):
            pass
