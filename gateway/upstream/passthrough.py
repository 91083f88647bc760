"""Passes requests with the client's own credentials on unchanged, and streams the responses.

Signed requests go to the current service, requests of unmigrated clients to the legacy one. A
request is sent once and never retried, because its signature is valid for a copy too. Only a
connection on which nothing was sent is replaced by another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from gateway.http.request_paths import is_forwardable
from gateway.upstream import header_filter
from gateway.upstream.circuit_breaker import BreakerCall, CircuitBreakers
from gateway.upstream.client import MAX_UNUSABLE_CONNECTIONS
from gateway.upstream.clock import ServiceClock, measure_skew
from gateway.upstream.connections import create_http_session
from gateway.upstream.egress import EgressConfig
from gateway.upstream.send_attempt import (
    Fence,
    ResponseLost,
    SingleSend,
    UnusableConnection,
    convert_to_response_lost,
)
from mappings.failures import Unknown, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from multidict import CIMultiDict, CIMultiDictProxy

    from gateway.config.settings import Settings
    from gateway.upstream.spool import Spool

BODILESS_STATUSES = (204, 304)

MAX_PEEKED_BYTES = 64 * 1024
"""Largest body that is read before any of it is passed on, to see what it proves."""

UNWRITABLE_RESPONSE = "a response with a control character in a header"


@dataclass(frozen=True, slots=True)
class PassthroughRequest:
    """A request to pass on; ``target`` starts with /v1, and ``headers`` are sent as they are.

    ``is_write``: it may change something, so without an answer its outcome is in doubt. ``stamp``
    is the client's timestamp in seconds since 1970, if it has one.
    """

    environment: str
    method: str
    target: str
    headers: CIMultiDict[str]
    body: Spool | None
    is_write: bool
    stamp: int | None = None


class PassthroughResponse:
    """A response whose headers have arrived."""

    def __init__(self, response: aiohttp.ClientResponse, seconds: float) -> None:
        self.status = response.status
        self.headers: CIMultiDictProxy[str] = response.headers
        self._response = response
        self._protocol = response.connection.protocol if response.connection else None
        self._timeout_seconds = seconds
        self._peeked_chunks: list[bytes] = []
        self._truncation: ResponseLost | None = None

    @property
    def has_detectable_end(self) -> bool:
        """Whether a truncated body can be distinguished from a complete one."""
        is_chunked = "chunked" in self.headers.get("Transfer-Encoding", "").lower()
        is_empty = self.status in BODILESS_STATUSES or self._response.method == "HEAD"
        return is_chunked or is_empty or "Content-Length" in self.headers

    async def peek_body(self) -> bytes | None:
        """Reads a body of at most ``MAX_PEEKED_BYTES``, which ``iter_chunks`` still yields.

        Returns None if the body is longer; raises ResponseLost if it is truncated.
        """
        size = 0
        try:
            async for part in self._iter_received_chunks():
                self._peeked_chunks.append(part)
                if (size := size + len(part)) > MAX_PEEKED_BYTES:
                    return None
        except ResponseLost as lost:
            self._truncation = lost
            raise
        return b"".join(self._peeked_chunks)

    async def iter_chunks(self) -> AsyncGenerator[bytes]:
        """Yields the raw body while it arrives; raises ResponseLost if it is truncated."""
        for part in self._peeked_chunks:
            yield part
        if self._truncation is not None:
            raise self._truncation
        async for part in self._iter_received_chunks():
            yield part

    async def _iter_received_chunks(self) -> AsyncGenerator[bytes]:
        while part := await self._read_chunk():
            yield part
        if not self.has_detectable_end and self._has_connection_been_reset:
            raise ResponseLost("the connection was reset before the end of the response")

    @property
    def _has_connection_been_reset(self) -> bool:
        # For a body without length, aiohttp treats a reset like a normal end of the connection.
        return self._protocol is not None and isinstance(self._protocol.exception(), OSError)

    async def _read_chunk(self) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._response.content.readany()
        except TimeoutError:
            lost = ResponseLost(f"the response stalled for {self._timeout_seconds:g} s")
        except Exception as error:  # noqa: BLE001 - after any error the rest of the body is lost
            lost = convert_to_response_lost(error)
        raise lost


async def _build_unwritable_failure(
    request: PassthroughRequest, response: PassthroughResponse
) -> Unknown | Unreachable:
    """Builds the failure for a response with a header that must not be sent on."""
    if request.is_write:
        with suppress(ResponseLost):  # the service may execute the write until its response ends
            async for _ in response.iter_chunks():
                pass
        return Unknown(UNWRITABLE_RESPONSE)
    return Unreachable(UNWRITABLE_RESPONSE)


class PassthroughClient:
    """Passes requests on to a service; created by ``open_passthrough_client``."""

    def __init__(
        self,
        settings: Settings,
        session: aiohttp.ClientSession,
        origins: Mapping[str, str],
        breakers: CircuitBreakers,
        clock: ServiceClock | None,
    ) -> None:
        self._session = session
        self._clock = clock
        self._breakers = breakers
        self._egress = EgressConfig(settings, origins)
        self._timeout_seconds = settings.upstream.timeout_seconds
        self._origins = {name: URL(origin) for name, origin in origins.items()}

    def has_environment(self, environment: str) -> bool:
        """Whether the environment has an address."""
        return environment in self._origins

    @asynccontextmanager
    async def send(
        self, request: PassthroughRequest, fence: Fence | None = None
    ) -> AsyncIterator[PassthroughResponse]:
        """Sends a request once, unless the fence refuses, and yields its response.

        Raises Unreachable if a write was not sent or a read has no response; and Unknown if a write
        was sent and has no response that can be passed on, so that it may have been executed. The
        headers must arrive within ``upstream.timeout_seconds``, and then at least one byte of the
        body in each such period.
        """
        if not is_forwardable(request.target):
            raise ValueError("a target that must not be forwarded")
        response = await self._send_through_circuit_breaker(request, fence)
        try:
            passthrough_response = PassthroughResponse(response, self._timeout_seconds)
            # Checked before any byte goes to the client, while an error response is still
            # possible.
            if not header_filter.has_writable_response_headers(passthrough_response.headers):
                raise await _build_unwritable_failure(request, passthrough_response)
            yield passthrough_response
        finally:
            response.close()  # after a complete read, the connection has already been released

    async def _send_through_circuit_breaker(
        self, request: PassthroughRequest, fence: Fence | None
    ) -> aiohttp.ClientResponse:
        origin = self._origins.get(request.environment)
        if origin is None:
            raise Unreachable(f"no address for {request.environment} is configured")
        path = origin.raw_path.rstrip("/") + request.target
        attempt = SingleSend(path, fence)
        with self._breakers.track(request.environment) as breaker_call:
            return await self._send_with_timeout(
                request, _build_url(origin, path), attempt, breaker_call
            )

    async def _send_with_timeout(
        self,
        request: PassthroughRequest,
        url: URL,
        attempt: SingleSend,
        breaker_call: BreakerCall,
    ) -> aiohttp.ClientResponse:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                response = await self._send_request(request, url, attempt)
        except TimeoutError:
            reason = f"no answer within {self._timeout_seconds:g} s"
            if attempt.has_left:  # otherwise it only waited for a free connection
                breaker_call.record_failure()
        except ResponseLost as lost:
            reason = str(lost)
            # An answer that cannot be parsed shows that something responds: no failure for the
            # breaker.
            if lost.is_connection_failure or not attempt.has_left:
                breaker_call.record_failure()
            else:
                breaker_call.record_answer()
        except Exception as error:
            if not attempt.has_left:
                raise
            reason = type(error).__name__  # it was sent, so the service may have executed it
        else:
            breaker_call.record_answer()
            self._record_clock_skew(request, response, attempt)
            return response
        raise Unknown(reason) if request.is_write and attempt.has_left else Unreachable(reason)

    def _record_clock_skew(
        self,
        request: PassthroughRequest,
        response: aiohttp.ClientResponse,
        attempt: SingleSend,
    ) -> None:
        """Records the clock skew that the response to an accepted request shows."""
        # A refusal does not show whether the service accepted the timestamp.
        if self._clock is None or request.stamp is None or not 200 <= response.status < 300:
            return
        elapsed, wall = time.monotonic() - attempt.sent_at, self._clock.wall()
        if sample := measure_skew(response.headers, wall, elapsed):
            stamp_offset = request.stamp - (wall - elapsed / 2)
            self._clock.record_accepted(request.environment, sample, stamp_offset)

    async def _send_request(
        self, request: PassthroughRequest, url: URL, attempt: SingleSend
    ) -> aiohttp.ClientResponse:
        headers, body = request.headers.copy(), request.body
        if body is not None:
            headers["Content-Length"] = str(body.size)
        unusable_count = 0
        while True:
            try:
                response = await self._session.request(
                    request.method,
                    url,
                    # A new iterator for each connection: the spool is read from its beginning.
                    data=None if body is None else body.iter_chunks(),
                    headers=headers,
                    # A redirect would send the client's credentials to a host of the answer's
                    # choice.
                    allow_redirects=False,
                    middlewares=(attempt,),
                    **self._egress.build_request_options(request.environment),
                )
            except UnusableConnection:  # nothing was sent on it
                if (unusable_count := unusable_count + 1) == MAX_UNUSABLE_CONNECTIONS:
                    raise
            else:
                if response.status < 200:
                    response.close()
                    # Includes 101, after which the connection would switch to a protocol other than
                    # HTTP.
                    raise ResponseLost(f"status {response.status} instead of a final response")
                return response


def _build_url(origin: URL, path: str) -> URL:
    # The whole target is passed as the path, because yarl drops an empty query.
    return URL.build(scheme=origin.scheme, authority=origin.raw_authority, path=path, encoded=True)


@asynccontextmanager
async def open_passthrough_client(
    settings: Settings,
    origins: Mapping[str, str],
    breakers: CircuitBreakers,
    clock: ServiceClock | None = None,
) -> AsyncIterator[PassthroughClient]:
    """Opens a client; ``origins`` are addresses by environment, ``clock`` records the skew."""
    skipped_headers = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
    async with create_http_session(settings, *skipped_headers) as session:
        yield PassthroughClient(settings, session, origins, breakers, clock)
