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
from gateway.upstream.breaker import BreakerCall, Breakers
from gateway.upstream.client import UNFIT
from gateway.upstream.clock import Clock, measure_skew
from gateway.upstream.connections import create_session
from gateway.upstream.egress import EgressConfig
from gateway.upstream.send_attempt import ResponseLost, SentOnce, Turn, Unfit, build_response_lost
from mappings.grammar import Unknown, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from multidict import CIMultiDict, CIMultiDictProxy

    from gateway.config.settings import Settings
    from gateway.upstream.spool import Spool

BODILESS = (204, 304)

UNWRITABLE = "a response with a control character in a header"


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
    write: bool
    stamp: int | None = None


@dataclass(slots=True)
class Crossing(SentOnce):
    """One sending of a request with the client's credentials, which are not replaced."""

    path: str
    turn: Turn | None = None
    left: bool = False
    sent: float = 0.0

    async def _stamp(self, _headers: MutableMapping[str, str]) -> None:
        self.sent = time.monotonic()


class Passed:
    """A response whose headers have arrived."""

    def __init__(self, response: aiohttp.ClientResponse, seconds: float) -> None:
        self.status = response.status
        self.headers: CIMultiDictProxy[str] = response.headers
        self._response = response
        self._protocol = response.connection.protocol if response.connection else None
        self._seconds = seconds

    @property
    def tells_its_end(self) -> bool:
        """Whether a truncated body can be told from a complete one."""
        chunked = "chunked" in self.headers.get("Transfer-Encoding", "").lower()
        empty = self.status in BODILESS or self._response.method == "HEAD"
        return chunked or empty or "Content-Length" in self.headers

    async def parts(self) -> AsyncGenerator[bytes]:
        """Yields the raw body while it arrives; raises ResponseLost if it is truncated."""
        while part := await self._part():
            yield part
        if not self.tells_its_end and self._was_reset:
            raise ResponseLost("the connection was reset before the end of the response")

    @property
    def _was_reset(self) -> bool:
        # For a body without length, aiohttp treats a reset like a normal end of the connection.
        return self._protocol is not None and isinstance(self._protocol.exception(), OSError)

    async def _part(self) -> bytes:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._response.content.readany()
        except TimeoutError:
            lost = ResponseLost(f"the response stalled for {self._seconds:g} s")
        except Exception as error:  # noqa: BLE001 - after any error the rest of the body is lost
            lost = build_response_lost(error)
        raise lost


async def _unwritable(passage: PassthroughRequest, passed: Passed) -> Unknown | Unreachable:
    """Builds the failure for a response with a header that must not be sent on."""
    if passage.write:
        with suppress(ResponseLost):  # the service may execute the write until its response ends
            async for _ in passed.parts():
                pass
        return Unknown(UNWRITABLE)
    return Unreachable(UNWRITABLE)


class PassthroughClient:
    """Passes requests on to a service; created by ``open_passthrough``."""

    def __init__(
        self,
        settings: Settings,
        session: aiohttp.ClientSession,
        origins: Mapping[str, str],
        breakers: Breakers,
        clock: Clock | None,
    ) -> None:
        self._session = session
        self._clock = clock
        self._breakers = breakers
        self._way_out = EgressConfig(settings, origins)
        self._seconds = settings.upstream.timeout_seconds
        self._origins = {name: URL(origin) for name, origin in origins.items()}

    def has(self, environment: str) -> bool:
        """Whether the environment has an address."""
        return environment in self._origins

    @asynccontextmanager
    async def sent(
        self, passage: PassthroughRequest, turn: Turn | None = None
    ) -> AsyncIterator[Passed]:
        """Sends a request once, unless the fence refuses, and yields its response.

        Raises Unreachable if a write was not sent or a read has no response; and Unknown if a
        write was sent and has no response that can be passed on, so that it may have been
        executed. The headers must arrive within ``upstream.timeout_seconds``, and then at least
        one byte of the body within each such period.
        """
        if not is_forwardable(passage.target):
            raise ValueError("a target that must not be forwarded")
        response = await self._begun(passage, turn)
        try:
            passed = Passed(response, self._seconds)
            # Checked before any byte goes to the client, while an error response is still
            # possible.
            if not header_filter.is_writable(passed.headers):
                raise await _unwritable(passage, passed)
            yield passed
        finally:
            response.close()  # after a complete read, the connection has already been released

    async def _begun(
        self, passage: PassthroughRequest, turn: Turn | None
    ) -> aiohttp.ClientResponse:
        origin = self._origins.get(passage.environment)
        if origin is None:
            raise Unreachable(f"no address for {passage.environment} is configured")
        path = origin.raw_path.rstrip("/") + passage.target
        crossing = Crossing(path, turn)
        with self._breakers.trial(passage.environment) as trial:
            return await self._met(passage, _url(origin, path), crossing, trial)

    async def _met(
        self, passage: PassthroughRequest, url: URL, crossing: Crossing, trial: BreakerCall
    ) -> aiohttp.ClientResponse:
        try:
            async with asyncio.timeout(self._seconds):
                response = await self._sent(passage, url, crossing)
        except TimeoutError:
            why = f"no answer within {self._seconds:g} s"
            if crossing.left:  # otherwise it only waited for a free connection
                trial.failed()
        except ResponseLost as lost:
            why = str(lost)
            if lost.dropped or not crossing.left:
                trial.failed()
            else:
                trial.answered()
        except Exception as error:
            if not crossing.left:
                raise
            why = type(error).__name__  # it was sent, so the service may have executed it
        else:
            trial.answered()
            self._note(passage, response, crossing)
            return response
        raise Unknown(why) if passage.write and crossing.left else Unreachable(why)

    def _note(
        self, passage: PassthroughRequest, response: aiohttp.ClientResponse, crossing: Crossing
    ) -> None:
        """Records the clock skew that the response to an accepted request shows."""
        # A refusal does not show whether the service accepted the timestamp.
        if self._clock is None or passage.stamp is None or not 200 <= response.status < 300:
            return
        took, wall = time.monotonic() - crossing.sent, self._clock.wall()
        if seen := measure_skew(response.headers, wall, took):
            stamped = passage.stamp - (wall - took / 2)
            self._clock.accepted(passage.environment, seen, stamped)

    async def _sent(
        self, passage: PassthroughRequest, url: URL, crossing: Crossing
    ) -> aiohttp.ClientResponse:
        headers, body = passage.headers.copy(), passage.body
        if body is not None:
            headers["Content-Length"] = str(body.size)
        unfit = 0
        while True:
            try:
                response = await self._session.request(
                    passage.method,
                    url,
                    data=None if body is None else body.parts(),
                    headers=headers,
                    allow_redirects=False,
                    middlewares=(crossing,),
                    **self._way_out.of(passage.environment),
                )
            except Unfit:  # nothing was sent on it
                if (unfit := unfit + 1) == UNFIT:
                    raise
            else:
                if response.status < 200:
                    response.close()
                    # Such as 101: the connection would switch to a protocol that is not HTTP.
                    raise ResponseLost(f"status {response.status} instead of a final response")
                return response


def _url(origin: URL, path: str) -> URL:
    # The whole target is passed as the path, because yarl drops an empty query.
    return URL.build(scheme=origin.scheme, authority=origin.raw_authority, path=path, encoded=True)


@asynccontextmanager
async def open_passthrough(
    settings: Settings,
    origins: Mapping[str, str],
    breakers: Breakers,
    clock: Clock | None = None,
) -> AsyncIterator[PassthroughClient]:
    """Opens a client; ``origins`` are addresses by environment, ``clock`` records the skew."""
    unset = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
    async with create_session(settings, *unset) as session:
        yield PassthroughClient(settings, session, origins, breakers, clock)
