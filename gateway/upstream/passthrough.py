"""Requests that carry their own credentials, passed on as they came, and answers as they come.

Signed ones go to the current service, and those of clients that are not moved yet to the legacy
one. A service sees a request once. What goes wrong with it is told, never tried again: a signature
is good for any copy of it. Only a connection on which nothing was sent yet is replaced by another.
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
    """A request: ``target`` from /v1 on and ``headers`` are sent as they are, with the body.

    ``write`` tells that it may change something: no answer leaves open whether it did. ``stamp``
    is its client's, in seconds since 1970, where it has one.
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
    """One sending whose credentials are the client's: its stamp is not renewed."""

    path: str
    turn: Turn | None = None
    left: bool = False
    sent: float = 0.0

    async def _stamp(self, _headers: MutableMapping[str, str]) -> None:
        self.sent = time.monotonic()


class Passed:
    """An answer whose head is there."""

    def __init__(self, response: aiohttp.ClientResponse, seconds: float) -> None:
        self.status = response.status
        self.headers: CIMultiDictProxy[str] = response.headers
        self._response = response
        self._protocol = response.connection.protocol if response.connection else None
        self._seconds = seconds

    @property
    def tells_its_end(self) -> bool:
        """Whether a cut-off body can be told from a whole one."""
        chunked = "chunked" in self.headers.get("Transfer-Encoding", "").lower()
        empty = self.status in BODILESS or self._response.method == "HEAD"
        return chunked or empty or "Content-Length" in self.headers

    async def parts(self) -> AsyncGenerator[bytes]:
        """The body's bytes as they come, nothing decoded; raises Lost where they stop."""
        while part := await self._part():
            yield part
        if not self.tells_its_end and self._was_reset:
            raise ResponseLost("the connection was reset, which is no end")

    @property
    def _was_reset(self) -> bool:
        # aiohttp takes the end of a connection for the end of such a body, whatever its cause.
        return self._protocol is not None and isinstance(self._protocol.exception(), OSError)

    async def _part(self) -> bytes:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._response.content.readany()
        except TimeoutError:
            lost = ResponseLost(f"nothing more of the answer within {self._seconds:g} s")
        except Exception as error:  # noqa: BLE001 - whatever it is, the rest of the answer is lost
            lost = build_response_lost(error)
        raise lost


async def _unwritable(passage: PassthroughRequest, passed: Passed) -> Unknown | Unreachable:
    """What is told instead of a response with a header that may not be sent."""
    if passage.write:
        with suppress(ResponseLost):  # the service may still be at work while it responds
            async for _ in passed.parts():
                pass
        return Unknown(UNWRITABLE)
    return Unreachable(UNWRITABLE)


class PassthroughClient:
    """Made by ``open_passthrough``."""

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
        """Whether it is known where to."""
        return environment in self._origins

    @asynccontextmanager
    async def sent(
        self, passage: PassthroughRequest, turn: Turn | None = None
    ) -> AsyncIterator[Passed]:
        """Sends it once, as long as the turn is its own, and gives the answer from its head on.

        Raises Unreachable (a write that never left, a read without an answer) and Unknown (a
        write that left and has no answer, or one that no client can be sent: it may have happened).
        The answer's head must come
        within ``upstream.timeout_seconds``, and after it something in every such time.
        """
        if not is_forwardable(passage.target):
            raise ValueError("a target that may not be sent")
        response = await self._begun(passage, turn)
        try:
            passed = Passed(response, self._seconds)
            if not header_filter.is_writable(passed.headers):
                raise await _unwritable(passage, passed)
            yield passed
        finally:
            response.close()  # where it was read to its end, the connection is kept all the same

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
            if crossing.left:  # else it waited for a connection that others have
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
            why = type(error).__name__  # once it has left, it is open what the service did
        else:
            trial.answered()
            self._note(passage, response, crossing)
            return response
        raise Unknown(why) if passage.write and crossing.left else Unreachable(why)

    def _note(
        self, passage: PassthroughRequest, response: aiohttp.ClientResponse, crossing: Crossing
    ) -> None:
        """What an accepted request's answer tells of the service's clock."""
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
                    raise ResponseLost(f"status {response.status}, which is no answer")
                return response


def _url(origin: URL, path: str) -> URL:
    """The whole target as a path: yarl drops a query that is empty, and nothing is to be dropped."""
    return URL.build(scheme=origin.scheme, authority=origin.raw_authority, path=path, encoded=True)


@asynccontextmanager
async def open_passthrough(
    settings: Settings,
    origins: Mapping[str, str],
    breakers: Breakers,
    clock: Clock | None = None,
) -> AsyncIterator[PassthroughClient]:
    """``origins`` are the service's addresses, by environment; ``clock`` learns what time it is there."""
    unset = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
    async with create_session(settings, *unset) as session:
        yield PassthroughClient(settings, session, origins, breakers, clock)
