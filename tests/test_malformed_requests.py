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
CHUNKED = WITH_KEY + b"Transfer-Encoding: chunked\r\n"


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
