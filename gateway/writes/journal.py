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
from gateway.payloads.stored_json import StoredText
from gateway.payloads.worker_thread import run_in_thread, run_in_thread_if
from gateway.storage import ObjectStateStore, Store, StoreUnavailable
from gateway.storage.keyed_hmac import KeyedHmac
from gateway.storage.object_state import has_expectation
from gateway.storage.operations import (
    ABSENT,
    ANSWERED,
    CONFIRMED,
    DONE,
    IN_DOUBT,
    MAY_EXIST,
    NO_ENDPOINT,
    REFUSED,
    SENT,
    UNDONE,
    UNSENT,
    AlreadyClaimedError,
    Checkpoint,
    OperationRecord,
    OperationRepository,
    RestoreUncheckedError,
    Write,
    WritesFrozenError,
)
from gateway.upstream.clock import ServiceClock
from gateway.writes import step_records
from gateway.writes.batch_routing import BACKEND_KIND, BatchRoutedElsewhereError
from gateway.writes.instance_leases import LEASE_TTL_SECONDS
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

START_DEADLINE_SECONDS = 25.0
"""Seconds after its request was received within which a start is sent (contract, section 7)."""


ACKNOWLEDGEMENT_SECONDS = 0.25
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
        object_state: ObjectStateStore,
        service_clock: ServiceClock,
        lease_ttl_seconds: float = LEASE_TTL_SECONDS,
        new_id: Callable[[], str] = _new_id,
    ) -> None:
        self.object_state = object_state
        self.operations = OperationRepository(store, object_state, self._may_be_sending)
        self.new_id = new_id
        self.instance = new_id()
        self.executions: dict[str, OperationExecution] = {}
        """By operation id, the executions that run or are about to; nothing else here takes these over."""
        self.deliveries: dict[str, OperationExecution] = {}
        """By operation id, the executions whose responses are being sent to their clients."""
        self.unsaved_executions: dict[str, OperationExecution] = {}
        """Executions that could not save their last outcome, which only this process knows."""
        self.failed_starts: dict[str, bool] = {}
        """Operations whose start failed with a database error and may be saved all the same; nothing
        of them was sent. The value says whether one was once seen not to be open, which may have
        been before its commit."""
        self.fence_after_seconds = lease_ttl_seconds / 2
        """Seconds after the last fence check for which a write may be sent without another check."""
        self.clock = store.clock
        self._service_clock = service_clock
        self.monotonic = service_clock.monotonic
        self.delivery_checks: dict[str, tuple[Callable[[], bool], float]] = {}
        """By operation id, a check whether the response was acknowledged, and when it was written."""
        self.delivered_ids: dict[str, None] = {}
        """Operations whose clients have the response, until that is saved."""
        self.disconnected_ids: dict[str, None] = {}
        """Operations whose clients have disconnected, until that is saved: other instances wait for it."""
        self.reset_ids: dict[str, None] = {}
        """Operations whose connections were reset after their delivery, until that is saved."""
        self.delivery_event = asyncio.Event()
        self._delivery_lock = asyncio.Lock()
        self._hmac = KeyedHmac(store.encryption.derive_lasting_key("journal"))

    def build_record(
        self,
        key: ApiKey,
        operation: Operation,
        request: Request,
        request_id: str,
        idempotency_key: str | None = None,
    ) -> OperationRecord:
        """Builds the record that a request gets if it is not a retry; nothing is saved yet.

        ``request_id`` is the one in the log and in the response; ``request.seed`` is secret.
        """
        ids, body = request.ids, request.body
        object_ids = [*ids.values(), *_list_body_ids(body)]
        fingerprint = self._digest([operation.name, dict(ids), body])
        fingerprint_before_import = fingerprint
        if imported_ids := request.imported_ids:
            ids = {name: imported_ids.get(id_, id_) for name, id_ in ids.items()}
            body = replace_ids(operation.body_shape, body, imported_ids)
            object_ids += [*ids.values(), *_list_body_ids(body)]
            fingerprint_before_import = self._digest([operation.name, ids, body])
        return OperationRecord(
            id=self.new_id(),
            tenant=key.tenant,
            key_id=key.id,
            key_name=key.name,
            operation=operation.name,
            request_id=request_id,
            fingerprint=fingerprint,
            fingerprint_before_import=fingerprint_before_import,
            began_at=request.now,
            idempotency=self.digest_key(idempotency_key),
            instance=self.instance,
            object_ids=tuple(dict.fromkeys(filter(_is_valid_id, object_ids))),
        )

    def digest_key(self, idempotency_key: str | None) -> str | None:
        """The keyed digest under which an Idempotency-Key is stored."""
        return None if idempotency_key is None else self._digest(["key", idempotency_key])

    def start_execution(
        self, record: OperationRecord, operation: Operation, request: Request
    ) -> OperationExecution:
        """Starts the execution of a new operation."""
        execution = OperationExecution(
            self, record, operation, request, received_at=self.read_clocks()
        )
        self.executions[record.id] = execution
        return execution

    async def take_over(
        self, record: OperationRecord, operation: Operation
    ) -> OperationExecution | None:
        """Takes over an interrupted operation; None if another request or process has it."""
        if record.id in self.executions:
            return None
        placeholder = Request(record.began_at, "")
        execution = OperationExecution(
            self, record, operation, placeholder, is_saved=True, is_resumed=True
        )
        # Registered before the first await: two requests here must not take it from each other.
        self.executions[record.id] = execution
        owned_record: OperationRecord | None = None
        try:
            if stored_request := await self.operations.load_request(record):
                execution.request = await run_in_thread_if(
                    stored_json.is_large(stored_request), _decode_request, stored_request
                )
                execution.has_chunks = isinstance(stored_request, CompressedBuffer)
                owned_record = await self.operations.take_over(record, self.instance)
            if owned_record is not None:
                execution.operation_record = owned_record
                await self._load_history(execution, record.turn)
        except BaseException:
            self.release(execution)
            raise
        if owned_record is None:
            self.release(execution)
            return None
        return execution

    def release(self, execution: OperationExecution) -> None:
        """Ends an execution in this process."""
        if self.executions.get(execution.operation_record.id) is execution:
            del self.executions[execution.operation_record.id]
        execution.ended.set()

    async def _load_history(self, execution: OperationExecution, fence: int) -> None:
        """Loads the step results and the writes of an operation."""
        for text in await self.operations.load_step_results(execution.operation_record):
            execution.recorded_steps += await run_in_thread_if(
                stored_json.is_large(text), step_records.decode_steps, text
            )
            execution.has_chunks = execution.has_chunks or isinstance(text, CompressedBuffer)
        execution.mark_steps_saved()
        writes = (await self.operations.load_writes(execution.operation_record.id))[
            execution.operation_record.id
        ]
        execution.writes = {write.number: write for write in writes}
        if (
            unsaved := self.unsaved_executions.pop(execution.operation_record.id, None)
        ) and unsaved.operation_record.turn == fence:
            await run_in_thread_if(unsaved.is_long, execution.restore_unsaved, unsaved)

    def _may_be_sending(self, operation_id: str, instance: str) -> bool:
        """Whether a write may be in flight; true for every running operation of another instance."""
        if instance != self.instance:
            return True
        execution = self.executions.get(operation_id)
        return execution is not None and execution.is_sending

    def is_client_disconnected(self, record: OperationRecord) -> bool:
        """Whether the client is known to have disconnected."""
        execution = self.executions.get(record.id) or self.deliveries.get(record.id)
        return record.deserted or (execution is not None and execution.is_client_disconnected)

    def is_handled_here(self, record: OperationRecord) -> bool:
        """Whether this process executes the operation, or has delivered or is delivering its response."""
        return any(
            record.id in ids for ids in (self.executions, self.deliveries, self.delivered_ids)
        )

    def service_time(self, environment: str) -> datetime:
        """The current time by the service's clock, with which a call that leaves now is stamped."""
        return datetime.fromtimestamp(
            self._service_clock.wall() + self._service_clock.offset(environment), UTC
        )

    def read_clocks(self) -> tuple[float, float]:
        """The monotonic clock and the wall clock of this machine, in seconds."""
        return self.monotonic(), self._service_clock.wall()

    def forget(self, open_ids: set[str]) -> None:
        """Drops the entries of operations that are no longer open."""
        for id_ in self.unsaved_executions.keys() - open_ids:
            del self.unsaved_executions[id_]
        self.failed_starts = {
            id_: id_ not in open_ids
            for id_, was_closed in self.failed_starts.items()
            if id_ in open_ids or not was_closed
        }

    def list_unseen(
        self, record: OperationRecord, rows: Sequence[OperationRecord]
    ) -> list[OperationRecord]:
        """Identical requests that run in this process and are not among the rows, because they were
        not saved yet when the rows were read.
        """
        seen_ids = {row.id for row in rows}
        return [
            execution.operation_record
            for execution in self.executions.values()
            if execution.operation_record.id not in seen_ids
            and record.has_same_request(execution.operation_record)
        ]

    def is_delivered(self, record: OperationRecord) -> bool:
        """Whether the client has the response, also if the delivery is not recorded yet."""
        if record.id in self.delivered_ids:
            return True
        is_acknowledged, _ = self.delivery_checks.get(record.id, (None, 0.0))
        return is_acknowledged is not None and is_acknowledged()

    def is_being_acknowledged(self, record: OperationRecord) -> bool:
        """Whether the response was written so recently that its acknowledgement may be delayed."""
        _, written_at = self.delivery_checks.get(record.id, (None, -math.inf))
        return self.monotonic() - written_at < ACKNOWLEDGEMENT_SECONDS

    def record_delivery(self, record: OperationRecord) -> None:
        """Notes that the client has the response; it is saved soon after."""
        self.delivered_ids[record.id] = None
        self.delivery_event.set()

    def record_reset(self, record: OperationRecord) -> None:
        """Notes that the connection was reset: the client may not have read the response."""
        self.delivered_ids.pop(record.id, None)
        self.reset_ids[record.id] = None
        self.delivery_event.set()

    async def save_deliveries(self) -> None:
        """Saves what is known of deliveries: the next identical request is new, or after a reset a retry."""
        self.delivery_event.clear()
        # One at a time: a delivery that is saved late must not undo the reset that followed it.
        async with self._delivery_lock:
            while ids := list(self.delivered_ids):
                await self.operations.mark_answered(ids)
                for id_ in ids:
                    self.delivered_ids.pop(id_, None)
            for id_ in list(self.reset_ids):
                await self.operations.reopen(id_)
                self.reset_ids.pop(id_, None)

    async def save_known_resets(self) -> None:
        """Saves every reset that had reached this machine before the call."""
        # The event loop reports the end of a connection one iteration after it has read the reset.
        for _ in range(2):
            await asyncio.sleep(0)
        if self.reset_ids:
            await self.save_deliveries()

    async def record_disconnect(self, execution: OperationExecution) -> None:
        """Notes that the client disconnected: an identical request is then a retry."""
        execution.is_client_disconnected = True
        if execution.is_saved:
            self.disconnected_ids[execution.operation_record.id] = None
            await self.save_disconnects()

    async def save_disconnects(self) -> None:
        for id_ in list(self.disconnected_ids):
            await self.operations.mark_client_disconnected(id_)
            self.disconnected_ids.pop(id_, None)

    def digest_call(self, call: Call) -> str:
        identity = call.body if call.match_fields is None else call.match_fields
        return self._digest([call.method, call.path, identity])

    def _digest(self, value: JSON) -> str:
        return self._hmac.hexdigest_parts(json_codec.iterdumps_canonical(value))


@dataclass(slots=True, eq=False, weakref_slot=True)
class OperationExecution:
    """An operation that this process executes, with its unsaved steps, changes and outcomes."""

    journal: Journal
    operation_record: OperationRecord
    operation: Operation
    request: Request
    is_saved: bool = False
    """Whether the operation is in the database; it is inserted with its first change."""
    is_client_waiting: bool = True
    """Whether a client is waiting for the response."""
    recorded_steps: list[tuple[str, step_records.Outcome]] = field(default_factory=list)
    writes: dict[int, Write] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_resumed: bool = False
    unrelated_ids: frozenset[str] | None = None
    """Open operations of which this is known not to be a retry; any other identical one takes precedence."""
    received_at: tuple[float, float] = (0.0, 0.0)
    """When the waiting request was received, by the monotonic and the wall clock."""
    is_client_disconnected: bool = False
    """Whether an identical request is a retry: the client disconnected, or this is a retry itself."""
    is_sending: bool = False
    """Whether a write is in flight, or its outcome is not saved yet."""
    fenced_at: tuple[float, float] = (0.0, 0.0)
    """When the fence was last known to be held, by both clocks; never later than it really was."""
    in_doubt_change: CompareAndSet | None = None
    """The object state to set while the last write is in doubt."""
    failed_reads: list[Failure] = field(default_factory=list)
    """Reads since the last checkpoint that failed and may succeed later."""
    routing_changes: Sequence[CompareAndSet] = ()
    """Marks and checks of the service that owns its batches, saved with its first change; a conflict
    raises BatchRoutedElsewhereError."""
    new_aliases: dict[str, str] = field(default_factory=dict)
    """New aliases in the response, legacy id to current id; saved when the operation is finished."""
    has_chunks: bool = False
    """Whether any of its stored texts may be in chunks."""
    _pending_changes: list[CompareAndSet] = field(default_factory=list)
    """Changes of object state to save with the next checkpoint."""
    _position: int = 0
    _saved_step_count: int = 0
    """Number of saved steps."""
    _unsaved_change_end: int = 0
    """Number of unsaved steps up to the last that changed something."""
    _unsaved_steps: list[tuple[Step | str, step_records.Outcome]] = field(default_factory=list)
    """Steps since the last checkpoint; their fingerprints are computed when they are saved."""
    _unsaved_outcomes: list[Write] = field(default_factory=list)

    # Steps

    @property
    def is_replaying(self) -> bool:
        return self._position < len(self.recorded_steps)

    def replay_step(self, step: Step) -> step_records.Outcome:
        """The recorded result of the step; raises Unknown if another step was recorded."""
        fingerprint, outcome = self.recorded_steps[self._position]
        if fingerprint != step_records.fingerprint_step(step):
            raise Unknown("the program has changed since: it would go on differently")
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
    def is_long(self) -> bool:
        """Whether a checkpoint takes so long that it is encoded in a worker thread."""
        return json_codec.has_rows(self.request.body) or any(
            json_codec.has_rows(outcome) or step_records.is_long(step)
            for step, outcome in self._unsaved_steps
        )

    @property
    def entered_write(self) -> Write | None:
        """The recorded write at the current step, if there is one."""
        return self.writes.get(self._position)

    @property
    def unanswered_write(self) -> Write | None:
        """The write in doubt: at most one, the last."""
        return next((write for write in self.writes.values() if write.state == SENT), None)

    @property
    def is_unchanged(self) -> bool:
        """Whether the operation has changed nothing yet; only then can it still be refused."""
        return not (self.writes or self.is_resumed or self._saved_step_count)

    def mark_steps_saved(self) -> None:
        self._saved_step_count = len(self.recorded_steps)

    def restore_unsaved(self, previous: OperationExecution) -> None:
        """Takes over the steps that an earlier execution in this process could not save."""
        if (
            previous._saved_step_count != self._saved_step_count
        ):  # they were saved despite the error
            return
        self._unsaved_steps, self._unsaved_outcomes = (
            previous._unsaved_steps,
            previous._unsaved_outcomes,
        )
        self._unsaved_change_end, self._pending_changes = (
            previous._unsaved_change_end,
            previous._pending_changes,
        )
        if self._unsaved_outcomes and self._unsaved_outcomes[-1].state == CONFIRMED:
            # That outcome comes from reads, so it is read again: another write may have claimed
            # the object since.
            self._unsaved_outcomes.pop()
            self._unsaved_steps.pop()
            self._unsaved_change_end = min(self._unsaved_change_end, len(self._unsaved_steps))
        self.recorded_steps += step_records.fingerprint_steps(self._unsaved_steps)
        self.writes |= {write.number: write for write in self._unsaved_outcomes}

    def is_failed_read(self, failure: Failure) -> bool:
        """Whether the failure comes from a read that may succeed later."""
        return any(failure is read_failure for read_failure in self.failed_reads)

    # Checkpoints

    async def save_write(self, call: Call, stamped_at: datetime | None = None) -> None:
        """Saves a write before it leaves. The timestamp of a signed request may be ahead of our clock."""
        journal = self.journal
        call_digest = await run_in_thread_if(
            self.is_long or step_records.is_long(call), journal.digest_call, call
        )
        now = self.journal.service_time(self.operation_record.tenant.environment)
        now = max(now, stamped_at or now)
        write = Write(self._position, call.method, call.path, call_digest, now)
        self.is_sending = True
        # A write that needs its client counts as a first change, even if it is a later step.
        checks = self._build_checks(call.only_while_client_waits or not self.writes)
        await self._save_checkpoint(
            new_write=write,
            object_changes=[*self._first_changes, *_build_superseded_check(call)],
            **checks,
        )
        self.writes[write.number] = write

    @property
    def is_fenced(self) -> bool:
        """Whether no other process can have taken over the operation since the last check.

        By both clocks: while a machine is suspended, one of them usually stops.
        """
        readings = zip(self.journal.read_clocks(), self.fenced_at, strict=True)
        return all(
            abs(now - earlier) < self.journal.fence_after_seconds for now, earlier in readings
        )

    @property
    def is_start_in_time(self) -> bool:
        """Whether a start may still be sent, which is for ``START_DEADLINE_SECONDS`` after its request."""
        readings = zip(self.journal.read_clocks(), self.received_at, strict=True)
        return all(abs(now - earlier) < START_DEADLINE_SECONDS for now, earlier in readings)

    async def fence(self) -> None:
        """Checks before a write leaves that this process still owns it; raises OwnershipLostError.

        If the process was paused after it had recorded the write, another may have taken the
        operation over and concluded that the write was not executed.
        """
        await self._save_checkpoint(is_sending=True)

    async def compare_and_set(self, step: CompareAndSet) -> None:
        """Changes object state, and records the step in the same commit.

        A change that cannot conflict and follows a write needs no commit of its own: it is saved with
        the next checkpoint, before any further step and before the response.
        """
        if self.is_saved and not (self.is_unchanged or has_expectation(step)):
            self._pending_changes.append(step)
            self._record_change(step, None)
            return
        self._unsaved_steps.append((step, None))
        has_checks = self.operation.method != "GET" and self.is_unchanged
        try:
            await self._save_checkpoint(
                object_changes=[*self._first_changes, step], **self._build_checks(has_checks)
            )
        except (Conflict, Halted) as failure:
            self._unsaved_steps[-1] = (step, failure)
            self._position += 1
            raise
        except BaseException:
            self._unsaved_steps.pop()
            raise
        self._position += 1

    async def save_pending_changes(self) -> None:
        """Saves pending changes, before a step that must see them."""
        if self._pending_changes:
            await self._save_checkpoint()

    @property
    def _first_changes(self) -> Sequence[CompareAndSet]:
        return self.routing_changes if self.is_unchanged else ()

    def _build_checks(self, is_first_change: bool) -> dict[str, Any]:
        """The checks that can refuse a first change; later changes are never refused, so that an
        operation in progress can be completed.
        """
        return {
            "refuses_if_frozen": is_first_change,
            "refuses_if_restored": is_first_change
            and self.operation.path.endswith("/start-processing"),
        }

    def record_response(self, call: Call, outcome: step_records.Outcome) -> None:
        """Records the response to the last write."""
        if isinstance(outcome, Refused):
            self._resolve_write(REFUSED, outcome.status)
        elif isinstance(outcome, NoSuchOperation):
            self._resolve_write(NO_ENDPOINT)
        elif isinstance(outcome, Failure):
            self._resolve_write(UNSENT)
        else:
            self._resolve_write(ANSWERED, object_id=_find_created_id(call, outcome))
        self._record_change(call, outcome)

    async def record_outcome(self, call: Call, outcome: Confirmed | Absent) -> None:
        """Records and saves the outcome of a write that had no response, so that others see it at once."""
        write, change_end = self.writes[self._position], self._unsaved_change_end
        if isinstance(outcome, Confirmed):
            self._resolve_write(CONFIRMED, object_id=outcome.object_id)
            self._record_change(call, outcome.body)
        else:
            self._resolve_write(MAY_EXIST if isinstance(outcome, MayExist) else ABSENT)
            self._record_change(call, Unreachable("it was sent, and did not happen"))
        try:
            await self._save_checkpoint()
        except AlreadyClaimedError:
            self._position -= 1
            self._unsaved_change_end = change_end
            self.writes[self._position] = write
            self._unsaved_steps.pop()
            self._unsaved_outcomes.pop()
            raise Unknown("what was seen is another's", retry_after=1) from None

    def _resolve_write(
        self, state: str, status: int | None = None, object_id: str | None = None
    ) -> None:
        now = self.journal.clock()
        write = self.writes[self._position]
        entry = (write.number, write.method, write.path, write.alike, write.entered_at)
        resolved = Write(*entry, state, status, object_id, write.told, now)
        self.writes[self._position] = resolved
        self._unsaved_outcomes.append(resolved)

    def _record_change(self, step: Step, outcome: step_records.Outcome) -> None:
        self.record_step(step, outcome)
        self._unsaved_change_end = len(self._unsaved_steps)

    @property
    def has_executed_write(self) -> bool:
        """Whether any of its writes was executed."""
        return any(write.state in (ANSWERED, CONFIRMED) for write in self.writes.values())

    # Ends

    async def save_start(self) -> None:
        """Saves the operation before its first step, so that other processes see that it runs."""
        await self._save_checkpoint()

    async def finish(self, answer: StoredText | None = None, key_digest: str | None = None) -> None:
        """Marks the operation as done, before its response is sent.

        It is never replayed if the answer is stored, or if it is a read for its client, who can
        repeat it; the steps are then deleted. Otherwise the reads after the last change are dropped,
        as a replay repeats them. ``key_digest`` is the Idempotency-Key of a retry, if the first
        attempt had none.
        """
        if self.is_saved:
            del self._unsaved_steps[self._unsaved_change_end :]
            changes: dict[str, Any] = {"state": DONE, "why": None, "answer": answer}
            if key_digest is not None:
                changes["idempotency"] = key_digest
            if (
                not self.is_client_waiting
            ):  # the response goes to a retry, which may come to another process
                changes["deserted"] = True
            drops = answer is not None or self.operation.method == "GET"
            await self._save_checkpoint(
                column_values=changes, drops_payload=drops, new_aliases=self.new_aliases
            )

    async def close(self, state: str = ANSWERED, answer: StoredText | None = None) -> None:
        """Closes the operation in an end state, and deletes its stored request."""
        if self.is_saved:
            changes: dict[str, Any] = {"state": state, "why": None, "answer": answer}
            if state == UNDONE:
                changes["idempotency"] = None
            await self._save_checkpoint(column_values=changes, drops_payload=True)

    async def leave_in_doubt(self, reason: str) -> None:
        """Marks the operation as in doubt, to be replayed: a write is in doubt, or a later read failed."""
        if self.is_saved:
            if self.failed_reads:
                del self._unsaved_steps[self._unsaved_change_end :]
            changes = {"state": IN_DOUBT, "why": reason}
            try:
                await self._save_checkpoint(
                    column_values=changes,
                    object_changes=[self.in_doubt_change] if self.in_doubt_change else (),
                )
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
        started_at = self.journal.read_clocks()
        saved_steps, outcomes, is_first = (
            self._unsaved_steps[:],
            self._unsaved_outcomes[:],
            not self.is_saved,
        )
        pending_changes = self._pending_changes[:]
        is_long = self.is_long
        step_results = None
        if saved_steps and not drops_payload:
            encoded = (
                await run_in_thread(step_records.encode_steps, saved_steps)
                if is_long
                else step_records.encode_steps(saved_steps)
            )
            step_results = self._saved_step_count + len(saved_steps) - 1, encoded
            self.has_chunks = self.has_chunks or isinstance(encoded, CompressedBuffer)
        object_ids = [write.made for write in outcomes if write.made]
        record = self.operation_record
        if is_first:
            encoded_request = (
                await run_in_thread(_encode_request, self.request)
                if is_long
                else _encode_request(self.request)
            )
            record = replace(record, asked=encoded_request, deserted=self.is_client_disconnected)
            self.has_chunks = self.has_chunks or isinstance(encoded_request, CompressedBuffer)
        checkpoint = Checkpoint(
            is_first,
            step_results=step_results,
            resolved_writes=outcomes,
            object_ids=object_ids,
            object_changes=[*pending_changes, *object_changes],
            drops_payload=drops_payload,
            has_chunks=self.has_chunks,
            unrelated_ids=self.unrelated_ids,
            **parts,
        )
        try:
            await self.journal.operations.save_checkpoint(record, checkpoint)
        except WritesFrozenError:
            raise Halted(
                errors.WRITES_FROZEN, retry_after=errors.FREEZE_RETRY_AFTER_SECONDS
            ) from None
        except RestoreUncheckedError:
            raise Halted(errors.RESTORE_CHECK_PENDING) from None
        except Conflict as conflict:
            if str(conflict) == BACKEND_KIND:
                raise BatchRoutedElsewhereError from None
            raise
        except StoreUnavailable:
            if self.is_saved and self._unsaved_outcomes:
                self.journal.unsaved_executions[record.id] = self
            raise
        self.is_saved = True
        self.fenced_at = started_at
        self.is_sending = is_sending or checkpoint.new_write is not None
        self.failed_reads.clear()
        self._saved_step_count += len(saved_steps)
        self._unsaved_change_end = 0
        del self._unsaved_steps[: len(saved_steps)]
        del self._unsaved_outcomes[: len(outcomes)]
        del self._pending_changes[: len(pending_changes)]
        if is_first and self.is_client_disconnected and not record.deserted:  # meanwhile
            with suppress(StoreUnavailable):
                await self.journal.record_disconnect(self)


_BATCH_PATH = re.compile(r"/batches/(B-[A-Za-z0-9]+)(?:/|$)")


def _build_superseded_check(call: Call) -> list[CompareAndSet]:
    """A check that the batch in the path of a write is not superseded (contract, section 7)."""
    match = _BATCH_PATH.match(call.path)
    return [CompareAndSet("alias", match[1], {}, expected={"abandoned": None})] if match else []


def _list_body_ids(body: JSON) -> list[JSON]:
    """The ids in a bulk delete. The body is not validated yet."""
    ids = body.get("ids") if isinstance(body, dict) else None
    return ids if isinstance(ids, list) else []


def _is_valid_id(value: JSON) -> TypeGuard[str]:
    """Whether a value can be an id. Other text is hostile input that a database may not even accept."""
    return (
        isinstance(value, str) and len(value) <= _MAX_ID_LENGTH and bool(_ID_REGEX.fullmatch(value))
    )


_MAX_ID_LENGTH = 255
_ID_REGEX = re.compile(ID_PATTERN)


_CREATED_FIELDS = ("recipient", "batch", "payment")


def _find_created_id(call: Call, outcome: step_records.Outcome) -> str | None:
    """The id of the object that a create returned."""
    if call.method != "POST" or not isinstance(outcome, dict):
        return None
    if re.search(r"/(generate-quote|start-processing)$", call.path):
        return None
    account = outcome.get("account")
    if isinstance(account, dict):
        object_id = account.get("recipientAccountId")
    else:
        created = (outcome[name] for name in _CREATED_FIELDS if isinstance(outcome.get(name), dict))
        object_id = next(created, outcome).get("id")
    return object_id if isinstance(object_id, str) else None


# A request as text


def _encode_request(request: Request) -> StoredText:
    options = {name: getattr(request.options, name) for name in LegacyOptions.__dataclass_fields__}
    encoded = {
        "now": request.now.isoformat(),
        "seed": request.seed,
        "ids": dict(request.ids),
        "query": dict(request.query),
        "body": request.body,
        "manners": options,
    }
    return stored_json.encode_value(encoded)


def _decode_request(text: StoredText) -> Request:
    encoded = stored_json.decode_value(text)
    return Request(
        now=datetime.fromisoformat(encoded["now"]),
        seed=encoded["seed"],
        ids=encoded["ids"],
        query=encoded["query"],
        body=encoded["body"],
        options=LegacyOptions(**encoded["manners"]),
    )
