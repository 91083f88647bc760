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

from gateway.auth.signing import Credentials, Form, format_signed_target, shorten_key
from gateway.http.timeouts import Timeout
from gateway.observability import traces
from gateway.payloads import json_codec
from gateway.upstream.breaker import BreakerCall, Breakers
from gateway.upstream.clock import Clock
from gateway.upstream.connections import create_session
from gateway.upstream.egress import EgressConfig
from gateway.upstream.send_attempt import Answered, Attempt, ResponseLost, Turn, Unfit
from gateway.upstream.signed_target import Forgetful, Learned, SignedTarget
from gateway.upstream.transport import Origin
from mappings.grammar import Unknown, Unreachable
from mappings.unchanging import unchanging

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from multidict import CIMultiDictProxy

    from gateway.config.settings import Settings
    from gateway.payloads.compressed_buffer import CompressedBuffer


UNFIT = 5
"""Unusable connections after which a call gives up: a server may send unasked data on each."""

NO_ANSWER = frozenset({502, 504, *range(520, 530)})
"""Statuses of proxies and CDNs for a missing response: the service may have executed the request."""

ANSWER_BYTES = 64 * 1024 * 1024
"""Limit for responses of the service, unless the limit for request bodies is higher."""

TARGET = re.compile(r"/v1/[!-\"$-~]*")  # visible ASCII; a fragment would not be sent


def _version() -> str:
    try:
        return version("payout-gateway")
    except PackageNotFoundError:  # run from a checkout
        return "0"


USER_AGENT = f"payout-gateway/{_version()}"

log = structlog.get_logger()


@unchanging(frozen=True, slots=True)
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


@unchanging(frozen=True, slots=True)
class _Way:
    """How a call is signed, and which options differ from a refused attempt."""

    form: Form
    correction: float
    other_form: bool = False
    other_time: bool = False


class Deadline:
    """The timeout of a call, extended for each byte sent and received at a minimum rate.

    0 ``bytes_per_second`` is no extension.
    """

    def __init__(self, seconds: float, bytes_per_second: int) -> None:
        self._seconds = seconds
        self._bytes_per_second = bytes_per_second
        self._within: Timeout | None = None

    def of(self, size: int) -> Timeout:
        """Starts the timeout of a call with a body of ``size`` bytes; to be entered by its task."""
        self._seconds += self._for(size)
        self._within = Timeout(self._seconds)
        return self._within

    def came(self, size: int) -> None:
        """Extends the timeout for ``size`` received bytes."""
        if self._within is not None:
            more = self._for(size)
            self._seconds += more
            self._within.extend(more)

    def _for(self, size: int) -> float:
        return size / self._bytes_per_second if self._bytes_per_second else 0.0

    def __str__(self) -> str:
        return f"no answer within {self._seconds:.3g} s"


@dataclass(slots=True)
class _Call:
    environment: str
    pair: Credentials
    method: str
    target: str
    body: bytes | CompressedBuffer
    request_id: str
    write: bool
    may_repeat: bool
    turn: Turn | None
    deadline: Deadline
    attempts: int = 0
    left: bool = False
    sent: float = 0.0

    def failure(self, why: str) -> Unreachable | Unknown:
        if self.write and self.left:
            return Unknown(why, age=time.monotonic() - self.sent)
        return Unreachable(why)


class Upstream:
    """Sends signed requests; created by ``open_upstream``."""

    def __init__(
        self,
        settings: Settings,
        session: aiohttp.ClientSession,
        clock: Clock,
        learned: Learned,
        breakers: Breakers,
    ) -> None:
        self.clock = clock
        self._breakers = breakers
        self._session = session
        self._words = settings.vocabulary.current
        self.timeout_seconds = settings.upstream.timeout_seconds
        self._bytes_per_second = settings.upstream.bytes_per_second
        self._most = max(settings.limits.body_bytes, ANSWER_BYTES)
        way_out = EgressConfig(settings)
        self._origins = {
            name: Origin(session, URL(environment.base_url), way_out.of(name))
            for name, environment in settings.environments.configured().items()
        }
        self.signed_target = SignedTarget(settings.upstream, self._origins, learned)

    async def send(
        self,
        environment: str,
        pair: Credentials,
        method: str,
        target: str,
        body: bytes | CompressedBuffer | None,
        *,
        request_id: str,
        write: bool,
        turn: Turn | None = None,
    ) -> Reply:
        """Sends a request with the ``target`` (``/v1/...``, percent-encoded) byte for byte.

        It is signed when it has a connection, and only if the ``fence`` confirms that this process
        still owns the write.

        Raises Unreachable if a write was not sent or a read has no answer, also while the circuit
        breaker is open; and Unknown if a write was sent and its answer cannot be read, so that it
        may have been executed.
        """
        if not TARGET.fullmatch(target):
            raise ValueError("a target begins with /v1/ and is visible ASCII")
        began = time.monotonic()
        call = _Call(
            environment=environment,
            pair=pair,
            method=method,
            target=target.removesuffix("?"),  # yarl does not keep an empty query
            body=body or b"",
            request_id=request_id,
            write=write,
            may_repeat=not write,
            turn=turn,
            deadline=Deadline(self.timeout_seconds, self._bytes_per_second),
        )
        with self._breakers.trial(environment) as trial:
            way, answered = await self._met(call, trial)
        await self._note(call, way, answered)
        seconds = time.monotonic() - began
        return Reply(answered.status, answered.headers, answered.body, seconds, call.attempts)

    async def _met(self, call: _Call, trial: BreakerCall) -> tuple[_Way, Answered]:
        try:
            with call.deadline.of(len(call.body)):
                met = await self._answer(call)
        except TimeoutError:
            failure = call.failure(str(call.deadline))
            if call.left:  # otherwise it only waited for a free connection
                trial.failed()
        except ResponseLost as lost:
            failure = call.failure(str(lost))
            # A response that cannot be parsed shows that something responds: no failure for the
            # breaker.
            if lost.dropped or not call.attempts:
                trial.failed()
            else:
                trial.answered()
        else:
            trial.answered()
            return met
        raise failure

    async def _answer(self, call: _Call) -> tuple[_Way, Answered]:
        environment = call.environment
        way = _Way(self.signed_target.first(environment), self.clock.offset(environment))
        answered = await self._attempt(call, way)
        while answered.status == 401 and (other := self._other_way(call, way, answered)):
            if call.write and not _refuses_signature(answered.body):
                break  # it may be a proxy's page, and the service may have executed the write
            way = other
            if call.turn and way.other_time:
                # After a suspend that stopped all clocks, the skew is the first sign that another
                # process may own the write by now.
                await call.turn.fence()
            answered = await self._attempt(call, way)
        return way, answered

    def _other_way(self, call: _Call, way: _Way, refused: Answered) -> _Way | None:
        environment = call.environment
        if not way.other_time:
            correction = self.clock.after_refusal(environment, refused.seen, way.correction)
            if correction is not None:
                return replace(way, correction=correction, other_time=True)
        if form := self.signed_target.other(environment, call.target, way.form):
            return replace(way, form=form, other_form=True)
        return None

    async def _attempt(self, call: _Call, way: _Way) -> Answered:
        unfit = 0
        while True:
            try:
                return await self._once(call, way)
            except Unfit:  # nothing was sent, so writes may be tried again too
                if (unfit := unfit + 1) == UNFIT:
                    raise
            except ResponseLost as lost:
                if not (call.may_repeat and lost.dropped):
                    raise
                # Only once; a second failure is reported.
                call.may_repeat = False

    async def _once(self, call: _Call, way: _Way) -> Answered:
        call.left = False
        origin = self._origins.get(call.environment)
        if origin is None:
            raise ResponseLost(f"no environment {call.environment} is configured")
        # A path prefix in base_url is sent but not signed: the signed path starts with /v1.
        attempt = Attempt(
            pair=call.pair,
            words=self._words,
            method=call.method,
            path=origin.path + call.target,
            signed=format_signed_target(way.form, call.target),
            body=call.body,
            wall=self.clock.wall,
            correction=way.correction,
            came=call.deadline.came,
            turn=call.turn,
        )
        try:
            return await origin.exchanged(attempt, _headers(call), self._most)
        except Exception as error:
            if isinstance(error, ResponseLost) or not attempt.left:
                raise
            # After it was sent, any error leaves open whether the service executed it.
            lost = ResponseLost(type(error).__name__)
        finally:
            call.left = attempt.left
            call.sent = attempt.sent
            # Only attempts that reached the network count.
            call.attempts += attempt.left
        raise lost

    async def _note(self, call: _Call, way: _Way, answered: Answered) -> None:
        """Records what an answer shows about clock skew, the signed target and the credentials."""
        accepted = 200 <= answered.status < 300
        # Every attempt was refused, so the credentials are wrong or revoked.
        if answered.status == 401:
            log.error(
                "credentials_refused",
                environment=call.environment,
                access_key=shorten_key(call.pair.access_key),
            )
        # Another refusal shows that the signature was valid only after a 401 of the same call.
        # Otherwise it may come from a proxy, or from a check before the signature.
        passed = accepted or (400 <= answered.status < 500 and answered.status not in (401, 429))
        if way.other_time and passed:
            self.clock.prove(call.environment, way.correction)
        elif accepted and answered.seen:
            self.clock.accepted(call.environment, answered.seen)
        if accepted or (way.other_form and passed):
            await self.signed_target.accepted(call.environment, call.target, way.form)


def _refuses_signature(body: bytes | CompressedBuffer) -> bool:
    """Whether a 401 body is an error of the service itself (current interface, section 7)."""
    if len(body) > json_codec.LARGE:
        return False
    try:
        said = json_codec.read(bytes(body))
    except json_codec.Unreadable:
        return False
    errors = said.get("errors") if isinstance(said, dict) else None
    return isinstance(errors, list) and any(
        isinstance(one, dict) and one.get("code") == "invalid_api_key" for one in errors
    )


def _headers(call: _Call) -> dict[str, str]:
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": USER_AGENT,
        "X-Request-Id": call.request_id,
        **traces.build_trace_headers(),
    }
    if call.body:
        headers |= {"Content-Type": "application/json", "Content-Length": str(len(call.body))}
    elif call.method != "GET":
        headers["Content-Length"] = "0"
    return headers


@asynccontextmanager
async def open_upstream(
    settings: Settings,
    *,
    clock: Clock | None = None,
    learned: Learned | None = None,
    breakers: Breakers | None = None,
) -> AsyncIterator[Upstream]:
    async with create_session(settings, "Content-Type") as session:
        breakers = breakers or create_breakers(settings)
        yield Upstream(settings, session, clock or Clock(), learned or Forgetful(), breakers)


def create_breakers(settings: Settings) -> Breakers:
    upstream = settings.upstream
    environments = settings.environments.configured()
    return Breakers(environments, upstream.breaker_failures, upstream.breaker_seconds)
