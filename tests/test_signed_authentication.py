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
from gateway.storage import open_store
from tests.running_gateway import KEY, GatewayUnderTest
from tests.signed_requests import (
    CLIENT,
    INTERNAL,
    INVALID_KEY,
    NOT_AUTHORIZED,
    NOT_FOUND,
    NOW,
    OVER_LIMIT,
    RawService,
    SigningClient,
    extract_error,
    open_raw_service,
    open_signed_gateway,
    send_raw,
    sign_by_openssl,
)
from tests.simulator import Service, ServiceOptions, start_simulator
from tests.sockets import assert_legacy, open_connection

pytestmark = pytest.mark.asyncio(loop_scope="module")

RECIPIENTS = "/v1/recipients"
RECIPIENT_BODY = json.dumps(
    {"type": "individual", "firstName": "Ada", "lastName": "Lovelace", "email": "ada@example.com"}
).encode()
JSON = "Content-Type: application/json"
OTHER_NETWORK = ["192.0.2.0/24"]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def module_recorder() -> AsyncIterator[RawService]:
    async with open_raw_service() as recorder:
        yield recorder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def module_gateway(
    module_recorder: RawService, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayUnderTest]:
    """One gateway for requests that do not change its state."""
    lines = {"merchant": "bolt", "api_key": "bolt", "access_key": "BOLT", "secret_key": "bolt's"}
    folder = tmp_path_factory.mktemp("standing")
    async with open_signed_gateway(folder, module_recorder.url, lines) as gateway:
        yield gateway


@pytest.fixture
def recorder(module_recorder: RawService) -> RawService:
    """The module's recorder without recorded requests."""
    module_recorder.requests.clear()
    return module_recorder


# A signer of its own.


@pytest.mark.parametrize("over_query", [False, True], ids=["path", "path-and-query"])
async def test_openssl_signatures_are_accepted(*, over_query: bool, tmp_path: Path) -> None:
    service_options = ServiceOptions(signed_target="path-and-query" if over_query else "path")
    simulator = await start_simulator(
        service=Service(seed=1, clock=lambda: NOW, options=service_options)
    )
    client = SigningClient(sign=sign_by_openssl, over_query=over_query)
    async with open_signed_gateway(tmp_path, simulator.url) as gateway:
        create_response = await send_raw(
            gateway, client.build_request("POST", RECIPIENTS, RECIPIENT_BODY, JSON)
        )
        recipient_id = create_response.parse_json["recipient"]["id"]
        list_response = await send_raw(
            gateway, client.build_request("GET", f"{RECIPIENTS}?search=a%64a&page=1")
        )
        read = await send_raw(gateway, client.build_request("GET", f"{RECIPIENTS}/{recipient_id}"))
        deleted = await send_raw(
            gateway, client.build_request("DELETE", f"{RECIPIENTS}/{recipient_id}")
        )
    statuses = [response.status for response in (create_response, list_response, read, deleted)]
    assert statuses == [200] * 4
    assert [recipient["id"] for recipient in list_response.parse_json["recipients"]] == [
        recipient_id
    ]
    assert read.parse_json["recipient"]["email"] == "ada@example.com"
    assert deleted.parse_json == {"ok": True}
    await simulator.stop()


async def test_signatures_with_and_without_query_are_accepted(
    module_gateway: GatewayUnderTest, recorder: RawService
) -> None:
    target = f"{RECIPIENTS}?page=2&search=x"
    for client in (CLIENT, SigningClient(over_query=True)):
        assert (await send_raw(module_gateway, client.build_request("GET", target))).status == 200
    assert [request.target for request in recorder.requests] == [target] * 2


async def test_changed_signed_query_is_refused(module_gateway: GatewayUnderTest) -> None:
    signed_request = SigningClient(over_query=True).build_request("GET", f"{RECIPIENTS}?page=2")
    assert (
        extract_error(await send_raw(module_gateway, signed_request.replace(b"page=2", b"page=3")))
        == INVALID_KEY
    )


# The stamp.


@pytest.mark.parametrize(
    ("offset_seconds", "is_taken"),
    [(-31, False), (-30, True), (-29, True), (0, True), (29, True), (30, True), (31, False)],
)
async def test_timestamp_may_be_30_seconds_off(
    module_gateway: GatewayUnderTest, recorder: RawService, offset_seconds: int, *, is_taken: bool
) -> None:
    response = await send_raw(
        module_gateway,
        CLIENT.build_request("POST", RECIPIENTS, RECIPIENT_BODY, JSON, stamp=NOW + offset_seconds),
    )
    if is_taken:
        assert response.status == 200
    else:
        assert extract_error(response) == INVALID_KEY
    assert len(recorder.requests) == is_taken


@pytest.mark.parametrize("fraction", [0.001, 0.999])
async def test_timestamp_is_compared_in_whole_seconds(tmp_path: Path, fraction: float) -> None:
    async with open_raw_service() as recorder:
        async with open_signed_gateway(tmp_path, recorder.url, now=NOW + fraction) as gateway:
            for offset_seconds, status in ((-31, 401), (-30, 200), (30, 200), (31, 401)):
                response = await send_raw(gateway, CLIENT.build_request(stamp=NOW + offset_seconds))
                assert (offset_seconds, response.status) == (offset_seconds, status)


# Headers that are not the document's.

SIGNED_HEADERS = CLIENT.build_headers("GET", RECIPIENTS)
AUTHORIZATION, STAMP = SIGNED_HEADERS
SIGNATURE = AUTHORIZATION.rpartition(":")[2]
ACCESS_KEY = KEY["access_key"]

MALFORMED_CREDENTIALS = {
    "no timestamp": [AUTHORIZATION],
    "an empty timestamp": [AUTHORIZATION, "X-SVC-Timestamp:"],
    "two timestamps": [*SIGNED_HEADERS, STAMP],
    "a timestamp with a point": [AUTHORIZATION, f"X-SVC-Timestamp: {NOW}.0"],
    "a timestamp with a sign": [AUTHORIZATION, f"X-SVC-Timestamp: +{NOW}"],
    "a timestamp in milliseconds": [AUTHORIZATION, f"X-SVC-Timestamp: {NOW}000"],
    "a timestamp in other digits": [AUTHORIZATION, "X-SVC-Timestamp: ١٧٦"],
    "a timestamp in words": [AUTHORIZATION, "X-SVC-Timestamp: Thu, 09 Oct 2025 08:53:20 GMT"],
    "a timestamp longer than any": [AUTHORIZATION, f"X-SVC-Timestamp: {'0' * 5000}{NOW}"],
    "a timestamp under another name": [AUTHORIZATION, f"X-PR-Timestamp: {NOW}"],
    "the scheme alone": ["Authorization: svcsign", STAMP],
    "no access key": [f"Authorization: svcsign :{SIGNATURE}", STAMP],
    "no signature": [f"Authorization: svcsign {ACCESS_KEY}:", STAMP],
    "no colon": [f"Authorization: svcsign {ACCESS_KEY}", STAMP],
    "a colon in the access key": [f"Authorization: svcsign {ACCESS_KEY}:x:{SIGNATURE}", STAMP],
    "a space in the access key": [f"Authorization: svcsign {ACCESS_KEY} x:{SIGNATURE}", STAMP],
    "a space before the colon": [f"Authorization: svcsign {ACCESS_KEY} :{SIGNATURE}", STAMP],
    "a space before the signature": [f"Authorization: svcsign {ACCESS_KEY}: {SIGNATURE}", STAMP],
    "an upper-case signature": [f"Authorization: svcsign {ACCESS_KEY}:{SIGNATURE.upper()}", STAMP],
    "a signature in base64": [f"Authorization: svcsign {ACCESS_KEY}:{'A' * 43}=", STAMP],
    "a signature that is too short": [
        f"Authorization: svcsign {ACCESS_KEY}:{SIGNATURE[:-1]}",
        STAMP,
    ],
    "a signature that is too long": [f"Authorization: svcsign {ACCESS_KEY}:{SIGNATURE}0", STAMP],
    "more behind the signature": [f"{AUTHORIZATION}, x=y", STAMP],
    "a signature that is not ASCII": [f"Authorization: svcsign {ACCESS_KEY}:{'é' * 64}", STAMP],
    "an access key that is not ASCII": [f"Authorization: svcsign schlüssel:{SIGNATURE}", STAMP],
    "an access key longer than any": [f"Authorization: svcsign {'K' * 513}:{SIGNATURE}", STAMP],
    "the header twice": [AUTHORIZATION, AUTHORIZATION, STAMP],
    "another scheme beside it": ["Authorization: Bearer x", AUTHORIZATION, STAMP],
    "another scheme behind it": [AUTHORIZATION, "Authorization: Bearer x", STAMP],
    "a tab behind the scheme": [AUTHORIZATION.replace("svcsign ", "svcsign\t"), STAMP],
}


@pytest.mark.parametrize("headers", MALFORMED_CREDENTIALS.values(), ids=MALFORMED_CREDENTIALS)
async def test_malformed_credentials_are_an_invalid_key(
    module_gateway: GatewayUnderTest, recorder: RawService, headers: list[str]
) -> None:
    lines = [f"GET {RECIPIENTS} HTTP/1.1", "Host: x", *headers, "", ""]
    assert extract_error(await send_raw(module_gateway, "\r\n".join(lines).encode())) == INVALID_KEY
    assert recorder.requests == []


@pytest.mark.parametrize("scheme", ["SVCSIGN", "SvcSign"])
async def test_scheme_is_case_insensitive_and_passed_on_unchanged(
    module_gateway: GatewayUnderTest, recorder: RawService, scheme: str
) -> None:
    assert (
        await send_raw(module_gateway, SigningClient(scheme=scheme).build_request())
    ).status == 200
    assert recorder.only_request.headers["authorization"] == f"{scheme} {ACCESS_KEY}:{SIGNATURE}"


async def test_scheme_and_timestamp_header_follow_the_vocabulary(tmp_path: Path) -> None:
    vocabulary = {"current": {"scheme": "prsign", "timestamp_header": "X-PR-Timestamp"}}
    async with open_raw_service() as recorder:
        async with open_signed_gateway(tmp_path, recorder.url, vocabulary=vocabulary) as gateway:
            renamed_request = (
                SigningClient(scheme="prsign").build_request().replace(b"X-SVC", b"X-PR")
            )
            assert (await send_raw(gateway, renamed_request)).status == 200
            assert recorder.only_request.headers["x-pr-timestamp"] == str(NOW)
            response = await send_raw(
                gateway, CLIENT.build_request()
            )  # this gateway does not recognise them as credentials
            assert_legacy(response)
            assert (response.status, response.code) == (403, "invalid_api_key")


# The signature.

TAMPERINGS = {
    "another body": lambda request_bytes: request_bytes.replace(b"Ada", b"Eve"),
    "another space in the body": lambda request_bytes: request_bytes.replace(b", ", b" ,"),
    "another method": lambda request_bytes: request_bytes.replace(b"POST", b"PATCH"),
    "another path": lambda request_bytes: request_bytes.replace(
        b"/v1/recipients", b"/v1/recipientz"
    ),
    "a slash more": lambda request_bytes: request_bytes.replace(
        b"/v1/recipients", b"/v1/recipients/"
    ),
    "another stamp": lambda request_bytes: request_bytes.replace(
        str(NOW).encode(), str(NOW + 1).encode()
    ),
    "another merchant's access key": lambda request_bytes: request_bytes.replace(
        ACCESS_KEY.encode(), b"BOLT"
    ),
    "another signature": lambda request_bytes: request_bytes.replace(
        b":" + _extract_signature(request_bytes), b":" + b"0" * 64
    ),
}


def _extract_signature(request_bytes: bytes) -> bytes:
    return request_bytes.partition(b"\r\nX-SVC")[0][-64:]


@pytest.mark.parametrize("tamper", TAMPERINGS.values(), ids=TAMPERINGS)
async def test_tampered_request_is_refused(
    module_gateway: GatewayUnderTest, recorder: RawService, tamper: Any
) -> None:
    request_bytes = CLIENT.build_request("POST", RECIPIENTS, RECIPIENT_BODY, JSON)
    assert (await send_raw(module_gateway, request_bytes)).status == 200
    assert tamper(request_bytes) != request_bytes
    assert extract_error(await send_raw(module_gateway, tamper(request_bytes))) == INVALID_KEY
    assert len(recorder.requests) == 1


async def test_secret_of_another_merchant_is_refused(
    module_gateway: GatewayUnderTest, recorder: RawService
) -> None:
    for client in (
        SigningClient(access_key="BOLT"),
        SigningClient(secret_key="bolt's"),
        SigningClient(secret_key="simulator-secret-key "),
    ):
        assert extract_error(await send_raw(module_gateway, client.build_request())) == INVALID_KEY
    assert recorder.requests == []
    assert (
        await send_raw(module_gateway, SigningClient("BOLT", "bolt's").build_request())
    ).status == 200


async def test_credential_refusals_are_identical(module_gateway: GatewayUnderTest) -> None:
    responses = [
        await send_raw(module_gateway, SigningClient(access_key="UNKNOWN").build_request()),
        await send_raw(module_gateway, SigningClient(secret_key="wrong").build_request()),
        await send_raw(module_gateway, CLIENT.build_request(stamp=NOW - 31)),
        await send_raw(module_gateway, CLIENT.build_request(stamp="")),
    ]
    assert len({response.body for response in responses}) == 1


# Two faces on one port.


async def test_credentials_select_the_interface(tmp_path: Path) -> None:
    simulator = await start_simulator(service=Service(seed=1, clock=lambda: NOW))
    async with open_signed_gateway(tmp_path, simulator.url) as gateway:
        create_response = await gateway.request("POST", RECIPIENTS, json.loads(RECIPIENT_BODY))
        recipient_id = create_response.body["recipient"]["id"]
        legacy = await gateway.request("GET", f"{RECIPIENTS}/{recipient_id}")
        current = await send_raw(
            gateway, CLIENT.build_request("GET", f"{RECIPIENTS}/{recipient_id}")
        )
    assert "payout" in legacy.body["recipient"]
    assert "payout" not in current.parse_json["recipient"]
    assert "accounts" in current.parse_json["recipient"]
    await simulator.stop()


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["X-API-Key: nobody"],
        ["Authorization: Bearer svcsign"],
        ["Authorization: svcsigned x"],
        ["Authorization: svcsign,x"],
        ["Authorization: svcsign:x"],
        ["X-Authorization: svcsign x"],
        ["X-SVC-Timestamp: 1"],
    ],
)
async def test_unsigned_request_is_for_the_legacy_interface(
    module_gateway: GatewayUnderTest, headers: list[str]
) -> None:
    lines = [f"GET {RECIPIENTS} HTTP/1.1", "Host: x", *headers, "", ""]
    response = await send_raw(module_gateway, "\r\n".join(lines).encode())
    assert_legacy(response)
    assert (response.status, response.code) == (403, "invalid_api_key")


async def test_request_with_both_credentials_is_for_the_signed_interface(
    module_gateway: GatewayUnderTest, recorder: RawService
) -> None:
    api_key = f"X-API-Key: {KEY['api_key']}"
    assert (
        await send_raw(
            module_gateway, CLIENT.build_request("GET", "/v1/subscriptions", b"", api_key)
        )
    ).status == 200
    assert KEY["api_key"] not in str(recorder.only_request.lines)
    badly_signed_request = SigningClient(secret_key="wrong").build_request(
        "GET", RECIPIENTS, b"", api_key
    )
    assert extract_error(await send_raw(module_gateway, badly_signed_request)) == INVALID_KEY
    assert len(recorder.requests) == 1


async def test_both_interfaces_are_served_on_one_connection(
    module_gateway: GatewayUnderTest,
) -> None:
    legacy = f"GET /v1/nowhere HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY['api_key']}\r\n\r\n".encode()
    async with await open_connection(module_gateway.running.port) as connection:
        for data, status in (
            (CLIENT.build_request(), 200),
            (legacy, 404),
            (CLIENT.build_request(), 200),
        ):
            await connection.send(data)
            response = await connection.read_response()
            assert response is not None
            assert response.status == status


async def test_preflight_allows_signed_headers(
    module_gateway: GatewayUnderTest, recorder: RawService
) -> None:
    preflight = (
        "OPTIONS /v1/subscriptions HTTP/1.1\r\nHost: x\r\nOrigin: https://shop.example\r\n"
        "Access-Control-Request-Method: POST\r\n"
        "Access-Control-Request-Headers: authorization, content-type, x-svc-timestamp\r\n\r\n"
    )
    response = await send_raw(module_gateway, preflight.encode())
    assert response.status == 200
    assert "POST" in response.headers["access-control-allow-methods"]
    allowed = response.headers["access-control-allow-headers"].lower().split(", ")
    assert {"authorization", "x-svc-timestamp", "content-type"} <= set(allowed)
    assert recorder.requests == []
    response = await send_raw(
        module_gateway, CLIENT.build_request("POST", "/v1/subscriptions", b"{}", JSON)
    )
    assert response.headers["access-control-allow-origin"] == "*"


# Every path, and no other.

FORWARDED_TARGETS = [
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
    ("GET", '/v1/"<>[]^`{|}?b=%2F..%2F\\%00&c=/../'),
]


@pytest.mark.parametrize(("method", "target"), FORWARDED_TARGETS)
async def test_every_path_below_v1_is_passed_on(
    module_gateway: GatewayUnderTest, recorder: RawService, method: str, target: str
) -> None:
    body = b"" if method == "GET" else b'{"a":1}'
    assert (
        await send_raw(module_gateway, CLIENT.build_request(method, target, body, JSON))
    ).status == 200
    assert (recorder.only_request.method, recorder.only_request.target) == (method, target)
    assert recorder.only_request.body == body


UNKNOWN_TARGETS = [
    "/", "/v1", "/v1?x", "/v2/recipients", "/V1/recipients", "//v1/recipients", "/v1x/recipients",
    "/profile", "http://127.0.0.1/v1/recipients", "http://other.example/v1/x",
    "//other.example/v1/x", "/v1/../v1/recipients", "/v1/..", "/v1/recipients/..", "/v1/./recipients",
    "/v1/recipients/../profile/submerchant", "/v1/recipients/..;x=1/profile", "/v1/a/..%20/b",
    "/v1/recipients/%2e%2e/profile", "/v1/recipients/.%2E/profile", "/v1/recipients%2Fx",
    "/v1/recipients%2f..%2fprofile", "/v1/recipients/%252e%252e/x", "/v1/recipients%252Fx",
    "/v1/recipients%25252Fx", "/v1/a%2eb", "/v1/a\\..\\b", "/v1/a%5cb", "/v1/a%00", "/v1/a%0a",
    "/v1/a%0D%0AX-Own:%20x", "/v1/a%7f", "/v1/a%C0%AE%C0%AE/b", "/v1/a%1Fb", "/v1/recipients#x",
    "/v1/a?b#c",
]  # fmt: skip


@pytest.mark.parametrize("target", UNKNOWN_TARGETS)
async def test_ambiguous_path_is_not_found(
    module_gateway: GatewayUnderTest, recorder: RawService, target: str
) -> None:
    assert (
        extract_error(
            await send_raw(module_gateway, CLIENT.build_request("POST", target, b"{}", JSON))
        )
        == NOT_FOUND
    )
    assert recorder.requests == []


@pytest.mark.parametrize("target", ["v1/recipients", "*", "/v1/é", "/v1/a\0b", "/v1/a\x01b", ""])
async def test_malformed_target_is_refused_in_legacy_form(
    module_gateway: GatewayUnderTest, recorder: RawService, target: str
) -> None:
    response = await send_raw(module_gateway, CLIENT.build_request("POST", target, b"{}", JSON))
    assert_legacy(response)
    assert response.status == 406
    assert recorder.requests == []


@pytest.mark.parametrize(
    ("method", "target"), [("TRACE", RECIPIENTS), ("CONNECT", "x.example:443")]
)
async def test_proxy_method_is_not_passed_on(
    module_gateway: GatewayUnderTest, recorder: RawService, method: str, target: str
) -> None:
    assert (
        extract_error(await send_raw(module_gateway, CLIENT.build_request(method, target)))
        == NOT_FOUND
    )
    assert recorder.requests == []


# Addresses.


async def test_address_is_allowed_by_any_active_key_of_the_credentials(tmp_path: Path) -> None:
    bound_key = {"merchant": "bound", "access_key": "BOUND", "secret_key": "bound's"}
    client = SigningClient("BOUND", "bound's")
    async with open_raw_service() as recorder:
        lines = {**bound_key, "api_key": "first", "name": "first", "allowed_ips": OTHER_NETWORK}
        server_section = {"trusted_proxies": ["127.0.0.1"]}
        async with open_signed_gateway(
            tmp_path, recorder.url, lines, server=server_section
        ) as gateway:
            request_from_allowed = client.build_request(
                "GET", RECIPIENTS, b"", "X-Forwarded-For: 192.0.2.9"
            )
            assert extract_error(await send_raw(gateway, client.build_request())) == NOT_AUTHORIZED
            assert (await send_raw(gateway, request_from_allowed)).status == 200
            second_key = {
                **bound_key,
                "api_key": "second",
                "name": "second",
                "allowed_ips": ["127.0.0.0/8"],
            }
            await gateway.import_key(**second_key)
            await wait_for_status(gateway, client.build_request(), 200)
            await revoke_by_name(gateway, "second")
            await wait_for_status(gateway, client.build_request(), 403)
            assert (await send_raw(gateway, request_from_allowed)).status == 200
            await revoke_by_name(gateway, "first")
            await wait_for_status(gateway, request_from_allowed, 401)
    assert all("x-forwarded-for" not in request.headers for request in recorder.requests)


async def revoke_by_name(gateway: GatewayUnderTest, name: str) -> None:
    async with open_store(gateway.settings.state) as store:
        await revoke(
            store, next(key.id for key in await load_listed_keys(store) if key.name == name)
        )


async def wait_for_status(gateway: GatewayUnderTest, data: bytes, status: int) -> None:
    """Waits for a status: changes by another process take effect in about two seconds."""
    for _ in range(100):
        if (await send_raw(gateway, data)).status == status:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it was not seen")


async def test_signed_checks_have_a_fixed_order(
    tmp_path: Path,
) -> None:
    bound_key = {"merchant": "b", "api_key": "b", "access_key": "B", "allowed_ips": OTHER_NETWORK}
    async with open_raw_service() as recorder:
        limits = {"requests_per_hour": 1, "body_bytes": 1024}
        async with open_signed_gateway(tmp_path, recorder.url, bound_key, limits=limits) as gateway:
            assert (await send_raw(gateway, CLIENT.build_request())).status == 200
            expired_stamp, oversized_body = NOW - 31, b"x" * 2000
            wrong_client = SigningClient(secret_key="wrong")
            steps = [
                (
                    CLIENT.build_request("POST", "/v2/x", oversized_body, stamp=expired_stamp),
                    NOT_FOUND,
                ),
                (
                    SigningClient("NOBODY").build_request(
                        "POST", RECIPIENTS, oversized_body, stamp=expired_stamp
                    ),
                    INVALID_KEY,
                ),
                (
                    SigningClient("B", "wrong").build_request(
                        "POST", RECIPIENTS, oversized_body, stamp=expired_stamp
                    ),
                    NOT_AUTHORIZED,
                ),
                (
                    wrong_client.build_request(
                        "POST", RECIPIENTS, oversized_body, stamp=expired_stamp
                    ),
                    INVALID_KEY,
                ),
                (
                    wrong_client.build_request("POST", RECIPIENTS, oversized_body),
                    (413, "invalid_field"),
                ),
                (wrong_client.build_request("POST", RECIPIENTS, b"x"), INVALID_KEY),
                (CLIENT.build_request("POST", RECIPIENTS, b"x"), OVER_LIMIT),
            ]
            for data, expected_refusal in steps:
                assert extract_error(await send_raw(gateway, data)) == expected_refusal
    assert len(recorder.requests) == 1


# Revoked pairs, rotated secrets, unknown keys.


async def test_rotated_secret_replaces_the_old_one_within_seconds(tmp_path: Path) -> None:
    from gateway.auth.key_rows import replace_credentials
    from gateway.auth.signing import Credentials
    from gateway.storage import Tenant

    async with open_raw_service() as recorder:
        async with open_signed_gateway(tmp_path, recorder.url) as gateway:
            assert (await send_raw(gateway, CLIENT.build_request())).status == 200
            assert (
                extract_error(
                    await send_raw(gateway, SigningClient("NEW", "newer").build_request())
                )
                == INVALID_KEY
            )
            async with open_store(gateway.settings.state) as store:
                await replace_credentials(
                    store, Tenant("demo", "sandbox"), Credentials("NEW", "newer")
                )
            await wait_for_status(gateway, CLIENT.build_request(), 401)
            assert (
                await send_raw(gateway, SigningClient("NEW", "newer").build_request())
            ).status == 200


UNKNOWN_CLIENT = SigningClient("STRANGER", "nobody here knows it")


async def test_unknown_access_key_is_refused_by_default(
    module_gateway: GatewayUnderTest, recorder: RawService
) -> None:
    assert (
        extract_error(await send_raw(module_gateway, UNKNOWN_CLIENT.build_request())) == INVALID_KEY
    )
    assert recorder.requests == []


async def test_unknown_access_keys_are_forwarded_to_the_configured_environment(
    tmp_path: Path,
) -> None:
    async with open_raw_service() as live_recorder, open_raw_service() as sandbox_recorder:
        environments = {"live": {"base_url": live_recorder.url}}
        forward = {"unknown_keys": "forward", "environment": "live"}
        async with open_signed_gateway(
            tmp_path, sandbox_recorder.url, environments=environments, signed=forward
        ) as gateway:
            request_bytes = UNKNOWN_CLIENT.build_request(
                "POST", "/v1/onboarding/update?a=1", b"{}", JSON
            )
            assert (await send_raw(gateway, request_bytes)).status == 200
            assert (await send_raw(gateway, CLIENT.build_request())).status == 200
            # A known key is verified by the gateway and used for its own environment only.
            wrong_client = SigningClient(secret_key="wrong")
            assert (
                extract_error(await send_raw(gateway, wrong_client.build_request())) == INVALID_KEY
            )
            assert (
                extract_error(await send_raw(gateway, UNKNOWN_CLIENT.build_request(stamp=NOW - 31)))
                == INVALID_KEY
            )
            await revoke_by_name(gateway, "demo-sandbox")
            await wait_for_status(gateway, CLIENT.build_request(), 401)
    assert live_recorder.only_request.target == "/v1/onboarding/update?a=1"
    assert live_recorder.only_request.headers["authorization"] in request_bytes.decode()
    assert {request.headers["authorization"] for request in sandbox_recorder.requests} == {
        f"svcsign {ACCESS_KEY}:{SIGNATURE}"
    }


async def test_unknown_access_keys_are_limited_by_key_and_by_address(tmp_path: Path) -> None:
    def build_request(key: str, address: str) -> bytes:
        return SigningClient(key).build_request(
            "GET", RECIPIENTS, b"", f"X-Forwarded-For: {address}"
        )

    async with open_raw_service() as recorder:
        async with open_signed_gateway(
            tmp_path,
            recorder.url,
            signed={"unknown_keys": "forward", "environment": "sandbox"},
            limits={"requests_per_hour": 2},
            server={"trusted_proxies": ["127.0.0.1"]},
        ) as gateway:
            for key, address in (("A", "192.0.2.1"), ("B", "192.0.2.1"), ("A", "192.0.2.2")):
                assert (await send_raw(gateway, build_request(key, address))).status == 200
            assert (
                extract_error(await send_raw(gateway, build_request("C", "192.0.2.1")))
                == OVER_LIMIT
            )
            assert (
                extract_error(await send_raw(gateway, build_request("A", "192.0.2.2")))
                == OVER_LIMIT
            )
            assert (await send_raw(gateway, build_request("C", "192.0.2.3"))).status == 200
            assert (await send_raw(gateway, CLIENT.build_request())).status == 200
    assert len(recorder.requests) == 5


# Both environments.


async def test_access_key_of_both_environments_is_distinguished_by_signature(
    tmp_path: Path,
) -> None:
    async with open_raw_service() as live_recorder, open_raw_service() as sandbox_recorder:
        line = {"environment": "live", "api_key": "live", "secret_key": "another secret"}
        async with open_signed_gateway(
            tmp_path,
            sandbox_recorder.url,
            line,
            environments={"live": {"base_url": live_recorder.url}},
        ) as gateway:
            assert (await send_raw(gateway, CLIENT.build_request("GET", "/v1/a"))).status == 200
            live_client = SigningClient(secret_key="another secret")
            assert (
                await send_raw(gateway, live_client.build_request("GET", "/v1/b"))
            ).status == 200
            assert (
                extract_error(
                    await send_raw(gateway, SigningClient(secret_key="x").build_request())
                )
                == INVALID_KEY
            )
    assert (sandbox_recorder.only_request.target, live_recorder.only_request.target) == (
        "/v1/a",
        "/v1/b",
    )


async def test_identical_credentials_of_both_environments_are_refused(tmp_path: Path) -> None:
    async with open_raw_service() as live_recorder, open_raw_service() as sandbox_recorder:
        line = {"environment": "live", "api_key": "live"}
        async with open_signed_gateway(
            tmp_path,
            sandbox_recorder.url,
            line,
            environments={"live": {"base_url": live_recorder.url}},
        ) as gateway:
            assert extract_error(await send_raw(gateway, CLIENT.build_request())) == INVALID_KEY
    assert live_recorder.requests == sandbox_recorder.requests == []


async def test_credentials_of_an_unconfigured_environment_are_not_passed_on(tmp_path: Path) -> None:
    async with open_raw_service() as sandbox_recorder:
        line = {"environment": "live", "api_key": "live", "access_key": "LIVE"}
        async with open_signed_gateway(tmp_path, sandbox_recorder.url, line) as gateway:
            assert (
                extract_error(await send_raw(gateway, SigningClient("LIVE").build_request()))
                == INTERNAL
            )
    assert sandbox_recorder.requests == []


# The limit.


async def test_signed_limit_is_per_merchant_and_counts_verified_requests(
    tmp_path: Path,
) -> None:
    bolt_key = {"merchant": "bolt", "api_key": "bolt", "access_key": "BOLT", "secret_key": "bolt's"}
    second_key = {"api_key": "second", "requests_per_hour": 1}
    async with open_raw_service() as recorder:
        limits = {"requests_per_hour": 3}
        async with open_signed_gateway(
            tmp_path, recorder.url, bolt_key, second_key, limits=limits
        ) as gateway:
            for _ in range(5):
                assert (
                    extract_error(
                        await send_raw(gateway, SigningClient(secret_key="x").build_request())
                    )
                    == INVALID_KEY
                )
                expired_request = CLIENT.build_request(stamp=NOW - 31)
                assert extract_error(await send_raw(gateway, expired_request)) == INVALID_KEY
            for remaining in (2, 1, 0):
                response = await send_raw(gateway, CLIENT.build_request())
                assert response.status == 200
                assert response.headers["ratelimit-limit"] == "3"
                assert response.headers["ratelimit-remaining"] == str(remaining)
                assert 0 < int(response.headers["ratelimit-reset"]) <= 3601
            limited_response = await send_raw(
                gateway, CLIENT.build_request("POST", RECIPIENTS, RECIPIENT_BODY, JSON)
            )
            assert extract_error(limited_response) == OVER_LIMIT
            assert 0 < int(limited_response.headers["retry-after"]) <= 3601
            assert limited_response.headers["ratelimit-remaining"] == "0"
            # Neither another merchant nor the legacy interface counts towards it.
            assert (
                await send_raw(gateway, SigningClient("BOLT", "bolt's").build_request())
            ).status == 200
            assert (await gateway.request("GET", "/v1/geography/countries/DE")).status == 200
            assert (await gateway.request("GET", RECIPIENTS)).status == 200
    # The gateway's own calls have a query; a signature over the path alone may be equal to theirs.
    passed_on = [request for request in recorder.requests if request.target == RECIPIENTS]
    assert (
        len([entry for entry in passed_on if entry.headers["authorization"].endswith(SIGNATURE)])
        == 3
    )


async def test_signed_limit_is_the_highest_of_the_merchants_keys(tmp_path: Path) -> None:
    low_limit_key = {
        "merchant": "bolt",
        "api_key": "b",
        "access_key": "BOLT",
        "requests_per_hour": 1,
    }
    high_limit_key = {**low_limit_key, "api_key": "c", "requests_per_hour": 2}
    async with (
        open_raw_service() as recorder,
        open_signed_gateway(tmp_path, recorder.url, low_limit_key, high_limit_key) as gateway,
    ):
        bolt_client = SigningClient("BOLT")
        statuses = [(await send_raw(gateway, bolt_client.build_request())).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert (await send_raw(gateway, CLIENT.build_request())).headers[
            "ratelimit-limit"
        ] == "10000"


# Where it is not there.


async def test_unreachable_service_is_an_internal_error(tmp_path: Path) -> None:
    async with open_signed_gateway(tmp_path, "http://127.0.0.1:1") as gateway:
        for method in ("GET", "POST"):
            response = await send_raw(gateway, CLIENT.build_request(method, RECIPIENTS))
            assert extract_error(response) == INTERNAL
            assert "nothing was changed" in response.parse_json["errors"][0]["message"]


async def test_unreadable_database_refuses_uncached_credentials(
    tmp_path: Path,
) -> None:
    async with open_raw_service() as recorder:
        async with open_signed_gateway(tmp_path, recorder.url) as gateway:
            (tmp_path / "gateway.db").write_bytes(b"no database" * 1000)
            assert extract_error(await send_raw(gateway, CLIENT.build_request())) == INTERNAL
            assert recorder.requests == []


async def test_cached_credentials_work_while_the_database_is_unreadable(
    tmp_path: Path,
) -> None:
    async with open_raw_service() as recorder:
        async with open_signed_gateway(tmp_path, recorder.url) as gateway:
            assert (await send_raw(gateway, CLIENT.build_request())).status == 200
            (tmp_path / "gateway.db").write_bytes(b"no database" * 1000)
            assert (await send_raw(gateway, CLIENT.build_request())).status == 200
            # But nobody knows whether this batch was abandoned.
            start_it = CLIENT.build_request("POST", "/v1/batches/B-1/start-processing")
            assert extract_error(await send_raw(gateway, start_it)) == INTERNAL
    assert len(recorder.requests) == 2
