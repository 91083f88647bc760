"""The HTTP client for one side of a comparison."""

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

USER_AGENT = "payout-gateway compare"
"""By it a gateway knows these requests, whose answers get the header below."""

ANSWERED_BY_HEADER, LEGACY_SERVICE = "X-Answered-By", "legacy service"
"""Tells that a gateway passed a request on, so that control would be compared with itself."""

WRONG_KEY = "a-key-that-is-nobodys"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response; ``headers`` have lower-case names."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

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


class _WriteNotRepeated(Exception):
    """Replaces an error after which aiohttp would send a DELETE again; ``cause`` is that error."""

    def __init__(self, cause: Exception) -> None:
        super().__init__()
        self.cause = cause


async def _send_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    try:
        return await handler(request)
    except (aiohttp.ClientError, OSError) as error:
        cause = error
    # Outside the handler: aiohttp's error, which names the URL, must not be its context.
    raise _WriteNotRepeated(cause)


_NOT_SENT = (aiohttp.InvalidURL, aiohttp.ClientConnectorError)
"""Errors before a request is sent."""


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
        is_read, started = request.method in READ_METHODS, time.monotonic()
        session = self._read_session if is_read else self._write_session
        try:
            async with session.request(
                request.method,
                # Not normalized: the service must get the target as the input has it.
                URL(self.url + request.target, encoded=True),
                data=request.body,
                headers=self._build_headers(request),
                allow_redirects=False,
            ) as response:
                body = await response.read()
        # Errors of aiohttp and of the connection, also while the body is read.
        except (_WriteNotRepeated, aiohttp.ClientError, OSError) as error:
            cause = error.cause if isinstance(error, _WriteNotRepeated) else error
            is_unknown = not (is_read or isinstance(cause, _NOT_SENT))
            reason = self._describe_error(cause)
        else:
            seconds = time.monotonic() - started
            self.durations_seconds.append(seconds)
            # A repeated header means the same as one with all values (RFC 9110, section 5.3).
            values = {name: response.headers.getall(name) for name in response.headers}
            headers = {name.lower(): ", ".join(values[name]) for name in values}
            return Answer(response.status, headers, body)
        suffix = "; the outcome of the write is unknown" if is_unknown else ""
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
        # UnicodeError, of IDNA: a label of the host name is empty or too long.
        except (OSError, UnicodeError) as error:
            raise AnswerUnavailable(self._describe_error(error)) from None
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

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

    def _describe_error(self, error: Exception) -> str:
        """Describes an error without the URL, whose query may contain personal data."""
        if isinstance(error, TimeoutError):
            return f"no answer within {self._timeout_seconds:g} s"
        if isinstance(error, aiohttp.InvalidURL):
            return "not a valid URL"
        if isinstance(
            error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError
        ):
            return "the TLS certificate is not trusted"
        if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
            return "no TLS at this address"
        if isinstance(error, aiohttp.ClientConnectorDNSError | socket.gaierror | UnicodeError):
            return "the host name cannot be resolved"
        # Last of the connector errors: those of TLS and DNS above are subclasses of it.
        if isinstance(error, aiohttp.ClientConnectorError):
            error = error.os_error
        if isinstance(error, OSError) and error.errno:
            return f"cannot connect: {os.strerror(error.errno).lower()}"
        if isinstance(error, aiohttp.ClientResponseError):
            return "the answer is not HTTP"
        if isinstance(error, aiohttp.ClientPayloadError):
            return "the answer is truncated"
        return "the connection was dropped"
