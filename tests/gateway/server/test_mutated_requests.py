"""Random requests, with mistakes and in random pieces: the connection survives all of them."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import pytest

from gateway.http.request import BodyIncomplete, HttpRequest
from gateway.http.responses import HttpResponse
from gateway.server.connection import Connection
from gateway.server.http_server import HttpServer
from tests.gateway.server.test_connection import BOUNDS, read_whole_body

HEAD = b" HTTP/1.1\r\nHost: x\r\n"
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nabc\r\n0\r\nT: v\r\n\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
REQUESTS = [
    b"GET /a?b=c" + HEAD + b"X-Y: z\r\n\r\n",
    b"POST /b" + HEAD + b"Content-Length: 5\r\n\r\nhello",
    b"POST /c" + HEAD + CHUNKS,
    b"POST /d" + HEAD + UPGRADE + b"Content-Length: 3\r\n\r\nabc",
    b"POST /e" + HEAD + UPGRADE + CHUNKS,
    b"GET /f HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
]
INSERTIONS = [b"\r\n", b"\n", b"\0", b" ", b":", b"0", b"A" * 9000, b"A" * 70_000, b"\r\n\r\n"]
CHANGING_HEADERS = re.compile(rb"\r\n(Date|X-Request-Id): [^\r]*")


class FakeTransport(asyncio.Transport):
    """Records what is written, and whether the connection reads and is open."""

    def __init__(self) -> None:
        super().__init__()
        self.output = b""
        self.is_open = self.is_read = True

    def write(self, data: Any) -> None:
        self.output += bytes(data)

    def is_closing(self) -> bool:
        return not self.is_open

    def close(self) -> None:
        self.is_open = False

    abort = close

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


async def echo_what_arrives(request: HttpRequest) -> HttpResponse:
    try:
        body = await read_whole_body(request)
    except BodyIncomplete:
        body = b"incomplete"
    return HttpResponse(200, {}, request.method.encode(), request.raw_path.encode(), body)


async def exchange(server: HttpServer, data: bytes, numbers: random.Random | None) -> bytes:
    """Sends the data, in random pieces if there are ``numbers``; returns the answers."""
    connection, transport = server(), FakeTransport()
    assert isinstance(connection, Connection)
    connection.connection_made(transport)
    while data and transport.is_open:
        if transport.is_read:
            size = numbers.choice([1, 7, 50, 20_000]) if numbers else len(data)
            connection.data_received(data[:size])
            data = data[size:]
        await asyncio.sleep(0)
    for _ in range(3000):  # a request whose body is incomplete waits for more
        if not (server.request_tasks and transport.is_open):
            break
        await asyncio.sleep(0)
    else:
        assert transport.is_read, "neither answered nor waiting for the client"
    connection.connection_lost(None)
    await asyncio.wait_for(asyncio.gather(*server.request_tasks), 5)
    return CHANGING_HEADERS.sub(b"", transport.output)


def mutate(data: bytearray, numbers: random.Random) -> None:
    for _ in range(numbers.randint(1, 3)):
        position = numbers.randrange(len(data))
        match numbers.randrange(3):
            case 0:
                data[position] = numbers.randrange(256)
            case 1:
                del data[position : position + numbers.randint(1, min(9, len(data) - 1))]
            case 2:
                data[position:position] = numbers.choice(INSERTIONS)


@pytest.mark.parametrize("seed", range(4))
async def test_random_requests_are_answered_alike_however_they_are_cut(seed: int) -> None:
    numbers, server = random.Random(seed), HttpServer(echo_what_arrives, BOUNDS)
    for _ in range(20):
        data = b"".join(numbers.choices(REQUESTS, k=numbers.randint(1, 300)))
        answers = await exchange(server, data, None)
        assert answers.count(b" 200 OK\r\n") == len(re.findall(rb" HTTP/1\.", data))
        assert await exchange(server, data, numbers) == answers
    assert not server.connections


@pytest.mark.parametrize("seed", range(4))
async def test_mistakes_in_requests_never_break_the_server(seed: int) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, failure: failures.append(failure)
    )
    numbers, server = random.Random(seed), HttpServer(echo_what_arrives, BOUNDS)
    for _ in range(150):
        data = bytearray(b"".join(numbers.choices(REQUESTS, k=numbers.randint(1, 5))))
        mutate(data, numbers)
        answers = await exchange(server, bytes(data), numbers)
        assert not answers or answers.startswith(b"HTTP/1.")
        assert b" 500 " not in answers
    assert not server.connections
    assert not server.request_tasks
    assert failures == []
