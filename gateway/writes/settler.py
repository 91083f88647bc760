"""Rules for when reads prove the outcome of a write whose response was lost.

An object that matches the write and that no other write claims proves at once that the write was
executed. A missing object proves that it was not executed only after the service can no longer
accept the request, which is when its timestamp is 30 seconds old (current interface, section 5), and
only if two reads agree.

The monotonic clock measures how long ago the write can last have been sent, from the moment at which
this process knew that it had no response. The time at which the write was recorded tells how far its
timestamp may have been ahead of the service's clock: after a fast wall clock is corrected, the
timestamp would otherwise seem older than it is.
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
"""The clock offset that is too small to be corrected, and the rounding of a timestamp to seconds."""

PAUSE = 5.0
"""Seconds between the two reads that must agree that a write was not executed."""

_UNSEEN = "nothing of it is seen yet"

AS_OLD = timedelta(minutes=10)
"""How long before the write an object may have been created and still match it. Both clocks may be
wrong; objects that other writes created are known and excluded."""

Read = Callable[[OutcomeRule, InDoubtWrite], Awaitable[WriteOutcome]]


@dataclass(frozen=True, slots=True)
class Silence:
    """A write without a response, and the time since which it cannot have been sent."""

    number: int
    since: float
    """By the monotonic clock, which tests may advance."""
    really: float
    """By the real monotonic clock."""
    entered: float
    """Unix time at which the write was recorded, by the estimate of the service's clock at that time."""


class Settler:
    def __init__(
        self, journal: Journal, clock: ServiceClock, now: Callable[[], float] | None = None
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._now = now or clock.monotonic
        self._silences: dict[str, Silence] = {}

    def left(self, course: OperationExecution, age: float) -> None:
        """Notes that the last write was sent ``age_seconds`` ago and has no response."""
        if write := course.unanswered:
            entered = write.entered_at.timestamp()
            now, really = self._now() - age, self._clock.monotonic() - age
            self._silences[course.one.id] = Silence(write.number, now, really, entered)

    def taken(self, course: OperationExecution, one: OperationRecord) -> None:
        """Notes that an operation was taken over.

        The process that had it sends nothing more: it has lost the fence.
        """
        known, write = self._silences.get(one.id), course.unanswered
        is_others = one.state == RUNNING and one.instance != self._journal.instance
        if write is None or known is None or known.number != write.number or is_others:
            self.left(course, 0)

    def forget(self, left: set[str]) -> None:
        """Drops the writes of operations that are no longer open."""
        for id_ in self._silences.keys() - left:
            del self._silences[id_]

    def seconds_until_sure(self, one: OperationRecord) -> int:
        """Seconds until a missing object proves that the write was not executed; 0 if it already does."""
        off = abs(self._clock.offset(one.owner.environment))
        known = self._silences.get(one.id)
        if known is None:
            return math.ceil(MAX_STAMP_AGE_SECONDS + MARGIN + off)
        # The wall clock may have been corrected, or set wrong, since it stamped the write.
        ahead = known.entered - self._service_time(one, known)
        wait = MAX_STAMP_AGE_SECONDS + MARGIN + max(off, ahead) - (self._now() - known.since)
        return max(0, math.ceil(wait))

    def _service_time(self, one: OperationRecord, known: Silence | None) -> float:
        """The service's time when the write was last known to be in flight, as far as it is known."""
        passed = self._clock.monotonic() - known.really if known else 0.0
        return self._clock.wall() + self._clock.offset(one.owner.environment) - passed

    async def sending(self, course: OperationExecution, write: Write) -> InDoubtWrite:
        """Builds the query for the reads that look for the result of a write."""
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
        """Determines whether a write without a response was executed; raises Unknown if it is open."""
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
            # Checked again: the reads may have corrected the estimate of the service's clock.
            self._mind(course, verdict)
        if isinstance(verdict, Inconclusive):
            raise Unknown(verdict.reason)
        return verdict

    def _as_told(
        self, one: OperationRecord, write: Write, verdict: WriteOutcome
    ) -> Confirmed | Absent:
        """The outcome that an operator recorded, unless the reads prove that the write was executed."""
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
        """Raises Unknown if the write may still be executed, or the read was this many seconds too early."""
        if wait := max(early, self.seconds_until_sure(course.one)):
            seen = "the service lists no batches" if isinstance(verdict, MayExist) else _UNSEEN
            why = f"{seen}; it may still be carried out"
            raise Unknown(why, retry_after=wait)
