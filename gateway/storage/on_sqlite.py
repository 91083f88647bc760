"""Works on SQLite: what is brief is played here, and only what waits for a disk goes to a thread.

What a brief work asks takes a few microseconds, and handing it over takes more: two threads that want
Python in turns wait for each other at every statement. A commit waits for the disk, and does that in the
one thread that there is for this file; so does everything that is long, or would have to wait for
another process.

One connection for readings and changes: with a rollback journal two would only keep each other out.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Literal

from gateway.storage.engine import CACHE_KIB, close_sqlite
from gateway.storage.group_commit import Done, TransactionAborted
from gateway.storage.statements import Asked, Made, Rows, Several, Steps, Transaction

LOOKING_SECONDS = 0.005
"""For how long other processes wait for what is only looked up; longer only where this one is held up."""

Begin = Literal["BEGIN", "BEGIN IMMEDIATE"]
"""What a transaction is for: one that is to change something has its lock at once."""


class File:
    """SQLite's file, and the thread; opened when it is first needed.

    The connection waits for no other process. ``patience`` is for how many seconds the thread does.
    """

    def __init__(self, opened: Callable[[], sqlite3.Connection], patience: float) -> None:
        self._opened = opened
        self._patience = patience
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, "state")
        self._turn = asyncio.Lock()
        self._looks = False
        """Whether a transaction is open in which things are looked up, see ``at_once``."""

    async def carry_out(self, works: Sequence[Transaction[Any]], begin: Begin) -> list[Done[Any]]:
        """As ``Database.carry_out``."""
        async with self._turn:
            self._have_looked()
            if self._connection is None:
                self._connection = await self._within(self._opened)
            connection = self._connection
            if all(work.is_brief for work in works):
                with suppress(_Busy):
                    return await self._here(connection, works, begin)
            return await self._within(self._patiently, connection, works, begin)

    def at_once(self, work: Transaction[Any]) -> Done[Any] | None:
        """As ``Database.at_once``, of a work that changes nothing.

        A transaction's locks cost several times what is looked up in it, so that it stays open for
        whoever comes next. Nothing can be changed meanwhile: changes from here end it first, and
        other processes wait.
        """
        connection = self._connection
        if connection is None or self._turn.locked() or not work.is_brief:
            return None
        try:
            (done,) = _begun(connection, [work], None if self._looks else "BEGIN")
            if not self._looks:
                self._looks = True
                asyncio.get_running_loop().call_later(LOOKING_SECONDS, self._have_looked)
        except BaseException as error:
            self._looks = False
            _take_back(connection)
            if isinstance(error, _Busy):
                return None
            raise
        return done

    def _have_looked(self) -> None:
        if self._looks and self._connection is not None:
            self._looks = False
            _take_back(self._connection)

    async def _here(
        self, connection: sqlite3.Connection, works: Sequence[Transaction[Any]], begin: Begin
    ) -> list[Done[Any]]:
        """Only its end in the thread; raises _Busy where it would have to wait for its beginning."""
        try:
            done = _begun(connection, works, begin)
            if begin == "BEGIN":
                connection.execute("COMMIT")
            else:  # waits for the disk, and for readings of other connections
                await self._within(self._commit, connection)
        except BaseException:
            await self._within(_take_back, connection)
            raise
        return done

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
            with _patient(connection, self._patience):
                connection.execute("COMMIT")

    def _patiently(
        self, connection: sqlite3.Connection, works: Sequence[Transaction[Any]], begin: Begin
    ) -> list[Done[Any]]:
        with _patient(connection, self._patience), _passing(connection, works):
            return transact(connection, works, begin)

    async def _within(self, done: Callable[..., Made], *its: Any) -> Made:
        """Has it done in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, done, *its)

    async def close(self) -> None:
        self._have_looked()
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._within(close_sqlite, connection)
        self._thread.shutdown()


class _Busy(Exception):
    """Another process has the file at this moment."""


def _begun(
    connection: sqlite3.Connection, works: Sequence[Transaction[Any]], begin: Begin | None
) -> list[Done[Any]]:
    """In a transaction that is open, where none is to ``begin``: it may have no lock yet."""
    try:
        if begin is not None:
            connection.execute(begin)
        return _played(connection, works)
    except sqlite3.OperationalError as error:
        if _is_busy(error):
            raise _Busy from None
        raise


def _is_busy(error: sqlite3.Error) -> bool:
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


@contextmanager
def _patient(connection: sqlite3.Connection, seconds: float) -> Iterator[None]:
    connection.execute(f"PRAGMA busy_timeout = {int(1000 * seconds)}")
    try:
        yield
    finally:
        connection.execute("PRAGMA busy_timeout = 0")


_PASSING_KIB = 1024


@contextmanager
def _passing(connection: sqlite3.Connection, works: Sequence[Transaction[Any]]) -> Iterator[None]:
    """What is long is on its way from or to the disk: as much memory again is not to be filled by it."""
    if not any(work.is_long for work in works):
        yield
        return
    connection.execute(f"PRAGMA cache_size = -{_PASSING_KIB}")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")


class OnSqlite:
    def __init__(self, file: File, begin: Begin) -> None:
        self._file = file
        self._begin = begin

    async def carry_out(self, works: Sequence[Transaction[Any]]) -> list[Done[Any]]:
        return await self._file.carry_out(works, self._begin)

    def at_once(self, work: Transaction[Any]) -> Done[Any] | None:
        """What is to last waits for the disk."""
        return self._file.at_once(work) if self._begin == "BEGIN" else None


def transact(
    connection: sqlite3.Connection, works: Sequence[Transaction[Any]], begin: Begin
) -> list[Done[Any]]:
    """As ``Database.carry_out``."""
    connection.execute(begin)
    try:
        done = _played(connection, works)
        connection.execute("COMMIT")
    except BaseException:
        _take_back(connection)
        raise
    return done


def _take_back(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):  # SQLite takes some back by itself
        connection.execute("ROLLBACK")


def _played(connection: sqlite3.Connection, works: Sequence[Transaction[Any]]) -> list[Done[Any]]:
    done: list[Done[Any]] = []
    for number, work in enumerate(works):
        before = connection.total_changes
        try:
            done.append(Done(played(connection, work.steps())))
        except Exception as error:
            if len(works) == 1 or _is_the_file_s(error):
                raise
            if connection.total_changes != before or isinstance(error, sqlite3.Error):
                raise TransactionAborted(number) from None
            done.append(Done(failure=error))
    return done


def _is_the_file_s(error: Exception) -> bool:
    """Whether no work is to blame: each alone would wait for the same lock, or meet the same disk."""
    its_own = sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.DataError
    return isinstance(error, sqlite3.Error) and not isinstance(error, its_own)


def played(connection: sqlite3.Connection, steps: Steps[Made]) -> Made:
    """What came of it, in a transaction that has begun."""
    try:
        asked = next(steps)
        while True:
            asked = steps.send(_rows(connection, asked))
    except StopIteration as stop:
        made: Made = stop.value
        return made


def _rows(connection: sqlite3.Connection, asked: Asked | Several) -> Rows:
    if isinstance(asked, Several):
        for one in asked.those:
            _rows(connection, one)
        return ()
    worded = asked.statement.on_sqlite
    if len(asked.values) == 1:
        cursor = connection.execute(worded.text, worded.arguments(asked.values[0]))
        return worded.rows(cursor.fetchall()) if worded.returns else ()
    if not worded.returns:
        connection.executemany(worded.text, map(worded.arguments, asked.values))
        return ()
    return [
        row
        for values in asked.values
        for row in worded.rows(connection.execute(worded.text, worded.arguments(values)).fetchall())
    ]
