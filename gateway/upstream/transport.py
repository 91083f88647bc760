"""HTTP/1.1 exchanges on aiohttp's connections and parser, without its client.

Cookies, redirects, middlewares, decoding and retries are not needed here, and in aiohttp's client
they cost as much as the rest of a read even if they are disabled.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.http import HttpProcessingError, StreamWriter
from yarl import URL

from gateway.http import progress
from gateway.http.header_block import encode_header_block
from gateway.payloads.compressed_buffer import WINDOW_BYTES, CompressedBuffer, iter_windows
from gateway.upstream.send_attempt import (
    SignedAttempt,
    UnusableConnection,
    UpstreamAnswer,
    convert_to_response_lost,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection


class Origin:
    """The origin of a service: its connections, path prefix and Host header.

    ``egress_options`` are aiohttp's request options for the proxy and TLS.
    """

    def __init__(
        self, session: aiohttp.ClientSession, address: URL, egress_options: Mapping[str, Any]
    ) -> None:
        if session.connector is None:
            raise ValueError("the session is closed")
        self.path = address.raw_path.rstrip("/")
        self._host_header = {"Host": f"{address.host_port_subcomponent}"}
        self._connector = session.connector
        self._timeout = session.timeout
        proxy = {"proxy": URL(egress_options["proxy"])} if "proxy" in egress_options else {}
        # A carrier of the address for the connector; this request is never sent.
        self._connect_request = aiohttp.ClientRequest(
            "GET", address, session=session, **{**egress_options, **proxy}
        )

    async def send_and_read_answer(
        self, attempt: SignedAttempt, headers: dict[str, str], max_bytes: int
    ) -> UpstreamAnswer:
        """Sends a request once and reads the answer, with at most ``max_bytes`` of body.

        Raises ResponseLost.
        """
        try:
            connection = await self._acquire_connection()
            try:
                answer = await self._exchange_on_connection(connection, attempt, headers, max_bytes)
            # Closed even after a cancellation: the next request would receive an unread answer.
            except BaseException:
                _close_connection(connection)
                raise
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            lost = convert_to_response_lost(error)
        else:
            if _is_fully_sent(connection):
                connection.release()
            else:
                _close_connection(connection)
            return answer
        raise lost

    async def _acquire_connection(self) -> Connection:
        try:
            # The call may wait for the pool, so it is signed only afterwards.
            return await self._connector.connect(self._connect_request, [], self._timeout)
        except TimeoutError:
            raise aiohttp.ConnectionTimeoutError from None

    async def _exchange_on_connection(
        self,
        connection: Connection,
        attempt: SignedAttempt,
        headers: dict[str, str],
        max_bytes: int,
    ) -> UpstreamAnswer:
        protocol = connection.protocol
        if protocol is None:
            raise UnusableConnection("no connection that can be used", is_connection_failure=True)
        # Decompressed in ``read_answer``, which detects truncated bodies.
        protocol.set_response_params(read_until_eof=True, auto_decompress=False)
        # Data that arrived while it was idle (a proxy's 408) would be taken for the answer.
        if protocol.should_close or not protocol.is_connected():
            raise UnusableConnection("no connection that can be used", is_connection_failure=True)
        await attempt.sign_and_verify_fence(headers)
        transport = protocol.transport
        if transport is None or transport.is_closing():
            raise aiohttp.ClientConnectionResetError("closed before anything was written")
        head = encode_header_block(
            f"{attempt.method} {attempt.path} HTTP/1.1", self._host_header, headers
        )
        # Head and body in one write need only one packet, and no task.
        if len(attempt.body) <= WINDOW_BYTES:
            transport.write(head + bytes(attempt.body))
            return await _read_final_answer(protocol, attempt, max_bytes)
        transport.write(head)
        async with _write_in_background(protocol, attempt.body):
            return await _read_final_answer(protocol, attempt, max_bytes)


@asynccontextmanager
async def _write_in_background(
    protocol: ResponseHandler, body: bytes | CompressedBuffer
) -> AsyncIterator[None]:
    """Writes a large body in the background, because the answer may arrive before its end."""
    write_task = asyncio.ensure_future(_write_body(protocol, body))
    try:
        yield
    finally:
        if not write_task.done() or write_task.cancelled() or write_task.exception():
            protocol.force_close()  # the next request would be parsed as the rest of this body
        write_task.cancel()
        await asyncio.gather(write_task, return_exceptions=True)


async def _write_body(protocol: ResponseHandler, body: bytes | CompressedBuffer) -> None:
    writer, sent_bytes = StreamWriter(protocol, asyncio.get_running_loop()), 0
    for window in iter_windows(body):
        await writer.write(window)
        sent_bytes += len(window)
        progress.record_current_request_progress("calling_service", sent_bytes, len(body))
        await asyncio.sleep(0)  # lets other requests run


async def _read_final_answer(
    protocol: ResponseHandler, attempt: SignedAttempt, max_bytes: int
) -> UpstreamAnswer:
    """Reads the final answer; informational (1xx) ones are skipped."""
    while True:
        message, content = await protocol.read()
        # 101 is final: the connection would switch to another protocol.
        if not 100 <= message.code <= 199 or message.code == 101:
            return await attempt.read_answer(message.code, message.headers, content, max_bytes)


def _is_fully_sent(connection: Connection) -> bool:
    """Whether the whole request is sent: a service may answer before it has read all of it."""
    transport = connection.transport
    return transport is None or not transport.get_write_buffer_size()


def _close_connection(connection: Connection) -> None:
    """Closes a connection without sending the rest of its request."""
    if connection.transport is not None and not _is_fully_sent(connection):
        connection.transport.abort()
    connection.close()
