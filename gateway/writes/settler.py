"""When to believe what is read of a write whose outcome is unknown.

"It happened" is believed at once, of a match that no other write claims. "It did not" only when
it can no longer happen, the service refusing stamps that are 30 seconds old (current interface,
section 5), and then by two readings.

How long ago a write can last have been sent is told by the monotonic clock, from when this process
first knew that it was not answered. How far its stamp may have been ahead of the service's clock is
told by when it was entered: a wall clock that was ahead and has been set right would otherwise make
a stamp look older than it is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway.storage.undertakings import HAPPENED, RUNNING, SENT, TOLD, OperationRecord, Write
from gateway.upstream.clock import MAX_STAMP_AGE_SECONDS, SKEW_TOLERANCE_SECONDS, ServiceClock
from gateway.writes.journal import Journal, OperationExecution
from mappings.effects import (
    Absent,
    Call,
    Confirmed,
    Inconclusive,
    InDoubtWrite,
    MayExist,
    OutcomeRule,
    Unreadable,
    WriteOutcome,
)
from mappings.failures import Unknown

MARGIN = SKEW_TOLERANCE_SECONDS + 1
"""Seconds: an offset of the clock that is too small to be corrected, and a stamp's whole second."""

PAUSE = 5.0
"""Seconds between two readings that must agree that a write did not happen."""

_UNSEEN = "nothing of it is seen yet"

AS_OLD = timedelta(minutes=10)
"""What was made so long before a write may still be it: both clocks may be wrong, and what other
writes made is known and left out."""

Read = Callable[[OutcomeRule, InDoubtWrite], Awaitable[WriteOutcome]]


@dataclass(frozen=True, slots=True)
class Silence:
    """Since when nothing can have been sent of a write that was not answered."""

    number: int
    since: float
    """By the monotonic clock, which tests may put ahead."""
    really: float
    """By the monotonic clock as it is."""
    entered: float
    """When the write was entered, by the service's clock as it was known then; Unix time."""


class Settler:
    def __init__(
        self, journal: Journal, clock: ServiceClock, now: Callable[[], float] | None = None
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._now = now or clock.monotonic
        self._silences: dict[str, Silence] = {}

    def left(self, course: OperationExecution, age: float) -> None:
        """Its last write left ``age`` seconds ago and was not answered."""
        if write := course.unanswered:
            entered = write.entered_at.timestamp()
            now, really = self._now() - age, self._clock.monotonic() - age
            self._silences[course.one.id] = Silence(write.number, now, really, entered)

    def taken(self, course: OperationExecution, one: OperationRecord) -> None:
        """It was taken over from the state that ``one`` was in: whoever had it sends no more."""
        known, write = self._silences.get(one.id), course.unanswered
        is_others = one.state == RUNNING and one.instance != self._journal.instance
        if write is None or known is None or known.number != write.number or is_others:
            self.left(course, 0)

    def forget(self, left: set[str]) -> None:
        """Drops what is kept of undertakings that are settled."""
        for id_ in self._silences.keys() - left:
            del self._silences[id_]

    def seconds_until_sure(self, one: OperationRecord) -> int:
        """How long until what is not seen of it did not happen; 0 where it is that long ago."""
        off = abs(self._clock.offset(one.owner.environment))
        known = self._silences.get(one.id)
        if known is None:
            return math.ceil(MAX_STAMP_AGE_SECONDS + MARGIN + off)
        # The clock may have been set right, or wrong, since the write was stamped by it.
        ahead = known.entered - self._service_time(one, known)
        wait = MAX_STAMP_AGE_SECONDS + MARGIN + max(off, ahead) - (self._now() - known.since)
        return max(0, math.ceil(wait))

    def _service_time(self, one: OperationRecord, known: Silence | None) -> float:
        """The service's time when the write was last known to be under way, as far as that is known."""
        passed = self._clock.monotonic() - known.really if known else 0.0
        return self._clock.wall() + self._clock.offset(one.owner.environment) - passed

    async def sending(self, course: OperationExecution, write: Write) -> InDoubtWrite:
        """What those who read for a write have to know."""
        one = course.one
        then = self._service_time(one, self._silences.get(one.id))
        since = datetime.fromtimestamp(min(write.entered_at.timestamp(), then), UTC) - AS_OLD
        claimed = await self._journal.rows.claimed(one, since - AS_OLD)
        rivals = await self._journal.rows.rivals(one, write)
        told = write.told if write.told not in TOLD else None
        alike, happened = 1 + len(rivals), write.told == HAPPENED
        return InDoubtWrite(since, frozenset(claimed), alike, told, happened)

    async def find_out(
        self, call: Call, write: Write, course: OperationExecution, read: Read
    ) -> Confirmed | Absent:
        """Whether a write that was not answered happened; raises Unknown where it cannot be told."""
        if write.state != SENT:
            raise Unknown("the journal does not know what followed it")
        if call.reconcile is None:
            raise Unknown("it leaves nothing that can be read")
        early = self.seconds_until_sure(course.one)
        sending = await self.sending(course, write)
        verdict = await read(call.reconcile, sending)
        if write.told in TOLD:
            return self._as_told(course.one, write, verdict)
        if isinstance(verdict, Absent):
            self._mind(course, verdict, early)
            await asyncio.sleep(PAUSE)
            verdict = await read(call.reconcile, await self.sending(course, write))
        if isinstance(verdict, Absent):
            self._mind(course, verdict)  # once more: reading may have told what time it is there
        if isinstance(verdict, Inconclusive):
            raise Unknown(verdict.reason)
        return verdict

    def _as_told(
        self, one: OperationRecord, write: Write, verdict: WriteOutcome
    ) -> Confirmed | Absent:
        """What an operator found out, but for what can be seen to have happened all the same."""
        if isinstance(verdict, Confirmed):
            return verdict
        if write.told == HAPPENED:
            if isinstance(verdict, Unreadable):
                raise Unknown(verdict.reason)
            return Confirmed()
        if wait := self.seconds_until_sure(one):
            raise Unknown("it may still be carried out", retry_after=wait)
        return Absent()

    def _mind(self, course: OperationExecution, verdict: Absent, early: int = 0) -> None:
        """``early`` is by how many seconds what was read was read too early."""
        if wait := max(early, self.seconds_until_sure(course.one)):
            seen = "the service lists no batches" if isinstance(verdict, MayExist) else _UNSEEN
            why = f"{seen}; it may still be carried out"
            raise Unknown(why, retry_after=wait)
