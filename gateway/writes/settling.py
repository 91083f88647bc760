"""Reconciles writes whose response was lost, and finishes operations that were interrupted.

A sweep runs from the start on. It takes over operations that are in doubt or whose process is dead,
replays each up to the write in question, and determines the outcome of that write from reads of the
service. A request that needs the outcome at once (a retry, the next write on the same object)
reconciles the operation through this class as well.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import structlog

from gateway.auth.key_rows import load_credentials
from gateway.auth.keys import ApiKey
from gateway.observability import logs
from gateway.payloads.worker_thread import run_in_thread_if
from gateway.storage import Ledger, Store, StoreUnavailable
from gateway.storage.undertakings import (
    DID_NOT,
    DONE,
    PASSED_ON,
    RUNNING,
    TOLD,
    UNDONE,
    OperationRecord,
    Overtaken,
    Told,
)
from gateway.writes import endings
from gateway.writes.batch_routing import BEGUN, LEGACY, take_back
from gateway.writes.instances import Heartbeats
from gateway.writes.journal import Journal, OperationExecution
from gateway.writes.player import Caller, Player
from gateway.writes.settler import Settler
from mappings import OPERATIONS, SIGNED, UNLISTED
from mappings.effects import (
    Absent,
    Call,
    Confirmed,
    Inconclusive,
    InDoubtWrite,
    Operation,
    Step,
    WriteOutcome,
)
from mappings.failures import Failure, Unknown

SWEEP_SECONDS = 1.0
LONGEST_PAUSE = 60.0
_SIDE_BY_SIDE = 4
_KEPT_FOR = timedelta(hours=24)
_UNREAD_FOR = timedelta(seconds=90)
"""Time after which a response without an Idempotency-Key is deleted: by then a connection reset no
longer makes the next identical request a retry."""
_EXPIRES_EVERY = 60.0

_UNLISTED = "passed on to the legacy service: the state could not be written when it was over"

_FLOWS = {operation.name: operation for operation in (*OPERATIONS, *UNLISTED, *SIGNED)}

log = structlog.get_logger()


def never_read(_sending: InDoubtWrite) -> Generator[Step, Any, WriteOutcome]:
    """The outcome rule of a write at the legacy service, which the gateway cannot read."""
    yield from ()
    return Inconclusive("it went to the legacy service")


@dataclass(slots=True)
class _Tries:
    pause: float = SWEEP_SECONDS
    due: float = 0.0
    told: Told = ()
    """Outcomes that operators had recorded at the last attempt."""


class Settling:
    """Reconciles operations in doubt; sweeps in the background inside its ``async with`` block."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        player: Player,
        settler: Settler,
        instances: Heartbeats,
    ) -> None:
        self._store = store
        self._ledger = Ledger(store)
        self._journal = journal
        self._player = player
        self._settler = settler
        self._instances = instances
        self._tries: dict[str, _Tries] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._trying: dict[str, asyncio.Task[None]] = {}
        # One limit for each environment: a sandbox that hangs must not delay live.
        self._places = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(_SIDE_BY_SIDE))
        self._expired = 0.0
        self._ending = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._instances.begin()
        those = (self._beating(), self._sweeping(), self._noting())
        self._tasks = [asyncio.create_task(one) for one in those]
        return self

    async def __aexit__(self, *_: object) -> None:
        # The loops are not cancelled: a database write that has started must finish.
        self._ending.set()
        self._journal.delivery.set()
        for task in (trying := list(self._trying.values())):
            task.cancel()
        await asyncio.gather(*self._tasks, *trying, return_exceptions=True)
        try:
            await self._journal.note_delivered()
            await self._instances.end()
        except StoreUnavailable as unavailable:
            log.error("database_unavailable", reason=str(unavailable))

    def seconds_until_sure(self, one: OperationRecord) -> int:
        """Seconds after which a retry can expect a result."""
        return self._settler.seconds_until_sure(one)

    async def take(self, one: OperationRecord, operation: Operation) -> OperationExecution | None:
        """Takes over an operation; None if another process or request has it."""
        course = await self._journal.take(one, operation)
        if course is not None:
            self._settler.taken(course, one)
        return course

    async def settle(self, one: OperationRecord) -> bool:
        """Takes over an operation and finishes it; False if that is not possible yet."""
        if one.operation.startswith(PASSED_ON):
            return await self._as_told(one)
        operation = _FLOWS.get(one.operation)
        course = await self.take(one, operation) if operation else None
        if course is None:
            return False
        course.attended = False
        try:
            return await self._played(course)
        except Overtaken:
            return False
        finally:
            self._journal.leave(course)

    async def _as_told(self, one: OperationRecord) -> bool:
        """Closes an operation that went to the legacy service once an operator has recorded its outcome."""
        operation = _FLOWS.get(one.operation.removeprefix(PASSED_ON))
        told = (await self._journal.rows.told([one.id])).get(one.id)
        is_unsaved = one.id in self._journal.unsaved
        # A lost response that could not be saved is not listed as in doubt yet.
        is_unlisted = one.state == RUNNING and self.is_own(one)
        if operation is None or not (told or is_unsaved or is_unlisted):
            return False
        course = await self._journal.take(one, operation)
        if course is None:
            return False
        try:
            if is_unlisted and not (told or is_unsaved):
                await course.leave(_UNLISTED)
                return False
            if not told:
                await course.close()
                return True
            return await self._closed(course, told[-1][1])
        finally:
            self._journal.leave(course)

    async def _closed(self, course: OperationExecution, told: str) -> bool:
        made, write = told if told not in TOLD else None, course.unanswered
        if write is not None:
            call = Call(write.method, write.path, reconcile=never_read)
            verdict = Absent() if told == DID_NOT else Confirmed(object_id=made)
            try:
                await course.found(call, verdict)
            except Unknown as unknown:
                await course.leave(str(unknown))
                return False
        if made and course.operation.name == "create_batch":
            await self._ledger.record(course.one.owner, BEGUN, made, LEGACY)
        if told == DID_NOT:
            await course.close(UNDONE)
            # The record at hand lists only some of the objects that the operation names.
            row = await self._journal.rows.read(course.one.id)
            await take_back(
                self._ledger, course.one.owner, row.subjects if row else (), course.one.id
            )
        else:
            # The client may retry for a day, and a retry must not execute it twice.
            await course.finish()
        self._tell(course.one, "not_executed" if told == DID_NOT else "succeeded")
        return True

    async def _played(self, course: OperationExecution) -> bool:
        one = course.one
        try:
            flow = course.operation.flow(course.request)
            caller = await self._caller(one, course)
            answer = await self._player.play(flow, caller, (), course)
        except Unknown as unknown:
            await course.leave(str(unknown))
            return False
        except Failure as failure:
            if course.is_unread(failure):
                await course.leave("the service cannot be read")
                return False
            await course.close(UNDONE)
            self._tell(one, "not_executed", **{"error.type": failure.error_type})
        else:
            if course.operation.method == "GET":
                await course.close()
            else:
                # The answer is stored: a retry may reach another version, which cannot replay this flow.
                await course.finish(await run_in_thread_if(caller.is_long, endings.untold, answer))
            self._tell(one, "succeeded")
        return True

    async def _caller(self, one: OperationRecord, course: OperationExecution) -> Caller:
        pair = await load_credentials(self._store, one.owner)
        merchant, environment = one.owner
        key = ApiKey(one.key_id, one.key_name, "", merchant, environment, pair, None, ())
        return Caller(key, one.request_id, course=course)

    def _tell(self, one: OperationRecord, outcome: str, **more: str) -> None:
        log.warning(
            "in_doubt_write_resolved",
            outcome=outcome,
            operation=one.operation,
            merchant=one.owner.merchant,
            environment=one.owner.environment,
            request_id=one.request_id,
            write_id=one.id,
            **more,
        )

    # The sweep

    async def _beating(self) -> None:
        """Runs apart from the sweep: a service that hangs delays the sweep, but this process is alive."""
        while not self._ending.is_set():
            try:
                await self._instances.beat()
            except StoreUnavailable as unavailable:
                log.error("heartbeat_failed", reason=str(unavailable))
            except Exception as error:  # noqa: BLE001 - without heartbeats others would take over what runs here
                log.error("heartbeat_failed", **logs.describe_exception(error))
            await self._rest(self._instances.beat_seconds / 4)

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), seconds)

    async def _sweeping(self) -> None:
        while not self._ending.is_set():
            try:
                await self._journal.note_deserted()
                await self.sweep()
                await self._expire()
            except StoreUnavailable as unavailable:
                log.error("in_doubt_check_failed", reason=str(unavailable))
            except Exception as error:  # noqa: BLE001 - the sweep must not end: nothing else reconciles
                log.error("in_doubt_check_failed", **logs.describe_exception(error))
            await self._rest(SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Lists every unfinished operation once, and starts to reconcile those that are due."""
        before = set(self._journal.unsaved)
        rows = await self._journal.rows.left_open()
        await self.know_instances(rows)
        left = [one for one in rows if not self.is_played(one)]
        # Executions that started after the rows were read are open too, but not among them.
        self._forget({one.id for one in rows} | (self._journal.unsaved.keys() - before))
        now = self._journal.monotonic()
        told = await self._journal.rows.told([one.id for one in left]) if left else {}
        if self._ending.is_set():
            return  # `__aexit__` has cancelled the attempts, and the store is closed next
        for one in left:
            tries = self._tries.setdefault(one.id, _Tries())
            if tries.told != (news := told.get(one.id, ())):
                tries.told, tries.due, tries.pause = news, now, SWEEP_SECONDS
            if one.id not in self._trying and tries.due <= now:
                self._trying[one.id] = asyncio.create_task(self._try(one, tries))

    async def _try(self, one: OperationRecord, tries: _Tries) -> None:
        try:
            async with self._places[one.owner.environment]:
                if await self.settle(one):
                    return
        except StoreUnavailable as unavailable:
            log.error("in_doubt_write_not_resolved", write_id=one.id, reason=str(unavailable))
        except Exception as error:  # noqa: BLE001 - an operation that fails must not stop the others
            log.error(
                "in_doubt_write_not_resolved",
                write_id=one.id,
                **logs.describe_exception(error),
            )
        finally:
            del self._trying[one.id]
        tries.pause = min(tries.pause * 2, LONGEST_PAUSE)
        wait = self.seconds_until_sure(one)
        # With jitter, so that operations, and processes, that wait for each other do not stay in step.
        pause = tries.pause * random.uniform(0.8, 1.0)  # noqa: S311
        tries.due = self._journal.monotonic() + (min(pause, wait) if wait else pause)

    async def know_instances(self, those: Iterable[OperationRecord]) -> None:
        """Loads the leases of the instances of these operations; call it before ``is_executing``."""
        at_it = (RUNNING, DONE)
        await self._instances.know(one.instance for one in those if one.state in at_it)

    def is_played(self, one: OperationRecord) -> bool:
        """Whether a live process is executing the operation."""
        if one.id in self._journal.under_way:
            return True
        is_own = self.is_own(one)
        return one.state == RUNNING and not is_own and self._instances.is_alive(one.instance)

    @property
    def has_others(self) -> bool:
        """Whether other processes may use the same database."""
        return not self._store.is_of_one_process

    def is_own(self, one: OperationRecord) -> bool:
        return one.instance == self._journal.instance

    def is_others(self, one: OperationRecord) -> bool:
        """Whether another live process has the operation, or had it last."""
        return not self.is_own(one) and self._instances.is_alive(one.instance)

    def _forget(self, left: set[str]) -> None:
        for id_ in self._tries.keys() - left:
            del self._tries[id_]
        self._settler.forget(left)
        self._journal.forget(left)

    async def _expire(self) -> None:
        if self._journal.monotonic() - self._expired > _EXPIRES_EVERY:
            now = self._journal.clock()
            await self._journal.rows.expire(now - _KEPT_FOR, now - _UNREAD_FOR)
            self._expired = self._journal.monotonic()

    async def _noting(self) -> None:
        """Marks operations as answered as soon as their clients have received the response."""
        while not self._ending.is_set():
            await self._journal.delivery.wait()
            try:
                await self._journal.note_delivered()
            except StoreUnavailable as unavailable:
                log.error("database_unavailable", reason=str(unavailable))
            except Exception as error:  # noqa: BLE001 - without it the next identical request would be a retry
                log.error("delivery_not_recorded", **logs.describe_exception(error))
            else:
                continue
            await self._rest(SWEEP_SECONDS)
            self._journal.delivery.set()  # retry, even if no other response is delivered
