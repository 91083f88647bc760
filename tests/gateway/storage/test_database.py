"""Transactions on both databases."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from operator import methodcaller
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import uvloop
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Integer,
    MetaData,
    Table,
    Text,
    bindparam,
    func,
    select,
    text,
    union_all,
    update,
)
from sqlalchemy.schema import CreateTable

from gateway.storage.database import Database, Transaction, UniqueViolation
from gateway.storage.errors import StoreUnavailable
from gateway.storage.postgresql_database import PostgresqlDatabase
from gateway.storage.sql import DIALECTS, AnyOf, Statement, build_upsert_statement
from gateway.storage.sqlite_database import CHECK_SECONDS, SqliteDatabase
from gateway.storage.sqlite_driver import sqlite3
from gateway.storage.tables import UTCDateTime

metadata = MetaData()
things = Table(
    "thing",
    metadata,
    Column("id", Text, primary_key=True),
    Column("count", Integer),
    Column("is_open", Boolean),
    Column("made_at", UTCDateTime),
    Column("facts", JSON),
)
INSERT = Statement(lambda dialect: dialect.insert(things), [column.name for column in things.c])
UPSERT = build_upsert_statement(things, ["count"])
SELECT_ALL = Statement(lambda _dialect: select(things).order_by(things.c.id))
SELECT_SOME = Statement(
    lambda _dialect: select(things.c.id).where(AnyOf(things.c.id, "ids")).order_by("id")
)
SELECT_ONE = Statement(lambda _dialect: select(things).where(things.c.id == bindparam("wanted")))
INCREMENT = Statement(
    lambda _dialect: (
        update(things)
        .where(things.c.id == bindparam("wanted"))
        .values(count=things.c.count + 1)
        .returning(things.c.count)
    )
)
INCREMENT_ONLY = Statement(
    lambda _dialect: (
        update(things).where(things.c.id == bindparam("wanted")).values(count=things.c.count + 1)
    )
)
NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)


def build_row(id_: str, count: int = 0) -> dict[str, Any]:
    return {"id": id_, "count": count, "is_open": True, "made_at": NOW, "facts": {"a": [1]}}


def build_connect(file: Path) -> Callable[[float], sqlite3.Connection]:
    return lambda seconds: sqlite3.connect(
        file, timeout=seconds, isolation_level=None, check_same_thread=False
    )


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("database") if request.param == "postgresql" else None


@pytest.fixture
async def empty_database(dsn: str | None, tmp_path: Path) -> AsyncIterator[Database]:
    """An empty database of either kind, with the table."""
    create_table = CreateTable(things)
    if dsn is None:
        connect = build_connect(tmp_path / "test.db")
        connect(0).execute(str(create_table.compile(dialect=DIALECTS["sqlite"][1])))
        opened_database: Database = SqliteDatabase("test.db", connect)
    else:
        connection: Any = await asyncpg.connect(dsn)
        await connection.execute("DROP TABLE IF EXISTS thing")
        await connection.execute(str(create_table.compile(dialect=DIALECTS["postgresql"][1])))
        await connection.close()
        opened_database = PostgresqlDatabase("a database", dsn)
    yield opened_database
    await opened_database.close()


async def insert_rows(tx: Transaction, *rows: dict[str, Any]) -> int:
    return await tx.execute(INSERT, *rows)


async def increment(tx: Transaction) -> int:
    count: int = await tx.fetch_value(INCREMENT, {"wanted": "a"})
    return count


async def load_all_rows(database: Database) -> list[Any]:
    return await database.read(lambda tx: tx.fetch(SELECT_ALL))


async def test_values_come_back_as_they_were(empty_database: Database) -> None:
    assert await empty_database.write(lambda tx: insert_rows(tx, build_row("a", 7))) == 1
    (stored_row,) = await load_all_rows(empty_database)
    assert stored_row._asdict() == build_row("a", 7)


async def test_statement_that_is_compiled_once_takes_lists_of_any_length(
    empty_database: Database,
) -> None:
    await empty_database.write(
        lambda tx: insert_rows(tx, *(build_row(f"{number:04}") for number in range(2000)))
    )
    ids = [f"{number:04}" for number in range(0, 4000, 2)]
    for selected_ids, expected in (([], []), (ids[:1], ids[:1]), (ids, ids[:1000])):
        found_rows = await empty_database.read(
            lambda tx, ids=selected_ids: tx.fetch(SELECT_SOME, {"ids": ids})
        )
        assert [found_row.id for found_row in found_rows] == expected


@pytest.mark.parametrize("unknown_count", [1, 1000])
async def test_plain_statements_run_too(empty_database: Database, unknown_count: int) -> None:
    await empty_database.write(
        lambda tx: insert_rows(tx, build_row("a", 1), build_row("b", 2), build_row("c", 3))
    )
    ids = ["a", "c", *(f"x{number}" for number in range(unknown_count))]
    query = select(things.c.id).where(things.c.id.in_(ids), things.c.made_at == NOW)
    found_rows = await empty_database.read(lambda tx: tx.fetch(query.order_by(things.c.id)))
    assert [found_row.id for found_row in found_rows] == ["a", "c"]
    change = update(things).where(things.c.count > 1).values(is_open=False)
    assert await empty_database.write(lambda tx: tx.execute(change)) == 2
    assert [found_row.is_open for found_row in await load_all_rows(empty_database)] == [
        True,
        False,
        False,
    ]


async def test_upsert_changes_the_row_that_exists(empty_database: Database) -> None:
    await empty_database.write(lambda tx: insert_rows(tx, build_row("a", 1)))
    await empty_database.write(lambda tx: tx.execute(UPSERT, {"id": "a", "count": 5}))
    await empty_database.write(lambda tx: tx.execute(UPSERT, {"id": "b", "count": 6}))
    assert [
        (stored_row.id, stored_row.count) for stored_row in await load_all_rows(empty_database)
    ] == [
        ("a", 5),
        ("b", 6),
    ]


async def test_failed_body_changes_nothing_and_raises_its_error(empty_database: Database) -> None:
    async def insert_and_fail(tx: Transaction) -> None:
        await insert_rows(tx, build_row("a"))
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await empty_database.write(insert_and_fail)
    assert await load_all_rows(empty_database) == []


async def test_single_body_changes_nothing_if_its_first_statement_changes_no_row(
    empty_database: Database,
) -> None:
    await empty_database.write(lambda tx: insert_rows(tx, build_row("a")))

    async def increment_and_insert(tx: Transaction, wanted: str, new_id: str) -> Sequence[int]:
        changes = [(INCREMENT_ONLY, {"wanted": wanted}), (INSERT, build_row(new_id))]
        is_changed, *counts = await tx.execute_all(changes)
        if not is_changed:
            raise LookupError
        return counts

    def write(wanted: str, new_id: str) -> Awaitable[Sequence[int]]:
        return empty_database.write(
            lambda tx: increment_and_insert(tx, wanted, new_id), is_single=True
        )

    for number in range(3):
        with pytest.raises(LookupError):
            await write("none", "b")
        assert [row.id for row in await load_all_rows(empty_database)] == [
            "a",
            *(f"c{each}" for each in range(number)),
        ]
        assert await write("a", f"c{number}") == [1]
    with pytest.raises(UniqueViolation):
        await write("a", "a")
    assert [row.count for row in await load_all_rows(empty_database)] == [3, 0, 0, 0]


async def test_reads_by_key_at_the_same_time_get_their_own_rows(empty_database: Database) -> None:
    await empty_database.write(lambda tx: insert_rows(tx, build_row("a", 1), build_row("b", 2)))

    async def fetch(id_: str) -> list[Any]:
        return [row.count for row in await empty_database.fetch_by_key(SELECT_ONE, {"wanted": id_})]

    assert await fetch("a") == [1]
    wanted = ["b", "none", "a", "b"] * 20
    expected: dict[str, list[int]] = {"a": [1], "b": [2], "none": []}
    assert await asyncio.gather(*map(fetch, wanted)) == [expected[id_] for id_ in wanted]
    row, _ = await asyncio.gather(
        empty_database.fetch_by_key(SELECT_ONE, {"wanted": "a"}), fetch("b")
    )
    assert row == await empty_database.read(lambda tx: tx.fetch(SELECT_ONE, {"wanted": "a"}))


async def test_reads_at_the_same_time_may_compare_times(empty_database: Database) -> None:
    await empty_database.write(lambda tx: insert_rows(tx, build_row("a", 1), build_row("b", 2)))
    is_later = things.c.made_at > bindparam("since", type_=things.c.made_at.type)
    of_id = select(things.c.id).where(things.c.id == bindparam("wanted"))
    later = select(things.c.id).where(things.c.id == bindparam("wanted"), is_later)
    statement = Statement(union_all(of_id, later))
    moments = {NOW: 1, NOW - timedelta(seconds=1): 2}
    requests = [(id_, since) for id_ in "abc" for since in moments]
    found = await asyncio.gather(
        *(
            empty_database.fetch_by_key(statement, {"wanted": id_, "since": since})
            for id_, since in requests
        )
    )
    expected = [[(id_,)] * moments[since] * (id_ != "c") for id_, since in requests]
    assert [[tuple(row) for row in rows] for rows in found] == expected


async def test_duplicate_key_is_told_apart_from_a_failure(empty_database: Database) -> None:
    await empty_database.write(lambda tx: insert_rows(tx, build_row("a")))
    with pytest.raises(UniqueViolation):
        await empty_database.write(lambda tx: insert_rows(tx, build_row("a")))
    assert empty_database.write_error is None


async def test_changes_at_the_same_time_are_all_made_and_failures_stay_alone(
    empty_database: Database,
) -> None:
    await empty_database.write(lambda tx: insert_rows(tx, build_row("a")))

    async def insert_and_fail(tx: Transaction) -> int:
        await increment(tx)
        raise LookupError

    bodies = [insert_and_fail if number % 3 == 0 else increment for number in range(60)]
    results = await asyncio.gather(*map(empty_database.write, bodies), return_exceptions=True)
    assert sorted(result for result in results if isinstance(result, int)) == list(range(1, 41))
    assert sum(isinstance(result, LookupError) for result in results) == 20
    (stored_row,) = await load_all_rows(empty_database)
    assert stored_row.count == 40


async def test_locks_serialize_transactions_that_read_before_they_write(
    empty_database: Database,
) -> None:
    await empty_database.write(lambda tx: insert_rows(tx, build_row("a")))

    async def read_and_write(tx: Transaction) -> None:
        await tx.lock("b", "a")
        (current_row,) = await tx.fetch(SELECT_ALL)
        await tx.execute(UPSERT, {"id": "a", "count": current_row.count + 1})

    await asyncio.gather(*(empty_database.write(read_and_write) for _ in range(20)))
    (stored_row,) = await load_all_rows(empty_database)
    assert stored_row.count == 20


async def test_change_of_a_cancelled_caller_is_committed(empty_database: Database) -> None:
    await empty_database.write(lambda tx: insert_rows(tx, build_row("a")))

    async def increment_slowly(tx: Transaction) -> None:
        await increment(tx)
        if tx.dialect == "postgresql":
            await tx.fetch(select(func.pg_sleep(0.3)))
        else:
            time.sleep(0.3)  # noqa: ASYNC251 - in the database's thread

    caller = asyncio.ensure_future(empty_database.write(increment_slowly))
    await asyncio.sleep(0.1)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.sleep(0.5)
    (stored_row,) = await load_all_rows(empty_database)
    assert stored_row.count == 1


async def test_brief_read_runs_here_unless_the_file_is_locked(tmp_path: Path) -> None:
    connect = build_connect(tmp_path / "test.db")
    other_connection = connect(0)
    other_connection.execute(str(CreateTable(things).compile(dialect=DIALECTS["sqlite"][1])))
    sqlite_database = SqliteDatabase("test.db", connect)
    await sqlite_database.write(lambda tx: insert_rows(tx, build_row("a", 7)))

    async def load_count_and_thread(tx: Transaction) -> tuple[int, int]:
        (stored_row,) = await tx.fetch(SELECT_ALL)
        return stored_row.count, threading.get_ident()

    assert await sqlite_database.read(load_count_and_thread, is_brief=True) == (
        7,
        threading.get_ident(),
    )
    assert (await sqlite_database.read(load_count_and_thread))[1] != threading.get_ident()
    other_connection.execute("BEGIN EXCLUSIVE")
    read_task = asyncio.ensure_future(sqlite_database.read(load_count_and_thread, is_brief=True))
    await asyncio.sleep(0.1)
    assert not read_task.done()
    other_connection.execute("UPDATE thing SET count = 8")
    other_connection.execute("COMMIT")
    count, thread = await read_task
    assert count == 8
    assert thread != threading.get_ident()
    # A brief read holds no lock after its end.
    other_connection.execute("BEGIN EXCLUSIVE")
    other_connection.execute("ROLLBACK")
    other_connection.close()
    await sqlite_database.close()


async def test_rows_fetched_at_once_follow_every_change_of_others(tmp_path: Path) -> None:
    file = tmp_path / "test.db"
    connect = build_connect(file)
    other_connection = connect(0)
    other_connection.execute("PRAGMA journal_mode = PERSIST")
    other_connection.execute(str(CreateTable(things).compile(dialect=DIALECTS["sqlite"][1])))
    other_connection.execute("INSERT INTO thing (id, count) VALUES ('a', 0)")
    sqlite_database = SqliteDatabase(str(file), connect)
    select_count = Statement(
        lambda _dialect: select(things.c.count).where(things.c.id == bindparam("wanted"))
    )
    for number in range(1, 200):
        other_connection.execute("UPDATE thing SET count = ?", (number,))
        await asyncio.sleep(CHECK_SECONDS)
        for _ in range(2):
            assert sqlite_database.fetch_now(select_count, {"wanted": "a"}) == [(number,)]
    statements: list[str] = []
    read_cursor: Any = sqlite_database._read_cursor
    read_cursor.connection.set_trace_callback(statements.append)
    assert sqlite_database.fetch_now(select_count, {"wanted": "a"}) == [(199,)]
    assert {*statements} <= {"PRAGMA data_version"}
    other_connection.execute("BEGIN EXCLUSIVE")
    other_connection.execute("UPDATE thing SET count = 200")
    other_connection.execute("COMMIT")
    await asyncio.sleep(2 * CHECK_SECONDS)
    assert sqlite_database.fetch_now(select_count, {"wanted": "a"}) == [(200,)]
    for number in range(300, 400):
        statement = text(f"UPDATE thing SET count = {number}")
        await sqlite_database.write(lambda tx, statement=statement: tx.execute(statement))
        assert sqlite_database.fetch_now(select_count, {"wanted": "a"}) == [(number,)]
    other_connection.close()
    await sqlite_database.close()


async def test_rows_fetched_during_a_commit_are_fetched_again(tmp_path: Path) -> None:
    """A slow disk confirms a change long after the file was written; until then nobody sees it."""
    file = tmp_path / "test.db"
    connect = build_connect(file)
    connection = connect(0)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(str(CreateTable(things).compile(dialect=DIALECTS["sqlite"][1])))
    sqlite_database = SqliteDatabase(str(file), connect)
    await sqlite_database.write(lambda tx: insert_rows(tx, build_row("a")))
    wal, written_at = tmp_path / "test.db-wal", time.time_ns() - 1_000_000_000
    os.utime(wal, ns=(written_at, written_at))
    select_count = Statement(select(things.c.count).where(things.c.id == bindparam("wanted")))
    assert sqlite_database.fetch_now(select_count, {"wanted": "a"}) == [(0,)]
    change = text("UPDATE thing SET count = 1")
    await sqlite_database.write(lambda tx: tx.execute(change))
    os.utime(wal, ns=(written_at, written_at))
    assert sqlite_database.fetch_now(select_count, {"wanted": "a"}) == [(1,)]
    connection.execute("UPDATE thing SET count = 2")
    os.utime(wal, ns=(written_at, written_at))
    await asyncio.sleep(CHECK_SECONDS)
    assert sqlite_database.fetch_now(select_count, {"wanted": "a"}) == [(2,)]
    connection.close()
    await sqlite_database.close()


async def test_body_that_waits_for_something_else_is_refused(tmp_path: Path) -> None:
    sqlite_database = SqliteDatabase("test.db", build_connect(tmp_path / "test.db"))
    with pytest.raises(TypeError, match="awaited something other"):
        await sqlite_database.write(lambda _tx: asyncio.sleep(0))
    await sqlite_database.close()


async def end_connections(database: str) -> None:
    """Ends all connections to the database, as its restart does."""
    admin_connection: Any = await asyncpg.connect(database)
    await admin_connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await asyncio.sleep(0.1)
    await admin_connection.close()


def test_database_that_was_restarted_during_a_pause_costs_no_write(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process finds the end of its connections only when it uses them."""
    monkeypatch.setattr("gateway.storage.postgresql_database.RESPONSIVE_SECONDS", 0)

    async def write_after_pause() -> None:
        postgresql_database = PostgresqlDatabase("a database", database)
        fetch_one = methodcaller("fetch_value", Statement(lambda _dialect: select(text("1"))))
        assert await postgresql_database.write(fetch_one, is_single=True) == 1
        # The event loop reads nothing meanwhile.
        thread = threading.Thread(target=asyncio.run, args=(end_connections(database),))
        thread.start()
        thread.join()
        assert await postgresql_database.write(fetch_one, is_single=True) == 1
        await postgresql_database.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(write_after_pause())


async def test_statements_are_planned_once_on_postgresql(database: str) -> None:
    """Planning one takes longer than running it; the planner's own choice is to plan some always."""
    query = text("SELECT sum(custom_plans) FROM pg_prepared_statements WHERE statement <> :other")
    count_plans = Statement(query.bindparams(bindparam("other", type_=Text())))
    postgresql_database = PostgresqlDatabase("a database", database)
    for _ in range(3):
        custom_plans = await postgresql_database.read(
            lambda tx: tx.fetch_value(count_plans, {"other": ""})
        )
        assert custom_plans == 0
    await postgresql_database.close()


def test_restarted_database_costs_no_request(database: str) -> None:
    async def restart_and_write() -> None:
        postgresql_database = PostgresqlDatabase("a database", database)
        select_one = Statement(lambda _dialect: select(text("1")))
        assert await postgresql_database.read(lambda tx: tx.fetch_value(select_one)) == 1
        await end_connections(database)
        assert await postgresql_database.write(lambda tx: tx.fetch_value(select_one)) == 1
        await postgresql_database.close()

    # On uvloop, like the gateway: asyncio's own loop warns of transports dropped by asyncpg.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(restart_and_write())


async def test_unusable_database_is_one_error_and_is_remembered(tmp_path: Path) -> None:
    sqlite_database = SqliteDatabase("test.db", build_connect(tmp_path / "none" / "test.db"))
    with pytest.raises(StoreUnavailable, match=r"test\.db cannot be used"):
        await sqlite_database.read(lambda tx: tx.fetch(SELECT_ALL))
    assert sqlite_database.write_error is None
    with pytest.raises(StoreUnavailable):
        await sqlite_database.write(increment)
    assert sqlite_database.write_error is not None
    await sqlite_database.close()
    unreachable_database = PostgresqlDatabase("nowhere", "postgresql://127.0.0.1:1/none", timeout=2)
    with pytest.raises(StoreUnavailable, match="nowhere cannot be used"):
        await unreachable_database.read(lambda tx: tx.fetch(SELECT_ALL))
    await unreachable_database.close()
