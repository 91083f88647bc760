"""An operation that this process executes: its steps, writes and changes until they are saved.

``journal`` describes the checkpoints at which they are saved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from gateway.http.responses import LegacyResponse
from gateway.payloads.stored_json import CompressedBuffer, StoredText
from gateway.payloads.worker_thread import run_in_thread
from gateway.storage import StoreUnavailable
from gateway.storage.operation_records import (
    AlreadyClaimedError,
    Checkpoint,
    OperationRecord,
    OwnershipLostError,
    RestoreUncheckedError,
    Write,
    WritesFrozenError,
)
from gateway.storage.state_changes import has_preconditions
from gateway.writes import states, step_records
from gateway.writes.batch_routing import (
    BatchRoutedElsewhereError,
    build_batch_not_superseded_checks,
    is_refused_after_restore,
)
from mappings import errors
from mappings.effects import (
    Absent,
    Call,
    CompareAndSet,
    Confirmed,
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
    PossiblyExecuted,
    Refused,
    Unknown,
    Unreachable,
)
from mappings.forwarded_writes import ROUTING_KIND

if TYPE_CHECKING:
    from gateway.writes.journal import Journal


class OperationExecution(msgspec.Struct, eq=False, weakref=True):
    """An operation that this process executes, with its unsaved steps, changes and outcomes."""

    journal: Journal
    operation_record: OperationRecord
    operation: Operation
    request: Request
    is_saved: bool = False
    """Whether the operation is in the database; it is inserted with its first change."""
    is_unseen: bool = False
    """Whether other processes must see it before its first call, and do not yet."""
    is_client_waiting: bool = True
    """Whether a client is waiting for the response."""
    recorded_steps: list[tuple[str, step_records.Outcome]] = []
    writes: dict[int, Write] = {}
    ended: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    is_resumed: bool = False
    unrelated_ids: frozenset[str] | None = None
    """Open operations that this is known not to retry; any other identical one has precedence."""
    received_at: tuple[float, float] = (0.0, 0.0)
    """When the waiting request was received, by the monotonic and the wall clock."""
    is_client_disconnected: bool = False
    """Whether an identical request is a retry: its client is gone, or this is a retry itself."""
    is_sending: bool = False
    """Whether a write is in flight, or its outcome is not saved yet."""
    fenced_at: tuple[float, float] = (0.0, 0.0)
    """When the fence was last known to be held, by both clocks; never later than it really was."""
    in_doubt_change: CompareAndSet | None = None
    """The object state to set while the last write is in doubt."""
    failed_reads: list[Failure] = []
    """Reads since the last checkpoint that failed and may succeed later."""
    routing_changes: Sequence[CompareAndSet] = ()
    """Changes and checks that keep a batch at its service, saved with the first change."""
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Waits between two reads that have to agree."""
    response: StoredText | None = None
    """The response to a forwarded write, to store when the database can be used again."""
    is_delivered: bool = False
    """Whether that response was delivered meanwhile."""
    final_response: LegacyResponse | None = None
    """The saved response of the operation, for the requests that wait for it here."""
    new_aliases: dict[str, str] = {}
    """New aliases in the response, legacy to current id; saved when the operation is finished."""
    is_long: bool = False
    """Whether its values are so long that they are encoded in a worker thread."""
    has_recipient_lock: bool = False
    """Whether it took the lock of its recipient when it was saved."""
    has_step_rows: bool = False
    """Whether there may be rows of step results."""
    has_chunks: bool = False
    """Whether any of its stored texts may be in chunks."""
    pending_changes: list[CompareAndSet] = []
    """Changes of object state to save with the next checkpoint."""
    _has_changed: bool = False
    """Whether a checkpoint has changed object state; one may be saved only for others to see."""
    _position: int = 0
    _saved_step_count: int = 0
    """Number of saved steps."""
    _unsaved_change_end: int = 0
    """Number of unsaved steps up to the last that changed something."""
    _unsaved_steps: list[tuple[Step | str, step_records.Outcome]] = []
    """Steps since the last checkpoint; their fingerprints are computed when they are saved."""
    _unsaved_outcomes: list[Write] = []

    # Steps

    @property
    def is_replaying(self) -> bool:
        return self._position < len(self.recorded_steps)

    def replay_step(self, step: Step) -> step_records.Outcome:
        """Returns the recorded result of the step; raises Unknown if another step was recorded."""
        fingerprint, outcome = self.recorded_steps[self._position]
        # Going on would pair a stored result with another step.
        if fingerprint != step_records.fingerprint_step(step):
            raise Unknown(
                step_records.FLOW_CHANGED_REASON, retry_after=errors.OPERATOR_RETRY_AFTER_SECONDS
            )
        self._position += 1
        return outcome

    def record_step(self, step: Step, outcome: step_records.Outcome) -> None:
        # The fingerprint replaces a query for very many recipients, whose ids would fill memory.
        recorded = (
            step_records.fingerprint_step(step)
            if isinstance(step, LoadFacts) and step.ids
            else step
        )
        self._unsaved_steps.append((recorded, outcome))
        self._position += 1

    @property
    def current_write(self) -> Write | None:
        """The recorded write at the current step, if there is one."""
        return self.writes.get(self._position)

    @property
    def write_in_doubt(self) -> Write | None:
        """The write in doubt, if any; only the last write can be."""
        return next((write for write in self.writes.values() if write.state == states.SENT), None)

    @property
    def has_changed_nothing(self) -> bool:
        """Whether the operation has changed nothing yet; only then can it still be refused."""
        return not (self.writes or self.is_resumed or self._has_changed)

    def mark_steps_saved(self) -> None:
        self._saved_step_count = len(self.recorded_steps)

    def take_over_unsaved_steps(self, previous: OperationExecution) -> None:
        """Takes over the steps that an earlier execution in this process could not save."""
        self.response, self.is_delivered = previous.response, previous.is_delivered
        # The commit that seemed to fail has succeeded, so the database has them.
        if previous._saved_step_count != self._saved_step_count:
            return
        self._unsaved_steps = previous._unsaved_steps
        self._unsaved_outcomes = previous._unsaved_outcomes
        self._unsaved_change_end = previous._unsaved_change_end
        self.pending_changes = previous.pending_changes
        if self._unsaved_outcomes and self._unsaved_outcomes[-1].state == states.CONFIRMED:
            # That outcome comes from reads, so it is read again: another write may have claimed
            # the object since.
            self._unsaved_outcomes.pop()
            self._unsaved_steps.pop()
            self._unsaved_change_end = min(self._unsaved_change_end, len(self._unsaved_steps))
        self.recorded_steps += step_records.replace_steps_with_fingerprints(self._unsaved_steps)
        self.writes |= {write.number: write for write in self._unsaved_outcomes}

    def is_failed_read(self, failure: Failure) -> bool:
        """Whether the failure comes from a read that may succeed later."""
        return any(failure is read_failure for read_failure in self.failed_reads)

    # Checkpoints

    async def save_write(self, call: Call, stamped_at: datetime | None = None) -> None:
        """Saves a write before it is sent; a client's ``stamped_at`` may be ahead of our clock."""
        journal, record = self.journal, self.operation_record
        digest, environment = journal.digest_call, record.tenant.environment
        call_digest = await run_in_thread(digest, call) if self.is_long else digest(call)
        # A forwarded write has no timestamp that the service might still accept.
        now = journal.clock() if record.is_forwarded else journal.service_time(environment)
        now = max(now, stamped_at or now)
        write = Write(self._position, call.method, call.path, call_digest, now)
        self.is_sending = True
        # A write that needs its client counts as a first change, even if it is a later step.
        is_first_change = call.only_while_client_waits or not self.writes
        guards = build_batch_not_superseded_checks(call)
        await self._save_checkpoint(
            new_write=write,
            object_changes=[*(self.routing_changes if self.has_changed_nothing else ()), *guards],
            refuses_if_frozen=True,
            refuses_if_restored=is_first_change
            and is_refused_after_restore(self.operation, self.request),
        )
        self.writes[write.number] = write

    @property
    def is_fence_recent(self) -> bool:
        """Whether no other process can have taken over the operation since the last check.

        By both clocks: while a machine is suspended, one of them usually stops.
        """
        return self.is_recent(self.fenced_at, self.journal.fence_after_seconds)

    def is_recent(self, earlier: tuple[float, float], seconds: float) -> bool:
        """Whether a reading of both clocks is at most so many seconds old."""
        monotonic, wall = self.journal.read_clocks()
        return abs(monotonic - earlier[0]) < seconds and abs(wall - earlier[1]) < seconds

    async def verify_fence(self, stamped_at: float | None = None) -> None:
        """Checks before a write leaves that it may still be sent, and records a new timestamp.

        Its object cannot be older, and is looked for by it: a wrong clock may have made the first.

        Raises OwnershipLostError if another process has taken the operation over while this one was
        paused, and may have concluded that the write was not executed; Halted during a freeze.
        """
        write = None
        if stamped_at is not None:
            recorded_at = datetime.fromtimestamp(stamped_at, UTC)
            write = structs.replace(self.writes[self._position], recorded_at=recorded_at)
            self.writes[self._position] = write
        await self._save_checkpoint(new_write=write, is_sending=True, refuses_if_frozen=True)

    async def compare_and_set(self, step: CompareAndSet) -> None:
        """Changes object state, and records the step in the same commit.

        A change that cannot conflict and follows a write needs no commit of its own: it is saved
        with the next checkpoint, before any further step and before the response.
        """
        # One commit less per request: no other request can see the difference until then.
        if self.is_saved and not (self.has_changed_nothing or has_preconditions(step)):
            self.pending_changes.append(step)
            self._append_changing_step(step, None)
            return
        self._unsaved_steps.append((step, None))
        # Of later changes, only writes are refused, and only by a freeze.
        has_checks = self.operation.method != "GET" and self.has_changed_nothing
        try:
            await self._save_checkpoint(
                object_changes=[*(self.routing_changes if self.has_changed_nothing else ()), step],
                refuses_if_frozen=has_checks,
                refuses_if_restored=has_checks
                and is_refused_after_restore(self.operation, self.request),
            )
        # The refusal is the result of the step: a replay must take the same way.
        except (Conflict, Halted) as failure:
            self._unsaved_steps[-1] = (step, failure)
            self._position += 1
            raise
        except BaseException:
            del self._unsaved_steps[-1:]  # none is left if only what follows the commit has failed
            raise
        self._position += 1

    def record_response(self, call: Call, outcome: step_records.Outcome) -> None:
        """Records the response to the last write."""
        if isinstance(outcome, Refused):
            self.record_write_state(states.REFUSED, outcome.status)
        elif isinstance(outcome, NoSuchOperation):
            self.record_write_state(states.NO_ENDPOINT)
        elif isinstance(outcome, Failure):
            self.record_write_state(states.UNSENT)
        else:
            object_id = step_records.find_created_id_in_result(call, outcome)
            changed_at = step_records.find_change_time_in_result(outcome)
            self.record_write_state(states.ANSWERED, object_id=object_id, changed_at=changed_at)
        self._append_changing_step(call, outcome)

    async def record_reconciled_outcome(self, call: Call, outcome: Confirmed | Absent) -> None:
        """Records the outcome of a write without a response, and saves it for others to see."""
        write, change_end = self.writes[self._position], self._unsaved_change_end
        if isinstance(outcome, Confirmed):
            self.record_write_state(states.CONFIRMED, object_id=outcome.object_id)
            self._append_changing_step(call, outcome.body)
        elif isinstance(outcome, MayExist):
            self.record_write_state(states.MAY_EXIST)
            self._append_changing_step(call, PossiblyExecuted("it was sent, and may have happened"))
        else:
            self.record_write_state(states.ABSENT)
            self._append_changing_step(call, Unreachable("it was sent, and did not happen"))
        try:
            await self._save_checkpoint()
        except AlreadyClaimedError:
            # As if the outcome had never been read: the next reading looks for another match.
            self._position -= 1
            self._unsaved_change_end = change_end
            self.writes[self._position] = write
            self._unsaved_steps.pop()
            self._unsaved_outcomes.pop()
            raise Unknown(
                "another write has claimed the object that was found", retry_after=1
            ) from None

    def record_write_state(self, state: str, status: int | None = None, **found: Any) -> None:
        """Records the state of the last write, and ``found``, which are more of its fields.

        Until its step is recorded, a replay goes on with it.
        """
        write, now = self.writes[self._position], self.journal.clock()
        resolved = structs.replace(write, state=state, status=status, resolved_at=now, **found)
        self.writes[self._position] = resolved
        self._unsaved_outcomes.append(resolved)

    def _append_changing_step(self, step: Step, outcome: step_records.Outcome) -> None:
        self.record_step(step, outcome)
        self._unsaved_change_end = len(self._unsaved_steps)

    @property
    def has_executed_write(self) -> bool:
        """Whether any of its writes was executed."""
        return any(
            write.state in (states.ANSWERED, states.CONFIRMED) for write in self.writes.values()
        )

    # Ends

    async def save(self, recipient_lock: str | None = None) -> None:
        """Saves what a step or other processes must see, with the recipient's lock if it is free."""
        await self._save_checkpoint(recipient_lock=recipient_lock)

    async def finish(
        self, answer: StoredText | None = None, *, is_client_disconnected: bool = True
    ) -> None:
        """Marks the operation as done, before its response is sent.

        Without a client the response goes to a retry, which may come to another process. It is never
        replayed if the answer is stored, or if it is a read for its client, who can repeat it; the
        steps are then deleted. Otherwise the reads after the last change are dropped, as a replay
        repeats them.
        """
        if self.is_saved:
            self.journal.record_end(self.operation_record)
            del self._unsaved_steps[self._unsaved_change_end :]
            changes: dict[str, Any] = {"state": states.DONE, "reason": None, "response": answer}
            changes["is_client_disconnected"] = is_client_disconnected
            # Counted from the delivery, which may be late.
            if self.journal.replay_seconds:
                changes["ended_at"] = None
            # An operator who named the wrong object can still correct that.
            is_final = self.response is not None or not self.operation_record.is_forwarded
            drops = (answer is not None and is_final) or self.operation.method == "GET"
            await self._save_checkpoint(
                column_values=changes, drops_payload=drops, new_aliases=self.new_aliases
            )

    async def close(
        self,
        state: str = states.ANSWERED,
        answer: StoredText | None = None,
        object_changes: Sequence[CompareAndSet] = (),
    ) -> None:
        """Closes the operation in an end state, and deletes its stored request."""
        if self.is_saved:
            self.journal.record_end(self.operation_record)
            changes: dict[str, Any] = {"state": state, "reason": None, "response": answer}
            # The key is free again, because the client may repeat a request that had no effect.
            if state == states.UNDONE:
                changes["idempotency"] = None
            await self._save_checkpoint(
                column_values=changes,
                object_changes=object_changes,
                drops_payload=True,
                deletes_routing_marks=self.operation_record.is_forwarded
                and not self._may_have_executed_write,
            )

    @property
    def _may_have_executed_write(self) -> bool:
        """Whether a write was executed, or refused with a 3xx or 5xx, which is no sure refusal."""
        return self.has_executed_write or any(
            write.status is not None and not 400 <= write.status < 500
            for write in self.writes.values()
        )

    async def leave_in_doubt(self, reason: str, **column_values: Any) -> None:
        """Marks the operation as in doubt, because of a write or a failed read; it is replayed."""
        if self.is_saved:
            if self.failed_reads:
                del self._unsaved_steps[self._unsaved_change_end :]
            changes = {"state": states.IN_DOUBT, "reason": reason, **column_values}
            in_doubt_changes = [self.in_doubt_change] if self.in_doubt_change else ()
            try:
                await self._save_checkpoint(column_values=changes, object_changes=in_doubt_changes)
            except Conflict:  # it was recorded before
                await self._save_checkpoint(column_values=changes)

    async def _save_checkpoint(
        self,
        *,
        is_sending: bool = False,
        object_changes: Sequence[CompareAndSet] = (),
        drops_payload: bool = False,
        **parts: Any,
    ) -> None:
        # Read before the transaction, so that the fence never seems to be held for too long.
        started_at = self.journal.read_clocks()
        saved_steps, outcomes = self._unsaved_steps[:], self._unsaved_outcomes[:]
        changes = [*self.pending_changes, *object_changes]
        pending_count = len(self.pending_changes)
        is_first, step_results, record = not self.is_saved, None, self.operation_record
        if is_first:
            encoded_request = await self._encode(
                step_records.encode_request, self.request, saved_steps
            )
            record = structs.replace(
                record, request=encoded_request, is_client_disconnected=self.is_client_disconnected
            )
        elif saved_steps and not drops_payload:
            encoded_steps = await self._encode(step_records.encode_steps, saved_steps)
            step_results = self._saved_step_count + len(saved_steps) - 1, encoded_steps
            # Before the commit, which may succeed although it seems to fail.
            self.has_step_rows = True
        checkpoint = Checkpoint(
            is_first,
            step_results=step_results,
            resolved_writes=outcomes,
            object_changes=changes,
            drops_payload=drops_payload,
            has_step_rows=self.has_step_rows,
            has_chunks=self.has_chunks,
            unrelated_ids=self.unrelated_ids,
            # The acknowledgement of an earlier response needs no commit of its own then.
            deliveries=self.journal.deliveries_to_combine if is_first else None,
            **parts,
        )
        try:
            if await self.journal.operations.save_checkpoint(record, checkpoint):
                self.has_recipient_lock = True
        except _SAVE_ERRORS as error:
            raise self._translate_save_error(record, error) from None
        self.is_saved, self.is_unseen = True, False
        self._has_changed = self._has_changed or bool(changes)
        self.fenced_at = started_at
        self.is_sending = is_sending or checkpoint.new_write is not None
        self.failed_reads.clear()
        self._saved_step_count += len(saved_steps)
        self._unsaved_change_end = 0
        del self._unsaved_steps[: len(saved_steps)]
        del self._unsaved_outcomes[: len(outcomes)]
        del self.pending_changes[:pending_count]
        # It has disconnected while the transaction ran.
        if is_first and self.is_client_disconnected and not record.is_client_disconnected:
            with suppress(StoreUnavailable):
                await self.journal.deliveries.record_disconnect(self)

    async def _encode(self, encode: Callable[..., StoredText], *values: Any) -> StoredText:
        encoded = await run_in_thread(encode, *values) if self.is_long else encode(*values)
        self.has_chunks = self.has_chunks or isinstance(encoded, CompressedBuffer)
        return encoded

    def _translate_save_error(self, record: OperationRecord, error: Exception) -> Exception:
        """Returns the failure for the flow if the transaction was refused."""
        if isinstance(error, WritesFrozenError):
            return Halted(errors.WRITES_FROZEN, retry_after=errors.OPERATOR_RETRY_AFTER_SECONDS)
        if isinstance(error, RestoreUncheckedError):
            return Halted(
                errors.RESTORE_CHECK_PENDING, retry_after=errors.OPERATOR_RETRY_AFTER_SECONDS
            )
        if isinstance(error, Conflict):
            is_routed = str(error) == ROUTING_KIND or record.is_forwarded
            return BatchRoutedElsewhereError() if is_routed else error
        # The next owner can read the outcome of a translated write, but not of a forwarded one.
        is_known_only_here = record.is_forwarded or isinstance(error, StoreUnavailable)
        if is_known_only_here and self.is_saved and self._unsaved_outcomes:
            self.journal.unsaved_executions[record.id] = self
        return error


_SAVE_ERRORS = (
    WritesFrozenError,
    RestoreUncheckedError,
    Conflict,
    StoreUnavailable,
    OwnershipLostError,
)
