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

from tests.simulator import RequestHandler, Service
from tests.simulator.faults import is_path_matching_pattern

Stage = Literal["seen", "executed", "answered"]

CREATED_OBJECTS = ("recipient", "account", "batch", "payment")

REASON = {200: "OK", 204: "No Content"}
HTML = b"<html><body>Something went wrong</body></html>"


@dataclass(slots=True)
class ReceivedRequest:
    """One received request and its outcome.

    ``status`` is the result of its execution, None if it was not executed; ``created_id`` is the id of the
    created object; ``age`` is the age of its stamp on arrival, in seconds.
    """

    number: int
    method: str
    target: str
    headers: CIMultiDict[str]
    body: bytes
    age: float
    status: int | None = None
    created_id: str | None = None
    is_answered: bool = False
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

    def contains_text(self, text: str) -> bool:
        return text in self.target or text.encode() in self.body


@dataclass(slots=True)
class PlannedFault:
    """What is done to the next ``times`` requests of a method and path that hold a text.

    ``behaviour`` is a key of BEHAVIOURS, or ``late``: the request is executed after ``seconds``, or once
    ``due_event`` is set. A ``parked`` request is executed immediately and answered once ``due_event`` is set.
    """

    behaviour: str
    method: str = "*"
    path: str = "*"
    text: str = ""
    executes: bool = True
    seconds: float = 0
    times: int = 1
    skip_count: int = 0
    due_event: asyncio.Event | None = None

    def matches(self, request: ReceivedRequest) -> bool:
        return (
            self.method in ("*", request.method)
            and is_path_matching_pattern(self.path, request.path)
            and request.contains_text(self.text)
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


def encode_head(
    status: int, date: str, *more_headers: str, kind: str = "application/json"
) -> bytes:
    reason = REASON.get(status, "Word")
    lines = [f"HTTP/1.1 {status} {reason}", f"Date: {date}", f"Content-Type: {kind}", *more_headers]
    return "\r\n".join([*lines, "", ""]).encode()


def build_page(
    status: int, date: str, body: bytes, *more_headers: str, kind: str = "text/html"
) -> bytes:
    return (
        encode_head(status, date, f"Content-Length: {len(body)}", *more_headers, kind=kind) + body
    )


def build_error(
    status: int, date: str, *more_headers: str, code: str = "internal_server_error"
) -> bytes:
    body = {"ok": False, "errors": [{"code": code, "message": "Something went wrong"}]}
    return build_page(
        status, date, json.dumps(body).encode(), *more_headers, kind="application/json"
    )


class RecordingService:
    def __init__(self, service: Service, tls: ssl.SSLContext | None = None) -> None:
        self.service = service
        self.requests: list[ReceivedRequest] = []
        self.faults: list[PlannedFault] = []
        self.choose_fault: Callable[[ReceivedRequest], PlannedFault | None] = lambda _request: None
        self.missing_endpoints: list[tuple[str, str]] = []
        """Methods and paths that it does not serve."""
        self.watchers: list[Callable[[ReceivedRequest, Stage], None]] = []
        self.port = 0
        self._handler = RequestHandler(service)
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._connection_tasks: set[asyncio.Task[None]] = set()
        self._late_tasks: set[asyncio.Task[Any]] = set()

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
        if not self._server:
            return
        server, self._server = self._server, None
        # asyncio needs some steps to accept a connection, and loses it if the server closes before.
        for _ in range(3):
            await asyncio.sleep(0)
        server.close()
        for task in self._connection_tasks:
            task.cancel()
        await asyncio.gather(*self._connection_tasks, return_exceptions=True)

    async def shut_down(self) -> None:
        await self.close()
        for task in self._late_tasks:
            task.cancel()
        await asyncio.gather(*self._late_tasks, return_exceptions=True)

    @property
    def is_idle(self) -> bool:
        """Whether no received request is still waiting to be executed."""
        return not self._late_tasks

    def add_fault(self, behaviour: str, method: str = "*", path: str = "*", **options: Any) -> None:
        assert behaviour in BEHAVIOURS
        self.faults.append(PlannedFault(behaviour, method, path, **options))

    # Records

    def list_writes(
        self, method: str = "*", path: str = "*", text: str = ""
    ) -> list[ReceivedRequest]:
        pattern = PlannedFault("", method, path, text)
        return [
            request for request in self.requests if request.is_write and pattern.matches(request)
        ]

    def list_executed_writes(
        self, method: str = "*", path: str = "*", text: str = ""
    ) -> list[ReceivedRequest]:
        return [request for request in self.list_writes(method, path, text) if request.is_done]

    @property
    def list_starts(self) -> Counter[str]:
        """How many times each batch was started."""
        return Counter(batch_start.batch_id for batch_start in self.service.batch_starts)

    # Connections

    def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connection_tasks.add(task)
        task.add_done_callback(self._connection_tasks.discard)
        # Not in the task: one that is cancelled before its first step never enters a ``try``.
        task.add_done_callback(lambda _task: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not writer.is_closing():
                request = await self._read_request(reader)
                fault = self._find_fault(request)
                self._notify(request, "seen")
                await self._apply_fault(request, fault, writer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass

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
        if any(
            PlannedFault("404", *endpoint).matches(request) for endpoint in self.missing_endpoints
        ):
            return PlannedFault("404")
        for fault in self.faults:
            if fault.matches(request):
                if fault.skip_count:
                    fault.skip_count -= 1
                    return None
                fault.times -= 1
                if fault.times <= 0:
                    self.faults.remove(fault)
                request.behaviour = fault.behaviour
                return fault
        fault = self.choose_fault(request)
        request.behaviour = fault.behaviour if fault else ""
        return fault

    def _notify(self, request: ReceivedRequest, stage: Stage) -> None:
        for watcher in list(self.watchers):
            watcher(request, stage)

    async def _apply_fault(
        self, request: ReceivedRequest, fault: PlannedFault | None, writer: asyncio.StreamWriter
    ) -> None:
        if fault is None:
            response = await self._execute(request)
            writer.write(response.encode())
            await writer.drain()
            request.is_answered = True
            self._notify(request, "answered")
            return
        if fault.behaviour == "late":
            # The sender may have disconnected long ago.
            late_task = asyncio.ensure_future(self._execute_late(request, fault))
            self._late_tasks.add(late_task)
            late_task.add_done_callback(self._late_tasks.discard)
            await asyncio.Event().wait()
        executes = fault.executes and fault.behaviour not in NEVER_EXECUTE
        response = await self._execute(request) if executes else self._build_empty_response()
        await BEHAVIOURS[fault.behaviour](response, fault, writer)

    async def _execute_late(self, request: ReceivedRequest, fault: PlannedFault) -> None:
        if fault.due_event is None:
            await asyncio.sleep(fault.seconds)
        else:
            await fault.due_event.wait()
        await self._execute(request)

    async def _execute(self, request: ReceivedRequest) -> ServiceResponse:
        sent_request = SentRequest(request.method, request.target, request.headers, request.body)
        response: Any = await self._handler.handle(sent_request)  # type: ignore[arg-type]
        request.status = response.status
        body = bytes(response.body)
        request.created_id = extract_created_id(request, json.loads(body))
        self._notify(request, "executed")
        return ServiceResponse(response.status, body, response.headers["Date"])

    def _build_empty_response(self) -> ServiceResponse:
        return ServiceResponse(200, b'{"ok":true}', formatdate(self.service.clock(), usegmt=True))


def extract_created_id(request: ReceivedRequest, body: dict[str, Any]) -> str | None:
    """The id of the created object; also the one that a change gave to an account."""
    if request.target.endswith(("generate-quote", "start-processing")):
        return None
    for name in CREATED_OBJECTS if request.method == "POST" else ("account",):
        if isinstance(created_object := body.get(name), dict):
            return str(created_object.get("recipientAccountId") or created_object.get("id"))
    return None


# Faults


async def _reset_connection(
    _response: ServiceResponse, _fault: PlannedFault, writer: asyncio.StreamWriter
) -> None:
    writer.transport.abort()


async def _close_connection(
    _response: ServiceResponse, _fault: PlannedFault, writer: asyncio.StreamWriter
) -> None:
    writer.close()


async def _wait_forever(
    _response: ServiceResponse, _fault: PlannedFault, _writer: asyncio.StreamWriter
) -> None:
    await asyncio.Event().wait()


async def _respond_slowly(
    response: ServiceResponse, fault: PlannedFault, writer: asyncio.StreamWriter
) -> None:
    await asyncio.sleep(fault.seconds)
    writer.write(response.encode())


async def _respond_late(
    response: ServiceResponse, fault: PlannedFault, writer: asyncio.StreamWriter
) -> None:
    assert fault.due_event is not None
    await fault.due_event.wait()
    writer.write(response.encode())


async def _respond_in_drips(
    response: ServiceResponse, _fault: PlannedFault, writer: asyncio.StreamWriter
) -> None:
    for byte in response.encode():
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.02)


async def _cut_chunked_body(
    response: ServiceResponse, _fault: PlannedFault, writer: asyncio.StreamWriter
) -> None:
    first_half = response.body[: len(response.body) // 2]
    chunk = f"{len(first_half):x}\r\n".encode() + first_half + b"\r\n"
    writer.write(encode_head(response.status, response.date, "Transfer-Encoding: chunked") + chunk)
    await writer.drain()
    writer.close()


def _respond_with(
    encode: Callable[[ServiceResponse], bytes], *, closes_connection: bool = False
) -> Any:
    async def send_bytes(
        response: ServiceResponse, _fault: PlannedFault, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(encode(response))
        await writer.drain()
        if closes_connection:
            writer.close()

    return send_bytes


def _cut_in_half(response: ServiceResponse) -> bytes:
    return ServiceResponse(
        response.status, response.body[: len(response.body) // 2], response.date
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
    "too long": _respond_with(lambda response: response.encode(declared=len(response.body) + 10)),
    "too long, closed": _respond_with(
        lambda response: response.encode(declared=len(response.body) + 10), closes_connection=True
    ),
    "too short": _respond_with(lambda response: response.encode(declared=len(response.body) - 3)),
    "no length": _respond_with(
        lambda response: (
            encode_head(response.status, response.date, "Connection: close") + response.body[:-3]
        ),
        closes_connection=True,
    ),
    "cut chunked": _cut_chunked_body,
    "empty 200": _respond_with(lambda response: build_page(200, response.date, b"")),
    "not http": _respond_with(lambda _response: b"SSH-2.0-OpenSSH_9.2\r\n", closes_connection=True),
    "html 200": _respond_with(lambda response: build_page(200, response.date, HTML)),
    "html 502": _respond_with(lambda response: build_page(502, response.date, HTML)),
    "html 504": _respond_with(lambda response: build_page(504, response.date, HTML)),
    "redirect 302": _respond_with(
        lambda response: build_page(302, response.date, b"", "Location: /v1/recipients")
    ),
    "redirect 307": _respond_with(
        lambda response: build_page(307, response.date, b"", "Location: /v1/recipients")
    ),
    "500 json": _respond_with(lambda response: build_error(500, response.date)),
    "500 empty": _respond_with(lambda response: build_page(500, response.date, b"")),
    "503 json": _respond_with(lambda response: build_error(503, response.date)),
    "503 empty": _respond_with(lambda response: build_page(503, response.date, b"")),
    "partner": _respond_with(
        lambda response: build_error(500, response.date, code="partner_integration_error")
    ),
    "404": _respond_with(lambda response: build_error(404, response.date, code="not_found")),
    "429": _respond_with(
        lambda response: build_error(
            429, response.date, "Retry-After: 1", code="rate_limit_exceeded"
        )
    ),
}
"""Faults by name. The request is executed first, unless the fault says otherwise."""

NEVER_EXECUTE = frozenset({"reset before", "hang before", "404", "429"})


@asynccontextmanager
async def open_recording_service(
    service: Service, tls: ssl.SSLContext | None = None
) -> AsyncIterator[RecordingService]:
    recorder = RecordingService(service, tls)
    await recorder.open()
    try:
        yield recorder
    finally:
        await recorder.shut_down()


def count_targets(requests: Iterable[ReceivedRequest]) -> Counter[tuple[str, str]]:
    """Counts by method and path, with the path as in the gateway's journal."""
    return Counter((request.method, request.path.removeprefix("/v1")) for request in requests)
