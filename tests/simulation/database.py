"""The database: a transaction takes no time, and time passes before and after it.

It is SQLite in memory, or the empty PostgreSQL database whose URL is in
``PAYOUT_GATEWAY_SIMULATION_POSTGRES``.

The driver never waits, so that every run of a seed is the same.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal

from sqlalchemy import Select, StaticPool, Text, column, create_engine, delete, select, table

from gateway.auth.key_import import import_keys
from gateway.auth.key_lines import parse_key_lines
from gateway.storage import Store, StoreUnavailable
from gateway.storage.database import Body, Database, Result
from gateway.storage.database_clock import DatabaseClock
from gateway.storage.encryption import EncryptionKeys
from gateway.storage.migrate import migrate
from gateway.storage.sql import compile_statement
from gateway.storage.sqlite_database import SqliteTransaction, run_coroutine_without_waiting
from gateway.storage.sqlite_driver import sqlite3
from gateway.storage.state_tables import id_redirects
from gateway.storage.tables import instances, metadata
from gateway.writes.states import OPERATION_TRANSITIONS, WRITE_TRANSITIONS
from tests.simulation.postgresql import PostgresqlConnection
from tests.simulation.process import EPOCH, Process
from tests.state import KEY, OpenOperation, StoredWrite, select_open_operations, select_writes

ENCRYPTION_KEYS = EncryptionKeys({"one": base64.b64decode(b"A" * 43 + b"=")})
UNCHANGED_TABLES = ("api_keys", "tenant_credentials", "counters", "encryption_keys")
"""Tables that every seed shares."""

Connection = sqlite3.Connection | PostgresqlConnection
FORBIDDEN_CHANGES = table("forbidden_changes", column("description", Text))
Fault = Literal["before", "after"] | None


class MemoryDatabase(Database):
    """One process's access to the database, which may fail before or after a transaction."""

    def __init__(self, process: Process, connection: Connection) -> None:
        super().__init__("memory")
        self.dialect = "sqlite" if isinstance(connection, sqlite3.Connection) else "postgresql"
        self.fault_rate = 0.0
        """Share of its transactions that fail."""
        self._process = process
        self._connection = connection

    def _choose_fault(self) -> Fault:
        rng = self._process.random_source
        return rng.choice(("before", "after")) if rng.random() < self.fault_rate else None

    def _run(self, body: Body[Result], *, writes: bool) -> Result:
        if isinstance(self._connection, PostgresqlConnection):
            return self._connection.run_transaction(body, writes=writes)
        return run_transaction(self._connection, body, "BEGIN IMMEDIATE" if writes else "BEGIN")

    async def read(self, body: Body[Result], *, is_brief: bool = False) -> Result:
        await self._process.step()
        if self._choose_fault():
            raise _build_unavailable()
        result = self._run(body, writes=False)
        await self._process.step()
        return result

    async def write(
        self, body: Body[Result], *, is_brief: bool = False, is_single: bool = False
    ) -> Result:
        fault = self._choose_fault()
        await self._process.step()
        if fault == "before":
            raise _build_unavailable()
        result = self._run(body, writes=True)
        await self._process.step()
        if fault == "after":  # committed, but reported as failed
            raise _build_unavailable()
        return result

    async def read_clock(self) -> datetime:
        await self._process.step()
        now = datetime.fromtimestamp(EPOCH + self._process.monotonic(), UTC)
        await self._process.step()
        return now

    async def close(self) -> None:
        pass


def run_transaction(connection: sqlite3.Connection, body: Body[Result], begin: str) -> Result:
    """Run a body in a transaction of its own, in this thread."""
    try:
        connection.execute(begin)
        result = run_coroutine_without_waiting(body(SqliteTransaction(connection.cursor())))
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # SQLite rolls some transactions back itself
            connection.execute("ROLLBACK")
        raise
    return result


class SimulatedStore(Store):
    """One process's store."""

    def __init__(self, process: Process, connection: Connection, *, shared: bool) -> None:
        self.memory_database = MemoryDatabase(process, connection)
        super().__init__(self.memory_database, process.now)
        self.database_clock = DatabaseClock(self.memory_database, process.now, process.monotonic)
        self.clock = self.database_clock.now
        self.encryption = ENCRYPTION_KEYS
        self.is_of_one_process = not shared

    async def list_live_instances(self) -> set[str]:
        # The operations of a killed process are in doubt as soon as another has taken them over.
        return {row.id for row in await self.read(lambda tx: tx.fetch(select(instances.c.id)))}


def _build_unavailable() -> StoreUnavailable:
    return StoreUnavailable("the state cannot be used", means="a fault", do="nothing")


@cache
def open_database() -> Connection:
    """Opens the database that all seeds use, one after another."""
    connection: Connection
    if url := os.environ.get("PAYOUT_GATEWAY_SIMULATION_POSTGRES"):
        connection = PostgresqlConnection(url)
        connection.run_in_sqlalchemy(lambda sqlalchemy: migrate(sqlalchemy, "postgresql"))
        connection.execute("INSERT INTO encryption_keys VALUES ('one', '', now())")
    else:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
        with engine.begin() as migration_connection:
            migrate(migration_connection, "memory")
    store = SimulatedStore(Process(random.Random(0)), connection, shared=False)
    asyncio.run(import_keys(store, parse_key_lines(json.dumps(KEY).encode())))
    watch_transitions(connection)
    return connection


def watch_transitions(connection: Connection) -> None:
    """Collects every committed change of a state that the tables of transitions do not allow.

    In a table, so that what is rolled back is no change: a process that has lost its fence finds
    that out in the same transaction, after its statements.
    """
    connection.execute(f"CREATE TABLE {FORBIDDEN_CHANGES.name} (description TEXT)")
    tables = {"operations": OPERATION_TRANSITIONS, "upstream_writes": WRITE_TRANSITIONS}
    for name, transitions in tables.items():
        allowed = ", ".join(f"'{row.source or ''} to {row.target}'" for row in transitions)
        for event, old in (("INSERT", "''"), ("UPDATE OF state", "OLD.state")):
            change = f"{old} || ' to ' || NEW.state"
            _watch_changes(connection, name, event, f"{change} NOT IN ({allowed})", change)
    is_forbidden = "NEW.fence NOT IN (OLD.fence, OLD.fence + 1)"
    fences = "'fence ' || OLD.fence || ' to ' || NEW.fence"
    _watch_changes(connection, "operations", "UPDATE OF fence", is_forbidden, fences)


def _watch_changes(
    connection: Connection, table_name: str, event: str, condition: str, change: str
) -> None:
    """Creates the trigger of an event; ``condition`` and ``change`` are SQL expressions."""
    name = "_".join(["watch", table_name, *event.lower().split()])
    action = f"BEGIN INSERT INTO {FORBIDDEN_CHANGES.name} VALUES ('{table_name}: ' || {change});"
    if isinstance(connection, PostgresqlConnection):
        function = f"FUNCTION {name}()"
        body = f"$${action} RETURN NEW; END$$"
        connection.execute(f"CREATE {function} RETURNS trigger LANGUAGE plpgsql AS {body}")
        action = f"EXECUTE {function}"
    else:
        action += " END"
    connection.execute(
        f"CREATE TRIGGER {name} AFTER {event} ON {table_name} FOR EACH ROW WHEN ({condition}) {action}"
    )


def take_forbidden_changes(connection: Connection) -> list[str]:
    """Returns the changes that were found since the last call."""
    rows = _fetch_rows(connection, select(FORBIDDEN_CHANGES))
    connection.execute(str(delete(FORBIDDEN_CHANGES)))
    return [description for (description,) in rows]


def is_superseded(connection: Connection, batch: str) -> bool:
    """Whether this upstream batch is superseded, by the committed rows."""
    query = select(id_redirects.c.id).where(
        id_redirects.c.is_superseded, id_redirects.c.id == batch
    )
    return bool(_fetch_rows(connection, query))


def empty_database(connection: Connection) -> None:
    """Deletes what a seed has written."""
    tables = reversed(metadata.sorted_tables)
    statements = [str(delete(table)) for table in tables if table.name not in UNCHANGED_TABLES]
    if isinstance(connection, PostgresqlConnection):
        connection.execute(*statements)
        return
    for statement in statements:
        connection.execute(statement)


def list_writes(connection: Connection) -> list[StoredWrite]:
    return [StoredWrite(**row._asdict()) for row in _fetch_rows(connection, select_writes())]


def list_open_operations(connection: Connection) -> list[OpenOperation]:
    return [OpenOperation(*row) for row in _fetch_rows(connection, select_open_operations())]


def _fetch_rows(connection: Connection, query: Select[Any]) -> Sequence[Any]:
    if isinstance(connection, PostgresqlConnection):
        return connection.fetch(query)
    compiled = compile_statement(query, "sqlite")
    return compiled.build_rows(connection.execute(compiled.text, compiled.build_arguments({})))
