"""Freezes, the audit log, operation numbers and retention, as stored in the database."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from msgspec import structs
from sqlalchemy import Table, select, text, update

import gateway
from gateway.config.settings import Retention, State
from gateway.operator.operation_closing import close_in_doubt_operation
from gateway.operator.retention import delete_expired_data
from gateway.storage import ObjectStateStore, Store, Tenant, open_store, operation_statements
from gateway.storage.engine import find_sqlite_file, parse_state_url
from gateway.storage.expired_responses import clear_expired_responses
from gateway.storage.freezes import freeze_writes, unfreeze_writes
from gateway.storage.id_rows import load_legacy_ids
from gateway.storage.operation_records import (
    Checkpoint,
    OperationRecord,
    Write,
)
from gateway.storage.operations import OperationRepository
from gateway.storage.restore_detection import (
    HighWaterMark,
    clear_restored_flag,
    load_restore_state,
    read_high_water_mark_file,
    set_restored_flag,
    write_high_water_mark_if_greater,
)
from gateway.storage.sqlite_driver import sqlite3
from gateway.storage.tables import audit_events, operations, upstream_writes
from gateway.writes.states import (
    ABSENT,
    ANSWERED,
    CONFIRMED,
    DONE,
    IN_DOUBT,
    RUNNING,
    UNDONE,
)
from tests.state import execute, fetch, record_statements

ACME = Tenant("acme", "live")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def build_operation(id_: str, tenant: Tenant = ACME, started_at: datetime = NOW) -> OperationRecord:
    return OperationRecord(
        id=id_,
        tenant=tenant,
        key_id="k",
        key_name="key",
        operation="start_batch",
        request_id="r",
        fingerprint=f"f {id_}",
        fingerprints=(f"f {id_}",),
        started_at=started_at,
        instance="i",
    )


def build_write(path: str = "/recipients") -> Write:
    return Write(0, "POST", path, "alike", NOW)


async def begin_operations(store: Store, *ids: str) -> OperationRepository:
    operation_repository = OperationRepository(store, ObjectStateStore(store))
    for id_ in ids:
        await operation_repository.save_checkpoint(
            build_operation(id_), Checkpoint(is_first=True, new_write=build_write())
        )
    return operation_repository


# Closed operations


async def test_operation_is_closed_despite_concurrent_probe(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running gateway probes an operation in doubt only briefly; closing waits for that."""
    monkeypatch.setattr("gateway.operator.operation_closing.RETRY_SECONDS", 0.1)
    id_ = "0123456789ab"
    async with open_store(state) as store:
        operation_repository = await begin_operations(store, id_)

        async def change(table: Table, **values: str) -> None:
            await execute(store, update(table).values(**values))

        await change(upstream_writes, operator_outcome=ABSENT)
        await change(operations, state=RUNNING, reason="it was not answered")
        close_task = asyncio.create_task(close_in_doubt_operation(store, f"{id_}.0"))
        await asyncio.sleep(0.5)
        await change(operations, state=IN_DOUBT)
        await close_task
        assert (operation := await operation_repository.find_operation(id_)) is not None
        assert operation.state == UNDONE


# Operation numbers, and detection of an older state.


async def test_operations_have_increasing_numbers(state: State) -> None:
    async with open_store(state) as store:
        assert (await load_restore_state(store)).mark == HighWaterMark(0, 0)
        await begin_operations(store, "a", "b")
        assert (await load_restore_state(store)).mark == HighWaterMark(0, 2)
        await asyncio.gather(*(begin_operations(store, f"c{n}") for n in range(5)))
        numbers = [
            operation_row.number
            for operation_row in await fetch(store, select(operations.c.number))
        ]
        assert sorted(numbers) == [1, 2, 3, 4, 5, 6, 7]


async def test_reconciliation_without_mark_continues_from_detected_number(
    state: State,
) -> None:
    async with open_store(state) as store:
        await set_restored_flag(store, HighWaterMark(3, 90))
        assert await clear_restored_flag(store, HighWaterMark(0, 0)) > HighWaterMark(3, 90)


def test_mark_is_never_replaced_by_a_smaller_one(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    assert read_high_water_mark_file(path) == HighWaterMark(0, 0)
    for written_mark in (
        HighWaterMark(0, 5),
        HighWaterMark(0, 3),
        HighWaterMark(1, 1),
        HighWaterMark(0, 9),
    ):
        write_high_water_mark_if_greater(path, written_mark)
    assert read_high_water_mark_file(path) == HighWaterMark(1, 1)
    assert [path_in_folder.name for path_in_folder in tmp_path.iterdir()] == ["mark"]


# Freezes.


async def test_freeze_waits_for_writers_that_missed_it(postgres: State) -> None:
    """On PostgreSQL, a concurrent transaction that has read the freezes counts as begun."""
    async with open_store(postgres) as store:
        other_connection: Any = await asyncpg.connect(postgres.url)
        async with other_connection.transaction():
            await other_connection.execute("SELECT count(*) FROM freezes")
            freeze_task = asyncio.create_task(freeze_writes(store, ACME))
            await wait_for_blocked_lock(store)
            assert not freeze_task.done()
        await other_connection.close()
        assert await freeze_task is True


async def wait_for_blocked_lock(store: Store) -> None:
    async with asyncio.timeout(30):
        while True:
            if await fetch(store, text("SELECT 1 FROM pg_locks WHERE NOT granted")):
                return
            await asyncio.sleep(0.02)


# Retention.


async def test_audit_log_outlives_retention_of_operations(state: State) -> None:
    async with open_store(state, clock=lambda: NOW + timedelta(days=9)) as store:
        operation_repository = await begin_operations(store, "a", "b", "c")
        done_operation, undone_operation, answered_operation = [
            await operation_repository.find_operation(id_) for id_ in "abc"
        ]
        assert None not in (done_operation, undone_operation, answered_operation)
        await operation_repository.save_checkpoint(
            done_operation, Checkpoint(column_values={"state": DONE})
        )
        await operation_repository.mark_answered(["a"])
        await operation_repository.save_checkpoint(
            undone_operation, Checkpoint(column_values={"state": UNDONE}, drops_payload=True)
        )
        await operation_repository.save_checkpoint(
            answered_operation, Checkpoint(column_values={"state": ANSWERED}, drops_payload=True)
        )
        await freeze_writes(store, ACME)
        await unfreeze_writes(store, ACME)
        later = NOW + timedelta(days=8)
        await operation_repository.close_expired_operations(later)
        await clear_expired_responses(store, later, NOW)
        event_counts = [
            len(await fetch(store, select(table)))
            for table in (operations, upstream_writes, audit_events)
        ]
        assert event_counts == [3, 3, 2]


async def test_encrypted_request_is_deleted_after_delivery(state: State) -> None:
    """An operation that finished without its client is also stored completely until delivery."""
    async with open_store(state) as store:
        operation_repository = OperationRepository(store, ObjectStateStore(store))
        steps = Checkpoint(is_first=True, step_results=(0, "[]"), new_write=build_write())
        for id_ in ("whole", "told", "left"):
            await operation_repository.save_checkpoint(
                structs.replace(build_operation(id_), request="{}"), steps
            )
        await operation_repository.save_checkpoint(
            build_operation("whole"), Checkpoint(column_values={"state": DONE, "response": None})
        )
        await operation_repository.save_checkpoint(
            build_operation("told"),
            Checkpoint(column_values={"state": DONE, "response": "x"}, drops_payload=True),
        )
        await operation_repository.mark_answered(["whole", "told", "left"])
        for stored_response in ("x", None):  # until its connection is not reset any more
            found_operations = [
                operation
                for id_ in ("whole", "told", "left")
                if (operation := await operation_repository.find_operation(id_))
            ]
            assert [
                (found_operation.state, found_operation.request, found_operation.response)
                for found_operation in found_operations
            ] == [
                (ANSWERED, None, None),
                (ANSWERED, None, stored_response),
                (RUNNING, "{}", None),
            ]
            assert [
                await operation_repository.load_step_results(found_operation)
                for found_operation in found_operations
            ] == [[], [], ["[]"]]
            later = store.clock() + timedelta(seconds=1)
            # Two processes at once: the second finds that the first has cleared them.
            await asyncio.gather(*[clear_expired_responses(store, NOW, later) for _ in "12"])


def test_only_retention_deletes_from_audit_log() -> None:
    """Check the arguments of every ``delete`` call in the package, except in retention."""
    deleted_tables: set[str] = set()
    for path in Path(gateway.__file__).parent.rglob("*.py"):
        if path.name == "retention.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            callee = getattr(node, "func", None)
            if isinstance(callee, ast.Name) and callee.id == "delete":
                deleted_tables |= {ast.unparse(argument) for argument in node.args}
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert "DELETE FROM" not in node.value.upper(), path
    assert deleted_tables == {
        *(
            "operation_steps",
            "text_chunks",
            "table",  # of the state of objects, in state_tables.py
            "draft_payments",
            "instances",
            "freezes",
            "counters",
            "modes",
            "_batch_services",
        ),
        *("comparisons", "found_differences", "request_counts"),
    }


async def test_open_operations_are_found_by_index(sqlite: State) -> None:
    async with open_store(sqlite) as store:
        with record_statements() as statement_log:
            await use_every_journal_query(store)
    assert len(statement_log) > 10
    for statement, values in statement_log:
        plan = explain_query_plan(sqlite, statement, values)
        scans = [
            plan_line
            for plan_line in plan
            if plan_line.startswith("SCAN")
            and "ix_operations_open" not in plan_line
            and "json_each" not in plan_line
        ]
        assert not scans, (statement, plan)


def explain_query_plan(state: State, statement: str, values: Sequence[Any]) -> list[str]:
    file = find_sqlite_file(parse_state_url(state.url))
    assert file is not None
    with closing(sqlite3.connect(file)) as connection:
        plan_rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
        return [str(plan_row[3]) for plan_row in plan_rows]


async def use_every_journal_query(store: Store) -> None:
    await begin_operations(store, "a")
    operation_repository = OperationRepository(store, ObjectStateStore(store), lambda *_: False)
    await operation_repository.list_related_open(
        structs.replace(build_operation("b"), idempotency="i", object_ids=("R-1",))
    )
    await operation_repository.list_unfinished_without_requests()
    await operation_repository.save_checkpoint(
        build_operation("c"), Checkpoint(is_first=True, new_write=build_write("/recipients/R-1"))
    )
    confirmed_write = structs.replace(
        build_write(), state=CONFIRMED, object_id="R-2", resolved_at=NOW
    )
    await operation_repository.save_checkpoint(
        build_operation("c"),
        Checkpoint(resolved_writes=[confirmed_write], column_values={"state": DONE}),
    )
    await operation_repository.mark_answered(["c"])
    assert await operation_repository.list_open_with_identical_write(
        build_operation("b"), build_write()
    ) == [await operation_repository.find_operation("a")]


async def test_finished_operations_are_read_by_index(sqlite: State) -> None:
    """SQLite uses a partial index only if its condition is literal in the statement."""
    async with open_store(sqlite) as store:
        await begin_operations(store, "b")
        operation_repository = OperationRepository(store, ObjectStateStore(store))
        with record_statements() as statement_log:
            assert (
                len(
                    await operation_repository.list_open_with_identical_write(
                        build_operation("a"), build_write()
                    )
                )
                == 1
            )
            await operation_repository.find_operation("b")
            await operation_repository.close_expired_operations(NOW)
            await clear_expired_responses(store, NOW, NOW)
            await delete_expired_data(store, Retention(texts_days=0, usage_days=0, audit_days=0))
        statements = [statement for statement, _values in statement_log]
        assert len(statements) > 10
    rival_query = operation_statements.SELECT_RIVALS.compile_for_dialect("sqlite").text
    plans = []
    for statement in [*statements, rival_query]:
        plan = explain_query_plan(sqlite, statement, ("",) * statement.count("?"))
        plans.append(plan)
        tables = ("SCAN operations", "SCAN operation_objects", "SCAN upstream_writes")
        scans = [
            plan_line
            for plan_line in plan
            if plan_line in tables or "upstream_writes_merch" in plan_line
        ]
        # In the order of the key, up to a limit: the oldest operations.
        if re.search(r"ORDER BY operations\.number\s+LIMIT", statement):
            scans.remove("SCAN operations")
        assert not scans, (statement, plan)
    # Without looking at the responses that have not expired.
    assert ["SEARCH operations USING INDEX ix_operations_answer_ages (ended_at<?)"] in plans


async def test_identical_requests_are_searched_by_fingerprint(postgres: State) -> None:
    """Also before PostgreSQL has statistics: plans made for a new database stay in use."""
    values = {"text": "x", "text[]": ["x"], "varchar": "x", "timestamptz": NOW, "int4": 1}
    values |= {"bool": True}
    async with open_store(postgres):
        connection: Any = await asyncpg.connect(postgres.url)
        try:
            for statement in (
                operation_statements.SELECT_RELATED_BY_ONE_OBJECT,
                operation_statements.SELECT_DELIVERING_INSTANCES,
                operation_statements.build_operation_insert(True, True),
            ):
                compiled = statement.compile_for_dialect("postgresql")
                prepared = await connection.prepare(compiled.text)
                types = [parameter.name for parameter in prepared.get_parameters()]
                plan = str(await prepared.explain(*(values[name] for name in types)))
                indexes = set(re.findall(r"ix_operations_\w+", plan))
                assert {"ix_operations_open", "ix_operations_answered"} <= indexes, plan
                assert indexes.isdisjoint(("ix_operations_answer_ages", "ix_operations_named"))
                assert not re.search(r"'Seq Scan'[^{]*'Relation Name': 'operations'", plan), plan
                # All operations that ever named an object would be read for one that is open.
                assert "hashed" not in plan
        finally:
            await connection.close()


async def test_legacy_ids_of_objects_are_read_by_index(sqlite: State) -> None:
    async with open_store(sqlite) as store:
        with record_statements("legacy_ids") as statement_log:
            assert await load_legacy_ids(store, ACME, ["B-1", "B-2"]) == {}
    ((statement, _values),) = statement_log
    plan = explain_query_plan(sqlite, statement, ("",) * statement.count("?"))
    assert "current_id=?" in plan[0], plan
