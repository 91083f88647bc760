"""Requests that are written byte for byte, each with its expected answers and the reason
(tests/raw).

The gateway is a process of its own, as it is deployed, in front of the simulator. Each test checks
the answers (all in legacy form, in number and order), the state of the connection, the upstream
calls, and that no client data is repeated or logged.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.gateway_process import GatewayAndService, open_gateway_process
from tests.processes import Process
from tests.raw.bodies import BODIES
from tests.raw.framing import FRAMING
from tests.raw.heads import HEADS
from tests.raw.rows import CANARY, CHUNKED, HOST, RawCase, build_get, build_post
from tests.running_gateway import KEY
from tests.sockets import RawConnection, RawResponse, assert_legacy, open_connection

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROWS = {**FRAMING, **HEADS, **BODIES}
BODY_BYTES = 100_000
LAST_REQUEST = build_get("/v1/last", f"{HOST}Connection: close\r\n").encode()
"""Sent after each row that leaves the connection open: it must be read as the request it is."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gateway_process(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[GatewayAndService]:
    async with open_gateway_process(
        tmp_path_factory.mktemp("place"), BODY_BYTES
    ) as running_process:
        yield running_process
        _assert_log_has_no_errors_or_secrets(running_process.gateway)


def _assert_log_has_no_errors_or_secrets(gateway: Process) -> None:
    lines = gateway.parse_log()
    assert lines
    assert not [line for line in lines if line["level"] == "error"]
    log = gateway.read_log()
    for word in ("Traceback", CANARY, KEY["api_key"]):
        assert word not in log


async def test_rows_are_complete_and_explained() -> None:
    assert len(ROWS) >= 150
    assert all(row.reason for row in ROWS.values())
    assert {row.then for row in ROWS.values()} == {"on", "stays", "closed", "lingers", "ended"}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_raw_request_gets_the_expected_answers(
    gateway_process: GatewayAndService, row: RawCase
) -> None:
    request_count = len(gateway_process.simulator.service.requests)
    async with await open_connection(gateway_process.gateway.port) as connection:
        responses = await _read_answers(connection, row)
    expected_statuses = [*row.list_statuses, *([404] if row.then in ("on", "stays") else [])]
    assert [response.status for response in responses] == expected_statuses, row.reason
    for response in responses:
        _assert_answer_has_no_secrets(response)
    calls = [
        f"{request.method} {request.path}"
        for request in list(gateway_process.simulator.service.requests)[request_count:]
    ]
    assert calls == list(row.calls), row.reason


async def _read_answers(connection: RawConnection, row: RawCase) -> list[RawResponse]:
    await connection.send(row.data + (LAST_REQUEST if row.then == "on" else b""))
    if row.then == "ended":
        connection.send_eof()
    responses: list[RawResponse] = []
    if row.then in ("stays", "lingers"):
        responses += [
            response for _ in row.list_statuses if (response := await connection.read_response())
        ]
        await connection.send(LAST_REQUEST)
    if row.then == "lingers":
        assert await connection.check_silent()
        return responses
    bodiless = row.data.startswith(b"HEAD ")
    while response := await connection.read_response(bodiless=bodiless and not responses):
        responses.append(response)
    return responses


def _assert_answer_has_no_secrets(response: RawResponse) -> None:
    if response.body:
        assert_legacy(response)
    response_text = response.body.decode() + json.dumps(response.headers)
    assert CANARY not in response_text.lower()
    assert KEY["api_key"] not in response_text


LATE_ERRORS = {
    "a chunk size that is no number": ("", [b"1\r\n{\r\n", b"ZZ\r\n}\r\n"], 406),
    "a chunk longer than it says": ("", [b"1\r\n{\r\n", b"1\r\n}}}}\r\n"], 406),
    "a chunk that ends, and no chunk size": ("", [b"1\r\n{", b"\r\nZ\r\n}\r\n"], 406),
    "gzip that turns bad": (
        "Content-Encoding: gzip\r\n",
        [b"A\r\n" + gzip.compress(b"{}")[:10] + b"\r\n", b"5\r\nhello\r\n0\r\n\r\n"],
        406,
    ),
    "chunks that go over the limit": ("", [b"9000\r\n" + b" " * 0x9000 + b"\r\n"] * 3, 413),
}
"""Headers, the parts of a body as they come, and the status."""


@pytest.mark.parametrize(("headers", "parts", "status"), LATE_ERRORS.values(), ids=LATE_ERRORS)
async def test_body_that_becomes_malformed_is_refused(
    gateway_process: GatewayAndService, headers: str, parts: list[bytes], status: int
) -> None:
    request_count = len(gateway_process.simulator.service.requests)
    async with await open_connection(gateway_process.gateway.port) as connection:
        await connection.send(build_post(f"{CHUNKED}{headers}").encode())
        for part in parts:
            await asyncio.sleep(0.03)
            await connection.send(part)
        response = await connection.read_response()
    assert response is not None
    assert response.status == status
    assert_legacy(response)
    assert len(gateway_process.simulator.service.requests) == request_count
