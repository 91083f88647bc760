"""Clients that hold connections, with or without a key, do not prevent service to others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from random import Random

import pytest

from gateway.http import request_reader
from gateway.server import app
from gateway.server import connection as connection_module
from tests.running_gateway import KEY, GatewayUnderTest
from tests.signed_requests import (
    CLIENT,
    EMPTY_LIST,
    open_raw_service,
    open_signed_gateway,
    respond_with,
)
from tests.sockets import exchange, open_connection, wait_until
from tests.test_load_shedding import (
    BOLT_KEY,
    ConcurrentClients,
    open_gated_gateway,
    require_response,
)

MAX_CONNECTIONS = 40
NEVER_SECONDS = 600.0
"""Longer than clients of the tests wait for a response."""


@pytest.fixture(autouse=True)
def disable_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the timeouts of held connections, so that no client is served only because of one."""
    monkeypatch.setattr(app, "HEAD_SECONDS", NEVER_SECONDS)
    monkeypatch.setattr(app, "PRESSED_SECONDS", NEVER_SECONDS)
    monkeypatch.setattr(request_reader, "BODY_SECONDS", NEVER_SECONDS)
    monkeypatch.setattr(connection_module, "WRITE_STALL_SECONDS", NEVER_SECONDS)


@asynccontextmanager
async def open_small_gateway(folder: Path) -> AsyncIterator[GatewayUnderTest]:
    async with open_raw_service(respond_with(EMPTY_LIST)) as recorder:
        load = {"connections": MAX_CONNECTIONS, "idle_seconds": NEVER_SECONDS}
        async with open_signed_gateway(folder, recorder.url, BOLT_KEY, load=load) as gateway:
            yield gateway


def build_request(method: str, target: str, *lines: str, key: str = KEY["api_key"]) -> bytes:
    request_line = f"{method} {target} HTTP/1.1"
    return "\r\n".join(
        [request_line, "Host: gateway", f"X-API-Key: {key}", *lines, "", ""]
    ).encode()


BALANCES_REQUEST = build_request("GET", "/v1/profile/balances")
PARTIAL_WRITE = build_request("POST", "/v1/recipients", "Content-Length: 1000") + b"{"
SIGNED_REQUEST = CLIENT.build_request("POST", "/v1/recipients", b"x" * 1000)
OTHER_SIGNED_REQUEST = CLIENT.build_request("POST", "/v1/recipients", b"y" * 1000)

HELD_DATA = {
    "silent": b"",
    "idle": BALANCES_REQUEST,
    "idle without a key": b"GET /v1/x HTTP/1.1\r\nHost: gateway\r\n\r\n",
    "half a head": BALANCES_REQUEST[:-2],
    "half a body": PARTIAL_WRITE,
    "half a second body": BALANCES_REQUEST + PARTIAL_WRITE,
    "half a signed body": SIGNED_REQUEST[:-999],
    "a signed body with a wrong signature": OTHER_SIGNED_REQUEST.replace(b"y" * 1000, b"x"),
    "unread responses without a key": b"GET /v1/x HTTP/1.1\r\nHost: gateway\r\n\r\n" * 1500,
    "unread responses": BALANCES_REQUEST * 1500,
    "unread response to a write": BALANCES_REQUEST * 20
    + build_request("POST", "/v1/batches", "Content-Length: 24")
    + b'{"sourceCurrency":"USD"}',
}


async def open_held_connection(port: int, data: bytes, stack: AsyncExitStack) -> None:
    """Opens a connection that never reads."""
    client = socket.socket()
    stack.callback(client.close)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", port))
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(0.05):
            await loop.sock_sendall(client, data)
    await asyncio.sleep(0.005)  # it is read before another connection is opened


async def assert_other_client_is_served(gateway: GatewayUnderTest) -> None:
    """Checks that another merchant is served on a new connection."""
    response = await exchange(
        gateway.running.port, build_request("GET", "/v1/profile/balances", key="bolt-api-key")
    )
    assert response is not None, "closed without a response"
    assert response.status == 200


@pytest.mark.parametrize("kind", HELD_DATA)
async def test_client_with_a_key_is_served_beside_held_connections(tmp_path: Path, kind: str):
    async with open_small_gateway(tmp_path) as gateway, AsyncExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS):
            await open_held_connection(gateway.running.port, HELD_DATA[kind], stack)
        for _ in range(10):
            await assert_other_client_is_served(gateway)


@pytest.mark.parametrize("kind", ["half a body", "half a signed body", "silent"])
@pytest.mark.parametrize(("address", "pause"), [("127.0.0.1", 0.4), ("127.0.0.2", 0.0)])
async def test_client_with_a_key_is_served_while_held_connections_are_opened_again(
    tmp_path: Path, kind: str, address: str, pause: float
):
    """The connections come from the served client's address, as behind a proxy, or another one."""
    pauses = Random(1)
    async with open_small_gateway(tmp_path) as gateway:

        async def hold_connection() -> None:
            while True:
                with suppress(ConnectionError):
                    reader, writer = await asyncio.open_connection(
                        "127.0.0.1", gateway.running.port, local_addr=(address, 0)
                    )
                    writer.write(HELD_DATA[kind])
                    with closing(writer):
                        await reader.read()
                await asyncio.sleep(pauses.uniform(0, pause))

        # Fewer wait to connect than can, or all at once would replace a client not yet read.
        count = MAX_CONNECTIONS * 3 // 2
        holding = [asyncio.create_task(hold_connection()) for _ in range(count)]
        try:
            await asyncio.sleep(0.5)
            for _ in range(20):
                await assert_other_client_is_served(gateway)
        finally:
            for entry in holding:
                entry.cancel()
            await asyncio.gather(*holding, return_exceptions=True)


async def test_request_in_progress_is_not_cut_off(tmp_path: Path):
    async with (
        open_gated_gateway(tmp_path, connections=MAX_CONNECTIONS) as (gateway, _recorder, service),
        AsyncExitStack() as stack,
    ):
        (tasks,) = await ConcurrentClients(gateway, stack).send(BALANCES_REQUEST)
        await wait_until(lambda: gateway.running.load.limiter.running_count == 1)
        for _ in range(2 * MAX_CONNECTIONS):
            await open_held_connection(gateway.running.port, PARTIAL_WRITE, stack)
        await assert_other_client_is_served(gateway)
        service.is_open.set()
        assert (await require_response(tasks)).status == 200


async def test_partial_requests_to_the_admin_port_do_not_block_it(tmp_path: Path):
    async with open_small_gateway(tmp_path) as gateway, AsyncExitStack() as stack:
        partial_request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "
        for _ in range(200):
            connection = await open_connection(gateway.running.admin_port)
            stack.push_async_callback(connection.close)
            await connection.send(partial_request)
        await asyncio.sleep(0)
        async with await open_connection(gateway.running.admin_port) as connection:
            await connection.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            response = await connection.read_response()
            assert response is not None
            assert response.status == 200
        assert (await gateway.request("GET", "/v1/geography/countries/US")).status == 200
