"""Assembles a gateway of the simulation from the parts of the product, without a socket.

This module, ``database`` and ``mutations`` are all of the simulation that imports internals of the product.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from multidict import CIMultiDict, CIMultiDictProxy
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.auth.keys import ApiKey
from gateway.auth.signing import Credentials, build_signature_headers, format_signed_target
from gateway.http import responses
from gateway.http.responses import LegacyResponse
from gateway.reads.recent_reads import Kept
from gateway.storage import Ledger, StoreUnavailable
from gateway.storage.undertakings import OperationRecord
from gateway.upstream.capability_cache import CapabilityCache
from gateway.upstream.client import Reply
from gateway.upstream.clock import ServiceClock, measure_skew
from gateway.upstream.optional_endpoints import OptionalEndpoints
from gateway.upstream.send_attempt import Fence
from gateway.writes.instances import Heartbeats
from gateway.writes.journal import Journal, OperationExecution
from gateway.writes.once import IdempotencyGuard, Wanted
from gateway.writes.player import Caller, Player
from gateway.writes.settler import Settler
from gateway.writes.settling import Settling
from mappings import OPERATIONS, UNLISTED, errors, field_types
from mappings.effects import Answer, Request, Vocabulary
from mappings.failures import Failure, Unknown, Unreachable
from tests.judge import SentRequest
from tests.simulation.database import State
from tests.simulation.machine import Killed, Process
from tests.simulation.network import TIMEOUT_SECONDS, WORDS, Lost, Network
from tests.state import KEY

BY_NAME = {operation.name: operation for operation in (*OPERATIONS, *UNLISTED)}
OWN_KEY = ApiKey(
    "key",
    "a key",
    "",
    KEY["merchant"],
    KEY["environment"],
    Credentials(KEY["access_key"], KEY["secret_key"]),
    None,
    (),
)
PATIENCE = TIMEOUT_SECONDS + 5
ENDS_WITHIN = PATIENCE + 5
UNWANTED = responses.build_error_response(errors.build_legacy_error(errors.INTERNAL_ERROR))


@dataclass(frozen=True, slots=True)
class Asked:
    """An authenticated legacy request."""

    operation: str
    ids: dict[str, str] = field(default_factory=dict)
    body: Any = None
    idempotency: str | None = None

    def __str__(self) -> str:
        body = self.body or {}
        about = body.get("email") or body.get("description") or self.ids.get("id", "")
        return f"{self.operation} {about} {self.idempotency or ''}".rstrip()


@dataclass(frozen=True, slots=True)
class Response:
    """A legacy response, as its client gets it."""

    status: int
    data: bytes
    headers: Mapping[str, str]


class Line:
    """A client's connection; ``heard`` is None if it ended without a response."""

    def __init__(self) -> None:
        self.heard: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()
        self.is_left = False
        self.at_leaving: Callable[[], None] = lambda: None

    def leave(self) -> None:
        self.is_left = True
        self.at_leaving()

    def cut(self) -> None:
        if not self.heard.done():
            self.heard.set_result(None)


@dataclass(slots=True)
class _Sending:
    """One upstream call, and whether it was sent."""

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
    """Stands for the HTTP client of one process, and keeps its promises.

    A write is sent once and stamped when it leaves; a write that left without a response is Unknown.
    """

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
            asked = SentRequest(call.method, call.target, headers, call.body)
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


@dataclass
class Gateway:
    process: Process
    network: Network
    state: State
    wrong: Callable[[str], None]
    gone_seconds: float
    serving: dict[asyncio.Task[None], None] = field(default_factory=dict)
    is_open: bool = False

    async def open(self, ids: random.Random) -> None:
        store, process = self.state, self.process
        clock = ServiceClock(process.wall, process.monotonic)
        wire: Any = Wire(process, self.network, clock)
        ledger = Ledger(store)
        self._clock = clock
        self._ids = ids
        self._journal = Journal(
            store, ledger, clock, self.gone_seconds, lambda: f"{ids.getrandbits(128):032x}"
        )
        self._settler = Settler(self._journal, clock)
        inferred = OptionalEndpoints("auto", CapabilityCache(ledger), process.wall)
        self._player = Player(
            wire, ledger, Vocabulary(), inferred, kept=Kept(), settler=self._settler
        )
        instances = Heartbeats(store, self._journal.instance, self.gone_seconds, process.monotonic)
        self._settling = Settling(store, self._journal, self._player, self._settler, instances)
        self._once = IdempotencyGuard(self._journal, self._player, self._settling, PATIENCE)
        await self._settling.__aenter__()
        self.is_open = True

    async def close(self) -> None:
        """Waits for requests in flight."""
        self.is_open = False
        if self.serving:
            await asyncio.wait(list(self.serving), timeout=ENDS_WITHIN)
        await self._settling.__aexit__()
        self.process.kill()

    def take(self, asked: Asked, line: Line) -> None:
        self.network.told(self._journal.instance[:4], "takes", asked)
        task = self.process.begin(self._serve(asked, line))
        self.serving[task] = None
        task.add_done_callback(self.serving.pop)
        task.add_done_callback(lambda _task: line.cut())

    async def _serve(self, asked: Asked, line: Line) -> None:
        caller = Caller(OWN_KEY, "a request")
        line.at_leaving = lambda: self._deserted(caller)
        over: OperationRecord | None = None
        try:
            said, over = await self._said(asked, caller)
            await self.process.step()
            if not line.is_left and not line.heard.done():
                line.heard.set_result(Response(said.status, said.encoded_body, said.headers))
                await self.process.step()
                if over:
                    self._once.delivered(over)
        finally:
            if over and not self.process.is_dead:
                self._once.undelivered(over)

    def _deserted(self, caller: Caller) -> None:
        """The server learns of it before anything else from that client."""
        caller.is_gone = True
        if caller.course and not self.process.is_dead:
            self.process.begin(self._noting(caller.course))

    async def _noting(self, course: OperationExecution) -> None:
        with suppress(StoreUnavailable):
            await self._once.deserted(course)

    async def _said(
        self, asked: Asked, caller: Caller
    ) -> tuple[LegacyResponse, OperationRecord | None]:
        try:
            return await self._answer(asked, caller)
        except Failure as failure:
            return await _refusal(failure), None
        except StoreUnavailable:
            return UNWANTED, None
        except Exception as error:  # noqa: BLE001 - a client would get 500, and so does this one
            self.wrong(f"{asked.operation} was answered by {error!r}")
            return UNWANTED, None

    async def _answer(
        self, asked: Asked, caller: Caller
    ) -> tuple[LegacyResponse, OperationRecord | None]:
        operation = BY_NAME[asked.operation]
        body, problems = None, ()
        if operation.body_shape is not None:
            body, problems = field_types.parse_body(operation.body_shape, asked.body)
        request = Request(
            now=datetime.fromtimestamp(self.process.wall(), UTC),
            seed=f"{self._ids.getrandbits(96):024x}",
            ids=asked.ids,
            body=body,
            problems=problems,
        )
        if not operation.is_write:
            answer = await self._player.play(operation.flow(request), caller, problems)
            return await _done(answer), None
        wanted = Wanted(operation, request, caller, asked.idempotency, problems)
        return await self._once.answer(wanted, _done, _refusal)


async def _done(answer: Answer) -> LegacyResponse:
    return responses.build_success_response(answer.body)


async def _refusal(failure: Failure) -> LegacyResponse:
    return responses.build_error_response(errors.translate_failure(failure))


async def opened(
    network: Network,
    engine: AsyncEngine,
    dice: random.Random,
    wrong: Callable[[str], None],
    *,
    shared: bool,
    gone_seconds: float,
) -> Gateway:
    """Starts a gateway in a new process; it is not open if it was killed meanwhile."""
    process = Process(random.Random(dice.randrange(1 << 30)))
    gateway = Gateway(process, network, State(process, engine, shared=shared), wrong, gone_seconds)
    beginning = process.begin(gateway.open(random.Random(dice.randrange(1 << 30))))
    try:
        await beginning
    except (Killed, asyncio.CancelledError, StoreUnavailable):
        process.kill()
    return gateway
