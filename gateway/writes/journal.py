"""The journal of operations that this process executes, a write-ahead log of their steps.

The results of a flow's steps are held in memory and saved at checkpoints: before a write leaves, and
together with each change of object state. If the process is killed, it is therefore known which
writes were sent, and the flow can be replayed up to that point without sending anything twice.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeGuard

from gateway.auth.keys import ApiKey
from gateway.payloads import json_codec, stored_json
from gateway.payloads.compressed_buffer import CompressedBuffer
from gateway.payloads.stored_json import Text
from gateway.payloads.worker_thread import run_in_thread, run_in_thread_if
from gateway.storage import Ledger, Store, StoreUnavailable
from gateway.storage.keyed_hmac import KeyedHmac
from gateway.storage.ledger import has_find
from gateway.storage.undertakings import (
    ANSWERED,
    DID_NOT,
    DONE,
    HAPPENED,
    MAY_EXIST,
    NO_PATH,
    REFUSED,
    SENT,
    UNDONE,
    UNSENT,
    UNSETTLED,
    AlreadyClaimed,
    BeingChecked,
    Frozen,
    OperationRecord,
    OperationRepository,
    Point,
    Write,
)
from gateway.upstream.clock import ServiceClock
from gateway.writes import steps
from gateway.writes.batch_routing import BEGUN, DecidedOtherwise
from gateway.writes.instances import GONE_SECONDS
from mappings import errors
from mappings.current import ID_PATTERN
from mappings.effects import (
    JSON,
    Absent,
    Call,
    CompareAndSet,
    Confirmed,
    LegacyOptions,
    LoadFacts,
    MayExist,
    Operation,
    Request,
    Step,
)
from mappings.failures import (
    Conflict,
    Failure,
    Halted,
    NoSuchOperation,
    Refused,
    Unknown,
    Unreachable,
)
from mappings.ids import replace_ids

START_WITHIN = 25.0
"""Seconds after its request was received within which a start is sent (contract, section 7)."""


ACKNOWLEDGED_WITHIN = 0.25
"""Seconds to wait for a TCP acknowledgement, which Linux delays by 40 to 200 ms."""


def _new_id() -> str:
    return os.urandom(16).hex()


class Journal:
    """The operations of this process; one object for each process.

    ``instance`` identifies the process among those that share the database.
    """

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        clock: ServiceClock,
        gone_seconds: float = GONE_SECONDS,
        new_id: Callable[[], str] = _new_id,
    ) -> None:
        self.ledger = ledger
        self.rows = OperationRepository(store, ledger, self._may_be_sending)
        self.new_id = new_id
        self.instance = new_id()
        self.under_way: dict[str, OperationExecution] = {}
        """By operation id, the executions that run or are about to; nothing else here takes these over."""
        self.delivering: dict[str, OperationExecution] = {}
        """By operation id, the executions whose responses are being sent to their clients."""
        self.unsaved: dict[str, OperationExecution] = {}
        """Executions that could not save their last outcome, which only this process knows."""
        self.unbegun: dict[str, bool] = {}
        """Operations whose start failed with a database error and may be saved all the same; nothing
        of them was sent. The value says whether one was once seen not to be open, which may have
        been before its commit."""
        self.late_after = gone_seconds / 2
        """Seconds after the last fence check for which a write may be sent without another check."""
        self.clock = store.clock
        self._stamps = clock
        self.monotonic = clock.monotonic
        self.looks: dict[str, tuple[Callable[[], bool], float]] = {}
        """By operation id, a check whether the response was acknowledged, and when it was written."""
        self.delivered: dict[str, None] = {}
        """Operations whose clients have the response, until that is saved."""
        self.deserted: dict[str, None] = {}
        """Operations whose clients have disconnected, until that is saved: other instances wait for it."""
        self.delivery = asyncio.Event()
        self._keyed = KeyedHmac(store.encryption.lasting("journal"))

    def undertaking(
        self,
        key: ApiKey,
        operation: Operation,
        asked: Request,
        request_id: str,
        idempotency: str | None = None,
    ) -> OperationRecord:
        """Builds the record that a request gets if it is not a retry; nothing is saved yet.

        ``request_id`` is the one in the log and in the response; ``request.seed`` is secret.
        """
        ids, body = asked.ids, asked.body
        about = [*ids.values(), *_named_in(body)]
        fingerprint = self._digest([operation.name, dict(ids), body])
        unimported = fingerprint
        if names := asked.imported_ids:
            ids = {name: names.get(id_, id_) for name, id_ in ids.items()}
            body = replace_ids(operation.body_shape, body, names)
            about += [*ids.values(), *_named_in(body)]
            unimported = self._digest([operation.name, ids, body])
        return OperationRecord(
            id=self.new_id(),
            owner=key.tenant,
            key_id=key.id,
            key_name=key.name,
            operation=operation.name,
            request_id=request_id,
            fingerprint=fingerprint,
            unimported=unimported,
            began_at=asked.now,
            idempotency=self.name(idempotency),
            instance=self.instance,
            subjects=tuple(dict.fromkeys(filter(_may_be_id, about))),
        )

    def name(self, idempotency: str | None) -> str | None:
        """The keyed digest under which an Idempotency-Key is stored."""
        return None if idempotency is None else self._digest(["key", idempotency])

    def course(
        self, one: OperationRecord, operation: Operation, asked: Request
    ) -> OperationExecution:
        """Starts the execution of a new operation."""
        course = OperationExecution(self, one, operation, asked, came_at=self.clocks())
        self.under_way[one.id] = course
        return course

    async def take(self, one: OperationRecord, operation: Operation) -> OperationExecution | None:
        """Takes over an interrupted operation; None if another request or process has it."""
        if one.id in self.under_way:
            return None
        unread = Request(one.began_at, "")
        course = OperationExecution(self, one, operation, unread, begun=True, resumed=True)
        # Registered before the first await: two requests here must not take it from each other.
        self.under_way[one.id] = course
        taken: OperationRecord | None = None
        try:
            if asked := await self.rows.asked_of(one):
                course.request = await run_in_thread_if(stored_json.is_long(asked), _request, asked)
                course.has_pieces = isinstance(asked, CompressedBuffer)
                taken = await self.rows.take(one, self.instance)
            if taken is not None:
                course.one = taken
                await self._recall(course, one.turn)
        except BaseException:
            self.leave(course)
            raise
        if taken is None:
            self.leave(course)
            return None
        return course

    def leave(self, course: OperationExecution) -> None:
        """Ends an execution in this process."""
        if self.under_way.get(course.one.id) is course:
            del self.under_way[course.one.id]
        course.ended.set()

    async def _recall(self, course: OperationExecution, turn: int) -> None:
        """Loads the step results and the writes of an operation."""
        for text in await self.rows.given(course.one):
            course.recorded += await run_in_thread_if(stored_json.is_long(text), steps.read, text)
            course.has_pieces = course.has_pieces or isinstance(text, CompressedBuffer)
        course.keep_recorded()
        its = (await self.rows.writes_of(course.one.id))[course.one.id]
        course.writes = {write.number: write for write in its}
        if (before := self.unsaved.pop(course.one.id, None)) and before.one.turn == turn:
            await run_in_thread_if(before.is_long, course.go_on_from, before)

    def _may_be_sending(self, undertaking: str, instance: str) -> bool:
        """Whether a write may be in flight; true for every running operation of another instance."""
        if instance != self.instance:
            return True
        course = self.under_way.get(undertaking)
        return course is not None and course.is_sending

    def is_away(self, one: OperationRecord) -> bool:
        """Whether the client is known to have disconnected."""
        course = self.under_way.get(one.id) or self.delivering.get(one.id)
        return one.deserted or (course is not None and course.deserted)

    def is_known(self, one: OperationRecord) -> bool:
        """Whether this process executes the operation, or has delivered or is delivering its response."""
        return any(one.id in those for those in (self.under_way, self.delivering, self.delivered))

    def stamp(self, environment: str) -> datetime:
        """The current time by the service's clock, with which a call that leaves now is stamped."""
        return datetime.fromtimestamp(self._stamps.wall() + self._stamps.offset(environment), UTC)

    def clocks(self) -> tuple[float, float]:
        """The monotonic clock and the wall clock of this machine, in seconds."""
        return self.monotonic(), self._stamps.wall()

    def forget(self, left: set[str]) -> None:
        """Drops the entries of operations that are no longer open."""
        for id_ in self.unsaved.keys() - left:
            del self.unsaved[id_]
        self.unbegun = {
            id_: id_ not in left
            for id_, was_gone in self.unbegun.items()
            if id_ in left or not was_gone
        }

    def unseen(
        self, one: OperationRecord, rows: Sequence[OperationRecord]
    ) -> list[OperationRecord]:
        """Identical requests that run in this process and are not among the rows, because they were
        not saved yet when the rows were read.
        """
        seen = {row.id for row in rows}
        return [
            course.one
            for course in self.under_way.values()
            if course.one.id not in seen and one.asks_for_the_same(course.one)
        ]

    def is_delivered(self, one: OperationRecord) -> bool:
        """Whether the client has the response, also if the delivery is not recorded yet."""
        if one.id in self.delivered:
            return True
        look, _ = self.looks.get(one.id, (None, 0.0))
        return look is not None and look()

    def is_being_acknowledged(self, one: OperationRecord) -> bool:
        """Whether the response was written so recently that its acknowledgement may be delayed."""
        _, written_at = self.looks.get(one.id, (None, -math.inf))
        return self.monotonic() - written_at < ACKNOWLEDGED_WITHIN

    def deliver(self, one: OperationRecord) -> None:
        """Notes that the client has the response; it is saved soon after."""
        self.delivered[one.id] = None
        self.delivery.set()

    async def note_delivered(self) -> None:
        self.delivery.clear()
        while ids := list(self.delivered):
            await self.rows.answered(ids)
            for id_ in ids:
                self.delivered.pop(id_, None)

    async def reopen(self, one: OperationRecord) -> None:
        """Reopens an operation: the reset of the connection says that the client has not read the response."""
        self.delivered.pop(one.id, None)
        await self.rows.reopen(one.id)

    async def desert(self, course: OperationExecution) -> None:
        """Notes that the client disconnected: an identical request is then a retry."""
        course.deserted = True
        if course.begun:
            self.deserted[course.one.id] = None
            await self.note_deserted()

    async def note_deserted(self) -> None:
        for id_ in list(self.deserted):
            await self.rows.desert(id_)
            self.deserted.pop(id_, None)

    def alike(self, call: Call) -> str:
        known_by = call.body if call.match_fields is None else call.match_fields
        return self._digest([call.method, call.path, known_by])

    def _digest(self, what: JSON) -> str:
        return self._keyed.hexdigest_of(json_codec.iterdumps_canonical(what))


@dataclass(slots=True, eq=False, weakref_slot=True)
class OperationExecution:
    """An operation that this process executes, with its unsaved steps, changes and outcomes."""

    journal: Journal
    one: OperationRecord
    operation: Operation
    request: Request
    begun: bool = False
    """Whether the operation is in the database; it is inserted with its first change."""
    attended: bool = True
    """Whether a client is waiting for the response."""
    recorded: list[tuple[str, steps.Outcome]] = field(default_factory=list)
    writes: dict[int, Write] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    resumed: bool = False
    not_first: frozenset[str] | None = None
    """Open operations of which this is known not to be a retry; any other identical one takes precedence."""
    came_at: tuple[float, float] = (0.0, 0.0)
    """When the waiting request was received, by the monotonic and the wall clock."""
    deserted: bool = False
    """Whether an identical request is a retry: the client disconnected, or this is a retry itself."""
    is_sending: bool = False
    """Whether a write is in flight, or its outcome is not saved yet."""
    fenced_at: tuple[float, float] = (0.0, 0.0)
    """When the fence was last known to be held, by both clocks; never later than it really was."""
    in_doubt: CompareAndSet | None = None
    """The object state to set while the last write is in doubt."""
    unread: list[Failure] = field(default_factory=list)
    """Reads since the last checkpoint that failed and may succeed later."""
    placing: Sequence[CompareAndSet] = ()
    """Marks and checks of the service that owns its batches, saved with its first change; a conflict
    raises BatchRoutedElsewhereError."""
    names: dict[str, str] = field(default_factory=dict)
    """New aliases in the response, legacy id to current id; saved when the operation is finished."""
    has_pieces: bool = False
    """Whether any of its stored texts may be in chunks."""
    _waiting: list[CompareAndSet] = field(default_factory=list)
    """Changes of object state to save with the next checkpoint."""
    _position: int = 0
    _kept: int = 0
    """Number of saved steps."""
    _change: int = 0
    """Number of unsaved steps up to the last that changed something."""
    _since: list[tuple[Step | str, steps.Outcome]] = field(default_factory=list)
    """Steps since the last checkpoint; their fingerprints are computed when they are saved."""
    _settled: list[Write] = field(default_factory=list)

    # Steps

    @property
    def replays(self) -> bool:
        return self._position < len(self.recorded)

    def replayed(self, step: Step) -> steps.Outcome:
        """The recorded result of the step; raises Unknown if another step was recorded."""
        its, outcome = self.recorded[self._position]
        if its != steps.mark(step):
            raise Unknown("the program has changed since: it would go on differently")
        self._position += 1
        return outcome

    def note(self, step: Step, outcome: steps.Outcome) -> None:
        # The fingerprint replaces a query for very many recipients, whose ids would fill memory.
        noted = steps.mark(step) if isinstance(step, LoadFacts) and step.ids else step
        self._since.append((noted, outcome))
        self._position += 1

    @property
    def is_long(self) -> bool:
        """Whether a checkpoint takes so long that it is encoded in a worker thread."""
        return json_codec.has_rows(self.request.body) or any(
            json_codec.has_rows(outcome) or steps.is_long(step) for step, outcome in self._since
        )

    @property
    def entered(self) -> Write | None:
        """The recorded write at the current step, if there is one."""
        return self.writes.get(self._position)

    @property
    def unanswered(self) -> Write | None:
        """The write in doubt: at most one, the last."""
        return next((write for write in self.writes.values() if write.state == SENT), None)

    @property
    def is_untouched(self) -> bool:
        """Whether the operation has changed nothing yet; only then can it still be refused."""
        return not (self.writes or self.resumed or self._kept)

    def keep_recorded(self) -> None:
        self._kept = len(self.recorded)

    def go_on_from(self, before: OperationExecution) -> None:
        """Takes over the steps that an earlier execution in this process could not save."""
        if before._kept != self._kept:  # they were saved despite the error
            return
        self._since, self._settled = before._since, before._settled
        self._change, self._waiting = before._change, before._waiting
        if self._settled and self._settled[-1].state == HAPPENED:
            # That outcome comes from reads, so it is read again: another write may have claimed
            # the object since.
            self._settled.pop()
            self._since.pop()
            self._change = min(self._change, len(self._since))
        self.recorded += steps.marked(self._since)
        self.writes |= {write.number: write for write in self._settled}

    def is_unread(self, failure: Failure) -> bool:
        """Whether the failure comes from a read that may succeed later."""
        return any(failure is one for one in self.unread)

    # Checkpoints

    async def enter(self, call: Call, stamped: datetime | None = None) -> None:
        """Saves a write before it leaves. The timestamp of a signed request may be ahead of our clock."""
        journal = self.journal
        alike = await run_in_thread_if(self.is_long or steps.is_long(call), journal.alike, call)
        now = self.journal.stamp(self.one.owner.environment)
        now = max(now, stamped or now)
        write = Write(self._position, call.method, call.path, alike, now)
        self.is_sending = True
        # A write that needs its client counts as a first change, even if it is a later step.
        minds = self._minds(call.only_while_client_waits or not self.writes)
        await self._keep(enters=write, records=[*self._places, *_guard(call)], **minds)
        self.writes[write.number] = write

    @property
    def is_fenced(self) -> bool:
        """Whether no other process can have taken over the operation since the last check.

        By both clocks: while a machine is suspended, one of them usually stops.
        """
        both = zip(self.journal.clocks(), self.fenced_at, strict=True)
        return all(abs(now - then) < self.journal.late_after for now, then in both)

    @property
    def is_in_time(self) -> bool:
        """Whether a start may still be sent, which is for ``START_DEADLINE_SECONDS`` after its request."""
        both = zip(self.journal.clocks(), self.came_at, strict=True)
        return all(abs(now - then) < START_WITHIN for now, then in both)

    async def fence(self) -> None:
        """Checks before a write leaves that this process still owns it; raises OwnershipLostError.

        If the process was paused after it had recorded the write, another may have taken the
        operation over and concluded that the write was not executed.
        """
        await self._keep(sends=True)

    async def record(self, step: CompareAndSet) -> None:
        """Changes object state, and records the step in the same commit.

        A change that cannot conflict and follows a write needs no commit of its own: it is saved with
        the next checkpoint, before any further step and before the response.
        """
        if self.begun and not (self.is_untouched or has_find(step)):
            self._waiting.append(step)
            self._changed(step, None)
            return
        self._since.append((step, None))
        minds = self.operation.method != "GET" and self.is_untouched
        try:
            await self._keep(records=[*self._places, step], **self._minds(minds))
        except (Conflict, Halted) as failure:
            self._since[-1] = (step, failure)
            self._position += 1
            raise
        except BaseException:
            self._since.pop()
            raise
        self._position += 1

    async def catch_up(self) -> None:
        """Saves pending changes, before a step that must see them."""
        if self._waiting:
            await self._keep()

    @property
    def _places(self) -> Sequence[CompareAndSet]:
        return self.placing if self.is_untouched else ()

    def _minds(self, begins: bool) -> dict[str, Any]:
        """The checks that can refuse a first change; later changes are never refused, so that an
        operation in progress can be completed.
        """
        return {
            "minds_freezes": begins,
            "minds_restores": begins and self.operation.path.endswith("/start-processing"),
        }

    def told(self, call: Call, outcome: steps.Outcome) -> None:
        """Records the response to the last write."""
        if isinstance(outcome, Refused):
            self._settle(REFUSED, outcome.status)
        elif isinstance(outcome, NoSuchOperation):
            self._settle(NO_PATH)
        elif isinstance(outcome, Failure):
            self._settle(UNSENT)
        else:
            self._settle(ANSWERED, made=_made(call, outcome))
        self._changed(call, outcome)

    async def found(self, call: Call, verdict: Confirmed | Absent) -> None:
        """Records and saves the outcome of a write that had no response, so that others see it at once."""
        write, change = self.writes[self._position], self._change
        if isinstance(verdict, Confirmed):
            self._settle(HAPPENED, made=verdict.object_id)
            self._changed(call, verdict.body)
        else:
            self._settle(MAY_EXIST if isinstance(verdict, MayExist) else DID_NOT)
            self._changed(call, Unreachable("it was sent, and did not happen"))
        try:
            await self._keep()
        except AlreadyClaimed:
            self._position -= 1
            self._change = change
            self.writes[self._position] = write
            self._since.pop()
            self._settled.pop()
            raise Unknown("what was seen is another's", retry_after=1) from None

    def _settle(self, state: str, status: int | None = None, made: str | None = None) -> None:
        now = self.journal.clock()
        write = self.writes[self._position]
        entered = (write.number, write.method, write.path, write.alike, write.entered_at)
        settled = Write(*entered, state, status, made, write.told, now)
        self.writes[self._position] = settled
        self._settled.append(settled)

    def _changed(self, step: Step, outcome: steps.Outcome) -> None:
        self.note(step, outcome)
        self._change = len(self._since)

    @property
    def has_happened(self) -> bool:
        """Whether any of its writes was executed."""
        return any(write.state in (ANSWERED, HAPPENED) for write in self.writes.values())

    # Ends

    async def begin(self) -> None:
        """Saves the operation before its first step, so that other processes see that it runs."""
        await self._keep()

    async def finish(self, answer: Text | None = None, idempotency: str | None = None) -> None:
        """Marks the operation as done, before its response is sent.

        It is never replayed if the answer is stored, or if it is a read for its client, who can
        repeat it; the steps are then deleted. Otherwise the reads after the last change are dropped,
        as a replay repeats them. ``key_digest`` is the Idempotency-Key of a retry, if the first
        attempt had none.
        """
        if self.begun:
            del self._since[self._change :]
            changes: dict[str, Any] = {"state": DONE, "why": None, "answer": answer}
            if idempotency is not None:
                changes["idempotency"] = idempotency
            if not self.attended:  # the response goes to a retry, which may come to another process
                changes["deserted"] = True
            drops = answer is not None or self.operation.method == "GET"
            await self._keep(changes=changes, drops=drops, names=self.names)

    async def close(self, state: str = ANSWERED, answer: Text | None = None) -> None:
        """Closes the operation in an end state, and deletes its stored request."""
        if self.begun:
            changes: dict[str, Any] = {"state": state, "why": None, "answer": answer}
            if state == UNDONE:
                changes["idempotency"] = None
            await self._keep(changes=changes, drops=True)

    async def leave(self, why: str) -> None:
        """Marks the operation as in doubt, to be replayed: a write is in doubt, or a later read failed."""
        if self.begun:
            if self.unread:
                del self._since[self._change :]
            changes = {"state": UNSETTLED, "why": why}
            try:
                await self._keep(changes=changes, records=[self.in_doubt] if self.in_doubt else ())
            except Conflict:  # it was recorded before
                await self._keep(changes=changes)

    async def _keep(
        self,
        *,
        sends: bool = False,
        records: Sequence[CompareAndSet] = (),
        drops: bool = False,
        **parts: Any,
    ) -> None:
        begun_at = self.journal.clocks()
        taken, settled, begins = self._since[:], self._settled[:], not self.begun
        waiting = self._waiting[:]
        is_long = self.is_long
        kept = None
        if taken and not drops:
            given = await run_in_thread(steps.written, taken) if is_long else steps.written(taken)
            kept = self._kept + len(taken) - 1, given
            self.has_pieces = self.has_pieces or isinstance(given, CompressedBuffer)
        made = [write.made for write in settled if write.made]
        one = self.one
        if begins:
            asked = await run_in_thread(_asked, self.request) if is_long else _asked(self.request)
            one = replace(one, asked=asked, deserted=self.deserted)
            self.has_pieces = self.has_pieces or isinstance(asked, CompressedBuffer)
        point = Point(
            begins,
            steps=kept,
            settled=settled,
            made=made,
            records=[*waiting, *records],
            drops=drops,
            has_pieces=self.has_pieces,
            not_first=self.not_first,
            **parts,
        )
        try:
            await self.journal.rows.keep(one, point)
        except Frozen:
            raise Halted(
                errors.WRITES_FROZEN, retry_after=errors.FREEZE_RETRY_AFTER_SECONDS
            ) from None
        except BeingChecked:
            raise Halted(errors.RESTORE_CHECK_PENDING) from None
        except Conflict as conflict:
            if str(conflict) == BEGUN:
                raise DecidedOtherwise from None
            raise
        except StoreUnavailable:
            if self.begun and self._settled:
                self.journal.unsaved[one.id] = self
            raise
        self.begun = True
        self.fenced_at = begun_at
        self.is_sending = sends or point.enters is not None
        self.unread.clear()
        self._kept += len(taken)
        self._change = 0
        del self._since[: len(taken)]
        del self._settled[: len(settled)]
        del self._waiting[: len(waiting)]
        if begins and self.deserted and not one.deserted:  # meanwhile
            with suppress(StoreUnavailable):
                await self.journal.desert(self)


_OF_A_BATCH = re.compile(r"/batches/(B-[A-Za-z0-9]+)(?:/|$)")


def _guard(call: Call) -> list[CompareAndSet]:
    """A check that the batch in the path of a write is not superseded (contract, section 7)."""
    named = _OF_A_BATCH.match(call.path)
    return [CompareAndSet("alias", named[1], {}, expected={"abandoned": None})] if named else []


def _named_in(body: JSON) -> list[JSON]:
    """The ids in a bulk delete. The body is not validated yet."""
    ids = body.get("ids") if isinstance(body, dict) else None
    return ids if isinstance(ids, list) else []


def _may_be_id(named: JSON) -> TypeGuard[str]:
    """Whether a value can be an id. Other text is hostile input that a database may not even accept."""
    return isinstance(named, str) and len(named) <= _LONGEST_ID and bool(_ID.fullmatch(named))


_LONGEST_ID = 255
_ID = re.compile(ID_PATTERN)


_MADE = ("recipient", "batch", "payment")


def _made(call: Call, outcome: steps.Outcome) -> str | None:
    """The id of the object that a create returned."""
    if call.method != "POST" or not isinstance(outcome, dict):
        return None
    if re.search(r"/(generate-quote|start-processing)$", call.path):
        return None
    account = outcome.get("account")
    if isinstance(account, dict):
        made = account.get("recipientAccountId")
    else:
        within = (outcome[name] for name in _MADE if isinstance(outcome.get(name), dict))
        made = next(within, outcome).get("id")
    return made if isinstance(made, str) else None


# A request as text


def _asked(request: Request) -> Text:
    manners = {name: getattr(request.options, name) for name in LegacyOptions.__dataclass_fields__}
    told = {
        "now": request.now.isoformat(),
        "seed": request.seed,
        "ids": dict(request.ids),
        "query": dict(request.query),
        "body": request.body,
        "manners": manners,
    }
    return stored_json.encode_stored(told)


def _request(text: Text) -> Request:
    told = stored_json.value(text)
    return Request(
        now=datetime.fromisoformat(told["now"]),
        seed=told["seed"],
        ids=told["ids"],
        query=told["query"],
        body=told["body"],
        options=LegacyOptions(**told["manners"]),
    )
