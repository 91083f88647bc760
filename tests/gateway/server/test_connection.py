"""The server of the client port, with handlers of the tests."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from multidict import CIMultiDict

from gateway.admission.load import ConnectionBounds
from gateway.http.request import HttpRequest
from gateway.http.responses import (
    HttpResponse,
    LegacyResponse,
    StreamedResponse,
    build_http_response,
)
from gateway.server import connection as connection_module
from gateway.server.connection import (
    MAX_QUEUED_REQUESTS,
    MAX_UNREAD_BODY_BYTES,
    Connection,
    RequestHandler,
)
from gateway.server.http_server import HttpServer
from gateway.server.request_parser import MAX_PARSED_BYTES
from tests.sockets import RawConnection, open_connection, wait_until

BOUNDS = ConnectionBounds(
    max_connections=10,
    head_seconds=20,
    idle_seconds=20,
    pressed_seconds=0.2,
    response_bytes=10_000_000,
)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
MANY = 2000


@asynccontextmanager
async def serve(
    handler: RequestHandler, *, shutdown_seconds: float = 5
) -> AsyncIterator[tuple[HttpServer, RawConnection]]:
    """Runs a server; yields it with an open connection."""
    server = HttpServer(handler, BOUNDS, shutdown_seconds=shutdown_seconds)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    try:
        port = listener.sockets[0].getsockname()[1]
        async with server, await open_connection(port) as connection:
            yield server, connection
    finally:
        listener.close()


async def read_whole_body(request: HttpRequest) -> bytes:
    body = bytearray()
    while part := await request.body.read_available():
        body += part
    return bytes(body)


async def echo(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, {}, request.raw_path.encode(), await read_whole_body(request))


async def read_bodies(connection: RawConnection, count: int) -> list[bytes]:
    responses = [await connection.read_response() for _ in range(count)]
    return [response.body for response in responses if response is not None]


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 4\r\n\r\nbody",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX: y\r\n\r\n",
    ],
)
@pytest.mark.parametrize("upgrade", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_requests_are_separated_however_they_are_cut(
    framing: bytes, upgrade: bytes, size: int
) -> None:
    data = b"POST /a HTTP/1.1\r\nHost: x\r\n" + upgrade + framing + GET
    async with serve(echo) as (_server, connection):
        for start in range(0, len(data), size):
            await connection.send(data[start : start + size])
            await asyncio.sleep(0)
        assert await read_bodies(connection, 2) == [b"/abody", b"/"]


async def test_request_has_arrived_when_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the process is paused then: what was answered elsewhere meanwhile came later."""
    read_times: list[float] = []
    receive = Connection.data_received

    def receive_and_pause(self: Connection, data: bytes) -> None:
        receive(self, data)
        read_times.append(time.monotonic())
        time.sleep(0.1)

    async def tell_arrival_time(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, {}, str(request.arrived_at).encode())

    monkeypatch.setattr(Connection, "data_received", receive_and_pause)
    async with serve(tell_arrival_time) as (_server, connection):
        await connection.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        (arrival_time,) = await read_bodies(connection, 1)
    assert float(arrival_time) <= read_times[0]


async def test_white_space_around_a_value_is_no_part_of_it() -> None:
    async def repeat_header(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, {}, request.headers["X"].encode())

    async with serve(repeat_header) as (_server, connection):
        await connection.send(b"GET / HTTP/1.1\r\nHost: x\r\nX:\t a b \t \r\n\r\n")
        assert await read_bodies(connection, 1) == [b"a b"]


async def test_fields_of_an_earlier_request_are_not_those_of_another() -> None:
    async def describe_request(request: HttpRequest) -> HttpResponse:
        text = f"{request.method} {request.raw_path} {request.headers.get('X', '')}"
        return HttpResponse(200, {}, text.encode(), await read_whole_body(request))

    rest = b" HTTP/1.1\r\nHost: x\r\nX: 1\r\n\r\n"
    exchanges = {
        b"GET /a" + rest: b"GET /a 1",
        b"GET /b?c" + rest: b"GET /b?c 1",
        b"DELETE /b" + rest: b"DELETE /b 1",
        b"GET /c" + rest.replace(b"1\r\n\r\n", b"2\r\n\r\n"): b"GET /c 2",
        b"GET /d HTTP/1.1\r\nY: 3\r\nHost: x\r\nX: 1\r\n\r\n": b"GET /d 1",
        # Its body looks like a request, and arrives after its head.
        b"POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 34\r\n\r\n"
        + (b"GET /a" + rest): b"POST /e GET /a" + rest,
        b"GET /f" + rest: b"GET /f 1",
    }
    async with serve(describe_request) as (_server, connection):
        for request, expected in exchanges.items():
            head, end, body = request.partition(b"\r\n\r\n")
            await connection.send(head + end)
            if body:
                await asyncio.sleep(0.01)
                await connection.send(body)
            assert await read_bodies(connection, 1) == [expected]


async def test_length_of_an_earlier_body_is_not_that_of_another() -> None:
    async def describe_request(request: HttpRequest) -> HttpResponse:
        text = f"{request.method} {request.headers.get('Content-Length')} {request.fields.content_length} "
        return HttpResponse(200, {}, text.encode(), await read_whole_body(request))

    head = b" / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nX: 1\r\n\r\n"
    get = b"GET / HTTP/1.1\r\nHost: x\r\nX: 1\r\n\r\n"
    pieces = {
        (b"POST" + head % 3 + b"abc",): [b"POST 3 3 abc"],
        (b"POST" + head % 3 + b"def",): [b"POST 3 3 def"],
        (b"PUT" + head % 5 + b"hello",): [b"PUT 5 5 hello"],
        (get,): [b"GET None None "],
        # The same fields, but a body that is incomplete, or followed by another request.
        (b"POST" + head % 5, b"hello"): [b"POST 5 5 hello"],
        (b"POST" + head % 5 + b"hel", b"lo"): [b"POST 5 5 hello"],
        (b"POST" + head % 3 + b"abc" + get,): [b"POST 3 3 abc", b"GET None None "],
        (get[:-2], b"\r\n"): [b"GET None None "],
        (get.replace(b"GET", b"POST")[:-4], b"\r\nContent-Length: 1\r\n\r\na"): [b"POST 1 1 a"],
        (b"POST" + head % 0,): [b"POST 0 0 "],
    }
    async with serve(describe_request) as (_server, connection):
        for parts, expected in pieces.items():
            for part in parts:
                await connection.send(part)
                await asyncio.sleep(0.01)
            assert await read_bodies(connection, len(expected)) == expected


async def test_content_type_of_a_replayed_response_is_the_only_one() -> None:
    async def replay(_request: HttpRequest) -> HttpResponse:
        response = LegacyResponse(200, [b"x"], {"Content-Type": "text/plain"})
        return build_http_response(response, "an-id")

    async with serve(replay) as (_server, connection):
        await connection.send(GET)
        head = await connection.reader.readuntil(b"\r\n\r\n")
        assert head.lower().count(b"content-type:") == 1
        assert b"Content-Type: text/plain\r\n" in head


async def test_pipelined_requests_are_answered_in_order_and_not_all_read_at_once() -> None:
    may_answer, paths = asyncio.Event(), list[str]()

    async def answer_later(request: HttpRequest) -> HttpResponse:
        paths.append(request.raw_path)
        await may_answer.wait()
        return HttpResponse(200, {}, request.raw_path.encode())

    count = 200_000
    data = b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(count))
    async with serve(answer_later) as (_server, connection):
        # Otherwise the kernel may take all of them.
        client_socket = connection.writer.get_extra_info("socket")
        client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        sending = asyncio.ensure_future(connection.send(data))
        await wait_until(lambda: bool(paths))
        await asyncio.sleep(0.3)
        assert not sending.done(), "more is read than can wait"
        assert paths == ["/0"]
        read_paths = [each.raw_path for each in gc.get_objects() if isinstance(each, HttpRequest)]
        # Those of earlier tests may not be collected yet.
        requests = sum(path[1:].isdecimal() for path in read_paths)
        assert requests < MAX_QUEUED_REQUESTS + MAX_PARSED_BYTES / len(GET)
        may_answer.set()
        assert await read_bodies(connection, MANY) == [b"/%d" % number for number in range(MANY)]
        sending.cancel()


async def test_body_that_its_handler_does_not_read_is_not_read_from_the_client() -> None:
    may_read, unread_sizes = asyncio.Event(), list[int]()

    async def read_later(request: HttpRequest) -> HttpResponse:
        await may_read.wait()
        unread_sizes.append(request.body.unread_bytes)
        return HttpResponse(200, {}, b"%d" % len(await read_whole_body(request)))

    size = 50 * 1024 * 1024
    async with serve(read_later) as (_server, connection):
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
        sending = asyncio.ensure_future(connection.send(head + b"x" * size))
        await asyncio.sleep(0.3)
        assert not sending.done()
        may_read.set()
        assert await read_bodies(connection, 1) == [b"%d" % size]
        await sending
    assert unread_sizes[0] <= MAX_UNREAD_BODY_BYTES + 256 * 1024


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_response_without_a_body_is_not_followed_by_one(method: str, status: int) -> None:
    async def answer(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status if request.raw_path == "/a" else 200, {}, b"body")

    async with serve(answer) as (_server, connection):
        await connection.send(method.encode() + b" /a HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
        first = await connection.read_response(bodiless=True)
        assert first is not None
        assert (first.headers.get("content-length") == "4") is (method == "HEAD")
        assert await read_bodies(connection, 1) == [b"body"]


async def test_failure_of_a_handler_is_answered_unless_the_response_has_begun() -> None:
    async def fail(request: HttpRequest) -> HttpResponse:
        if request.raw_path == "/begun":
            await StreamedResponse(200, CIMultiDict(), "9").write(request, b"part")
        raise RuntimeError("a secret")

    async with serve(fail) as (_server, connection):
        await connection.send(GET)
        response = await connection.read_response()
        assert response is not None
        assert (response.status, response.code) == (500, "internal_server_error")
        assert b"secret" not in response.body
        assert await connection.wait_closed()
    async with serve(fail) as (_server, connection):
        await connection.send(b"GET /begun HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await connection.reader.read()).count(b"HTTP/1.1") == 1


async def test_client_that_does_not_read_its_response_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "WRITE_STALL_SECONDS", 0.2)
    outcomes = list[str]()

    async def answer(request: HttpRequest) -> HttpResponse:
        response = HttpResponse(200, {}, b"x" * 50 * 1024 * 1024)
        try:
            await response.send(request)
        except ConnectionError:
            outcomes.append("disconnected")
        return response

    async with serve(answer) as (server, connection):
        await connection.send(GET)
        await wait_until(lambda: bool(outcomes) and not server.connections)


async def test_connection_is_freed_when_it_ends() -> None:
    async with serve(echo) as (server, connection):
        await connection.send(GET + b"GET / HTTP/1.1")
        assert await read_bodies(connection, 1) == [b"/"]
        (ended,) = map(weakref.ref, server.connections)
        gc.disable()
        try:
            await connection.close()
            await wait_until(lambda: ended() is None)
        finally:
            gc.enable()


async def test_shutdown_cancels_requests_that_take_too_long() -> None:
    started, outcomes = asyncio.Event(), list[str]()

    async def work(_request: HttpRequest) -> HttpResponse:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            outcomes.append("cancelled")
            raise
        return HttpResponse(200, {})

    async with serve(work, shutdown_seconds=0.1) as (_server, connection):
        await connection.send(GET)
        await started.wait()
    assert outcomes == ["cancelled"]


async def test_draining_announces_the_end_of_the_connection() -> None:
    async with serve(echo) as (server, connection):
        await connection.send(GET)
        assert await read_bodies(connection, 1) == [b"/"]
        draining = asyncio.ensure_future(server.drain_connections(5))
        await asyncio.sleep(0.1)
        assert not draining.done(), "a client may just be sending"
        await connection.send(GET)
        response = await connection.read_response()
        assert response is not None
        assert response.headers["connection"] == "close"
        await asyncio.wait_for(draining, 1)
