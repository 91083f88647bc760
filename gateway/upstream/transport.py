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
from gateway.http.heads import encode_header_block
from gateway.payloads.compressed_buffer import WINDOW, CompressedBuffer, iter_windows
from gateway.upstream.send_attempt import Answered, Attempt, Unfit, build_response_lost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection


class Origin:
    """The origin of a service: its connections, path prefix and Host header.

    ``egress_options`` are aiohttp's request options for the proxy and TLS.
    """

    def __init__(
        self, session: aiohttp.ClientSession, address: URL, way_out: Mapping[str, Any]
    ) -> None:
        if session.connector is None:
            raise ValueError("the session is closed")
        self.path = address.raw_path.rstrip("/")
        self._named = {"Host": f"{address.host_port_subcomponent}"}
        self._connector = session.connector
        self._timeout = session.timeout
        proxy = {"proxy": URL(way_out["proxy"])} if "proxy" in way_out else {}
        # Carries the address for the connector; it is never sent.
        self._there = aiohttp.ClientRequest("GET", address, session=session, **{**way_out, **proxy})

    async def exchanged(self, attempt: Attempt, headers: dict[str, str], most: int) -> Answered:
        """Sends a request once and reads the answer, with at most ``max_bytes`` of body.

        Raises ResponseLost.
        """
        try:
            connection = await self._connection()
            try:
                answered = await self._on(connection, attempt, headers, most)
            # Also if it is cancelled: an unread answer would be taken for that of the next
            # request.
            except BaseException:
                _ended(connection)
                raise
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            lost = build_response_lost(error)
        else:
            if _is_all_sent(connection):
                connection.release()
            else:
                _ended(connection)
            return answered
        raise lost

    async def _connection(self) -> Connection:
        try:
            return await self._connector.connect(self._there, [], self._timeout)
        except TimeoutError:
            raise aiohttp.ConnectionTimeoutError from None

    async def _on(
        self, connection: Connection, attempt: Attempt, headers: dict[str, str], most: int
    ) -> Answered:
        protocol = connection.protocol
        if protocol is None:
            raise Unfit("no connection that can be used", dropped=True)
        # Decompressed in ``read_answer``, which detects truncated bodies.
        protocol.set_response_params(read_until_eof=True, auto_decompress=False)
        # Data that arrived while it was idle (a proxy's 408) would be taken for the answer.
        if protocol.should_close or not protocol.is_connected():
            raise Unfit("no connection that can be used", dropped=True)
        await attempt.sign(headers)
        transport = protocol.transport
        if transport is None or transport.is_closing():
            raise aiohttp.ClientConnectionResetError("closed before anything was written")
        began = encode_header_block(
            f"{attempt.method} {attempt.path} HTTP/1.1", self._named, headers
        )
        # One write for head and body: one packet, and no task.
        if len(attempt.body) <= WINDOW:
            transport.write(began + bytes(attempt.body))
            return await _answered(protocol, attempt, most)
        transport.write(began)
        async with _written(protocol, attempt.body):
            return await _answered(protocol, attempt, most)


@asynccontextmanager
async def _written(
    protocol: ResponseHandler, body: bytes | CompressedBuffer
) -> AsyncIterator[None]:
    """Writes a large body in the background, because the answer may arrive before its end."""
    writing = asyncio.ensure_future(_write(protocol, body))
    try:
        yield
    finally:
        if not writing.done() or writing.cancelled() or writing.exception():
            protocol.force_close()  # the next request would be parsed as the rest of this body
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def _write(protocol: ResponseHandler, body: bytes | CompressedBuffer) -> None:
    writer, went = StreamWriter(protocol, asyncio.get_running_loop()), 0
    for window in iter_windows(body):
        await writer.write(window)
        went += len(window)
        progress.told("calling_service", went, len(body))
        await asyncio.sleep(0)  # lets other requests run


async def _answered(protocol: ResponseHandler, attempt: Attempt, most: int) -> Answered:
    """Reads the final answer; informational (1xx) ones are skipped."""
    while True:
        message, content = await protocol.read()
        if not 100 <= message.code <= 199 or message.code == 101:
            return await attempt.answer(message.code, message.headers, content, most)


def _is_all_sent(connection: Connection) -> bool:
    """Whether the whole request is sent: a service may answer before it has read all of it."""
    transport = connection.transport
    return transport is None or not transport.get_write_buffer_size()


def _ended(connection: Connection) -> None:
    """Closes a connection without sending the rest of its request."""
    if connection.transport is not None and not _is_all_sent(connection):
        connection.transport.abort()
    connection.close()
