"""Transactions on SQLite or PostgreSQL.

A transaction is a coroutine function that is given a ``Transaction``, awaits nothing else, and changes
nothing but the database: it may run again after a deadlock, and on SQLite it may run in the thread
that owns the connection, where nothing else can be awaited.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from gateway.storage.errors import StoreUnavailable, unwritable
from gateway.storage.sql import Compiled, DialectName, Parameters, Statement, compile_statement

Result = TypeVar("Result")
Body = Callable[["Transaction"], Coroutine[Any, Any, Result]]

FEW = 50
"""Rows up to which a read is brief."""


class UniqueViolation(Exception):
    """A row with this key exists; the transaction was rolled back."""


class Transaction(ABC):
    """What the body of a transaction may await."""

    dialect: DialectName

    async def fetch(self, statement: Any, *parameters: Parameters) -> list[Any]:
        """Named tuples of the rows that a SELECT or a RETURNING clause gives.

        ``statement`` is a ``Statement`` or any SQLAlchemy Core statement; with several parameter
        sets it runs once for each, and the rows come in that order.
        """
        compiled = self._compile(statement, parameters)
        return [compiled.row(raw) for raw in await self._fetch(compiled, parameters or ({},))]

    async def fetch_value(self, statement: Any, *parameters: Parameters) -> Any:
        """The first column of the first row, or None."""
        rows = await self.fetch(statement, *parameters)
        return rows[0][0] if rows else None

    async def execute(self, statement: Any, *parameters: Parameters) -> int:
        """The number of rows that were changed; with several parameter sets it is not known (-1)."""
        return await self._execute(self._compile(statement, parameters), parameters or ({},))

    @abstractmethod
    async def lock(self, *names: str) -> None:
        """Holds locks until the transaction ends; they are taken in one order everywhere."""

    @abstractmethod
    async def compute(
        self, is_long: bool, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Calls a function; one that takes long is called outside the event loop's thread."""

    def _compile(self, statement: Any, parameters: Sequence[Parameters]) -> Compiled:
        if isinstance(statement, Statement):
            return statement.compiled(self.dialect)
        return compile_statement(statement, self.dialect, list(parameters[0]) if parameters else ())

    @abstractmethod
    async def _fetch(self, compiled: Compiled, those: Sequence[Parameters]) -> Sequence[Any]: ...

    @abstractmethod
    async def _execute(self, compiled: Compiled, those: Sequence[Parameters]) -> int: ...


class Database(ABC):
    """A pool of connections, or SQLite's thread. ``where`` is the address without secrets."""

    dialect: DialectName

    def __init__(self, where: str) -> None:
        self.where = where
        self.unwritten: StoreUnavailable | None = None
        """Why the last change could not be written; None again after one was."""

    @abstractmethod
    async def read(self, body: Body[Result], *, is_brief: bool = False) -> Result:
        """Runs a body that changes nothing; raises StoreUnavailable.

        ``is_brief`` if it selects a few rows by their keys: on SQLite the event loop waits for it.
        On PostgreSQL each of its statements sees what was committed when it began.
        """

    @abstractmethod
    async def write(self, body: Body[Result]) -> Result:
        """Runs a body and commits; raises StoreUnavailable, UniqueViolation, and what it raises.

        It runs to its end also if the caller is cancelled.
        """

    @abstractmethod
    async def close(self) -> None: ...

    def _note_unwritten(self, why: str) -> None:
        self.unwritten = unwritable(self.where, why)
