"""Transactions on SQLite's file."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from gateway.storage.database import Body, Database, Result, Transaction, UniqueViolation
from gateway.storage.errors import telling
from gateway.storage.sql import Compiled, Parameters

BUSY_SECONDS = 5
"""How long a transaction on SQLite waits for another process."""

MAX_GROUP = 64
"""Transactions in one commit on SQLite: none of them is acknowledged before its end."""

PATIENCE_SECONDS = 1.0
"""If SQLite's file cannot be used for longer, whoever has waited meanwhile is refused too."""


class SqliteTransaction(Transaction):
    dialect = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def lock(self, *names: str) -> None:
        """Nothing: SQLite has one writer."""

    async def compute(
        self,
        is_long: bool,  # noqa: ARG002 - PostgreSQL's
        function: Callable[..., Result],
        *arguments: Any,
    ) -> Result:
        return function(*arguments)  # a transaction that writes has a thread already

    async def _fetch(self, compiled: Compiled, those: Sequence[Parameters]) -> Sequence[Any]:
        rows: list[Any] = []
        for parameters in those:
            cursor = self._connection.execute(compiled.text, compiled.arguments(parameters))
            rows += cursor.fetchall()
        return rows

    async def _execute(self, compiled: Compiled, those: Sequence[Parameters]) -> int:
        if len(those) == 1:
            return self._connection.execute(compiled.text, compiled.arguments(those[0])).rowcount
        self._connection.executemany(compiled.text, map(compiled.arguments, those))
        return -1


class _Job:
    """A body on its way through the thread."""

    def __init__(self, body: Body[Any], *, writes: bool) -> None:
        self.body = body
        self.writes = writes
        self.context = contextvars.copy_context()
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def resolve(self) -> None:
        if self.future.done():  # the caller was cancelled
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class SqliteDatabase(Database):
    """A thread with a connection that writes, and one for brief reads in the event loop's thread.

    Transactions that wait for the thread together share a commit. ``connect`` is given the seconds
    for which the connection waits for a lock.
    """

    dialect = "sqlite"

    def __init__(self, where: str, connect: Callable[[float], sqlite3.Connection]) -> None:
        super().__init__(where)
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._reading: sqlite3.Connection | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def read(self, body: Body[Result], *, is_brief: bool = False) -> Result:
        with telling(self.where):
            if is_brief:
                # To hand over a read takes longer than the read.
                with suppress(_Busy):
                    return self._read_here(body)
            return await self._run(body, writes=False)

    def _read_here(self, body: Body[Result]) -> Result:
        """Raises _Busy if the file is locked, because the event loop must not wait."""
        try:
            if self._reading is None:
                self._reading = self._connect(0)
            return run_transaction(self._reading, body, "BEGIN")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise _Busy from None
            raise

    async def write(self, body: Body[Result]) -> Result:
        with telling(self.where, self._note_unwritten):
            result = await self._run(body, writes=True)
        self.unwritten = None
        return result

    async def _run(self, body: Body[Result], *, writes: bool) -> Result:
        if self._thread is None:
            arguments = (asyncio.get_running_loop(),)
            self._thread = threading.Thread(
                target=self._work, args=arguments, name="database", daemon=True
            )
            self._thread.start()
        job = _Job(body, writes=writes)
        self._jobs.put(job)
        result: Result = await job.future
        return result

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        is_last = False
        while not is_last:
            job = self._jobs.get()
            jobs, is_last = self._take_waiting([job]) if job else ([], True)
            error = self._run_jobs(jobs)
            if error is not None and not is_last:
                # These have waited as long: each group would wait once more for the same lock.
                refused, is_last = self._take_waiting([])
                for job in refused:
                    job.error = error
                jobs += refused
            with suppress(RuntimeError):  # the loop was closed without waiting
                loop.call_soon_threadsafe(_resolve, jobs)
        if self._connection is not None:
            # Leaves no journal behind, unless another process uses the file right now.
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA journal_mode = DELETE")
            self._connection.close()

    def _take_waiting(self, jobs: list[_Job]) -> tuple[list[_Job], bool]:
        """Adds the jobs that wait; also returns whether the last one has been taken."""
        with suppress(queue.Empty):
            while len(jobs) < MAX_GROUP:
                job = self._jobs.get_nowait()
                if job is None:
                    return jobs, True
                jobs.append(job)
        return jobs, False

    def _run_jobs(self, jobs: Sequence[_Job]) -> BaseException | None:
        """Returns the error if the file could not be used for longer than ``PATIENCE_SECONDS``."""
        reads = [job for job in jobs if not job.writes]
        writes = [job for job in jobs if job.writes]
        for begin, group in (("BEGIN", reads), ("BEGIN IMMEDIATE", writes)):
            started = time.monotonic()
            error = self._run_group(group, begin) if group else None
            if error is not None and time.monotonic() - started > PATIENCE_SECONDS:
                for job in writes:
                    job.error = error
                return error
        return None

    def _run_group(self, jobs: Sequence[_Job], begin: str) -> BaseException | None:
        """One transaction; a job that fails is rolled back alone. Returns the file's error."""
        try:
            if self._connection is None:
                self._connection = self._connect(BUSY_SECONDS)
            connection = self._connection
            connection.execute(begin)
            for job in jobs:
                self._run_job(connection, job, is_alone=len(jobs) == 1)
            connection.execute("COMMIT" if any(not job.error for job in jobs) else "ROLLBACK")
        except BaseException as error:  # noqa: BLE001 - each caller gets it
            for job in jobs:
                job.error = job.error or error
            if self._connection is not None:
                _roll_back(self._connection)
            return error
        return None

    def _run_job(self, connection: sqlite3.Connection, job: _Job, *, is_alone: bool) -> None:
        if not is_alone:
            connection.execute("SAVEPOINT job")
        try:
            body = job.body(SqliteTransaction(connection))
            job.result = job.context.run(run_without_waiting, body)
        except _OWN_ERRORS as error:
            is_unique = getattr(error, "sqlite_errorcode", None) in _UNIQUE
            job.error = UniqueViolation() if is_unique else error
        except sqlite3.Error:
            raise  # the file's fault: nobody in the group is committed
        except Exception as error:  # noqa: BLE001 - the caller gets it
            job.error = error
        if not is_alone:
            if job.error is not None:
                connection.execute("ROLLBACK TO job")
            connection.execute("RELEASE job")

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.close()
            self._reading = None
        if self._thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None
            self._connection = None


class _Busy(Exception):
    """Another connection has locked the file."""


_OWN_ERRORS = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError)
_UNIQUE = (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)


def run_transaction(connection: sqlite3.Connection, body: Body[Result], begin: str) -> Result:
    """Runs a body in a transaction of its own, in this thread."""
    try:
        connection.execute(begin)
        result = run_without_waiting(body(SqliteTransaction(connection)))
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise
    return result


def _roll_back(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):  # SQLite rolls some transactions back itself
        connection.execute("ROLLBACK")


def _resolve(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        job.resolve()


def run_without_waiting(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine that awaits nothing that has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    coroutine.close()
    raise TypeError("a transaction awaited something other than the database")
