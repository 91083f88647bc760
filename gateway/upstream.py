"""The only HTTP client: signed requests of the current interface.

The service sees each request exactly once for each attempt that is meant:

- a write is sent once. Only after a 401, when nothing was executed, is it signed anew;
- a read is sent once more when its connection failed;
- a 401 may be due to this machine's clock (``clock``), or to what the document leaves open,
  whether the signed path includes the query (``signed_target``). Both are tried, once each.
"""

from __future__ import annotations

import asyncio
import io
import re
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import aiohttp
import structlog
from aiohttp import http_parser
from yarl import URL

from gateway.attempt import Answered, Attempt, Lost, SignedRequest, Unfit
from gateway.clock import Clock
from gateway.settings import Misconfigured
from gateway.signed_target import Forgetful, Learned, SignedTarget
from gateway.signing import Form, Pair, in_form
from mappings.grammar import Unknown, Unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from multidict import CIMultiDictProxy

    from gateway.settings import Settings

CONNECT_PART = 1 / 5
"""The part of the time for a call that may be spent on one connection's TCP and TLS."""

IDLE_SECONDS = 4
"""Less than the five seconds after which common servers close an idle connection: a write that
meets the closing one is a write of unknown outcome."""

UNFIT = 5
"""Connections that one call finds unfit before it gives up: a server may speak first on each."""

ANSWER_BYTES = 64 * 1024 * 1024
"""An answer of the service may be as large, whatever clients may send."""

TARGET = re.compile(r"/v1/[!-\"$-~]*")  # visible ASCII; a fragment would not be sent


def _version() -> str:
    try:
        return version("payout-gateway")
    except PackageNotFoundError:  # run from a checkout
        return "0"


USER_AGENT = f"payout-gateway/{_version()}"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Reply:
    """What the service answered, whatever its status; ``headers`` in any case.

    ``body`` is decoded where it came compressed. ``seconds`` is how long the call took with all
    its ``attempts``, the times that it was sent.
    """

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes
    seconds: float
    attempts: int


@dataclass(frozen=True, slots=True)
class _Way:
    """How a call is signed, and whether that is because it was refused otherwise."""

    form: Form
    correction: float
    other_form: bool = False
    other_time: bool = False


@dataclass(slots=True)
class _Call:
    environment: str
    pair: Pair
    method: str
    target: str
    body: bytes
    request_id: str
    write: bool
    may_repeat: bool
    attempts: int = 0
    left: bool = False

    def failure(self, why: str) -> Unreachable | Unknown:
        return Unknown(why) if self.write and self.left else Unreachable(why)


class Upstream:
    """Made by ``open_upstream``."""

    def __init__(
        self, settings: Settings, session: aiohttp.ClientSession, clock: Clock, learned: Learned
    ) -> None:
        self.clock = clock
        self._session = session
        self._words = settings.vocabulary.current
        self._seconds = settings.upstream.timeout_seconds
        self._most = max(settings.limits.body_bytes, ANSWER_BYTES)
        self._origins = {
            name: URL(environment.base_url)
            for name, environment in settings.environments.configured().items()
        }
        self.signed_target = SignedTarget(settings.upstream, self._origins, learned)

    async def send(
        self,
        environment: str,
        pair: Pair,
        method: str,
        target: str,
        body: bytes | None,
        *,
        request_id: str,
        write: bool,
    ) -> Reply:
        """Sends ``target`` (``/v1/...``, its query percent-encoded) byte for byte.

        Raises Unreachable (a write that never left, a read without an answer) and Unknown (a
        write that left and has no answer that can be read: it may have happened).
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
        )
        try:
            async with asyncio.timeout(self._seconds):
                way, answered = await self._answer(call)
        except TimeoutError:
            failure = call.failure(f"no answer within {self._seconds:g} s")
        except Lost as lost:
            failure = call.failure(str(lost))
        else:
            await self._note(call, way, answered)
            seconds = time.monotonic() - began
            return Reply(answered.status, answered.headers, answered.body, seconds, call.attempts)
        raise failure

    async def _answer(self, call: _Call) -> tuple[_Way, Answered]:
        environment = call.environment
        way = _Way(self.signed_target.first(environment), self.clock.offset(environment))
        answered = await self._attempt(call, way)
        while answered.status == 401 and (other := self._other_way(call, way, answered)):
            way = other
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
            except Unfit:  # whatever the call is, nothing of it was sent
                if (unfit := unfit + 1) == UNFIT:
                    raise
            except Lost as lost:
                if not (call.may_repeat and lost.dropped):
                    raise
                call.may_repeat = False

    async def _once(self, call: _Call, way: _Way) -> Answered:
        call.left = False
        origin = self._origins.get(call.environment)
        if origin is None:
            raise Lost(f"no environment {call.environment} is configured")
        # A prefix of base_url is sent and not signed: the signed path starts with /v1.
        attempt = Attempt(
            pair=call.pair,
            words=self._words,
            method=call.method,
            path=origin.raw_path.rstrip("/") + call.target,
            signed=in_form(way.form, call.target),
            body=call.body,
            wall=self.clock.wall,
            correction=way.correction,
        )
        try:
            return await self._perform(call, attempt, origin)
        except Exception as error:
            if isinstance(error, Lost) or not attempt.left:
                raise
            # Once it has left, whatever goes wrong leaves open what the service did.
            lost = Lost(type(error).__name__)
        finally:
            call.left = attempt.left
            call.attempts += attempt.left
        raise lost

    async def _perform(self, call: _Call, attempt: Attempt, origin: URL) -> Answered:
        async with self._session.request(
            call.method,
            URL(f"{str(origin).rstrip('/')}{call.target}", encoded=True),
            data=io.BytesIO(call.body) if call.body else None,
            headers=_headers(call),
            allow_redirects=False,
            middlewares=(attempt,),
        ) as response:
            return await attempt.answer(response, self._most)

    async def _note(self, call: _Call, way: _Way, answered: Answered) -> None:
        """What the last answer tells of the clock, the signed target and the pair."""
        accepted = 200 <= answered.status < 300
        if answered.status == 401:
            log.error(
                "credentials_refused",
                environment=call.environment,
                access_key=call.pair.access_key,
            )
        # Any other refusal says that the signature was good only where it stands against a 401
        # of the same call. By itself it may come from before the check, or from a proxy.
        passed = accepted or (400 <= answered.status < 500 and answered.status not in (401, 429))
        if way.other_time and passed:
            self.clock.prove(call.environment, way.correction)
        elif accepted and answered.seen:
            self.clock.accepted(call.environment, answered.seen)
        if accepted or (way.other_form and passed):
            await self.signed_target.accepted(call.environment, call.target, way.form)


def _headers(call: _Call) -> dict[str, str]:
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": USER_AGENT,
        "X-Request-Id": call.request_id,
    }
    return headers | ({"Content-Type": "application/json"} if call.body else {})


@asynccontextmanager
async def open_upstream(
    settings: Settings, *, clock: Clock | None = None, learned: Learned | None = None
) -> AsyncIterator[Upstream]:
    connector = aiohttp.TCPConnector(
        limit=0,
        limit_per_host=settings.upstream.connections,  # a sandbox that hangs takes none of live's
        keepalive_timeout=IDLE_SECONDS,
    )
    connect = settings.upstream.timeout_seconds * CONNECT_PART
    async with aiohttp.ClientSession(
        connector=connector,
        request_class=SignedRequest,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect),
        trust_env=False,
        auto_decompress=False,
        skip_auto_headers=("Content-Type",),
    ) as session:
        yield Upstream(settings, session, clock or Clock(), learned or Forgetful())


def check_extensions() -> None:
    """Raises Misconfigured where aiohttp would parse HTTP in Python."""
    if http_parser.HttpResponseParser.__module__ == "aiohttp.http_parser":
        what = (
            "aiohttp runs without its C extensions: it reads HTTP in Python, slower and less strict"
        )
        do = "install aiohttp's binary wheel for this platform, and unset AIOHTTP_NO_EXTENSIONS"
        raise Misconfigured([f"{what}; {do}"])
