"""The circuit breaker: it opens for a service that does not answer, probes it and closes again."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.processes import find_free_port
from tests.running_gateway import KEY, GatewayUnderTest
from tests.signed_requests import (
    CLIENT,
    EMPTY_LIST,
    INTERNAL,
    RecordedRequest,
    build_response,
    extract_error,
    open_raw_service,
    open_signed_gateway,
    respond_with,
)
from tests.sockets import RawResponse, assert_legacy, exchange

READ_REQUEST = (
    f"GET /v1/profile/balances HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY['api_key']}\r\n\r\n".encode()
)
BODY = b'{"type":"individual","firstName":"Ada","lastName":"Byron","email":"ada@example.com"}'
WRITE_REQUEST = (
    b"POST /v1/recipients HTTP/1.1\r\nHost: x\r\nX-API-Key: %b\r\nContent-Length: %d\r\n\r\n%b"
    % (KEY["api_key"].encode(), len(BODY), BODY)
)
UPSTREAM = {"timeout_seconds": 5, "breaker_failures": 3, "breaker_seconds": 30}


async def send_request(gateway: GatewayUnderTest, data: bytes) -> RawResponse:
    response = await exchange(gateway.running.port, data)
    assert response is not None
    return response


def assert_shed(response: RawResponse) -> None:
    assert_legacy(response)
    assert (response.status, response.code) == INTERNAL
    assert 1 <= int(response.headers["retry-after"]) <= 30


async def test_open_circuit_breaker_refuses_requests_of_both_interfaces(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with (
        open_raw_service(respond_with(b"", resets_connection=True)) as recorder,
        open_signed_gateway(tmp_path, recorder.url, upstream=UPSTREAM) as gateway,
    ):
        for _ in range(3):
            assert "retry-after" not in (await send_request(gateway, READ_REQUEST)).headers
        connection_count = recorder.connections
        capfd.readouterr()
        assert_shed(await send_request(gateway, READ_REQUEST))
        assert_shed(await send_request(gateway, WRITE_REQUEST))
        signed_response = await send_request(
            gateway, CLIENT.build_request("POST", "/v1/recipients", BODY)
        )
        assert extract_error(signed_response) == INTERNAL
        assert signed_response.headers["retry-after"]
        assert recorder.connections == connection_count, "nobody knocks any more"
        output = "".join(capfd.readouterr())
        assert re.findall(r"upstream_calls\W+(?:\w*m)?(\d)", output) == ["0"] * 3
        async with gateway.session.get(gateway.running.admin_url + "/readyz") as response:
            assert (await response.json())["circuit_breakers"] == {"sandbox": "open"}


async def test_unreachable_service_is_a_readiness_fault(tmp_path: Path) -> None:
    async with (
        open_signed_gateway(tmp_path, f"http://127.0.0.1:{find_free_port()}") as gateway,
        gateway.session.get(gateway.running.admin_url + "/readyz") as response,
    ):
        body = await response.json()
    assert (body["status"], set(body["faults"])) == ("error", {"environments.sandbox"})


async def test_signed_failures_open_the_circuit_breaker(tmp_path: Path) -> None:
    async with (
        open_raw_service(respond_with(b"", resets_connection=True)) as recorder,
        open_signed_gateway(tmp_path, recorder.url, upstream=UPSTREAM) as gateway,
    ):
        for _ in range(3):
            assert extract_error(await send_request(gateway, CLIENT.build_request())) == INTERNAL
        connection_count = recorder.connections
        assert_shed(await send_request(gateway, READ_REQUEST))
        assert recorder.connections == connection_count


async def test_error_responses_do_not_open_the_circuit_breaker(tmp_path: Path) -> None:
    error_body = b'{"ok":false,"errors":[{"code":"internal_server_error","message":"No."}]}'
    async with (
        open_raw_service(respond_with(build_response(500, error_body))) as recorder,
        open_signed_gateway(tmp_path, recorder.url, upstream=UPSTREAM) as gateway,
    ):
        for status in (500, 400, 404, 429, 503) * 2:
            recorder.respond = respond_with(build_response(status, error_body))
            assert "retry-after" not in (await send_request(gateway, READ_REQUEST)).headers
        assert len(recorder.requests) == 10


async def test_successful_probe_closes_the_circuit_breaker(tmp_path: Path) -> None:
    upstream = {**UPSTREAM, "breaker_seconds": 0.2}
    async with (
        open_raw_service(respond_with(b"", resets_connection=True)) as recorder,
        open_signed_gateway(tmp_path, recorder.url, upstream=upstream) as gateway,
    ):
        for _ in range(3):
            await send_request(gateway, READ_REQUEST)
        release = asyncio.Event()

        async def respond_when_released(
            _request: RecordedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await release.wait()
            writer.write(EMPTY_LIST)

        recorder.respond = respond_when_released
        recorder.requests.clear()
        await asyncio.sleep(0.3)
        probe = asyncio.ensure_future(send_request(gateway, READ_REQUEST))
        while not recorder.requests:  # noqa: ASYNC110 - the recorder tells nobody
            await asyncio.sleep(0.01)
        for _ in range(5):
            assert_shed(await send_request(gateway, READ_REQUEST))
        assert len(recorder.requests) == 1
        release.set()
        assert (await probe).status == 200
        assert (await send_request(gateway, READ_REQUEST)).status == 200


@pytest.mark.parametrize(
    "write", [WRITE_REQUEST, CLIENT.build_request("POST", "/v1/recipients", BODY)]
)
async def test_sent_write_is_answered_as_unknown_outcome(tmp_path: Path, write: bytes) -> None:
    upstream = {**UPSTREAM, "breaker_failures": 1}
    async with (
        open_raw_service(respond_with(b"", resets_connection=True)) as recorder,
        open_signed_gateway(tmp_path, recorder.url, upstream=upstream) as gateway,
    ):
        response = await send_request(gateway, write)
        assert "unknown" in response.parse_json["errors"][0]["message"]
        assert len([request for request in recorder.requests if request.method == "POST"]) == 1
        retry_response = await send_request(gateway, write)
        if write is WRITE_REQUEST:
            # The retry cannot read the outcome, so that the write stays in doubt and nothing is sent.
            assert "unknown" in retry_response.parse_json["errors"][0]["message"]
        assert len([request for request in recorder.requests if request.method == "POST"]) == 1
