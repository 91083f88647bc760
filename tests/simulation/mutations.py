"""Planted mistakes; the simulation must find each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from msgspec import structs
from sqlalchemy import bindparam, update

from gateway.signed_api import transitions
from gateway.storage import operation_statements
from gateway.storage.checkpoints import CheckpointWriter
from gateway.storage.operation_records import Write
from gateway.storage.operations import OperationRepository
from gateway.storage.sql import Statement
from gateway.storage.tables import operations
from gateway.writes import executor, instance_leases, operation_execution, outcome_policy
from gateway.writes.batch_routing import BatchRouting
from gateway.writes.executor import FlowExecutor
from gateway.writes.journal import Journal
from gateway.writes.operation_execution import OperationExecution
from gateway.writes.outcome_policy import OutcomePolicy
from gateway.writes.retry_matching import RetryMatcher
from mappings import batch_locks, batches, recipients, signed_writes
from mappings.batch_views import Batch
from mappings.effects import Operation
from mappings.forwarded_writes import FORWARDED_PREFIX
from tests.simulation.assembly import Response
from tests.simulation.network import FAULTY_DELIVERIES
from tests.simulation.scenarios import (
    create_recipient,
    create_recipient_by_hasty_client,
    create_recipient_while_modes_change,
    start_batch_while_modes_change,
    start_batch_with_signed_changes,
    start_contested_batch,
)


async def _do_nothing(*_: Any) -> None:
    pass


def _retry_is_new_request() -> Iterator[tuple[Any, str, Any]]:
    yield RetryMatcher, "is_retry", lambda *_, **__: False
    build_insert = operation_statements.build_operation_insert
    yield (
        operation_statements,
        "build_operation_insert",
        lambda frozen, _: build_insert(frozen, False),
    )


def _write_is_recorded_after_sending() -> Iterator[tuple[Any, str, Any]]:
    async def enter_unrecorded(execution: OperationExecution, call: Any) -> None:
        call_digest, now = (
            execution.journal.digest_call(call),
            execution.journal.service_time(execution.operation_record.tenant.environment),
        )
        write = Write(execution._position, call.method, call.path, call_digest, now)
        execution.writes[write.number] = write
        execution.is_sending = True

    async def send_then_record(
        self: FlowExecutor, call: Any, caller: Any, execution: OperationExecution
    ) -> Any:
        await enter_unrecorded(execution, call)
        try:
            result = await self._send_call(call, caller)
        finally:
            await execution._save_checkpoint(new_write=execution.writes[execution._position])
        execution.record_response(call, result)
        return result

    yield FlowExecutor, "_save_and_send_write", send_then_record


def _unseen_write_counts_as_absent() -> Iterator[tuple[Any, str, Any]]:
    yield OutcomePolicy, "_compute_seconds_until_conclusive", lambda *_: 0.0
    yield outcome_policy, "CONFIRMATION_PAUSE_SECONDS", 0.0


def _object_of_another_write_is_claimed() -> Iterator[tuple[Any, str, Any]]:
    async def load_no_ids(*_: Any) -> set[str]:
        return set()

    async def is_created_by_none(*_: Any) -> bool:
        return False

    async def list_no_rivals(*_: Any) -> list[Any]:
        return []

    yield CheckpointWriter, "_check_object_not_claimed", _do_nothing
    yield OperationRepository, "load_object_ids_created_by_others", load_no_ids
    yield OperationRepository, "is_object_created_by_other_operation", is_created_by_none
    yield OperationRepository, "list_open_with_identical_write", list_no_rivals


def _lost_fence_is_ignored() -> Iterator[tuple[Any, str, Any]]:
    of_operation = operations.c.id == bindparam("operation_id")
    unfenced = Statement(update(operations).where(of_operation).values(reason=None))

    def build_unfenced_update(_writer: Any, record: Any, *_: Any) -> Any:
        return unfenced, {"operation_id": record.id}

    yield CheckpointWriter, "_build_update", build_unfenced_update


def _unanswered_write_counts_as_refused() -> Iterator[tuple[Any, str, Any]]:
    original_method = OperationExecution.record_response

    async def close_as_unsent(execution: OperationExecution, _reason: str, **_: Any) -> None:
        for number, write in list(execution.writes.items()):
            execution.writes[number] = structs.replace(write, state="unsent")
            execution._unsaved_outcomes.append(execution.writes[number])
        await execution.close("undone")

    yield OperationExecution, "leave_in_doubt", close_as_unsent
    yield OperationExecution, "record_response", original_method


def _idempotency_key_is_ignored() -> Iterator[tuple[Any, str, Any]]:
    yield Journal, "digest_idempotency_key", lambda *_: None


def _forwarded_first_attempt_is_ignored() -> Iterator[tuple[Any, str, Any]]:
    """A retry matches only what went to the service that its own mode names."""
    original_method = RetryMatcher.is_retry

    def is_retry(
        matcher: RetryMatcher, row: Any, record: Any, operation: Operation, *more: Any, **named: Any
    ) -> bool:
        is_forwarded = operation.flow.__name__.startswith(FORWARDED_PREFIX)
        return row.is_forwarded == is_forwarded and original_method(
            matcher, row, record, operation, *more, **named
        )

    yield RetryMatcher, "is_retry", is_retry


def _unsaved_response_counts_as_delivered() -> Iterator[tuple[Any, str, Any]]:
    original_method = OperationExecution.take_over_unsaved_steps

    def take_over_delivered(execution: OperationExecution, previous: OperationExecution) -> None:
        original_method(execution, previous)
        execution.is_delivered = True

    yield OperationExecution, "take_over_unsaved_steps", take_over_delivered


def _replay_is_not_recorded() -> Iterator[tuple[Any, str, Any]]:
    async def record_nothing(*_: Any) -> None:
        pass

    yield Journal, "record_replay", record_nothing


def _batch_changes_its_service() -> Iterator[tuple[Any, str, Any]]:
    async def find_no_backend(*_: Any) -> None:
        pass

    yield BatchRouting, "find_backend", find_no_backend


def _batch_is_written_without_lock() -> Iterator[tuple[Any, str, Any]]:
    """Starts and quotes take no lock, and the record of a write checks nothing that it names."""
    original_lock = batch_locks.acquire_batch_lock

    def acquire_batch_lock(batch: Batch, phase: str, *arguments: Any, **options: Any) -> Any:
        if phase not in ("starting", "quoting"):
            yield from original_lock(batch, phase, *arguments, **options)
        return batch

    yield batches, "acquire_batch_lock", acquire_batch_lock
    yield operation_execution, "build_batch_not_superseded_checks", lambda _call: []


def _edit_does_not_wait_for_signed_changes() -> Iterator[tuple[Any, str, Any]]:
    def register_nothing(*_: Any) -> Any:
        yield from ()

    yield signed_writes, "_register_change", register_nothing


def _signed_response_is_judged_by_its_status() -> Iterator[tuple[Any, str, Any]]:
    async def find_proof(_method: str, response: Response) -> bool | None:
        return response.status < 300 if 200 <= response.status < 500 else None

    yield transitions, "_find_proof", find_proof


def _step_that_was_not_sent_fails_the_request() -> Iterator[tuple[Any, str, Any]]:
    yield executor, "_is_completion", lambda *_: False


def _refused_create_is_undone_once() -> Iterator[tuple[Any, str, Any]]:
    def replace_fields(call: Any, **fields: Any) -> Any:
        return structs.replace(call, **({"is_cleanup": True} if "undo_of" in fields else fields))

    yield recipients, "structs", SimpleNamespace(replace=replace_fields)


def _freeze_is_ignored() -> Iterator[tuple[Any, str, Any]]:
    build_fenced_update = operation_statements.build_fenced_update

    def build_update_in_spite_of_freeze(columns: Any, new_state: Any, _refuses: bool) -> Statement:
        return build_fenced_update(columns, new_state)

    build_insert = operation_statements.build_operation_insert

    def build_insert_in_spite_of_freeze(_refuses: bool, refuses_identical: bool) -> Statement:
        return build_insert(False, refuses_identical)

    yield operation_statements, "build_operation_insert", build_insert_in_spite_of_freeze
    yield operation_statements, "build_fenced_update", build_update_in_spite_of_freeze


def compare_clocks_twice() -> Iterator[tuple[Any, str, Any]]:
    """As often as when some seeds were found: another number makes other sequences of them."""
    yield instance_leases, "MEASUREMENTS_AT_START", 2


def _select_deliveries(*names: str) -> tuple[Any, ...]:
    return tuple(delivery for delivery in FAULTY_DELIVERIES if delivery.name in names)


_RESPONSES_LOST = {
    "network": 0.5,
    "deliveries": _select_deliveries("lost after", "silent", "half json"),
}
_REQUESTS_LATE = {
    "kinds": (create_recipient,),
    "scenarios": 16,
    "duplicate_rate": 0.0,
    "keys": 0.0,
    "network": 0.6,
    "deliveries": _select_deliveries("cut, and late"),
}
_PROCESSES_PAUSED = {
    "gateways": 2,
    "pause_rate": 1.0,
    "kill_rate": 0.0,
    "disturbance_seconds": 60.0,
    "at_rest": 150.0,
}
_TWO_CLIENTS = {"kinds": (create_recipient,), "duplicate_rate": 1.0, "keys": 0.0, "at_rest": 150.0}
_BATCH_CONTESTED = {
    "gateways": 2,
    "scenarios": 3,
    "kinds": (start_contested_batch,),
    "interruption_rate": 1.0,
    "network": 0.0,
    "state": 0.0,
    "kill_rate": 0.0,
    "keys": 0.0,
    "service_options": {"inferred": False, "answers": "full"},
}

_MODES_CHANGE = {
    "kinds": (create_recipient_while_modes_change, start_batch_while_modes_change),
    "duplicate_rate": 0.0,
    "keys": 0.0,
}

MISTAKES: dict[Callable[[], Iterator[tuple[Any, str, Any]]], dict[str, Any]] = {
    _retry_is_new_request: {**_RESPONSES_LOST, **_TWO_CLIENTS, "duplicate_rate": 0.0},
    _write_is_recorded_after_sending: {"kill_rate": 1.0},
    _unseen_write_counts_as_absent: _REQUESTS_LATE,
    _object_of_another_write_is_claimed: {
        **_TWO_CLIENTS,
        "scenarios": 6,
        "kill_rate": 0.0,
        "network": 0.6,
        "deliveries": _select_deliveries("lost after", "lost before"),
    },
    _lost_fence_is_ignored: _PROCESSES_PAUSED,
    _unanswered_write_counts_as_refused: _RESPONSES_LOST,
    _idempotency_key_is_ignored: {**_TWO_CLIENTS, "keys": 1.0},
    _batch_is_written_without_lock: _BATCH_CONTESTED,
    _edit_does_not_wait_for_signed_changes: {
        **_BATCH_CONTESTED,
        "kinds": (start_batch_with_signed_changes,),
    },
    _signed_response_is_judged_by_its_status: {
        **_BATCH_CONTESTED,
        "kinds": (start_batch_with_signed_changes,),
        "network": 0.4,
        "deliveries": _select_deliveries("408 of a proxy, and late"),
    },
    _forwarded_first_attempt_is_ignored: {
        **_MODES_CHANGE,
        "network": 0.5,
        "deliveries": _select_deliveries("lost after", "silent"),
    },
    _unsaved_response_counts_as_delivered: {
        **_MODES_CHANGE,
        "scenarios": 8,
        "state": 0.2,
        "network": 0.0,
        "kill_rate": 0.0,
    },
    _replay_is_not_recorded: {
        "kinds": (create_recipient_by_hasty_client,),
        "gateways": 1,
        "scenarios": 24,
        "kill_rate": 0.0,
        "network": 0.0,
        "interruption_rate": 0.0,
        "outage_rate": 0.0,
        "freeze_rate": 0.0,
        "state": 0.0,
    },
    _batch_changes_its_service: {
        **_MODES_CHANGE,
        "kinds": (start_batch_while_modes_change,),
        "scenarios": 4,
    },
    _step_that_was_not_sent_fails_the_request: {**_TWO_CLIENTS, "outage_rate": 1.0},
    _freeze_is_ignored: {"freeze_rate": 1.0},
    _refused_create_is_undone_once: {
        **_TWO_CLIENTS,
        "duplicate_rate": 0.0,
        "scenarios": 12,
        **dict.fromkeys(("kill_rate", "state", "interruption_rate"), 0.0),
        "network": 0.5,
        "deliveries": _select_deliveries("429"),
    },
}
"""Each with the conditions that reveal it soonest."""


@contextmanager
def apply_mistake(mistake: Callable[[], Iterator[tuple[Any, str, Any]]]) -> Iterator[None]:
    """Applies a mistake to the product for the time of the context."""
    changes = list(mistake())
    originals = [
        (holder, attribute, getattr(holder, attribute)) for holder, attribute, _ in changes
    ]
    try:
        for holder, attribute, replacement in changes:
            setattr(holder, attribute, replacement)
        yield
    finally:
        for holder, attribute, original in originals:
            setattr(holder, attribute, original)
