"""Data that one request leaves on a connection never becomes part of the next request."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.load_balancers import run_load_balancer
from tests.running_gateway import KEY, open_gateway
from tests.sockets import open_connection

NO_SERVICE = "http://127.0.0.1:9"
REQUEST_WITHOUT_KEY = b"GET /v1/recipients HTTP/1.1\r\nHost: gateway\r\n\r\n"


def build_chunked_request(trailer: str, key: str = "", path: str = "/v1/recipients") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: gateway", "Transfer-Encoding: chunked"]
    lines += [f"X-API-Key: {key}"] if key else []
    return "\r\n".join([*lines, "", "2", "{}", "0", trailer, "", ""]).encode()


async def read_statuses(port: int, parts: list[bytes], max_count: int = 100) -> list[int]:
    """Returns the statuses of all answers on one connection until the server closes it."""
    async with await open_connection(port) as connection:
        for part in parts:
            try:
                await connection.send(part)
            except ConnectionError:
                break
            await asyncio.sleep(0)
        statuses = []
        while (
            len(statuses) < max_count and (response := await connection.read_response()) is not None
        ):
            statuses.append(response.status)
        return statuses


@pytest.mark.parametrize("key", ["", KEY["api_key"]])
@pytest.mark.parametrize("size", [10_000, 150, 1])
async def test_trailer_does_not_become_a_header_of_the_next_request(
    tmp_path: Path, key: str, size: int
):
    async with open_gateway(tmp_path, NO_SERVICE) as gateway:
        first = build_chunked_request(f"X-API-Key: {KEY['api_key']}", key)
        data = first + b"GET /v1/recipients HTTP/1.1\r\nHost: gateway\r\n\r\n"
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        statuses = await read_statuses(gateway.running.port, parts, max_count=2)
        assert statuses == [406 if key else 403, 403]


async def test_admin_connection_closes_after_a_chunked_request(tmp_path: Path):
    async with open_gateway(tmp_path, NO_SERVICE) as gateway:
        port = gateway.running.admin_port
        data = (
            build_chunked_request("Host: elsewhere", path="/freeze")
            + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        assert len(await read_statuses(port, [data])) == 1


async def test_connection_stays_open_after_a_body_with_content_length(tmp_path: Path):
    async with open_gateway(tmp_path, NO_SERVICE) as gateway:
        head = f"POST /v1/recipients HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY['api_key']}\r\n"
        data = f"{head}Content-Length: 2\r\n\r\n{{}}".encode()
        async with await open_connection(gateway.running.port) as connection:
            for _ in range(2):
                await connection.send(data)
                response = await connection.read_response()
                assert response is not None
                assert response.status == 406


@pytest.mark.parametrize(
    "body", ["Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]
)
async def test_connection_closes_after_a_read_with_a_body(tmp_path: Path, body: str):
    async with open_gateway(tmp_path, NO_SERVICE) as gateway:
        head = "GET /v1/geography/countries/US HTTP/1.1\r\nHost: x\r\n"
        data = f"{head}{body}".encode() + REQUEST_WITHOUT_KEY
        assert await read_statuses(gateway.running.port, [data]) == [200]


@pytest.mark.skipif(not shutil.which("haproxy"), reason="HAProxy is not installed")
async def test_trailer_reaches_no_other_client_through_haproxy(tmp_path: Path):
    async with open_gateway(tmp_path, NO_SERVICE) as gateway:
        async with run_load_balancer("haproxy", gateway.running.port, tmp_path) as port:
            for _ in range(60):
                await read_statuses(
                    port, [build_chunked_request(f"X-API-Key: {KEY['api_key']}")], max_count=1
                )
                assert await read_statuses(port, [REQUEST_WITHOUT_KEY], max_count=1) == [403]


async def test_each_request_of_a_connection_has_its_own_header_fields(tmp_path: Path):
    async with open_gateway(tmp_path, NO_SERVICE) as gateway:
        with_key = [f"X-API-Key: {KEY['api_key']}"]
        other_case = [f"x-api-key: {KEY['api_key']}"]
        wrong_key = [f"X-API-Key: {KEY['api_key']}0"]
        requests = [
            with_key,
            with_key,
            wrong_key,
            [],
            with_key,
            [*with_key, *wrong_key],
            other_case,
        ]
        data = b"".join(
            "\r\n".join(["GET /v1/recipients/R-0 HTTP/1.1", "Host: x", *lines, "", ""]).encode()
            for lines in requests
        )
        statuses = await read_statuses(gateway.running.port, [data], max_count=len(requests))
        assert statuses == [500, 500, 403, 403, 500, 403, 500]
