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
from gateway.storage.sql import DIALECTS, AnyOf, Statement, upsert
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
PUT = upsert(thing, ["id"], ["count"])
ALL = Statement(lambda _dialect: select(thing).order_by(thing.c.id))
SOME = Statement(lambda _dialect: select(thing.c.id).where(AnyOf(thing.c.id, "ids")).order_by("id"))
COUNT_UP = Statement(
    lambda _dialect: (
        update(thing)
        .where(thing.c.id == bindparam("its"))
        .values(count=thing.c.count + 1)
        .returning(thing.c.count)
    )
)
NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)


def row(id_: str, count: int = 0) -> dict[str, Any]:
    return {"id": id_, "count": count, "is_open": True, "made_at": NOW, "facts": {"a": [1]}}


def connecting(file: Path) -> Callable[[float], sqlite3.Connection]:
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
        connect = connecting(tmp_path / "it.db")
        connect(0).execute(str(create.compile(dialect=DIALECTS["sqlite"][1])))
        found: Database = SqliteDatabase("it.db", connect)
    else:
        connection: Any = await asyncpg.connect(dsn)
        await connection.execute("DROP TABLE IF EXISTS thing")
        await connection.execute(str(create.compile(dialect=DIALECTS["postgresql"][1])))
        await connection.close()
        found = PostgresqlDatabase("a database", dsn)
    yield found
    await found.close()


async def put_all(tx: Transaction, *rows: dict[str, Any]) -> int:
    return await tx.execute(INSERT, *rows)


async def count_up(tx: Transaction) -> int:
    count: int = await tx.fetch_value(COUNT_UP, {"its": "a"})
    return count


async def everything(database: Database) -> list[Any]:
    return await database.read(lambda tx: tx.fetch(ALL))


async def test_values_come_back_as_they_were(opened: Database) -> None:
    assert await opened.write(lambda tx: put_all(tx, row("a", 7))) == 1
    (found,) = await everything(opened)
    assert found._asdict() == row("a", 7)


async def test_statement_that_is_compiled_once_takes_lists_of_any_length(opened: Database) -> None:
    await opened.write(lambda tx: put_all(tx, *(row(f"{number:04}") for number in range(2000))))
    ids = [f"{number:04}" for number in range(0, 4000, 2)]
    for some, expected in (([], []), (ids[:1], ids[:1]), (ids, ids[:1000])):
        found = await opened.read(lambda tx, some=some: tx.fetch(SOME, {"ids": some}))
        assert [each.id for each in found] == expected


async def test_plain_statements_run_too(opened: Database) -> None:
    await opened.write(lambda tx: put_all(tx, row("a", 1), row("b", 2), row("c", 3)))
    chosen = select(thing.c.id).where(thing.c.id.in_(["a", "c", "x"]), thing.c.made_at == NOW)
    found = await opened.read(lambda tx: tx.fetch(chosen.order_by(thing.c.id)))
    assert [each.id for each in found] == ["a", "c"]
    change = update(thing).where(thing.c.count > 1).values(is_open=False)
    assert await opened.write(lambda tx: tx.execute(change)) == 2
    assert [each.is_open for each in await everything(opened)] == [True, False, False]


async def test_upsert_changes_the_row_that_exists(opened: Database) -> None:
    await opened.write(lambda tx: put_all(tx, row("a", 1)))
    await opened.write(lambda tx: tx.execute(PUT, {"id": "a", "count": 5}))
    await opened.write(lambda tx: tx.execute(PUT, {"id": "b", "count": 6}))
    assert [(each.id, each.count) for each in await everything(opened)] == [("a", 5), ("b", 6)]


async def test_failed_body_changes_nothing_and_raises_its_error(opened: Database) -> None:
    async def fail(tx: Transaction) -> None:
        await put_all(tx, row("a"))
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await opened.write(fail)
    assert await everything(opened) == []


async def test_duplicate_key_is_told_apart_from_a_failure(opened: Database) -> None:
    await opened.write(lambda tx: put_all(tx, row("a")))
    with pytest.raises(UniqueViolation):
        await opened.write(lambda tx: put_all(tx, row("a")))
    assert opened.unwritten is None


async def test_changes_at_the_same_time_are_all_made_and_failures_stay_alone(
    opened: Database,
) -> None:
    await opened.write(lambda tx: put_all(tx, row("a")))

    async def fail(tx: Transaction) -> int:
        await count_up(tx)
        raise LookupError

    bodies = [fail if number % 3 == 0 else count_up for number in range(60)]
    results = await asyncio.gather(*map(opened.write, bodies), return_exceptions=True)
    assert sorted(each for each in results if isinstance(each, int)) == list(range(1, 41))
    assert sum(isinstance(each, LookupError) for each in results) == 20
    (found,) = await everything(opened)
    assert found.count == 40


async def test_locks_serialize_transactions_that_read_before_they_write(opened: Database) -> None:
    await opened.write(lambda tx: put_all(tx, row("a")))

    async def read_and_write(tx: Transaction) -> None:
        await tx.lock("b", "a")
        (found,) = await tx.fetch(ALL)
        await tx.execute(PUT, {"id": "a", "count": found.count + 1})

    await asyncio.gather(*(opened.write(read_and_write) for _ in range(20)))
    (found,) = await everything(opened)
    assert found.count == 20


async def test_change_of_a_cancelled_caller_is_committed(opened: Database) -> None:
    await opened.write(lambda tx: put_all(tx, row("a")))

    async def slow(tx: Transaction) -> None:
        await count_up(tx)
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
    (found,) = await everything(opened)
    assert found.count == 1


async def test_brief_read_runs_here_unless_the_file_is_locked(tmp_path: Path) -> None:
    connect = connecting(tmp_path / "it.db")
    other = connect(0)
    other.execute(str(CreateTable(thing).compile(dialect=DIALECTS["sqlite"][1])))
    opened = SqliteDatabase("it.db", connect)
    await opened.write(lambda tx: put_all(tx, row("a", 7)))

    async def read(tx: Transaction) -> tuple[int, int]:
        (found,) = await tx.fetch(ALL)
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
    opened = SqliteDatabase("it.db", connecting(tmp_path / "it.db"))
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
    opened = SqliteDatabase("it.db", connecting(tmp_path / "none" / "it.db"))
    with pytest.raises(StoreUnavailable, match=r"it\.db cannot be used"):
        await opened.read(lambda tx: tx.fetch(ALL))
    assert opened.unwritten is None
    with pytest.raises(StoreUnavailable):
        await opened.write(count_up)
    assert opened.unwritten is not None
    await opened.close()
    unreachable = PostgresqlDatabase("nowhere", "postgresql://127.0.0.1:1/none", timeout=2)
    with pytest.raises(StoreUnavailable, match="nowhere cannot be used"):
        await unreachable.read(lambda tx: tx.fetch(ALL))
    await unreachable.close()
