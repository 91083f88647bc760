"""Rules for when reads prove the outcome of a write whose response was lost.

An object that matches the write and that no other write claims proves at once that the write was
executed. A missing object proves that it was not executed only after the service can no longer
accept the request, which is when its timestamp is 30 seconds old (current interface, section 5),
and only if two reads agree.

The monotonic clock measures how long ago the write can last have been sent, from the moment at
which this process knew that it had no response. The time at which the write was recorded tells how
far its timestamp may have been ahead of the service's clock: after a fast wall clock is corrected,
the timestamp would otherwise seem older than it is.
"""

import math
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from msgspec import structs

from gateway.reads.recent_pages import MAX_PAGE_AGE_SECONDS
from gateway.storage import Tenant
from gateway.storage.operation_records import OPERATOR_OUTCOMES, OperationRecord, Write
from gateway.upstream.clock import MAX_STAMP_AGE_SECONDS, SKEW_TOLERANCE_SECONDS, ServiceClock
from gateway.writes.journal import Journal
from gateway.writes.operation_execution import OperationExecution
from gateway.writes.states import ABSENT, CONFIRMED, RUNNING, SENT
from mappings.effects import (
    MAX_READ_LAG,
    Absent,
    Call,
    Confirmed,
    Inconclusive,
    InDoubtWrite,
    MayExist,
    OutcomeRule,
    Step,
    Unreadable,
    WriteOutcome,
)
from mappings.failures import Unknown
from mappings.outcome_matching import CREATION_TOLERANCE

STAMP_MARGIN_SECONDS = SKEW_TOLERANCE_SECONDS + 1
"""A clock offset that is too small to be corrected, plus the rounding of a timestamp, in seconds.
"""

CONFIRMATION_PAUSE_SECONDS = 5.0
"""Seconds between the two reads that must agree that a write was not executed."""

MAX_UNREADABLE_PAUSE_SECONDS = 8.0
"""Longest pause after reads that failed, in which no other write of the merchant is looked for."""

UNREADABLE_REASON = "the service could not be read"
TOO_EARLY_REASON = "it may still be carried out"
_NOT_SEEN_REASON = "the service does not show it yet"

OutcomeReader = Callable[[Generator[Step, Any, WriteOutcome], float], Awaitable[WriteOutcome]]
"""Runs the reads of a rule; the float is the maximum age, in seconds, of lists that it reads."""


@dataclass(frozen=True, slots=True)
class UnansweredWrite:
    """A write without a response, and the time since which it cannot have been sent."""

    number: int
    quiet_since: float
    """By the monotonic clock."""
    recorded_at: float
    """Unix time at which the write was recorded, by the estimate of the service's clock at that
    time."""
    was_read: bool = False
    """Whether a read since then has not shown its result."""


class OutcomePolicy:
    """Decides what reads prove about a write; knows since when each write is without a response."""

    def __init__(self, journal: Journal, clock: ServiceClock) -> None:
        self._journal = journal
        self._clock = clock
        self.monotonic = clock.monotonic
        self._unanswered: dict[str, UnansweredWrite] = {}
        self._failed_reads: dict[Tenant, tuple[int, float]] = {}
        """How many reads have failed in a row, and until when, by the monotonic clock, none is tried."""

    def record_unanswered_write(self, execution: OperationExecution, age_seconds: float) -> None:
        """Records that the last write was sent ``age_seconds`` ago and has no response."""
        if write := execution.write_in_doubt:
            quiet_since = self.monotonic() - age_seconds
            self._unanswered[execution.operation_record.id] = UnansweredWrite(
                write.number, quiet_since, write.recorded_at.timestamp()
            )

    def record_takeover(self, execution: OperationExecution, record: OperationRecord) -> None:
        """Records that an operation was taken over.

        The process that had it sends nothing more: it has lost the fence.
        """
        unanswered, write = self._unanswered.get(record.id), execution.write_in_doubt
        # A write of another process may have been sent until the moment of the takeover, so that
        # the time has to be counted from then.
        was_owned_by_other = record.state == RUNNING and record.instance != self._journal.instance
        if (
            write is None
            or unanswered is None
            or unanswered.number != write.number
            or was_owned_by_other
        ):
            self.record_unanswered_write(execution, 0)

    def forget_closed_operations(self, open_ids: set[str]) -> None:
        """Drops the writes of operations that are no longer open."""
        for id_ in self._unanswered.keys() - open_ids:
            del self._unanswered[id_]

    def seconds_until_conclusive(self, record: OperationRecord) -> int:
        """Returns the seconds until a missing object proves that the write was not executed."""
        return max(0, math.ceil(self._compute_seconds_until_conclusive(record)))

    def _compute_seconds_until_conclusive(self, record: OperationRecord) -> float:
        """Computes the seconds until a missing object proves something; negative if it does."""
        offset = abs(self._clock.offset(record.tenant.environment))
        unanswered = self._unanswered.get(record.id)
        # The whole window: this process does not know when the write was last in flight.
        if unanswered is None:
            return MAX_STAMP_AGE_SECONDS + STAMP_MARGIN_SECONDS + offset
        # The wall clock may have been corrected, or set wrong, since it stamped the write.
        clock_lead = unanswered.recorded_at - self._estimate_service_time_when_sent(
            record, unanswered
        )
        return (
            MAX_STAMP_AGE_SECONDS
            + STAMP_MARGIN_SECONDS
            + max(offset, clock_lead)
            - (self.monotonic() - unanswered.quiet_since)
        )

    def record_reading(self, record: OperationRecord) -> None:
        """Records that a read has not shown the result of the last write."""
        if unanswered := self._unanswered.get(record.id):
            self._unanswered[record.id] = replace(unanswered, was_read=True)

    def record_failed_read(self, tenant: Tenant) -> None:
        """Records that the service could not be read: one write tries it again, not each of many."""
        count = min(self._failed_reads.get(tenant, (0, 0.0))[0] + 1, 10)
        pause_seconds = min(2.0 ** (count - 1), MAX_UNREADABLE_PAUSE_SECONDS)
        self._failed_reads[tenant] = count, self.monotonic() + pause_seconds

    def is_readable(self, tenant: Tenant) -> bool:
        """Whether reads may be tried, because the last one did not fail or is long ago."""
        failed = self._failed_reads.get(tenant)
        return failed is None or failed[1] <= self.monotonic()

    def is_waiting_for_proof(self, record: OperationRecord) -> bool:
        """Whether the last write was looked for, and not found before that could prove anything."""
        unanswered = self._unanswered.get(record.id)
        return unanswered is not None and unanswered.was_read

    def _estimate_service_time_when_sent(
        self, record: OperationRecord, unanswered: UnansweredWrite | None
    ) -> float:
        """Estimates the service's time when the write was last known to be in flight."""
        elapsed = self.monotonic() - unanswered.quiet_since if unanswered else 0.0
        return self._clock.wall() + self._clock.offset(record.tenant.environment) - elapsed

    async def build_in_doubt_write(
        self, execution: OperationExecution, write: Write
    ) -> InDoubtWrite:
        """Builds the query for the reads that look for the result of a write."""
        record = execution.operation_record
        last_sent = self._estimate_service_time_when_sent(record, self._unanswered.get(record.id))
        not_before = (
            datetime.fromtimestamp(min(write.recorded_at.timestamp(), last_sent), UTC)
            - CREATION_TOLERANCE
        )
        claimed_ids = await self._journal.operations.load_object_ids_created_by_others(
            record, not_before - CREATION_TOLERANCE
        )
        rivals = await self._journal.operations.list_open_with_identical_write(record, write)
        # An operator's outcome is a hint to look for: what the service shows still comes first.
        operator_object_id = (
            write.operator_outcome if write.operator_outcome not in OPERATOR_OUTCOMES else None
        )
        service_time = self._journal.service_time(record.tenant.environment)
        return InDoubtWrite(
            not_before,
            frozenset(claimed_ids),
            1 + len(rivals),
            operator_object_id,
            is_confirmed_by_operator=write.operator_outcome == CONFIRMED,
            is_recent=service_time - write.recorded_at < MAX_READ_LAG,
        )

    async def determine_outcome(
        self, call: Call, write: Write, execution: OperationExecution, read_outcome: OutcomeReader
    ) -> Confirmed | Absent:
        """Determines whether a write without a response was executed.

        Raises Unknown if it is open.
        """
        # Its row was changed by hand, or by a version that knew other states.
        if write.state != SENT:
            raise Unknown("its recorded state is not one that this version can continue from")
        if call.reconcile is None:
            raise Unknown("the service shows nothing by which it could be recognized")
        # Measured before the read: a read that began too early proves nothing, however long it
        # took.
        seconds_too_early = self._compute_seconds_until_conclusive(execution.operation_record)
        # A list from before proves as little as one that is read too early.
        max_age_seconds = MAX_PAGE_AGE_SECONDS
        if seconds_too_early <= 0:
            max_age_seconds = min(-seconds_too_early, MAX_PAGE_AGE_SECONDS)
        reads = (call.reconcile, write, execution, read_outcome)
        outcome = await self._read_unclaimed_outcome(*reads, max_age_seconds)
        if isinstance(outcome, Unreadable):
            self.record_failed_read(execution.operation_record.tenant)
        else:
            self._failed_reads.pop(execution.operation_record.tenant, None)
        if write.operator_outcome in OPERATOR_OUTCOMES:
            return self._apply_operator_outcome(execution.operation_record, write, outcome)
        if isinstance(outcome, Absent):
            self.record_reading(execution.operation_record)
            self._check_absence_conclusive(execution, outcome, math.ceil(seconds_too_early))
            # A list may lag behind: one read that does not show the object is not enough.
            await execution.pause(CONFIRMATION_PAUSE_SECONDS + MAX_PAGE_AGE_SECONDS)
            outcome = await self._read_unclaimed_outcome(*reads, MAX_PAGE_AGE_SECONDS)
        if isinstance(outcome, Absent):
            # Checked again: the reads may have corrected the estimate of the service's clock.
            self._check_absence_conclusive(execution, outcome)
        if isinstance(outcome, Inconclusive):
            raise Unknown(outcome.reason)
        return outcome

    async def _read_unclaimed_outcome(
        self,
        rule: OutcomeRule,
        write: Write,
        execution: OperationExecution,
        read_outcome: OutcomeReader,
        max_age_seconds: float,
    ) -> WriteOutcome:
        """Reads an outcome, without objects that other operations created, however long ago."""
        in_doubt_write = await self.build_in_doubt_write(execution, write)
        record, operations = execution.operation_record, self._journal.operations
        while True:
            outcome = await read_outcome(rule(in_doubt_write), max_age_seconds)
            found_ids = outcome.candidate_ids if isinstance(outcome, Inconclusive) else ()
            if isinstance(outcome, Confirmed) and outcome.object_id:
                found_ids = (outcome.object_id,)
            claimed_ids = {
                id_
                for id_ in {*found_ids} - in_doubt_write.claimed_ids
                if await operations.is_object_created_by_other_operation(record, id_)
            }
            if not claimed_ids:
                return outcome
            claimed_ids |= in_doubt_write.claimed_ids
            in_doubt_write = structs.replace(in_doubt_write, claimed_ids=frozenset(claimed_ids))

    def _apply_operator_outcome(
        self, record: OperationRecord, write: Write, outcome: WriteOutcome
    ) -> Confirmed | Absent:
        """Applies an operator's outcome, unless reads prove that the write was executed."""
        # A recorded "did not happen" must not hide a payment that the service shows.
        if isinstance(outcome, Confirmed):
            return outcome
        if isinstance(outcome, Unreadable):
            raise Unknown(outcome.reason)
        if write.operator_outcome == CONFIRMED:
            if isinstance(outcome, Absent) and outcome.is_old_state_shown:
                raise Unknown(f"{CONFIRMED} is recorded, but the service shows that it did not")
            return Confirmed()
        if isinstance(outcome, Inconclusive) and outcome.is_partly_shown:
            raise Unknown(f"{ABSENT} is recorded, but {outcome.reason}")
        # The legacy service executes a request when it gets it, or not at all.
        if not record.is_forwarded and (wait := self.seconds_until_conclusive(record)):
            raise Unknown(TOO_EARLY_REASON, retry_after=wait)
        return Absent()

    def _check_absence_conclusive(
        self, execution: OperationExecution, outcome: Absent, seconds_too_early: int = 0
    ) -> None:
        """Raises Unknown if the write may still be executed.

        The read that found nothing was ``seconds_too_early`` to prove anything.
        """
        if wait := max(
            seconds_too_early, self.seconds_until_conclusive(execution.operation_record)
        ):
            observation = outcome.reason if isinstance(outcome, MayExist) else _NOT_SEEN_REASON
            reason = f"{observation}; {TOO_EARLY_REASON}"
            raise Unknown(reason, retry_after=wait)
