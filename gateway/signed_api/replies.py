"""Streams a response of the service to the client of a signed request."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

from aiohttp import web

from gateway.admission.limits import Admission
from gateway.http.request_reader import ON_DISCONNECT
from gateway.http.responses import SERVER, build_rate_limit_headers
from gateway.upstream import header_filter
from gateway.upstream.passthrough import PassthroughResponse
from gateway.upstream.send_attempt import ResponseLost

RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""``SO_LINGER`` value: on close, discards unsent data and resets the connection."""


class StreamedResponse(web.StreamResponse):
    """The service's response: status, headers and unchanged body bytes."""

    def __init__(
        self, upstream_response: PassthroughResponse, request_id: str, admission: Admission | None
    ) -> None:
        headers = header_filter.filter_response_headers(upstream_response.headers)
        # The service's own limit matters more to the client than the gateway's.
        if not any(name.lower().startswith("ratelimit") for name in headers):
            headers.update(build_rate_limit_headers(admission))
        headers.setdefault("X-Request-Id", request_id)
        headers.setdefault("Access-Control-Allow-Origin", "*")
        headers["Server"] = SERVER
        # The body is streamed unchanged, so the service's length holds.
        if length := upstream_response.headers.get("Content-Length"):
            headers["Content-Length"] = length
        super().__init__(status=upstream_response.status, headers=headers)
        if not upstream_response.has_detectable_end:
            # The end of such a body is the end of the connection, so this one must close as well.
            self._length_check = False
            self.force_close()

    async def _prepare_headers(self) -> None:
        has_content_type = "Content-Type" in self.headers
        await super()._prepare_headers()
        if not has_content_type:  # otherwise aiohttp adds a default that the service did not send
            self.headers.popall("Content-Type", None)


class WaitingClient:
    """The client of a request. ``read_task`` is cancelled if the client disconnects."""

    def __init__(self, request: web.BaseRequest, read_task: asyncio.Task[Any] | None) -> None:
        self.is_disconnected = request.transport is None
        self._request = request
        self._connection = request.transport
        self._read_task = read_task
        on_disconnect: Callable[[bool], None] = self._handle_disconnect
        request[ON_DISCONNECT] = on_disconnect

    def _handle_disconnect(self, _has_acknowledged_all: bool) -> None:
        self.is_disconnected = True
        if self._read_task is not None:
            self._read_task.cancel()

    async def send_part(self, response: web.StreamResponse, part: bytes, seconds: float) -> str:
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

    def reset_connection(self) -> None:
        """Resets the connection.

        After a normal close, a client could not detect that a response without a length is
        truncated.
        """
        if self.is_disconnected or self._connection is None:
            return  # the file descriptor may belong to another connection by now
        if client_socket := self._connection.get_extra_info("socket"):
            client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self._connection.abort()


async def stream_response(
    client: WaitingClient,
    response: StreamedResponse,
    upstream_response: PassthroughResponse,
    *,
    reads_to_end: bool,
    seconds: float,
) -> str:
    """Forwards a response while it arrives; returns why it was truncated, or an empty string.

    A response that the service truncates is truncated for the client too. With ``reads_to_end``
    the rest is read even after the client has disconnected, because the service may still execute
    the request while it responds. A client has ``seconds`` to take each part.
    """
    problem = ""
    try:
        problem = await client.send_part(response, b"", seconds)
        async for part in upstream_response.iter_chunks():
            problem = problem or await client.send_part(response, part, seconds)
            # This closes the connection to the service, so that it does not send the rest of a
            # read.
            if problem and not reads_to_end:
                break
    except ResponseLost as lost:
        problem = problem or str(lost)
    except asyncio.CancelledError:
        client.reset_connection()
        raise
    if problem:
        client.reset_connection()
    return problem
