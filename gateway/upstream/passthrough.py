"""Passes requests with the client's own credentials on unchanged, and streams the responses.

Signed requests go to the current service, requests of unmigrated clients to the legacy one. A
request is sent once and never retried, because its signature is valid for a copy too. Only a
connection on which nothing was sent is replaced by another.

All end-to-end headers pass, except those about the connection or the host, and those that the
gateway sets itself.
"""

import asyncio
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.config.settings import Settings
from gateway.http.request_paths import is_forwardable
from gateway.http.responses import BODILESS_STATUSES, CHUNK_BYTES, encode_header_fields
from gateway.upstream.circuit_breaker import CircuitBreakers
from gateway.upstream.client import (
    MAX_ANSWER_BYTES,
    ServiceCall,
    build_failure,
    raise_unless_repeatable,
)
from gateway.upstream.clock import MAX_STAMP_AGE_SECONDS, ServiceClock, measure_skew
from gateway.upstream.http_connection import (
    Fence,
    ResponseLost,
    UpstreamConnection,
    decode_header_lines,
)
from gateway.upstream.transport import Origin, create_origins
from mappings.failures import Halted, Problem, Unknown, Unreachable

_METHODS_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that need no length without a body (RFC 9110, section 8.6)."""

MAX_PEEKED_BYTES = 64 * 1024
"""Largest body that is read before any of it is passed on, to see what it proves."""

STAMP_EXPIRED = Problem(
    "internal_server_error",
    "The request waited until its timestamp was too old; nothing was done. Sign it again.",
)

STAMP_MARGIN_SECONDS = 1.25
"""A timestamp has whole seconds, and services may round its age too; the rest is for the way."""

UNWRITABLE_RESPONSE = "a response with a control character in a header"

MAX_MEMORY_BYTES = 1024 * 1024
"""Size up to which a body is in memory. The file has no name and vanishes when it is closed."""


class Spool:
    """A buffered body of ``size`` bytes, in memory if small, else in a file; must be closed."""

    def __init__(self) -> None:
        self.size = 0
        self._file = SpooledTemporaryFile(max_size=MAX_MEMORY_BYTES)  # noqa: SIM115 - closed by ``close``

    async def append(self, part: bytes) -> None:
        self.size += len(part)
        # From this size the data is in a file, and a write could block the event loop.
        if self.size > MAX_MEMORY_BYTES:
            await asyncio.to_thread(self._file.write, part)
        else:
            self._file.write(part)

    async def iter_chunks(self) -> AsyncIterator[bytes]:
        """Yields the body from its beginning; only one reader at a time."""
        self._file.seek(0)
        while part := await self._read_chunk():
            yield part

    async def _read_chunk(self) -> bytes:
        if self.size > MAX_MEMORY_BYTES:
            return await asyncio.to_thread(self._file.read, CHUNK_BYTES)
        return self._file.read(CHUNK_BYTES)

    def close(self) -> None:
        self._file.close()


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


class _Call(ServiceCall):
    """A call with its client's own timestamp, if it has one."""

    stamp_expires_at: float = math.inf
    """When the service no longer accepts the client's timestamp, by the monotonic clock."""

    def check_stamp_accepted(self) -> None:
        """Raises Halted if the service would answer that the client's credentials are wrong."""
        if self.sent_at > self.stamp_expires_at:
            raise Halted(STAMP_EXPIRED, retry_after=1)


class PassthroughResponse:
    """A response whose headers have arrived."""

    def __init__(
        self, request: PassthroughRequest, connection: UpstreamConnection, call: ServiceCall
    ) -> None:
        self.status = connection.status
        self.headers = CIMultiDictProxy(decode_header_lines(connection.header_lines))
        self._connection = connection
        self._method = request.method
        self._call = call
        self._peeked_chunks: list[bytes] = []

    @property
    def has_detectable_end(self) -> bool:
        """Whether a truncated body can be distinguished from a complete one."""
        is_chunked = "chunked" in self.headers.get("Transfer-Encoding", "").lower()
        is_empty = self.status in BODILESS_STATUSES or self._method == "HEAD"
        return is_chunked or is_empty or "Content-Length" in self.headers

    async def peek_body(self) -> bytes | None:
        """Reads a body of at most ``MAX_PEEKED_BYTES``, which ``iter_chunks`` still yields.

        Returns None if the body is longer; raises ResponseLost if it is truncated.
        """
        size = 0
        async for part in self._iter_received_chunks():
            self._peeked_chunks.append(part)
            if (size := size + len(part)) > MAX_PEEKED_BYTES:
                return None
        return b"".join(self._peeked_chunks)

    async def iter_chunks(self) -> AsyncGenerator[bytes]:
        """Yields the raw body while it arrives; raises ResponseLost if it is truncated."""
        for part in self._peeked_chunks:
            yield part
        async for part in self._iter_received_chunks():
            yield part

    async def read_body(self) -> bytes:
        """Reads the body to its end, in memory; raises ResponseLost, also if it is too long."""
        body = bytearray()
        async with aclosing(self.iter_chunks()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise ResponseLost(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        return bytes(body)

    async def _iter_received_chunks(self) -> AsyncGenerator[bytes]:
        seconds = self._call.seconds
        while True:
            self._call.ends_at = time.monotonic() + seconds
            try:
                part = await self._connection.read_part()
            except TimeoutError:
                raise ResponseLost(f"the response stalled for {seconds:g} s") from None
            if not part:
                return
            yield part


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
        addresses: Mapping[str, str],
        breakers: CircuitBreakers,
        clock: ServiceClock | None,
    ) -> None:
        self._clock = clock
        self._breakers = breakers
        self._timeout_seconds = settings.upstream.timeout_seconds
        self.origins = create_origins(settings, addresses)

    def has_environment(self, environment: str) -> bool:
        """Whether the environment has an address."""
        return environment in self.origins

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
        origin = self.origins.get(request.environment)
        if origin is None:
            raise Unreachable(f"no address for {request.environment} is configured")
        seconds, started_at = self._timeout_seconds, time.monotonic()
        call = _Call(seconds, started_at + seconds, 0, is_write=request.is_write)
        if self._clock is not None and request.stamp is not None:
            age = self._clock.wall() + self._clock.offset(request.environment) - request.stamp
            call.stamp_expires_at = started_at + MAX_STAMP_AGE_SECONDS + STAMP_MARGIN_SECONDS - age
        breaker = self._breakers[request.environment]
        is_probe, failure = breaker.start_call(), None
        try:
            connection = await _exchange(request, fence, origin, call)
            call.outcome = "answer"
        except (TimeoutError, ResponseLost) as error:
            failure = build_failure(call, error)
        finally:
            breaker.end_call(call.outcome, is_probe=is_probe)
        if failure is not None:
            raise failure
        try:
            response = PassthroughResponse(request, connection, call)
            self._record_clock_skew(request, response, call)
            # Checked before any byte goes to the client, while an error response is still
            # possible.
            if not has_writable_response_headers(response.headers):
                raise await _build_unwritable_failure(request, response)
            yield response
        finally:
            origin.release(connection)  # closes it, unless the response is complete

    def _record_clock_skew(
        self,
        request: PassthroughRequest,
        response: PassthroughResponse,
        call: ServiceCall,
    ) -> None:
        """Records the clock skew that the response to an accepted request shows."""
        # A refusal does not show whether the service accepted the timestamp.
        if self._clock is None or request.stamp is None or not 200 <= response.status < 300:
            return
        elapsed, wall = time.monotonic() - call.sent_at, self._clock.wall()
        if sample := measure_skew(response.headers, wall, elapsed):
            stamp_offset = request.stamp - (wall - elapsed / 2)
            self._clock.record_accepted(request.environment, sample, stamp_offset)


async def _exchange(
    request: PassthroughRequest, fence: Fence | None, origin: Origin, call: _Call
) -> UpstreamConnection:
    """Sends a request on a connection that can be used; raises TimeoutError and ResponseLost."""
    head, body = _encode_head(request, origin), request.body
    while True:
        connection = origin.take_idle_connection() or (
            await origin.wait_for_connection(call.ends_at)
        )
        try:
            async with asyncio.timeout_at(call.ends_at):
                data = head
                if body is not None and body.size <= CHUNK_BYTES:
                    data += b"".join([chunk async for chunk in body.iter_chunks()])
                call.sent_at = time.monotonic()
                # Checked when there is a connection, so that waiting for one changes nothing.
                while fence is not None and not fence.is_fence_recent:
                    await fence.verify_fence()
                    call.sent_at = time.monotonic()
                call.check_stamp_accepted()
                connection.check_usable()
                call.has_left = True
                response = connection.start_streamed_exchange(request.method, data, call)
                if body is not None and body.size > CHUNK_BYTES:
                    connection.write_body(body.iter_chunks())
                await response
        except BaseException as error:  # noqa: BLE001 - raised again by the function
            connection.close()
            raise_unless_repeatable(call, error, request.environment)
        else:
            if connection.status >= 200:
                return connection
            connection.close()  # after a 101 it would switch to another protocol
            raise ResponseLost(f"status {connection.status} instead of a final response")


def _encode_head(request: PassthroughRequest, origin: Origin) -> bytes:
    headers = {"Host": origin.host_header}
    if request.body is not None:
        headers["Content-Length"] = str(request.body.size)
    elif request.method not in _METHODS_WITHOUT_BODY:
        headers["Content-Length"] = "0"
    fields = [*headers.items(), *request.headers.items()]
    request_line = f"{request.method} {origin.path}{request.target} HTTP/1.1"
    return f"{request_line}\r\n{encode_header_fields(fields)}\r\n".encode()


@asynccontextmanager
async def open_passthrough_client(
    settings: Settings,
    addresses: Mapping[str, str],
    breakers: CircuitBreakers,
    clock: ServiceClock | None = None,
) -> AsyncIterator[PassthroughClient]:
    """Opens a client; ``addresses`` are by environment, ``clock`` records the skew."""
    client = PassthroughClient(settings, addresses, breakers, clock)
    try:
        yield client
    finally:
        for origin in client.origins.values():
            origin.close()


# Headers


def _split_header_names(names: str) -> frozenset[str]:
    return frozenset(names.split())


HOP_BY_HOP = _split_header_names(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    "transfer-encoding upgrade"
)
"""RFC 9110, section 7.6.1; also removed are the headers that ``Connection`` lists."""

REMOVED_RESPONSE_HEADERS = _split_header_names(
    "access-control-allow-credentials alt-svc clear-site-data content-length nel public-key-pins "
    "report-to reporting-endpoints server set-cookie set-cookie2 strict-transport-security via "
    "x-lighttpd-send-file x-lighttpd-send-tempfile x-litespeed-location x-reproxy-url x-sendfile"
)
"""Headers that a client would store for the gateway's host, that a proxy in front of the gateway
would act on (also ``X-Accel-*``), or that the gateway sets.
"""

REMOVED_REQUEST_HEADERS = _split_header_names(
    "content-length cookie expect forwarded host true-client-ip via x-api-key x-client-ip "
    "x-cluster-client-ip x-forwarded x-http-method x-http-method-override x-method-override "
    "x-original-host x-original-method x-original-uri x-original-url x-real-ip x-rewrite-url"
)
"""Headers that the gateway sets, that belong to the other interface, or that could make a service
that trusts the gateway see a different client, method or path than the checked one (also
``X-Forwarded-*``).
"""

_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that a field value must not contain (RFC 9110, section 5.5)."""

_REMOVED_PREFIXES = ("x-accel-", "x-forwarded-", "x-payout-gateway-", "cf-connecting-")


def filter_request_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Filters the headers of a signed request."""
    return _remove_headers(headers, REMOVED_REQUEST_HEADERS)


def filter_legacy_request_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Filters the headers of a legacy request.

    ``Accept-Encoding`` is removed, because the gateway parses the response to a write, and
    ``Authorization``, because it belongs to the other interface.
    """
    filtered_headers = _remove_headers(headers, REMOVED_REQUEST_HEADERS - {"x-api-key"})
    for name in ("Accept-Encoding", "Authorization"):
        filtered_headers.popall(name, None)
    return filtered_headers


def filter_response_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    return _remove_headers(headers, REMOVED_RESPONSE_HEADERS)


def has_writable_response_headers(headers: CIMultiDictProxy[str]) -> bool:
    """Whether no filtered header has a control character, which parsers read in different ways."""
    return not any(map(_CONTROL_CHARACTER.search, filter_response_headers(headers).values()))


def _remove_headers(
    headers: CIMultiDictProxy[str], removed_names: frozenset[str]
) -> CIMultiDict[str]:
    # ``Connection`` may name any header, which must then not be forwarded (RFC 9110, section
    # 7.6.1).
    named = ",".join(headers.getall("Connection", [])).lower().split(",")
    removed_names |= HOP_BY_HOP | {name.strip() for name in named}
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if (lower := name.lower()) not in removed_names
        and not lower.startswith(_REMOVED_PREFIXES)
        # A value that is not UTF-8 cannot be sent unchanged.
        and not any("\ud800" <= letter <= "\udfff" for letter in value)
    )
