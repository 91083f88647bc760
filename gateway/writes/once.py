"""Each request that writes is carried out once, however often it is sent and whatever breaks.

A request is held against those of its merchant that are still open (contract of the translation,
"Writes whose outcome is unknown"):

- the same request of the same key, first sent within a day and unanswered, is its first try: what
  became of that is found out, and its answer given; only if nothing happened is it sent;
- a write of unknown outcome on the same object is settled first;
- an ``Idempotency-Key`` says which requests are one, for answered ones too.

An identical request joins an open one: running, of unknown outcome, or answered and not delivered. It
gets the same response, or becomes the request if the first one came to nothing.
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
"""Seconds after which a request looks again at what it waits for."""
DELIVERY_NOTED_WITHIN = 1.0
"""Seconds in which the process that has a response on its way says so to others, if it was delivered."""
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
"""The kind of object state that names the operation whose turn it is."""

Say = Callable[[Answer], Awaitable[LegacyResponse]]
Refuse = Callable[[Failure], Awaitable[LegacyResponse]]
Told = tuple[LegacyResponse, OperationRecord | None]
"""What a client is told, and what is over as soon as it has that."""

log = structlog.get_logger()


@frozen_dataclass(frozen=True, slots=True)
class Wanted:
    """A request that writes, as its client sent it."""

    operation: Operation
    asked: Request
    caller: Caller
    idempotency: str | None = None
    problems: Sequence[Problem] = ()
    placing: Sequence[CompareAndSet] = ()
    """Of where its batches are; see ``OperationExecution``."""


def idempotency_key(given: Sequence[str]) -> str | None:
    """The ``Idempotency-Key`` of a request; raises Invalid for one that cannot be compared."""
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
    """What one request has found out about the others so far."""

    until: float
    """When it waits no longer."""
    came_at: tuple[float, float]
    """By both clocks, when the request came."""
    first: OperationRecord | None = None
    """The undertaking that it is a retry of."""
    course: OperationExecution | None = None
    """That, while it was played here."""


class IdempotencyGuard:
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
        """A request waits ``patience`` seconds for an identical one; see ``[writes]`` in the settings."""
        self._joins_running = joins_running
        self._replay_seconds = replay_seconds
        self._reopening: set[asyncio.Task[None]] = set()
        self._journal = journal
        self._player = player
        self._settling = settling
        self._patience = patience
        self._said: WeakKeyDictionary[OperationExecution, LegacyResponse] = WeakKeyDictionary()

    async def answer(self, wanted: Wanted, say: Say, refuse: Refuse) -> Told:
        """What its client is told, and what is over as soon as the client has it.

        That is being delivered until ``undelivered`` is called. Raises DecidedOtherwise.
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
        """What its client is told; None where nothing is left of a first try."""
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
        # Before others can see that it is done: its client has it as good as got.
        self._journal.delivering[course.one.id] = course
        try:
            is_read = wanted.operation.method == "GET"
            # A long one is made again of what its steps were given, unless it may be asked for later.
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
            # It stays as one that is running, and nobody is at it: that is settled as well.
            log.error("database_unavailable", reason=str(unavailable))

    def delivers(self, one: OperationRecord, look: Callable[[], bool]) -> None:
        """Its response is on the way; ``look`` says whether the client's machine has acknowledged it."""
        if not self._replay_seconds:
            self._journal.looks[one.id] = look, self._journal.monotonic()

    def delivered(self, one: OperationRecord) -> None:
        """The client has the answer: the same request again is another one, ``replay_seconds`` later."""
        if self._replay_seconds:
            loop = asyncio.get_running_loop()
            loop.call_later(self._replay_seconds, self._journal.deliver, one)
        else:
            self._journal.deliver(one)

    def reopen(self, one: OperationRecord) -> None:
        """Its connection was reset after all: the client had its response, and has not read it."""
        reopening = asyncio.ensure_future(self._reopen(one))
        self._reopening.add(reopening)
        reopening.add_done_callback(self._reopening.discard)

    async def _reopen(self, one: OperationRecord) -> None:
        try:
            await self._journal.reopen(one)
        except StoreUnavailable as unavailable:
            log.error("database_unavailable", reason=str(unavailable))

    def undelivered(self, one: OperationRecord) -> None:
        """Its answer is on the way no more; the same request again is a retry, unless it came."""
        self._journal.delivering.pop(one.id, None)
        self._journal.looks.pop(one.id, None)

    async def deserted(self, course: OperationExecution) -> None:
        """The client went away before it had the answer."""
        await self._journal.desert(course)

    # Turns of writes on one recipient's payout methods

    async def _take_turn(self, course: OperationExecution, visit: _Visit) -> None:
        """Waits until no other write on the recipient's payout methods is under way, at any process."""
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
        """One that came before it in this process and writes on the same recipient."""
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
        """Whether the turn is this one's: it is free as soon as the operation that had it is over."""
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

    # Which course

    async def _course(self, wanted: Wanted, visit: _Visit, say: Say) -> OperationExecution | Told:
        """The course to play, a new one or that of the first try; or what that one's client got."""
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
        """What it has to mind, what nobody is at first."""
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
            # What was read may have been over by the time that it came: it is looked at once more.
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
        # Where a first try came to nothing, this is the second: others join it.
        course.deserted = visit.first is not None
        try:
            # With others on the same state it is written down at once: they are to see it as well.
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
            # It may be written down all the same: then it is not the first try of anything.
            self._journal.unbegun[course.one.id] = False
            raise
        try:
            # Another instance may have been asked again before it could see this.
            refuse_deserted(wanted.caller)
        except Unknown:
            await course.close(UNDONE)
            raise

    async def _waits_for(self, first: OperationRecord, visit: _Visit) -> Told | None:
        """Waits a little for a first try to end; what its client was told, where that is this one's."""
        if self._journal.monotonic() > visit.until:
            raise Unknown("its first try is still under way", retry_after=ASKS_AGAIN)
        if course := self._journal.under_way.get(first.id):
            visit.course = course
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOKS_AGAIN):
                await (course.ended.wait() if course else asyncio.sleep(LOOKS_AGAIN))
        return self._said_of(course) if course else None

    def _said_of(self, course: OperationExecution) -> Told | None:
        """What another request was told, which was a try of the same."""
        said = self._said.get(course)
        return (_replayed(said), course.one) if said is not None and course.ended.is_set() else None

    async def _ended(self, visit: _Visit, caller: Caller, say: Say) -> Told | None:
        """What became of the first try that this was seen to be a retry of, and is open no more."""
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
        """Settles what is of unknown outcome on its objects; False where there was nothing."""
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
        """Refuses a request of which nothing was sent, because of another on the same object."""
        wait = max(self._settling.seconds_until_sure(row), ASKS_AGAIN)
        return Halted(OTHER_IN_DOUBT, retry_after=wait)

    def _is_resumed(self, row: OperationRecord) -> bool:
        course = self._journal.under_way.get(row.id)
        return course is not None and course.resumed

    def _is_same(
        self, row: OperationRecord, one: OperationRecord, wanted: Wanted, visit: _Visit
    ) -> bool:
        """Whether the request is a retry of ``row``: one that says so, or an identical one while it is open.

        That the first one's connection is open proves nothing: a load balancer may hold it after its
        client has left (contract, section 7).
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
        """Whether another process is about to say if its client has the response or has gone."""
        if self._replay_seconds:
            return False  # it says so much later, and until then the request is a retry
        if self._journal.monotonic() - visit.came_at[0] > DELIVERY_NOTED_WITHIN:
            return False  # its client does not read it, and this one waits for it
        is_joined = self._is_named(row, one) or (visit.first and visit.first.id == row.id)
        if not is_joined and self._journal.is_being_acknowledged(row):
            return True
        is_told = row.deserted or not self._settling.is_others(row)
        return row.state == DONE and not is_joined and not is_told

    def _is_named(self, row: OperationRecord, one: OperationRecord) -> bool:
        """Whether the client says that it is the same."""
        name = one.idempotency
        return name is not None and (row.key_id, row.idempotency) == (one.key_id, name)

    def _is_alike(self, row: OperationRecord, one: OperationRecord, wanted: Wanted) -> bool:
        """Whether it is the same but for what became of it, as far as its client says."""
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
    """Whether both add a payment, and not the same one (contract, section 7: Blocking)."""
    are_adds = row.operation == one.operation == "create_payment"
    return are_adds and row.fingerprint not in (one.fingerprint, one.unimported)


def _may_change(failure: Failure) -> bool:
    """Whether a refusal need not be the response to the same request later on.

    A status changes, and what failed or was too much here need not be so the next time.
    """
    problems = getattr(failure, "problems", ())
    return isinstance(failure, Halted) or any(one.code == "invalid_status" for one in problems)


def _replayed(said: LegacyResponse) -> LegacyResponse:
    return replace(said, headers={**said.headers, "Idempotent-Replayed": "true"})


def refuse_deserted(caller: Caller) -> None:
    """Nothing is begun for a client that has gone: it may have asked again, and been answered."""
    if caller.is_gone:
        raise Unknown("its client went away before anything of it was begun")


async def _kept_of(first: OperationRecord, caller: Caller, say: Say) -> LegacyResponse | None:
    """What its client is to be told, where that is kept; raises Unknown where it cannot be played here."""
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
