"""HTTP client for signed requests of the current interface.

- A write is sent once. It is signed and sent again only if the service itself refuses the
  signature, which means that nothing was executed.
- A read is sent again once if its connection failed.
- A 401 may be caused by clock skew (``clock``), or by the query, which the document leaves open
  whether to sign (``signed_target``). Each correction is tried once.
"""

from __future__ import annotations

import re
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import aiohttp
import structlog
from yarl import URL

from gateway.auth.signing import Credentials, SignedTargetForm, extract_signed_target, shorten_key
from gateway.http.timeouts import Timeout
from gateway.observability import traces
from gateway.payloads import json_codec
from gateway.upstream.circuit_breaker import BreakerCall, CircuitBreakers
from gateway.upstream.clock import ServiceClock
from gateway.upstream.connections import create_http_session
from gateway.upstream.egress import EgressConfig
from gateway.upstream.send_attempt import (
    Fence,
    ResponseLost,
    SignedAttempt,
    UnusableConnection,
    UpstreamAnswer,
)
from gateway.upstream.signed_target import CapabilityStore, NoCapabilities, SignedTargetForms
from gateway.upstream.transport import Origin
from mappings.failures import Unknown, Unreachable
from mappings.frozen import frozen_dataclass

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from multidict import CIMultiDictProxy

    from gateway.config.settings import Settings
    from gateway.payloads.compressed_buffer import CompressedBuffer


MAX_UNUSABLE_CONNECTIONS = 5
"""Unusable connections after which a call gives up: a server may send unasked data on each."""

UNANSWERED_STATUSES = frozenset({502, 504, *range(520, 530)})
"""Statuses of proxies and CDNs for a missing response: the call may have been executed."""

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Limit for responses of the service, unless the limit for request bodies is higher."""

TARGET_PATTERN = re.compile(r"/v1/[!-\"$-~]*")  # visible ASCII; a fragment would not be sent


def _find_gateway_version() -> str:
    try:
        return version("payout-gateway")
    except PackageNotFoundError:  # run from a checkout
        return "0"


USER_AGENT = f"payout-gateway/{_find_gateway_version()}"

log = structlog.get_logger()


@frozen_dataclass(frozen=True, slots=True)
class Reply:
    """A response of the service, with any status; ``headers`` are case-insensitive.

    ``body`` is decompressed, or a CompressedBuffer if it is large. ``seconds`` is the duration of
    the call with all ``attempts``, the number of times it was sent.
    """

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes | CompressedBuffer
    seconds: float
    attempts: int


@frozen_dataclass(frozen=True, slots=True)
class _SigningOptions:
    """The way a call is signed, and which options differ from a refused attempt."""

    form: SignedTargetForm
    correction: float
    has_other_form: bool = False
    has_other_correction: bool = False


class Deadline:
    """The timeout of a call, extended for each byte sent and received at a minimum rate.

    With 0 ``bytes_per_second`` the timeout is not extended.
    """

    def __init__(self, seconds: float, bytes_per_second: int) -> None:
        self._seconds = seconds
        self._bytes_per_second = bytes_per_second
        self._timeout: Timeout | None = None

    def start_timeout(self, size: int) -> Timeout:
        """Starts the timeout of a call with a body of ``size`` bytes; to be entered by its task."""
        self._seconds += self._compute_transfer_seconds(size)
        self._timeout = Timeout(self._seconds)
        return self._timeout

    def extend(self, size: int) -> None:
        """Extends the timeout for ``size`` received bytes."""
        if self._timeout is not None:
            extra_seconds = self._compute_transfer_seconds(size)
            self._seconds += extra_seconds
            self._timeout.extend(extra_seconds)

    def _compute_transfer_seconds(self, size: int) -> float:
        return size / self._bytes_per_second if self._bytes_per_second else 0.0

    def __str__(self) -> str:
        return f"no answer within {self._seconds:.3g} s"


@dataclass(slots=True)
class _UpstreamCall:
    environment: str
    credentials: Credentials
    method: str
    target: str
    body: bytes | CompressedBuffer
    request_id: str
    is_write: bool
    may_repeat: bool
    fence: Fence | None
    deadline: Deadline
    attempts: int = 0
    has_left: bool = False
    sent_at: float = 0.0

    def build_failure(self, reason: str) -> Unreachable | Unknown:
        if self.is_write and self.has_left:
            return Unknown(reason, age_seconds=time.monotonic() - self.sent_at)
        return Unreachable(reason)


class UpstreamClient:
    """Sends signed requests; created by ``open_upstream_client``."""

    def __init__(
        self,
        settings: Settings,
        session: aiohttp.ClientSession,
        clock: ServiceClock,
        capabilities: CapabilityStore,
        breakers: CircuitBreakers,
    ) -> None:
        self.clock = clock
        self._breakers = breakers
        self._session = session
        self._vocabulary = settings.vocabulary.current
        self.timeout_seconds = settings.upstream.timeout_seconds
        self._bytes_per_second = settings.upstream.bytes_per_second
        self._max_answer_bytes = max(settings.limits.body_bytes, MAX_ANSWER_BYTES)
        egress = EgressConfig(settings)
        self._origins = {
            name: Origin(session, URL(environment.base_url), egress.build_request_options(name))
            for name, environment in settings.environments.map_configured_environments_by_name().items()
        }
        self.signed_target = SignedTargetForms(settings.upstream, self._origins, capabilities)

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
        still owns the write.

        Raises Unreachable if a write was not sent or a read has no answer, also while the circuit
        breaker is open; and Unknown if a write was sent and its answer cannot be read, so that it
        may have been executed.
        """
        if not TARGET_PATTERN.fullmatch(target):
            raise ValueError("a target begins with /v1/ and is visible ASCII")
        start_time = time.monotonic()
        call = _UpstreamCall(
            environment=environment,
            credentials=credentials,
            method=method,
            target=target.removesuffix("?"),  # yarl does not keep an empty query
            body=body or b"",
            request_id=request_id,
            is_write=write,
            may_repeat=not write,
            fence=fence,
            deadline=Deadline(self.timeout_seconds, self._bytes_per_second),
        )
        # Not part of the deadline: an open breaker refuses the call at once.
        with self._breakers.track(environment) as breaker_call:
            signing_options, answer = await self._send_before_deadline(call, breaker_call)
        await self._record_signing_outcome(call, signing_options, answer)
        seconds = time.monotonic() - start_time
        return Reply(answer.status, answer.headers, answer.body, seconds, call.attempts)

    async def _send_before_deadline(
        self, call: _UpstreamCall, breaker_call: BreakerCall
    ) -> tuple[_SigningOptions, UpstreamAnswer]:
        try:
            with call.deadline.start_timeout(len(call.body)):
                result = await self._send_with_accepted_signature(call)
        except TimeoutError:
            failure = call.build_failure(str(call.deadline))
            if call.has_left:  # otherwise it only waited for a free connection
                breaker_call.record_failure()
        except ResponseLost as lost:
            failure = call.build_failure(str(lost))
            # A response that cannot be parsed shows that something responds: no failure for the
            # breaker.
            if lost.is_connection_failure or not call.attempts:
                breaker_call.record_failure()
            else:
                breaker_call.record_answer()
        else:
            breaker_call.record_answer()
            return result
        raise failure

    async def _send_with_accepted_signature(
        self, call: _UpstreamCall
    ) -> tuple[_SigningOptions, UpstreamAnswer]:
        environment = call.environment
        signing_options = _SigningOptions(
            self.signed_target.select_form(environment), self.clock.offset(environment)
        )
        answer = await self._send_with_retry(call, signing_options)
        while answer.status == 401 and (
            other_options := self._select_other_signing_options(call, signing_options, answer)
        ):
            if call.is_write and not _is_signature_refusal(answer.body):
                break  # it may be a proxy's page, and the service may have executed the write
            signing_options = other_options
            if call.fence and signing_options.has_other_correction:
                # After a suspend that stopped all clocks, the skew is the first sign that another
                # process may own the write by now.
                await call.fence.verify_fence()
            answer = await self._send_with_retry(call, signing_options)
        return signing_options, answer

    def _select_other_signing_options(
        self, call: _UpstreamCall, signing_options: _SigningOptions, answer: UpstreamAnswer
    ) -> _SigningOptions | None:
        environment = call.environment
        if not signing_options.has_other_correction:
            correction = self.clock.select_retry_correction(
                environment, answer.skew_sample, signing_options.correction
            )
            if correction is not None:
                return replace(signing_options, correction=correction, has_other_correction=True)
        if form := self.signed_target.find_other_form(
            environment, call.target, signing_options.form
        ):
            return replace(signing_options, form=form, has_other_form=True)
        return None

    async def _send_with_retry(
        self, call: _UpstreamCall, signing_options: _SigningOptions
    ) -> UpstreamAnswer:
        unusable_count = 0
        while True:
            try:
                return await self._send_once(call, signing_options)
            except UnusableConnection:  # nothing was sent, so writes may be tried again too
                if (unusable_count := unusable_count + 1) == MAX_UNUSABLE_CONNECTIONS:
                    raise
            except ResponseLost as lost:
                if not (call.may_repeat and lost.is_connection_failure):
                    raise
                # Tried again only once; a second failure is reported.
                call.may_repeat = False

    async def _send_once(
        self, call: _UpstreamCall, signing_options: _SigningOptions
    ) -> UpstreamAnswer:
        call.has_left = False
        origin = self._origins.get(call.environment)
        if origin is None:
            raise ResponseLost(f"no environment {call.environment} is configured")
        # A path prefix in base_url is sent but not signed: the signed path starts with /v1.
        attempt = SignedAttempt(
            credentials=call.credentials,
            vocabulary=self._vocabulary,
            method=call.method,
            path=origin.path + call.target,
            signed_target=extract_signed_target(signing_options.form, call.target),
            body=call.body,
            wall=self.clock.wall,
            correction=signing_options.correction,
            on_bytes_received=call.deadline.extend,
            fence=call.fence,
        )
        try:
            return await origin.send_and_read_answer(
                attempt, _build_headers(call), self._max_answer_bytes
            )
        except Exception as error:
            if isinstance(error, ResponseLost) or not attempt.has_left:
                raise
            # Once the call was sent, after any error it is unknown whether the service executed it.
            lost = ResponseLost(type(error).__name__)
        finally:
            call.has_left = attempt.has_left
            # Set even after an error: the timestamp's age limits how long the write may still be
            # executed.
            call.sent_at = attempt.sent_at
            # Only attempts that reached the network count.
            call.attempts += attempt.has_left
        raise lost

    async def _record_signing_outcome(
        self, call: _UpstreamCall, signing_options: _SigningOptions, answer: UpstreamAnswer
    ) -> None:
        """Records what an answer shows about clock skew, the signed target and the credentials."""
        is_accepted = 200 <= answer.status < 300
        # Every attempt was refused, so the credentials are wrong or revoked.
        if answer.status == 401:
            log.error(
                "credentials_refused",
                environment=call.environment,
                access_key=shorten_key(call.credentials.access_key),
            )
        # Another refusal shows that the signature was valid only after a 401 of the same call.
        # Otherwise it may come from a proxy, or from a check before the signature.
        is_signature_accepted = is_accepted or (
            400 <= answer.status < 500 and answer.status not in (401, 429)
        )
        if signing_options.has_other_correction and is_signature_accepted:
            self.clock.record_proven_correction(call.environment, signing_options.correction)
        elif is_accepted and answer.skew_sample:
            self.clock.record_accepted(call.environment, answer.skew_sample)
        if is_accepted or (signing_options.has_other_form and is_signature_accepted):
            await self.signed_target.record_accepted(
                call.environment, call.target, signing_options.form
            )


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


def _build_headers(call: _UpstreamCall) -> dict[str, str]:
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": USER_AGENT,
        "X-Request-Id": call.request_id,
        **traces.build_trace_headers(),
    }
    if call.body:
        headers |= {"Content-Type": "application/json", "Content-Length": str(len(call.body))}
    # Without a length some servers wait for a body (RFC 9110, section 8.6).
    elif call.method != "GET":
        headers["Content-Length"] = "0"
    return headers


@asynccontextmanager
async def open_upstream_client(
    settings: Settings,
    *,
    clock: ServiceClock | None = None,
    capabilities: CapabilityStore | None = None,
    breakers: CircuitBreakers | None = None,
) -> AsyncIterator[UpstreamClient]:
    async with create_http_session(settings, "Content-Type") as session:
        breakers = breakers or create_circuit_breakers(settings)
        yield UpstreamClient(
            settings, session, clock or ServiceClock(), capabilities or NoCapabilities(), breakers
        )


def create_circuit_breakers(settings: Settings) -> CircuitBreakers:
    upstream = settings.upstream
    environments = settings.environments.map_configured_environments_by_name()
    return CircuitBreakers(environments, upstream.breaker_failures, upstream.breaker_seconds)
