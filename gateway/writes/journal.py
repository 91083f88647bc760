"""The journal of operations that this process executes, a write-ahead log of their steps.

The results of a flow's steps are held in memory and saved at checkpoints: before a write leaves,
and together with each change of object state. If the process is killed, it is therefore known which
writes were sent, and the flow can be replayed up to that point without sending anything twice.
"""

import hmac
import os
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TypeGuard

from gateway.auth.keys import ApiKey
from gateway.payloads import json_codec, stored_json
from gateway.payloads.stored_json import CompressedBuffer
from gateway.payloads.worker_thread import run_in_thread_if
from gateway.storage import ObjectStateStore, Store
from gateway.storage.operation_records import OperationRecord
from gateway.storage.operations import OperationRepository
from gateway.storage.ttl_cache import TtlCache
from gateway.upstream.clock import ServiceClock
from gateway.writes import step_records
from gateway.writes.delivery import Deliveries
from gateway.writes.instance_leases import LEASE_TTL_SECONDS
from gateway.writes.operation_execution import OperationExecution
from gateway.writes.states import DONE
from mappings.current import ID_PATTERN
from mappings.effects import JSON, Call, Operation, Request
from mappings.forwarded_writes import FORWARDED_PREFIX
from mappings.ids import replace_ids

MAX_REMEMBERED_ENDS, ENDS_REMEMBERED_SECONDS = 20_000, 90.0
"""How many ended operations are remembered and for how long: as long as a body may take."""


def _generate_operation_id() -> str:
    # In the order of time, in units of 4 µs, so that one commit changes few pages of the indexes.
    # Operators name an operation by the first 12 digits, of which the last two are random.
    return f"{time.time_ns() >> 12 & 0xFF_FFFF_FFFF:010x}{os.urandom(11).hex()}"


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
        new_id: Callable[[], str] = _generate_operation_id,
        *,
        replay_seconds: float = 0,
    ) -> None:
        self.object_state = object_state
        self.operations = OperationRepository(store, object_state, self._may_be_sending)
        self.new_id = new_id
        self.instance = new_id()
        self.executions: dict[str, OperationExecution] = {}
        """The executions that run or are about to, by operation id; no other request here takes
        them over."""
        self.unsaved_executions: dict[str, OperationExecution] = {}
        """Executions that could not save their last outcome, which only this process knows."""
        self.fence_after_seconds = lease_ttl_seconds / 2
        """Seconds after a fence check for which a write may be sent without another one."""
        self.clock = store.clock
        self.compute_time_before = store.compute_time_before
        self._service_clock = service_clock
        self.monotonic = service_clock.monotonic
        self.ended_at: TtlCache[str, float] = TtlCache(
            MAX_REMEMBERED_ENDS, ENDS_REMEMBERED_SECONDS, self.monotonic
        )
        """When operations ended here, or were replayed, by the monotonic clock: by operation id, and by
        fingerprint."""
        self.deliveries = Deliveries(self.operations, self.unsaved_executions, self.monotonic)
        self.replay_seconds = replay_seconds
        """Seconds after a delivered response for which an identical request is still a retry."""
        # Where commits run in order: a reset that follows a delivery must not be saved before it.
        self.deliveries_to_combine = self.deliveries if store.is_of_one_process else None
        key = store.encryption.derive_key_from_oldest("journal")
        self._keyed = hmac.new(key, digestmod=sha256)

    def build_record(
        self,
        key: ApiKey,
        operation: Operation,
        request: Request,
        request_id: str,
        idempotency_key: str | None = None,
        *,
        received_at: float | None = None,
    ) -> OperationRecord:
        """Builds the record that a request gets if it is not a retry; nothing is saved yet.

        ``request_id`` is the one in the log and in the response; ``request.seed`` is secret;
        ``received_at`` is when the request came, by the monotonic clock; None means now.
        """
        # Both clocks at once, and this one first: after a pause in between, or later, the request
        # would seem to be newer than an identical one that was answered meanwhile.
        started_at = self.clock()
        if received_at is not None:
            started_at -= timedelta(seconds=self.monotonic() - received_at)
        ids, body = request.ids, request.body
        object_ids = [*ids.values(), *_list_deleted_ids(body)]
        # Keyed, so that nobody with a copy of the database can test a guess of a request's content.
        # A retry is recognized whichever service its first attempt went to.
        name = operation.name.removeprefix(FORWARDED_PREFIX)
        # Without it, a request has the fingerprint that earlier versions gave it.
        digests = [request.full_body_digest] if request.full_body_digest else []
        fingerprints = [self._digest([name, dict(ids), body, *digests])]
        if imported_ids := request.imported_ids:
            ids = {name: imported_ids.get(id_, id_) for name, id_ in ids.items()}
            body = replace_ids(operation.body_shape, body, imported_ids)
            # An operation from before the import named the same objects by their other ids.
            object_ids += [*ids.values(), *_list_deleted_ids(body)]
            fingerprints.append(self._digest([name, ids, body, *digests]))
        return OperationRecord(
            id=self.new_id(),
            tenant=key.tenant,
            key_id=key.id,
            key_name=key.name,
            operation=operation.name,
            request_id=request_id,
            fingerprint=fingerprints[0],
            fingerprints=tuple(dict.fromkeys(fingerprints)),
            started_at=started_at,
            repeats_since=started_at - timedelta(seconds=self.replay_seconds),
            idempotency=self.digest_idempotency_key(idempotency_key),
            instance=self.instance,
            object_ids=tuple(dict.fromkeys(filter(_is_valid_id, object_ids))),
        )

    def digest_idempotency_key(self, idempotency_key: str | None) -> str | None:
        """Returns the keyed digest under which an Idempotency-Key is stored."""
        return None if idempotency_key is None else self._digest(["key", idempotency_key])

    def start_execution(
        self,
        record: OperationRecord,
        operation: Operation,
        request: Request,
        received_at: tuple[float, float] | None = None,
    ) -> OperationExecution:
        """Starts the execution of a new operation; ``received_at`` is by both clocks, None is now."""
        received_at = received_at or self.read_clocks()
        execution = OperationExecution(self, record, operation, request, received_at=received_at)
        self.executions[record.id] = execution
        return execution

    async def take_over(
        self, record: OperationRecord, operation: Operation
    ) -> OperationExecution | None:
        """Takes over an interrupted operation; None if another request or process has it."""
        if record.id in self.executions:
            return None
        # Replaced below; the execution has to be registered before the request can be loaded.
        placeholder = Request(record.started_at, "")
        execution = OperationExecution(
            self, record, operation, placeholder, is_saved=True, is_resumed=True
        )
        # Registered before the first await: two requests here must not take it from each other.
        self.executions[record.id] = execution
        unsaved = self._find_unsaved_execution(record)
        owned_record: OperationRecord | None = None
        try:
            if stored_request := await self.operations.load_request(record):
                execution.is_long = stored_json.is_large(stored_request)
                execution.request, execution.recorded_steps = await run_in_thread_if(
                    execution.is_long, step_records.decode_request, stored_request
                )
                execution.has_chunks = isinstance(stored_request, CompressedBuffer)
                owned_record = await self.operations.take_over(record, self.instance)
            if owned_record is not None:
                execution.operation_record = owned_record
                await self._load_steps_and_writes(execution, unsaved)
        except BaseException:
            self.release(execution)
            raise
        if owned_record is None:
            self.release(execution)
            return None
        return execution

    def release(self, execution: OperationExecution) -> None:
        """Ends an execution in this process."""
        # Another request may have taken the operation over since.
        if self.executions.get(execution.operation_record.id) is execution:
            del self.executions[execution.operation_record.id]
        # Also if it is in doubt: rows that were read before may be without it.
        self.ended_at.put(execution.operation_record.fingerprint, self.monotonic())
        execution.ended.set()

    def _find_unsaved_execution(self, record: OperationRecord) -> OperationExecution | None:
        """Finds the execution of an operation whose outcomes only this process knows.

        None if another process has had the operation since, and may have determined them by reads,
        which is not possible for a forwarded one.
        """
        if (unsaved := self.unsaved_executions.get(record.id)) is None:
            return None
        takeover_count = record.fence - unsaved.operation_record.fence
        # Taken over here, but what followed could not be read.
        is_own_takeover = takeover_count == 1 and record.instance == self.instance
        if takeover_count and not (is_own_takeover or record.is_forwarded):
            return None
        unsaved.operation_record = record
        return unsaved

    async def _load_steps_and_writes(
        self, execution: OperationExecution, unsaved: OperationExecution | None
    ) -> None:
        """Loads the step results and the writes of an operation."""
        for text in await self.operations.load_step_results(execution.operation_record):
            is_long = stored_json.is_large(text)
            execution.recorded_steps += await run_in_thread_if(
                is_long, step_records.decode_steps, text
            )
            execution.is_long = execution.is_long or is_long
            execution.has_step_rows = True
            execution.has_chunks = execution.has_chunks or isinstance(text, CompressedBuffer)
        execution.mark_steps_saved()
        writes = (await self.operations.load_writes(execution.operation_record.id))[
            execution.operation_record.id
        ]
        execution.writes = {write.number: write for write in writes}
        if unsaved is not None:
            execution.is_long = execution.is_long or unsaved.is_long
            await run_in_thread_if(execution.is_long, execution.take_over_unsaved_steps, unsaved)

    def _may_be_sending(self, operation_id: str, instance: str) -> bool:
        """Whether a write may be in flight; true for every operation of another instance."""
        # Only that process knows; assuming that it may delays a conclusion, but loses nothing.
        if instance != self.instance:
            return True
        execution = self.executions.get(operation_id)
        return execution is not None and execution.is_sending

    def is_client_disconnected(self, record: OperationRecord) -> bool:
        """Whether the client is known to have disconnected."""
        execution = self.executions.get(record.id) or self.deliveries.pending.get(record.id)
        return record.is_client_disconnected or (
            execution is not None and execution.is_client_disconnected
        )

    def is_handled_by_this_process(self, record: OperationRecord) -> bool:
        """Whether this process executes the operation, or delivers or delivered its response."""
        # A delivery says that the operation is done: a row that does not say so is out of date.
        return record.id in self.executions or (
            record.state == DONE
            and (record.id in self.deliveries.pending or record.id in self.deliveries.delivered_ids)
        )

    def service_time(self, environment: str) -> datetime:
        """Returns the current time by the service's clock, for the timestamp of a call sent now."""
        return datetime.fromtimestamp(
            self._service_clock.wall() + self._service_clock.offset(environment), UTC
        )

    def record_end(self, record: OperationRecord) -> None:
        """Records that an operation ends: its response is sent after this."""
        for key in (record.id, record.fingerprint):
            self.ended_at.put(key, self.monotonic())

    def has_identical_ended_since(self, record: OperationRecord, since: float) -> bool:
        """Whether an identical request has ended here since a time by the monotonic clock."""
        for fingerprint in record.fingerprints:
            ended_at = self.ended_at.get(fingerprint)
            if ended_at is not None and ended_at >= since:
                return True
        return False

    async def record_replay(self, record: OperationRecord) -> None:
        """Records that a stored response is sent after this, also for other processes.

        A request that came before it is the same one, even if it is read after the delivery.
        """
        self.record_end(record)
        await self.operations.record_replay(record.id, self.instance)

    def find_receipt_time(self, received_at: float | None) -> tuple[float, float]:
        """Converts a time of the event loop's clock (None: now) to those of ``read_clocks``."""
        monotonic, wall = self.read_clocks()
        elapsed = 0.0
        if received_at is not None:
            # Not the event loop's own reading: it stands still while callbacks run, and so also while
            # the process is paused in one of them.
            elapsed = max(0.0, time.monotonic() - received_at)
        return monotonic - elapsed, wall - elapsed

    def read_clocks(self) -> tuple[float, float]:
        """Returns the monotonic clock and the wall clock of this machine, in seconds."""
        return self.monotonic(), self._service_clock.wall()

    def forget_closed_operations(self, open_ids: set[str]) -> None:
        """Drops the entries of operations that are no longer open."""
        for id_ in self.unsaved_executions.keys() - open_ids:
            del self.unsaved_executions[id_]

    def list_identical_running_records(
        self, record: OperationRecord, rows: Sequence[OperationRecord]
    ) -> list[OperationRecord]:
        """Lists identical requests that run in this process and are not among ``rows``.

        They were not saved yet when the rows were read.
        """
        fingerprints = record.fingerprints
        return [
            other
            for execution in self.executions.values()
            # The fingerprints first: of many that run at the same time, nearly all differ in them.
            if (other := execution.operation_record).fingerprint in fingerprints
            # All signed requests of a merchant have one key, in whichever environment.
            and (other.tenant, other.key_id) == (record.tenant, record.key_id)
            and not any(row.id == other.id for row in rows)
        ]

    def digest_call(self, call: Call) -> str:
        """Returns the keyed digest of a call, by which identical writes are recognized."""
        identity = call.body if call.match_fields is None else call.match_fields
        return self._digest([call.method, call.path, identity])

    def _digest(self, value: JSON) -> str:
        digest = self._keyed.copy()
        for chunk in json_codec.iterdumps_canonical(value):
            digest.update(chunk)
        return digest.hexdigest()


def _list_deleted_ids(body: JSON) -> list[JSON]:
    """Returns the ids in a bulk delete, and of payments to remove. The body is not validated yet."""
    if not isinstance(body, dict) or body.keys().isdisjoint(("ids", "remove_payments")):
        return []
    ids, removals = body.get("ids"), body.get("remove_payments")
    # Very many, which are not in a list, are not worth their rows.
    removed_ids = [
        removal.get("id")
        for removal in (removals if isinstance(removals, list) else ())
        if isinstance(removal, dict)
    ]
    return [*(ids if isinstance(ids, list) else ()), *removed_ids]


def _is_valid_id(value: JSON) -> TypeGuard[str]:
    """Whether a value can be an id; others are hostile, and a database may refuse them."""
    return (
        isinstance(value, str) and len(value) <= _MAX_ID_LENGTH and bool(_ID_REGEX.fullmatch(value))
    )


_MAX_ID_LENGTH = 255
_ID_REGEX = re.compile(ID_PATTERN)
