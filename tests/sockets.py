"""Raw requests that no HTTP client would send."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

TIMEOUT_SECONDS = 20
"""Limit for a response; a slower server counts as hung."""


@dataclass(slots=True)
class RawResponse:
    """One response: status, headers by lower-case name, and the bytes of the body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def parse_json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of the first error."""
        return str(self.parse_json["errors"][0]["code"])


@dataclass(slots=True)
class RawConnection:
    """A raw connection; reads fail after 20 s."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def send_eof(self) -> None:
        """Closes the sending side only."""
        self.writer.write_eof()

    async def read_response(self, *, bodiless: bool = False) -> RawResponse | None:
        """The next response; None if the connection closed without one."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            try:
                return await self._read_response(bodiless=bodiless)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                partial_data = getattr(error, "partial", b"")
                assert not partial_data, f"an answer that is cut off: {partial_data!r}"
                return None

    async def _read_response(self, *, bodiless: bool) -> RawResponse:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *header_lines = head[:-4].split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (x.partition(":") for x in header_lines)
        }
        status = int(status_line.split(" ")[1])
        length = 0 if bodiless or status == 100 else int(headers["content-length"])
        return RawResponse(status, headers, await self.reader.readexactly(length))

    async def wait_closed(self) -> bool:
        """Whether the server closes the connection without sending more."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    async def check_silent(self, seconds: float = 0.15) -> bool:
        """Whether the connection stays open and nothing arrives for a while."""
        try:
            async with asyncio.timeout(seconds):
                await self.reader.read(1)
        except TimeoutError:
            return True
        return False

    async def close(self) -> None:
        # Nobody may read the rest.
        if self.writer.transport.get_write_buffer_size():
            self.writer.transport.abort()
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def open_connection(port: int, host: str = "127.0.0.1") -> RawConnection:
    return RawConnection(*await asyncio.open_connection(host, port))


async def exchange(port: int, data: bytes, *, ends_input: bool = False) -> RawResponse | None:
    """What a connection gets for these bytes: its first answer, or None for a clean close.

    If ``ends_input``, the client closes its sending side at once.
    """
    async with await open_connection(port) as connection:
        await connection.send(data)
        if ends_input:
            connection.send_eof()
        return await connection.read_response()


def assert_legacy(response: RawResponse) -> None:
    """Checks for a legacy response: compact JSON that begins with ``ok``, allowed for any origin."""
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    assert response.headers["access-control-allow-origin"] == "*"
    is_success = response.status == 200
    assert response.body.startswith(
        b'{"ok":true' if is_success else b'{"ok":false,"errors":[{"code":"'
    )
    compact_json = json.dumps(response.parse_json, separators=(",", ":"), ensure_ascii=False)
    assert response.body == compact_json.encode()


async def wait_until(is_met: Callable[[], bool], seconds: float = TIMEOUT_SECONDS) -> None:
    """Waits until a condition holds; fails if it does not in time."""
    deadline = (started_at := time.monotonic()) + seconds
    while not is_met():
        assert time.monotonic() < deadline, "it did not happen in time"
        # A look that computes must not take the time of what it waits for.
        await asyncio.sleep(max(0.01, 2 * (time.monotonic() - started_at)))
        started_at = time.monotonic()
