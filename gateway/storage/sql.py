"""Compiles SQLAlchemy Core statements once for each database."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Literal

import msgspec
from sqlalchemy import JSON, ColumnElement, Dialect, Executable, Table, Text, bindparam, func
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import ARRAY, Boolean, TypeDecorator

DialectName = Literal["sqlite", "postgresql"]
Parameters = Mapping[str, Any]
Convert = Callable[[Any], Any]

MAX_COMPILED_ARGUMENTS = 100
"""More are those of an expanded list: that statement is used once, and compiling takes longer."""

DIALECTS: Mapping[DialectName, tuple[ModuleType, Dialect]] = {
    "sqlite": (sqlite, sqlite.dialect(paramstyle="qmark")),
    # SQLAlchemy's dialect, although asyncpg runs the statements: it numbers the parameters.
    "postgresql": (postgresql, PGDialect_asyncpg()),  # type: ignore[no-untyped-call]
}


@dataclass(frozen=True, slots=True, eq=False)
class CompiledStatement:
    """A statement as a driver takes it, with its parameters by position."""

    text: str
    build_arguments: Callable[[Parameters], tuple[Any, ...]]
    _column_converters: Mapping[int, Convert]
    _make_row: Callable[[Iterable[Any]], Any]

    def build_rows(self, driver_rows: Iterable[Sequence[Any]]) -> list[Any]:
        """Returns named tuples of the selected columns, with the values of the tables' types."""
        if not self._column_converters:
            return [*map(self._make_row, driver_rows)]
        rows = []
        for driver_row in driver_rows:
            columns = list(driver_row)
            for position, convert in self._column_converters.items():
                columns[position] = convert(columns[position])
            rows.append(self._make_row(columns))
        return rows


class Statement:
    """A statement that is compiled when it is first used.

    One that differs between the databases is built by a function of the dialect's module, whose
    ``insert`` supports ``ON CONFLICT``. ``columns`` are the columns that an INSERT or UPDATE sets,
    each from a parameter of its own name; all other parameters are ``bindparam``s.
    """

    def __init__(
        self, source: Executable | Callable[[ModuleType], Any], columns: Sequence[str] = ()
    ) -> None:
        self._source = source
        self._columns = list(columns)
        self.compiled: dict[DialectName, CompiledStatement] = {}

    def compile_for_dialect(self, name: DialectName) -> CompiledStatement:
        if (compiled := self.compiled.get(name)) is None:
            source = self._source
            statement = source if isinstance(source, Executable) else source(DIALECTS[name][0])
            compiled = self.compiled[name] = compile_statement(statement, name, self._columns)
        return compiled


def compile_statement(
    statement: Any, name: DialectName, columns: Sequence[str] = ()
) -> CompiledStatement:
    dialect = DIALECTS[name][1]
    compiled = statement.compile(
        dialect=dialect,
        column_keys=list(columns) or None,
        compile_kwargs={"render_postcompile": True},
    )
    names = compiled.positiontup or ()
    # Those of ``columns`` come from the caller.
    defaults = {
        key: value
        for key, value in compiled.params.items()
        if value is not None and key not in columns
    }
    # The parameters of an expanded IN list have no bind.
    binds = [compiled.binds.get(key) for key in names]
    argument_converters = {
        position: convert
        for position, parameter in enumerate(binds)
        if parameter is not None
        # SQLite's driver takes booleans.
        and not (name == "sqlite" and isinstance(parameter.type, Boolean))
        and (convert := parameter.type.dialect_impl(dialect).bind_processor(dialect))
    }
    for parameter, key in zip(binds, names, strict=True):
        # A literal NULL has no value above, and is no parameter of the caller.
        if parameter is not None and not parameter.required and key not in columns:
            defaults.setdefault(key, None)
    # Those of a SELECT, or of a RETURNING clause.
    selected: Any = getattr(statement, "selected_columns", None)
    columns_read = list(selected or getattr(statement, "exported_columns", ()))
    column_converters = {
        position: convert
        for position, column in enumerate(columns_read)
        if (convert := _build_column_converter(column.type, dialect))
    }
    labels = [
        getattr(column, "key", None) or f"column_{n}" for n, column in enumerate(columns_read)
    ]
    # Nothing is known of the columns of literal SQL.
    make_row = _build_row_type(tuple(labels)) if labels else tuple
    return CompiledStatement(
        str(compiled),
        _compile_argument_function(names, defaults, argument_converters),
        column_converters,
        make_row,
    )


def _compile_argument_function(
    names: Sequence[str], defaults: Parameters, converters: Mapping[int, Convert]
) -> Callable[[Parameters], tuple[Any, ...]]:
    """Compiles the selection of arguments to one expression, which is in nearly every request.

    ``defaults`` are the values of the parameters that the caller need not give.
    """
    if len(names) > MAX_COMPILED_ARGUMENTS:
        return lambda parameters: tuple(
            converters[position](value) if position in converters else value
            for position, value in enumerate(map({**defaults, **parameters}.__getitem__, names))
        )
    items, variables = "", dict[str, Any]()
    for position, name in enumerate(names):
        item = f"values[{name!r}]"
        if name in defaults:
            item = f"values.get({name!r}, default_{position})"
            variables[f"default_{position}"] = defaults[name]
        if position in converters:
            item = f"convert_{position}({item})"
            variables[f"convert_{position}"] = converters[position]
        items += f"{item}, "
    function: Callable[[Parameters], tuple[Any, ...]] = eval(f"lambda values: ({items})", variables)  # noqa: S307
    return function


@cache
def _build_row_type(labels: tuple[str, ...]) -> Callable[[Iterable[Any]], Any]:
    row: Any = namedtuple("Row", labels, rename=True)  # type: ignore[misc] # noqa: PYI024 - known at run time
    make: Callable[[Iterable[Any]], Any] = row._make
    return make


def _build_column_converter(type_: Any, dialect: Dialect) -> Convert | None:
    convert: Convert | None = type_.dialect_impl(dialect).result_processor(dialect, None)
    if convert is None and isinstance(type_, JSON):
        return lambda raw: None if raw is None else json.loads(raw)  # asyncpg returns text
    if convert is None and isinstance(type_, Boolean) and dialect.name == "sqlite":
        return bool
    return convert


def build_upsert_statement(
    table: Table,
    columns: Sequence[str] = (),
    *,
    summed: Sequence[str] = (),
    least: Sequence[str] = (),
    greatest: Sequence[str] = (),
    inserted: Sequence[str] = (),
    returned: ColumnElement[Any] | None = None,
    condition: ColumnElement[bool] | None = None,
) -> Statement:
    """Builds a statement that inserts a row, or updates the row with its primary key.

    An update replaces ``columns``, adds to ``summed``, keeps the smaller or larger value of
    ``least`` and ``greatest``, and leaves ``inserted`` as they are; if the ``condition`` of the row
    is not true, nothing is changed.
    """
    key = [column.name for column in table.primary_key]

    def build(dialect: ModuleType) -> Any:
        insert = dialect.insert(table)
        old, new, is_sqlite = table.c, insert.excluded, dialect is sqlite
        # SQLite's ``min`` and ``max`` of several values are PostgreSQL's ``least``, ``greatest``.
        minimum, maximum = (func.min, func.max) if is_sqlite else (func.least, func.greatest)
        values = {name: new[name] for name in columns}
        values |= {name: old[name] + new[name] for name in summed}
        values |= {name: minimum(old[name], new[name]) for name in least}
        values |= {name: maximum(old[name], new[name]) for name in greatest}
        upsert = insert.on_conflict_do_update(index_elements=key, set_=values, where=condition)
        return upsert if returned is None else upsert.returning(returned)

    return Statement(build, [*key, *columns, *summed, *least, *greatest, *inserted])


def build_insert_if_absent_statement(
    table: Table, columns: Sequence[str], *returned: Any
) -> Statement:
    """Builds a statement that inserts a row; if one with its key exists, it returns no row."""

    def build(dialect: ModuleType) -> Any:
        insert = dialect.insert(table).on_conflict_do_nothing()
        return insert.returning(*returned) if returned else insert

    return Statement(build, columns)


class _TextList(TypeDecorator[Sequence[str]]):
    """A list of texts as one parameter: an array on PostgreSQL, JSON on SQLite."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        is_sqlite = dialect.name == "sqlite"
        return dialect.type_descriptor(Text() if is_sqlite else ARRAY(Text()))

    def process_bind_param(self, value: Sequence[str] | None, dialect: Dialect) -> Any:
        texts = list(value or ())
        return msgspec.json.encode(texts).decode() if dialect.name == "sqlite" else texts


class AnyOf(ColumnElement[bool]):
    """``column IN :name`` for a parameter of any length, so that the statement is compiled once."""

    inherit_cache = False

    def __init__(self, column: ColumnElement[Any], name: str) -> None:
        self.type = Boolean()
        self.column = column
        self.parameter = bindparam(name, type_=_TextList())

    def self_group(self, against: object = None) -> AnyOf:  # noqa: ARG002 - SQLAlchemy's
        """Prevents SQLAlchemy from appending ``= 1`` on SQLite, which no index serves."""
        return self


@compiles(AnyOf)
def _compile_any_of(element: AnyOf, compiler: Any, **options: Any) -> str:
    column = compiler.process(element.column, **options)
    parameter = compiler.process(element.parameter, **options)
    if compiler.dialect.name == "sqlite":
        return f"{column} IN (SELECT value FROM json_each({parameter}))"  # noqa: S608 - compiled parts
    return f"{column} = ANY({parameter})"
