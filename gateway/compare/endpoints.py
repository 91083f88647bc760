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
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from gateway.compare.requests import READ_METHODS, InputError

SideName = Literal["control", "candidate"]

TIMEOUT_SECONDS = 30
"""How long to wait for an answer."""

USER_AGENT = "payout-gateway compare"
"""By it a gateway knows these requests, whose answers get the header below."""

ANSWERED_BY_HEADER, LEGACY_SERVICE = "X-Answered-By", "legacy service"
"""Tells that a gateway passed a request on, so that control would be compared with itself."""

WRONG_KEY = "a-key-that-is-nobodys"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response. ``headers`` have lower-case names; ``seconds`` lasts until the last byte."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class AnswerUnavailable(Exception):
    """A side gave no answer that can be compared; the message is the reason."""


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A request for one side. ``key`` selects which API key it carries."""

    method: str
    target: str
    body: bytes | None = None
    key: Literal["own", "none", "wrong"] = "own"


def parse_base_url(url: str, name: SideName) -> str:
    """Validates a base URL and removes its ``/v1``; raises InputError."""
    try:
        parts = urlsplit(url)
        # Reading the port validates it; urlsplit itself does not.
        _port = parts.port
    except ValueError:
        raise InputError(f"--{name}: not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"--{name}: the URL must begin with http:// or https://")
    # The URL is printed and stored in the report, so it must not contain a secret.
    if parts.username is not None or parts.query or parts.fragment:
        raise InputError(
            f"--{name}: the URL cannot have user, query or fragment; API keys come from the environment"
        )
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


class _ConnectionLost(Exception):
    """The connection of a write failed. ``was_sent``: the write may have reached the service."""

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent


async def _send_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    # aiohttp resends DELETE itself after a dropped connection. An exception type that it does not
    # know prevents that.
    try:
        return await handler(request)
    # A subclass of OSError, but the caller reports it with the number of seconds.
    except TimeoutError:
        raise
    except (aiohttp.ClientError, OSError) as error:
        was_sent = not isinstance(error, aiohttp.ClientConnectorError)
        failure = _ConnectionLost(_describe_error(error), was_sent=was_sent)
    # Outside the handler: aiohttp's error, which names the URL, must not be its context.
    raise failure


class Side:
    """Sends requests to one base URL with its API key. Ignores cookies; does not follow redirects."""

    def __init__(
        self, name: SideName, url: str, api_key: str, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self.name = name
        self.url = parse_base_url(url, name)
        self._api_key = api_key
        self._timeout_seconds = timeout_seconds
        self.durations_seconds: list[float] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        async with (
            self._open_session() as self._read_session,
            # Writes use new connections: on a reused one, a close by the server would leave it
            # unclear whether the write arrived, and it must be sent only once.
            self._open_session(
                connector=aiohttp.TCPConnector(force_close=True), middlewares=(_send_once,)
            ) as self._write_session,
        ):
            yield self

    def _open_session(self, **options: Any) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=self._timeout_seconds)
        return aiohttp.ClientSession(
            timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), **options
        )

    async def send(self, request: OutgoingRequest) -> Answer:
        """Sends a request; raises AnswerUnavailable. aiohttp resends a read if the connection drops."""
        is_write = request.method not in READ_METHODS
        was_sent = True
        try:
            answer = await self._send(request)
        except _ConnectionLost as error:
            reason, was_sent = str(error), error.was_sent
        except TimeoutError:
            reason = f"no answer within {self._timeout_seconds:g} s"
        # Also while the body is read.
        except (aiohttp.ClientError, OSError) as error:
            reason = _describe_error(error)
        else:
            self.durations_seconds.append(answer.seconds)
            return answer
        suffix = "; the outcome of the write is unknown" if is_write and was_sent else ""
        raise AnswerUnavailable(f"{reason}{suffix}")

    async def check_connection(self) -> None:
        """Opens and closes a connection without sending a request; raises AnswerUnavailable."""
        parts = urlsplit(self.url)
        is_tls = parts.scheme == "https"
        try:
            async with asyncio.timeout(self._timeout_seconds):
                _reader, writer = await asyncio.open_connection(
                    parts.hostname, parts.port or (443 if is_tls else 80), ssl=is_tls or None
                )
        except TimeoutError:
            raise AnswerUnavailable(f"no connection within {self._timeout_seconds:g} s") from None
        # UnicodeError, of IDNA: a label of the host name is empty or too long.
        except (OSError, UnicodeError) as error:
            raise AnswerUnavailable(_describe_error(error)) from None
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _send(self, request: OutgoingRequest) -> Answer:
        session = self._read_session if request.method in READ_METHODS else self._write_session
        started = time.monotonic()
        async with session.request(
            request.method,
            # Not normalized: the service must get the target as the input has it.
            URL(self.url + request.target, encoded=True),
            data=request.body,
            headers=self._build_headers(request),
            allow_redirects=False,
        ) as response:
            body = await response.read()
            headers: dict[str, str] = {}
            for name in response.headers:
                # A repeated header means the same as one with all values (RFC 9110, section 5.3).
                headers[name.lower()] = ", ".join(response.headers.getall(name))
            return Answer(response.status, headers, body, time.monotonic() - started)

    def _build_headers(self, request: OutgoingRequest) -> dict[str, str]:
        headers = {
            "Accept": "application/json",
            # Uncompressed: whether a service compresses is not a difference of the answer.
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": USER_AGENT,
        }
        key = {"own": self._api_key, "wrong": WRONG_KEY}.get(request.key)
        return headers | ({} if key is None else {"X-API-Key": key})


def _describe_error(error: Exception) -> str:
    """Describes an error without the URL, whose query may contain personal data."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return "the TLS certificate is not trusted"
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
        return "no TLS at this address"
    if isinstance(error, aiohttp.ClientConnectorDNSError | socket.gaierror | UnicodeError):
        return "the host name cannot be resolved"
    # Last of the connector errors: those of TLS and DNS above are subclasses of it.
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, ConnectionRefusedError | OSError) and error.errno:
        return f"cannot connect: {os.strerror(error.errno).lower()}"
    if isinstance(error, aiohttp.ClientResponseError):
        return "the answer is not HTTP"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer is truncated"
    return "the connection was dropped"
