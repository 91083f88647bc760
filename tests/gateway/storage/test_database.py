"""Transactions on both databases."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
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
    update,
)
from sqlalchemy.schema import CreateTable

from gateway.storage.database import Database, Transaction, UniqueViolation
from gateway.storage.errors import StoreUnavailable
from gateway.storage.postgresql_database import PostgresqlDatabase
from gateway.storage.sql import DIALECTS, AnyOf, Statement, build_upsert_statement
from gateway.storage.sqlite_database import SqliteDatabase
from gateway.storage.tables import UTCDateTime

metadata = MetaData()
thing = Table(
    "thing",
    metadata,
    Column("id", Text, primary_key=True),
    Column("count", Integer),
    Column("is_open", Boolean),
    Column("made_at", UTCDateTime),
    Column("facts", JSON),
)
INSERT = Statement(lambda dialect: dialect.insert(thing), [column.name for column in thing.c])
UPSERT = build_upsert_statement(thing, ["id"], ["count"])
SELECT_ALL = Statement(lambda _dialect: select(thing).order_by(thing.c.id))
SELECT_SOME = Statement(
    lambda _dialect: select(thing.c.id).where(AnyOf(thing.c.id, "ids")).order_by("id")
)
INCREMENT = Statement(
    lambda _dialect: (
        update(thing)
        .where(thing.c.id == bindparam("wanted"))
        .values(count=thing.c.count + 1)
        .returning(thing.c.count)
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
async def opened(dsn: str | None, tmp_path: Path) -> AsyncIterator[Database]:
    """An empty database of either kind, with the table."""
    create = CreateTable(thing)
    if dsn is None:
        connect = build_connect(tmp_path / "test.db")
        connect(0).execute(str(create.compile(dialect=DIALECTS["sqlite"][1])))
        found: Database = SqliteDatabase("test.db", connect)
    else:
        connection: Any = await asyncpg.connect(dsn)
        await connection.execute("DROP TABLE IF EXISTS thing")
        await connection.execute(str(create.compile(dialect=DIALECTS["postgresql"][1])))
        await connection.close()
        found = PostgresqlDatabase("a database", dsn)
    yield found
    await found.close()


async def insert_rows(tx: Transaction, *rows: dict[str, Any]) -> int:
    return await tx.execute(INSERT, *rows)


async def increment(tx: Transaction) -> int:
    count: int = await tx.fetch_value(INCREMENT, {"wanted": "a"})
    return count


async def load_all_rows(database: Database) -> list[Any]:
    return await database.read(lambda tx: tx.fetch(SELECT_ALL))


async def test_values_come_back_as_they_were(opened: Database) -> None:
    assert await opened.write(lambda tx: insert_rows(tx, build_row("a", 7))) == 1
    (found,) = await load_all_rows(opened)
    assert found._asdict() == build_row("a", 7)


async def test_statement_that_is_compiled_once_takes_lists_of_any_length(opened: Database) -> None:
    await opened.write(
        lambda tx: insert_rows(tx, *(build_row(f"{number:04}") for number in range(2000)))
    )
    ids = [f"{number:04}" for number in range(0, 4000, 2)]
    for wanted_ids, expected in (([], []), (ids[:1], ids[:1]), (ids, ids[:1000])):
        found = await opened.read(lambda tx, ids=wanted_ids: tx.fetch(SELECT_SOME, {"ids": ids}))
        assert [each.id for each in found] == expected


async def test_plain_statements_run_too(opened: Database) -> None:
    await opened.write(
        lambda tx: insert_rows(tx, build_row("a", 1), build_row("b", 2), build_row("c", 3))
    )
    chosen = select(thing.c.id).where(thing.c.id.in_(["a", "c", "x"]), thing.c.made_at == NOW)
    found = await opened.read(lambda tx: tx.fetch(chosen.order_by(thing.c.id)))
    assert [each.id for each in found] == ["a", "c"]
    change = update(thing).where(thing.c.count > 1).values(is_open=False)
    assert await opened.write(lambda tx: tx.execute(change)) == 2
    assert [each.is_open for each in await load_all_rows(opened)] == [True, False, False]


async def test_upsert_changes_the_row_that_exists(opened: Database) -> None:
    await opened.write(lambda tx: insert_rows(tx, build_row("a", 1)))
    await opened.write(lambda tx: tx.execute(UPSERT, {"id": "a", "count": 5}))
    await opened.write(lambda tx: tx.execute(UPSERT, {"id": "b", "count": 6}))
    assert [(each.id, each.count) for each in await load_all_rows(opened)] == [("a", 5), ("b", 6)]


async def test_failed_body_changes_nothing_and_raises_its_error(opened: Database) -> None:
    async def fail(tx: Transaction) -> None:
        await insert_rows(tx, build_row("a"))
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await opened.write(fail)
    assert await load_all_rows(opened) == []


async def test_duplicate_key_is_told_apart_from_a_failure(opened: Database) -> None:
    await opened.write(lambda tx: insert_rows(tx, build_row("a")))
    with pytest.raises(UniqueViolation):
        await opened.write(lambda tx: insert_rows(tx, build_row("a")))
    assert opened.write_error is None


async def test_changes_at_the_same_time_are_all_made_and_failures_stay_alone(
    opened: Database,
) -> None:
    await opened.write(lambda tx: insert_rows(tx, build_row("a")))

    async def fail(tx: Transaction) -> int:
        await increment(tx)
        raise LookupError

    bodies = [fail if number % 3 == 0 else increment for number in range(60)]
    results = await asyncio.gather(*map(opened.write, bodies), return_exceptions=True)
    assert sorted(each for each in results if isinstance(each, int)) == list(range(1, 41))
    assert sum(isinstance(each, LookupError) for each in results) == 20
    (found,) = await load_all_rows(opened)
    assert found.count == 40


async def test_locks_serialize_transactions_that_read_before_they_write(opened: Database) -> None:
    await opened.write(lambda tx: insert_rows(tx, build_row("a")))

    async def read_and_write(tx: Transaction) -> None:
        await tx.lock("b", "a")
        (found,) = await tx.fetch(SELECT_ALL)
        await tx.execute(UPSERT, {"id": "a", "count": found.count + 1})

    await asyncio.gather(*(opened.write(read_and_write) for _ in range(20)))
    (found,) = await load_all_rows(opened)
    assert found.count == 20


async def test_change_of_a_cancelled_caller_is_committed(opened: Database) -> None:
    await opened.write(lambda tx: insert_rows(tx, build_row("a")))

    async def slow(tx: Transaction) -> None:
        await increment(tx)
        if tx.dialect == "postgresql":
            await tx.fetch(select(func.pg_sleep(0.3)))
        else:
            time.sleep(0.3)  # noqa: ASYNC251 - in the database's thread

    caller = asyncio.ensure_future(opened.write(slow))
    await asyncio.sleep(0.1)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.sleep(0.5)
    (found,) = await load_all_rows(opened)
    assert found.count == 1


async def test_brief_read_runs_here_unless_the_file_is_locked(tmp_path: Path) -> None:
    connect = build_connect(tmp_path / "test.db")
    other = connect(0)
    other.execute(str(CreateTable(thing).compile(dialect=DIALECTS["sqlite"][1])))
    opened = SqliteDatabase("test.db", connect)
    await opened.write(lambda tx: insert_rows(tx, build_row("a", 7)))

    async def read(tx: Transaction) -> tuple[int, int]:
        (found,) = await tx.fetch(SELECT_ALL)
        return found.count, threading.get_ident()

    assert await opened.read(read, is_brief=True) == (7, threading.get_ident())
    assert (await opened.read(read))[1] != threading.get_ident()
    other.execute("BEGIN EXCLUSIVE")
    reading = asyncio.ensure_future(opened.read(read, is_brief=True))
    await asyncio.sleep(0.1)
    assert not reading.done()
    other.execute("UPDATE thing SET count = 8")
    other.execute("COMMIT")
    count, thread = await reading
    assert count == 8
    assert thread != threading.get_ident()
    # A brief read holds no lock after its end.
    other.execute("BEGIN EXCLUSIVE")
    other.execute("ROLLBACK")
    other.close()
    await opened.close()


async def test_body_that_waits_for_something_else_is_refused(tmp_path: Path) -> None:
    opened = SqliteDatabase("test.db", build_connect(tmp_path / "test.db"))
    with pytest.raises(TypeError, match="awaited something other"):
        await opened.write(lambda _tx: asyncio.sleep(0))
    await opened.close()


def test_restarted_database_costs_no_request(database: str) -> None:
    async def restart_and_write() -> None:
        opened = PostgresqlDatabase("a database", database)
        one = Statement(lambda _dialect: select(text("1")))
        assert await opened.read(lambda tx: tx.fetch_value(one)) == 1
        other: Any = await asyncpg.connect(database)
        await other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await asyncio.sleep(0.1)
        assert await opened.write(lambda tx: tx.fetch_value(one)) == 1
        await other.close()
        await opened.close()

    # As the gateway runs: asyncio's own loop warns of the transport that asyncpg's pool drops.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(restart_and_write())


async def test_unusable_database_is_one_error_and_is_remembered(tmp_path: Path) -> None:
    opened = SqliteDatabase("test.db", build_connect(tmp_path / "none" / "test.db"))
    with pytest.raises(StoreUnavailable, match=r"test\.db cannot be used"):
        await opened.read(lambda tx: tx.fetch(SELECT_ALL))
    assert opened.write_error is None
    with pytest.raises(StoreUnavailable):
        await opened.write(increment)
    assert opened.write_error is not None
    await opened.close()
    unreachable = PostgresqlDatabase("nowhere", "postgresql://127.0.0.1:1/none", timeout=2)
    with pytest.raises(StoreUnavailable, match="nowhere cannot be used"):
        await unreachable.read(lambda tx: tx.fetch(SELECT_ALL))
    await unreachable.close()
