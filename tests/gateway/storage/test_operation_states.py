"""Each row of the tables of transitions, against a database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from msgspec import structs
from sqlalchemy import select, update

from gateway.config.settings import State
from gateway.storage import ObjectStateStore, Store, Tenant, open_store
from gateway.storage.operation_records import (
    Checkpoint,
    DuplicateOperationError,
    OperationRecord,
    OwnershipLostError,
    Write,
)
from gateway.storage.operations import OperationRepository
from gateway.storage.tables import operations, upstream_writes
from gateway.writes.states import (
    OPERATION_STATES,
    OPERATION_TRANSITIONS,
    RUNNING,
    SENT,
    UNDONE,
    UNSENT,
    WRITE_STATES,
    WRITE_TRANSITIONS,
)
from tests.state import execute, fetch

NOW = datetime(2026, 11, 1, tzinfo=UTC)
RECORD = OperationRecord(
    "one", Tenant("acme", "live"), "key", "key", "create_recipient", "request", "print", NOW
)
WRITE = Write(0, "POST", "/recipients", "digest", NOW)

ALLOWED = {(row.source, row.target) for row in OPERATION_TRANSITIONS}
CHANGES = [(source, target) for source in OPERATION_STATES for target in OPERATION_STATES]


async def save_in_state(store: Store, repository: OperationRepository, state: str) -> None:
    """Saves an operation with a write and a stored response, and puts it into a state."""
    await repository.save_checkpoint(RECORD, Checkpoint(is_first=True, new_write=WRITE))
    await execute(store, update(operations).values(state=state, response="x"))


async def load_state(store: Store) -> str:
    return str((await fetch(store, select(operations.c.state)))[0].state)


@pytest.mark.parametrize(("source", "target"), CHANGES)
async def test_owner_changes_a_state_only_as_the_table_says(
    sqlite: State, source: str, target: str
) -> None:
    async with open_store(sqlite) as store:
        repository = OperationRepository(store, ObjectStateStore(store))
        await save_in_state(store, repository, source)
        checkpoint = Checkpoint(column_values={"state": target})
        # To run again an operation has to be taken over.
        if target == RUNNING or (source, target) not in ALLOWED:
            with pytest.raises(OwnershipLostError):
                await repository.save_checkpoint(structs.replace(RECORD, fence=1), checkpoint)
            assert await load_state(store) == source
        else:
            await repository.save_checkpoint(RECORD, checkpoint)
            assert await load_state(store) == target


@pytest.mark.parametrize("source", OPERATION_STATES)
async def test_steps_are_recorded_only_while_it_runs(sqlite: State, source: str) -> None:
    async with open_store(sqlite) as store:
        repository = OperationRepository(store, ObjectStateStore(store))
        await save_in_state(store, repository, source)
        saving = repository.save_checkpoint(RECORD, Checkpoint(step_results=(0, "[]")))
        if source == RUNNING:
            await saving
        else:
            with pytest.raises(OwnershipLostError):
                await saving


OTHER_CHANGES: list[tuple[Callable[[OperationRepository], Awaitable[object]], set[str], str]] = [
    (lambda rows: rows.mark_answered(["one"]), {"done"}, "answered"),
    (lambda rows: rows.reopen("one"), {"answered"}, "done"),
]


@pytest.mark.parametrize(("change", "sources", "target"), OTHER_CHANGES, ids=["delivery", "reset"])
@pytest.mark.parametrize("source", OPERATION_STATES)
async def test_other_changes_keep_to_the_table(
    sqlite: State,
    change: Callable[[OperationRepository], Awaitable[object]],
    sources: set[str],
    target: str,
    source: str,
) -> None:
    assert {(source, target) for source in sources} <= ALLOWED
    async with open_store(sqlite) as store:
        repository = OperationRepository(store, ObjectStateStore(store))
        await save_in_state(store, repository, source)
        await change(repository)
        assert await load_state(store) == (target if source in sources else source)


@pytest.mark.parametrize("read", OPERATION_STATES)
@pytest.mark.parametrize("source", OPERATION_STATES)
async def test_only_an_unchanged_open_operation_is_taken_over(
    sqlite: State, source: str, read: str
) -> None:
    async with open_store(sqlite) as store:
        repository = OperationRepository(store, ObjectStateStore(store))
        await save_in_state(store, repository, source)
        taken = await repository.take_over(structs.replace(RECORD, state=read), "other")
        is_open = source in {"running", "unsettled", "done"}
        assert (taken is not None) == (is_open and read == source)
        assert await load_state(store) == (RUNNING if taken else source)


@pytest.mark.parametrize("source", sorted(WRITE_STATES.keys() - {SENT}))
@pytest.mark.parametrize("target", WRITE_STATES)
async def test_outcome_of_a_write_is_recorded_once(sqlite: State, source: str, target: str) -> None:
    assert {row.source for row in WRITE_TRANSITIONS if row.target != SENT} == {SENT}
    async with open_store(sqlite) as store:
        repository = OperationRepository(store, ObjectStateStore(store))
        await save_in_state(store, repository, RUNNING)
        await execute(store, update(upstream_writes).values(state=source))
        outcome = structs.replace(WRITE, state=target)
        await repository.save_checkpoint(RECORD, Checkpoint(resolved_writes=[outcome]))
        (row,) = await fetch(store, select(upstream_writes.c.state))
        assert row.state == source


@pytest.mark.parametrize("source", sorted(WRITE_STATES.keys() - {SENT, UNSENT}))
async def test_write_with_an_outcome_is_not_sent_again(state: State, source: str) -> None:
    async with open_store(state) as store:
        repository = OperationRepository(store, ObjectStateStore(store))
        await save_in_state(store, repository, RUNNING)
        await execute(store, update(upstream_writes).values(state=source))
        with pytest.raises(OwnershipLostError):
            await repository.save_checkpoint(RECORD, Checkpoint(new_write=WRITE))
        (row,) = await fetch(store, select(upstream_writes.c.state))
        assert row.state == source


async def test_write_that_was_not_sent_is_recorded_again(state: State) -> None:
    """In the commit that records the first attempt as unsent, because an earlier one failed."""
    async with open_store(state) as store:
        repository = OperationRepository(store, ObjectStateStore(store))
        await repository.save_checkpoint(RECORD, Checkpoint(is_first=True, new_write=WRITE))
        unsent, again = (structs.replace(WRITE, state=each) for each in (UNSENT, SENT))
        await repository.save_checkpoint(
            RECORD, Checkpoint(resolved_writes=[unsent], new_write=again)
        )
        (row,) = await fetch(store, select(upstream_writes.c.state))
        assert row.state == SENT


async def test_of_processes_that_begin_one_request_at_once_one_succeeds(postgres: State) -> None:
    begun_ids = list[str]()
    async with open_store(postgres) as store:
        repository = OperationRepository(store, ObjectStateStore(store))

        async def begin(id_: str) -> None:
            record = structs.replace(RECORD, id=id_, fingerprints=("print",), repeats_since=NOW)
            checkpoint = Checkpoint(is_first=True, unrelated_ids=frozenset(begun_ids))
            with suppress(DuplicateOperationError):
                await repository.save_checkpoint(record, checkpoint)

        for attempt in range(1, 21):
            await asyncio.gather(*(begin(f"{attempt} {process}") for process in range(8)))
            begun_ids = [id_ for (id_,) in await fetch(store, select(operations.c.id))]
            assert len(begun_ids) == attempt


async def test_of_operations_that_take_a_lock_at_once_one_has_it(postgres: State) -> None:
    async with open_store(postgres) as store:
        repository = OperationRepository(store, ObjectStateStore(store))

        async def begin(id_: str) -> OperationRecord | None:
            record = structs.replace(RECORD, id=id_, fingerprint=id_)
            checkpoint = Checkpoint(is_first=True, recipient_lock="R-1")
            return record if await repository.save_checkpoint(record, checkpoint) else None

        for attempt in range(20):
            begun = await asyncio.gather(*(begin(f"{attempt} {process}") for process in range(8)))
            (holder,) = filter(None, begun)
            await repository.save_checkpoint(holder, Checkpoint(column_values={"state": UNDONE}))
