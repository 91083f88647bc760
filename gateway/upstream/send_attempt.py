"""A single attempt to send a request: signed when it has a connection, and sent at most once."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import aiohttp
from aiohttp.http import HttpProcessingError

from gateway.auth.signing import Credentials, build_signature_headers
from gateway.http import progress
from gateway.http.decompression import DecompressedBodyTooLarge, DecompressionError, decompress_body
from gateway.payloads import json_codec
from gateway.payloads.compressed_buffer import CompressedBuffer
from gateway.upstream.clock import SkewSample, measure_skew
from mappings.frozen import frozen_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from aiohttp.connector import Connection
    from aiohttp.streams import StreamReader
    from multidict import CIMultiDictProxy

    from gateway.config.settings import CurrentWords

LARGE_BODY_BYTES = 1024 * 1024
"""Bytes from which a body is hashed in a thread, so that it does not block other requests."""


class ResponseLost(Exception):
    """No usable response arrived; after a connection failure, another connection may succeed."""

    def __init__(self, reason: str, *, is_connection_failure: bool = False) -> None:
        super().__init__(reason)
        self.is_connection_failure = is_connection_failure


class UnusableConnection(ResponseLost):
    """The connection cannot be used, and nothing was sent on it."""


class Fence(Protocol):
    """Guards a write that only one process may send: its fencing token must still be current."""

    @property
    def is_fence_recent(self) -> bool:
        """Whether ownership was confirmed so recently that no other process can have taken it."""

    async def verify_fence(self) -> None:
        """Confirms ownership; raises if another process owns the write."""


@frozen_dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes | CompressedBuffer
    skew_sample: SkewSample | None


class SingleSend:
    """A client middleware that sends one request at most once.

    ``path`` must equal the target in the request line. ``has_left``: whether a byte of the request
    may have reached the service.
    """

    path: str
    fence: Fence | None
    has_left: bool

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        cast("SignedRequest", request).attempt = self
        try:
            return await handler(request)
        except (aiohttp.ClientError, OSError) as error:
            lost = convert_to_response_lost(error)
        # This error replaces aiohttp's own: after a dropped connection aiohttp would silently send
        # GET, PUT and DELETE again.
        raise lost

    async def sign_and_verify_fence(self, headers: MutableMapping[str, str]) -> None:
        """Adds the credentials once there is a connection; raises the errors of the fence."""
        if self.has_left:
            # A bug in aiohttp or here: failing is better than paying twice.
            raise RuntimeError("a request is sent once")
        await self._add_credentials(headers)
        # The process may be suspended at any point. A pause before the timestamp is made is
        # detected here; after a long pause later, the service refuses the timestamp.
        while self.fence and not self.fence.is_fence_recent:
            await self.fence.verify_fence()
            await self._add_credentials(headers)
        self.has_left = True

    async def _add_credentials(self, headers: MutableMapping[str, str]) -> None:
        """Adds the credentials to the headers, unless the client has signed the request."""


@dataclass(slots=True)
class SignedAttempt(SingleSend):
    """An attempt that the gateway signs.

    ``signed_target`` is the target as it is signed. ``on_bytes_received`` is called with the
    number of bytes of each received part.
    """

    credentials: Credentials
    vocabulary: CurrentWords
    method: str
    path: str
    signed_target: str
    body: bytes | CompressedBuffer
    wall: Callable[[], float]
    correction: float
    on_bytes_received: Callable[[int], None]
    fence: Fence | None = None
    has_left: bool = False
    sent_at: float = 0.0

    async def _add_credentials(self, headers: MutableMapping[str, str]) -> None:
        if len(self.body) > LARGE_BODY_BYTES:
            headers.update(await asyncio.to_thread(self._build_headers))
        else:
            headers.update(self._build_headers())
        self.sent_at = time.monotonic()

    def _build_headers(self) -> dict[str, str]:
        return build_signature_headers(
            self.credentials,
            self.vocabulary,
            stamp=int(self.wall() + self.correction),
            method=self.method,
            target=self.signed_target,
            body=self.body,
        )

    async def read_answer(
        self, status: int, headers: CIMultiDictProxy[str], content: StreamReader, max_bytes: int
    ) -> UpstreamAnswer:
        """Reads the rest of the answer, with at most ``max_bytes`` of body; raises ResponseLost."""
        skew_sample = measure_skew(headers, self.wall(), time.monotonic() - self.sent_at)
        return UpstreamAnswer(
            status,
            headers,
            await _read_body(headers, content, max_bytes, self.on_bytes_received),
            skew_sample,
        )


class SignedRequest(aiohttp.ClientRequest):
    """A request that is signed when it has a connection, so that waiting does not age it."""

    attempt: SingleSend

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        # Data that arrived while it was idle (a proxy's 408) would be taken for the answer.
        if conn.protocol is None or conn.protocol.should_close or not conn.protocol.is_connected():
            # Checked before signing, so that the caller may use another connection even for a
            # write.
            raise UnusableConnection("no connection that can be used", is_connection_failure=True)
        # yarl may have normalized the target, and then the signature would not match.
        if self.url.raw_path_qs != self.attempt.path:
            raise ValueError("the target would not be sent as it was given")
        await self.attempt.sign_and_verify_fence(self.headers)
        return await super().send(conn)


async def _read_body(
    headers: CIMultiDictProxy[str],
    content: StreamReader,
    max_bytes: int,
    on_bytes_received: Callable[[int], None],
) -> bytes | CompressedBuffer:
    # aiohttp's parser has checked that the length is a number.
    declared = size = int(headers.get("Content-Length", 0))
    if size <= max_bytes and content.is_eof():  # the usual case: it arrived with the headers
        body = content.read_nowait()
        if len(body) > max_bytes:
            raise ResponseLost(f"an answer of more than {max_bytes} bytes")
        on_bytes_received(len(body))
        return await _decode_body(body, headers.get("Content-Encoding", "identity"), max_bytes)
    # Kept compressed while it arrives, because lists can be tens of megabytes.
    whole = CompressedBuffer()
    if size <= max_bytes:
        size = 0
        while part := await content.readany():
            on_bytes_received(len(part))
            await whole.append_in_thread(part)
            if (size := size + len(part)) > max_bytes:
                break
            if size > json_codec.LARGE_BYTES or declared > json_codec.LARGE_BYTES:
                progress.record_current_request_progress("receiving_response", size, declared)
    if size > max_bytes:
        raise ResponseLost(f"an answer of more than {max_bytes} bytes")
    encoding = headers.get("Content-Encoding", "identity")
    if len(whole) > json_codec.LARGE_BYTES and _is_identity_encoding(encoding):
        return whole
    return await _decode_body(bytes(whole), encoding, max_bytes)


async def _decode_body(body: bytes, encoding: str, max_bytes: int) -> bytes:
    # aiohttp's own decoding accepts a truncated gzip body as complete.
    if _is_identity_encoding(encoding) or not body:
        return body
    if encoding.strip().lower() not in ("gzip", "deflate"):
        raise ResponseLost("an answer in an encoding that was not requested")
    try:
        return await decompress_body(body, encoding, max_bytes)
    except (DecompressionError, DecompressedBodyTooLarge):
        raise ResponseLost("an answer that cannot be decoded") from None


def _is_identity_encoding(encoding: str) -> bool:
    return encoding.strip().lower() == "identity"


def _describe_connect_error(error: aiohttp.ClientConnectorError) -> str:
    """Describes a connect error; aiohttp's own message mentions TLS also for plain HTTP."""
    address = f"[{error.host}]" if ":" in error.host else error.host
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        address = f"the proxy {address}"
    cause = error.os_error
    if isinstance(cause, ssl.SSLCertVerificationError):
        reason = f"{cause.verify_message} ({cause.reason})"
    elif isinstance(cause, ssl.SSLError | socket.gaierror) or not cause.errno:
        reason = cause.strerror or str(cause)
    else:
        reason = os.strerror(cause.errno).lower()
    return f"cannot connect to {address}:{error.port}: {reason}"


def convert_to_response_lost(error: Exception) -> ResponseLost:
    """Converts an error; the message omits the URL, because its query may name a person."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return ResponseLost(_describe_connect_error(error), is_connection_failure=True)
    # No connection failure: the proxy responds, and another connection would not help.
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return ResponseLost(f"the proxy refuses to connect (status {error.status})")
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        return ResponseLost("an answer that is not HTTP")
    if isinstance(error, aiohttp.ClientPayloadError):
        return ResponseLost("a truncated answer", is_connection_failure=True)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return ResponseLost(
            "the connection was closed before an answer arrived", is_connection_failure=True
        )
    if isinstance(error, OSError) and error.errno:
        return ResponseLost(
            f"the connection failed: {os.strerror(error.errno).lower()}", is_connection_failure=True
        )
    return ResponseLost(
        type(error).__name__,
        is_connection_failure=isinstance(error, OSError | aiohttp.ClientConnectionError),
    )
