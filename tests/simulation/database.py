"""A database in memory: a transaction takes no time, and time passes before and after it.

The driver never waits, so that every run of a seed is the same.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal, cast

from sqlalchemy import Row, Select, delete, event
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool
from sqlalchemy.util import await_only

from gateway.auth.key_import import import_keys
from gateway.auth.key_lines import parse_key_lines
from gateway.storage import Store, StoreUnavailable
from gateway.storage import engine as engines
from gateway.storage.encryption import EncryptionKeys
from gateway.storage.migrate import migrate
from gateway.storage.on_sqlite import transact
from gateway.storage.statements import Made, Transaction
from gateway.storage.tables import metadata
from tests.simulation.process import Process
from tests.state import KEY, OpenOperation, StoredWrite, select_open_operations, select_writes

ENCRYPTION_KEYS = EncryptionKeys({"one": base64.b64decode(b"A" * 43 + b"=")})
UNCHANGED_TABLES = ("keys", "pairs", "counters", "encryption_keys")
"""Tables that every seed shares."""

Fault = Literal["before", "after"] | None


class _Cursor(sqlite3.Cursor):
    async def _async_soft_close(self) -> None:
        """Required by SQLAlchemy of an asynchronous cursor."""


class _Connection(sqlite3.Connection):
    def cursor(self, *_factory: Any) -> sqlite3.Cursor:
        return super().cursor(_Cursor)


class Inline(SQLiteDialect_pysqlite):
    """SQLite's driver, called synchronously from an asynchronous engine."""

    driver = "inline"
    is_async = True
    supports_statement_cache = True


registry.register("sqlite.inline", __name__, "Inline")


class SimulatedStore(Store):
    """One process's store, which may fail before or after a transaction."""

    def __init__(self, process: Process, engine: AsyncEngine, *, shared: bool) -> None:
        super().__init__(engine, "memory", lambda: datetime.fromtimestamp(process.wall(), UTC))
        self.encryption = ENCRYPTION_KEYS
        self.shared = shared
        self.fault_rate = 0.0
        """Share of its transactions that fail."""
        self._process = process

    @property
    def is_of_one_process(self) -> bool:
        return not self.shared

    def _choose_fault(self) -> Fault:
        dice = self._process.random_source
        return dice.choice(("before", "after")) if dice.random() < self.fault_rate else None

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        await self._process.step()
        if self._choose_fault():
            raise _build_unavailable()
        async with super().read() as connection, _assert_no_wait():
            yield connection
        await self._process.step()

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        fault = self._choose_fault()
        await self._process.step()
        if fault == "before":
            raise _build_unavailable()
        async with super().write() as connection, _assert_no_wait():
            yield connection
        await self._process.step()
        if fault == "after":  # committed, but reported as failed
            raise _build_unavailable()

    async def looked_up(self, work: Transaction[Made]) -> Made:
        await self._process.step()
        if self._choose_fault():
            raise _build_unavailable()
        result = self._transact(work, "BEGIN")
        await self._process.step()
        return result

    async def carried_out(self, work: Transaction[Made], *, within: float = 0.0) -> Made:
        fault = self._choose_fault()
        await self._process.step()
        if fault == "before":
            raise _build_unavailable()
        result = self._transact(work, "BEGIN IMMEDIATE")
        await self._process.step()
        if fault == "after":
            raise _build_unavailable()
        return result

    def _transact(self, work: Transaction[Made], begin: str) -> Made:
        (done,) = transact(_DRIVERS[self.engine.sync_engine], [work], begin)
        return cast("Made", done.made)


@asynccontextmanager
async def _assert_no_wait() -> AsyncIterator[None]:
    """Fails if a transaction waits: others would run in the middle of it."""
    turns: list[None] = []
    handle = asyncio.get_running_loop().call_soon(turns.append, None)
    yield
    handle.cancel()
    assert not turns, "a transaction waited for something"


def _build_unavailable() -> StoreUnavailable:
    return StoreUnavailable("the state cannot be used", means="a fault", do="nothing")


_DRIVERS: dict[Any, sqlite3.Connection] = {}
"""The only connection of each engine."""


@cache
def open_database() -> AsyncEngine:
    """The engine that all seeds use, one after another."""
    engine = create_async_engine(
        "sqlite+inline://", poolclass=StaticPool, connect_args={"factory": _Connection}
    )
    event.listen(engine.sync_engine, "connect", _configure_connection)
    event.listen(
        engine.sync_engine,
        "connect",
        lambda connection, _record: _DRIVERS.update({engine.sync_engine: connection}),
    )
    event.listen(engine.sync_engine, "begin", engines._begin)
    event.listen(engine.sync_engine, "before_cursor_execute", _yield_to_sqlalchemy)
    asyncio.run(_fill_database(engine))
    return engine


async def _fill_database(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await migrate(connection, "memory")
    store = SimulatedStore(Process(random.Random(0)), engine, shared=False)
    await import_keys(store, parse_key_lines(json.dumps(KEY).encode()))


def is_superseded(engine: AsyncEngine, batch: str) -> bool:
    """Whether this upstream batch is superseded, by the committed rows."""
    query = "SELECT facts FROM remembered WHERE kind = 'alias' AND id = ?"
    rows = _DRIVERS[engine.sync_engine].execute(query, (batch,)).fetchall()
    return any(json.loads(facts).get("abandoned") for (facts,) in rows)


async def empty_database(engine: AsyncEngine) -> None:
    """Deletes what a seed has written."""
    async with engine.begin() as connection:
        for table in reversed(metadata.sorted_tables):
            if table.name not in UNCHANGED_TABLES:
                await connection.execute(delete(table))


def _configure_connection(connection: Any, _record: object) -> None:
    connection.isolation_level = None


async def _do_nothing() -> None:
    pass


def _yield_to_sqlalchemy(*_execution: object) -> None:
    await_only(_do_nothing())  # SQLAlchemy requires one await; this one returns at once


async def list_writes(engine: AsyncEngine) -> list[StoredWrite]:
    return [StoredWrite(**row._mapping) for row in await _rows(engine, select_writes())]


async def list_open_operations(engine: AsyncEngine) -> list[OpenOperation]:
    return [OpenOperation(*row) for row in await _rows(engine, select_open_operations())]


async def _rows(engine: AsyncEngine, query: Select[Any]) -> Sequence[Row[Any]]:
    async with engine.connect() as connection:
        rows = (await connection.execute(query)).all()
        # Closing takes a turn of the loop, in which others would find themselves in this transaction.
        await connection.rollback()
        return rows
