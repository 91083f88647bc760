"""Transactions on SQLite or PostgreSQL.

The body of a transaction is a coroutine function that receives a ``Transaction``, awaits nothing
else, and changes nothing but the database: it may run again after a deadlock, and on SQLite it may
run in the thread that owns the connection, where nothing else can be awaited.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, TypeVar
from zlib import crc32

import structlog

from gateway.storage.errors import StoreUnavailable, build_unwritable_error
from gateway.storage.sql import (
    CompiledStatement,
    DialectName,
    Parameters,
    Statement,
    compile_statement,
)

_log = structlog.get_logger(__name__)

Result = TypeVar("Result")
Body = Callable[["Transaction"], Coroutine[Any, Any, Result]]

Change = tuple[Statement, Parameters]
"""An INSERT, UPDATE or DELETE with its parameters."""

FEW = 50
"""Maximum number of rows of a brief read; see ``Database.read``."""


def build_instance_lock_key(instance: str) -> int:
    """Builds the key of ``hold_instance_lock`` for a process."""
    return crc32(instance.encode()) >> 1  # PostgreSQL's keys are signed


class UniqueViolation(Exception):
    """A row with this key exists; the transaction was rolled back."""


class FaultyStatement(Exception):
    """A value does not fit its column, which is a bug; the text contains no value."""


class Transaction(ABC):
    """The operations that the body of a transaction may await."""

    dialect: DialectName

    @abstractmethod
    async def fetch(self, statement: Any, *parameter_sets: Parameters) -> list[Any]:
        """Runs a statement, and returns the rows of its SELECT or RETURNING clause as named tuples.

        ``statement`` is a ``Statement`` or any SQLAlchemy Core statement; with several parameter
        sets it runs once for each, and the rows come in that order.
        """

    async def fetch_value(self, statement: Any, *parameter_sets: Parameters) -> Any:
        """Runs a statement; returns the first column of its first row, or None."""
        rows = await self.fetch(statement, *parameter_sets)
        return rows[0][0] if rows else None

    @abstractmethod
    async def execute(self, statement: Any, *parameter_sets: Parameters) -> int:
        """Runs a statement; returns the number of changed rows, -1 for several parameter sets."""

    @abstractmethod
    async def execute_all(self, changes: Sequence[Change]) -> Sequence[int]:
        """Runs statements, each on other rows; returns the numbers of changed rows.

        PostgreSQL runs them in one round trip; see ``Database.write`` for ``is_single``.
        """

    @abstractmethod
    async def lock(self, *names: str) -> None:
        """Acquires locks, which end with the transaction; waits for processes that hold them."""

    @abstractmethod
    async def compute(
        self, is_long: bool, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Calls a function, outside the event loop's thread if it takes long.

        The body runs again if it runs in that thread, as after ``leave_event_loop``.
        """

    async def leave_event_loop(self) -> None:  # noqa: B027 - SQLite's
        """Call before statements that take long: a brief body then runs again, in a thread."""

    def _compile(self, statement: Any, parameter_sets: Sequence[Parameters]) -> CompiledStatement:
        if isinstance(statement, Statement):
            return statement.compiled.get(self.dialect) or statement.compile_for_dialect(
                self.dialect
            )
        # The columns of an INSERT or UPDATE are those that the parameters name.
        names = list(parameter_sets[0]) if parameter_sets else ()
        return compile_statement(statement, self.dialect, names)


class Database(ABC):
    """A pool of connections, or SQLite's thread. ``location`` is the address without secrets."""

    dialect: DialectName

    patience_seconds = 1.0
    """Seconds; if the database takes longer to fail, waiting callers get the same error at once."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.write_error: StoreUnavailable | None = None
        """Why the last change could not be written; None again after ``clear_write_error``."""
        self._outage_started_at = 0.0

    @abstractmethod
    async def read(self, body: Body[Result], *, is_brief: bool = False) -> Result:
        """Runs a body that changes nothing; raises StoreUnavailable and what the body raises.

        ``is_brief`` is for a few rows that are selected by their keys: on SQLite the event loop
        waits for them. Each statement of such a body, and of any on PostgreSQL, sees what was
        committed when it began.
        """

    def fetch_now(
        self,
        statement: Statement,  # noqa: ARG002 - SQLite's
        parameters: Parameters,  # noqa: ARG002
    ) -> Sequence[Any] | None:
        """Returns the rows that a statement selects by their key, if that needs no waiting.

        None otherwise, also after an error: ``read`` waits, and reports it. The rows are tuples
        that must not be changed, with values of types that need no conversion.
        """
        return None

    async def fetch_by_key(self, statement: Statement, parameters: Parameters) -> Sequence[Any]:
        """Returns the rows that a statement selects by their key; raises StoreUnavailable.

        On PostgreSQL, reads of the same moment share a round trip.
        """
        return await self.read(lambda tx: tx.fetch(statement, parameters), is_brief=True)

    @abstractmethod
    def write(
        self, body: Body[Result], *, is_brief: bool = False, is_single: bool = False
    ) -> Awaitable[Result]:
        """Runs a body and commits.

        ``is_brief`` is for a few short statements: on SQLite the event loop may run them, a second
        time in a thread if they fail. It does not wait for the commit.

        ``is_single`` is for one ``execute`` or ``execute_all``, which PostgreSQL commits in the same
        round trip. If the first change of an ``execute_all`` changes no row, it makes no other, and
        the body raises.

        Raises StoreUnavailable, UniqueViolation, and what the body raises. The transaction runs to
        its end even if the caller is cancelled. After StoreUnavailable it is unknown whether it was
        committed.
        """

    async def hold_instance_lock(self, key: int) -> None:  # noqa: B027 - SQLite needs none
        """Holds a lock until this process ends; called again, renews it after a lost connection."""

    async def list_instance_locks(self) -> set[int] | None:
        """Lists the locks that processes hold; None if the database has no such locks."""
        return None

    async def acquire_lock(self, name: str) -> bool:  # noqa: ARG002 - that of processes
        """Acquires a lock until ``close`` or the end of this process; False if another has it."""
        return True

    async def read_clock(self) -> datetime | None:
        """Reads the database's clock; None if it has only that of this machine."""
        return None

    @abstractmethod
    async def close(self) -> None: ...

    def clear_write_error(self) -> None:
        """Clears the write error.

        Call it after a transaction that certainly changed a row: an empty commit proves nothing.
        """
        if self.write_error is not None:
            outage_seconds = time.monotonic() - self._outage_started_at
            _log.info("database_available", outage_seconds=round(outage_seconds, 1))
        self.write_error = None

    def _record_write_error(self, reason: str) -> None:
        if self.write_error is None:
            self._outage_started_at = time.monotonic()
        self.write_error = build_unwritable_error(self.location, reason)
