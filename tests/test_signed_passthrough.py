"""Passthrough of the signed interface: bodies, headers, answers and broken connections."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.upstream.passthrough import MAX_MEMORY_BYTES
from tests import operator_commands
from tests.operator_commands import write_configuration
from tests.running_gateway import GatewayUnderTest
from tests.signed_requests import (
    CLIENT,
    EMPTY_LIST,
    INTERNAL,
    INVALID_KEY,
    OK_BODY,
    RawService,
    RecordedRequest,
    RespondFunction,
    SigningClient,
    build_response,
    encode_chunked,
    extract_error,
    open_raw_service,
    open_signed_gateway,
    reset,
    respond_with,
    send_raw,
)
from tests.sockets import open_connection, wait_until

RECIPIENTS = "/v1/recipients"
JSON = "Content-Type: application/json"
MEGABYTE = 1024 * 1024
WRITES = ["POST", "PUT", "PATCH", "DELETE"]


@asynccontextmanager
async def open_gateway_and_service(
    folder: Path, respond: RespondFunction | None = None, **sections: Any
) -> AsyncIterator[tuple[RawService, GatewayUnderTest]]:
    async with open_raw_service(respond) as recorder:
        async with open_signed_gateway(folder, recorder.url, **sections) as gateway:
            yield recorder, gateway


# Bodies on their way there.


@pytest.mark.parametrize("chunks", [0, 1, 300])
@pytest.mark.parametrize("size", [1, 70_000, MAX_MEMORY_BYTES, MAX_MEMORY_BYTES + 1, 9 * MEGABYTE])
async def test_body_of_any_size_and_framing_is_passed_on(
    tmp_path: Path, size: int, chunks: int
) -> None:
    body = os.urandom(size)
    async with open_gateway_and_service(tmp_path) as (recorder, gateway):
        request_bytes = CLIENT.build_request("POST", RECIPIENTS, body, JSON, chunks=chunks)
        assert (await send_raw(gateway, request_bytes)).status == 200
    assert recorder.only_request.body == body


async def test_request_is_passed_on_after_the_whole_body_is_verified(
    tmp_path: Path,
) -> None:
    body = os.urandom(3 * MEGABYTE)
    async with open_gateway_and_service(tmp_path) as (recorder, gateway):
        for client in (CLIENT, SigningClient(secret_key="wrong")):
            request_bytes = client.build_request("POST", RECIPIENTS, body, JSON)
            async with await open_connection(gateway.running.port) as connection:
                await connection.send(request_bytes[:-1])
                assert await connection.check_silent()
                assert recorder.connections == 0
                if client is CLIENT:
                    continue  # and goes away
                await connection.send(request_bytes[-1:])
                response = await connection.read_response()
                assert response is not None
                assert extract_error(response) == INVALID_KEY
    assert recorder.connections == 0


async def test_spooled_body_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool_folder = tmp_path / "spools"
    spool_folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spool_folder))
    body = b"a name" * MEGABYTE
    file_names: list[str] = []

    async def respond(_: RecordedRequest, _reader: Any, writer: asyncio.StreamWriter) -> None:
        file_names.extend(path.name for path in spool_folder.iterdir())
        writer.write(OK_BODY)

    async with open_gateway_and_service(tmp_path, respond) as (recorder, gateway):
        assert (
            await send_raw(gateway, CLIENT.build_request("POST", RECIPIENTS, body, JSON))
        ).status == 200
    assert len(recorder.only_request.body) == len(body)
    assert file_names == list(spool_folder.iterdir()) == []


@pytest.mark.parametrize("chunks", [0, 3])
async def test_body_over_the_limit_is_refused(tmp_path: Path, chunks: int) -> None:
    async with open_gateway_and_service(tmp_path, limits={"body_bytes": 10_000}) as (
        recorder,
        gateway,
    ):
        request_bytes = CLIENT.build_request("POST", RECIPIENTS, b"x" * 10_001, JSON, chunks=chunks)
        assert extract_error(await send_raw(gateway, request_bytes)) == (413, "invalid_field")
        assert recorder.requests == []
        allowed_request = CLIENT.build_request(
            "POST", RECIPIENTS, b"x" * 10_000, JSON, chunks=chunks
        )
        assert (await send_raw(gateway, allowed_request)).status == 200


async def test_incomplete_body_is_refused(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path) as (recorder, gateway):
        request_bytes = CLIENT.build_request("POST", RECIPIENTS, b'{"a":1}', JSON, chunks=2)
        first_part, _, last_part = request_bytes.partition(b"\r\n3\r\n")
        async with await open_connection(gateway.running.port) as connection:
            await connection.send(first_part)
            await asyncio.sleep(0.05)
            await connection.send(b"\r\nZ\r\n" + last_part)
            response = await connection.read_response()
        assert response is not None
        # As what came of it: it is no body, or not the one that was signed.
        assert extract_error(response) in ((400, "invalid_field"), (401, "invalid_api_key"))
    assert recorder.requests == []


async def test_100_continue_is_sent_only_with_known_credentials(tmp_path: Path) -> None:
    body = b'{"a":1}'
    expect_header = "Expect: 100-continue"
    async with open_gateway_and_service(tmp_path) as (recorder, gateway):
        for client, statuses in ((CLIENT, [100, 200]), (SigningClient(access_key="NOBODY"), [401])):
            request_bytes = client.build_request("POST", RECIPIENTS, body, JSON, expect_header)
            async with await open_connection(gateway.running.port) as connection:
                await connection.send(request_bytes.removesuffix(body))
                for status in statuses:
                    response = await connection.read_response()
                    assert response is not None
                    assert response.status == status
                    if status == 100:
                        await connection.send(body)
    assert recorder.only_request.body == body
    assert "expect" not in recorder.only_request.headers


async def test_compressed_body_is_passed_on_unchanged(tmp_path: Path) -> None:
    body = gzip.compress(b'{"a":1}')
    async with open_gateway_and_service(tmp_path) as (recorder, gateway):
        request_bytes = CLIENT.build_request(
            "POST", RECIPIENTS, body, JSON, "Content-Encoding: gzip"
        )
        assert (await send_raw(gateway, request_bytes)).status == 200
    assert recorder.only_request.body == body
    assert recorder.only_request.headers["content-encoding"] == "gzip"


@pytest.mark.parametrize(("method", "length"), [("GET", None), ("DELETE", "0"), ("POST", "0")])
async def test_request_without_body_is_passed_on_without_body(
    tmp_path: Path, method: str, length: str | None
) -> None:
    async with open_gateway_and_service(tmp_path) as (recorder, gateway):
        assert (await send_raw(gateway, CLIENT.build_request(method, RECIPIENTS))).status == 200
    assert recorder.only_request.headers.get("content-length") == length
    assert "content-type" not in recorder.only_request.headers


@pytest.mark.parametrize("chunks", [0, 1])
async def test_read_with_a_body_is_refused(tmp_path: Path, chunks: int) -> None:
    async with open_gateway_and_service(tmp_path) as (recorder, gateway):
        data = CLIENT.build_request("GET", RECIPIENTS, b"{}", JSON, chunks=chunks)
        response = await send_raw(gateway, data)
    assert (response.status, response.code) == (400, "invalid_field")
    assert response.headers["connection"] == "close"
    assert not recorder.requests


# Headers, there.


async def test_end_to_end_headers_of_a_signed_request_are_passed_on(tmp_path: Path) -> None:
    passed_on = {
        "Content-Digest": "sha-256=:x:",
        "If-Unmodified-Since": "Sun, 22 Nov 2026 00:00:00 GMT",
        "Referer": "https://shop.example/?email=ada@example.com",
        "X-Vendor-Version": "1.2",
        "Accept": "application/json, */*;q=0.1",
        "Accept-Encoding": "gzip, br",
        "Accept-Language": "fr",
        "Content-Type": "application/json; x=y",
        "Idempotency-Key": "one",
        "If-None-Match": 'W/"x"',
        "Traceparent": "00-1-2-03",
        "User-Agent": "a client/1.0",
        "X-Request-Id": "one two",
    }
    dropped_headers = {
        "Connection": "close, X-Own, Accept-Charset",
        "Accept-Charset": "utf-8",
        "Cookie": "a=b",
        "Forwarded": "for=192.0.2.1",
        "Keep-Alive": "timeout=5",
        "Proxy-Authorization": "Basic eA==",
        "Proxy-Connection": "keep-alive",
        "TE": "trailers",
        "Trailer": "X-Own",
        "Upgrade": "h2c",
        "Via": "1.1 x",
        "X-API-Key": "an-api-key-for-tests",
        "X-Forwarded-For": "192.0.2.1",
        "X-Forwarded-Host": "other.example",
        "X-HTTP-Method-Override": "DELETE",
        "X-Original-URL": "/v1/profile/sandbox",
        "X-Own": "x",
        "X-Rewrite-URL": "/v1/x",
    }
    lines = [f"{name}: {value}" for name, value in {**passed_on, **dropped_headers}.items()]
    async with open_gateway_and_service(tmp_path) as (recorder, gateway):
        response = await send_raw(gateway, CLIENT.build_request("POST", RECIPIENTS, b"{}", *lines))
        assert response.status == 200
    received_headers = recorder.only_request.headers
    signed_headers = {"authorization", "x-svc-timestamp", "host", "content-length"}
    assert {name: received_headers[name] for name in received_headers.keys() - signed_headers} == {
        name.lower(): value for name, value in passed_on.items()
    }
    assert received_headers["host"] == f"127.0.0.1:{recorder.port}"


END_TO_END_HEADERS = """
    A-IM Accept-Charset Accept-Datetime Accept-Signature Access-Control-Request-Method Authentication-Info
    Baggage Cache-Control Content-Digest Content-Disposition Content-Encoding Content-Language
    Content-Location Content-MD5 Content-Range Date Digest DNT DPoP ETag From If-Match If-Modified-Since
    If-None-Match If-Range If-Unmodified-Since Last-Modified Link Max-Forwards Origin Pragma Prefer
    Priority Range Referer Repr-Digest Sec-Fetch-Mode Signature Signature-Input Slug Tracestate
    Unencoded-Digest Want-Content-Digest Want-Repr-Digest Warning X-B3-TraceId X-Correlation-ID
    X-Requested-With
"""
"""End-to-end request headers, from the IANA registry and from clients."""


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_every_end_to_end_header_is_passed_on(tmp_path: Path, method: str) -> None:
    names = END_TO_END_HEADERS.split()
    lines = [f"{name}: a value of {name}" for name in names]
    async with open_gateway_and_service(tmp_path) as (recorder, gateway):
        assert (
            await send_raw(gateway, CLIENT.build_request(method, RECIPIENTS, b"", *lines))
        ).status == 200
    received_headers = recorder.only_request.headers
    assert {name: received_headers.get(name.lower()) for name in names} == {
        name: f"a value of {name}" for name in names
    }


async def test_only_a_request_id_is_added(tmp_path: Path) -> None:
    async with open_gateway_and_service(tmp_path) as (recorder, gateway):
        response = await send_raw(gateway, CLIENT.build_request())
    assert set(recorder.only_request.headers) == {
        "host", "authorization", "x-svc-timestamp", "x-request-id",
    }  # fmt: skip
    assert response.headers["x-request-id"] == recorder.only_request.headers["x-request-id"]


async def test_header_that_cannot_be_encoded_is_dropped(tmp_path: Path) -> None:
    request_bytes = CLIENT.build_request("GET", RECIPIENTS, b"", "User-Agent: caf@").replace(
        b"caf@", b"caf\xe9"
    )
    async with open_gateway_and_service(tmp_path) as (recorder, gateway):
        assert (await send_raw(gateway, request_bytes)).status == 200
    assert "user-agent" not in recorder.only_request.headers


async def test_base_url_prefix_is_sent_but_not_signed(tmp_path: Path) -> None:
    async with open_raw_service() as recorder:
        async with open_signed_gateway(tmp_path, recorder.url + "/pre%20fix/x") as gateway:
            assert (await send_raw(gateway, CLIENT.build_request("GET", "/v1/a?b=c"))).status == 200
    assert recorder.only_request.target == "/pre%20fix/x/v1/a?b=c"


# Answers on their way back.


@pytest.mark.parametrize("status", [201, 404, 429, 503])
async def test_status_body_and_end_to_end_headers_are_returned(tmp_path: Path, status: int) -> None:
    body = b'{ "ok" : false,\n "amount": 1.10 }'
    response = build_response(
        status,
        body,
        "Content-Type: Application/JSON",
        "Retry-After: 7",
        "X-Request-Id: the service's own",
        "Date: Thu, 01 Jan 1970 00:00:00 GMT",
        "RateLimit-Limit: 5",
        "RateLimit-Remaining: 0",
        'ETag: "x"',
        "Vary: a",
        "Vary: b",
        "X-Own: Zoë",
    )
    async with open_gateway_and_service(tmp_path, respond_with(response)) as (_, gateway):
        async with await open_connection(gateway.running.port) as connection:
            await connection.send(CLIENT.build_request("POST", RECIPIENTS, b"{}", JSON))
            head = (await connection.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            received_body = await connection.reader.readexactly(len(body))
    assert head[0].split()[1] == str(status)
    assert received_body == body
    lines = set(head[1:-2])
    assert {
        "Content-Type: Application/JSON", "Retry-After: 7", "Vary: a", "Vary: b", 'Etag: "x"',
        "Date: Thu, 01 Jan 1970 00:00:00 GMT", "X-Own: Zoë", f"Content-Length: {len(body)}",
    } <= {line.replace("ETag", "Etag") for line in lines}  # fmt: skip
    small = {line.lower() for line in lines}
    assert {
        "ratelimit-limit: 5",
        "ratelimit-remaining: 0",
        "x-request-id: the service's own",
    } <= small
    assert not any(line.startswith("ratelimit-reset") for line in small)


async def test_hop_by_hop_and_server_headers_are_not_returned(tmp_path: Path) -> None:
    response = build_response(
        200,
        b"{}",
        "Connection: keep-alive, X-Own",
        "Keep-Alive: timeout=5",
        "X-Own: x",
        "Proxy-Authenticate: Basic",
        "Set-Cookie: a=b",
        "Alt-Svc: h3=x",
        "Strict-Transport-Security: max-age=1",
        "Server: secret/1.0",
        "Trailer: X-Own",
        "Upgrade: h2c",
        "Via: 1.1 x",
        "X-Accel-Redirect: /v1/profile/sandbox",
        "X-Accel-Expires: 60",
        "X-Sendfile: /etc/passwd",
        "X-LIGHTTPD-send-file: /etc/passwd",
        "X-LiteSpeed-Location: /etc/passwd",
        "X-Reproxy-URL: http://127.0.0.1:8081/",
        "Access-Control-Allow-Credentials: true",
        'Clear-Site-Data: "*"',
    )
    async with open_gateway_and_service(tmp_path, respond_with(response)) as (recorder, gateway):
        first, second = [await send_raw(gateway, CLIENT.build_request()) for _ in range(2)]
    assert set(first.headers) == {
        "content-length", "content-type", "date", "server", "x-request-id",
        "access-control-allow-origin", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset",
    } - {"content-type"}  # fmt: skip
    assert second.status == 200
    assert first.headers["server"] == "payout-gateway"
    assert all("cookie" not in request.headers for request in recorder.requests)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_is_returned_and_not_followed(tmp_path: Path, status: int) -> None:
    service_response = build_response(status, b"", "Location: /v1/profile/sandbox")
    async with open_gateway_and_service(tmp_path, respond_with(service_response)) as (
        recorder,
        gateway,
    ):
        for method in ("GET", "POST"):
            response = await send_raw(gateway, CLIENT.build_request(method, RECIPIENTS))
            assert (response.status, response.headers["location"]) == (
                status,
                "/v1/profile/sandbox",
            )
    assert len(recorder.requests) == 2


async def test_encoded_answer_is_returned_unchanged(tmp_path: Path) -> None:
    body = gzip.compress(b'{"ok":true}')
    for encoding in ("gzip", "br", "x-own"):
        service_response = build_response(200, body, f"Content-Encoding: {encoding}")
        async with open_gateway_and_service(tmp_path, respond_with(service_response)) as (
            _,
            gateway,
        ):
            response = await send_raw(gateway, CLIENT.build_request())
        assert response.body == body
        assert response.headers["content-encoding"] == encoding


@pytest.mark.parametrize(
    ("method", "service_response"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"),
        ("DELETE", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\n\r\n'),
    ],
)
async def test_connection_stays_open_after_an_answer_without_body(
    tmp_path: Path, method: str, service_response: bytes
) -> None:
    async with open_gateway_and_service(tmp_path, respond_with(service_response)) as (_, gateway):
        async with await open_connection(gateway.running.port) as connection:
            for _ in range(2):
                await connection.send(CLIENT.build_request(method, RECIPIENTS))
                response = await connection.read_response(bodiless=True)
                assert response is not None
                assert str(response.status).encode() in service_response
                if method == "HEAD":
                    assert response.headers["content-length"] == "500"


CHUNKED_LIST = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1a\r\n"
CHUNKED_LIST += b'{"ok":true,"balances":{}}\n\r\n0\r\n'


@pytest.mark.parametrize(
    "service_response",
    [
        CHUNKED_LIST + b"Content-Encoding: gzip\r\nX-Own: a\r\n\r\n",
        EMPTY_LIST + build_response(200, b"{}", "Content-Encoding: gzip", "X-Own: a"),
    ],
    ids=["trailers", "second response"],
)
async def test_header_after_the_head_is_not_one_of_the_response(
    tmp_path: Path, service_response: bytes
) -> None:
    async with open_gateway_and_service(tmp_path, respond_with(service_response)) as (_, gateway):
        signed_request = CLIENT.build_request("GET", "/v1/balance", b"", "Connection: close")
        async with await open_connection(gateway.running.port) as connection:
            await connection.send(signed_request)
            head, _, _ = (await connection.reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"gzip" not in head
        assert b"X-Own" not in head
        response = await gateway.request("GET", "/v1/profile/balances")
        assert (response.status, response.body) == (200, {"ok": True, "balances": {}})


@pytest.mark.parametrize(("method", "status"), [("DELETE", 204), ("GET", 304)])
async def test_body_of_a_status_without_one_is_discarded(
    tmp_path: Path, method: str, status: int
) -> None:
    service_response = build_response(status, b'{"ok":true}')
    async with open_gateway_and_service(tmp_path, respond_with(service_response)) as (
        recorder,
        gateway,
    ):
        async with await open_connection(gateway.running.port) as connection:
            for _ in range(2):
                await connection.send(CLIENT.build_request(method, RECIPIENTS))
                response = await connection.read_response(bodiless=True)
                assert response is not None
                assert response.status == status
    assert recorder.connections == 2


async def test_early_hints_are_skipped(tmp_path: Path) -> None:
    service_response = (
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK_BODY
    )
    async with open_gateway_and_service(tmp_path, respond_with(service_response)) as (_, gateway):
        assert (await send_raw(gateway, CLIENT.build_request())).parse_json == {"ok": True}


CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSE_HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


async def read_until_close(gateway: GatewayUnderTest, data: bytes) -> tuple[bytes, bytes, bool]:
    """Reads an answer until the connection ends; returns its head, the rest, and if it was clean."""
    async with await open_connection(gateway.running.port) as connection:
        await connection.send(data)
        head = await connection.reader.readuntil(b"\r\n\r\n")
        remaining_bytes, is_clean = b"", True
        async with asyncio.timeout(20):
            try:
                while received := await connection.reader.read(1 << 16):
                    remaining_bytes += received
            except ConnectionError:
                is_clean = False
        return head.lower(), remaining_bytes, is_clean


async def test_chunked_answer_is_returned_chunked(tmp_path: Path) -> None:
    body = os.urandom(300_000)
    async with open_gateway_and_service(
        tmp_path, respond_with(CHUNKED_HEAD + encode_chunked(body, 7))
    ) as (_, gateway):
        closing_request = CLIENT.build_request("GET", RECIPIENTS, b"", "Connection: close")
        head, remaining_bytes, is_clean = await read_until_close(gateway, closing_request)
    assert b"transfer-encoding: chunked" in head
    assert remaining_bytes.endswith(b"\r\n0\r\n\r\n")
    assert is_clean
    assert join_chunks(remaining_bytes) == body


def join_chunks(remaining_bytes: bytes) -> bytes:
    """Joins the chunks of a body that were received."""
    body = b""
    while remaining_bytes:
        size, _, remaining_bytes = remaining_bytes.partition(b"\r\n")
        body, remaining_bytes = (
            body + remaining_bytes[: int(size, 16)],
            remaining_bytes[int(size, 16) + 2 :],
        )
    return body


async def test_answer_until_close_is_returned_until_close(tmp_path: Path) -> None:
    body = b"x" * 100_000
    async with open_gateway_and_service(
        tmp_path, respond_with(UNTIL_CLOSE_HEAD + body, closes_connection=True)
    ) as (_, gateway):
        head, remaining_bytes, is_clean = await read_until_close(gateway, CLIENT.build_request())
    assert b"transfer-encoding" not in head
    assert b"content-length" not in head
    assert b"connection: close" in head
    assert remaining_bytes == body
    assert is_clean


LONG_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n"
HALF_BODY = os.urandom(200_000)

CUT_RESPONSES = {
    "a length that is not reached": respond_with(LONG_HEAD + HALF_BODY, closes_connection=True),
    "a length that is not reached, reset": respond_with(
        LONG_HEAD + HALF_BODY, resets_connection=True
    ),
    "chunks without an end": respond_with(
        CHUNKED_HEAD + encode_chunked(HALF_BODY, 3)[:-5], closes_connection=True
    ),
    "chunks that are no chunks": respond_with(
        CHUNKED_HEAD + encode_chunked(HALF_BODY, 3)[:-5] + b"what\r\n"
    ),
    "an answer that stops": respond_with(LONG_HEAD + HALF_BODY),
    "chunks that stop": respond_with(CHUNKED_HEAD + encode_chunked(HALF_BODY, 3)[:-5]),
}


@pytest.mark.parametrize("respond", CUT_RESPONSES.values(), ids=CUT_RESPONSES)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_truncated_answer_never_looks_complete(
    tmp_path: Path, method: str, respond: RespondFunction
) -> None:
    async with open_gateway_and_service(tmp_path, respond, upstream={"timeout_seconds": 0.5}) as (
        recorder,
        gateway,
    ):
        with capture_logs() as log:
            head, remaining_bytes, _is_clean = await read_until_close(
                gateway, CLIENT.build_request(method, RECIPIENTS)
            )
            await wait_until(lambda: bool(log))
    assert b" 200 " in head
    if b"content-length" in head:
        assert b"content-length: 300000" in head
        assert len(remaining_bytes) <= len(HALF_BODY)
    else:
        assert b"transfer-encoding: chunked" in head
        assert not remaining_bytes.endswith(b"0\r\n\r\n")
    assert len(recorder.requests) == 1
    (line,) = log
    assert line["reason"]


async def test_reset_of_an_answer_until_close_is_a_reset(tmp_path: Path) -> None:
    async with open_gateway_and_service(
        tmp_path, respond_with(UNTIL_CLOSE_HEAD + HALF_BODY, resets_connection=True)
    ) as (_, gateway):
        with capture_logs() as log:
            _head, _remaining_bytes, is_clean = await read_until_close(
                gateway, CLIENT.build_request()
            )
            await wait_until(lambda: bool(log))
    assert not is_clean
    assert log[0]["reason"]


async def test_http_1_0_client_gets_the_answer_until_close(tmp_path: Path) -> None:
    body = os.urandom(100_000)
    old = CLIENT.build_request().replace(b"HTTP/1.1", b"HTTP/1.0")
    async with open_gateway_and_service(
        tmp_path, respond_with(CHUNKED_HEAD + encode_chunked(body, 3))
    ) as (_, gateway):
        _head, remaining_bytes, is_clean = await read_until_close(gateway, old)
        assert (remaining_bytes, is_clean) == (body, True)
    async with open_gateway_and_service(
        tmp_path, respond_with(CHUNKED_HEAD + encode_chunked(body, 3)[:-5], closes_connection=True)
    ) as (_, gateway):
        _head, _remaining_bytes, is_clean = await read_until_close(gateway, old)
        assert not is_clean


# Sent once.


async def close_without_response(
    _: RecordedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    writer.close()


async def reset_without_response(
    _: RecordedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    reset(writer)


async def wait_without_response(
    _: RecordedRequest, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter
) -> None:
    await reader.read(1)


MISSING_RESPONSES = {
    "closes": close_without_response,
    "resets": reset_without_response,
    "hangs": wait_without_response,
    "half a head": respond_with(b"HTTP/1.1 200 OK\r\nContent-", closes_connection=True),
    "no HTTP": respond_with(b"what?\r\n\r\n"),
    "an upgrade": respond_with(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    ),
}


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
@pytest.mark.parametrize("respond", MISSING_RESPONSES.values(), ids=MISSING_RESPONSES)
async def test_request_without_answer_is_sent_once_and_is_an_internal_error(
    tmp_path: Path, method: str, respond: RespondFunction
) -> None:
    async with open_gateway_and_service(tmp_path, respond, upstream={"timeout_seconds": 0.3}) as (
        recorder,
        gateway,
    ):
        async with await open_connection(gateway.running.port) as connection:
            await connection.send(
                CLIENT.build_request(
                    method, RECIPIENTS, b"" if method in ("GET", "HEAD") else b"{}"
                )
            )
            response = await connection.read_response(bodiless=method == "HEAD")
    assert response is not None
    assert response.status == 500
    if method != "HEAD":
        assert extract_error(response) == INTERNAL
        message = response.parse_json["errors"][0]["message"]
        assert ("may have been carried out" in message) == (method in WRITES)
    assert len(recorder.requests) == 1


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("value", [b"a\x01b", b"\x7f", b"\x1b[31m", b"a\x08"])
async def test_response_with_an_invalid_header_leaves_a_write_in_doubt(
    tmp_path: Path, method: str, value: bytes
) -> None:
    response = OK_BODY.replace(b"\r\n\r\n", b"\r\nX-Note: " + value + b"\r\n\r\n")
    async with open_gateway_and_service(tmp_path, respond_with(response)) as (recorder, gateway):
        write_response = await send_raw(
            gateway, CLIENT.build_request(method, RECIPIENTS, b"" if method == "GET" else b"{}")
        )
        assert extract_error(write_response) == INTERNAL
        message = write_response.parse_json["errors"][0]["message"]
        assert ("may have been carried out" in message) == (method in WRITES)
        recorder.respond = respond_with(OK_BODY.replace(b"\r\n\r\n", b"\r\nVia: a\x01b\r\n\r\n"))
        second_response = await send_raw(
            gateway, CLIENT.build_request(method, RECIPIENTS, b"", JSON)
        )
        assert second_response.status == 200, "what is not passed on does not matter"
    assert len(recorder.requests) == 2


async def test_start_whose_response_cannot_be_sent_is_in_doubt(tmp_path: Path) -> None:
    async def respond(request: RecordedRequest, _reader: Any, writer: asyncio.StreamWriter) -> None:
        if request.method == "POST":
            writer.write(OK_BODY.replace(b"\r\n\r\n", b"\r\nX-Note: a\x01b\r\n\r\n"))
        else:
            writer.write(build_response(503, b"<html>"))

    async with open_gateway_and_service(tmp_path, respond) as (recorder, gateway):
        write_configuration(tmp_path, recorder.url)
        start_request = CLIENT.build_request("POST", f"/v1/batches/B-{'a' * 22}/start-processing")
        response = await send_raw(gateway, start_request)
        assert extract_error(response) == INTERNAL
        assert "may have been carried out" in response.parse_json["errors"][0]["message"]
        listed_writes = json.loads(
            (await operator_commands.run_command(tmp_path, "writes", "unsettled", "--json")).stdout
        )
        assert [write["operation"] for write in listed_writes["writes"]] == ["start_signed_batch"]
        assert extract_error(await send_raw(gateway, start_request)) == INTERNAL
        assert len([request for request in recorder.requests if request.method == "POST"]) == 1


@pytest.mark.parametrize("method", ["GET", *WRITES])
async def test_request_on_a_stale_connection_is_sent_once(tmp_path: Path, method: str) -> None:
    """The server closes a kept connection instead of answering the second request."""

    async def respond(_: RecordedRequest, _reader: Any, writer: asyncio.StreamWriter) -> None:
        if len(recorder.requests) == 2:
            writer.close()
        else:
            writer.write(OK_BODY)

    async with open_gateway_and_service(tmp_path, respond) as (recorder, gateway):
        statuses = [
            (await send_raw(gateway, CLIENT.build_request(method, RECIPIENTS))).status
            for _ in range(3)
        ]
    assert statuses == [200, 500, 200]
    assert (len(recorder.requests), recorder.connections) == (3, 2)


async def test_connection_closed_while_idle_is_not_used(tmp_path: Path) -> None:
    async with open_gateway_and_service(
        tmp_path, respond_with(OK_BODY, closes_connection=True)
    ) as (
        recorder,
        gateway,
    ):
        for number in range(1, 4):
            request_bytes = CLIENT.build_request("POST", RECIPIENTS, b"{}", JSON)
            assert (await send_raw(gateway, request_bytes)).status == 200
            await wait_until(lambda number=number: recorder.ended_count == number)
            await asyncio.sleep(0.01)
    assert len(recorder.requests) == 3


# Large answers.


async def test_large_answer_is_streamed(tmp_path: Path) -> None:
    """If the client does not read, the service can send only as much as the sockets buffer."""
    size, megabyte = 120 * MEGABYTE, os.urandom(MEGABYTE)
    sent_bytes = 0

    async def respond(_: RecordedRequest, _reader: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal sent_bytes
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        while sent_bytes < size:
            writer.write(megabyte)
            await writer.drain()
            sent_bytes += len(megabyte)

    async with open_gateway_and_service(tmp_path, respond, upstream={"timeout_seconds": 30}) as (
        _,
        gateway,
    ):
        async with await open_connection(gateway.running.port) as connection:
            await connection.send(CLIENT.build_request())
            await connection.reader.readuntil(b"\r\n\r\n")
            previous_bytes = -1
            while sent_bytes > previous_bytes:
                previous_bytes = sent_bytes
                await asyncio.sleep(0.3)
            assert sent_bytes < size / 3
            remaining = size
            async with asyncio.timeout(30):
                while remaining:
                    received_data = await connection.reader.read(min(remaining, MEGABYTE))
                    assert received_data
                    remaining -= len(received_data)
    assert sent_bytes == size


async def test_client_that_does_not_read_is_disconnected(tmp_path: Path) -> None:
    endless_response = LONG_HEAD.replace(b"300000", b"300000000") + b"x" * 40 * MEGABYTE
    async with open_gateway_and_service(
        tmp_path, respond_with(endless_response), upstream={"timeout_seconds": 2}
    ) as (_, gateway):
        with capture_logs() as log:
            async with await open_connection(gateway.running.port) as connection:
                await connection.send(CLIENT.build_request())
                await wait_until(lambda: bool(log), seconds=60)
    assert log[0]["reason"] == "the client does not read its response"


# Clients that go away.


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_client_disconnect_cancels_a_read(tmp_path: Path, method: str) -> None:
    async with open_gateway_and_service(
        tmp_path, wait_without_response, upstream={"timeout_seconds": 60}
    ) as (recorder, gateway):
        with capture_logs() as log:
            async with await open_connection(gateway.running.port) as connection:
                await connection.send(CLIENT.build_request(method, RECIPIENTS))
                await wait_until(lambda: len(recorder.requests) == 1)
                assert recorder.ended_count == 0
            await wait_until(lambda: recorder.ended_count == 1)
            await wait_until(lambda: bool(log))
    assert [(line["http.response.status_code"], line["api"]) for line in log] == [(499, "signed")]


@pytest.mark.parametrize("method", WRITES)
async def test_client_disconnect_does_not_cancel_a_write(tmp_path: Path, method: str) -> None:
    go_on, is_cancelled = asyncio.Event(), asyncio.Event()

    async def respond(
        _: RecordedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        pending_read = asyncio.ensure_future(reader.read(1))
        await go_on.wait()
        if pending_read.done():
            is_cancelled.set()
        writer.write(OK_BODY)

    async with open_gateway_and_service(tmp_path, respond) as (recorder, gateway):
        with capture_logs() as log:
            async with await open_connection(gateway.running.port) as connection:
                await connection.send(CLIENT.build_request(method, RECIPIENTS, b"{}", JSON))
                await wait_until(lambda: len(recorder.requests) == 1)
            await asyncio.sleep(0.1)
            go_on.set()
            await wait_until(lambda: bool(log))
    assert not is_cancelled.is_set()
    assert [(line["http.response.status_code"], line["upstream_calls"]) for line in log] == [
        (200, 1)
    ]


async def test_answer_to_a_write_is_read_after_client_disconnect(
    tmp_path: Path,
) -> None:
    """A service may still work while it answers, and stop if the connection closes."""
    sent_megabytes, megabyte = 0, b"x" * MEGABYTE

    async def respond(_: RecordedRequest, _reader: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal sent_megabytes
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {60 * MEGABYTE}\r\n\r\n".encode())
        while sent_megabytes < 60:
            writer.write(megabyte)
            await writer.drain()
            sent_megabytes += 1

    async with open_gateway_and_service(tmp_path, respond) as (_, gateway):
        async with await open_connection(gateway.running.port) as connection:
            await connection.send(CLIENT.build_request("POST", RECIPIENTS, b"{}", JSON))
            await connection.reader.readuntil(b"\r\n\r\n")
            assert sent_megabytes < 60
        await wait_until(lambda: sent_megabytes == 60, seconds=10)


async def test_shutdown_completes_requests_in_flight(tmp_path: Path) -> None:
    async def respond(_: RecordedRequest, _reader: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        writer.write(OK_BODY)

    async with open_raw_service(respond) as recorder:
        async with open_signed_gateway(tmp_path, recorder.url) as gateway:
            connection = await open_connection(gateway.running.port)
            await connection.send(CLIENT.build_request("POST", RECIPIENTS, b"{}", JSON))
            await wait_until(lambda: len(recorder.requests) == 1)
        response = await connection.read_response()
        await connection.close()
    assert response is not None
    assert response.parse_json == {"ok": True}


async def test_answer_interrupted_by_shutdown_does_not_look_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def respond(_: RecordedRequest, reader: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(UNTIL_CLOSE_HEAD + b"half")
        await reader.read(1)

    monkeypatch.setattr("gateway.server.process.SHUTDOWN_MARGIN_SECONDS", -4.5)
    async with open_raw_service(respond) as recorder:
        async with open_signed_gateway(tmp_path, recorder.url) as gateway:
            connection = await open_connection(gateway.running.port)
            await connection.send(CLIENT.build_request())
            assert (await connection.reader.readuntil(b"half")).endswith(b"half")
        try:
            with pytest.raises(ConnectionError):
                await connection.reader.read(1)
        finally:
            await connection.close()


# The log.


async def test_signed_request_is_logged_in_one_line(tmp_path: Path) -> None:
    target = "/v1/recipients/R-1/accounts/A-2?search=ada@example.com"
    async with open_gateway_and_service(tmp_path) as (_, gateway):
        with capture_logs() as log:
            await send_raw(gateway, CLIENT.build_request("GET", target))
            await send_raw(
                gateway, SigningClient(secret_key="x").build_request("GET", "/v1/ada@example.com")
            )
    first_line, second_line = log
    assert first_line["http.route"] == "/v1/recipients/…/accounts/…"
    assert second_line["http.route"] == "/v1/…"
    expected_fields = {
        "event": "request",
        "api": "signed",
        "operation": None,
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "client.address": "127.0.0.1",
        "merchant": "demo",
        "environment": "sandbox",
        "upstream_calls": 1,
    }
    assert first_line.items() >= expected_fields.items()
    assert first_line["duration_ms"] >= first_line["upstream_duration_ms"] > 0
    assert (second_line["http.response.status_code"], second_line["upstream_calls"]) == (401, 0)
    assert json.dumps(log)
