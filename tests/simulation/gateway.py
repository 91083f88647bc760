"""One gateway of the simulation: everything between a legacy request and the wire, and no socket."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gateway.auth.keys import ApiKey
from gateway.auth.signing import Credentials
from gateway.http import responses
from gateway.http.responses import LegacyResponse
from gateway.reads.recent_reads import Kept
from gateway.storage import Ledger, StoreUnavailable
from gateway.storage.undertakings import OperationRecord
from gateway.upstream.capability_cache import CapabilityCache
from gateway.upstream.clock import ServiceClock
from gateway.upstream.optional_endpoints import OptionalEndpoints
from gateway.writes.instances import Heartbeats
from gateway.writes.journal import Journal, OperationExecution
from gateway.writes.once import IdempotencyGuard, Wanted
from gateway.writes.player import Caller, Player
from gateway.writes.settler import Settler
from gateway.writes.settling import Settling
from mappings import OPERATIONS, UNLISTED, errors, field_types
from mappings.effects import Answer, Failure, Request, Vocabulary
from tests.house import KEY
from tests.simulation.machine import Killed, Process
from tests.simulation.network import TIMEOUT_SECONDS, Network, Wire
from tests.simulation.state import State

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
    """A legacy request, past the door."""

    operation: str
    ids: dict[str, str] = field(default_factory=dict)
    body: Any = None
    idempotency: str | None = None

    def __str__(self) -> str:
        body = self.body or {}
        about = body.get("email") or body.get("description") or self.ids.get("id", "")
        return f"{self.operation} {about} {self.idempotency or ''}".rstrip()


class Line:
    """A client's connection; ``heard`` is None where it ended without an answer."""

    def __init__(self) -> None:
        self.heard: asyncio.Future[LegacyResponse | None] = (
            asyncio.get_running_loop().create_future()
        )
        self.is_left = False
        self.at_leaving: Callable[[], None] = lambda: None

    def leave(self) -> None:
        self.is_left = True
        self.at_leaving()

    def cut(self) -> None:
        if not self.heard.done():
            self.heard.set_result(None)


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
        """What is in flight is finished first."""
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
                line.heard.set_result(said)
                await self.process.step()
                if over:
                    self._once.delivered(over)
        finally:
            if over and not self.process.is_dead:
                self._once.undelivered(over)

    def _deserted(self, caller: Caller) -> None:
        """The server hears of it before it hears anything else of that client."""
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
    connection: sqlite3.Connection,
    dice: random.Random,
    wrong: Callable[[str], None],
    *,
    shared: bool,
    gone_seconds: float,
) -> Gateway:
    """A new process with a gateway in it; one that was killed while it began is not open."""
    process = Process(random.Random(dice.randrange(1 << 30)))
    gateway = Gateway(
        process, network, State(process, connection, shared=shared), wrong, gone_seconds
    )
    beginning = process.begin(gateway.open(random.Random(dice.randrange(1 << 30))))
    try:
        await beginning
    except (Killed, asyncio.CancelledError, StoreUnavailable):
        process.kill()
    return gateway
