"""Replies to signed requests: refusals, and responses of the service while they arrive."""

import asyncio
import socket
import struct
from typing import Any

from gateway.admission.limits import Admission
from gateway.http.request import HttpRequest
from gateway.http.responses import StreamedResponse, add_common_headers
from gateway.upstream import passthrough
from gateway.upstream.http_connection import ResponseLost
from gateway.upstream.passthrough import PassthroughResponse
from mappings import errors
from mappings.errors import ErrorAnswer
from mappings.failures import Problem


class Refusal(Exception):
    """A request that is not passed on; ``reason`` is for the log and does not quote the request."""

    def __init__(self, problem: Problem, reason: str, *, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        wait_seconds = None if retry_after is None else str(retry_after)
        self.answer = ErrorAnswer(errors.REFUSAL_STATUS[problem.code], (problem,), wait_seconds)


def build_invalid_key_refusal(reason: str) -> Refusal:
    """Builds a 401 refusal.

    Also used for a stale timestamp and malformed headers, for which the document names no code.
    """
    return Refusal(errors.INVALID_KEY, reason)


RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""``SO_LINGER`` value: on close, discards unsent data and resets the connection."""


def build_streamed_response(
    upstream_response: PassthroughResponse, request_id: str, admission: Admission | None
) -> StreamedResponse:
    """Builds the service's response: status, headers and unchanged body bytes."""
    headers = passthrough.filter_response_headers(upstream_response.headers)
    add_common_headers(headers, admission)
    headers.setdefault("X-Request-Id", request_id)
    return StreamedResponse(
        upstream_response.status,
        headers,
        # The body is streamed unchanged, so the service's length holds.
        upstream_response.headers.get("Content-Length"),
        is_detectable=upstream_response.has_detectable_end,
    )


class WaitingClient:
    """The client of a request. ``read_task`` is cancelled if the client disconnects."""

    def __init__(self, request: HttpRequest, read_task: asyncio.Task[Any] | None) -> None:
        self.is_disconnected = request.transport is None
        self._request = request
        self._connection = request.transport
        self._read_task = read_task
        request.on_disconnect = self._handle_disconnect

    def _handle_disconnect(self, _has_acknowledged_all: bool) -> None:
        self.is_disconnected = True
        if self._read_task is not None:
            self._read_task.cancel()

    async def send_part(self, response: StreamedResponse, part: bytes, seconds: float) -> str:
        """Sends a part of the response; returns why it failed, or an empty string."""
        try:
            async with asyncio.timeout(seconds):
                await response.write(self._request, part)
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
