"""Authentication of the signed interface: accepted requests, order of checks, refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.auth.key_rows import load_listed_keys
from gateway.auth.key_rows import revoke_key as revoke
from gateway.simulator import Service, Switches, start
from gateway.storage import open_store
from tests.house import KEY, House
from tests.signed import (
    CLIENT,
    INTERNAL,
    INVALID_KEY,
    NOT_AUTHORIZED,
    NOT_FOUND,
    NOW,
    OVER_LIMIT,
    Client,
    Recorder,
    asked,
    by_openssl,
    open_signed,
    recording,
    refused,
)
from tests.sockets import assert_legacy, wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

RECIPIENTS = "/v1/recipients"
ADA = json.dumps(
    {"type": "individual", "firstName": "Ada", "lastName": "Lovelace", "email": "ada@example.com"}
).encode()
JSON = "Content-Type: application/json"
ELSEWHERE = ["192.0.2.0/24"]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def behind() -> AsyncIterator[Recorder]:
    async with recording() as recorder:
        yield recorder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def standing(
    behind: Recorder, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[House]:
    """One gateway for requests that do not change its state."""
    lines = {"merchant": "bolt", "api_key": "bolt", "access_key": "BOLT", "secret_key": "bolt's"}
    folder = tmp_path_factory.mktemp("standing")
    async with open_signed(folder, behind.url, lines) as house:
        yield house


@pytest.fixture
def heard_of(behind: Recorder) -> Recorder:
    """The module's recorder without recorded requests."""
    behind.requests.clear()
    return behind


# A signer of its own.


@pytest.mark.parametrize("over_query", [False, True], ids=["path", "path-and-query"])
async def test_what_openssl_signs_goes_through_to_a_service_that_checks_it(
    *, over_query: bool, tmp_path: Path
) -> None:
    switches = Switches(signed_target="path-and-query" if over_query else "path")
    simulator = await start(service=Service(seed=1, clock=lambda: NOW, switches=switches))
    client = Client(sign=by_openssl, over_query=over_query)
    async with open_signed(tmp_path, simulator.url) as house:
        made = await asked(house, client.request("POST", RECIPIENTS, ADA, JSON))
        one = made.json["recipient"]["id"]
        listed = await asked(house, client.request("GET", f"{RECIPIENTS}?search=a%64a&page=1"))
        read = await asked(house, client.request("GET", f"{RECIPIENTS}/{one}"))
        gone = await asked(house, client.request("DELETE", f"{RECIPIENTS}/{one}"))
    statuses = [answer.status for answer in (made, listed, read, gone)]
    assert statuses == [200] * 4
    assert [each["id"] for each in listed.json["recipients"]] == [one]
    assert read.json["recipient"]["email"] == "ada@example.com"
    assert gone.json == {"ok": True}
    await simulator.stop()


async def test_both_readings_of_the_signed_text_are_taken_whatever_the_service_takes(
    standing: House, heard_of: Recorder
) -> None:
    target = f"{RECIPIENTS}?page=2&search=x"
    for client in (CLIENT, Client(over_query=True)):
        assert (await asked(standing, client.request("GET", target))).status == 200
    assert [one.target for one in heard_of.requests] == [target] * 2


async def test_a_query_that_is_signed_over_is_not_another_query(standing: House) -> None:
    signed = Client(over_query=True).request("GET", f"{RECIPIENTS}?page=2")
    assert refused(await asked(standing, signed.replace(b"page=2", b"page=3"))) == INVALID_KEY


# The stamp.


@pytest.mark.parametrize(
    ("off", "is_taken"),
    [(-31, False), (-30, True), (-29, True), (0, True), (29, True), (30, True), (31, False)],
)
async def test_a_stamp_may_be_thirty_seconds_off_either_way_and_no_more(
    standing: House, heard_of: Recorder, off: int, *, is_taken: bool
) -> None:
    answer = await asked(standing, CLIENT.request("POST", RECIPIENTS, ADA, JSON, stamp=NOW + off))
    if is_taken:
        assert answer.status == 200
    else:
        assert refused(answer) == INVALID_KEY
    assert len(heard_of.requests) == is_taken


@pytest.mark.parametrize("part", [0.001, 0.999])
async def test_a_stamp_is_held_against_whole_seconds(tmp_path: Path, part: float) -> None:
    async with recording() as recorder:
        async with open_signed(tmp_path, recorder.url, now=NOW + part) as house:
            for off, status in ((-31, 401), (-30, 200), (30, 200), (31, 401)):
                answer = await asked(house, CLIENT.request(stamp=NOW + off))
                assert (off, answer.status) == (off, status)


# Headers that are not the document's.

SIGNED = CLIENT.headers("GET", RECIPIENTS)
AUTHORIZATION, STAMP = SIGNED
MADE = AUTHORIZATION.rpartition(":")[2]
ACCESS_KEY = KEY["access_key"]

MALFORMED = {
    "no timestamp": [AUTHORIZATION],
    "an empty timestamp": [AUTHORIZATION, "X-SVC-Timestamp:"],
    "two timestamps": [*SIGNED, STAMP],
    "a timestamp with a point": [AUTHORIZATION, f"X-SVC-Timestamp: {NOW}.0"],
    "a timestamp with a sign": [AUTHORIZATION, f"X-SVC-Timestamp: +{NOW}"],
    "a timestamp in milliseconds": [AUTHORIZATION, f"X-SVC-Timestamp: {NOW}000"],
    "a timestamp in other digits": [AUTHORIZATION, "X-SVC-Timestamp: ١٧٦"],
    "a timestamp in words": [AUTHORIZATION, "X-SVC-Timestamp: Thu, 09 Oct 2025 08:53:20 GMT"],
    "a timestamp longer than any": [AUTHORIZATION, f"X-SVC-Timestamp: {'0' * 5000}{NOW}"],
    "a timestamp under another name": [AUTHORIZATION, f"X-PR-Timestamp: {NOW}"],
    "the scheme alone": ["Authorization: svcsign", STAMP],
    "no access key": [f"Authorization: svcsign :{MADE}", STAMP],
    "no signature": [f"Authorization: svcsign {ACCESS_KEY}:", STAMP],
    "no colon": [f"Authorization: svcsign {ACCESS_KEY}", STAMP],
    "a colon in the access key": [f"Authorization: svcsign {ACCESS_KEY}:x:{MADE}", STAMP],
    "a space in the access key": [f"Authorization: svcsign {ACCESS_KEY} x:{MADE}", STAMP],
    "a space before the colon": [f"Authorization: svcsign {ACCESS_KEY} :{MADE}", STAMP],
    "a space before the signature": [f"Authorization: svcsign {ACCESS_KEY}: {MADE}", STAMP],
    "an upper-case signature": [f"Authorization: svcsign {ACCESS_KEY}:{MADE.upper()}", STAMP],
    "a signature in base64": [f"Authorization: svcsign {ACCESS_KEY}:{'A' * 43}=", STAMP],
    "a signature that is too short": [f"Authorization: svcsign {ACCESS_KEY}:{MADE[:-1]}", STAMP],
    "a signature that is too long": [f"Authorization: svcsign {ACCESS_KEY}:{MADE}0", STAMP],
    "more behind the signature": [f"{AUTHORIZATION}, x=y", STAMP],
    "a signature that is not ASCII": [f"Authorization: svcsign {ACCESS_KEY}:{'é' * 64}", STAMP],
    "an access key that is not ASCII": [f"Authorization: svcsign schlüssel:{MADE}", STAMP],
    "an access key longer than any": [f"Authorization: svcsign {'K' * 513}:{MADE}", STAMP],
    "the header twice": [AUTHORIZATION, AUTHORIZATION, STAMP],
    "another scheme beside it": ["Authorization: Bearer x", AUTHORIZATION, STAMP],
    "another scheme behind it": [AUTHORIZATION, "Authorization: Bearer x", STAMP],
    "a tab behind the scheme": [AUTHORIZATION.replace("svcsign ", "svcsign\t"), STAMP],
}


@pytest.mark.parametrize("headers", MALFORMED.values(), ids=MALFORMED)
async def test_headers_that_are_not_the_document_s_are_an_invalid_key(
    standing: House, heard_of: Recorder, headers: list[str]
) -> None:
    lines = [f"GET {RECIPIENTS} HTTP/1.1", "Host: x", *headers, "", ""]
    assert refused(await asked(standing, "\r\n".join(lines).encode())) == INVALID_KEY
    assert heard_of.requests == []


@pytest.mark.parametrize("scheme", ["SVCSIGN", "SvcSign"])
async def test_the_scheme_is_taken_in_any_case_and_goes_on_as_it_came(
    standing: House, heard_of: Recorder, scheme: str
) -> None:
    assert (await asked(standing, Client(scheme=scheme).request())).status == 200
    assert heard_of.only.headers["authorization"] == f"{scheme} {ACCESS_KEY}:{MADE}"


async def test_scheme_and_timestamp_are_the_vocabulary_s(tmp_path: Path) -> None:
    words = {"current": {"scheme": "prsign", "timestamp_header": "X-PR-Timestamp"}}
    async with recording() as recorder:
        async with open_signed(tmp_path, recorder.url, vocabulary=words) as house:
            one = Client(scheme="prsign").request().replace(b"X-SVC", b"X-PR")
            assert (await asked(house, one)).status == 200
            assert recorder.only.headers["x-pr-timestamp"] == str(NOW)
            other = await asked(house, CLIENT.request())  # to this house, no credentials at all
            assert_legacy(other)
            assert (other.status, other.code) == (403, "invalid_api_key")


# The signature.

TAMPERED = {
    "another body": lambda sent: sent.replace(b"Ada", b"Eve"),
    "another space in the body": lambda sent: sent.replace(b", ", b" ,"),
    "another method": lambda sent: sent.replace(b"POST", b"PATCH"),
    "another path": lambda sent: sent.replace(b"/v1/recipients", b"/v1/recipientz"),
    "a slash more": lambda sent: sent.replace(b"/v1/recipients", b"/v1/recipients/"),
    "another stamp": lambda sent: sent.replace(str(NOW).encode(), str(NOW + 1).encode()),
    "another merchant's access key": lambda sent: sent.replace(ACCESS_KEY.encode(), b"BOLT"),
    "another signature": lambda sent: sent.replace(b":" + _made(sent), b":" + b"0" * 64),
}


def _made(sent: bytes) -> bytes:
    return sent.partition(b"\r\nX-SVC")[0][-64:]


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED)
async def test_what_was_changed_on_its_way_is_refused(
    standing: House, heard_of: Recorder, tamper: Any
) -> None:
    sent = CLIENT.request("POST", RECIPIENTS, ADA, JSON)
    assert (await asked(standing, sent)).status == 200
    assert tamper(sent) != sent
    assert refused(await asked(standing, tamper(sent))) == INVALID_KEY
    assert len(heard_of.requests) == 1


async def test_another_merchant_s_secret_signs_nothing(standing: House, heard_of: Recorder) -> None:
    for client in (
        Client(access_key="BOLT"),
        Client(secret_key="bolt's"),
        Client(secret_key="simulator-secret-key "),
    ):
        assert refused(await asked(standing, client.request())) == INVALID_KEY
    assert heard_of.requests == []
    assert (await asked(standing, Client("BOLT", "bolt's").request())).status == 200


async def test_refusals_do_not_tell_what_is_wrong_with_the_credentials(standing: House) -> None:
    answers = [
        await asked(standing, Client(access_key="UNKNOWN").request()),
        await asked(standing, Client(secret_key="wrong").request()),
        await asked(standing, CLIENT.request(stamp=NOW - 31)),
        await asked(standing, CLIENT.request(stamp="")),
    ]
    assert len({answer.body for answer in answers}) == 1


# Two faces on one port.


async def test_the_credentials_say_which_face_it_is(tmp_path: Path) -> None:
    simulator = await start(service=Service(seed=1, clock=lambda: NOW))
    async with open_signed(tmp_path, simulator.url) as house:
        made = await house.ask("POST", RECIPIENTS, json.loads(ADA))
        one = made.body["recipient"]["id"]
        legacy = await house.ask("GET", f"{RECIPIENTS}/{one}")
        current = await asked(house, CLIENT.request("GET", f"{RECIPIENTS}/{one}"))
    assert "payout" in legacy.body["recipient"]
    assert "payout" not in current.json["recipient"]
    assert "accounts" in current.json["recipient"]
    await simulator.stop()


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["X-API-Key: nobody"],
        ["Authorization: Bearer svcsign"],
        ["Authorization: svcsigned x"],
        ["X-Authorization: svcsign x"],
        ["X-SVC-Timestamp: 1"],
    ],
)
async def test_whatever_is_not_signed_is_for_the_legacy_face(
    standing: House, headers: list[str]
) -> None:
    lines = [f"GET {RECIPIENTS} HTTP/1.1", "Host: x", *headers, "", ""]
    answer = await asked(standing, "\r\n".join(lines).encode())
    assert_legacy(answer)
    assert (answer.status, answer.code) == (403, "invalid_api_key")


async def test_a_request_with_both_credentials_is_for_the_signed_face(
    standing: House, heard_of: Recorder
) -> None:
    api_key = f"X-API-Key: {KEY['api_key']}"
    assert (
        await asked(standing, CLIENT.request("GET", "/v1/subscriptions", b"", api_key))
    ).status == 200
    assert KEY["api_key"] not in str(heard_of.only.lines)
    bad = Client(secret_key="wrong").request("GET", RECIPIENTS, b"", api_key)
    assert refused(await asked(standing, bad)) == INVALID_KEY
    assert len(heard_of.requests) == 1


async def test_both_faces_are_served_on_one_connection(standing: House) -> None:
    legacy = f"GET /v1/nowhere HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY['api_key']}\r\n\r\n".encode()
    async with await wire(standing.running.port) as connection:
        for data, status in ((CLIENT.request(), 200), (legacy, 404), (CLIENT.request(), 200)):
            await connection.say(data)
            answer = await connection.answer()
            assert answer is not None
            assert answer.status == status


async def test_a_browser_that_is_going_to_sign_may_do_so(
    standing: House, heard_of: Recorder
) -> None:
    asks = (
        "OPTIONS /v1/subscriptions HTTP/1.1\r\nHost: x\r\nOrigin: https://shop.example\r\n"
        "Access-Control-Request-Method: POST\r\n"
        "Access-Control-Request-Headers: authorization, content-type, x-svc-timestamp\r\n\r\n"
    )
    answer = await asked(standing, asks.encode())
    assert answer.status == 200
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"].lower().split(", ")
    assert {"authorization", "x-svc-timestamp", "content-type"} <= set(allowed)
    assert heard_of.requests == []
    answer = await asked(standing, CLIENT.request("POST", "/v1/subscriptions", b"{}", JSON))
    assert answer.headers["access-control-allow-origin"] == "*"


# Every path, and no other.

THROUGH = [
    ("POST", "/v1/profile/submerchant"),
    ("POST", "/v1/onboarding/update"),
    ("GET", "/v1/balances/info"),
    ("POST", "/v1/profile/sandbox"),
    ("DELETE", "/v1/profile/sandbox"),
    ("POST", "/v1/direct-debit/bank-account/"),
    ("POST", "/v1/iframe/config"),
    ("POST", "/v1/subscriptions"),
    ("PATCH", "/v1/subscriptions/12"),
    ("GET", "/v1/recipients/R-1/offlinePayments"),
    ("PUT", "/v1/whatever/there/may/be"),
    ("GET", "/v1/"),
    ("GET", "/v1/a//b/?"),
    ("GET", "/v1/a%20b/%C3%A9/%zz/%25?x=%2F..%2F%00&y=../../z"),
    ("GET", "/v1/~a.b-c_d/...,;p=1/'(!*)@:&=+$"),
]


@pytest.mark.parametrize(("method", "target"), THROUGH)
async def test_every_path_below_v1_goes_through(
    standing: House, heard_of: Recorder, method: str, target: str
) -> None:
    body = b"" if method == "GET" else b'{"a":1}'
    assert (await asked(standing, CLIENT.request(method, target, body, JSON))).status == 200
    assert (heard_of.only.method, heard_of.only.target) == (method, target)
    assert heard_of.only.body == body


NOWHERE = [
    "/", "/v1", "/v2/recipients", "/V1/recipients", "//v1/recipients", "/v1x/recipients",
    "/profile", "http://127.0.0.1/v1/recipients", "http://other.example/v1/x",
    "//other.example/v1/x", "/v1/../v1/recipients", "/v1/..", "/v1/recipients/..", "/v1/./recipients",
    "/v1/recipients/../profile/submerchant", "/v1/recipients/..;x=1/profile", "/v1/a/..%20/b",
    "/v1/recipients/%2e%2e/profile", "/v1/recipients/.%2E/profile", "/v1/recipients%2Fx",
    "/v1/recipients%2f..%2fprofile", "/v1/recipients/%252e%252e/x", "/v1/recipients%252Fx",
    "/v1/recipients%25252Fx", "/v1/a%2eb", "/v1/a\\..\\b", "/v1/a%5cb", "/v1/a%00", "/v1/a%0a",
    "/v1/a%0D%0AX-Own:%20x", "/v1/a%7f", "/v1/a%C0%AE%C0%AE/b", "/v1/a%1Fb", "/v1/recipients#x",
    "/v1/a?b#c",
]  # fmt: skip


@pytest.mark.parametrize("target", NOWHERE)
async def test_a_path_that_may_be_read_as_another_is_not_found_and_not_sent(
    standing: House, heard_of: Recorder, target: str
) -> None:
    assert refused(await asked(standing, CLIENT.request("POST", target, b"{}", JSON))) == NOT_FOUND
    assert heard_of.requests == []


@pytest.mark.parametrize("target", ["v1/recipients", "*", "/v1/é", "/v1/a\0b", "/v1/a\x01b", ""])
async def test_a_target_that_is_not_http_is_refused_before_anybody_asks_which_face_it_is_for(
    standing: House, heard_of: Recorder, target: str
) -> None:
    answer = await asked(standing, CLIENT.request("POST", target, b"{}", JSON))
    assert_legacy(answer)
    assert answer.status == 406
    assert heard_of.requests == []


@pytest.mark.parametrize(
    ("method", "target"), [("TRACE", RECIPIENTS), ("CONNECT", "x.example:443")]
)
async def test_a_method_that_speaks_to_a_proxy_is_not_sent(
    standing: House, heard_of: Recorder, method: str, target: str
) -> None:
    assert refused(await asked(standing, CLIENT.request(method, target))) == NOT_FOUND
    assert heard_of.requests == []


# Addresses.


async def test_an_address_is_admitted_by_any_key_of_the_pair_that_is_in_use(tmp_path: Path) -> None:
    bound = {"merchant": "bound", "access_key": "BOUND", "secret_key": "bound's"}
    client = Client("BOUND", "bound's")
    async with recording() as recorder:
        lines = {**bound, "api_key": "first", "name": "first", "allowed_ips": ELSEWHERE}
        trusted = {"trusted_proxies": ["127.0.0.1"]}
        async with open_signed(tmp_path, recorder.url, lines, server=trusted) as house:
            there = client.request("GET", RECIPIENTS, b"", "X-Forwarded-For: 192.0.2.9")
            assert refused(await asked(house, client.request())) == NOT_AUTHORIZED
            assert (await asked(house, there)).status == 200
            here = {**bound, "api_key": "second", "name": "second", "allowed_ips": ["127.0.0.0/8"]}
            await house.import_key(**here)
            await until_status(house, client.request(), 200)
            await revoke_key(house, "second")
            await until_status(house, client.request(), 403)
            assert (await asked(house, there)).status == 200
            await revoke_key(house, "first")
            await until_status(house, there, 401)
    assert all("x-forwarded-for" not in one.headers for one in recorder.requests)


async def revoke_key(house: House, name: str) -> None:
    async with open_store(house.settings.state) as store:
        await revoke(
            store, next(one.id for one in await load_listed_keys(store) if one.name == name)
        )


async def until_status(house: House, data: bytes, status: int) -> None:
    """Waits for a status: changes by another process take effect in about two seconds."""
    for _ in range(100):
        if (await asked(house, data)).status == status:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it was not seen")


async def test_address_comes_before_stamp_and_stamp_before_signature_and_limit_last(
    tmp_path: Path,
) -> None:
    bound = {"merchant": "b", "api_key": "b", "access_key": "B", "allowed_ips": ELSEWHERE}
    async with recording() as recorder:
        limits = {"requests_per_hour": 1, "body_bytes": 1024}
        async with open_signed(tmp_path, recorder.url, bound, limits=limits) as house:
            assert (await asked(house, CLIENT.request())).status == 200
            late, long = NOW - 31, b"x" * 2000
            wrong = Client(secret_key="wrong")
            steps = [
                (CLIENT.request("POST", "/v2/x", long, stamp=late), NOT_FOUND),
                (Client("NOBODY").request("POST", RECIPIENTS, long, stamp=late), INVALID_KEY),
                (
                    Client("B", "wrong").request("POST", RECIPIENTS, long, stamp=late),
                    NOT_AUTHORIZED,
                ),
                (wrong.request("POST", RECIPIENTS, long, stamp=late), INVALID_KEY),
                (wrong.request("POST", RECIPIENTS, long), (413, "invalid_field")),
                (wrong.request("POST", RECIPIENTS, b"x"), INVALID_KEY),
                (CLIENT.request("POST", RECIPIENTS, b"x"), OVER_LIMIT),
            ]
            for data, expected in steps:
                assert refused(await asked(house, data)) == expected
    assert len(recorder.requests) == 1


# Revoked pairs, rotated secrets, unknown keys.


async def test_a_rotated_secret_is_the_only_one_within_seconds(tmp_path: Path) -> None:
    from gateway.auth.key_rows import replace_credentials
    from gateway.auth.signing import Credentials
    from gateway.storage import Tenant

    async with recording() as recorder:
        async with open_signed(tmp_path, recorder.url) as house:
            assert (await asked(house, CLIENT.request())).status == 200
            assert refused(await asked(house, Client("NEW", "newer").request())) == INVALID_KEY
            async with open_store(house.settings.state) as store:
                await replace_credentials(
                    store, Tenant("demo", "sandbox"), Credentials("NEW", "newer")
                )
            await until_status(house, CLIENT.request(), 401)
            assert (await asked(house, Client("NEW", "newer").request())).status == 200


STRANGER = Client("STRANGER", "nobody here knows it")


async def test_an_unknown_access_key_is_refused_unless_told_otherwise(
    standing: House, heard_of: Recorder
) -> None:
    assert refused(await asked(standing, STRANGER.request())) == INVALID_KEY
    assert heard_of.requests == []


async def test_unknown_access_keys_are_forwarded_to_the_environment_that_is_named(
    tmp_path: Path,
) -> None:
    async with recording() as live, recording() as sandbox:
        environments = {"live": {"base_url": live.url}}
        forward = {"unknown_keys": "forward", "environment": "live"}
        async with open_signed(
            tmp_path, sandbox.url, environments=environments, signed=forward
        ) as house:
            sent = STRANGER.request("POST", "/v1/onboarding/update?a=1", b"{}", JSON)
            assert (await asked(house, sent)).status == 200
            assert (await asked(house, CLIENT.request())).status == 200
            # A key that is held here is checked here, and goes to its own environment alone.
            wrong = Client(secret_key="wrong")
            assert refused(await asked(house, wrong.request())) == INVALID_KEY
            assert refused(await asked(house, STRANGER.request(stamp=NOW - 31))) == INVALID_KEY
            await revoke_key(house, "demo-sandbox")
            await until_status(house, CLIENT.request(), 401)
    assert live.only.target == "/v1/onboarding/update?a=1"
    assert live.only.headers["authorization"] in sent.decode()
    assert {one.headers["authorization"] for one in sandbox.requests} == {
        f"svcsign {ACCESS_KEY}:{MADE}"
    }


async def test_unknown_access_keys_are_limited_by_key_and_by_address(tmp_path: Path) -> None:
    def sent(key: str, address: str) -> bytes:
        return Client(key).request("GET", RECIPIENTS, b"", f"X-Forwarded-For: {address}")

    async with recording() as recorder:
        async with open_signed(
            tmp_path,
            recorder.url,
            signed={"unknown_keys": "forward", "environment": "sandbox"},
            limits={"requests_per_hour": 2},
            server={"trusted_proxies": ["127.0.0.1"]},
        ) as house:
            for key, address in (("A", "192.0.2.1"), ("B", "192.0.2.1"), ("A", "192.0.2.2")):
                assert (await asked(house, sent(key, address))).status == 200
            assert refused(await asked(house, sent("C", "192.0.2.1"))) == OVER_LIMIT
            assert refused(await asked(house, sent("A", "192.0.2.2"))) == OVER_LIMIT
            assert (await asked(house, sent("C", "192.0.2.3"))).status == 200
            assert (await asked(house, CLIENT.request())).status == 200
    assert len(recorder.requests) == 5


# Both environments.


async def test_an_access_key_that_is_in_both_environments_is_told_by_its_signature(
    tmp_path: Path,
) -> None:
    async with recording() as live, recording() as sandbox:
        line = {"environment": "live", "api_key": "live", "secret_key": "another secret"}
        async with open_signed(
            tmp_path, sandbox.url, line, environments={"live": {"base_url": live.url}}
        ) as house:
            assert (await asked(house, CLIENT.request("GET", "/v1/a"))).status == 200
            there = Client(secret_key="another secret")
            assert (await asked(house, there.request("GET", "/v1/b"))).status == 200
            assert refused(await asked(house, Client(secret_key="x").request())) == INVALID_KEY
    assert (sandbox.only.target, live.only.target) == ("/v1/a", "/v1/b")


async def test_a_pair_that_is_the_same_in_both_environments_is_refused(tmp_path: Path) -> None:
    async with recording() as live, recording() as sandbox:
        line = {"environment": "live", "api_key": "live"}
        async with open_signed(
            tmp_path, sandbox.url, line, environments={"live": {"base_url": live.url}}
        ) as house:
            assert refused(await asked(house, CLIENT.request())) == INVALID_KEY
    assert live.requests == sandbox.requests == []


async def test_a_pair_of_an_environment_that_is_not_configured_goes_nowhere(tmp_path: Path) -> None:
    async with recording() as sandbox:
        line = {"environment": "live", "api_key": "live", "access_key": "LIVE"}
        async with open_signed(tmp_path, sandbox.url, line) as house:
            assert refused(await asked(house, Client("LIVE").request())) == INTERNAL
    assert sandbox.requests == []


# The limit.


async def test_the_limit_is_the_merchant_s_and_counts_nothing_that_is_not_proven(
    tmp_path: Path,
) -> None:
    bolt = {"merchant": "bolt", "api_key": "bolt", "access_key": "BOLT", "secret_key": "bolt's"}
    second = {"api_key": "second", "requests_per_hour": 1}
    async with recording() as recorder:
        limits = {"requests_per_hour": 3}
        async with open_signed(tmp_path, recorder.url, bolt, second, limits=limits) as house:
            for _ in range(5):
                assert refused(await asked(house, Client(secret_key="x").request())) == INVALID_KEY
                stale = CLIENT.request(stamp=NOW - 31)
                assert refused(await asked(house, stale)) == INVALID_KEY
            for left in (2, 1, 0):
                answer = await asked(house, CLIENT.request())
                assert answer.status == 200
                assert answer.headers["ratelimit-limit"] == "3"
                assert answer.headers["ratelimit-remaining"] == str(left)
                assert 0 < int(answer.headers["ratelimit-reset"]) <= 3601
            over = await asked(house, CLIENT.request("POST", RECIPIENTS, ADA, JSON))
            assert refused(over) == OVER_LIMIT
            assert 0 < int(over.headers["retry-after"]) <= 3601
            assert over.headers["ratelimit-remaining"] == "0"
            # Neither another merchant nor the legacy face is counted with it.
            assert (await asked(house, Client("BOLT", "bolt's").request())).status == 200
            assert (await house.ask("GET", "/v1/geography/countries/DE")).status == 200
            assert (await house.ask("GET", RECIPIENTS)).status == 200
    # The legacy face's own calls have a query; over the path alone, their signature may be the same.
    passed_on = [one for one in recorder.requests if one.target == RECIPIENTS]
    assert len([one for one in passed_on if one.headers["authorization"].endswith(MADE)]) == 3


async def test_the_limit_is_the_highest_of_the_merchant_s_own_keys(tmp_path: Path) -> None:
    low = {"merchant": "bolt", "api_key": "b", "access_key": "BOLT", "requests_per_hour": 1}
    higher = {**low, "api_key": "c", "requests_per_hour": 2}
    async with recording() as recorder, open_signed(tmp_path, recorder.url, low, higher) as house:
        bolt = Client("BOLT")
        statuses = [(await asked(house, bolt.request())).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert (await asked(house, CLIENT.request())).headers["ratelimit-limit"] == "10000"


# Where it is not there.


async def test_a_service_that_cannot_be_reached_is_an_internal_error(tmp_path: Path) -> None:
    async with open_signed(tmp_path, "http://127.0.0.1:1") as house:
        for method in ("GET", "POST"):
            answer = await asked(house, CLIENT.request(method, RECIPIENTS))
            assert refused(answer) == INTERNAL
            assert "nothing was changed" in answer.json["errors"][0]["message"]


async def test_a_state_that_cannot_be_read_lets_nobody_unknown_in_and_sends_nothing(
    tmp_path: Path,
) -> None:
    async with recording() as recorder:
        async with open_signed(tmp_path, recorder.url) as house:
            (tmp_path / "gateway.db").write_bytes(b"no database" * 1000)
            assert refused(await asked(house, CLIENT.request())) == INTERNAL
            assert recorder.requests == []


async def test_a_known_signer_goes_on_working_while_the_state_cannot_be_read(
    tmp_path: Path,
) -> None:
    async with recording() as recorder:
        async with open_signed(tmp_path, recorder.url) as house:
            assert (await asked(house, CLIENT.request())).status == 200
            (tmp_path / "gateway.db").write_bytes(b"no database" * 1000)
            assert (await asked(house, CLIENT.request())).status == 200
            # But nobody knows whether this batch was abandoned.
            start_it = CLIENT.request("POST", "/v1/batches/B-1/start-processing")
            assert refused(await asked(house, start_it)) == INTERNAL
    assert len(recorder.requests) == 2
