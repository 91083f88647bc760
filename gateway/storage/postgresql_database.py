"""Transactions on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import asyncpg

from gateway.payloads.worker_thread import run_in_thread_if
from gateway.storage.database import Body, Database, Result, Transaction, UniqueViolation
from gateway.storage.errors import telling
from gateway.storage.sql import Compiled, Parameters

ADVISORY_LOCKS = 0x7061796F
"""The gateway's class of PostgreSQL's advisory locks: "payo"."""

POOL_SIZE = 10
ACQUIRE_SECONDS = 30
ATTEMPTS = 3
"""How often a transaction is run that a deadlock or a migration has aborted."""

_ABORTED = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.OutdatedSchemaCacheError,
)
_DISCONNECTED = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
)


class PostgresqlTransaction(Transaction):
    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def lock(self, *names: str) -> None:
        if names:
            await self._connection.execute(_LOCK, ADVISORY_LOCKS, sorted(set(names)))

    async def compute(
        self, is_long: bool, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        return await run_in_thread_if(is_long, function, *arguments)

    async def _fetch(self, compiled: Compiled, those: Sequence[Parameters]) -> Sequence[Any]:
        found: Sequence[Any]
        if len(those) == 1:
            found = await self._connection.fetch(compiled.text, *compiled.arguments(those[0]))
        else:
            found = await self._connection.fetchmany(
                compiled.text, list(map(compiled.arguments, those))
            )
        return found

    async def _execute(self, compiled: Compiled, those: Sequence[Parameters]) -> int:
        if len(those) == 1:
            status = await self._connection.execute(compiled.text, *compiled.arguments(those[0]))
            count = status.rpartition(" ")[2]
            return int(count) if count.isdecimal() else -1  # not of LOCK TABLE
        await self._connection.executemany(compiled.text, map(compiled.arguments, those))
        return -1


_LOCK = "SELECT pg_advisory_xact_lock($1, hashtext(name)) FROM unnest($2::text[]) AS name"


async def _leave(_connection: Any) -> None:
    """Leaves a connection as it is: a transaction changes no setting of its session."""


async def _run_in(connection: Any, transaction: Any, body: Body[Result]) -> Result:
    """Runs a body, and commits if there is a transaction."""
    try:
        result = await body(PostgresqlTransaction(connection))
    except BaseException:
        if transaction:
            with suppress(*_DISCONNECTED, asyncpg.PostgresError):
                await transaction.rollback()
        raise
    if transaction:
        await transaction.commit()
    return result


class PostgresqlDatabase(Database):
    """A pool of asyncpg's connections, which are opened when they are needed."""

    dialect = "postgresql"

    def __init__(self, where: str, dsn: str, **options: Any) -> None:
        super().__init__(where)
        self._dsn = dsn
        self._options = options
        self._pool: Any = None
        self._opening = asyncio.Lock()
        self._writing: set[asyncio.Task[Any]] = set()

    async def read(self, body: Body[Result], *, is_brief: bool = False) -> Result:  # noqa: ARG002 - SQLite's
        with telling(self.where):
            return await self._run(body, writes=False)

    async def write(self, body: Body[Result]) -> Result:
        task = asyncio.ensure_future(self._write(body))
        self._writing.add(task)
        task.add_done_callback(self._end)
        return await asyncio.shield(task)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, also if the caller was cancelled

    async def _write(self, body: Body[Result]) -> Result:
        with telling(self.where, self._note_unwritten):
            result = await self._run(body, writes=True)
        self.unwritten = None
        return result

    async def _run(self, body: Body[Result], *, writes: bool) -> Result:
        pool = await self._open()
        for attempt in range(1, ATTEMPTS + 1):
            connection, transaction = await self._begin(pool, writes=writes)
            try:
                return await _run_in(connection, transaction, body)
            except asyncpg.UniqueViolationError:
                raise UniqueViolation from None
            except _ABORTED:
                if attempt == ATTEMPTS:
                    raise
                with suppress(*_DISCONNECTED):
                    await connection.reload_schema_state()
            finally:
                await pool.release(connection, timeout=ACQUIRE_SECONDS)
        raise AssertionError

    async def _open(self) -> Any:
        async with self._opening:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self._dsn, min_size=0, max_size=POOL_SIZE, reset=_leave, **self._options
                )
        return self._pool

    async def _begin(self, pool: Any, *, writes: bool) -> tuple[Any, Any]:
        """A connection that answers: a restart of the database must not cost a write."""
        for _ in range(POOL_SIZE + 1):
            connection = await pool.acquire(timeout=ACQUIRE_SECONDS)
            transaction = connection.transaction() if writes else None
            with suppress(*_DISCONNECTED, asyncpg.PostgresError):
                if transaction:
                    await transaction.start()
                if not connection.is_closed():
                    return connection, transaction
            connection.terminate()
            await pool.release(connection)
        raise asyncpg.InterfaceError("no usable connection")

    async def close(self) -> None:
        if self._writing:
            await asyncio.wait(self._writing, timeout=ACQUIRE_SECONDS)
        if self._pool is not None:
            self._pool.terminate() if self._writing else await self._pool.close()
            self._pool = None
