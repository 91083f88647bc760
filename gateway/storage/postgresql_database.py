"""Transactions on PostgreSQL."""

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from itertools import chain
from typing import Any, Literal

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
CLOSE_SECONDS = 30
BEGIN_SECONDS = 5
"""BEGIN and ROLLBACK wait for no lock: a server that takes longer does not respond."""
RESPONSIVE_SECONDS = 1
"""Seconds after a response for which a connection needs no BEGIN to show that it works."""
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


_Kind = Literal["read", "single write", "transaction"]
_READ: _Kind = "read"
_SINGLE_WRITE: _Kind = "single write"
_TRANSACTION: _Kind = "transaction"

_RowsByNumber = Mapping[int, Sequence[Any]]
"""The rows that each of several sets of arguments selects, by its number from 1."""


class PostgresqlTransaction(Transaction):
    dialect = "postgresql"

    def __init__(self, connection: Any, is_single: bool) -> None:
        self._connection = connection
        self._is_single = is_single
        self._has_changed = False

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
        self._check_single()
        text = _combine_statements(self._is_single, *(each.text for each in compiled))
        try:
            return list(await self._connection.fetchrow(text, *chain.from_iterable(arguments)))
        except asyncpg.DivisionByZeroError:
            return [0] * len(changes)

    async def fetch(self, statement: Any, *parameter_sets: Parameters) -> list[Any]:
        compiled = self._compile(statement, parameter_sets)
        if len(parameter_sets) <= 1:
            arguments = compiled.build_arguments(*parameter_sets or ({},))
            rows = await self._connection.fetch(compiled.text, *arguments)
        else:
            argument_lists = list(map(compiled.build_arguments, parameter_sets))
            rows = await self._connection.fetchmany(compiled.text, argument_lists)
        return compiled.build_rows(rows)

    async def fetch_for_each(
        self, statement: Statement, argument_sets: Sequence[Sequence[Any]]
    ) -> _RowsByNumber:
        """Runs a statement for each set of arguments in one round trip."""
        compiled = statement.compile_for_dialect("postgresql")
        if len(argument_sets) == 1:
            rows = await self._connection.fetch(compiled.text, *argument_sets[0])
            return {1: compiled.build_rows(rows)}
        text = _repeat_for_arguments(compiled.text)
        rows_by_number: dict[int, list[Any]] = {}
        for number, *row in await self._connection.fetch(
            text, *map(list, zip(*argument_sets, strict=True))
        ):
            rows_by_number.setdefault(number, []).append(row)
        return {number: compiled.build_rows(rows) for number, rows in rows_by_number.items()}

    async def execute(self, statement: Any, *parameter_sets: Parameters) -> int:
        self._check_single()
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

    def _check_single(self) -> None:
        if self._is_single and self._has_changed:
            raise TypeError("a second statement would be committed apart from the first")
        self._has_changed = True


@lru_cache(256)
def _combine_statements(needs_first: bool, *statements: str) -> str:
    """Combines statements to one, which returns the numbers of rows that they change.

    With ``needs_first`` it fails if the first of them changes no row, so that none does.
    """
    parts, parameter_count = [], 0
    for number, statement in enumerate(statements):
        offset = parameter_count
        numbered = _PARAMETER.sub(lambda match: f"${int(match[1]) + offset}", statement)  # noqa: B023
        parts.append(f"s{number} AS ({numbered} RETURNING 1)")
        parameter_count += max(map(int, _PARAMETER.findall(statement)), default=0)
    counts = [f"(SELECT count(*) FROM s{each})" for each in range(len(parts))]  # noqa: S608
    if needs_first:
        counts[0] = f"1 / {counts[0]}"
    return f"WITH {', '.join(parts)} SELECT {', '.join(counts)}"


@lru_cache(256)
def _repeat_for_arguments(statement: str) -> str:
    """Rewrites a statement to one that runs for each of several sets of arguments.

    It takes a list for each parameter, and selects the number of the set, from 1, first.
    """
    types = dict(_TYPED_PARAMETER.findall(statement))
    lists = ", ".join(f"${number}::{types[number]}[]" for number in types)
    names = ", ".join(f"p{number}" for number in types)
    statement = _TYPED_PARAMETER.sub(r"p\1", statement)
    return (
        f"SELECT number, found.* FROM unnest({lists}) WITH ORDINALITY AS arguments ({names}, number)"  # noqa: S608
        f", LATERAL ({statement}) AS found"
    )


_PARAMETER = re.compile(r"\$(\d+)")
_TYPED_PARAMETER = re.compile(r"\$(\d+)::(TIMESTAMP WITH TIME ZONE|\w+)")
_INSTANCE_LOCKS = text(
    "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND granted AND database ="
    " (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND classid = :lock_class"
)
_CLOCK = Statement(text("SELECT clock_timestamp()"))
_LOCK = "SELECT pg_advisory_xact_lock($1, hashtext(name)) FROM unnest($2::text[]) AS name"


class _Connection(asyncpg.Connection):  # type: ignore[misc] # untyped
    _responded_at = -math.inf

    def record_response(self) -> None:
        self._responded_at = time.monotonic()

    def is_responsive(self) -> bool:
        return time.monotonic() - self._responded_at < RESPONSIVE_SECONDS

    def get_reset_query(self) -> str:
        """Returns nothing: it would be a round trip, and no transaction changes a setting."""
        return ""


class _Batch:
    """Reads of one statement that wait for the same round trip."""

    def __init__(self) -> None:
        self.argument_sets: list[tuple[Any, ...]] = []
        self.rows: asyncio.Task[_RowsByNumber]


class PostgresqlDatabase(Database):
    """Transactions on the connections of a pool."""

    dialect = "postgresql"

    def __init__(self, location: str, dsn: str, **options: Any) -> None:
        super().__init__(location)
        self._dsn = dsn
        self._options = options
        self._pool: Any = None
        self._lock_connection: Any = None
        self._slots = asyncio.Semaphore(POOL_SIZE)
        """Who waits here can be refused if the database does not respond, unlike in the pool."""
        self._failure: tuple[float, str] | None = None
        """When a transaction last failed after more than ``patience_seconds``, and the reason."""
        self._batches: dict[Statement, _Batch] = {}
        """Those whose round trip has not begun."""
        self._writing: set[asyncio.Task[Any]] = set()

    async def read(self, body: Body[Result], *, is_brief: bool = False) -> Result:  # noqa: ARG002 - SQLite's
        with translate_database_errors(self.location):
            return await self._run_with_retries(body, _READ)

    async def fetch_by_key(self, statement: Statement, parameters: Parameters) -> Sequence[Any]:
        if (batch := self._batches.get(statement)) is None:
            batch = self._batches[statement] = _Batch()
            batch.rows = asyncio.ensure_future(self._fetch_batch(statement, batch))
        compiled = statement.compile_for_dialect("postgresql")
        batch.argument_sets.append(compiled.build_arguments(parameters))
        number = len(batch.argument_sets)
        return (await asyncio.shield(batch.rows)).get(number, ())

    async def _fetch_batch(self, statement: Statement, batch: _Batch) -> _RowsByNumber:
        def end_joining() -> None:
            if self._batches.get(statement) is batch:
                del self._batches[statement]

        async def fetch(tx: Any) -> _RowsByNumber:
            end_joining()  # only now: others may have joined while this one waited for a connection
            rows: _RowsByNumber = await tx.fetch_for_each(statement, batch.argument_sets)
            return rows

        try:
            return await self.read(fetch)
        finally:
            end_joining()

    async def write(
        self,
        body: Body[Result],
        *,
        is_brief: bool = False,  # noqa: ARG002 - SQLite's
        is_single: bool = False,
    ) -> Result:
        started_at = time.perf_counter()
        kind = _SINGLE_WRITE if is_single else _TRANSACTION
        task = asyncio.ensure_future(self._run_write_transaction(body, kind))
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

    async def _run_write_transaction(self, body: Body[Result], kind: _Kind) -> Result:
        with translate_database_errors(self.location, self._record_write_error):
            return await self._run_with_retries(body, kind)

    async def _run_with_retries(self, body: Body[Result], kind: _Kind) -> Result:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return await self._run_on_connection(body, kind)
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
                if kind != _READ or attempt == MAX_ATTEMPTS:
                    raise
        raise AssertionError

    async def _run_on_connection(self, body: Body[Result], kind: _Kind) -> Result:
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
                return await self._run_on_responding_connection(body, kind)
            except _ABORTED:
                raise
            except _UNAVAILABLE as error:
                now = time.monotonic()
                if now - started_at > self.patience_seconds:
                    self._failure = now, describe_database_error(error)
                raise

    async def _run_on_responding_connection(self, body: Body[Result], kind: _Kind) -> Result:
        if self._pool is None:
            self._pool = asyncpg.create_pool(
                self._dsn,
                init_size=0,
                min_size=0,
                max_size=POOL_SIZE,
                connection_class=_Connection,
                init=_choose_generic_plans,
                **self._options,
            )
            await self._pool
        # A restart of the database, which ends all of them, must not cost a write.
        for _ in range(POOL_SIZE + 1):
            async with self._pool.acquire() as connection:
                # It may have been lost unnoticed, which only BEGIN shows without a doubt.
                if kind == _SINGLE_WRITE and not connection.is_responsive():
                    kind = _TRANSACTION
                if kind == _TRANSACTION and not await _begin(connection):
                    continue
                try:
                    result = await body(PostgresqlTransaction(connection, kind == _SINGLE_WRITE))
                    if kind == _TRANSACTION:
                        await _commit(connection)
                except BaseException as error:
                    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                        # A connection opened so stays read-only when the database no longer is.
                        await self._pool.expire_connections()
                    await _roll_back_or_terminate(connection, error)
                    raise
                connection.record_response()
                return result
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
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await pool.close()
            except TimeoutError:
                pool.terminate()


async def _choose_generic_plans(connection: Any) -> None:
    """Has each statement planned once: it is written for an index, whatever its arguments are."""
    await connection.execute("SET plan_cache_mode = force_generic_plan")


async def _begin(connection: Any) -> bool:
    """Begins a transaction; returns False if the connection has been lost."""
    try:
        await connection.execute("BEGIN", timeout=BEGIN_SECONDS)
    except BaseException as error:
        connection.terminate()
        # A server that does not respond would not respond on another connection either.
        if isinstance(error, TimeoutError) or not isinstance(error, _UNUSABLE):
            raise
        return False
    return True


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
