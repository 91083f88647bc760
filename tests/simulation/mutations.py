"""Planted mistakes; the simulation must find each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gateway.storage import checkpoints
from gateway.storage.checkpoints import CheckpointWriter
from gateway.storage.operations import OperationRepository, Write
from gateway.writes import operation_execution, outcome_policy
from gateway.writes.executor import FlowExecutor
from gateway.writes.journal import Journal
from gateway.writes.operation_execution import OperationExecution
from gateway.writes.outcome_policy import OutcomePolicy
from gateway.writes.retry_matching import RetryMatcher
from mappings import batch_locks, batches
from mappings.batch_views import Batch
from tests.simulation.network import FATES
from tests.simulation.scenarios import create_recipient, start_contested_batch


async def _do_nothing(*_: Any) -> None:
    pass


def _retry_is_new_request() -> Iterator[tuple[Any, str, Any]]:
    yield RetryMatcher, "is_retry", lambda *_: False
    yield checkpoints, "_refuse_identical", _do_nothing


def _write_is_recorded_after_sending() -> Iterator[tuple[Any, str, Any]]:
    async def enter(course: OperationExecution, call: Any) -> None:
        alike, now = (
            course.journal.digest_call(call),
            course.journal.service_time(course.operation_record.tenant.environment),
        )
        write = Write(course._position, call.method, call.path, alike, now)
        course.writes[write.number] = write
        course.is_sending = True

    async def sent(player: FlowExecutor, call: Any, caller: Any, course: OperationExecution) -> Any:
        await enter(course, call)
        try:
            given = await player._perform_cached_call(call, caller)
        finally:
            await course._save_checkpoint(new_write=course.writes[course._position])
        course.record_response(call, given)
        return given

    yield FlowExecutor, "_enter_and_send", sent


def _unseen_write_counts_as_absent() -> Iterator[tuple[Any, str, Any]]:
    yield OutcomePolicy, "seconds_until_conclusive", lambda *_: 0
    yield outcome_policy, "CONFIRMATION_PAUSE_SECONDS", 0.0


def _object_of_another_write_is_claimed() -> Iterator[tuple[Any, str, Any]]:
    async def none(*_: Any) -> set[str]:
        return set()

    async def alone(*_: Any) -> list[Any]:
        return []

    yield CheckpointWriter, "_check_claims", _do_nothing
    yield OperationRepository, "load_claimed_ids", none
    yield OperationRepository, "list_rivals", alone


def _lost_fence_is_ignored() -> Iterator[tuple[Any, str, Any]]:
    yield CheckpointWriter, "_update_operation", _do_nothing


def _unanswered_write_counts_as_refused() -> Iterator[tuple[Any, str, Any]]:
    plain = OperationExecution.record_response

    async def left(course: OperationExecution, _why: str) -> None:
        for number, write in list(course.writes.items()):
            course.writes[number] = replace(write, state="unsent")
            course._unsaved_outcomes.append(course.writes[number])
        await course.close("undone")

    yield OperationExecution, "leave_in_doubt", left
    yield OperationExecution, "record_response", plain


def _idempotency_key_is_ignored() -> Iterator[tuple[Any, str, Any]]:
    yield Journal, "digest_key", lambda *_: None


def _batch_is_written_without_lock() -> Iterator[tuple[Any, str, Any]]:
    """Starts and quotes take no lock, and the record of a write checks nothing that it names."""
    plain = batch_locks.acquire_batch_lock

    def acquire_batch_lock(batch: Batch, phase: str, *more: Any) -> Any:
        if phase not in ("starting", "quoting"):
            yield from plain(batch, phase, *more)

    yield batches, "acquire_batch_lock", acquire_batch_lock
    yield operation_execution, "_build_superseded_check", lambda _call: []


def _select_fates(*names: str) -> tuple[Any, ...]:
    return tuple(fate for fate in FATES if fate.name in names)


_RESPONSES_LOST = {"network": 0.5, "fates": _select_fates("lost after", "silent", "half json")}
_REQUESTS_LATE = {
    "kinds": (create_recipient,),
    "stories": 16,
    "twins": 0.0,
    "keys": 0.0,
    "network": 0.6,
    "fates": _select_fates("cut, and late"),
}
_PROCESSES_PAUSED = {"gateways": 2, "holds": 1.0, "kills": 0.0, "storm": 60.0, "at_rest": 150.0}
_TWO_CLIENTS = {"kinds": (create_recipient,), "twins": 1.0, "keys": 0.0, "at_rest": 150.0}
_BATCH_CONTESTED = {
    "gateways": 2,
    "stories": 3,
    "kinds": (start_contested_batch,),
    "snags": 1.0,
    "network": 0.0,
    "state": 0.0,
    "kills": 0.0,
    "keys": 0.0,
    "switches": {"inferred": False, "answers": "full"},
}

MISTAKES: dict[Callable[[], Iterator[tuple[Any, str, Any]]], dict[str, Any]] = {
    _retry_is_new_request: {**_RESPONSES_LOST, **_TWO_CLIENTS, "twins": 0.0},
    _write_is_recorded_after_sending: {"kills": 1.0},
    _unseen_write_counts_as_absent: _REQUESTS_LATE,
    _object_of_another_write_is_claimed: {
        **_TWO_CLIENTS,
        "network": 0.6,
        "fates": _select_fates("lost after", "lost before"),
    },
    _lost_fence_is_ignored: _PROCESSES_PAUSED,
    _unanswered_write_counts_as_refused: _RESPONSES_LOST,
    _idempotency_key_is_ignored: {**_TWO_CLIENTS, "keys": 1.0},
    _batch_is_written_without_lock: _BATCH_CONTESTED,
}
"""Each with the conditions that reveal it soonest."""


@contextmanager
def apply_mistake(mistake: Callable[[], Iterator[tuple[Any, str, Any]]]) -> Iterator[None]:
    """Applies a mistake to the product for the time of the context."""
    changes = list(mistake())
    before = [(holder, attribute, getattr(holder, attribute)) for holder, attribute, _ in changes]
    try:
        for holder, attribute, replacement in changes:
            setattr(holder, attribute, replacement)
        yield
    finally:
        for holder, attribute, original in before:
            setattr(holder, attribute, original)
