"""HTTP client for signed requests of the current interface.

- A write is sent once. It is signed and sent again only if the service itself refuses the
  signature, which means that nothing was executed.
- A read is sent again once if its connection failed.
- A 401 may be caused by clock skew (``clock``), or by the query, which the document leaves open
  whether to sign (``SignedTargetForms``). Each correction is tried once.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import structlog

from gateway.auth.signing import (
    Credentials,
    SignedTargetForm,
    compute_signature,
    extract_signed_target,
)
from gateway.config.settings import Settings
from gateway.http.request_reader import (
    DecompressedBodyTooLarge,
    DecompressionError,
    decompress_body,
)
from gateway.observability import metrics, traces
from gateway.payloads import json_codec
from gateway.storage.capability_cache import CapabilityCache
from gateway.upstream.circuit_breaker import CircuitBreaker, CircuitBreakers, Outcome, Service
from gateway.upstream.clock import EnvironmentSkew, ServiceClock, measure_skew
from gateway.upstream.http_connection import (
    USER_AGENT,
    Deadline,
    Fence,
    Reply,
    ResponseLost,
    UnusableConnection,
    UpstreamConnection,
    build_too_large_error,
)
from gateway.upstream.service_problems import ServiceProblems
from gateway.upstream.signed_target import SignedTargetForms
from gateway.upstream.transport import Origin, create_origins
from mappings.failures import Unknown, Unreachable

MAX_UNUSABLE_CONNECTIONS = 5
"""Unusable connections after which a call gives up: a server may send unasked data on each."""

UNANSWERED_STATUSES = frozenset({502, 504, *range(520, 530)})
"""Statuses of proxies and CDNs for a missing response: the call may have been executed."""

BYTES_PER_SECOND = 256 * 1024
"""The rate of large bodies: a call's timeout is extended by the time that both bodies take at it."""

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Limit for responses of the service, unless the limit for request bodies is higher."""

WINDOW_BYTES = 64 * 1024
"""Bytes of a body that are written at once: TLS encryption of them blocks the event loop."""

LARGE_BODY_BYTES = 1024 * 1024
"""Bytes from which a body is hashed in a thread, so that it does not block other requests."""

TARGET_PATTERN = re.compile(r"/v1/[!-\"$-~]*")  # visible ASCII; a fragment would not be sent

log = structlog.get_logger()


class _Environment(msgspec.Struct):
    """What all calls in one environment have in common."""

    name: str
    origin: Origin
    breaker: CircuitBreaker
    skew: EnvironmentSkew
    common_headers: str
    """The end of the request line, the headers of every request, and the name of the last one."""


class ServiceCall(Deadline, kw_only=True):
    """A call and what has become of it; ``sent_at`` is a time of the monotonic clock."""

    is_write: bool
    has_left: bool = False
    """Whether a byte of the request may have reached the service."""
    sent_at: float = 0.0
    outcome: Outcome = "nothing"
    may_repeat: bool = False
    """Whether it may be sent again if its connection fails, as a read may once."""
    unusable_count: int = 0


class _UpstreamCall(ServiceCall):
    """A call with the way it is signed, and its attempts so far."""

    environment: _Environment
    credentials: Credentials
    method: str
    target: str
    body: bytes
    request_id: str
    fence: Fence | None
    has_query: bool
    form: SignedTargetForm
    correction: float
    has_other_form: bool = False
    has_other_correction: bool = False
    """Whether the form and the clock's correction differ from those of a refused attempt."""
    attempts: int = 0
    is_probe: bool = False


class UpstreamClient:
    """Sends signed requests; created by ``open_upstream_client``."""

    def __init__(
        self,
        settings: Settings,
        clock: ServiceClock,
        capabilities: CapabilityCache,
        breakers: CircuitBreakers,
    ) -> None:
        self.clock = clock
        self.problems = ServiceProblems()
        words = settings.vocabulary.current
        # Copied: reading a field of the settings takes four times as long.
        self._scheme, self._timestamp_header = words.scheme, words.timestamp_header
        upstream = settings.upstream
        self.timeout_seconds = upstream.timeout_seconds
        self._max_answer_bytes = max(settings.limits.body_bytes, MAX_ANSWER_BYTES)
        base_urls = settings.environments.map_base_urls_by_environment()
        self.origins = create_origins(settings, base_urls)
        self._environments: dict[str, _Environment] = {}
        for name, origin in self.origins.items():
            common_headers = (
                f" HTTP/1.1\r\nHost: {origin.host_header}\r\nAccept: application/json\r\n"
                f"Accept-Encoding: identity\r\nUser-Agent: {USER_AGENT}\r\nX-Request-Id: "
            )
            self._environments[name] = _Environment(
                name, origin, breakers[name], clock.find_skew(name), common_headers
            )
        self.signed_target = SignedTargetForms(upstream, capabilities)

    def send(
        self,
        environment: str,
        credentials: Credentials,
        method: str,
        target: str,
        body: bytes | None,
        *,
        request_id: str,
        write: bool,
        fence: Fence | None = None,
    ) -> Coroutine[Any, Any, Reply]:
        """Sends a request with the ``target`` (``/v1/...``, percent-encoded) byte for byte.

        It is signed when it has a connection, and only if the ``fence`` confirms that this process
        still owns the write. Its deadline is extended for each byte sent and received.

        Raises Unreachable if a write was not sent or a read has no answer, also while the circuit
        breaker is open; and Unknown if a write was sent and its answer cannot be read, so that it
        may have been executed.
        """
        if not TARGET_PATTERN.fullmatch(target):
            raise ValueError("a target begins with /v1/ and is visible ASCII")
        if (known := self._environments.get(environment)) is None:
            raise Unreachable(f"no environment {environment} is configured")
        rate, body, target = BYTES_PER_SECOND, body or b"", target.removesuffix("?")
        has_query, start_time = "?" in target, time.monotonic()
        seconds = self.timeout_seconds + len(body) / rate
        call = _UpstreamCall(
            seconds,
            start_time + seconds,
            rate,
            known,
            credentials,
            method,
            target,
            body,
            request_id,
            fence,
            has_query,
            # Without a query both forms are the same.
            (self.signed_target.find_form(environment) if has_query else None) or "path",
            known.skew.correction,
            is_write=write,
            may_repeat=not write,
        )
        return self._send_call(call, start_time)

    async def _send_call(self, call: _UpstreamCall, start_time: float) -> Reply:
        """Sends a call, and records what its outcome shows of the service."""
        breaker, failure = call.environment.breaker, None
        if not breaker.is_closed:
            # Not part of the deadline: an open breaker refuses the call at once.
            call.is_probe = breaker.start_call()
        try:
            reply = await self._exchange(call)
            call.outcome = "answer"
        except (TimeoutError, ResponseLost) as error:
            failure = build_failure(call, error)
            self.problems.record_failure(call.environment.name, is_write=call.is_write)
        finally:
            # Nearly every call is an answer that changes nothing.
            if call.outcome != "answer" or breaker.failure_count or not breaker.is_closed:
                breaker.end_call(call.outcome, is_probe=call.is_probe)
        # Raised outside the except block: the failure of a call says all that may be said.
        if failure is not None:
            raise failure
        reply.seconds, reply.attempts = time.monotonic() - start_time, call.attempts
        if reply.body[:1] != b"{" and 200 <= reply.status < 300 and reply.status != 204:
            reply.is_unreadable = not reply.body.lstrip().startswith(b"{")
        is_usual = reply.status == 200 and not (
            call.has_query or call.has_other_correction or reply.is_unreadable
        )
        # While the service has a problem, an accepted call has to be recorded too.
        if not is_usual or self.problems.by_credentials or self.problems.failures:
            await self._record_signing_outcome(call, reply)
        elif reply.skew_sample is not None:
            self.clock.record_accepted(call.environment.name, reply.skew_sample, date=reply.date)
        return reply

    async def _exchange(self, call: _UpstreamCall) -> Reply:
        """Sends a call until it has an answer; raises TimeoutError and ResponseLost."""
        origin, fence = call.environment.origin, call.fence
        while True:
            call.has_left, connection = False, None
            try:
                connection = origin.take_idle_connection() or (
                    await origin.wait_for_connection(call.ends_at)
                )
                if fence is not None or len(call.body) > WINDOW_BYTES:
                    await self._start_guarded_exchange(call, connection)
                else:
                    # Head and body in one write need only one packet, and no task.
                    data = self._encode_signed_head(call)
                    if call.body:
                        data += call.body
                    call.sent_at = time.monotonic()
                    # Only attempts that reach the network count.
                    call.has_left, call.attempts = True, call.attempts + 1
                    await connection.start_exchange(data, call)
                fields = connection.fields
                body = connection.take_body() if connection.is_complete else b""
                reply = Reply(
                    connection.status, connection.header_lines, body, date=fields.get(b"date", b"")
                )
                # Responses of the same second have the same date, and say no more than the first.
                if reply.status != 200 or reply.date != call.environment.skew.confirmed_date:
                    seconds = time.monotonic() - call.sent_at
                    reply.skew_sample = measure_skew(reply.headers, self.clock.wall(), seconds)
                if (
                    not connection.is_complete
                    or len(body) > self._max_answer_bytes
                    or b"content-encoding" in fields
                ):
                    reply.body = await self._read_unusual_body(connection, reply)
            # Closed even after a cancellation: the next request would get an unread answer.
            except BaseException as error:  # noqa: BLE001 - raised again by the function
                if connection is not None:
                    connection.close()
                raise_unless_repeatable(call, error, call.environment.name)
                continue
            origin.release(connection)
            if reply.status != 401 or not self._sign_in_another_way(call, reply):
                return reply

    def _sign_in_another_way(self, call: _UpstreamCall, reply: Reply) -> bool:
        """Changes how a refused call is signed; False if there is no other way to try."""
        correction = form = None
        if not call.has_other_correction:
            correction = self.clock.select_retry_correction(
                call.environment.name, reply.skew_sample, call.correction
            )
        if correction is None:
            form = self.signed_target.find_other_form(call.environment.name, call.target, call.form)
        if correction is None and form is None:
            return False
        if call.is_write and not _is_signature_refusal(reply.body):
            return False  # it may be a proxy's page, and the service may have executed the write
        if correction is not None:
            call.correction, call.has_other_correction = correction, True
        elif form is not None:
            call.form, call.has_other_form = form, True
        return True

    def _start_guarded_exchange(
        self, call: _UpstreamCall, connection: UpstreamConnection
    ) -> Awaitable[None]:
        """Signs a call that has a fence or a long body, and sends it at most once."""
        fence, body = call.fence, call.body
        if fence is None or len(body) > WINDOW_BYTES or call.has_other_correction:
            return self._start_unusual_exchange(call, connection)
        head = self._encode_signed_head(call)
        call.sent_at = time.monotonic()
        # The process may be suspended at any point. A pause before the timestamp is made is
        # detected here; after a long pause later, the service refuses the timestamp.
        if not fence.is_fence_recent:
            return self._start_unusual_exchange(call, connection)
        connection.check_usable()
        call.has_left, call.attempts = True, call.attempts + 1
        return connection.start_exchange(head + body, call)

    async def _start_unusual_exchange(
        self, call: _UpstreamCall, connection: UpstreamConnection
    ) -> None:
        """Exchanges a call with a long body, or one whose fence must be verified first."""
        fence, body = call.fence, call.body
        async with asyncio.timeout_at(call.ends_at):
            # After a suspend that stopped all clocks, the skew is the first sign that another
            # process may own the write by now.
            is_doubtful = call.has_other_correction
            while True:
                if fence is not None and (is_doubtful or not fence.is_fence_recent):
                    await fence.verify_fence(self.clock.wall() + call.correction)
                    is_doubtful = False
                if len(body) <= LARGE_BODY_BYTES:
                    head = self._encode_signed_head(call)
                else:
                    head = await asyncio.to_thread(self._encode_signed_head, call)
                call.sent_at = time.monotonic()
                if fence is None or fence.is_fence_recent:
                    break
        connection.check_usable()  # it may have been closed meanwhile
        call.has_left, call.attempts = True, call.attempts + 1
        if len(body) <= WINDOW_BYTES:
            await connection.start_exchange(head + body, call)
        else:
            response = connection.start_exchange(head, call)
            connection.write_body(_iter_body(body))
            await response

    async def _read_unusual_body(self, connection: UpstreamConnection, reply: Reply) -> bytes:
        """Reads a body that is incomplete, encoded or too large; raises ResponseLost."""
        body, max_bytes = reply.body, self._max_answer_bytes
        if len(body) > max_bytes:
            raise build_too_large_error(max_bytes)
        if not connection.is_complete:
            body = await connection.read_long_body(max_bytes)
        encoding = reply.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding == "identity" or not body:
            return body
        if encoding not in ("gzip", "deflate"):
            raise ResponseLost("an answer in an encoding that was not requested")
        try:
            return await decompress_body(body, encoding, max_bytes)
        except (DecompressionError, DecompressedBodyTooLarge):
            raise ResponseLost("an answer that cannot be decoded") from None

    def _encode_signed_head(self, call: _UpstreamCall) -> bytes:
        """Signs a call, and encodes its request line and headers; raises ResponseLost."""
        method, body, credentials = call.method, call.body, call.credentials
        stamp = int(self.clock.wall() + call.correction)
        target = extract_signed_target(call.form, call.target) if call.has_query else call.target
        signature = compute_signature(credentials.keyed, stamp, method, target, body)
        # These are not the gateway's own; a line break in one would inject a header.
        if not (call.request_id.isprintable() and credentials.access_key.isprintable()):
            raise ResponseLost("a header would be more than one")
        more_headers = ""
        if traces.active_tracer is not None:
            for name, value in traces.build_trace_headers().items():
                more_headers += f"{name}: {value}\r\n"
        if body:
            more_headers += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        # Without a length some servers wait for a body (RFC 9110, section 8.6).
        elif method != "GET":
            more_headers += "Content-Length: 0\r\n"
        environment = call.environment
        # A path prefix in base_url is sent but not signed: the signed path starts with /v1.
        return (
            f"{method} {environment.origin.path}{call.target}{environment.common_headers}"
            f"{call.request_id}\r\n{more_headers}"
            f"Authorization: {self._scheme} {credentials.access_key}:{signature}\r\n"
            f"{self._timestamp_header}: {stamp}\r\n\r\n"
        ).encode()

    async def _record_signing_outcome(self, call: _UpstreamCall, reply: Reply) -> None:
        """Records what an answer shows about clock skew, the signed target and the credentials."""
        is_accepted, environment = 200 <= reply.status < 300, call.environment.name
        if reply.is_unreadable:
            self.problems.record_failure(environment, is_write=call.is_write)
            return
        # Every attempt was refused, so the credentials are wrong or revoked.
        self.problems.record_answer(
            environment, call.credentials, call.method, reply.status, reply.body
        )
        if reply.status in (401, 403):
            log.error(
                "credentials_refused" if reply.status == 401 else "access_denied",
                merchant=call.credentials.merchant,
                environment=environment,
                access_key=f"{call.credentials.access_key_prefix}…",
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
        if call.has_other_correction and is_signature_accepted:
            self.clock.record_proven_correction(environment, call.correction)
        elif is_accepted and reply.skew_sample:
            self.clock.record_accepted(environment, reply.skew_sample)
        if is_accepted or (call.has_other_form and is_signature_accepted):
            await self.signed_target.record_accepted(environment, call.target, call.form)


async def _iter_body(body: bytes) -> AsyncIterator[memoryview]:
    view = memoryview(body)
    for start in range(0, len(body), WINDOW_BYTES):
        yield view[start : start + WINDOW_BYTES]


def raise_unless_repeatable(call: ServiceCall, error: BaseException, environment: str) -> None:
    """Raises the error of an attempt, unless the call may be sent again."""
    if isinstance(error, UnusableConnection):  # nothing was sent: also for a write
        call.unusable_count += 1
        if call.unusable_count == MAX_UNUSABLE_CONNECTIONS:
            raise error
    elif isinstance(error, ResponseLost):
        if not (call.may_repeat and error.is_connection_failure):
            raise error
        call.may_repeat = False
        metrics.traffic.upstream_retry_counts[environment] += 1
    # Once the call was sent, after any error it is unknown whether the service executed it.
    elif call.has_left and isinstance(error, Exception) and not isinstance(error, TimeoutError):
        raise ResponseLost(type(error).__name__)
    else:
        raise error


def build_failure(call: ServiceCall, error: TimeoutError | ResponseLost) -> Unreachable | Unknown:
    """Builds the failure of a call without a usable answer, and records it for the breaker."""
    if isinstance(error, ResponseLost):
        reason = str(error)
        # A response that cannot be parsed shows that something responds: no failure for the breaker.
        is_failure = error.is_connection_failure or not call.has_left
        call.outcome = "failure" if is_failure else "answer"
    else:
        reason = f"no answer within {call.seconds:.3g} s"
        if call.has_left:  # otherwise it only waited for a free connection
            call.outcome = "failure"
    if call.is_write and call.has_left:
        return Unknown(reason, age_seconds=time.monotonic() - call.sent_at)
    return Unreachable(reason)


def _is_signature_refusal(body: bytes) -> bool:
    """Whether a 401 body is an error of the service itself (current interface, section 7)."""
    # The service's own refusal is short, and parsing a large page would block other requests.
    if len(body) > json_codec.LARGE_BYTES:
        return False
    errors = (json_codec.loads_object(body) or {}).get("errors")
    return isinstance(errors, list) and any(
        isinstance(error, dict) and error.get("code") == "invalid_api_key" for error in errors
    )


@asynccontextmanager
async def open_upstream_client(
    settings: Settings,
    *,
    clock: ServiceClock | None = None,
    capabilities: CapabilityCache | None = None,
    breakers: CircuitBreakers | None = None,
    create_client: Callable[..., UpstreamClient] = UpstreamClient,
) -> AsyncIterator[UpstreamClient]:
    breakers = breakers or create_circuit_breakers(settings)
    client = create_client(
        settings, clock or ServiceClock(), capabilities or CapabilityCache(), breakers
    )
    try:
        yield client
    finally:
        for origin in client.origins.values():
            origin.close()


def create_circuit_breakers(settings: Settings, service: Service = "current") -> CircuitBreakers:
    """Creates the breakers of one service: it can be down while the other is up."""
    upstream, environments = settings.upstream, settings.environments
    if service == "current":
        addresses = environments.map_base_urls_by_environment()
    else:
        addresses = environments.map_legacy_base_urls_by_environment()
    options = upstream.breaker_failures, upstream.breaker_seconds, service
    return {name: CircuitBreaker(name, *options) for name in addresses}
