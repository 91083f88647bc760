"""A client that signs independently of the product, and a service that records raw requests."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from gateway.server.app import run_gateway
from gateway.upstream.clock import ServiceClock
from tests.running_gateway import KEY, GatewayUnderTest, build_settings, import_api_keys
from tests.sockets import RawResponse, exchange

NOW = 1_760_000_000
OK_BODY = (
    b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"ok":true}'
)


def sign_by_openssl(secret: str, stamp: object, method: str, target: str, body: bytes = b"") -> str:
    """The signature computed as by tests/signatures/make.sh."""
    text = f"{stamp}\n{method}\n{target}\n".encode() + body + b"\n"
    command = ["openssl", "dgst", "-sha256", "-hmac", secret]
    process = subprocess.run(command, input=text, capture_output=True, check=True, timeout=10)
    return process.stdout.decode().rpartition("= ")[2].strip()


def sign_by_hand(secret: str, stamp: object, method: str, target: str, body: bytes = b"") -> str:
    text = b"\n".join([str(stamp).encode(), method.encode(), target.encode(), body, b""])
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class SigningClient:
    """A signing client; with ``over_query`` the signed path includes the query."""

    access_key: str = KEY["access_key"]
    secret_key: str = KEY["secret_key"]
    scheme: str = "svcsign"
    over_query: bool = False
    sign: Callable[..., str] = sign_by_hand

    def build_headers(
        self, method: str, target: str, body: bytes = b"", stamp: object = NOW
    ) -> list[str]:
        signed_target = target if self.over_query else target.partition("?")[0]
        headers = self.sign(self.secret_key, stamp, method, signed_target, body)
        return [
            f"Authorization: {self.scheme} {self.access_key}:{headers}",
            f"X-SVC-Timestamp: {stamp}",
        ]

    def build_request(
        self,
        method: str = "GET",
        target: str = "/v1/recipients",
        body: bytes = b"",
        *headers: str,
        stamp: object = NOW,
        chunks: int = 0,
    ) -> bytes:
        """The bytes of a request; the body is chunked if ``chunks`` are given."""
        lines = [f"{method} {target} HTTP/1.1", "Host: gateway"]
        lines += self.build_headers(method, target, body, stamp)
        lines += headers
        if chunks:
            lines += ["Transfer-Encoding: chunked"]
        elif body:
            lines += [f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + (
            encode_chunked(body, chunks) if chunks else body
        )


def encode_chunked(body: bytes, chunks: int) -> bytes:
    size = max(1, -(-len(body) // chunks))
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


CLIENT = SigningClient()


# The gateway


@asynccontextmanager
async def open_signed_gateway(
    folder: Path, base_url: str, *lines: Mapping[str, Any], now: float = NOW, **sections: Any
) -> AsyncIterator[GatewayUnderTest]:
    """Runs a gateway whose clock says NOW, with one key and ``keys``."""
    settings = build_settings(folder, base_url, **sections)
    await import_api_keys(settings, [KEY, *({**KEY, **line} for line in lines)])
    clock = ServiceClock(lambda: now)
    async with run_gateway(settings, clock=clock) as running, aiohttp.ClientSession() as session:
        yield GatewayUnderTest(running, settings, session)


async def send_raw(gateway: GatewayUnderTest, data: bytes) -> RawResponse:
    response = await exchange(gateway.running.port, data)
    assert response is not None, "closed without an answer"
    return response


async def send_signed(
    gateway: GatewayUnderTest, method: str, path: str, body: bytes = b""
) -> RawResponse:
    """Sends a request signed with the demo credentials, at the current time."""
    headers = ["Content-Type: application/json"] if body else []
    stamp = int(time.time())
    request = SigningClient().build_request(method, f"/v1{path}", body, *headers, stamp=stamp)
    return await send_raw(gateway, request)


def extract_error(response: RawResponse) -> tuple[int, str]:
    """Status and code of a refusal, which must have the form of the current document."""
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    assert set(response.parse_json) == {"ok", "errors"}
    assert response.parse_json["ok"] is False
    (error,) = response.parse_json["errors"]
    assert set(error) <= {"code", "message", "field"}
    assert error["message"]
    return response.status, error["code"]


INVALID_KEY = (401, "invalid_api_key")
NOT_AUTHORIZED = (403, "not_authorized")
NOT_FOUND = (404, "not_found")
OVER_LIMIT = (429, "rate_limit_exceeded")
INTERNAL = (500, "internal_server_error")


# The service that records


@dataclass(slots=True)
class RecordedRequest:
    """One received request: its first line, headers in order, and body."""

    method: str
    target: str
    lines: list[tuple[str, str]]
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.lines}


RespondFunction = Callable[
    [RecordedRequest, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]
]


@dataclass(slots=True)
class RawService:
    """``respond`` answers each request; tests may replace it."""

    respond: RespondFunction
    port: int = 0
    connections: int = 0
    ended_count: int = 0
    requests: list[RecordedRequest] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def only_request(self) -> RecordedRequest:
        (request,) = self.requests
        return request

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while not writer.is_closing():
                request = await _read_request(reader)
                self.requests.append(request)
                await self.respond(request, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended_count += 1


async def _read_request(reader: asyncio.StreamReader) -> RecordedRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request_line, *header_lines = head[:-4].split("\r\n")
    method, target, version = request_line.split(" ")
    assert version == "HTTP/1.1"
    pairs = [
        (name, value.strip()) for name, _, value in (line.partition(":") for line in header_lines)
    ]
    headers = {name.lower(): value for name, value in pairs}
    assert len(headers) == len(pairs), "a header was sent twice"
    assert "transfer-encoding" not in headers
    return RecordedRequest(
        method, target, pairs, await reader.readexactly(int(headers.get("content-length", 0)))
    )


def respond_with(
    data: bytes, *, closes_connection: bool = False, resets_connection: bool = False
) -> RespondFunction:
    """Answers every request with these bytes, then continues, closes or resets."""

    async def respond(
        _: RecordedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(data)
        await writer.drain()
        if resets_connection:
            await asyncio.sleep(0.05)  # let the bytes arrive before the reset
            reset(writer)
        elif closes_connection:
            writer.close()

    return respond


def reset(writer: asyncio.StreamWriter) -> None:
    at_once = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    writer.transport.abort()


def build_response(status: int = 200, body: bytes = b'{"ok":true}', *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Word", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


EMPTY_LIST = build_response(body=b'{"ok":true,"balances":{}}')
"""A response for balances."""


@asynccontextmanager
async def open_raw_service(respond: RespondFunction | None = None) -> AsyncIterator[RawService]:
    recorder = RawService(respond or respond_with(OK_BODY))
    tasks: set[asyncio.Task[None]] = set()

    def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(recorder.serve(reader, writer))
        tasks.add(task)
        # Not in the task: one that is cancelled before its first step never enters a ``try``.
        task.add_done_callback(lambda _task: writer.close())

    server = await asyncio.start_server(serve_connection, "127.0.0.1", 0, limit=1 << 20)
    recorder.port = server.sockets[0].getsockname()[1]
    try:
        yield recorder
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
