"""Transactions on PostgreSQL."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from itertools import chain
from typing import Any

import asyncpg
from sqlalchemy import text

from gateway.observability import metrics
from gateway.payloads.worker_thread import run_in_thread_if
from gateway.storage.database import (
    Body,
    Change,
    Database,
    FaultyStatement,
    Result,
    Transaction,
    UniqueViolation,
)
from gateway.storage.errors import describe_database_error, translate_database_errors
from gateway.storage.sql import Parameters, Statement

ADVISORY_LOCKS = 0x7061796F
"""The gateway's class of PostgreSQL's advisory locks: "payo"."""

INSTANCE_LOCKS = 0x7061796E
"""The class of the locks that processes hold while they run: "payn"."""

POOL_SIZE = 10
IDLE_SECONDS = 300
"""Seconds after which an unused connection is not used again: a firewall may have forgotten it."""
CLOSE_SECONDS = 30
BEGIN_SECONDS = 5
"""BEGIN and ROLLBACK wait for no lock: a server that takes longer does not respond."""
MAX_ATTEMPTS = 3
"""Attempts of a transaction that a deadlock or a migration aborts."""

_ABORTED = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.OutdatedSchemaCacheError,
)
_DISCONNECTED = (
    OSError,  # TimeoutError, too
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server has announced the end of the connection
    asyncpg.PostgresConnectionError,
)
_UNUSABLE = (*_DISCONNECTED, asyncpg.PostgresError)
_UNAVAILABLE = (
    *_DISCONNECTED,
    asyncpg.OperatorInterventionError,  # it shuts down, or starts
    asyncpg.InsufficientResourcesError,  # its disk is full, or it has too many connections
)
"""Errors that others would meet, too, as opposed to those of a single transaction."""


class _SlowFailure(ConnectionError):
    """Another transaction has failed because the database does not respond."""


class PostgresqlTransaction(Transaction):
    dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def lock(self, *names: str) -> None:
        if names:
            # Sorted, so that two transactions that need the same locks do not wait for each other.
            await self._connection.execute(_LOCK, ADVISORY_LOCKS, sorted(set(names)))

    async def compute(
        self, is_long: bool, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        return await run_in_thread_if(is_long, function, *arguments)

    async def execute_all(self, changes: Sequence[Change]) -> Sequence[int]:
        compiled = [statement.compile_for_dialect("postgresql") for statement, _ in changes]
        arguments = [
            each.build_arguments(parameters)
            for each, (_, parameters) in zip(compiled, changes, strict=True)
        ]
        text = _combine_statements(*(each.text for each in compiled))
        return list(await self._connection.fetchrow(text, *chain.from_iterable(arguments)))

    async def fetch(self, statement: Any, *parameter_sets: Parameters) -> list[Any]:
        compiled = self._compile(statement, parameter_sets)
        if len(parameter_sets) <= 1:
            arguments = compiled.build_arguments(*parameter_sets or ({},))
            rows = await self._connection.fetch(compiled.text, *arguments)
        else:
            argument_lists = list(map(compiled.build_arguments, parameter_sets))
            rows = await self._connection.fetchmany(compiled.text, argument_lists)
        return compiled.build_rows(rows)

    async def execute(self, statement: Any, *parameter_sets: Parameters) -> int:
        compiled = self._compile(statement, parameter_sets)
        if len(parameter_sets) <= 1:
            arguments = compiled.build_arguments(*parameter_sets or ({},))
            status = await self._connection.execute(compiled.text, *arguments)
            count = status.rpartition(" ")[2]
            return int(count) if count.isdecimal() else -1  # LOCK TABLE has no count
        await self._connection.executemany(
            compiled.text, map(compiled.build_arguments, parameter_sets)
        )
        return -1


@lru_cache(256)
def _combine_statements(*statements: str) -> str:
    """Combines statements to one, which returns the numbers of rows that they change."""
    parts, parameter_count = [], 0
    for number, statement in enumerate(statements):
        offset = parameter_count
        numbered = _PARAMETER.sub(lambda match: f"${int(match[1]) + offset}", statement)  # noqa: B023
        parts.append(f"s{number} AS ({numbered} RETURNING 1)")
        parameter_count += max(map(int, _PARAMETER.findall(statement)), default=0)
    counts = ", ".join(f"(SELECT count(*) FROM s{each})" for each in range(len(parts)))  # noqa: S608
    return f"WITH {', '.join(parts)} SELECT {counts}"


_PARAMETER = re.compile(r"\$(\d+)")
_INSTANCE_LOCKS = text(
    "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND granted AND database ="
    " (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND classid = :lock_class"
)
_CLOCK = Statement(lambda _kind: text("SELECT clock_timestamp()"))
_LOCK = "SELECT pg_advisory_xact_lock($1, hashtext(name)) FROM unnest($2::text[]) AS name"


class PostgresqlDatabase(Database):
    """Connections that are opened when they are needed, and kept for the next transactions.

    Not asyncpg's pool, which makes a task and some sixty calls of each use of a connection.
    """

    dialect = "postgresql"

    def __init__(self, location: str, dsn: str, **options: Any) -> None:
        super().__init__(location)
        self._dsn = dsn
        self._options = options
        self._idle: list[tuple[float, Any]] = []
        """Connections, each with the time of its last use; the last one is used first."""
        self._lock_connection: Any = None
        self._slots = asyncio.Semaphore(POOL_SIZE)
        self._failure: tuple[float, str] | None = None
        """When a transaction last failed after more than ``patience_seconds``, and the reason."""
        self._writing: set[asyncio.Task[Any]] = set()

    async def read(self, body: Body[Result], *, is_brief: bool = False) -> Result:  # noqa: ARG002 - SQLite's
        with translate_database_errors(self.location):
            return await self._run_with_retries(body, writes=False)

    async def write(self, body: Body[Result], *, is_brief: bool = False) -> Result:  # noqa: ARG002 - SQLite's
        started_at = time.perf_counter()
        task = asyncio.ensure_future(self._run_write_transaction(body))
        self._writing.add(task)
        task.add_done_callback(self._forget_write_task)
        try:
            return await asyncio.shield(task)
        finally:
            seconds = time.perf_counter() - started_at
            metrics.traffic.database_durations["write"].observe(seconds)

    def _forget_write_task(self, task: asyncio.Task[Any]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, also if the caller was cancelled

    async def _run_write_transaction(self, body: Body[Result]) -> Result:
        with translate_database_errors(self.location, self._record_write_error):
            return await self._run_with_retries(body, writes=True)

    async def _run_with_retries(self, body: Body[Result], *, writes: bool) -> Result:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return await self._run_on_connection(body, writes=writes)
            except asyncpg.UniqueViolationError:
                raise UniqueViolation from None
            except (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError) as error:
                # PostgreSQL's and the driver's texts quote values, which must not get into a log.
                constraint = getattr(error, "constraint_name", None)
                raise FaultyStatement(f"{type(error).__name__} ({constraint})") from None
            except _ABORTED:
                # PostgreSQL has rolled it back, so nothing can happen twice.
                if attempt == MAX_ATTEMPTS:
                    raise
            except (TimeoutError, _SlowFailure):
                raise
            except _DISCONNECTED:
                # A read changes nothing. A write may have been committed without a response.
                if writes or attempt == MAX_ATTEMPTS:
                    raise
        raise AssertionError

    async def _run_on_connection(self, body: Body[Result], *, writes: bool) -> Result:
        """Runs a body, and commits if it writes.

        A caller that waited while the database failed slowly is refused, because each would
        otherwise wait for the same timeout in turn. It must never get an error of another body: the
        caller would take it for its own, and a flow might send a write again.
        """
        waits_since = time.monotonic()
        async with self._slots:
            if self._failure and self._failure[0] > waits_since:
                raise _SlowFailure(self._failure[1])
            started_at = time.monotonic()
            try:
                connection = await self._take_responding_connection(writes=writes)
                try:
                    result = await body(PostgresqlTransaction(connection))
                    if writes:
                        await _commit(connection)
                except BaseException as error:
                    await _roll_back_or_terminate(connection, error)
                    raise
                finally:
                    if not connection.is_closed():
                        self._idle.append((time.monotonic(), connection))
            except _ABORTED:
                raise
            except _UNAVAILABLE as error:
                now = time.monotonic()
                if now - started_at > self.patience_seconds:
                    self._failure = now, describe_database_error(error)
                raise
            return result

    async def _take_responding_connection(self, *, writes: bool) -> Any:
        """Takes a connection that responds: a restart of the database must not cost a write."""
        for _ in range(POOL_SIZE + 1):
            used_at, connection = self._idle.pop() if self._idle else (time.monotonic(), None)
            if connection is None:
                connection = await asyncpg.connect(self._dsn, **self._options)
            try:
                if time.monotonic() - used_at < IDLE_SECONDS and not connection.is_closed():
                    if writes:
                        await connection.execute("BEGIN", timeout=BEGIN_SECONDS)
                    return connection
            except TimeoutError:
                connection.terminate()
                raise  # the others would not respond either
            except _UNUSABLE:
                pass
            except BaseException:
                connection.terminate()
                raise
            connection.terminate()
        raise asyncpg.InterfaceError("no usable connection")

    async def hold_instance_lock(self, key: int) -> None:
        await self._try_lock("$2", INSTANCE_LOCKS, key)

    async def acquire_lock(self, name: str) -> bool:
        return await self._try_lock("hashtext($2)", ADVISORY_LOCKS, name)

    async def _try_lock(self, key: str, *arguments: Any) -> bool:
        # A connection of its own: the lock is free as soon as the server sees that it has ended.
        with translate_database_errors(self.location):
            if self._lock_connection is None or self._lock_connection.is_closed():
                self._lock_connection = await asyncpg.connect(self._dsn, **self._options)
            lock = f"SELECT pg_try_advisory_lock($1, {key})"
            is_acquired: bool = await self._lock_connection.fetchval(
                lock, *arguments, timeout=BEGIN_SECONDS
            )
            return is_acquired

    async def list_instance_locks(self) -> set[int] | None:
        async def fetch_keys(tx: Transaction) -> set[int]:
            rows = await tx.fetch(_INSTANCE_LOCKS, {"lock_class": INSTANCE_LOCKS})
            return {row[0] for row in rows}

        return await self.read(fetch_keys)

    async def read_clock(self) -> datetime | None:
        now: datetime = await self.read(lambda tx: tx.fetch_value(_CLOCK), is_brief=True)
        return now

    async def close(self) -> None:
        if self._lock_connection is not None:
            self._lock_connection.terminate()
        if self._writing:
            await asyncio.wait(self._writing, timeout=CLOSE_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                for _ in range(POOL_SIZE):  # until no read uses a connection
                    await self._slots.acquire()
        self._slots = asyncio.Semaphore(POOL_SIZE)
        while self._idle:
            _, connection = self._idle.pop()
            with suppress(*_UNUSABLE):
                await connection.close(timeout=BEGIN_SECONDS)


async def _commit(connection: Any) -> None:
    # COMMIT of a failed transaction is no error to PostgreSQL, but rolls it back.
    if (status := await connection.execute("COMMIT")) != "COMMIT":
        raise asyncpg.InterfaceError(f"COMMIT was answered by {status}")


async def _roll_back_or_terminate(connection: Any, error: BaseException) -> None:
    """Rolls back; closes the connection instead if it may not respond."""
    with suppress(*_UNUSABLE):
        if isinstance(error, Exception) and not isinstance(error, _DISCONNECTED):
            if connection.is_in_transaction():
                await connection.execute("ROLLBACK", timeout=BEGIN_SECONDS)
            return
    # Also if ROLLBACK failed: no other body may get a connection in a transaction, with its locks.
    connection.terminate()
