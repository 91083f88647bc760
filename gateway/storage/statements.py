"""Statements that are put into a database's words once, and transactions that are made of them.

A transaction is a *work*: a generator that yields what it asks of the database, is given the rows,
and returns what came of it. It reads from top to bottom, does nothing by itself, and is the same on
SQLite and PostgreSQL. It may be played anew, where what it was carried out with had to be taken back,
and on SQLite in another thread: it changes nothing but the database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import JSON, ColumnElement, Dialect, Integer, Select, Table, bindparam
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.types import TypeEngine

from mappings.frozen import frozen_dataclass

Made = TypeVar("Made")

Values = Mapping[str, Any]
Rows = Sequence[tuple[Any, ...]]

WHOSE = "asked_by"
"""On PostgreSQL, where several ask the same at once: the parameter, and the last column, that say
whose a row is."""

_ON_SQLITE = sqlite.dialect(paramstyle="qmark")
_ON_POSTGRESQL = PGDialect_asyncpg()  # type: ignore[no-untyped-call] # the library's own


def _in_order(names: Sequence[str]) -> Callable[[Values], Sequence[Any]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda values: [values[name] for name in names]


class Converted(NamedTuple):
    place: int
    by: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Worded:
    """A statement as a driver takes it, its parameters by position."""

    text: str
    changes: bool
    returns: bool
    _in_order: Callable[[Values], Sequence[Any]]
    """The parameters, of their names and values."""
    _constants: Values
    """What they are where they are not given."""
    _taken: Sequence[Converted]
    _given: Sequence[Converted]
    """The few of the parameters and the columns that a driver has otherwise."""

    def arguments(self, values: Values) -> Sequence[Any]:
        if self._constants:
            values = {**self._constants, **values}
        if not self._taken:
            return self._in_order(values)
        found = [*self._in_order(values)]
        for place, converted in self._taken:
            found[place] = converted(found[place])
        return found

    def rows(self, raw: Rows) -> Rows:
        """Their columns as the tables' types have them."""
        return list(map(self.row, raw)) if self._given else raw

    def row(self, raw: Sequence[Any]) -> tuple[Any, ...]:
        if not self._given:
            return tuple(raw)
        found = list(raw)
        for place, converted in self._given:
            found[place] = converted(found[place])
        return tuple(found)


class Statement:
    """A SELECT, INSERT, UPDATE or DELETE, made with the module that has the dialect's ``insert``.

    ``sets`` are the columns that an INSERT or UPDATE is given, each a parameter of its own name; the
    other parameters are ``bindparam``s.
    """

    def __init__(self, made: Callable[[ModuleType], Any], sets: Sequence[str] = ()) -> None:
        self._made = made
        self._sets = list(sets)
        self._on_sqlite: Worded | None = None
        self._on_postgresql: Worded | None = None

    def of(self, *values: Values) -> Asked:
        """What is asked: once for each of the values, and their rows in the same order."""
        return Asked(self, values)

    @property
    def on_sqlite(self) -> Worded:
        if self._on_sqlite is None:
            self._on_sqlite = self._worded(self._made(sqlite), _ON_SQLITE)
        return self._on_sqlite

    @property
    def on_postgresql(self) -> Worded:
        if self._on_postgresql is None:
            made = self._made(postgresql)
            if columns := _columns(made):
                tag = bindparam(WHOSE, type_=Integer).label(WHOSE)
                made = made.add_columns(tag) if isinstance(made, Select) else made.returning(tag)
            self._on_postgresql = self._worded(made, _ON_POSTGRESQL, columns)
        return self._on_postgresql

    def _worded(
        self, made: Any, dialect: Dialect, columns: Sequence[TypeEngine[Any]] | None = None
    ) -> Worded:
        compiled = made.compile(dialect=dialect, column_keys=self._sets or None)
        names = compiled.positiontup or ()
        binds = [compiled.binds[name] for name in names]
        taken = [one.type.dialect_impl(dialect).bind_processor(dialect) for one in binds]
        columns = columns or _columns(made)
        given = [_read_by(one, dialect) for one in columns]
        return Worded(
            str(compiled),
            not isinstance(made, Select),
            bool(columns),
            _in_order(names),
            {name: one.value for name, one in zip(names, binds, strict=True) if not one.required},
            _those(taken),
            _those(given),
        )


class Asked(NamedTuple):
    statement: Statement
    values: Sequence[Values]


class Several(NamedTuple):
    """Changes that have nothing to do with each other, once each: PostgreSQL is asked all at once."""

    those: Sequence[Asked]


Steps = Generator[Asked | Several, Rows, Made]

FEW = 50
"""Rows up to which a work is brief."""


@frozen_dataclass(frozen=True, slots=True)
class Transaction(Generic[Made]):
    """A transaction to be: ``steps`` begins it, anew each time.

    Two that have a lock in common are never carried out together, whichever process each is in.
    """

    steps: Callable[[], Steps[Made]]
    locks: frozenset[str] = frozenset()
    is_brief: bool = False
    """Whether it asks for a few rows by their keys: on SQLite others wait for that meanwhile."""
    is_long: bool = False
    """Whether what it does between its statements takes so long that others should not wait for it."""


_SEVERAL = 10
"""How many are asked at once: of each combination PostgreSQL keeps a plan."""


def changed(those: Sequence[Asked]) -> Steps[None]:
    """As a part of a work: changes of different rows, which give none."""
    each = [Asked(one.statement, [values]) for one in those for values in one.values]
    if 1 < len(each) <= _SEVERAL:
        yield Several(each)
        return
    for one in those:  # noqa: UP028 - a list takes no rows
        yield one


AT_ONCE = 500
"""Values in a list; SQLite takes no more than some thousand parameters in a statement."""


class Listed:
    """A SELECT of the rows where a column is one of some: a few statements, each made once.

    ``made`` makes it, of the condition that says so.
    """

    _SIZES = (1, 16, AT_ONCE)

    def __init__(self, column: Any, made: Callable[[ColumnElement[bool]], Any]) -> None:
        self._statements = {
            size: Statement(partial(_made_of, column, made, size)) for size in self._SIZES
        }

    def rows(self, some: Collection[str], values: Values) -> Steps[Rows]:
        """``values`` are those of its other parameters."""
        wanted, found = sorted(set(some)), list[tuple[Any, ...]]()
        if len(wanted) == 1:
            return (yield self._statements[1].of({**values, "one_0": wanted[0]}))
        for start in range(0, len(wanted), AT_ONCE):
            part = wanted[start : start + AT_ONCE]
            size = next(size for size in self._SIZES if len(part) <= size)
            part += part[-1:] * (size - len(part))  # the last one fills what is left
            found += yield self._statements[size].of({**values, **_numbered(part)})
        return found


def _made_of(
    column: Any, made: Callable[[ColumnElement[bool]], Any], size: int, _kind: ModuleType
) -> Any:
    return made(
        column.in_([bindparam(f"one_{number}", type_=column.type) for number in range(size)])
    )


def _numbered(those: Sequence[str]) -> Values:
    return {f"one_{number}": one for number, one in enumerate(those)}


def put(table: Table, key: Sequence[str], sets: Sequence[str]) -> Statement:
    """Inserts a row by its key, or gives the one that there is these values."""

    def made(kind: ModuleType) -> Any:
        new = kind.insert(table)
        values = {name: new.excluded[name] for name in sets}
        return new.on_conflict_do_update(index_elements=list(key), set_=values)

    return Statement(made, [*key, *sets])


def put_new(table: Table, sets: Sequence[str], *returned: Any) -> Statement:
    """Inserts a row, unless it is there; then it returns none either."""

    def made(kind: ModuleType) -> Any:
        new = kind.insert(table).on_conflict_do_nothing()
        return new.returning(*returned) if returned else new

    return Statement(made, sets)


def rows_of(statement: Statement, *values: Values) -> Steps[Rows]:
    """One statement's, asked once where it has no parameters."""
    return (yield statement.of(*(values or ({},))))


def _columns(made: Any) -> list[TypeEngine[Any]]:
    if isinstance(made, Select):
        return [column.type for column in made.selected_columns]
    return [column.type for column in made.exported_columns]


def _read_by(column: TypeEngine[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    """What makes a column's type of what a driver gives."""
    by = column.dialect_impl(dialect).result_processor(dialect, None)
    # asyncpg gives JSON as text: what reads it is set up on SQLAlchemy's own connections alone.
    return by or (_read_json if isinstance(column, JSON) else None)


def _read_json(raw: Any) -> Any:
    return None if raw is None else json.loads(raw)


def _those(converted: Sequence[Callable[[Any], Any] | None]) -> list[Converted]:
    return [Converted(place, by) for place, by in enumerate(converted) if by is not None]
