"""Clients that prove nothing, or read nothing, do not keep others from being served."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.house import House
from tests.signed import CLIENT, OK, open_signed, recording, says
from tests.sockets import wire

MOST = 40


@asynccontextmanager
async def small_gateway(folder: Path) -> AsyncIterator[House]:
    async with recording(says(OK)) as recorder:
        async with open_signed(folder, recorder.url, load={"connections": MOST}) as house:
            yield house


def half_signed_body() -> bytes:
    """A request with a known access key and a fresh stamp; its signature is wrong, its body never comes."""
    whole = CLIENT.request("POST", "/v1/recipients", b"x" * 1000)
    return whole[: whole.index(b"\r\n\r\n") + 5]


def unread_answers() -> bytes:
    return b"GET /v1/x HTTP/1.1\r\nHost: gateway\r\n\r\n" * 1500


async def attack(port: int, data: bytes, stack: AsyncExitStack) -> None:
    """Opens twice as many connections as there may be, and reads nothing on any of them."""
    for _ in range(2 * MOST):
        one = socket.socket()
        stack.callback(one.close)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
        one.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(one, ("127.0.0.1", port))
        try:
            async with asyncio.timeout(0.05):
                await loop.sock_sendall(one, data)
        except (TimeoutError, ConnectionError):
            continue


@pytest.mark.parametrize("data", [half_signed_body, unread_answers])
async def test_client_with_a_key_is_served_beside_stalled_ones(
    tmp_path: Path, data: Callable[[], bytes]
):
    async with small_gateway(tmp_path) as house, AsyncExitStack() as stack:
        await attack(house.running.port, data(), stack)
        for _ in range(10):
            got = await house.ask("GET", "/v1/profile/balances")
            assert got.status in (200, 500)  # the fake service's answer is no balance


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
