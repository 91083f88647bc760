"""A service that records what it executes and injects network faults.

The simulator executes; this module records each request and its outcome independently, so that a test can compare
it with the gateway's responses and journal. The records survive ``close``; ``open`` listens at the same address
again.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, Literal

from multidict import CIMultiDict

from gateway.simulator import Service
from gateway.simulator.faults import matches_path
from gateway.simulator.http_handler import RequestHandler

Stage = Literal["seen", "executed", "answered"]

CREATED_OBJECTS = ("recipient", "account", "batch", "payment")

REASON = {200: "OK", 204: "No Content"}
HTML = b"<html><body>Something went wrong</body></html>"


@dataclass(slots=True)
class ReceivedRequest:
    """One received request and its outcome.

    ``status`` is what its execution gave, None where it was not executed; ``made`` the id of what
    was made; ``age`` how old its stamp was when it came, in seconds.
    """

    number: int
    method: str
    target: str
    headers: CIMultiDict[str]
    body: bytes
    age: float
    status: int | None = None
    created_id: str | None = None
    answered: bool = False
    behaviour: str = ""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def is_write(self) -> bool:
        return self.method != "GET"

    @property
    def is_done(self) -> bool:
        """Whether it was executed and succeeded."""
        return self.status == 200

    def is_about(self, text: str) -> bool:
        return text in self.target or text.encode() in self.body


@dataclass(slots=True)
class PlannedFault:
    """What is done to the next ``times`` requests of a method and path that hold a text.

    ``behaviour`` is a name of HOW, or ``late``: it lies about for ``seconds``, or until it is ``due``, and
    is executed then. A ``parked`` one is executed at once, and answered when it is ``due``.
    """

    behaviour: str
    method: str = "*"
    path: str = "*"
    about: str = ""
    executes: bool = True
    seconds: float = 0
    times: int = 1
    skips: int = 0
    due: asyncio.Event | None = None

    def matches(self, request: ReceivedRequest) -> bool:
        return (
            self.method in ("*", request.method)
            and matches_path(self.path, request.path)
            and request.is_about(self.about)
        )


@dataclass(slots=True)
class SentRequest:
    """The part of a request that the simulator's handler reads."""

    method: str
    raw_path: str
    headers: CIMultiDict[str]
    data: bytes
    remote: str = "127.0.0.1"
    transport: None = None

    async def read(self) -> bytes:
        return self.data


@dataclass(slots=True)
class ServiceResponse:
    """The response of the service before a fault is applied."""

    status: int
    body: bytes
    date: str

    def encode(self, *, declared: int | None = None) -> bytes:
        size = len(self.body) if declared is None else declared
        return encode_head(self.status, self.date, f"Content-Length: {size}") + self.body


def encode_head(status: int, date: str, *more: str, kind: str = "application/json") -> bytes:
    reason = REASON.get(status, "Word")
    lines = [f"HTTP/1.1 {status} {reason}", f"Date: {date}", f"Content-Type: {kind}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def build_page(status: int, date: str, body: bytes, *more: str, kind: str = "text/html") -> bytes:
    return encode_head(status, date, f"Content-Length: {len(body)}", *more, kind=kind) + body


def build_error(status: int, date: str, *more: str, code: str = "internal_server_error") -> bytes:
    told = {"ok": False, "errors": [{"code": code, "message": "Something went wrong"}]}
    return build_page(status, date, json.dumps(told).encode(), *more, kind="application/json")


class RecordingService:
    def __init__(self, service: Service, tls: ssl.SSLContext | None = None) -> None:
        self.service = service
        self.requests: list[ReceivedRequest] = []
        self.faults: list[PlannedFault] = []
        self.weather: Callable[[ReceivedRequest], PlannedFault | None] = lambda _heard: None
        self.lacks: list[tuple[str, str]] = []
        """Methods and paths that it does not serve."""
        self.watchers: list[Callable[[ReceivedRequest, Stage], None]] = []
        self.port = 0
        self._face = RequestHandler(service)
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._late: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(
            self._serve_connection, "127.0.0.1", self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stops listening and closes every connection; the records remain."""
        if self._server:
            self._server.close()
            self._server = None
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def end(self) -> None:
        await self.close()
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)

    @property
    def is_idle(self) -> bool:
        """Whether no received request is still waiting to be executed."""
        return not self._late

    def add_fault(self, behaviour: str, method: str = "*", path: str = "*", **more: Any) -> None:
        assert behaviour in BEHAVIOURS
        self.faults.append(PlannedFault(behaviour, method, path, **more))

    # Records

    def list_writes(
        self, method: str = "*", path: str = "*", about: str = ""
    ) -> list[ReceivedRequest]:
        wanted = PlannedFault("", method, path, about)
        return [
            request for request in self.requests if request.is_write and wanted.matches(request)
        ]

    def list_executed_writes(
        self, method: str = "*", path: str = "*", about: str = ""
    ) -> list[ReceivedRequest]:
        return [request for request in self.list_writes(method, path, about) if request.is_done]

    @property
    def list_starts(self) -> Counter[str]:
        """How many times each batch was started."""
        return Counter(start.batch_id for start in self.service.batch_starts)

    # Connections

    def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not writer.is_closing():
                request = await self._read_request(reader)
                misdeed = self._find_fault(request)
                self._notify(request, "seen")
                await self._apply_fault(request, misdeed, writer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.transport.abort()

    async def _read_request(self, reader: asyncio.StreamReader) -> ReceivedRequest:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = CIMultiDict(line.split(": ", 1) for line in lines[1:] if line)
        body = await reader.readexactly(int(headers.get("Content-Length", 0)))
        method, target, _ = lines[0].split(" ")
        stamp = headers.get(self.service.vocabulary.timestamp_header, "0")
        age = self.service.clock() - float(stamp)
        request = ReceivedRequest(len(self.requests), method, target, headers, body, age)
        self.requests.append(request)
        return request

    def _find_fault(self, request: ReceivedRequest) -> PlannedFault | None:
        if any(PlannedFault("404", *lacked).matches(request) for lacked in self.lacks):
            return PlannedFault("404")
        for misdeed in self.faults:
            if misdeed.matches(request):
                if misdeed.skips:
                    misdeed.skips -= 1
                    return None
                misdeed.times -= 1
                if misdeed.times <= 0:
                    self.faults.remove(misdeed)
                request.behaviour = misdeed.behaviour
                return misdeed
        misdeed = self.weather(request)
        request.behaviour = misdeed.behaviour if misdeed else ""
        return misdeed

    def _notify(self, request: ReceivedRequest, stage: Stage) -> None:
        for watcher in list(self.watchers):
            watcher(request, stage)

    async def _apply_fault(
        self, request: ReceivedRequest, misdeed: PlannedFault | None, writer: asyncio.StreamWriter
    ) -> None:
        if misdeed is None:
            answer = await self._execute(request)
            writer.write(answer.encode())
            await writer.drain()
            request.answered = True
            self._notify(request, "answered")
            return
        if misdeed.behaviour == "late":
            # The sender may have disconnected long ago.
            late = asyncio.ensure_future(self._execute_late(request, misdeed))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
            await asyncio.Event().wait()
        executes = misdeed.executes and misdeed.behaviour not in NEVER_EXECUTE
        answer = await self._execute(request) if executes else self._build_empty_response()
        await BEHAVIOURS[misdeed.behaviour](answer, misdeed, writer)

    async def _execute_late(self, request: ReceivedRequest, misdeed: PlannedFault) -> None:
        if misdeed.due is None:
            await asyncio.sleep(misdeed.seconds)
        else:
            await misdeed.due.wait()
        await self._execute(request)

    async def _execute(self, request: ReceivedRequest) -> ServiceResponse:
        sent_request = SentRequest(request.method, request.target, request.headers, request.body)
        answered: Any = await self._face.handle(sent_request)  # type: ignore[arg-type]
        request.status = answered.status
        body = bytes(answered.body)
        request.created_id = _extract_created_id(request, json.loads(body))
        self._notify(request, "executed")
        return ServiceResponse(answered.status, body, answered.headers["Date"])

    def _build_empty_response(self) -> ServiceResponse:
        return ServiceResponse(200, b'{"ok":true}', formatdate(self.service.clock(), usegmt=True))


def _extract_created_id(request: ReceivedRequest, body: dict[str, Any]) -> str | None:
    if request.method != "POST" or request.target.endswith(("generate-quote", "start-processing")):
        return None
    for name in CREATED_OBJECTS:
        if isinstance(created := body.get(name), dict):
            return str(created.get("recipientAccountId") or created.get("id"))
    return None


# Faults


async def _reset_connection(
    _answer: ServiceResponse, _misdeed: PlannedFault, writer: asyncio.StreamWriter
) -> None:
    writer.transport.abort()


async def _close_connection(
    _answer: ServiceResponse, _misdeed: PlannedFault, writer: asyncio.StreamWriter
) -> None:
    writer.close()


async def _wait_forever(
    _answer: ServiceResponse, _misdeed: PlannedFault, _writer: asyncio.StreamWriter
) -> None:
    await asyncio.Event().wait()


async def _respond_slowly(
    answer: ServiceResponse, misdeed: PlannedFault, writer: asyncio.StreamWriter
) -> None:
    await asyncio.sleep(misdeed.seconds)
    writer.write(answer.encode())


async def _respond_late(
    answer: ServiceResponse, misdeed: PlannedFault, writer: asyncio.StreamWriter
) -> None:
    assert misdeed.due is not None
    await misdeed.due.wait()
    writer.write(answer.encode())


async def _respond_in_drips(
    answer: ServiceResponse, _misdeed: PlannedFault, writer: asyncio.StreamWriter
) -> None:
    for byte in answer.encode():
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.02)


async def _cut_chunked_body(
    answer: ServiceResponse, _misdeed: PlannedFault, writer: asyncio.StreamWriter
) -> None:
    half = answer.body[: len(answer.body) // 2]
    chunk = f"{len(half):x}\r\n".encode() + half + b"\r\n"
    writer.write(encode_head(answer.status, answer.date, "Transfer-Encoding: chunked") + chunk)
    await writer.drain()
    writer.close()


def _respond_with(make: Callable[[ServiceResponse], bytes], *, closes: bool = False) -> Any:
    async def say(
        answer: ServiceResponse, _misdeed: PlannedFault, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(make(answer))
        await writer.drain()
        if closes:
            writer.close()

    return say


def _cut_in_half(answer: ServiceResponse) -> bytes:
    return ServiceResponse(
        answer.status, answer.body[: len(answer.body) // 2], answer.date
    ).encode()


BEHAVIOURS: dict[str, Any] = {
    "late": None,
    "reset before": _reset_connection,
    "reset": _reset_connection,
    "close": _close_connection,
    "hang before": _wait_forever,
    "hang": _wait_forever,
    "slow": _respond_slowly,
    "parked": _respond_late,
    "drip": _respond_in_drips,
    "half json": _respond_with(_cut_in_half),
    "too long": _respond_with(lambda one: one.encode(declared=len(one.body) + 10)),
    "too long, closed": _respond_with(
        lambda one: one.encode(declared=len(one.body) + 10), closes=True
    ),
    "too short": _respond_with(lambda one: one.encode(declared=len(one.body) - 3)),
    "no length": _respond_with(
        lambda one: encode_head(one.status, one.date, "Connection: close") + one.body[:-3],
        closes=True,
    ),
    "cut chunked": _cut_chunked_body,
    "empty 200": _respond_with(lambda one: build_page(200, one.date, b"")),
    "not http": _respond_with(lambda _one: b"SSH-2.0-OpenSSH_9.2\r\n", closes=True),
    "html 200": _respond_with(lambda one: build_page(200, one.date, HTML)),
    "html 502": _respond_with(lambda one: build_page(502, one.date, HTML)),
    "html 504": _respond_with(lambda one: build_page(504, one.date, HTML)),
    "redirect 302": _respond_with(
        lambda one: build_page(302, one.date, b"", "Location: /v1/recipients")
    ),
    "redirect 307": _respond_with(
        lambda one: build_page(307, one.date, b"", "Location: /v1/recipients")
    ),
    "500 json": _respond_with(lambda one: build_error(500, one.date)),
    "500 empty": _respond_with(lambda one: build_page(500, one.date, b"")),
    "503 json": _respond_with(lambda one: build_error(503, one.date)),
    "503 empty": _respond_with(lambda one: build_page(503, one.date, b"")),
    "partner": _respond_with(
        lambda one: build_error(500, one.date, code="partner_integration_error")
    ),
    "404": _respond_with(lambda one: build_error(404, one.date, code="not_found")),
    "429": _respond_with(
        lambda one: build_error(429, one.date, "Retry-After: 1", code="rate_limit_exceeded")
    ),
}
"""Faults by name. The request is executed first, unless the fault says otherwise."""

NEVER_EXECUTE = frozenset({"reset before", "hang before", "404", "429"})


@asynccontextmanager
async def open_recording_service(
    service: Service, tls: ssl.SSLContext | None = None
) -> AsyncIterator[RecordingService]:
    judge = RecordingService(service, tls)
    await judge.open()
    try:
        yield judge
    finally:
        await judge.end()


def count_targets(requests: Iterable[ReceivedRequest]) -> Counter[tuple[str, str]]:
    """Counts by method and path, with the path as in the gateway's journal."""
    return Counter((request.method, request.path.removeprefix("/v1")) for request in requests)
