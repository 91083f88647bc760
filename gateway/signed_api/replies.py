"""A service's answer on its way back to a client of the signed face: as it comes, or cut off."""

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
"""What is not sent yet is thrown away when the connection is closed, and it is reset."""


class Streamed(web.StreamResponse):
    """An answer as the service gave it: status, headers and the bytes of its body."""

    def __init__(self, passed: Passed, request_id: str, admission: Admission | None) -> None:
        headers = header_filter.filter_response_headers(passed.headers)
        if not any(name.lower().startswith("ratelimit") for name in headers):
            headers.update(build_rate_limit_headers(admission))
        headers.setdefault("X-Request-Id", request_id)
        headers.setdefault("Access-Control-Allow-Origin", "*")
        headers["Server"] = SERVER
        if length := passed.headers.get("Content-Length"):
            headers["Content-Length"] = length
        super().__init__(status=passed.status, headers=headers)
        if not passed.tells_its_end:
            # Neither may this one tell an end that nobody knows of: it ends with its connection.
            self._length_check = False
            self.force_close()

    async def _prepare_headers(self) -> None:
        names_type = "Content-Type" in self.headers
        await super()._prepare_headers()
        if not names_type:  # aiohttp puts one in
            self.headers.popall("Content-Type", None)


class Client:
    """Who waits for an answer. ``reading`` is the task that ends when its client goes away."""

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
        """Sends a part of an answer; why it could not be, or nothing."""
        try:
            async with asyncio.timeout(seconds):
                await response.prepare(self._request)
                await response.write(part)
        except ConnectionError:
            return "the client went away"
        except TimeoutError:
            return "the client does not take its answer"
        return ""

    def cut_off(self) -> None:
        """Resets it: an answer that ends with its connection would look whole if it were closed."""
        if self.is_gone or self._connection is None:
            return  # its socket may be another's by now
        if held := self._connection.get_extra_info("socket"):
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        self._connection.abort()


async def stream_response(
    client: Client, response: Streamed, passed: Passed, *, whole: bool, seconds: float
) -> str:
    """Sends an answer on while it comes; what kept it from being sent whole, or nothing.

    What is cut off there is cut off here. ``whole`` has it read to its end though the client has
    gone: a service may still be at work while it answers. A client may take ``seconds`` for each
    part.
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
