"""The reconciler's sweep over open operations, and its shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.storage import ObjectStateStore, Store, StoreUnavailable
from gateway.storage.operation_records import OperationRecord
from gateway.storage.operations import OperationRepository
from gateway.writes.journal import Journal
from gateway.writes.operation_execution import OperationExecution
from gateway.writes.reconciler import WriteReconciler
from mappings import OPERATIONS
from mappings.effects import Call, Request
from tests.assembly import open_gateway_parts
from tests.processes import find_free_port
from tests.running_gateway import build_settings
from tests.simulation.assembly import API_KEY
from tests.sockets import wait_until

CREATE = next(
    listed_operation
    for listed_operation in OPERATIONS
    if listed_operation.name == "create_recipient"
)
CALL = Call(
    "POST", "/recipients", {"email": "ada@example.com"}, reconcile=lambda _sending: iter(())
)  # type: ignore[arg-type]


class DelayedOperationRepository(OperationRepository):
    """Lists open operations only when the test allows it."""

    def __init__(self, store: Store, object_states: ObjectStateStore, _journal: Journal) -> None:
        super().__init__(store, object_states)
        self.was_requested, self.may_continue = asyncio.Event(), asyncio.Event()

    async def list_unfinished_without_requests(self) -> list[OperationRecord]:
        open_operations = await super().list_unfinished_without_requests()
        assert open_operations
        self.was_requested.set()
        await self.may_continue.wait()
        return open_operations


def build_execution(journal: Journal) -> OperationExecution:
    request = Request(datetime.now(UTC), "a seed", body={"type": "individual"})
    operation = journal.build_record(API_KEY, CREATE, request, "a request")
    return journal.start_execution(operation, CREATE, request)


async def test_sweep_running_at_shutdown_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would continue on a state that is being closed."""
    settings = build_settings(tmp_path, f"http://127.0.0.1:{find_free_port()}")
    async with open_gateway_parts(settings, DelayedOperationRepository) as parts:
        execution = build_execution(parts.journal)
        await execution.save_write(CALL)
        await execution.leave_in_doubt("nobody knows")
        parts.journal.release(execution)
        operation_repository = parts.journal.operations
        assert isinstance(operation_repository, DelayedOperationRepository)
        monkeypatch.setattr(parts.reconciler, "reconcile", wait_forever)
        async with parts.reconciler:
            async with asyncio.timeout(30):
                await operation_repository.was_requested.wait()
            asyncio.get_running_loop().call_soon(operation_repository.may_continue.set)
        assert not list_reconcile_tasks()


async def test_write_that_failed_to_record_during_sweep_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep has not read this operation, because it began later."""
    settings = build_settings(tmp_path, f"http://127.0.0.1:{find_free_port()}")
    async with open_gateway_parts(settings, DelayedOperationRepository) as parts:
        execution = build_execution(parts.journal)
        await execution.save_write(CALL)
        operation_repository = parts.journal.operations
        assert isinstance(operation_repository, DelayedOperationRepository)
        monkeypatch.setattr(parts.reconciler, "reconcile", wait_forever)
        sweep_task = asyncio.ensure_future(parts.reconciler.start_due_reconciliations())
        async with asyncio.timeout(30):
            await operation_repository.was_requested.wait()
        parts.journal.unsaved_executions["begun since"] = execution
        operation_repository.may_continue.set()
        await sweep_task
        assert "begun since" in parts.journal.unsaved_executions
        await parts.reconciler.start_due_reconciliations()
        assert not parts.journal.unsaved_executions, "it is no longer open"


class FailingOperationRepository(OperationRepository):
    """Fails once to record a delivered answer, and succeeds after that."""

    def __init__(self, store: Store, object_states: ObjectStateStore, _journal: Journal) -> None:
        super().__init__(store, object_states)
        self.next_error: Exception | None = None

    async def mark_answered(self, ids: Sequence[str]) -> None:
        if ids and (error := self.next_error) is not None:
            self.next_error = None
            raise error
        await super().mark_answered(ids)


@pytest.mark.parametrize(
    "error",
    [StoreUnavailable("it is gone", means="nothing", do="wait"), RuntimeError("a driver's own")],
    ids=["unavailable", "odd"],
)
async def test_delivery_that_failed_to_record_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Until then another process takes the next identical request for a retry."""
    monkeypatch.setattr("gateway.writes.reconciler.SWEEP_SECONDS", 0.01)
    settings = build_settings(tmp_path, f"http://127.0.0.1:{find_free_port()}")
    async with open_gateway_parts(settings, FailingOperationRepository) as parts:
        execution = build_execution(parts.journal)
        await execution.save()
        await execution.finish(None)
        parts.journal.release(execution)
        operation_repository = parts.journal.operations
        assert isinstance(operation_repository, FailingOperationRepository)
        async with parts.reconciler:
            operation_repository.next_error = error
            parts.journal.deliveries.record_delivery(execution.operation_record)
            await wait_until(lambda: not parts.journal.deliveries.delivered_ids)
        assert operation_repository.next_error is None


async def wait_forever(_operation: OperationRecord) -> bool:
    await asyncio.Event().wait()
    return False


def list_reconcile_tasks() -> list[asyncio.Task[object]]:
    name = WriteReconciler._try_reconcile.__qualname__
    return [
        task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") == name
    ]
