"""The simulated service and the network before it, which loses, delays and corrupts messages."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from typing import Any

from gateway.config.settings import CurrentWords
from gateway.simulator import Service, Switches
from gateway.simulator.face import Face
from tests.judge import HTML, MADE, Heard, SentRequest
from tests.simulation.machine import EPOCH, Process

TIMEOUT_SECONDS = 4.0
WORDS = CurrentWords()
ERROR = b'{"ok":false,"errors":[{"code":"internal_server_error","message":"Something went wrong"}]}'
LIMITED = b'{"ok":false,"errors":[{"code":"rate_limit_exceeded","message":"Too many requests"}]}'


class Lost(Exception):
    """The connection failed."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to a request and its response.

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
    """Share of the requests that meet a fault."""
    fates: Sequence[Fate] = FATES
    snags: float = 0.0
    """Share of batch creates after which the process is paused or killed."""
    is_superseded: Callable[[str], bool] = lambda _batch: False
    """Whether this upstream batch is superseded, so that nothing may be written to it."""
    wrong: list[str] = field(default_factory=list)
    told: Callable[..., None] = lambda *_told: None
    _late: dict[asyncio.Task[None], None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._face = Face(self.service)
        self._lists = self.service.switches.inferred

    def send(self, asked: SentRequest, sent_at: float) -> asyncio.Future[tuple[int, bytes, str]]:
        """Sends a request, which continues even if its sender dies."""
        fate = self.dice.choice(self.fates) if self.dice.random() < self.part else WELL
        if fate.name == "500" and asked.raw_path == "/v1/batches" and not self._lists:
            # Nothing else shows whether it was executed, so that the service's 500 must be true.
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
        self, asked: SentRequest, heard: Heard, fate: Fate, reply: asyncio.Future[Any]
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

    async def _execute(self, asked: SentRequest, heard: Heard) -> tuple[int, bytes]:
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
        """Pauses or kills a process that has just created a batch."""
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
        """The writes that were executed and succeeded."""
        return [
            one
            for one in self.heard
            if one.is_write and one.is_done and method in ("*", one.method) and one.is_about(about)
        ]


_OF_A_BATCH = re.compile(r"/v1/batches/([^/]+)")


def _fails(reply: asyncio.Future[Any]) -> None:
    if not reply.done():
        reply.set_exception(Lost())
        reply.exception()  # mark as retrieved: the sender may be dead


def _made(heard: Heard, body: dict[str, Any]) -> str | None:
    if heard.method != "POST" or heard.target.endswith(("generate-quote", "start-processing")):
        return None
    for name in MADE:
        if isinstance(made := body.get(name), dict):
            return str(made.get("recipientAccountId") or made.get("id"))
    return None


def service(dice: random.Random, **switches: Any) -> Service:
    def clock() -> float:
        return EPOCH + asyncio.get_running_loop().time()

    return Service(switches=Switches(**switches), clock=clock, seed=dice.randrange(1 << 30))
