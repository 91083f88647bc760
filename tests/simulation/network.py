"""The service with its books, and the way to it: what is sent may be lost, late, or answered oddly.

``Wire`` stands where ``gateway.upstream.client`` does, and keeps the same promises: a write is sent once,
and stamped when it leaves; what left and was not answered is Unknown.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from typing import Any

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.auth.signing import Credentials, build_signature_headers, format_signed_target
from gateway.config.settings import CurrentWords
from gateway.simulator import Service
from gateway.simulator.face import Face
from gateway.upstream.client import Reply
from gateway.upstream.clock import ServiceClock, measure_skew
from gateway.upstream.send_attempt import Fence
from mappings.failures import Unknown, Unreachable
from tests.judge import HTML, MADE, Heard, _Asked
from tests.simulation.machine import EPOCH, Process

TIMEOUT_SECONDS = 4.0
WORDS = CurrentWords()
ERROR = b'{"ok":false,"errors":[{"code":"internal_server_error","message":"Something went wrong"}]}'
LIMITED = b'{"ok":false,"errors":[{"code":"rate_limit_exceeded","message":"Too many requests"}]}'


class Lost(Exception):
    """The connection failed."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a request and of its answer.

    It comes after ``travels`` seconds, or not at all; its sender sees the connection fail (``cut``
    before it comes, ``dropped`` after), or is answered by ``says``, or hears nothing (``silent``).
    """

    name: str
    executes: bool = True
    travels: tuple[float, float] = (0.0, 0.02)
    cut: bool = False
    dropped: bool = False
    silent: bool = False
    answers: tuple[float, float] = (0.0, 0.02)
    says: Callable[[int, bytes], tuple[int, bytes]] = lambda status, body: (status, body)


def _instead(status: int, body: bytes) -> Callable[[int, bytes], tuple[int, bytes]]:
    return lambda _status, _body: (status, body)


WELL = Fate("well")
FATES = (
    Fate("lost before", executes=False, cut=True),
    Fate("lost before", executes=False, cut=True),
    Fate("silent, not done", executes=False, silent=True),
    Fate("lost after", dropped=True),
    Fate("lost after", dropped=True),
    Fate("lost after", dropped=True),
    Fate("silent", silent=True),
    Fate("slow", answers=(1.0, 10.0)),
    Fate("late", travels=(1.0, 45.0)),
    Fate("cut, and late", travels=(0.5, 40.0), cut=True),
    Fate("half json", says=lambda status, body: (status, body[: len(body) // 2])),
    Fate("empty", says=_instead(200, b"")),
    Fate("html", says=_instead(200, HTML)),
    Fate("502", says=_instead(502, HTML)),
    Fate("504, not done", executes=False, says=_instead(504, HTML)),
    Fate("500", says=_instead(500, ERROR)),
    Fate("500, not done", executes=False, says=_instead(500, ERROR)),
    Fate("503, not done", executes=False, says=_instead(503, b"")),
    Fate("429", executes=False, says=_instead(429, LIMITED)),
    Fate("302", says=_instead(302, b"")),
)


@dataclass
class Network:
    service: Service
    dice: random.Random
    heard: list[Heard] = field(default_factory=list)
    part: float = 0.0
    """Of the requests, that something becomes of."""
    fates: Sequence[Fate] = FATES
    snags: float = 0.0
    """Of the batches that are made, after how many whoever made one is paused or killed."""
    is_superseded: Callable[[str], bool] = lambda _batch: False
    """Whether an edit has left this batch of the service: nothing is to be written to it any more."""
    wrong: list[str] = field(default_factory=list)
    told: Callable[..., None] = lambda *_told: None
    _late: dict[asyncio.Task[None], None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._face = Face(self.service)
        self._lists = self.service.switches.inferred

    def send(self, asked: _Asked, sent_at: float) -> asyncio.Future[tuple[int, bytes, str]]:
        """Has a request on its way, which goes on whatever becomes of whoever sent it."""
        fate = self.dice.choice(self.fates) if self.dice.random() < self.part else WELL
        if fate.name == "500" and asked.raw_path == "/v1/batches" and not self._lists:
            # Where nothing shows what became of it, the service's own word is taken for it.
            fate = replace(fate, executes=False)
        heard = Heard(len(self.heard), asked.method, asked.raw_path, asked.headers, asked.data, 0)
        heard.how = fate.name
        self.heard.append(heard)
        self.told("sent", heard.number, heard.method, heard.path, fate.name)
        reply = asyncio.get_running_loop().create_future()
        task = asyncio.get_running_loop().create_task(self._travel(asked, heard, fate, reply))
        self._late[task] = None
        task.add_done_callback(self._late.pop)
        return reply

    async def _travel(
        self, asked: _Asked, heard: Heard, fate: Fate, reply: asyncio.Future[Any]
    ) -> None:
        if fate.cut:
            _fails(reply)
        await asyncio.sleep(self.dice.uniform(*fate.travels))
        status, body = 0, b""
        if fate.executes:
            status, body = await self._execute(asked, heard)
        if fate.dropped:
            _fails(reply)
        if fate.silent or reply.done():
            return
        await asyncio.sleep(self.dice.uniform(*fate.answers))
        if not reply.done():
            date = formatdate(self.service.clock(), usegmt=True)
            reply.set_result((*fate.says(status, body), date))

    async def _execute(self, asked: _Asked, heard: Heard) -> tuple[int, bytes]:
        answered: Any = await self._face.handle(asked)  # type: ignore[arg-type]
        heard.status, body = answered.status, bytes(answered.body)
        heard.age = self.service.clock() - float(asked.headers[WORDS.timestamp_header])
        heard.made = _made(heard, json.loads(body))
        self.told("done", heard.number, heard.status)
        named = _OF_A_BATCH.match(heard.path)
        if heard.is_write and heard.is_done and named and self.is_superseded(named[1]):
            self.wrong.append(f"{heard.method} {heard.path} was sent to a superseded batch")
        return answered.status, body

    def snag(self, process: Process) -> None:
        """What becomes of a process that has made a batch, before it goes on with it."""
        if not self.snags or self.dice.random() >= self.snags:
            return
        step = process.steps + self.dice.choice((2, 3, 4, 5, 6, 8, 12, 20))
        if self.dice.random() < 0.4:
            process.dies_at = step
        else:
            process.holds_at = step, self.dice.choice((0.1, 0.8, 3.0))

    @property
    def is_idle(self) -> bool:
        return not self._late

    def done(self, method: str = "*", about: str = "") -> list[Heard]:
        """The writes that were executed, and not refused."""
        return [
            one
            for one in self.heard
            if one.is_write and one.is_done and method in ("*", one.method) and one.is_about(about)
        ]


_OF_A_BATCH = re.compile(r"/v1/batches/([^/]+)")


def _fails(reply: asyncio.Future[Any]) -> None:
    if not reply.done():
        reply.set_exception(Lost())
        reply.exception()  # whoever sent it may be no more


def _made(heard: Heard, body: dict[str, Any]) -> str | None:
    if heard.method != "POST" or heard.target.endswith(("generate-quote", "start-processing")):
        return None
    for name in MADE:
        if isinstance(made := body.get(name), dict):
            return str(made.get("recipientAccountId") or made.get("id"))
    return None


@dataclass(slots=True)
class _Sending:
    """One call, and whether it has left."""

    pair: Credentials
    method: str
    target: str
    body: bytes
    is_write: bool
    fence: Fence | None
    may_repeat: bool
    left: bool = False
    sent: float = 0.0

    def failure(self, why: str) -> Unreachable | Unknown:
        if self.is_write and self.left:
            return Unknown(why, age_seconds=asyncio.get_running_loop().time() - self.sent)
        return Unreachable(why)


class Wire:
    """One process's way to the network."""

    timeout_seconds = TIMEOUT_SECONDS

    def __init__(self, process: Process, network: Network, clock: ServiceClock) -> None:
        self.clock = clock
        self._process = process
        self._network = network

    async def send(
        self,
        environment: str,
        pair: Credentials,
        method: str,
        target: str,
        body: bytes | None,
        *,
        request_id: str,
        write: bool,
        fence: Fence | None = None,
    ) -> Reply:
        call = _Sending(pair, method, target, body or b"", write, fence, may_repeat=not write)
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self.timeout_seconds):
                status, told, date = await self._answer(call, environment)
        except TimeoutError:
            raise call.failure("no answer in time") from None
        except Lost:
            raise call.failure("the connection failed") from None
        finally:
            await self._process.step()
        headers = CIMultiDictProxy(CIMultiDict({"Date": date}))
        return Reply(status, headers, told, asyncio.get_running_loop().time() - began, 1)

    async def _answer(self, call: _Sending, environment: str) -> tuple[int, bytes, str]:
        correction, other = self.clock.offset(environment), False
        while True:
            status, body, date = await self._attempt(call, correction)
            seen = measure_skew({"Date": date}, self.clock.wall(), self._network_time(call))
            if status == 401 and not other:
                new = self.clock.select_retry_correction(environment, seen, correction)
                if new is not None:
                    correction, other = new, True
                    if call.fence:
                        await call.fence.fence()
                    continue
            if other and status < 500 and status not in (401, 429):
                self.clock.record_proven(environment, correction)
            elif 200 <= status < 300 and seen:
                self.clock.record_accepted(environment, seen)
            return status, body, date

    def _network_time(self, call: _Sending) -> float:
        return asyncio.get_running_loop().time() - call.sent

    async def _attempt(self, call: _Sending, correction: float) -> tuple[int, bytes, str]:
        while True:
            call.left = False
            await self._process.step()
            headers = self._stamped(call, correction)
            while call.fence and not call.fence.is_fenced:
                await call.fence.fence()
                headers = self._stamped(call, correction)
            call.left, call.sent = True, asyncio.get_running_loop().time()
            asked = _Asked(call.method, call.target, headers, call.body)
            try:
                answered = await self._network.send(asked, call.sent)
            except Lost:
                if not call.may_repeat:
                    raise
                call.may_repeat = False
            else:
                if (call.method, call.target) == ("POST", "/v1/batches"):
                    self._network.snag(self._process)
                return answered

    def _stamped(self, call: _Sending, correction: float) -> CIMultiDict[str]:
        signed = build_signature_headers(
            call.pair,
            WORDS,
            stamp=int(self.clock.wall() + correction),
            method=call.method,
            target=format_signed_target("path", call.target),
            body=call.body,
        )
        kind = {"Content-Type": "application/json"} if call.body else {}
        return CIMultiDict({**signed, **kind})


def service(dice: random.Random, **switches: Any) -> Service:
    from gateway.simulator import Switches

    def clock() -> float:
        return EPOCH + asyncio.get_running_loop().time()

    return Service(switches=Switches(**switches), clock=clock, seed=dice.randrange(1 << 30))
