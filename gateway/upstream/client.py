"""HTTP client for signed requests of the current interface.

- A write is sent once. It is signed and sent again only if the service itself refuses the
  signature, which means that nothing was executed.
- A read is sent again once if its connection failed.
- A 401 may be caused by clock skew (``clock``), or by the query, which the document leaves open
  whether to sign (``signed_target``). Each correction is tried once.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import structlog
from yarl import URL

from gateway.auth.signing import (
    Credentials,
    SignedTargetForm,
    build_signature_headers,
    extract_signed_target,
    shorten_key,
)
from gateway.http.decompression import DecompressedBodyTooLarge, DecompressionError, decompress_body
from gateway.http.timeouts import Timeout
from gateway.observability import metrics, traces
from gateway.payloads import json_codec
from gateway.payloads.compressed_buffer import WINDOW_BYTES, CompressedBuffer
from gateway.upstream.circuit_breaker import BreakerCall, CircuitBreakers
from gateway.upstream.clock import ServiceClock, SkewSample, measure_skew
from gateway.upstream.connections import CONNECT_TIMEOUT_SHARE
from gateway.upstream.egress import EgressConfig
from gateway.upstream.http_connection import UpstreamConnection, build_too_large_error
from gateway.upstream.send_attempt import Fence, ResponseLost, UnusableConnection
from gateway.upstream.service_problems import ServiceProblems
from gateway.upstream.signed_target import CapabilityStore, NoCapabilities, SignedTargetForms
from gateway.upstream.transport import Origin
from mappings.failures import Unknown, Unreachable
from mappings.frozen import frozen_dataclass

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from multidict import MultiMapping

    from gateway.config.settings import Settings


MAX_UNUSABLE_CONNECTIONS = 5
"""Unusable connections after which a call gives up: a server may send unasked data on each."""

UNANSWERED_STATUSES = frozenset({502, 504, *range(520, 530)})
"""Statuses of proxies and CDNs for a missing response: the call may have been executed."""

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Limit for responses of the service, unless the limit for request bodies is higher."""

LARGE_BODY_BYTES = 1024 * 1024
"""Bytes from which a body is hashed in a thread, so that it does not block other requests."""

TARGET_PATTERN = re.compile(r"/v1/[!-\"$-~]*")  # visible ASCII; a fragment would not be sent


def _find_gateway_version() -> str:
    try:
        return version("payout-gateway")
    except PackageNotFoundError:  # run from a checkout
        return "0"


USER_AGENT = f"payout-gateway/{_find_gateway_version()}"

log = structlog.get_logger()


@dataclass(slots=True)
class Reply:
    """A response of the service, with any status; ``headers`` are case-insensitive.

    ``body`` is decompressed, or a CompressedBuffer if it is large. ``seconds`` is the duration of
    the call with all ``attempts``, the number of times it was sent.
    """

    status: int
    headers: MultiMapping[str]
    body: bytes | CompressedBuffer
    seconds: float
    attempts: int = 1
    skew_sample: SkewSample | None = None


@frozen_dataclass(frozen=True, slots=True)
class _SigningOptions:
    """The way a call is signed, and which options differ from a refused attempt."""

    form: SignedTargetForm
    correction: float
    has_other_form: bool = False
    has_other_correction: bool = False


@dataclass(slots=True)
class _UpstreamCall:
    environment: str
    origin: Origin
    credentials: Credentials
    method: str
    target: str
    body: bytes | CompressedBuffer
    request_id: str
    is_write: bool
    fence: Fence | None
    bytes_per_second: int
    timeout: Timeout
    may_repeat: bool
    attempts: int = 0
    has_left: bool = False
    sent_at: float = 0.0

    def extend_deadline(self, size: int) -> None:
        """Extends the deadline for each byte that is received, at a minimum rate."""
        if self.bytes_per_second:
            self.timeout.extend(size / self.bytes_per_second)


class UpstreamClient:
    """Sends signed requests; created by ``open_upstream_client``."""

    def __init__(
        self,
        settings: Settings,
        clock: ServiceClock,
        capabilities: CapabilityStore,
        breakers: CircuitBreakers,
    ) -> None:
        self.clock = clock
        self.problems = ServiceProblems()
        self._breakers = breakers
        self._vocabulary = settings.vocabulary.current
        upstream = settings.upstream
        self.timeout_seconds = upstream.timeout_seconds
        self._bytes_per_second = upstream.bytes_per_second
        self._max_answer_bytes = max(settings.limits.body_bytes, MAX_ANSWER_BYTES)
        egress = EgressConfig(settings)
        self.origins = {
            name: Origin(
                URL(environment.base_url),
                egress.select_egress(name),
                # By environment, so that a hanging sandbox does not use up the connections to live.
                max_connections=upstream.connections,
                connect_seconds=upstream.timeout_seconds * CONNECT_TIMEOUT_SHARE,
            )
            for name, environment in settings.environments.map_configured_environments_by_name().items()
        }
        self.signed_target = SignedTargetForms(upstream, self.origins, capabilities)

    async def send(
        self,
        environment: str,
        credentials: Credentials,
        method: str,
        target: str,
        body: bytes | CompressedBuffer | None,
        *,
        request_id: str,
        write: bool,
        fence: Fence | None = None,
    ) -> Reply:
        """Sends a request with the ``target`` (``/v1/...``, percent-encoded) byte for byte.

        It is signed when it has a connection, and only if the ``fence`` confirms that this process
        still owns the write. Its deadline is extended for each byte sent and received.

        Raises Unreachable if a write was not sent or a read has no answer, also while the circuit
        breaker is open; and Unknown if a write was sent and its answer cannot be read, so that it
        may have been executed.
        """
        if not TARGET_PATTERN.fullmatch(target):
            raise ValueError("a target begins with /v1/ and is visible ASCII")
        origin = self.origins.get(environment)
        if origin is None:
            raise Unreachable(f"no environment {environment} is configured")
        start_time = time.monotonic()
        rate, body = self._bytes_per_second, body or b""
        call = _UpstreamCall(
            environment,
            origin,
            credentials,
            method,
            target.removesuffix("?"),  # an empty query
            body,
            request_id,
            write,
            fence,
            rate,
            Timeout(self.timeout_seconds + (len(body) / rate if rate else 0.0)),
            not write,
        )
        # Not part of the deadline: an open breaker refuses the call at once.
        breaker_call = self._breakers.start_call(environment)
        try:
            with call.timeout:
                reply = await self._send_with_accepted_signature(call)
            breaker_call.outcome = "answer"
        except (TimeoutError, ResponseLost) as error:
            failure = _build_failure(call, error, breaker_call)
            self.problems.record_failure(environment, is_write=write)
        else:
            reply.seconds, reply.attempts = time.monotonic() - start_time, call.attempts
            return reply
        finally:
            self._breakers.end_call(environment, breaker_call)
        # Raised outside the except block: the failure of a call says all that may be said.
        raise failure

    async def _send_with_accepted_signature(self, call: _UpstreamCall) -> Reply:
        environment = call.environment
        # Without a query both forms are the same.
        form = self.signed_target.select_form(environment) if "?" in call.target else "path"
        options = _SigningOptions(form, self.clock.offset(environment))
        reply = await self._exchange_repeatedly(call, options)
        if reply.status == 401:
            reply, options = await self._sign_in_other_ways(call, options, reply)
        is_usual = reply.status == 200 and "?" not in call.target
        # While the service has a problem, an accepted call has to be recorded too.
        has_problem = self.problems.by_credentials or self.problems.failures
        if is_usual and not has_problem and not options.has_other_correction:
            if reply.skew_sample is not None:
                self.clock.record_accepted(environment, reply.skew_sample)
        else:
            await self._record_signing_outcome(call, options, reply)
        return reply

    async def _sign_in_other_ways(
        self, call: _UpstreamCall, options: _SigningOptions, reply: Reply
    ) -> tuple[Reply, _SigningOptions]:
        while reply.status == 401 and (
            other_options := self._select_other_signing_options(call, options, reply)
        ):
            if call.is_write and not _is_signature_refusal(reply.body):
                break  # it may be a proxy's page, and the service may have executed the write
            options = other_options
            if call.fence and options.has_other_correction:
                # After a suspend that stopped all clocks, the skew is the first sign that another
                # process may own the write by now.
                await call.fence.verify_fence()
            reply = await self._exchange_repeatedly(call, options)
        return reply, options

    async def _exchange_repeatedly(self, call: _UpstreamCall, options: _SigningOptions) -> Reply:
        """Exchanges a call, and again if that is safe: a read once; raises ResponseLost."""
        unusable_count = 0
        while True:
            try:
                return await self._exchange(call, options)
            except UnusableConnection:  # nothing was sent: also for a write
                if (unusable_count := unusable_count + 1) == MAX_UNUSABLE_CONNECTIONS:
                    raise
            except ResponseLost as lost:
                if not (call.may_repeat and lost.is_connection_failure):
                    raise
                call.may_repeat = False
                metrics.count_upstream_retry(call.environment)

    def _select_other_signing_options(
        self, call: _UpstreamCall, signing_options: _SigningOptions, reply: Reply
    ) -> _SigningOptions | None:
        environment = call.environment
        if not signing_options.has_other_correction:
            correction = self.clock.select_retry_correction(
                environment, reply.skew_sample, signing_options.correction
            )
            if correction is not None:
                return replace(signing_options, correction=correction, has_other_correction=True)
        if form := self.signed_target.find_other_form(
            environment, call.target, signing_options.form
        ):
            return replace(signing_options, form=form, has_other_form=True)
        return None

    async def _exchange(self, call: _UpstreamCall, options: _SigningOptions) -> Reply:
        """Signs a call, sends it at most once, and reads the answer; raises ResponseLost."""
        call.has_left, origin, body = False, call.origin, call.body
        connection = origin.take_idle_connection() or await origin.wait_for_connection()
        try:
            while True:
                if len(body) <= LARGE_BODY_BYTES:
                    head = self._encode_signed_head(call, options)
                else:
                    head = await asyncio.to_thread(self._encode_signed_head, call, options)
                call.sent_at = time.monotonic()
                # The process may be suspended at any point. A pause before the timestamp is made is
                # detected here; after a long pause later, the service refuses the timestamp.
                if call.fence is None or call.fence.is_fence_recent:
                    break
                await call.fence.verify_fence()
            if call.fence is not None or len(body) > LARGE_BODY_BYTES:
                connection.check_usable()  # it may have been closed meanwhile
            call.has_left = True
            # Only attempts that reach the network count.
            call.attempts += 1
            if len(body) <= WINDOW_BYTES:
                # Head and body in one write need only one packet, and no task.
                data = head + bytes(body) if body else head
                await connection.start_exchange(data, call.extend_deadline)
            else:
                await self._send_long_body(connection, head, call)
            wall_time, seconds = self.clock.wall(), time.monotonic() - call.sent_at
            reply = Reply(
                connection.status,
                connection.headers,
                await self._read_body(connection),
                seconds,
                skew_sample=measure_skew(connection.headers, wall_time, seconds),
            )
        # Closed even after a cancellation: the next request would receive an unread answer.
        except BaseException as error:
            connection.close()
            if (
                not call.has_left
                or isinstance(error, ResponseLost)
                or not isinstance(error, Exception)
            ):
                raise
            # Once the call was sent, after any error it is unknown whether the service executed it.
            lost = ResponseLost(type(error).__name__)
        else:
            origin.release(connection)
            return reply
        raise lost

    async def _send_long_body(
        self, connection: UpstreamConnection, head: bytes, call: _UpstreamCall
    ) -> None:
        """Writes a large body in the background, because the answer may arrive before its end."""
        response = connection.start_exchange(head, call.extend_deadline)
        write_task = asyncio.ensure_future(connection.write_body(call.body))
        try:
            await response
        finally:
            if not write_task.done() or write_task.cancelled() or write_task.exception():
                connection.forbid_reuse()  # the next request would be parsed as the rest of this
            write_task.cancel()
            await asyncio.gather(write_task, return_exceptions=True)

    async def _read_body(self, connection: UpstreamConnection) -> bytes | CompressedBuffer:
        """Reads the body of a response that has begun; raises ResponseLost."""
        max_bytes = self._max_answer_bytes
        body: bytes | CompressedBuffer = (
            connection.take_body()
            if connection.is_complete
            else await connection.read_long_body(max_bytes)
        )
        if len(body) > max_bytes:
            raise build_too_large_error(max_bytes)
        encoding = connection.headers.get("Content-Encoding")
        if encoding is None or encoding.strip().lower() == "identity" or not body:
            return body
        if encoding.strip().lower() not in ("gzip", "deflate"):
            raise ResponseLost("an answer in an encoding that was not requested")
        try:
            return await decompress_body(bytes(body), encoding, max_bytes)
        except (DecompressionError, DecompressedBodyTooLarge):
            raise ResponseLost("an answer that cannot be decoded") from None

    def _encode_signed_head(self, call: _UpstreamCall, options: _SigningOptions) -> bytes:
        """Signs a call, and encodes its request line and headers; raises ResponseLost."""
        method, target, body, origin = call.method, call.target, call.body, call.origin
        signature_headers = build_signature_headers(
            call.credentials,
            self._vocabulary,
            stamp=int(self.clock.wall() + options.correction),
            method=method,
            target=extract_signed_target(options.form, target),
            body=body,
        )
        more_headers, more_count = "", 0
        if traces.active_tracer is not None:
            for name, value in traces.build_trace_headers().items():
                more_headers, more_count = f"{more_headers}{name}: {value}\r\n", more_count + 1
        if body:
            more_headers += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            more_count += 2
        # Without a length some servers wait for a body (RFC 9110, section 8.6).
        elif method != "GET":
            more_headers, more_count = f"{more_headers}Content-Length: 0\r\n", more_count + 1
        signature_lines = "\r\n".join(map(": ".join, signature_headers.items()))
        # A path prefix in base_url is sent but not signed: the signed path starts with /v1.
        text = (
            f"{method} {origin.path}{target} HTTP/1.1\r\nHost: {origin.host_header}\r\n"
            "Accept: application/json\r\nAccept-Encoding: identity\r\n"
            f"User-Agent: {USER_AGENT}\r\nX-Request-Id: {call.request_id}\r\n{more_headers}"
            f"{signature_lines}\r\n\r\n"
        )
        # Counting line ends finds an injected header in any value.
        line_count = 9 + more_count
        if text.count("\r") != line_count or text.count("\n") != line_count or "\0" in text:
            raise ResponseLost("a header would be more than one")
        return text.encode()

    async def _record_signing_outcome(
        self, call: _UpstreamCall, signing_options: _SigningOptions, reply: Reply
    ) -> None:
        """Records what an answer shows about clock skew, the signed target and the credentials."""
        is_accepted = 200 <= reply.status < 300
        # Every attempt was refused, so the credentials are wrong or revoked.
        self.problems.record_answer(
            call.environment, call.credentials, reply.status, is_write=call.is_write
        )
        if reply.status in (401, 403):
            log.error(
                "credentials_refused" if reply.status == 401 else "access_denied",
                environment=call.environment,
                access_key=shorten_key(call.credentials.access_key),
                look_swapped=call.credentials.look_swapped,
                request_id=call.request_id,
                reason="the service refuses the gateway's credentials or address; the client's API "
                "key is valid",
                hint="run `payout-gateway doctor`",
            )
        # Another refusal shows that the signature was valid only after a 401 of the same call.
        # Otherwise it may come from a proxy, or from a check before the signature.
        is_signature_accepted = is_accepted or (
            400 <= reply.status < 500 and reply.status not in (401, 429)
        )
        if signing_options.has_other_correction and is_signature_accepted:
            self.clock.record_proven_correction(call.environment, signing_options.correction)
        elif is_accepted and reply.skew_sample:
            self.clock.record_accepted(call.environment, reply.skew_sample)
        if is_accepted or (signing_options.has_other_form and is_signature_accepted):
            await self.signed_target.record_accepted(
                call.environment, call.target, signing_options.form
            )


def _build_failure(
    call: _UpstreamCall, error: TimeoutError | ResponseLost, breaker_call: BreakerCall
) -> Unreachable | Unknown:
    """Builds the failure of a call without a usable answer, and records it for the breaker."""
    if isinstance(error, ResponseLost):
        reason = str(error)
        # A response that cannot be parsed shows that something responds: no failure for the breaker.
        is_failure = error.is_connection_failure or not call.attempts
        breaker_call.outcome = "failure" if is_failure else "answer"
    else:
        reason = f"no answer within {call.timeout.seconds:.3g} s"
        if call.has_left:  # otherwise it only waited for a free connection
            breaker_call.outcome = "failure"
    if call.is_write and call.has_left:
        return Unknown(reason, age_seconds=time.monotonic() - call.sent_at)
    return Unreachable(reason)


def _is_signature_refusal(body: bytes | CompressedBuffer) -> bool:
    """Whether a 401 body is an error of the service itself (current interface, section 7)."""
    # The service's own refusal is short, and parsing a large page would block other requests.
    if len(body) > json_codec.LARGE_BYTES:
        return False
    try:
        parsed_body = json_codec.loads(bytes(body))
    except json_codec.JsonError:
        return False
    errors = parsed_body.get("errors") if isinstance(parsed_body, dict) else None
    return isinstance(errors, list) and any(
        isinstance(error, dict) and error.get("code") == "invalid_api_key" for error in errors
    )


@asynccontextmanager
async def open_upstream_client(
    settings: Settings,
    *,
    clock: ServiceClock | None = None,
    capabilities: CapabilityStore | None = None,
    breakers: CircuitBreakers | None = None,
    create_client: Callable[..., UpstreamClient] = UpstreamClient,
) -> AsyncIterator[UpstreamClient]:
    breakers = breakers or create_circuit_breakers(settings)
    client = create_client(
        settings, clock or ServiceClock(), capabilities or NoCapabilities(), breakers
    )
    try:
        yield client
    finally:
        for origin in client.origins.values():
            origin.close()


def create_circuit_breakers(settings: Settings) -> CircuitBreakers:
    upstream = settings.upstream
    environments = settings.environments.map_configured_environments_by_name()
    return CircuitBreakers(environments, upstream.breaker_failures, upstream.breaker_seconds)
