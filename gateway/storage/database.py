"""Transactions on SQLite or PostgreSQL.

The body of a transaction is a coroutine function that is given a ``Transaction``, awaits nothing else,
and changes nothing but the database: it may run again after a deadlock, and on SQLite it may run in the
thread that owns the connection, where nothing else can be awaited.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from gateway.storage.errors import StoreUnavailable, build_unwritable_error
from gateway.storage.sql import (
    CompiledStatement,
    DialectName,
    Parameters,
    Statement,
    compile_statement,
)

Result = TypeVar("Result")
Body = Callable[["Transaction"], Coroutine[Any, Any, Result]]

FEW = 50
"""Rows up to which a read is brief."""


class UniqueViolation(Exception):
    """A row with this key exists; the transaction was rolled back."""


class FaultyStatement(Exception):
    """A value does not fit its column, which is a bug; the text contains no value."""


class Transaction(ABC):
    """What the body of a transaction may await."""

    dialect: DialectName

    async def fetch(self, statement: Any, *parameter_sets: Parameters) -> list[Any]:
        """Returns named tuples of the rows that a SELECT or a RETURNING clause gives.

        ``statement`` is a ``Statement`` or any SQLAlchemy Core statement; with several parameter
        sets it runs once for each, and the rows come in that order.
        """
        compiled = self._compile(statement, parameter_sets)
        rows = await self._fetch(compiled, parameter_sets or ({},))
        return [compiled.build_row(row) for row in rows]

    async def fetch_value(self, statement: Any, *parameter_sets: Parameters) -> Any:
        """Returns the first column of the first row, or None."""
        rows = await self.fetch(statement, *parameter_sets)
        return rows[0][0] if rows else None

    async def execute(self, statement: Any, *parameter_sets: Parameters) -> int:
        """Returns the number of changed rows; -1 (unknown) with several parameter sets."""
        compiled = self._compile(statement, parameter_sets)
        return await self._execute(compiled, parameter_sets or ({},))

    @abstractmethod
    async def lock(self, *names: str) -> None:
        """Acquires locks, and waits for other processes that hold them; they end with the transaction."""

    @abstractmethod
    async def compute(
        self, is_long: bool, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Calls a function, outside the event loop's thread if it takes long."""

    def _compile(self, statement: Any, parameter_sets: Sequence[Parameters]) -> CompiledStatement:
        if isinstance(statement, Statement):
            return statement.compile_for_dialect(self.dialect)
        names = list(parameter_sets[0]) if parameter_sets else ()
        return compile_statement(statement, self.dialect, names)

    @abstractmethod
    async def _fetch(
        self, compiled: CompiledStatement, parameter_sets: Sequence[Parameters]
    ) -> Sequence[Any]: ...

    @abstractmethod
    async def _execute(
        self, compiled: CompiledStatement, parameter_sets: Sequence[Parameters]
    ) -> int: ...


class Database(ABC):
    """A pool of connections, or SQLite's thread. ``location`` is the address without secrets."""

    dialect: DialectName

    patience_seconds = 1.0
    """If the database fails after a longer time, callers that wait get the same error at once."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.write_error: StoreUnavailable | None = None
        """Why the last change could not be written; None again after ``clear_write_error``."""

    @abstractmethod
    async def read(self, body: Body[Result], *, is_brief: bool = False) -> Result:
        """Runs a body that changes nothing; raises StoreUnavailable and what the body raises.

        ``is_brief`` if it selects a few rows by their keys: on SQLite the event loop waits for it.
        On PostgreSQL each of its statements sees what was committed when it began.
        """

    @abstractmethod
    async def write(self, body: Body[Result]) -> Result:
        """Runs a body and commits; raises StoreUnavailable, UniqueViolation, and what the body raises.

        The transaction runs to its end even if the caller is cancelled. After StoreUnavailable it
        is unknown whether it was committed.
        """

    @abstractmethod
    async def close(self) -> None: ...

    def clear_write_error(self) -> None:
        """To be called after a transaction that certainly changed a row: an empty commit proves nothing."""
        self.write_error = None

    def _record_write_error(self, reason: str) -> None:
        self.write_error = build_unwritable_error(self.location, reason)
