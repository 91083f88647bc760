"""The HTTP client for one side of a comparison."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal, Self
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from gateway.compare.answer import Answer
from gateway.compare.errors import Unusable
from gateway.compare.operations import READS

Name = Literal["control", "candidate"]

MOST = 64 * 1024 * 1024
"""Larger bodies are not read."""

WRONG_KEY = "a-key-that-is-nobodys"


class NoAnswer(Exception):
    """A side gave no answer that can be compared; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A request for one side. ``key`` selects which API key it carries."""

    method: str
    target: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    key: Literal["own", "none", "wrong"] = "own"


def parse_origin(url: str, name: Name) -> str:
    """Validates a base URL and removes its ``/v1``; raises InputError."""
    try:
        parts = urlsplit(url)
        _port = parts.port
    except ValueError:
        raise Unusable(f"--{name}: not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Unusable(f"--{name}: the URL must begin with http:// or https://")
    if parts.username is not None or parts.query or parts.fragment:
        raise Unusable(
            f"--{name}: the URL cannot have user, query or fragment; API keys come from the environment"
        )
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


class _Lost(Exception):
    """The connection failed. ``was_sent``: the request may have reached the service."""

    def __init__(self, why: str, *, left: bool = True) -> None:
        super().__init__(why)
        self.left = left


async def _once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    # aiohttp resends GET and DELETE itself after a dropped connection. An exception type that it
    # does not know prevents that.
    try:
        return await handler(request)
    except TimeoutError:
        raise
    except (aiohttp.ClientError, OSError) as error:
        lost = _Lost(_why(error), left=not isinstance(error, aiohttp.ClientConnectorError))
    raise lost


class Side:
    """Sends requests to one base URL with its API key. Ignores cookies; does not follow redirects."""

    def __init__(self, name: Name, url: str, api_key: str, *, seconds: float, at_once: int) -> None:
        self.name = name
        self.url = parse_origin(url, name)
        self._key = api_key
        self._seconds = seconds
        self._at_once = at_once
        self.times: list[float] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        kept = aiohttp.TCPConnector(limit=self._at_once)
        # Writes use new connections: on a reused one, a close by the server would leave it unclear
        # whether the write arrived, and it must be sent only once.
        fresh = aiohttp.TCPConnector(limit=self._at_once, force_close=True)
        timeout = aiohttp.ClientTimeout(total=self._seconds)
        async with (
            aiohttp.ClientSession(
                connector=kept, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
            ) as self._reads,
            aiohttp.ClientSession(
                connector=fresh, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
            ) as self._writes,
        ):
            yield self

    async def ask(self, sent: Sent) -> Answer:
        """Sends a request; raises AnswerUnavailable. Resends a read once if the connection drops."""
        try:
            try:
                answer = await self._ask(sent)
            except _Lost:
                if sent.method not in READS:
                    raise
                answer = await self._ask(sent)
        except _Lost as error:
            why, left = str(error), error.left
        except TimeoutError:
            why, left = f"no answer within {self._seconds:g} s", True
        except aiohttp.ClientError as error:
            why, left = _why(error), False
        else:
            self.times.append(answer.seconds)
            return answer
        is_unknown = left and sent.method not in READS
        raise NoAnswer(f"{why}{'; the outcome of the write is unknown' if is_unknown else ''}")

    async def reach(self) -> None:
        """Opens and closes a connection without sending a request; raises AnswerUnavailable."""
        parts = urlsplit(self.url)
        is_safe = parts.scheme == "https"
        try:
            async with asyncio.timeout(self._seconds):
                _reader, writer = await asyncio.open_connection(
                    parts.hostname, parts.port or (443 if is_safe else 80), ssl=is_safe or None
                )
        except TimeoutError:
            why = f"no connection within {self._seconds:g} s"
        except UnicodeError:  # IDNA: a label of the host name is empty or too long
            why = "the host name cannot be resolved"
        except OSError as error:
            why = _why(error)
        else:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            return
        raise NoAnswer(why)

    async def _ask(self, sent: Sent) -> Answer:
        session = self._reads if sent.method in READS else self._writes
        began = time.monotonic()
        async with session.request(
            sent.method,
            URL(self.url + sent.target, encoded=True),
            data=sent.body,
            headers=self._headers(sent),
            allow_redirects=False,
            middlewares=(_once,),
        ) as response:
            body = await self._body(response)
            headers: dict[str, str] = {}
            for name in response.headers:
                headers[name.lower()] = ", ".join(response.headers.getall(name))
            return Answer(response.status, headers, body, time.monotonic() - began)

    def _headers(self, sent: Sent) -> dict[str, str]:
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": "payout-gateway compare",
        }
        own = {name.title(): value for name, value in sent.headers.items()}
        key = {"own": self._key, "wrong": WRONG_KEY}.get(sent.key)
        return {**headers, **own} | ({} if key is None else {"X-API-Key": key})

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async for part in response.content.iter_any():
                parts.append(part)
                size += len(part)
                if size > MOST:
                    break
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            why = _why(error)
        else:
            if size <= MOST:
                return b"".join(parts)
            raise NoAnswer(f"the answer is larger than {MOST} bytes")
        raise _Lost(why)


def _why(error: Exception) -> str:
    """Describes an error without the URL, whose query may contain personal data."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return "the TLS certificate is not trusted"
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
        return "no TLS at this address"
    if isinstance(error, aiohttp.ClientConnectorDNSError | socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, ConnectionRefusedError | OSError) and error.errno:
        return f"cannot connect: {os.strerror(error.errno).lower()}"
    if isinstance(error, aiohttp.ClientResponseError):
        return "the answer is not HTTP"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer is truncated"
    return "the connection was dropped"
