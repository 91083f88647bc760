"""The journal: what is written down of a request before anything of it leaves.

A *course* is an undertaking while it is played. Its flow's steps are kept in memory and made
durable where it matters: before a write leaves, and together with what the ledger is to remember.
So whatever is killed or cut off, what was sent is known, and the flow can be played again up to
that point without asking or sending anything twice.
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
"""Seconds after its request came in which a start is sent (contract, section 7)."""


ACKNOWLEDGED_WITHIN = 0.25
"""Seconds: Linux delays an acknowledgement by 40 to 200 ms."""


def _new_id() -> str:
    return os.urandom(16).hex()


class Journal:
    """Made once in a process; ``instance`` is its name among those that share the state.

    ``new_id`` gives an id that nobody else has.
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
        """What is played in this process, or about to be: nobody else here takes it."""
        self.delivering: dict[str, OperationExecution] = {}
        """What is done, and whose answers are on their way to their clients."""
        self.unsaved: dict[str, OperationExecution] = {}
        """What could not be written down any more: what it was answered is known here alone."""
        self.unbegun: dict[str, bool] = {}
        """What may be written down although that failed: nothing of it was ever sent. Whether it
        was seen not to be open: once may have been before it was written down."""
        self.late_after = gone_seconds / 2
        """Seconds after which whoever sends a write makes sure that the turn is still its own."""
        self.clock = store.clock
        self._stamps = clock
        self.monotonic = clock.monotonic
        self.looks: dict[str, tuple[Callable[[], bool], float]] = {}
        """By undertaking, whether its response was acknowledged by now, and when it was written."""
        self.delivered: dict[str, None] = {}
        """Whose clients have the answer, until the journal says so too."""
        self.deserted: dict[str, None] = {}
        """Whose clients have gone, until the journal says so too: other instances wait for that."""
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
        """What a request would be, if it is not the same as another one; nothing is written yet.

        ``request_id`` is the one in the log and in its answer; ``asked.seed`` is nobody's to know.
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
        """What an Idempotency-Key is kept as."""
        return None if idempotency is None else self._digest(["key", idempotency])

    def course(
        self, one: OperationRecord, operation: Operation, asked: Request
    ) -> OperationExecution:
        """A request that is about to be played for the first time."""
        course = OperationExecution(self, one, operation, asked, came_at=self.clocks())
        self.under_way[one.id] = course
        return course

    async def take(self, one: OperationRecord, operation: Operation) -> OperationExecution | None:
        """A course that was cut off, to be played on here; None where somebody else has it."""
        if one.id in self.under_way:
            return None
        unread = Request(one.began_at, "")
        course = OperationExecution(self, one, operation, unread, begun=True, resumed=True)
        # Before anything is waited for: two here must not take it from each other.
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
        """It is played here no more."""
        if self.under_way.get(course.one.id) is course:
            del self.under_way[course.one.id]
        course.ended.set()

    async def _recall(self, course: OperationExecution, turn: int) -> None:
        """What its steps were given, and what it wrote."""
        for text in await self.rows.given(course.one):
            course.recorded += await run_in_thread_if(stored_json.is_long(text), steps.read, text)
            course.has_pieces = course.has_pieces or isinstance(text, CompressedBuffer)
        course.keep_recorded()
        its = (await self.rows.writes_of(course.one.id))[course.one.id]
        course.writes = {write.number: write for write in its}
        if (before := self.unsaved.pop(course.one.id, None)) and before.one.turn == turn:
            await run_in_thread_if(before.is_long, course.go_on_from, before)

    def _may_be_sending(self, undertaking: str, instance: str) -> bool:
        """Whether a write of it may be executed at this moment; of others' all that is running."""
        if instance != self.instance:
            return True
        course = self.under_way.get(undertaking)
        return course is not None and course.is_sending

    def is_away(self, one: OperationRecord) -> bool:
        """Whether its client is known to have gone."""
        course = self.under_way.get(one.id) or self.delivering.get(one.id)
        return one.deserted or (course is not None and course.deserted)

    def is_known(self, one: OperationRecord) -> bool:
        """Whether this process is at it: plays it, or has its answer on the way, or knows it came."""
        return any(one.id in those for those in (self.under_way, self.delivering, self.delivered))

    def stamp(self, environment: str) -> datetime:
        """Now, as the service's clock has it: what a call that leaves now is stamped with."""
        return datetime.fromtimestamp(self._stamps.wall() + self._stamps.offset(environment), UTC)

    def clocks(self) -> tuple[float, float]:
        """The monotonic one of this machine and its wall clock, in seconds."""
        return self.monotonic(), self._stamps.wall()

    def forget(self, left: set[str]) -> None:
        """Drops what is kept of undertakings that are open no more."""
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
        """Those that ask for the same in this process, and are not among the rows that were read:
        of which nothing is written down yet, or was not when they were read.
        """
        seen = {row.id for row in rows}
        return [
            course.one
            for course in self.under_way.values()
            if course.one.id not in seen and one.asks_for_the_same(course.one)
        ]

    def is_delivered(self, one: OperationRecord) -> bool:
        """Whether its client has the response, also if whoever waits for that has not looked yet."""
        if one.id in self.delivered:
            return True
        look, _ = self.looks.get(one.id, (None, 0.0))
        return look is not None and look()

    def is_being_acknowledged(self, one: OperationRecord) -> bool:
        """Whether its response was written so recently that a client's machine may yet acknowledge it."""
        _, written_at = self.looks.get(one.id, (None, -math.inf))
        return self.monotonic() - written_at < ACKNOWLEDGED_WITHIN

    def deliver(self, one: OperationRecord) -> None:
        """Its client has the answer."""
        self.delivered[one.id] = None
        self.delivery.set()

    async def note_delivered(self) -> None:
        self.delivery.clear()
        while ids := list(self.delivered):
            await self.rows.answered(ids)
            for id_ in ids:
                self.delivered.pop(id_, None)

    async def reopen(self, one: OperationRecord) -> None:
        """The connection was reset after its response was acknowledged: its client has not read it."""
        self.delivered.pop(one.id, None)
        await self.rows.reopen(one.id)

    async def desert(self, course: OperationExecution) -> None:
        """Its client went away: the same request sent again is the same."""
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
    """An undertaking while it is played, here and by nobody else."""

    journal: Journal
    one: OperationRecord
    operation: Operation
    request: Request
    begun: bool = False
    """Whether the journal has it: it is written down with the first thing that it changes."""
    attended: bool = True
    """Whether its client waits for the answer."""
    recorded: list[tuple[str, steps.Outcome]] = field(default_factory=list)
    writes: dict[int, Write] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    resumed: bool = False
    not_first: frozenset[str] | None = None
    """The open operations that it is known not to be a retry of: any other identical one goes first."""
    came_at: tuple[float, float] = (0.0, 0.0)
    """By both clocks, when the request came that waits for it."""
    deserted: bool = False
    """Whether the same request sent again is a retry: its client has gone, or it is one itself."""
    is_sending: bool = False
    """Whether a write is on its way, or its outcome not yet written down."""
    fenced_at: tuple[float, float] = (0.0, 0.0)
    """By this machine's clocks, when the turn was last seen to be its own, or a little before."""
    in_doubt: CompareAndSet | None = None
    """What the ledger is to remember while the outcome of its last write is unknown."""
    unread: list[Failure] = field(default_factory=list)
    """The reads that failed and may be answered later, since something was last kept."""
    placing: Sequence[CompareAndSet] = ()
    """Of where its batches are: recorded, or found, with its first change; else DecidedOtherwise."""
    names: dict[str, str] = field(default_factory=dict)
    """What objects are about to be called to its client, legacy id to current id: kept with its end."""
    has_pieces: bool = False
    """Whether any of its texts in the journal may be long."""
    _waiting: list[CompareAndSet] = field(default_factory=list)
    """What the ledger is to remember as of the next durable point."""
    _position: int = 0
    _kept: int = 0
    """How many steps are durable."""
    _change: int = 0
    """How many of those that are not, up to the last that changed something."""
    _since: list[tuple[Step | str, steps.Outcome]] = field(default_factory=list)
    """What steps were given since the last durable point; they are marked when that is written."""
    _settled: list[Write] = field(default_factory=list)

    # Steps

    @property
    def replays(self) -> bool:
        return self._position < len(self.recorded)

    def replayed(self, step: Step) -> steps.Outcome:
        """What the step was given the first time; Unknown where it is another step."""
        its, outcome = self.recorded[self._position]
        if its != steps.mark(step):
            raise Unknown("the program has changed since: it would go on differently")
        self._position += 1
        return outcome

    def note(self, step: Step, outcome: steps.Outcome) -> None:
        # A look at very many recipients is marked at once: their ids are not to be kept meanwhile.
        noted = steps.mark(step) if isinstance(step, LoadFacts) and step.ids else step
        self._since.append((noted, outcome))
        self._position += 1

    @property
    def is_long(self) -> bool:
        """Whether to write it down takes so long that others should not wait for it."""
        return json_codec.has_rows(self.request.body) or any(
            json_codec.has_rows(outcome) or steps.is_long(step) for step, outcome in self._since
        )

    @property
    def entered(self) -> Write | None:
        """The write that the next step is, where it was entered before."""
        return self.writes.get(self._position)

    @property
    def unanswered(self) -> Write | None:
        """The write of which it is not known what became: at most one, the last."""
        return next((write for write in self.writes.values() if write.state == SENT), None)

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was changed yet: only then may it be stopped."""
        return not (self.writes or self.resumed or self._kept)

    def keep_recorded(self) -> None:
        self._kept = len(self.recorded)

    def go_on_from(self, before: OperationExecution) -> None:
        """Takes over what could not be written down when this was played before, in this process."""
        if before._kept != self._kept:  # it was written down all the same
            return
        self._since, self._settled = before._since, before._settled
        self._change, self._waiting = before._change, before._waiting
        if self._settled and self._settled[-1].state == HAPPENED:
            # That was only read of the service: it is read again. Another write may have been
            # found to have made it since.
            self._settled.pop()
            self._since.pop()
            self._change = min(self._change, len(self._since))
        self.recorded += steps.marked(self._since)
        self.writes |= {write.number: write for write in self._settled}

    def is_unread(self, failure: Failure) -> bool:
        """Whether this is a read that failed and may be answered later."""
        return any(failure is one for one in self.unread)

    # Durable points

    async def enter(self, call: Call, stamped: datetime | None = None) -> None:
        """Writes a call down before it leaves; a stamp of its client's may be ahead of ours."""
        journal = self.journal
        alike = await run_in_thread_if(self.is_long or steps.is_long(call), journal.alike, call)
        now = self.journal.stamp(self.one.owner.environment)
        now = max(now, stamped or now)
        write = Write(self._position, call.method, call.path, alike, now)
        self.is_sending = True
        # What may not be sent without its client is as good as begun anew, however late that asks.
        minds = self._minds(call.only_while_client_waits or not self.writes)
        await self._keep(enters=write, records=[*self._places, *_guard(call)], **minds)
        self.writes[write.number] = write

    @property
    def is_fenced(self) -> bool:
        """Whether nobody can have taken the turn since it was last seen to be its own.

        By either clock: while a machine sleeps, one of them mostly stands still.
        """
        both = zip(self.journal.clocks(), self.fenced_at, strict=True)
        return all(abs(now - then) < self.journal.late_after for now, then in both)

    @property
    def is_in_time(self) -> bool:
        """Whether a start may still be sent: its request came no more than ``START_WITHIN`` ago."""
        both = zip(self.journal.clocks(), self.came_at, strict=True)
        return all(abs(now - then) < START_WITHIN for now, then in both)

    async def fence(self) -> None:
        """To be called before a write leaves; raises Overtaken.

        A process that was paused once it had entered the write may be taken for gone meanwhile, and
        the write for one that did not happen.
        """
        await self._keep(sends=True)

    async def record(self, step: CompareAndSet) -> None:
        """Has the ledger remember, and the journal that it was done.

        What cannot be refused, and follows a write, is not worth a commit of its own: it is in the
        next, which comes before anything else is done and before the client is answered.
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
        """To be called before a step that is not to find the ledger as it was."""
        if self._waiting:
            await self._keep()

    @property
    def _places(self) -> Sequence[CompareAndSet]:
        return self.placing if self.is_untouched else ()

    def _minds(self, begins: bool) -> dict[str, Any]:
        """What keeps it from beginning to change anything: what has begun is finished, but for a start."""
        return {
            "minds_freezes": begins,
            "minds_restores": begins and self.operation.path.endswith("/start-processing"),
        }

    def told(self, call: Call, outcome: steps.Outcome) -> None:
        """Takes note of what became of the write that was entered last."""
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
        """What was found out of a write that had not been answered; others see it at once."""
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
        """Writes it down before its first step: others are to see that it runs."""
        await self._keep()

    async def finish(self, answer: Text | None = None, idempotency: str | None = None) -> None:
        """Its flow is at its end, and its client is about to get the answer.

        Nobody plays it again where the answer is kept, or where it is a read to its client, who asks
        anew. Else the reads after the last change are not kept: whoever plays it again makes them
        again. ``idempotency`` is what a retry called it by, where it had no name.
        """
        if self.begun:
            del self._since[self._change :]
            changes: dict[str, Any] = {"state": DONE, "why": None, "answer": answer}
            if idempotency is not None:
                changes["idempotency"] = idempotency
            if not self.attended:  # nobody gets the answer now: a retry that comes elsewhere does
                changes["deserted"] = True
            drops = answer is not None or self.operation.method == "GET"
            await self._keep(changes=changes, drops=drops, names=self.names)

    async def close(self, state: str = ANSWERED, answer: Text | None = None) -> None:
        """Nothing more is to be done, and nobody needs what was asked."""
        if self.begun:
            changes: dict[str, Any] = {"state": state, "why": None, "answer": answer}
            if state == UNDONE:
                changes["idempotency"] = None
            await self._keep(changes=changes, drops=True)

    async def leave(self, why: str) -> None:
        """A write is of unknown outcome, or what follows cannot be read: to be played again."""
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
    """That the service's batch which a write names is not superseded (contract, section 7)."""
    named = _OF_A_BATCH.match(call.path)
    return [CompareAndSet("alias", named[1], {}, expected={"abandoned": None})] if named else []


def _named_in(body: JSON) -> list[JSON]:
    """What a body is about: those that are deleted together. Nothing of it is checked yet."""
    ids = body.get("ids") if isinstance(body, dict) else None
    return ids if isinstance(ids, list) else []


def _may_be_id(named: JSON) -> TypeGuard[str]:
    """Nothing else is an object of anybody's, and not every text is one that a database takes."""
    return isinstance(named, str) and len(named) <= _LONGEST_ID and bool(_ID.fullmatch(named))


_LONGEST_ID = 255
_ID = re.compile(ID_PATTERN)


_MADE = ("recipient", "batch", "payment")


def _made(call: Call, outcome: steps.Outcome) -> str | None:
    """The id of what a create made."""
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
