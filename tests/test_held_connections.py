"""Clients that hold connections, with or without a key, do not prevent service to others."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from random import Random

import pytest

from tests.house import KEY, House
from tests.signed import CLIENT, NOTHING_HELD, open_signed, recording, says
from tests.sockets import heard, until, wire
from tests.test_load import BOLT, Crowd, answer, gated

MOST = 40
SECONDS = 2
"""The longest time to serve a client with a key; the body timeout is four times as long."""


@asynccontextmanager
async def small_gateway(folder: Path) -> AsyncIterator[House]:
    async with recording(says(NOTHING_HELD)) as recorder:
        load = {"connections": MOST}
        async with open_signed(folder, recorder.url, BOLT, load=load) as house:
            yield house


def request(method: str, target: str, *lines: str, key: str = KEY["api_key"]) -> bytes:
    first = f"{method} {target} HTTP/1.1"
    return "\r\n".join([first, "Host: gateway", f"X-API-Key: {key}", *lines, "", ""]).encode()


BALANCES = request("GET", "/v1/profile/balances")
BODY = request("POST", "/v1/recipients", "Content-Length: 1000") + b"{"
SIGNED = CLIENT.request("POST", "/v1/recipients", b"x" * 1000)
ANOTHER = CLIENT.request("POST", "/v1/recipients", b"y" * 1000)

HELD = {
    "silent": b"",
    "idle": BALANCES,
    "idle without a key": b"GET /v1/x HTTP/1.1\r\nHost: gateway\r\n\r\n",
    "half a head": BALANCES[:-2],
    "half a body": BODY,
    "half a second body": BALANCES + BODY,
    "half a signed body": SIGNED[:-999],
    "a signed body with a wrong signature": ANOTHER.replace(b"y" * 1000, b"x"),
    "unread responses without a key": b"GET /v1/x HTTP/1.1\r\nHost: gateway\r\n\r\n" * 1500,
    "unread responses": BALANCES * 1500,
    "unread response to a write": BALANCES * 20
    + request("POST", "/v1/batches", "Content-Length: 24")
    + b'{"sourceCurrency":"USD"}',
}


async def open_held(port: int, data: bytes, stack: AsyncExitStack) -> None:
    """Opens a connection that never reads."""
    one = socket.socket()
    stack.callback(one.close)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
    one.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(one, ("127.0.0.1", port))
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(0.05):
            await loop.sock_sendall(one, data)
    await asyncio.sleep(0.005)  # it is read before another connection is opened


async def assert_is_served(house: House) -> None:
    """Checks that another merchant is served on a new connection."""
    began = time.monotonic()
    got = await heard(
        house.running.port, request("GET", "/v1/profile/balances", key="bolt-api-key")
    )
    assert got is not None, "closed without a response"
    assert got.status == 200
    assert time.monotonic() - began < SECONDS


@pytest.mark.parametrize("kind", HELD)
async def test_client_with_a_key_is_served_beside_held_connections(tmp_path: Path, kind: str):
    async with small_gateway(tmp_path) as house, AsyncExitStack() as stack:
        for _ in range(2 * MOST):
            await open_held(house.running.port, HELD[kind], stack)
        for _ in range(10):
            await assert_is_served(house)


@pytest.mark.parametrize("kind", ["half a body", "half a signed body", "silent"])
@pytest.mark.parametrize(("address", "pause"), [("127.0.0.1", 0.4), ("127.0.0.2", 0.0)])
async def test_client_with_a_key_is_served_while_held_connections_are_opened_again(
    tmp_path: Path, kind: str, address: str, pause: float
):
    """The connections come from the served client's address, as behind a proxy, or another one."""
    pauses = Random(1)
    async with small_gateway(tmp_path) as house:

        async def hold() -> None:
            while True:
                with suppress(ConnectionError):
                    reader, writer = await asyncio.open_connection(
                        "127.0.0.1", house.running.port, local_addr=(address, 0)
                    )
                    writer.write(HELD[kind])
                    with closing(writer):
                        await reader.read()
                await asyncio.sleep(pauses.uniform(0, pause))

        holding = [asyncio.create_task(hold()) for _ in range(2 * MOST)]
        try:
            await asyncio.sleep(0.5)
            for _ in range(20):
                await assert_is_served(house)
        finally:
            for one in holding:
                one.cancel()
            await asyncio.gather(*holding, return_exceptions=True)


async def test_request_that_is_carried_out_is_not_cut_off(tmp_path: Path):
    async with (
        gated(tmp_path, connections=MOST) as (house, _recorder, gate),
        AsyncExitStack() as stack,
    ):
        (asked,) = await Crowd(house, stack).ask(BALANCES)
        await until(lambda: house.running.load.shares.going == 1)
        for _ in range(2 * MOST):
            await open_held(house.running.port, BODY, stack)
        await assert_is_served(house)
        gate.open.set()
        assert (await answer(asked)).status == 200


async def test_half_sent_requests_to_the_admin_port_are_ended_and_bounded(tmp_path: Path):
    async with small_gateway(tmp_path) as house, AsyncExitStack() as stack:
        half = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "
        for _ in range(200):
            connection = await wire(house.running.admin_port)
            stack.push_async_callback(connection.close)
            await connection.say(half)
        await asyncio.sleep(0)
        async with await wire(house.running.admin_port) as connection:
            await connection.say(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = await connection.answer()
            assert answer is not None
            assert answer.status == 200
        assert (await house.ask("GET", "/v1/geography/countries/US")).status == 200
