"""Transactions on an SQLite file."""

import asyncio
import contextvars
import fcntl
import hashlib
import os
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec

from gateway.observability import metrics
from gateway.storage.database import Body, Change, Database, Result, Transaction, UniqueViolation
from gateway.storage.errors import (
    DATABASE_ERRORS,
    StoreUnavailable,
    find_sqlite_code,
    is_damage,
    translate_database_error,
)
from gateway.storage.sql import Parameters, Statement
from gateway.storage.sqlite_driver import JOURNAL_MODE, sqlite3

BUSY_SECONDS = 5
"""Seconds for which a transaction waits for the lock of another process."""

PROCESS_LOCK = ""
"""The lock of the gateway that serves the file; commands do not acquire it."""
LOCK_ATTEMPTS = 4

MAX_GROUP_SIZE = 64
"""Maximum transactions in one commit; none is acknowledged before it has ended."""

BEGIN_WRITE = "BEGIN IMMEDIATE"
"""IMMEDIATE, because a read that becomes a write may not get the lock."""

MAX_REMEMBERED_STATEMENTS = 10_000

CHECK_SECONDS = 0.002
"""Time for which the file is taken as unchanged, unless this process has changed it."""


class SqliteTransaction(Transaction):
    dialect = "sqlite"

    def __init__(self, cursor: sqlite3.Cursor, *, is_in_event_loop: bool = False) -> None:
        self._cursor = cursor
        self._is_in_event_loop = is_in_event_loop

    async def lock(self, *names: str) -> None:
        """Does nothing: SQLite has one writer at a time."""

    async def compute(
        self,
        is_long: bool,
        function: Callable[..., Result],
        *arguments: Any,
    ) -> Result:
        if is_long and self._is_in_event_loop:
            raise _NotBrief
        return function(*arguments)

    async def leave_event_loop(self) -> None:
        if self._is_in_event_loop:
            raise _NotBrief

    async def fetch(self, statement: Any, *parameter_sets: Parameters) -> list[Any]:
        rows: list[Any] = []
        compiled = self._compile(statement, parameter_sets)
        for parameters in parameter_sets or ({},):
            self._cursor.execute(compiled.text, compiled.build_arguments(parameters))
            rows += self._cursor.fetchall()
        return compiled.build_rows(rows)

    async def execute(self, statement: Any, *parameter_sets: Parameters) -> int:
        compiled = self._compile(statement, parameter_sets)
        if len(parameter_sets) <= 1:
            arguments = compiled.build_arguments(*parameter_sets or ({},))
            return self._cursor.execute(compiled.text, arguments).rowcount
        self._cursor.executemany(compiled.text, map(compiled.build_arguments, parameter_sets))
        return -1

    async def execute_all(self, changes: Sequence[Change]) -> Sequence[int]:
        counts, execute = [], self._cursor.execute
        for statement, parameters in changes:
            compiled = statement.compiled.get("sqlite") or statement.compile_for_dialect("sqlite")
            counts.append(execute(compiled.text, compiled.build_arguments(parameters)).rowcount)
        return counts


class _Job(msgspec.Struct, eq=False):
    """A body to run, and the future with which its caller waits."""

    body: Body[Any]
    writes: bool
    is_brief: bool
    context: contextvars.Context
    future: asyncio.Future[Any]
    queued_at: float
    result: Any = None
    error: BaseException | None = None


class SqliteDatabase(Database):
    """A connection that writes, and one for brief reads in the event loop's thread.

    Transactions that wait for a commit share the next one (group commit), because a commit waits
    for the disk and costs as much for many as for one. Whatever may wait runs in a thread: commits,
    and transactions that are not brief. The statements of brief ones run in the event loop's
    thread, because two threads that run Python take turns at a higher cost than a statement's.
    ``connect`` receives the seconds for which the connection waits for a lock.
    """

    dialect = "sqlite"

    def __init__(self, location: str, connect: Callable[[float], sqlite3.Connection]) -> None:
        super().__init__(location)
        self._wal_location = f"{location}-wal"
        self._connect = connect
        # One for all statements of a connection: a cursor costs as much as a short statement.
        self._cursor: sqlite3.Cursor | None = None
        self._read_cursor: sqlite3.Cursor | None = None
        self._rows: dict[tuple[Any, ...], Sequence[Any]] = {}
        """Rows that ``fetch_now`` selected, valid as long as the file is unchanged."""
        self._data_version = 0
        """SQLite's number of the state that the connection for reads last saw."""
        self._check_at = 0.0
        """When that is looked at again; at once after a change by this process."""
        self._waiting: list[_Job] = []
        """Jobs that wait for the group before them."""
        self._groups: queue.SimpleQueue[tuple[Sequence[_Job], bool] | None] = queue.SimpleQueue()
        """Jobs that the thread runs together, and whether only COMMIT is left of them."""
        self._loop: asyncio.AbstractEventLoop
        self._idle: asyncio.Event
        """Set while no group is about to start, and the thread has none."""
        self._files: tuple[int, int] | None = None
        """The inodes of the file and its WAL, to which the connection that writes commits."""
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._lock_files: list[int] = []

    async def read(self, body: Body[Result], *, is_brief: bool = False) -> Result:
        if is_brief:
            try:
                # Here, as a handover to the thread takes longer. Each statement is a transaction of
                # its own, as on PostgreSQL.
                transaction = SqliteTransaction(self._open_read_cursor())
                return run_coroutine_without_waiting(body(transaction))
            except DATABASE_ERRORS as error:
                if self._read_cursor is not None and is_damage(error):
                    self._read_cursor.connection.close()
                    self._read_cursor = None
                # The event loop must not wait for the lock of another connection.
                if find_sqlite_code(error) != sqlite3.SQLITE_BUSY:
                    raise translate_database_error(error, self.location) from None
        return cast("Result", await self._queue_job(body, writes=False))

    def fetch_now(self, statement: Statement, parameters: Parameters) -> Sequence[Any] | None:
        compiled = statement.compiled.get("sqlite") or statement.compile_for_dialect("sqlite")
        arguments = compiled.build_arguments(parameters)
        key = (statement, *arguments)
        try:
            cursor = self._read_cursor or self._open_read_cursor()
            if (now := time.monotonic()) >= self._check_at:
                # Set first: a change that is made meanwhile sets it back.
                self._check_at = now + CHECK_SECONDS
                self._forget_rows_if_changed(cursor)
            rows = self._rows.get(key)
            if rows is None:
                # A transaction of its own, as every single statement is.
                rows = self._rows[key] = cursor.execute(compiled.text, arguments).fetchall()
        except sqlite3.Error:
            return None
        return rows

    def _forget_rows_if_changed(self, cursor: sqlite3.Cursor) -> None:
        # Before rows are read: if the file changes after that, they are read again. Not by the
        # file's time: others see a change only when the disk has it, long after it was written.
        ((data_version,),) = cursor.execute("PRAGMA data_version").fetchall()
        if data_version != self._data_version or len(self._rows) > MAX_REMEMBERED_STATEMENTS:
            self._rows, self._data_version = {}, data_version

    def _open_read_cursor(self) -> sqlite3.Cursor:
        # Not that of the connection that writes, whose pages in memory would hide a damaged file.
        if self._read_cursor is None:
            # Each connection numbers the states on its own.
            self._rows, self._read_cursor = {}, self._connect(0).cursor()
        return self._read_cursor

    def write(
        self,
        body: Body[Result],
        *,
        is_brief: bool = False,
        is_single: bool = False,  # noqa: ARG002 - PostgreSQL's
    ) -> Awaitable[Result]:
        return self._queue_job(body, writes=True, is_brief=is_brief)

    def _queue_job(
        self, body: Body[Any], *, writes: bool, is_brief: bool = False
    ) -> asyncio.Future[Any]:
        """Queues a body; returns the future of its result."""
        if self._is_closing:
            error = sqlite3.OperationalError("the database is being closed")
            raise translate_database_error(error, self.location)
        if self._thread is None:
            self._loop, self._idle = asyncio.get_running_loop(), asyncio.Event()
            self._idle.set()
            self._thread = threading.Thread(
                target=self._run_groups_until_closed, name="database", daemon=True
            )
            self._thread.start()
        context, future = contextvars.copy_context(), self._loop.create_future()
        self._waiting.append(_Job(body, writes, is_brief, context, future, time.perf_counter()))
        if self._idle.is_set():
            self._idle.clear()
            # Not at once: other callbacks that are ready now may have transactions for this commit.
            self._loop.call_soon(self._start_group)
        return future

    def _start_group(self) -> None:
        """Gives waiting jobs to the thread."""
        jobs = self._waiting[:MAX_GROUP_SIZE]
        del self._waiting[:MAX_GROUP_SIZE]
        self._groups.put((jobs, self._try_run_brief_jobs(jobs)))

    def _end_group(self, jobs: Sequence[_Job], slow_error: BaseException | None) -> None:
        """Gives the callers their results; what they do next may join the group that follows."""
        if slow_error is not None:
            # These have waited as long, and would wait again for the same lock.
            for job in self._waiting:
                job.error = slow_error
            jobs, self._waiting = [*jobs, *self._waiting], []
        now, durations = time.perf_counter(), metrics.traffic.database_durations["write"]
        for job in jobs:
            if job.writes:
                durations.observe(now - job.queued_at)
            if isinstance(job.error, DATABASE_ERRORS):
                record_error = self._record_write_error if job.writes else None
                job.error = translate_database_error(job.error, self.location, record_error)
            if job.future.done():  # the caller was cancelled
                continue
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.result)
        if self._waiting:
            self._loop.call_soon(self._start_group)
        else:
            self._idle.set()

    def _try_run_brief_jobs(self, jobs: Sequence[_Job]) -> bool:
        """Runs the statements of brief jobs in this thread; returns whether only COMMIT is left.

        Otherwise they are rolled back, and the thread runs all of them again: if a job is not
        brief, fails, or would wait for the lock of another process.
        """
        cursor = self._cursor
        # A commit to a rollback journal waits for readers, for which no time limit is set here.
        if cursor is None or JOURNAL_MODE != "WAL":
            return False
        for job in jobs:
            if not job.is_brief:
                return False
        try:
            cursor.execute(BEGIN_WRITE)
            self._check_files_in_place()
            transaction = SqliteTransaction(cursor, is_in_event_loop=True)
            for job in jobs:
                job.result = job.context.run(run_coroutine_without_waiting, job.body(transaction))
        except Exception:  # noqa: BLE001 - raised again in the thread, unless it was the lock
            _roll_back(cursor)
            return False
        return True

    def _run_groups_until_closed(self) -> None:
        while (group := self._groups.get()) is not None:
            jobs, has_run = group
            slow_error = self._commit(jobs, None) if has_run else self._run_group(jobs)
            try:
                self._loop.call_soon_threadsafe(self._end_group, jobs, slow_error)
            except RuntimeError:  # the loop was closed without waiting
                continue
        if self._cursor is not None:
            # Leaves no journal behind, unless another process uses the file; a WAL is deleted anyway.
            if JOURNAL_MODE == "PERSIST":
                with suppress(sqlite3.Error):
                    self._cursor.execute("PRAGMA journal_mode = DELETE")
            self._cursor.connection.close()

    def _run_group(self, jobs: Sequence[_Job]) -> BaseException | None:
        """Runs reads, then writes; returns an error as ``_commit``."""
        self._set_busy_seconds(BUSY_SECONDS)
        slow_error = None
        for begin, writes in (("BEGIN", False), (BEGIN_WRITE, True)):
            jobs_of_kind = [job for job in jobs if job.writes is writes]
            if slow_error is not None:
                self._fail_jobs(jobs_of_kind, slow_error)
            elif jobs_of_kind:
                slow_error = self._commit(jobs_of_kind, begin)
        self._set_busy_seconds(0)
        return slow_error

    def _set_busy_seconds(self, seconds: int) -> None:
        """Sets how long statements wait for a lock: the event loop's thread must not wait."""
        if self._cursor is not None:
            with suppress(sqlite3.Error):
                self._cursor.execute(f"PRAGMA busy_timeout = {1000 * seconds}")

    def _commit(self, jobs: Sequence[_Job], begin: str | None) -> BaseException | None:
        """Commits jobs, after running them in a transaction unless ``begin`` is None.

        Returns the error of a file that took more than ``patience_seconds`` to fail, so that nobody
        else should wait for it.
        """
        started_at = time.monotonic()
        try:
            if self._cursor is None:
                self._cursor = self._connect(BUSY_SECONDS).cursor()
            if begin is not None:
                self._run_jobs(self._cursor, jobs, begin)
            is_empty = begin is not None and all(job.error for job in jobs)
            self._cursor.execute("ROLLBACK" if is_empty else "COMMIT")
        except BaseException as error:  # noqa: BLE001 - each caller gets it
            self._fail_jobs(jobs, error)
            return error if time.monotonic() - started_at > self.patience_seconds else None
        # Before the callers learn of it, so that what they read next shows their change.
        self._check_at = 0.0
        return None

    def _run_jobs(self, cursor: sqlite3.Cursor, jobs: Sequence[_Job], begin: str) -> None:
        cursor.execute(begin)
        if begin == BEGIN_WRITE:
            self._check_files_in_place()
        for job in jobs:
            self._run_job(cursor, job, is_alone=len(jobs) == 1)

    def _fail_jobs(self, jobs: Sequence[_Job], error: BaseException) -> None:
        for job in jobs:
            job.error = job.error or error
        if self._cursor is not None:
            _roll_back(self._cursor)
            if is_damage(error):
                self._cursor.connection.close()
                self._cursor = self._files = None

    def _check_files_in_place(self) -> None:
        """Raises OperationalError if a commit would go to a file that nobody will open again.

        With a rollback journal SQLite notices that itself.
        """
        try:
            files = os.stat(self.location).st_ino, os.stat(self._wal_location).st_ino  # noqa: PTH116
        except FileNotFoundError:
            files = 0, 0
        if self._files is None:
            self._files = files
        elif files != self._files:
            raise sqlite3.OperationalError("its file was moved, replaced or deleted")

    def _run_job(self, cursor: sqlite3.Cursor, job: _Job, *, is_alone: bool) -> None:
        if not is_alone:
            # A job that fails must not undo the other jobs of the group.
            cursor.execute("SAVEPOINT job")
        try:
            # In the caller's context, whose variables are those of its request.
            body = job.body(SqliteTransaction(cursor))
            job.result = job.context.run(run_coroutine_without_waiting, body)
        except sqlite3.Error as error:
            if not _is_statement_error(error):
                raise  # no job in the group can be committed
            # By its text: not every driver tells the extended code.
            is_unique = str(error).startswith("UNIQUE constraint failed")
            job.error = UniqueViolation() if is_unique else error
        except Exception as error:  # noqa: BLE001 - the caller gets it
            job.error = error
        if not is_alone:
            if job.error is not None:
                cursor.execute("ROLLBACK TO job")
            cursor.execute("RELEASE job")

    async def acquire_lock(self, name: str) -> bool:
        suffix = f".{hashlib.sha256(name.encode()).hexdigest()[:8]}" if name else ""
        # The file is never deleted: two processes could otherwise lock two files of that name.
        lock_file = _open_lock_file(f"{self.location}{suffix}.lock", os.O_CREAT | os.O_RDWR)
        # Several attempts, because a command has the lock for a moment while it looks.
        for attempt in range(LOCK_ATTEMPTS):
            if _try_lock(lock_file, fcntl.LOCK_EX):
                self._lock_files.append(lock_file)
                return True
            await asyncio.sleep(attempt / 10)
        os.close(lock_file)
        return False

    async def close(self) -> None:
        """Runs the queued jobs, and closes the file, which the next transaction opens again."""
        if self._read_cursor is not None:
            self._read_cursor.connection.close()
            self._read_cursor = None
        if self._thread is not None:
            self._is_closing = True
            # Never set for jobs of an event loop that has ended.
            if self._loop is asyncio.get_running_loop():
                await self._idle.wait()
            self._groups.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = self._cursor = self._files = None
            self._is_closing = False
        while self._lock_files:
            os.close(self._lock_files.pop())


def is_served(location: str) -> bool:
    """Whether a gateway, perhaps this process, serves a file."""
    try:
        # Not created here: a gateway of another user could not open it.
        lock_file = _open_lock_file(f"{location}.lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(lock_file, fcntl.LOCK_SH)
    finally:
        os.close(lock_file)


def _open_lock_file(path: str, flags: int) -> int:
    try:
        return os.open(path, flags, 0o600)
    except PermissionError as error:
        raise StoreUnavailable(
            f"lock file {path} cannot be opened ({error.strerror})",
            means="it is unknown whether another process uses the database",
            do=f"make the gateway's user the owner of the file, and run commands as that user "
            f"(this one is uid {os.geteuid()})",
        ) from None


def _try_lock(lock_file: int, kind: int) -> bool:
    try:
        fcntl.flock(lock_file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _NotBrief(Exception):
    """A body that was expected to be brief is not: it runs again in the thread."""


_BODY_ERRORS = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError)
_BODY_ERROR_CODES = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG)


def _is_statement_error(error: sqlite3.Error) -> bool:
    """Whether a statement is faulty, as opposed to the file or its disk."""
    return isinstance(error, _BODY_ERRORS) or find_sqlite_code(error) in _BODY_ERROR_CODES


def _roll_back(cursor: sqlite3.Cursor) -> None:
    with suppress(sqlite3.Error):  # SQLite rolls some transactions back itself
        cursor.execute("ROLLBACK")


def run_coroutine_without_waiting(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine that never suspends; raises TypeError if it does."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    coroutine.close()
    raise TypeError("a transaction awaited something other than the database")
