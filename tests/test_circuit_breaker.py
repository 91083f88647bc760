"""The circuit breaker: it opens for a service that does not answer, probes it and closes again."""

from __future__ import annotations

import asyncio
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
    answer = await exchange(gateway.running.port, data)
    assert answer is not None
    return answer


def assert_shed(answer: RawResponse) -> None:
    assert_legacy(answer)
    assert (answer.status, answer.code) == INTERNAL
    assert 1 <= int(answer.headers["retry-after"]) <= 30


async def test_open_circuit_breaker_refuses_requests_of_both_interfaces(
    tmp_path: Path,
) -> None:
    async with (
        open_raw_service(respond_with(b"", resets=True)) as recorder,
        open_signed_gateway(tmp_path, recorder.url, upstream=UPSTREAM) as gateway,
    ):
        for _ in range(3):
            assert "retry-after" not in (await send_request(gateway, READ_REQUEST)).headers
        before = recorder.connections
        assert_shed(await send_request(gateway, READ_REQUEST))
        assert_shed(await send_request(gateway, WRITE_REQUEST))
        signed = await send_request(gateway, CLIENT.build_request("POST", "/v1/recipients", BODY))
        assert extract_error(signed) == INTERNAL
        assert signed.headers["retry-after"]
        assert recorder.connections == before, "nobody knocks any more"
        async with gateway.session.get(gateway.running.admin_url + "/readyz") as ready:
            assert (await ready.json())["circuit_breakers"] == {"sandbox": "open"}


async def test_unreachable_service_is_a_readiness_fault(tmp_path: Path) -> None:
    async with (
        open_signed_gateway(tmp_path, f"http://127.0.0.1:{find_free_port()}") as gateway,
        gateway.session.get(gateway.running.admin_url + "/readyz") as ready,
    ):
        body = await ready.json()
    assert (body["status"], set(body["faults"])) == ("error", {"environments.sandbox"})


async def test_signed_failures_open_the_circuit_breaker(tmp_path: Path) -> None:
    async with (
        open_raw_service(respond_with(b"", resets=True)) as recorder,
        open_signed_gateway(tmp_path, recorder.url, upstream=UPSTREAM) as gateway,
    ):
        for _ in range(3):
            assert extract_error(await send_request(gateway, CLIENT.build_request())) == INTERNAL
        before = recorder.connections
        assert_shed(await send_request(gateway, READ_REQUEST))
        assert recorder.connections == before


async def test_error_responses_do_not_open_the_circuit_breaker(tmp_path: Path) -> None:
    trouble = b'{"ok":false,"errors":[{"code":"internal_server_error","message":"No."}]}'
    async with (
        open_raw_service(respond_with(build_response(500, trouble))) as recorder,
        open_signed_gateway(tmp_path, recorder.url, upstream=UPSTREAM) as gateway,
    ):
        for status in (500, 400, 404, 429, 503) * 2:
            recorder.play = respond_with(build_response(status, trouble))
            assert "retry-after" not in (await send_request(gateway, READ_REQUEST)).headers
        assert len(recorder.requests) == 10


async def test_successful_probe_closes_the_circuit_breaker(tmp_path: Path) -> None:
    upstream = {**UPSTREAM, "breaker_seconds": 0.2}
    async with (
        open_raw_service(respond_with(b"", resets=True)) as recorder,
        open_signed_gateway(tmp_path, recorder.url, upstream=upstream) as gateway,
    ):
        for _ in range(3):
            await send_request(gateway, READ_REQUEST)
        release = asyncio.Event()

        async def respond_when_released(
            _written: RecordedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await release.wait()
            writer.write(EMPTY_LIST)

        recorder.play = respond_when_released
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
        open_raw_service(respond_with(b"", resets=True)) as recorder,
        open_signed_gateway(tmp_path, recorder.url, upstream=upstream) as gateway,
    ):
        answer = await send_request(gateway, write)
        assert "unknown" in answer.parse_json["errors"][0]["message"]
        assert len([request for request in recorder.requests if request.method == "POST"]) == 1
        retried = await send_request(gateway, write)
        if write is WRITE_REQUEST:
            # Its retry cannot read what became of it: that stays open, and nothing is sent.
            assert "unknown" in retried.parse_json["errors"][0]["message"]
        assert len([request for request in recorder.requests if request.method == "POST"]) == 1
