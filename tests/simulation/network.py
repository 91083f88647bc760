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
from gateway.simulator import Service, ServiceOptions
from gateway.simulator.http_handler import RequestHandler
from tests.recording_service import CREATED_OBJECTS, HTML, ReceivedRequest, SentRequest
from tests.simulation.process import EPOCH, Process

TIMEOUT_SECONDS = 4.0
SIGNATURE_HEADERS = CurrentWords()
INTERNAL_ERROR_BODY = (
    b'{"ok":false,"errors":[{"code":"internal_server_error","message":"Something went wrong"}]}'
)
RATE_LIMIT_BODY = (
    b'{"ok":false,"errors":[{"code":"rate_limit_exceeded","message":"Too many requests"}]}'
)


class ConnectionFailed(Exception):
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


def _replace_response(status: int, body: bytes) -> Callable[[int, bytes], tuple[int, bytes]]:
    return lambda _status, _body: (status, body)


DELIVERED = Fate("well")
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
    Fate("empty", says=_replace_response(200, b"")),
    Fate("html", says=_replace_response(200, HTML)),
    Fate("502", says=_replace_response(502, HTML)),
    Fate("504, not done", executes=False, says=_replace_response(504, HTML)),
    Fate("500", says=_replace_response(500, INTERNAL_ERROR_BODY)),
    Fate("500, not done", executes=False, says=_replace_response(500, INTERNAL_ERROR_BODY)),
    Fate("503, not done", executes=False, says=_replace_response(503, b"")),
    Fate("429", executes=False, says=_replace_response(429, RATE_LIMIT_BODY)),
    Fate("302", says=_replace_response(302, b"")),
)


@dataclass
class Network:
    service: Service
    random_source: random.Random
    requests: list[ReceivedRequest] = field(default_factory=list)
    fault_rate: float = 0.0
    """Share of the requests that meet a fault."""
    fates: Sequence[Fate] = FATES
    pause_rate: float = 0.0
    """Share of batch creates after which the process is paused or killed."""
    is_superseded: Callable[[str], bool] = lambda _batch: False
    """Whether this upstream batch is superseded, so that nothing may be written to it."""
    problems: list[str] = field(default_factory=list)
    log: Callable[..., None] = lambda *_told: None
    _late: dict[asyncio.Task[None], None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._face = RequestHandler(self.service)
        self._lists = self.service.options.inferred

    def send(self, request: SentRequest, sent_at: float) -> asyncio.Future[tuple[int, bytes, str]]:
        """Sends a request, which continues even if its sender dies."""
        fate = (
            self.random_source.choice(self.fates)
            if self.random_source.random() < self.fault_rate
            else DELIVERED
        )
        if fate.name == "500" and request.raw_path == "/v1/batches" and not self._lists:
            # Nothing else shows whether it was executed, so that the service's 500 must be true.
            fate = replace(fate, executes=False)
        received = ReceivedRequest(
            len(self.requests), request.method, request.raw_path, request.headers, request.data, 0
        )
        received.behaviour = fate.name
        self.requests.append(received)
        self.log("sent", received.number, received.method, received.path, fate.name)
        reply = asyncio.get_running_loop().create_future()
        task = asyncio.get_running_loop().create_task(self._deliver(request, received, fate, reply))
        self._late[task] = None
        task.add_done_callback(self._late.pop)
        return reply

    async def _deliver(
        self,
        request: SentRequest,
        received: ReceivedRequest,
        fate: Fate,
        reply: asyncio.Future[Any],
    ) -> None:
        if fate.cut:
            _fail(reply)
        await asyncio.sleep(self.random_source.uniform(*fate.travels))
        status, body = 0, b""
        if fate.executes:
            status, body = await self._execute(request, received)
        if fate.dropped:
            _fail(reply)
        if fate.silent or reply.done():
            return
        await asyncio.sleep(self.random_source.uniform(*fate.answers))
        if not reply.done():
            date = formatdate(self.service.clock(), usegmt=True)
            reply.set_result((*fate.says(status, body), date))

    async def _execute(self, request: SentRequest, received: ReceivedRequest) -> tuple[int, bytes]:
        response: Any = await self._face.handle(request)  # type: ignore[arg-type]
        received.status, body = response.status, bytes(response.body)
        received.age = self.service.clock() - float(
            request.headers[SIGNATURE_HEADERS.timestamp_header]
        )
        received.created_id = _extract_created_id(received, json.loads(body))
        self.log("done", received.number, received.status)
        named = _BATCH_PATH.match(received.path)
        if received.is_write and received.is_done and named and self.is_superseded(named[1]):
            self.problems.append(
                f"{received.method} {received.path} was sent to a superseded batch"
            )
        return response.status, body

    def maybe_interrupt(self, process: Process) -> None:
        """Pauses or kills a process that has just created a batch."""
        if not self.pause_rate or self.random_source.random() >= self.pause_rate:
            return
        step = process.steps + self.random_source.choice((2, 3, 4, 5, 6, 8, 12, 20))
        if self.random_source.random() < 0.4:
            process.dies_at = step
        else:
            process.holds_at = step, self.random_source.choice((0.1, 0.8, 3.0))

    @property
    def is_idle(self) -> bool:
        return not self._late

    def list_executed_writes(self, method: str = "*", about: str = "") -> list[ReceivedRequest]:
        """The writes that were executed and succeeded."""
        return [
            request
            for request in self.requests
            if request.is_write
            and request.is_done
            and method in ("*", request.method)
            and request.is_about(about)
        ]


_BATCH_PATH = re.compile(r"/v1/batches/([^/]+)")


def _fail(reply: asyncio.Future[Any]) -> None:
    if not reply.done():
        reply.set_exception(ConnectionFailed())
        reply.exception()  # mark as retrieved: the sender may be dead


def _extract_created_id(received: ReceivedRequest, body: dict[str, Any]) -> str | None:
    if received.method != "POST" or received.target.endswith(
        ("generate-quote", "start-processing")
    ):
        return None
    for name in CREATED_OBJECTS:
        if isinstance(created := body.get(name), dict):
            return str(created.get("recipientAccountId") or created.get("id"))
    return None


def build_service(dice: random.Random, **switches: Any) -> Service:
    def clock() -> float:
        return EPOCH + asyncio.get_running_loop().time()

    return Service(options=ServiceOptions(**switches), clock=clock, seed=dice.randrange(1 << 30))
