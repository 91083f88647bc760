"""Clients that disconnect directly after their answer: two answered requests are two requests."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.payouts import open_gateway_and_service
from tests.processes import build_configuration, run_installed_command, run_serve
from tests.running_gateway import KEY
from tests.simulator import Service, start_simulator

REPETITIONS = 5
DESCRIPTION_LENGTH = 30_000
"""Characters: the answer exceeds the receive buffer of a slow client."""
PAUSE_SECONDS = 0.3
"""Longer than the longest interval between two checks for acknowledgements."""

BODY = json.dumps({"sourceCurrency": "USD", "description": "x" * DESCRIPTION_LENGTH}).encode()
REQUEST = (
    b"POST /v1/batches HTTP/1.1\r\nHost: gateway\r\nX-API-Key: %s\r\nContent-Length: %d\r\n\r\n%s"
    % (KEY["api_key"].encode(), len(BODY), BODY)
)


def request_and_close(port: int) -> int:
    """Returns the status of a response and closes the connection once its last byte has been read.

    The last byte is acknowledged and the connection closed between two checks of the gateway.
    """
    with connect_slow_reader(port) as connection:
        connection.sendall(REQUEST)
        select.select([connection], [], [], 10)
        time.sleep(PAUSE_SECONDS)
        head = read_response_head(connection)
    return int(head.split()[1])


def connect_slow_reader(port: int) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(10)
    connection.connect(("127.0.0.1", port))
    return connection


def read_response_head(connection: socket.socket) -> bytes:
    """Reads a whole response, and returns its head."""
    response = b""
    while b"\r\n\r\n" not in response:
        response += connection.recv(65536)
    head, _, body = response.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head


def repeat_during_delivery(port: int) -> bytes:
    """Repeats a request while its response is being delivered, but with a body that comes later.

    Returns the head of the second response.
    """
    with connect_slow_reader(port) as first, connect_slow_reader(port) as second:
        first.sendall(REQUEST)
        select.select([first], [], [], 10)
        second.sendall(REQUEST[:-1])
        time.sleep(PAUSE_SECONDS)
        read_response_head(first)
        time.sleep(PAUSE_SECONDS)
        second.sendall(REQUEST[-1:])
        return read_response_head(second)


@asynccontextmanager
async def run_in_this_process(folder: Path, service: Service) -> AsyncIterator[int]:
    async with open_gateway_and_service(folder, service) as (gateway, _):
        yield gateway.running.port


@asynccontextmanager
async def run_in_own_process(folder: Path, service: Service) -> AsyncIterator[int]:
    simulator = await start_simulator(service=service)
    (folder / "gateway.toml").write_text(build_configuration(simulator.url))
    try:
        result = await asyncio.to_thread(
            run_installed_command, "keys", "import", "-", folder=folder, stdin=json.dumps(KEY)
        )
        assert result.returncode == 0, result.stderr
        async with run_serve(folder) as gateway:
            yield gateway.port
    finally:
        await simulator.stop()


@pytest.mark.parametrize(
    "gateway", [run_in_this_process, run_in_own_process], ids=["asyncio", "uvloop"]
)
async def test_repeated_answered_request_is_a_new_request(
    gateway: Callable[[Path, Service], AsyncIterator[int]], tmp_path: Path
) -> None:
    service = Service(seed=1)
    async with gateway(tmp_path, service) as port:  # type: ignore[attr-defined]
        for _ in range(REPETITIONS):
            assert await asyncio.to_thread(request_and_close, port) == 200
    assert service.creation_counts["batch"] == REPETITIONS


async def test_request_that_came_during_a_delivery_is_a_retry_for_replay_seconds(
    tmp_path: Path,
) -> None:
    service = Service(seed=1)
    writes = {"replay_seconds": 60}
    async with open_gateway_and_service(tmp_path, service, writes=writes) as (gateway, _):
        head = await asyncio.to_thread(repeat_during_delivery, gateway.running.port)
    assert b"\r\nIdempotent-Replayed: true\r\n" in head
    assert service.creation_counts["batch"] == 1
