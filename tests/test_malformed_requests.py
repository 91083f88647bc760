"""Malformed HTTP requests: each gets an answer in legacy form, or the connection is closed.

The gateway is a process of its own, as it is deployed, in front of the simulator. Almost every
request carries a valid key, so that only its malformation can prevent an upstream call.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.gateway_process import GatewayAndService, open_gateway_process
from tests.running_gateway import KEY
from tests.sockets import assert_legacy, exchange, open_connection, wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY_BYTES = 4096
API_KEY = KEY["api_key"]
PATH = b"/v1/recipients"
WITH_KEY = b"Host: gateway\r\nX-API-Key: " + API_KEY.encode() + b"\r\n"
VALID_RECIPIENT = b'{"type":"individual","firstName":"A","lastName":"B","email":"a@example.com"}'
CHUNKED = WITH_KEY + b"Transfer-Encoding: chunked\r\n"

CLOSED_WITHOUT_ANSWER = None
"""The connection is closed without an answer."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gateway_process(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[GatewayAndService]:
    async with open_gateway_process(
        tmp_path_factory.mktemp("place"), BODY_BYTES
    ) as running_process:
        yield running_process


def build_get(
    target: bytes = PATH, headers: bytes = WITH_KEY, version: bytes = b"HTTP/1.1"
) -> bytes:
    return b"GET " + target + b" " + version + b"\r\n" + headers + b"\r\n"


def build_post(headers: bytes, body: bytes = b"") -> bytes:
    return b"POST " + PATH + b" HTTP/1.1\r\n" + headers + b"\r\n" + body


def build_post_with_length(body: bytes, following_data: bytes = b"") -> bytes:
    return build_post(WITH_KEY + following_data + b"Content-Length: %d\r\n" % len(body), body)


REQUEST_LINES = {
    "empty lines only": (b"\r\n\r\n\r\nX\r\n\r\n", 406),
    "no request line": (b"\r\n" + WITH_KEY + b"\r\n", 406),
    "one word": (b"GET\r\n\r\n", 406),
    "no target": (b"GET  HTTP/1.1\r\n" + WITH_KEY + b"\r\n", 406),
    "no protocol name": (build_get(version=b"1.1"), 406),
    "another protocol": (build_get(version=b"ICAP/1.0"), 406),
    "a version that is none": (build_get(version=b"HTTP/1.x"), 406),
    "a version with a sign": (build_get(version=b"HTTP/-1.1"), 406),
    "a version of two digits": (build_get(version=b"HTTP/11.1"), 406),
    "a protocol in lower case": (build_get(version=b"http/1.1"), 406),
    "more after the version": (build_get(version=b"HTTP/1.1 x"), 406),
    "a space in the target": (build_get(b"/v1/reci pients"), 406),
    "a tab for a space": (b"GET\t/v1/recipients\tHTTP/1.1\r\n" + WITH_KEY + b"\r\n", 406),
    "HTTP/0.9": (b"GET /v1/recipients\r\n\r\n", 406),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\4\0\0\0\0\0", 406),
    "a TLS hello": (bytes.fromhex("1603010200010001fc0303") + b"\0" * 32, 406),
    "NULs": (b"\0" * 64, 406),
    "bytes that are not text": (b"\xff\xfe\xfd\r\n\r\n", 406),
    "a method in lower case": (b"get /v1/recipients HTTP/1.1\r\n" + WITH_KEY + b"\r\n", 406),
    "a method with a NUL": (b"GE\0T /v1/recipients HTTP/1.1\r\n" + WITH_KEY + b"\r\n", 406),
    "a NUL in the target": (build_get(b"/v1/recipients\0"), 406),
    "bytes over 127 in the target": (build_get(b"/v1/recipients?search=\xff"), 406),
    "UTF-8 in the target": (build_get("/v1/recipients?search=ü".encode()), 406),
    "a control character in the target": (build_get(b"/v1/recipients?search=\x1b"), 406),
    "a target without a slash": (build_get(b"v1/recipients"), 406),
    "a query as the target": (build_get(b"?page=1"), 406),
    "a line that is too long": (build_get(PATH + b"?search=" + b"a" * 9000), 406),
    "a line that never ends": (b"GET /" + b"a" * 70_000, 406),
}

TARGETS = {
    "an absolute target of an unknown path": (build_get(b"http://gateway/v1/merchants"), 404),
    "an absolute target without a path": (build_get(b"http://gateway"), 404),
    "an absolute target with credentials": (build_get(b"http://me:secret@gateway/v1/batch"), 404),
    "an absolute target of another scheme": (build_get(b"ftp://gateway/v1/recipients"), 404),
    "an absolute target with a key": (
        build_get(b"http://elsewhere/v1/recipients", b"Host: x\r\n"),
        403,
    ),
    "OPTIONS of everything": (b"OPTIONS * HTTP/1.1\r\n" + WITH_KEY + b"\r\n", 404),
    "CONNECT": (b"CONNECT service:443 HTTP/1.1\r\n" + WITH_KEY + b"\r\n", 404),
    "an encoded line end": (build_get(PATH + b"%0d%0aX-Injected:%201"), 404),
    "an encoded NUL": (build_get(PATH + b"%00"), 404),
    "a broken escape": (build_get(PATH + b"/%zz"), 404),
    "dots": (build_get(b"/v1/recipients/../recipients"), 404),
    "a backslash": (build_get(b"/v1\\recipients"), 404),
    "a parameter of the path": (build_get(b"/v1/recipients;x=1"), 404),
}

HEADERS = {
    "no Host": (build_get(headers=b"X-API-Key: " + API_KEY.encode() + b"\r\n"), 406),
    "two Hosts": (build_get(headers=b"Host: other\r\n" + WITH_KEY), 406),
    "a header without a colon": (build_get(headers=WITH_KEY + b"Broken\r\n"), 406),
    "a header without a name": (build_get(headers=WITH_KEY + b": value\r\n"), 406),
    "a space before the colon": (build_get(headers=WITH_KEY + b"Name : value\r\n"), 406),
    "a space in the name": (build_get(headers=WITH_KEY + b"A name: value\r\n"), 406),
    "a name that is not ASCII": (build_get(headers=WITH_KEY + b"N\xc3\xa4me: value\r\n"), 406),
    "a NUL in a value": (build_get(headers=WITH_KEY + b"Name: a\0b\r\n"), 406),
    "a bare CR in a value": (build_get(headers=WITH_KEY + b"Name: a\rb\r\n"), 406),
    "a control character in a value": (build_get(headers=WITH_KEY + b"Name: a\x01b\r\n"), 406),
    "a folded value": (build_get(headers=WITH_KEY + b"Name: a\r\n b\r\n"), 406),
    "a header that begins with a space": (build_get(headers=b" Name: a\r\n" + WITH_KEY), 406),
    "bare LF as line end": (build_get().replace(b"\r\n", b"\n"), 406),
    "bare LF after one header": (build_get(headers=WITH_KEY + b"Name: a\n"), 406),
    "CR alone as line end": (build_get().replace(b"\r\n", b"\r"), 406),
    "a value that is too long": (
        build_get(headers=WITH_KEY + b"Name: " + b"a" * 9000 + b"\r\n"),
        406,
    ),
    "a name that is too long": (build_get(headers=WITH_KEY + b"a" * 9000 + b": a\r\n"), 406),
    "more headers than anyone sends": (
        build_get(headers=WITH_KEY + b"".join(b"A%d: a\r\n" % number for number in range(500))),
        406,
    ),
    "a key in a header without a colon": (
        build_get(headers=b"Host: gateway\r\nX-API-Key " + API_KEY.encode() + b"\r\n"),
        406,
    ),
    "a key with a space before the colon": (
        build_get(headers=b"Host: gateway\r\nX-API-Key : " + API_KEY.encode() + b"\r\n"),
        406,
    ),
    "a key with a NUL": (
        build_get(headers=b"Host: gateway\r\nX-API-Key: " + API_KEY.encode() + b"\0\r\n"),
        406,
    ),
    "a folded key": (
        build_get(headers=b"Host: gateway\r\nX-API-Key: " + API_KEY.encode() + b"\r\n more\r\n"),
        406,
    ),
    "a key of the length of a line": (
        build_get(headers=b"Host: gateway\r\nX-API-Key: " + API_KEY.encode() * 350 + b"\r\n"),
        403,
    ),
    "a key in the wrong place": (
        build_get(PATH + b"?X-API-Key=" + API_KEY.encode(), b"Host: gateway\r\n"),
        403,
    ),
}

BODIES = {
    "a chunk size that is no number": (build_post(CHUNKED, b"ZZ\r\n{}\r\n0\r\n\r\n"), 406),
    "a negative chunk size": (build_post(CHUNKED, b"-2\r\n{}\r\n0\r\n\r\n"), 406),
    "a chunk size with a prefix": (build_post(CHUNKED, b"0x2\r\n{}\r\n0\r\n\r\n"), 406),
    "a chunk size beyond counting": (build_post(CHUNKED, b"F" * 40 + b"\r\n{}\r\n"), 406),
    "a chunk longer than it says": (build_post(CHUNKED, b"1\r\n{}\r\n0\r\n\r\n"), 406),
    "a chunk without its line end": (build_post(CHUNKED, b"2\r\n{}0\r\n\r\n"), 406),
    "bare LF between chunks": (build_post(CHUNKED, b"2\n{}\n0\n\n"), 406),
    "chunks and a length": (
        build_post(CHUNKED + b"Content-Length: 2\r\n", b"2\r\n{}\r\n0\r\n\r\n"),
        406,
    ),
    "chunked twice": (build_post(CHUNKED + b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"), 406),
    "chunked, and then something": (
        build_post(WITH_KEY + b"Transfer-Encoding: chunked, gzip\r\n", b"0\r\n\r\n"),
        406,
    ),
    **{
        f"{coding} before chunked": (
            build_post(
                WITH_KEY + b"Transfer-Encoding: " + coding.encode() + b", chunked\r\n",
                f"{len(VALID_RECIPIENT):x}\r\n".encode() + VALID_RECIPIENT + b"\r\n0\r\n\r\n",
            ),
            406,
        )
        for coding in ("gzip", "identity", "deflate")
    },
    "an unknown transfer encoding": (
        build_post(WITH_KEY + b"Transfer-Encoding: x\r\n", b"{}"),
        406,
    ),
    "no chunk at all": (build_post(CHUNKED, b"0\r\n\r\n"), 406),
    "an extension of a chunk": (build_post(CHUNKED, b"2;a=b\r\n[]\r\n0\r\n\r\n"), 406),
    "a trailer": (build_post(CHUNKED, b"2\r\n[]\r\n0\r\nX-API-Key: other\r\n\r\n"), 406),
    "a length that is no number": (build_post(WITH_KEY + b"Content-Length: two\r\n", b"{}"), 406),
    "a negative length": (build_post(WITH_KEY + b"Content-Length: -2\r\n", b"{}"), 406),
    "a length with a sign": (build_post(WITH_KEY + b"Content-Length: +2\r\n", b"{}"), 406),
    "a length with a point": (build_post(WITH_KEY + b"Content-Length: 2.0\r\n", b"{}"), 406),
    "an empty length": (build_post(WITH_KEY + b"Content-Length:\r\n", b"{}"), 406),
    "a length beyond counting": (
        build_post(WITH_KEY + b"Content-Length: " + b"9" * 40 + b"\r\n"),
        406,
    ),
    "two lengths": (
        build_post(WITH_KEY + b"Content-Length: 2\r\nContent-Length: 3\r\n", b"{}}"),
        406,
    ),
    "two lengths that agree": (
        build_post(WITH_KEY + b"Content-Length: 2\r\nContent-Length: 2\r\n", b"[]"),
        406,
    ),
    "two lengths in one header": (build_post(WITH_KEY + b"Content-Length: 2, 2\r\n", b"{}"), 406),
    "a length over the limit": (build_post(WITH_KEY + b"Content-Length: 99999999\r\n", b"{}"), 413),
    "no body": (build_post(WITH_KEY), 406),
    "a body that is not gzip as it says": (
        build_post_with_length(b"hello", b"Content-Encoding: gzip\r\n"),
        406,
    ),
    "a body that is not deflate as it says": (
        build_post_with_length(b"he", b"Content-Encoding: deflate\r\n"),
        406,
    ),
    "gzip that is cut off": (
        build_post_with_length(
            gzip.compress(b'{"type":"individual"}')[:-9], b"Content-Encoding: gzip\r\n"
        ),
        406,
    ),
    "gzip that grows over the limit": (
        build_post_with_length(gzip.compress(b" " * 1_000_000), b"Content-Encoding: gzip\r\n"),
        413,
    ),
    "an encoding nobody knows": (build_post_with_length(b"hello", b"Content-Encoding: x\r\n"), 406),
    "a charset nobody knows": (
        build_post_with_length(b"{}", b"Content-Type: application/json; charset=x\r\n"),
        406,
    ),
    "UTF-16": (build_post_with_length('{"type":"individual"}'.encode("utf-16")), 406),
    "bytes that are no text": (build_post_with_length(b"\xff\xfe\xfd"), 406),
    "a form": (
        build_post_with_length(b"type=individual", b"Content-Type: multipart/form-data\r\n"),
        406,
    ),
    "an expectation nobody knows": (build_post_with_length(b"[]", b"Expect: miracles\r\n"), 406),
}

UPGRADES = {
    "an upgrade to websocket": (
        build_get(b"/v1/x", WITH_KEY + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"),
        404,
    ),
    "an upgrade to HTTP/2 with a body": (
        build_post_with_length(
            b"[]", b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n"
        ),
        406,
    ),
    "an upgrade with chunks": (
        build_post(CHUNKED + b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"2\r\n[]\r\n0\r\n\r\n"),
        406,
    ),
    "an upgrade to nothing": (build_get(b"/v1/x", WITH_KEY + b"Connection: Upgrade\r\n"), 404),
    "a connection of every kind": (
        build_get(b"/v1/x", WITH_KEY + b"Connection: close, keep-alive, X-API-Key\r\n"),
        404,
    ),
}

MALFORMED_REQUESTS = {**REQUEST_LINES, **TARGETS, **HEADERS, **BODIES, **UPGRADES}


@pytest.mark.parametrize(
    ("request_", "status"), MALFORMED_REQUESTS.values(), ids=MALFORMED_REQUESTS
)
async def test_malformed_request_is_answered_in_legacy_form(
    gateway_process: GatewayAndService, request_: bytes, status: int | None
) -> None:
    calls = len(gateway_process.simulator.service.list_requests())
    response = await exchange(gateway_process.gateway.port, request_)
    if response is None:
        assert status is CLOSED_WITHOUT_ANSWER
    else:
        assert response.status == status
        assert_legacy(response)
        assert API_KEY.encode() not in response.body
    assert len(gateway_process.simulator.service.list_requests()) == calls
    await _check_valid_request(gateway_process)


async def _check_valid_request(gateway_process: GatewayAndService) -> None:
    response = await exchange(gateway_process.gateway.port, build_get())
    assert response is not None
    assert response.status == 200
    assert_legacy(response)


LATE_ERRORS = {
    "a chunk size that is no number": (CHUNKED, [b"1\r\n{\r\n", b"ZZ\r\n}\r\n"], 406),
    "a chunk longer than it says": (CHUNKED, [b"1\r\n{\r\n", b"1\r\n}}}}\r\n"], 406),
    "a chunk that ends, and no chunk size": (CHUNKED, [b"1\r\n{", b"\r\nZ\r\n}\r\n"], 406),
    "gzip that turns bad": (
        CHUNKED + b"Content-Encoding: gzip\r\n",
        [b"A\r\n" + gzip.compress(b"{}")[:10] + b"\r\n", b"5\r\nhello\r\n0\r\n\r\n"],
        406,
    ),
    "chunks that go over the limit": (
        CHUNKED,
        [b"800\r\n" + b" " * 0x800 + b"\r\n"] * 3,
        413,
    ),
}


@pytest.mark.parametrize(("headers", "parts", "status"), LATE_ERRORS.values(), ids=LATE_ERRORS)
async def test_body_that_becomes_malformed_is_refused_in_legacy_form(
    gateway_process: GatewayAndService, headers: bytes, parts: list[bytes], status: int
) -> None:
    calls = len(gateway_process.simulator.service.list_requests())
    async with await open_connection(gateway_process.gateway.port) as connection:
        await connection.send(build_post(headers))
        for part in parts:
            await asyncio.sleep(0.03)
            await connection.send(part)
        response = await connection.read_response()
    assert response is not None
    assert response.status == status
    assert_legacy(response)
    assert len(gateway_process.simulator.service.list_requests()) == calls
    await _check_valid_request(gateway_process)


PARTIAL_REQUESTS = {
    "in the request line": b"GET /v1/rec",
    "in a header": b"GET /v1/recipients HTTP/1.1\r\nX-API-",
    "before the last empty line": build_get()[:-2],
    "before its body": build_post(WITH_KEY + b"Content-Length: 20\r\n"),
    "in its body": build_post(WITH_KEY + b"Content-Length: 20\r\n", b'{"type":'),
    "in a chunk": build_post(CHUNKED, b'8\r\n{"typ'),
    "before the last chunk": build_post(CHUNKED, b"2\r\n{}\r\n"),
}


@pytest.mark.parametrize("request_", PARTIAL_REQUESTS.values(), ids=PARTIAL_REQUESTS)
async def test_client_disconnect_during_a_request_is_not_an_error(
    gateway_process: GatewayAndService, request_: bytes
) -> None:
    calls, log_length = (
        len(gateway_process.simulator.service.list_requests()),
        len(gateway_process.gateway.parse_log()),
    )
    async with await open_connection(gateway_process.gateway.port) as connection:
        await connection.send(request_)
        await asyncio.sleep(0.03)
    await _check_valid_request(gateway_process)
    assert len(gateway_process.simulator.service.list_requests()) == calls + 1
    new = gateway_process.gateway.parse_log()[log_length:]
    assert not [line for line in new if line["level"] == "error"], "a client's fault, not ours"


@pytest.mark.parametrize("request_", PARTIAL_REQUESTS.values(), ids=PARTIAL_REQUESTS)
async def test_incomplete_request_is_answered_or_closed(
    gateway_process: GatewayAndService, request_: bytes
) -> None:
    response = await exchange(gateway_process.gateway.port, request_, ends_input=True)
    if response is not None:
        assert response.status == 406
        assert_legacy(response)
    await _check_valid_request(gateway_process)


async def test_pipelined_requests_are_answered_in_order(gateway_process: GatewayAndService) -> None:
    unknown_path, without_key = build_get(b"/v1/none"), build_get(headers=b"Host: gateway\r\n")
    async with await open_connection(gateway_process.gateway.port) as connection:
        await connection.send(unknown_path + without_key + unknown_path + without_key)
        responses = [await connection.read_response() for _ in range(4)]
    assert [response.status for response in responses if response] == [404, 403, 404, 403]


async def test_many_pipelined_requests_are_all_answered(gateway_process: GatewayAndService) -> None:
    async with await open_connection(gateway_process.gateway.port) as connection:
        await connection.send(build_get(b"/v1/none") * 200)
        responses = [await connection.read_response() for _ in range(200)]
    assert [response.status for response in responses if response] == [404] * 200


async def test_data_after_a_malformed_request_is_not_read(
    gateway_process: GatewayAndService,
) -> None:
    calls = len(gateway_process.simulator.service.list_requests())
    async with await open_connection(gateway_process.gateway.port) as connection:
        await connection.send(build_get(headers=WITH_KEY + b"Broken\r\n") + build_get())
        response = await connection.read_response()
        assert response is not None
        assert response.status == 406
        assert await connection.wait_closed()
    assert len(gateway_process.simulator.service.list_requests()) == calls


async def test_body_is_not_read_as_the_next_request(gateway_process: GatewayAndService) -> None:
    hidden_request = build_get(b"/v1/recipients?search=hidden")
    async with await open_connection(gateway_process.gateway.port) as connection:
        await connection.send(
            build_post(b"Host: x\r\nContent-Length: %d\r\n" % len(hidden_request), hidden_request)
        )
        await connection.send(build_get(b"/v1/none"))
        responses = [await connection.read_response() for _ in range(2)]
    assert [response.status for response in responses if response] == [403, 404]
    assert not [
        call
        for call in gateway_process.simulator.service.list_requests()
        if "hidden" in call.target
    ]


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
async def test_connection_stays_open_after_a_refused_upgrade(
    gateway_process: GatewayAndService, protocol: bytes
) -> None:
    headers = WITH_KEY + b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\n"
    async with await open_connection(gateway_process.gateway.port) as connection:
        await connection.send(build_post_with_length(b"[]", headers.removeprefix(WITH_KEY)))
        upgrade = await connection.read_response()
        await connection.send(build_get(headers=b"Host: gateway\r\n"))
        next_response = await connection.read_response()
    assert upgrade is not None
    assert next_response is not None
    assert (upgrade.status, next_response.status) == (406, 403)


async def test_key_in_a_malformed_header_is_not_repeated_or_logged(
    gateway_process: GatewayAndService,
) -> None:
    secret = b"key-in-a-malformed-header"
    for malformed_header in (
        b"X-API-Key " + secret + b"\r\n",
        b"X-API-Key: " + secret + b"\0\r\n",
        b"X-API-Key: " + secret + b"\r\n " + secret + b"\r\n",
        secret + b"\r\n",
        secret * 400 + b": a\r\n",
    ):
        response = await exchange(
            gateway_process.gateway.port, build_get(headers=b"Host: x\r\n" + malformed_header)
        )
        assert response is not None
        assert secret not in response.body
        assert secret.decode() not in json.dumps(response.headers)
    response = await exchange(gateway_process.gateway.port, secret + b" / HTTP/1.1\r\n\r\n")
    assert response is not None
    assert secret not in response.body
    assert secret.decode() not in gateway_process.gateway.read_log()


async def test_malformed_requests_log_no_traceback_or_key(
    gateway_process: GatewayAndService,
) -> None:
    assert await exchange(
        gateway_process.gateway.port, build_get()
    )  # others may have run in another process
    await wait_until(lambda: bool(gateway_process.gateway.parse_log()))
    log = gateway_process.gateway.read_log()
    assert "Traceback" not in log
    assert API_KEY not in log
