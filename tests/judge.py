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
from gateway.simulator.face import Face
from gateway.simulator.faults import same_path

Stage = Literal["seen", "executed", "answered"]

MADE = ("recipient", "account", "batch", "payment")

REASON = {200: "OK", 204: "No Content"}
HTML = b"<html><body>Something went wrong</body></html>"


@dataclass(slots=True)
class Heard:
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
    made: str | None = None
    answered: bool = False
    how: str = ""

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
class Misdeed:
    """What is done to the next ``times`` requests of a method and path that hold a text.

    ``how`` is a name of HOW, or ``late``: it lies about for ``seconds``, or until it is ``due``, and
    is executed then. A ``parked`` one is executed at once, and answered when it is ``due``.
    """

    how: str
    method: str = "*"
    path: str = "*"
    about: str = ""
    executes: bool = True
    seconds: float = 0
    times: int = 1
    skips: int = 0
    due: asyncio.Event | None = None

    def meets(self, heard: Heard) -> bool:
        return (
            self.method in ("*", heard.method)
            and same_path(self.path, heard.path)
            and heard.is_about(self.about)
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
class Answer:
    """The response of the service before a fault is applied."""

    status: int
    body: bytes
    date: str

    def http(self, *, declared: int | None = None) -> bytes:
        size = len(self.body) if declared is None else declared
        return head(self.status, self.date, f"Content-Length: {size}") + self.body


def head(status: int, date: str, *more: str, kind: str = "application/json") -> bytes:
    reason = REASON.get(status, "Word")
    lines = [f"HTTP/1.1 {status} {reason}", f"Date: {date}", f"Content-Type: {kind}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def page(status: int, date: str, body: bytes, *more: str, kind: str = "text/html") -> bytes:
    return head(status, date, f"Content-Length: {len(body)}", *more, kind=kind) + body


def error(status: int, date: str, *more: str, code: str = "internal_server_error") -> bytes:
    told = {"ok": False, "errors": [{"code": code, "message": "Something went wrong"}]}
    return page(status, date, json.dumps(told).encode(), *more, kind="application/json")


class Judge:
    def __init__(self, service: Service, tls: ssl.SSLContext | None = None) -> None:
        self.service = service
        self.heard: list[Heard] = []
        self.misdeeds: list[Misdeed] = []
        self.weather: Callable[[Heard], Misdeed | None] = lambda _heard: None
        self.lacks: list[tuple[str, str]] = []
        """Methods and paths that it does not serve."""
        self.watchers: list[Callable[[Heard, Stage], None]] = []
        self.port = 0
        self._face = Face(service)
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._late: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", self.port, ssl=self._tls
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

    def does(self, how: str, method: str = "*", path: str = "*", **more: Any) -> None:
        assert how in HOW
        self.misdeeds.append(Misdeed(how, method, path, **more))

    # Records

    def writes(self, method: str = "*", path: str = "*", about: str = "") -> list[Heard]:
        wanted = Misdeed("", method, path, about)
        return [one for one in self.heard if one.is_write and wanted.meets(one)]

    def done(self, method: str = "*", path: str = "*", about: str = "") -> list[Heard]:
        return [one for one in self.writes(method, path, about) if one.is_done]

    @property
    def starts(self) -> Counter[str]:
        """How many times each batch was started."""
        return Counter(start.batch_id for start in self.service.starts)

    # Connections

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not writer.is_closing():
                heard = await self._hear(reader)
                misdeed = self._misdeed(heard)
                self._tell(heard, "seen")
                await self._play(heard, misdeed, writer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.transport.abort()

    async def _hear(self, reader: asyncio.StreamReader) -> Heard:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = CIMultiDict(line.split(": ", 1) for line in lines[1:] if line)
        body = await reader.readexactly(int(headers.get("Content-Length", 0)))
        method, target, _ = lines[0].split(" ")
        stamp = headers.get(self.service.words.timestamp_header, "0")
        age = self.service.clock() - float(stamp)
        heard = Heard(len(self.heard), method, target, headers, body, age)
        self.heard.append(heard)
        return heard

    def _misdeed(self, heard: Heard) -> Misdeed | None:
        if any(Misdeed("404", *lacked).meets(heard) for lacked in self.lacks):
            return Misdeed("404")
        for misdeed in self.misdeeds:
            if misdeed.meets(heard):
                if misdeed.skips:
                    misdeed.skips -= 1
                    return None
                misdeed.times -= 1
                if misdeed.times <= 0:
                    self.misdeeds.remove(misdeed)
                heard.how = misdeed.how
                return misdeed
        misdeed = self.weather(heard)
        heard.how = misdeed.how if misdeed else ""
        return misdeed

    def _tell(self, heard: Heard, stage: Stage) -> None:
        for watcher in list(self.watchers):
            watcher(heard, stage)

    async def _play(
        self, heard: Heard, misdeed: Misdeed | None, writer: asyncio.StreamWriter
    ) -> None:
        if misdeed is None:
            answer = await self._execute(heard)
            writer.write(answer.http())
            await writer.drain()
            heard.answered = True
            self._tell(heard, "answered")
            return
        if misdeed.how == "late":
            # The sender may have disconnected long ago.
            late = asyncio.ensure_future(self._execute_late(heard, misdeed))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
            await asyncio.Event().wait()
        executes = misdeed.executes and misdeed.how not in NEVER_EXECUTE
        answer = await self._execute(heard) if executes else self._nothing()
        await HOW[misdeed.how](answer, misdeed, writer)

    async def _execute_late(self, heard: Heard, misdeed: Misdeed) -> None:
        if misdeed.due is None:
            await asyncio.sleep(misdeed.seconds)
        else:
            await misdeed.due.wait()
        await self._execute(heard)

    async def _execute(self, heard: Heard) -> Answer:
        asked = SentRequest(heard.method, heard.target, heard.headers, heard.body)
        answered: Any = await self._face.handle(asked)  # type: ignore[arg-type]
        heard.status = answered.status
        body = bytes(answered.body)
        heard.made = _made(heard, json.loads(body))
        self._tell(heard, "executed")
        return Answer(answered.status, body, answered.headers["Date"])

    def _nothing(self) -> Answer:
        return Answer(200, b'{"ok":true}', formatdate(self.service.clock(), usegmt=True))


def _made(heard: Heard, body: dict[str, Any]) -> str | None:
    if heard.method != "POST" or heard.target.endswith(("generate-quote", "start-processing")):
        return None
    for name in MADE:
        if isinstance(made := body.get(name), dict):
            return str(made.get("recipientAccountId") or made.get("id"))
    return None


# Faults


async def _resets(_answer: Answer, _misdeed: Misdeed, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _closes(_answer: Answer, _misdeed: Misdeed, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _hangs(_answer: Answer, _misdeed: Misdeed, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def _slow(answer: Answer, misdeed: Misdeed, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(misdeed.seconds)
    writer.write(answer.http())


async def _parks(answer: Answer, misdeed: Misdeed, writer: asyncio.StreamWriter) -> None:
    assert misdeed.due is not None
    await misdeed.due.wait()
    writer.write(answer.http())


async def _drips(answer: Answer, _misdeed: Misdeed, writer: asyncio.StreamWriter) -> None:
    for byte in answer.http():
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.02)


async def _cuts_chunked(answer: Answer, _misdeed: Misdeed, writer: asyncio.StreamWriter) -> None:
    half = answer.body[: len(answer.body) // 2]
    chunk = f"{len(half):x}\r\n".encode() + half + b"\r\n"
    writer.write(head(answer.status, answer.date, "Transfer-Encoding: chunked") + chunk)
    await writer.drain()
    writer.close()


def _says(make: Callable[[Answer], bytes], *, closes: bool = False) -> Any:
    async def say(answer: Answer, _misdeed: Misdeed, writer: asyncio.StreamWriter) -> None:
        writer.write(make(answer))
        await writer.drain()
        if closes:
            writer.close()

    return say


def _half(answer: Answer) -> bytes:
    return Answer(answer.status, answer.body[: len(answer.body) // 2], answer.date).http()


HOW: dict[str, Any] = {
    "late": None,
    "reset before": _resets,
    "reset": _resets,
    "close": _closes,
    "hang before": _hangs,
    "hang": _hangs,
    "slow": _slow,
    "parked": _parks,
    "drip": _drips,
    "half json": _says(_half),
    "too long": _says(lambda one: one.http(declared=len(one.body) + 10)),
    "too long, closed": _says(lambda one: one.http(declared=len(one.body) + 10), closes=True),
    "too short": _says(lambda one: one.http(declared=len(one.body) - 3)),
    "no length": _says(
        lambda one: head(one.status, one.date, "Connection: close") + one.body[:-3], closes=True
    ),
    "cut chunked": _cuts_chunked,
    "empty 200": _says(lambda one: page(200, one.date, b"")),
    "not http": _says(lambda _one: b"SSH-2.0-OpenSSH_9.2\r\n", closes=True),
    "html 200": _says(lambda one: page(200, one.date, HTML)),
    "html 502": _says(lambda one: page(502, one.date, HTML)),
    "html 504": _says(lambda one: page(504, one.date, HTML)),
    "redirect 302": _says(lambda one: page(302, one.date, b"", "Location: /v1/recipients")),
    "redirect 307": _says(lambda one: page(307, one.date, b"", "Location: /v1/recipients")),
    "500 json": _says(lambda one: error(500, one.date)),
    "500 empty": _says(lambda one: page(500, one.date, b"")),
    "503 json": _says(lambda one: error(503, one.date)),
    "503 empty": _says(lambda one: page(503, one.date, b"")),
    "partner": _says(lambda one: error(500, one.date, code="partner_integration_error")),
    "404": _says(lambda one: error(404, one.date, code="not_found")),
    "429": _says(lambda one: error(429, one.date, "Retry-After: 1", code="rate_limit_exceeded")),
}
"""Faults by name. The request is executed first, unless the fault says otherwise."""

NEVER_EXECUTE = frozenset({"reset before", "hang before", "404", "429"})


@asynccontextmanager
async def judging(service: Service, tls: ssl.SSLContext | None = None) -> AsyncIterator[Judge]:
    judge = Judge(service, tls)
    await judge.open()
    try:
        yield judge
    finally:
        await judge.end()


def tally(those: Iterable[Heard]) -> Counter[tuple[str, str]]:
    """Counts by method and path, with the path as in the gateway's journal."""
    return Counter((one.method, one.path.removeprefix("/v1")) for one in those)
