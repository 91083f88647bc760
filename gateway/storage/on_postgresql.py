"""Works on PostgreSQL: those that are carried out together go side by side, step by step.

What several of them ask at one step by the same statement goes to the database, and comes back, at
once. So a transaction costs about as much, and takes about as long, for many works as for one.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import asyncpg
from sqlalchemy import Integer, Text, bindparam, func, select

from gateway.payloads.worker_thread import run_in_thread
from gateway.storage.group_commit import Done, TransactionAborted
from gateway.storage.statements import (
    WHOSE,
    Asked,
    Rows,
    Several,
    Statement,
    Steps,
    Transaction,
    Values,
    Worded,
)

LOCKS = 0x7061796F  # this gateway's room among PostgreSQL's advisory locks: "payo"

_LOCK = Statement(
    lambda _kind: select(
        func.pg_advisory_xact_lock(
            bindparam("room", LOCKS, Integer), func.hashtext(bindparam("what", type_=Text))
        )
    )
)

_PARAMETER = re.compile(r"\$(\d+)")
_PARTS = "parts"


class _Joined:
    """Several changes as one statement. Its only value is theirs, in their order."""

    changes, returns = True, False

    def __init__(self, statements: Sequence[Statement]) -> None:
        self._those = [one.on_postgresql for one in statements]
        *those, last = self._numbered()
        before = ", ".join(f"change_{number} AS ({text})" for number, text in enumerate(those))
        self.text = f"WITH {before} {last}"

    def _numbered(self) -> Iterator[str]:
        """Their texts, with the parameters of each after those of the one before."""
        before = 0
        for one in self._those:
            parts = _PARAMETER.split(one.text)
            parts[1::2] = [f"${before + int(number)}" for number in parts[1::2]]
            yield "".join(parts)
            before += len(set(_PARAMETER.findall(one.text)))

    def arguments(self, values: Values) -> list[Any]:
        both = zip(self._those, values[_PARTS], strict=True)
        return [argument for one, its in both for argument in one.arguments(its)]


_joined = cache(_Joined)

GONE = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
)
"""What is raised where a connection can be used no more; InternalClientError where the server has
said so, as it does when it ends, and has not closed it yet.
"""

FAILED = (*GONE, asyncpg.PostgresError)
"""And whatever else the server may have against a statement."""

STALE = (asyncpg.InvalidCachedStatementError, asyncpg.OutdatedSchemaCacheError)
"""What is raised where tables have changed since a statement was prepared."""


@dataclass(slots=True, eq=False)
class _Playing:
    """A work under way; ``asks`` is what it waits for, None when it is over."""

    number: int
    steps: Steps[Any]
    is_long: bool = False
    asks: tuple[Worded | _Joined, Sequence[Values]] | None = None
    has_changed: bool = False
    done: Done[Any] = field(default_factory=Done)

    def go_on(self, rows: Rows | None) -> None:
        """Up to what it asks next; raises what it raises after it has changed something."""
        self.asks = None
        try:
            self.asks = _worded(next(self.steps) if rows is None else self.steps.send(rows))
        except StopIteration as stop:
            self.done.made = stop.value
        except Exception as error:
            if self.has_changed:
                raise
            self.done.failure = error


def _worded(asked: Asked | Several) -> tuple[Worded | _Joined, Sequence[Values]]:
    if isinstance(asked, Asked):
        return asked.statement.on_postgresql, asked.values
    parts = [one.values[0] for one in asked.those]
    return _joined(tuple(one.statement for one in asked.those)), [{_PARTS: parts}]


class _Line:
    """A connection with what was prepared on it: each statement is looked up here, by its text alone.

    The driver does that with more care, and takes as long for it as to send what is asked.
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._prepared: dict[str, Any] = {}

    async def prepare(self, text: str) -> Any:
        if (found := self._prepared.get(text)) is None:
            found = self._prepared[text] = await self.connection.prepare(text)
        return found

    async def fetched(
        self, worded: Worded | _Joined, arguments: Sequence[Sequence[Any]]
    ) -> Sequence[Any]:
        try:
            return await self._fetched(worded, arguments)
        except STALE:
            self._prepared.clear()
            if self.connection.is_in_transaction():
                raise
            return await self._fetched(worded, arguments)

    async def _fetched(
        self, worded: Worded | _Joined, arguments: Sequence[Sequence[Any]]
    ) -> Sequence[Any]:
        statement, rows = await self.prepare(worded.text), list[Any]()
        if len(arguments) == 1:
            rows = await statement.fetch(*arguments[0])
        elif worded.returns:
            rows = await statement.fetchmany(arguments)
        else:
            await statement.executemany(arguments)
        return rows


class OnPostgresql:
    """``is_reading`` is for works that change nothing: each of their statements stands for itself."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], *, is_reading: bool = False) -> None:
        self._connect = connect
        self._is_reading = is_reading
        self._idle: list[_Line] = []

    def at_once(self, _work: Transaction[Any]) -> None:
        """Its answer is always waited for."""

    async def carry_out(self, works: Sequence[Transaction[Any]]) -> list[Done[Any]]:
        line = await self._begun()
        connection = line.connection
        try:
            # In one order everywhere: two that need several must not wait for each other.
            locks = sorted({name for work in works for name in work.locks})
            if locks:
                await _fetched(
                    line, _LOCK.on_postgresql, [{"what": name, WHOSE: 0} for name in locks]
                )
            done = await _played(line, works)
            if not self._is_reading:
                await connection.execute("COMMIT")
        except Exception:
            await self._take_back(line)
            raise
        except BaseException:
            connection.terminate()
            raise
        self._idle.append(line)
        return done

    async def _begun(self) -> _Line:
        """A connection, in a transaction. One that was closed while it was idle costs no request."""
        while self._idle:
            line = self._idle.pop()
            try:
                await self._begin(line.connection)
            except FAILED:
                line.connection.terminate()
            else:
                return line
        line = _Line(await self._connect())
        await self._begin(line.connection)
        return line

    async def _begin(self, connection: Any) -> None:
        if not self._is_reading:
            await connection.execute("BEGIN")
        elif connection.is_closed():
            raise asyncpg.InterfaceError("closed")

    async def _take_back(self, line: _Line) -> None:
        try:
            if not self._is_reading:
                await line.connection.execute("ROLLBACK")
        except FAILED:
            line.connection.terminate()
        else:
            self._idle.append(line)

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().connection.close()


async def _played(line: _Line, works: Sequence[Transaction[Any]]) -> list[Done[Any]]:
    """Raises Spoilt where one of several fails that must not."""
    playing = [_Playing(number, work.steps(), work.is_long) for number, work in enumerate(works)]
    going: list[_Playing] = playing
    rows: dict[_Playing, Rows | None] = dict.fromkeys(playing)
    while rows:
        for one, its in rows.items():
            try:
                if one.is_long:
                    await run_in_thread(one.go_on, its)
                else:
                    one.go_on(its)
            except Exception:
                if len(works) == 1:
                    raise
                raise TransactionAborted(one.number) from None
        going = [one for one in going if one.asks is not None]
        rows = {}
        for worded, those in _alike(going).items():
            try:
                rows |= await _asked(line, worded, those)
            except asyncpg.PostgresError as error:
                if len(works) == 1 or isinstance(error, GONE):
                    raise
                raise TransactionAborted(those[0].number if len(those) == 1 else None) from None
    return [one.done for one in playing]


def _alike(going: Sequence[_Playing]) -> dict[Worded | _Joined, list[_Playing]]:
    """Those that ask the same, by what they ask."""
    found: dict[Worded | _Joined, list[_Playing]] = {}
    for one in going:
        if one.asks is not None:
            found.setdefault(one.asks[0], []).append(one)
    return found


async def _asked(
    line: _Line, worded: Worded | _Joined, those: Sequence[_Playing]
) -> dict[_Playing, Rows | None]:
    """What each of them is given."""
    values: list[Values] = []
    for one in those:
        one.has_changed = one.has_changed or worded.changes
        if one.asks is not None:
            values += [{**its, WHOSE: one.number} for its in one.asks[1]]
    fetched = await _fetched(line, worded, values)
    if isinstance(worded, _Joined) or not worded.returns:
        return dict.fromkeys(those, ())
    found: dict[int, list[tuple[Any, ...]]] = {one.number: [] for one in those}
    for raw in fetched:
        found[raw[-1]].append(worded.row(raw[:-1]))
    return {one: found[one.number] for one in those}


async def _fetched(
    line: _Line, worded: Worded | _Joined, values: Sequence[Values]
) -> Sequence[Any]:
    return await line.fetched(worded, [worded.arguments(its) for its in values])
