"""Executes each request that writes once, however often the client sends it and whatever fails.

A request is compared with the open operations of its merchant (contract of the translation, "Writes
whose outcome is unknown"):

- an identical request of the same API key, first sent within a day and not answered, is the first
  attempt: its outcome is determined and its response returned; the request is sent to the service
  only if the first attempt was not executed;
- a write in doubt on the same object is reconciled first;
- requests with the same ``Idempotency-Key`` are one request, also after it was answered.

An identical request joins an open operation: one that is running, in doubt, or done and not
delivered. It gets the same response, or takes its place if the first one was not executed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from weakref import WeakKeyDictionary

import structlog

from gateway.http.responses import LegacyResponse
from gateway.payloads import stored_json
from gateway.payloads.worker_thread import run_in_thread, run_in_thread_if
from gateway.storage import StoreUnavailable
from gateway.storage.undertakings import (
    ANSWERED,
    DONE,
    PASSED_ON,
    RUNNING,
    UNDONE,
    UNSETTLED,
    AlreadyBegun,
    OperationRecord,
    Overtaken,
)
from gateway.writes import endings
from gateway.writes.batch_routing import DecidedOtherwise
from gateway.writes.journal import Journal, OperationExecution
from gateway.writes.player import ASKS_AGAIN, Caller, Player
from gateway.writes.settling import Settling
from mappings.effects import Answer, CompareAndSet, Operation, Request
from mappings.errors import OTHER_IN_DOUBT
from mappings.failures import Conflict, Failure, Halted, Invalid, Problem, Unknown
from mappings.frozen import frozen_dataclass

A_DAY = timedelta(hours=24)
LOOKS_AGAIN = 0.2
"""Seconds between two looks at an operation that a request waits for."""
DELIVERY_NOTED_WITHIN = 1.0
"""Seconds within which the process that sends a response records for others that it was delivered."""
_LONGEST_KEY = 255

OTHER_BODY = Problem(
    "invalid_field", "This Idempotency-Key was used with another request.", "Idempotency-Key"
)
ODD_KEY = Problem(
    "invalid_field",
    f"An Idempotency-Key is 1 to {_LONGEST_KEY} visible characters, and given once.",
    "Idempotency-Key",
)

PAYOUT_BUSY = Problem(
    "internal_server_error",
    "Another change of this recipient's payout methods is under way; nothing was done. "
    "Try again later.",
)

TAKE_TURNS = frozenset({"create_payout_method", "update_payout_method", "update_recipient"})
"""Operations that may read and then write one recipient's accounts."""

_TURN = "payout turn"
"""The kind of object state that holds the lock on a recipient: the id of the operation."""

Say = Callable[[Answer], Awaitable[LegacyResponse]]
Refuse = Callable[[Failure], Awaitable[LegacyResponse]]
Told = tuple[LegacyResponse, OperationRecord | None]
"""A response, and the operation that is closed as soon as its client has received it."""

log = structlog.get_logger()


@frozen_dataclass(frozen=True, slots=True)
class Wanted:
    """A request that writes, as the client sent it."""

    operation: Operation
    asked: Request
    caller: Caller
    idempotency: str | None = None
    problems: Sequence[Problem] = ()
    placing: Sequence[CompareAndSet] = ()
    """Marks and checks of the service that owns its batches; see ``OperationExecution``."""


def idempotency_key(given: Sequence[str]) -> str | None:
    """Parses the ``Idempotency-Key`` of a request; raises Invalid if it is not a valid key."""
    if not given:
        return None
    key = given[0].strip()
    if (
        len(given) > 1
        or not 0 < len(key) <= _LONGEST_KEY
        or not (key.isascii() and key.isprintable())
    ):
        raise Invalid(ODD_KEY)
    return key


@dataclass(slots=True)
class _Visit:
    """How long a request waits for other operations, and the first attempt it belongs to."""

    until: float
    """By the monotonic clock."""
    came_at: tuple[float, float]
    """When the request was received, by the monotonic and the wall clock."""
    first: OperationRecord | None = None
    """The operation of which the request is a retry."""
    course: OperationExecution | None = None
    """The execution of the first attempt, if it runs in this process."""


class IdempotencyGuard:
    """Decides whether a request is new, a retry, or must wait, and executes it once."""

    def __init__(
        self,
        journal: Journal,
        player: Player,
        settling: Settling,
        patience: float,
        *,
        joins_running: bool = True,
        replay_seconds: float = 0,
    ) -> None:
        """A request waits ``wait_seconds`` for an identical one; see ``[writes]`` in the settings."""
        self._joins_running = joins_running
        self._replay_seconds = replay_seconds
        self._reopening: set[asyncio.Task[None]] = set()
        self._journal = journal
        self._player = player
        self._settling = settling
        self._patience = patience
        self._said: WeakKeyDictionary[OperationExecution, LegacyResponse] = WeakKeyDictionary()

    async def answer(self, wanted: Wanted, say: Say, refuse: Refuse) -> Told:
        """Returns the response, and the operation that is closed once the client has received it.

        The operation counts as being delivered until ``stop_delivery`` is called. Raises
        BatchRoutedElsewhereError, or a Failure.
        """
        monotonic, wall = self._journal.clocks()
        began, now = wanted.caller.began, asyncio.get_running_loop().time()
        waited = 0.0 if began is None else now - began
        visit = _Visit(monotonic + self._patience, (monotonic - waited, wall - waited))
        try:
            while True:
                course = await self._course(wanted, visit, say)
                if not isinstance(course, OperationExecution):
                    return course
                try:
                    await self._take_turn(course, visit)
                    said = await self._played(course, wanted, say, refuse)
                except StoreUnavailable as unavailable:
                    if not course.writes:
                        raise
                    log.error("database_unavailable", reason=str(unavailable))
                    raise Unknown("the state cannot be used") from None
                finally:
                    self._journal.leave(course)
                if said is not None:
                    return said, course.one if course.begun else None
                visit.first = course.one
        except Overtaken:
            raise Unknown("another process goes on with it") from None

    async def _played(
        self, course: OperationExecution, wanted: Wanted, say: Say, refuse: Refuse
    ) -> LegacyResponse | None:
        """The response; None if a resumed first attempt turned out not to have been executed."""
        name = self._journal.name(wanted.idempotency)
        wanted.caller.course, is_named = course, (name or course.one.idempotency) is not None
        course.deserted = course.deserted or wanted.caller.is_gone
        try:
            flow = wanted.operation.flow(course.request)
            answer = await self._player.play(flow, wanted.caller, wanted.problems, course)
        except Unknown as unknown:
            await self._leave(course, unknown)
            raise
        except DecidedOtherwise:
            await course.close(UNDONE)
            raise
        except Failure as failure:
            if course.is_unread(failure) and (course.has_happened or course.resumed):
                unread = Unknown("it happened, and what follows could not be read")
                await self._leave(course, unread)
                raise unread from None
            if course.resumed:
                await course.close(UNDONE)
                return None
            said = await refuse(failure)
            lasts = is_named and said.status in (404, 406) and not _may_change(failure)
            kept = await run_in_thread_if(said.is_long, endings.told, said) if lasts else None
            await course.close(ANSWERED if lasts else UNDONE, kept)
            return said
        said = self._said[course] = await say(answer)
        # Registered before others can see that it is done: its response is as good as delivered.
        self._journal.delivering[course.one.id] = course
        try:
            is_read = wanted.operation.method == "GET"
            # A long response is rebuilt from the steps instead, unless an Idempotency-Key may ask for it.
            is_kept = not is_read and (is_named or not said.is_long)
            kept = await run_in_thread_if(said.is_long, endings.told, said) if is_kept else None
            await course.finish(kept, name)
        except BaseException:
            self.undelivered(course.one)
            raise
        return said

    async def _leave(self, course: OperationExecution, unknown: Unknown) -> None:
        try:
            await course.leave(str(unknown))
        except StoreUnavailable as unavailable:
            # It stays in the state running with no process executing it; the sweep reconciles that too.
            log.error("database_unavailable", reason=str(unavailable))

    def delivers(self, one: OperationRecord, look: Callable[[], bool]) -> None:
        """Notes that the response is sent; ``is_acknowledged`` says whether the client's TCP acknowledged it."""
        if not self._replay_seconds:
            self._journal.looks[one.id] = look, self._journal.monotonic()

    def delivered(self, one: OperationRecord) -> None:
        """Notes that the client has the response: after ``replay_seconds`` an identical request is new."""
        if self._replay_seconds:
            loop = asyncio.get_running_loop()
            loop.call_later(self._replay_seconds, self._journal.deliver, one)
        else:
            self._journal.deliver(one)

    def reopen(self, one: OperationRecord) -> None:
        """Reopens an operation whose connection was reset: the client may not have read the response."""
        reopening = asyncio.ensure_future(self._reopen(one))
        self._reopening.add(reopening)
        reopening.add_done_callback(self._reopening.discard)

    async def _reopen(self, one: OperationRecord) -> None:
        try:
            await self._journal.reopen(one)
        except StoreUnavailable as unavailable:
            log.error("database_unavailable", reason=str(unavailable))

    def undelivered(self, one: OperationRecord) -> None:
        """Ends a delivery; an identical request is a retry unless the delivery was recorded."""
        self._journal.delivering.pop(one.id, None)
        self._journal.looks.pop(one.id, None)

    async def deserted(self, course: OperationExecution) -> None:
        """Notes that the client disconnected before it had the response."""
        await self._journal.desert(course)

    # Lock of a recipient's payout methods

    async def _take_turn(self, course: OperationExecution, visit: _Visit) -> None:
        """Waits until no process executes another write on the recipient's payout methods."""
        recipient = course.request.ids.get("id")
        if course.resumed or course.operation.name not in TAKE_TURNS or recipient is None:
            return
        try:
            while other := self._before(course):
                await self._wait_in_turn(visit, other.ended)
            while self._settling.has_others and not await self._holds_turn(course, recipient):
                await self._wait_in_turn(visit)
        except Failure:
            await course.close(UNDONE)
            raise

    def _before(self, course: OperationExecution) -> OperationExecution | None:
        """An earlier execution in this process that writes to the same recipient."""
        for other in self._journal.under_way.values():
            if other is course:
                return None
            is_alike = other.operation.name in TAKE_TURNS and other.one.owner == course.one.owner
            if is_alike and set(other.one.subjects) & set(course.one.subjects):
                return other
        return None

    async def _wait_in_turn(self, visit: _Visit, ended: asyncio.Event | None = None) -> None:
        if self._journal.monotonic() > visit.until:
            raise Halted(PAYOUT_BUSY, retry_after=ASKS_AGAIN)
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOKS_AGAIN):
                await (ended.wait() if ended else asyncio.sleep(LOOKS_AGAIN / 4))

    async def _holds_turn(self, course: OperationExecution, recipient: str) -> bool:
        """Tries to take the lock, which is free as soon as the operation that holds it is closed."""
        one, ledger = course.one, self._journal.ledger
        holder = (await ledger.recall(one.owner, _TURN, recipient)).get("holder")
        if holder is not None:
            row = await self._journal.rows.read(str(holder))
            if row is not None and row.state in (RUNNING, UNSETTLED):
                if not self._settling.is_played(row) and not await self._settling.settle(row):
                    raise self._in_doubt(row)
                return False
        mine = CompareAndSet(_TURN, recipient, {"holder": one.id}, expected={"holder": holder})
        try:
            await ledger.record_all(one.owner, [mine])
        except Conflict:
            return False
        return True

    # Retry or new operation

    async def _course(self, wanted: Wanted, visit: _Visit, say: Say) -> OperationExecution | Told:
        """The execution to run, new or resumed; or the response of a first attempt that has one."""
        caller = wanted.caller
        undertaking = partial(
            self._journal.undertaking,
            caller.key,
            wanted.operation,
            wanted.asked,
            caller.request_id,
            wanted.idempotency,
        )
        one = await run_in_thread(undertaking) if caller.is_long else undertaking()
        while True:
            rows = await self._rows(one)
            first = next((row for row in rows if self._is_same(row, one, wanted, visit)), None)
            if first is None:
                if told := await self._ended(visit, wanted.caller, say):
                    return told
                if not await self._settles(one, rows, visit) and (
                    course := await self._new(one, wanted, visit, rows)
                ):
                    return course
                continue
            if not one.asks_for_the_same(first):
                raise Invalid(OTHER_BODY)
            if self._is_being_delivered(first, one, visit):
                await self._waits_for(first, _Visit(visit.until, visit.came_at))
                continue
            if said := await _kept_of(first, wanted.caller, say):
                return _replayed(said), first
            visit.first = first
            if not self._settling.is_played(first) and (
                course := await self._settling.take(first, wanted.operation)
            ):
                course.came_at = visit.came_at
                return course
            if told := await self._waits_for(first, visit):
                return told

    async def _rows(self, one: OperationRecord) -> list[OperationRecord]:
        """Related operations, those first that no process is executing."""
        nobodys: set[str] = set()
        if self._reopening:
            await asyncio.gather(*self._reopening)
        while True:
            rows = await self._journal.rows.open_ones(one)
            await self._settling.know_instances(rows)
            own = filter(self._settling.is_own, rows)
            left = {row.id for row in own if not self._journal.is_known(row)}
            if left <= nobodys:
                break
            # A row may have been closed while it was read, so it is read once more.
            nobodys = left
        return sorted(rows, key=self._settling.is_played) + self._journal.unseen(one, rows)

    async def _new(
        self, one: OperationRecord, wanted: Wanted, visit: _Visit, rows: list[OperationRecord]
    ) -> OperationExecution | None:
        refuse_deserted(wanted.caller)
        course = self._journal.course(one, wanted.operation, wanted.asked)
        course.placing, course.came_at = wanted.placing, visit.came_at
        may_be_begun = self._joins_running and self._settling.has_others
        if may_be_begun and wanted.operation.method != "GET":
            course.not_first = frozenset(row.id for row in rows)
        # If the first attempt was not executed, this is the second, and other retries join it.
        course.deserted = visit.first is not None
        try:
            # With several processes the start is saved at once, so that the others see it.
            if wanted.idempotency or self._settling.has_others:
                await self._begin(course, wanted)
        except BaseException as error:
            self._journal.leave(course)
            if isinstance(error, AlreadyBegun):
                return None
            raise
        return course

    async def _begin(self, course: OperationExecution, wanted: Wanted) -> None:
        try:
            await course.begin()
        except StoreUnavailable:
            # The start may have been saved despite the error; nobody may take it for a first attempt.
            self._journal.unbegun[course.one.id] = False
            raise
        try:
            # The client may have retried at another instance before that could see this operation.
            refuse_deserted(wanted.caller)
        except Unknown:
            await course.close(UNDONE)
            raise

    async def _waits_for(self, first: OperationRecord, visit: _Visit) -> Told | None:
        """Waits briefly for a first attempt to end, and returns its response if it has one."""
        if self._journal.monotonic() > visit.until:
            raise Unknown("its first try is still under way", retry_after=ASKS_AGAIN)
        if course := self._journal.under_way.get(first.id):
            visit.course = course
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOKS_AGAIN):
                await (course.ended.wait() if course else asyncio.sleep(LOOKS_AGAIN))
        return self._said_of(course) if course else None

    def _said_of(self, course: OperationExecution) -> Told | None:
        """The response of another attempt of the same request."""
        said = self._said.get(course)
        return (_replayed(said), course.one) if said is not None and course.ended.is_set() else None

    async def _ended(self, visit: _Visit, caller: Caller, say: Say) -> Told | None:
        """The response of a first attempt that is no longer open; raises Unknown if it is gone."""
        if visit.first is None:
            return None
        if visit.course and (told := self._said_of(visit.course)):
            return told
        row = await self._journal.rows.read(visit.first.id)
        if row is not None and row.state in (DONE, ANSWERED):
            if said := await _kept_of(row, caller, say):
                return _replayed(said), row
            raise Unknown("the same request, sent at the same time, was answered")
        return None

    async def _settles(
        self, one: OperationRecord, rows: list[OperationRecord], visit: _Visit
    ) -> bool:
        """Reconciles an operation in doubt on the same objects; False if there is none."""
        for row in rows:
            if row.state == DONE or not set(row.subjects) & set(one.subjects):
                continue
            if _goes_on_beside(row, one):
                continue
            if not self._settling.is_played(row):
                if not await self._settling.settle(row):
                    raise self._in_doubt(row)
                return True
            if row.state != RUNNING or row.turn or self._is_resumed(row):
                if self._journal.monotonic() > visit.until:
                    raise self._in_doubt(row)
                await self._waits_for(row, _Visit(visit.until, visit.came_at))
                return True
        return False

    def _in_doubt(self, row: OperationRecord) -> Halted:
        """Refuses a request, before anything is sent, because of another on the same object."""
        wait = max(self._settling.seconds_until_sure(row), ASKS_AGAIN)
        return Halted(OTHER_IN_DOUBT, retry_after=wait)

    def _is_resumed(self, row: OperationRecord) -> bool:
        course = self._journal.under_way.get(row.id)
        return course is not None and course.resumed

    def _is_same(
        self, row: OperationRecord, one: OperationRecord, wanted: Wanted, visit: _Visit
    ) -> bool:
        """Whether the request is a retry of ``row``: by its Idempotency-Key, or identical and open.

        An open connection of the first attempt proves nothing: a load balancer may hold it after
        the client has left (contract, section 7).
        """
        if self._is_named(row, one):
            return True
        if not self._is_alike(row, one, wanted):
            return False
        if self._joins_running or (visit.first and visit.first.id == row.id):
            return True
        is_running = row.state == RUNNING and not row.turn and self._settling.is_played(row)
        return not is_running or self._journal.is_away(row) or self._is_resumed(row)

    def _is_being_delivered(
        self, row: OperationRecord, one: OperationRecord, visit: _Visit
    ) -> bool:
        """Whether another process is about to record that the response was delivered, or was not."""
        if self._replay_seconds:
            return False  # deliveries are recorded late then; until then the request is a retry
        if self._journal.monotonic() - visit.came_at[0] > DELIVERY_NOTED_WITHIN:
            return False  # the first client does not read its response; this one waits
        is_joined = self._is_named(row, one) or (visit.first and visit.first.id == row.id)
        if not is_joined and self._journal.is_being_acknowledged(row):
            return True
        is_told = row.deserted or not self._settling.is_others(row)
        return row.state == DONE and not is_joined and not is_told

    def _is_named(self, row: OperationRecord, one: OperationRecord) -> bool:
        """Whether both have the same Idempotency-Key, from the same API key."""
        name = one.idempotency
        return name is not None and (row.key_id, row.idempotency) == (one.key_id, name)

    def _is_alike(self, row: OperationRecord, one: OperationRecord, wanted: Wanted) -> bool:
        """Whether the requests are identical, and the first is open and not yet delivered."""
        return (
            wanted.operation.method != "GET"
            and one.asks_for_the_same(row)
            and None in (row.idempotency, one.idempotency)
            and row.began_at >= one.began_at - A_DAY
            and row.is_open
            and not self._journal.is_delivered(row)
            and row.id not in self._journal.unbegun
        )


def _goes_on_beside(row: OperationRecord, one: OperationRecord) -> bool:
    """Whether both add a payment, and different ones (contract, section 7: Blocking)."""
    are_adds = row.operation == one.operation == "create_payment"
    return are_adds and row.fingerprint not in (one.fingerprint, one.unimported)


def _may_change(failure: Failure) -> bool:
    """Whether a refusal may be another one later, so that it is not stored for the key.

    The status of an object changes, and a failure or limit of the gateway passes.
    """
    problems = getattr(failure, "problems", ())
    return isinstance(failure, Halted) or any(one.code == "invalid_status" for one in problems)


def _replayed(said: LegacyResponse) -> LegacyResponse:
    return replace(said, headers={**said.headers, "Idempotent-Replayed": "true"})


def refuse_deserted(caller: Caller) -> None:
    """Raises Unknown if the client has disconnected: it may have retried and been answered already."""
    if caller.is_gone:
        raise Unknown("its client went away before anything of it was begun")


async def _kept_of(first: OperationRecord, caller: Caller, say: Say) -> LegacyResponse | None:
    """The stored response of a first attempt, if any; raises Unknown if the legacy service had it."""
    if first.answer is not None and first.state in (DONE, ANSWERED):
        is_long = stored_json.is_long(first.answer)
        kept = await run_in_thread_if(is_long, endings.read, first.answer)
        if isinstance(kept, LegacyResponse):
            return kept
        caller.is_long = caller.is_long or is_long
        return await say(kept)
    if first.operation.startswith(PASSED_ON):
        raise Unknown("its first try went to the legacy service")
    return None
