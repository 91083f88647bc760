"""Streams a response of the service to the client of a signed request."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

from aiohttp import web

from gateway.admission.limits import Admission
from gateway.http.request_reader import DESERTED
from gateway.http.responses import SERVER, build_rate_limit_headers
from gateway.upstream import header_filter
from gateway.upstream.passthrough import Passed
from gateway.upstream.send_attempt import ResponseLost

AT_ONCE = struct.pack("ii", 1, 0)
"""``SO_LINGER`` value: on close, discards unsent data and resets the connection."""


class Streamed(web.StreamResponse):
    """The service's response: status, headers and unchanged body bytes."""

    def __init__(self, passed: Passed, request_id: str, admission: Admission | None) -> None:
        headers = header_filter.filter_response_headers(passed.headers)
        # The service's own limit matters more to the client than the gateway's.
        if not any(name.lower().startswith("ratelimit") for name in headers):
            headers.update(build_rate_limit_headers(admission))
        headers.setdefault("X-Request-Id", request_id)
        headers.setdefault("Access-Control-Allow-Origin", "*")
        headers["Server"] = SERVER
        if length := passed.headers.get("Content-Length"):
            headers["Content-Length"] = length
        super().__init__(status=passed.status, headers=headers)
        if not passed.tells_its_end:
            # The end of such a body is the end of the connection, so this one must close as well.
            self._length_check = False
            self.force_close()

    async def _prepare_headers(self) -> None:
        names_type = "Content-Type" in self.headers
        await super()._prepare_headers()
        if not names_type:  # aiohttp adds a default that the service did not send
            self.headers.popall("Content-Type", None)


class Client:
    """The client of a request. ``read_task`` is cancelled if the client disconnects."""

    def __init__(self, request: web.BaseRequest, reading: asyncio.Task[Any] | None) -> None:
        self.is_gone = request.transport is None
        self._request = request
        self._connection = request.transport
        self._reading = reading
        leaves: Callable[[bool], None] = self._leaves
        request[DESERTED] = leaves

    def _leaves(self, _has_all: bool) -> None:
        self.is_gone = True
        if self._reading is not None:
            self._reading.cancel()

    async def give(self, response: web.StreamResponse, part: bytes, seconds: float) -> str:
        """Sends a part of the response; returns why it failed, or an empty string."""
        try:
            async with asyncio.timeout(seconds):
                await response.prepare(self._request)
                await response.write(part)
        except ConnectionError:
            return "the client disconnected"
        except TimeoutError:
            return "the client does not read its response"
        return ""

    def cut_off(self) -> None:
        """Resets the connection.

        If it were closed, a client could take a truncated response without length for a whole one.
        """
        if self.is_gone or self._connection is None:
            return  # the file descriptor may belong to another connection by now
        if held := self._connection.get_extra_info("socket"):
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        self._connection.abort()


async def stream_response(
    client: Client, response: Streamed, passed: Passed, *, whole: bool, seconds: float
) -> str:
    """Forwards a response while it arrives; returns why it was truncated, or an empty string.

    A response that the service truncates is truncated for the client too. With ``reads_to_end``
    the rest is read even after the client has disconnected, because the service may still execute
    the request while it responds. A client has ``seconds`` to take each part.
    """
    trouble = ""
    try:
        trouble = await client.give(response, b"", seconds)
        async for part in passed.parts():
            trouble = trouble or await client.give(response, part, seconds)
            if trouble and not whole:
                break
    except ResponseLost as lost:
        trouble = trouble or str(lost)
    except asyncio.CancelledError:
        client.cut_off()
        raise
    if trouble:
        client.cut_off()
    return trouble
