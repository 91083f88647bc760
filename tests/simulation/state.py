"""The state in a database in memory: each transaction at one moment, and time before and after it.

That is what a database promises, and with a connection that waits for nothing it is so on each run
alike.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal

from sqlalchemy import StaticPool, create_engine, delete

from gateway.auth.key_import import import_keys
from gateway.auth.key_lines import parse_key_lines
from gateway.storage import Store, StoreUnavailable
from gateway.storage.database import Body, Database, Result
from gateway.storage.encryption import EncryptionKeys
from gateway.storage.migrate import migrate
from gateway.storage.sql import compile_statement
from gateway.storage.sqlite_database import run_transaction
from gateway.storage.tables import metadata
from tests.house import KEY
from tests.simulation.machine import Process

KEYS = EncryptionKeys({"one": base64.b64decode(b"A" * 43 + b"=")})
KEPT = ("keys", "pairs", "counters", "encryption_keys")
"""Tables that are the same for every seed."""

Trouble = Literal["before", "after"] | None


class _Memory(Database):
    """One process's way to the database; ``part`` of its transactions fail."""

    dialect = "sqlite"

    def __init__(self, process: Process, connection: sqlite3.Connection) -> None:
        super().__init__("memory")
        self.part = 0.0
        self._process = process
        self._connection = connection

    def _trouble(self) -> Trouble:
        dice = self._process.dice
        return dice.choice(("before", "after")) if dice.random() < self.part else None

    async def read(self, body: Body[Result], *, is_brief: bool = False) -> Result:
        await self._process.step()
        if self._trouble():
            raise _unavailable()
        result = run_transaction(self._connection, body, "BEGIN")
        await self._process.step()
        return result

    async def write(self, body: Body[Result]) -> Result:
        trouble = self._trouble()
        await self._process.step()
        if trouble == "before":
            raise _unavailable()
        result = run_transaction(self._connection, body, "BEGIN IMMEDIATE")
        await self._process.step()
        if trouble == "after":  # it is committed, and nobody was told
            raise _unavailable()
        return result

    async def close(self) -> None:
        pass


class State(Store):
    def __init__(self, process: Process, connection: sqlite3.Connection, *, shared: bool) -> None:
        self.memory = _Memory(process, connection)
        super().__init__(self.memory, lambda: datetime.fromtimestamp(process.wall(), UTC))
        self.encryption = KEYS
        self.shared = shared

    @property
    def is_of_one_process(self) -> bool:
        return not self.shared


def _unavailable() -> StoreUnavailable:
    return StoreUnavailable("the state cannot be used", means="a fault", do="nothing")


@cache
def database() -> sqlite3.Connection:
    """The one that all seeds use, one after the other."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    with engine.begin() as migrating:
        migrate(migrating, "memory")
    store = State(Process(random.Random(0)), connection, shared=False)
    asyncio.run(import_keys(store, parse_key_lines(json.dumps(KEY).encode())))
    return connection


def rows_of(connection: sqlite3.Connection, statement: Any) -> Sequence[Any]:
    compiled = compile_statement(statement, "sqlite")
    return [compiled.row(row) for row in connection.execute(compiled.text, compiled.arguments({}))]


def is_superseded(connection: sqlite3.Connection, batch: str) -> bool:
    """Whether an edit has left this batch of the service, by what is committed at this moment."""
    those = "SELECT facts FROM remembered WHERE kind = 'alias' AND id = ?"
    rows = connection.execute(those, (batch,)).fetchall()
    return any(json.loads(facts).get("abandoned") for (facts,) in rows)


def emptied(connection: sqlite3.Connection) -> None:
    """As it was before the first seed."""
    for table in reversed(metadata.sorted_tables):
        if table.name not in KEPT:
            connection.execute(str(delete(table)))
