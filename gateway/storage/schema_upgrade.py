"""Brings the tables of earlier revisions, from 0017 on, up to date.

Each step works on the newest tables and columns, and only moves or deletes what a plain addition
cannot: tables, columns and indexes that are missing are created as ``tables.py`` defines them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import simplejson
from sqlalchemy import (
    Boolean,
    Connection,
    Table,
    Text,
    column,
    inspect,
    select,
    table,
    text,
    tuple_,
)
from sqlalchemy.schema import CreateColumn, CreateTable

from gateway.storage.state_tables import STATE_TABLES, StateTable
from gateway.storage.tables import (
    BUCKET_COLUMNS,
    UTCDateTime,
    metadata,
    operation_objects,
    operation_steps,
    operations,
    request_counts,
    upstream_writes,
)

_RENAMED_TABLES = {
    "journal": "operations",
    "journal_subjects": "operation_objects",
    "journal_steps": "operation_steps",
    "writes": "upstream_writes",
    "pieces": "text_chunks",
    "acts": "audit_events",
    "pairs": "tenant_credentials",
    "keys": "api_keys",
    "remembered": "object_states",
    "learned": "capabilities",
    "ids": "legacy_ids",
}
_RENAMED_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "operations": {
        "why": "reason",
        "turn": "fence",
        "deserted": "is_client_disconnected",
        "asked": "request",
        "answer": "response",
        "began_at": "started_at",
    },
    "operation_objects": {"object": "object_id", "undertaking": "operation_id"},
    "operation_steps": {"undertaking": "operation_id", "given": "results"},
    "upstream_writes": {
        "undertaking": "operation_id",
        "alike": "call_digest",
        "made": "object_id",
        "told": "operator_outcome",
        "entered_at": "recorded_at",
        "settled_at": "resolved_at",
    },
    "text_chunks": {"sealed": "ciphertext"},
    "audit_events": {"what": "action", "by": "actor", "about": "operation_id"},
    "api_keys": {"pair_id": "credentials_id"},
}
_CHANGED_INDEXES = (
    *("ix_keys_changed", "ix_keys_pair_id", "ix_ids_merchant_environment_current_id"),
    *("ix_journal_named", "ix_journal_named_requests", "ix_journal_answered", "ix_acts_at"),
    *("ix_journal_subjects_undertaking", "ix_journal_open", "ix_journal_number"),
    *("ix_writes_merchant_environment_entered_at", "ix_writes_may_exist", "ix_writes_sent"),
    *("ix_operations_number", "ix_operations_open", "ix_upstream_writes_sent"),
    *("ix_operations_named", "ix_operations_answer_ages"),
)
"""Indexes that have another name, another definition or no use by now."""

_UNUSED_TABLES = ("traffic", "usage", "object_states", "brownout_hits")
_UNUSED_COLUMNS = {"request_counts": ("ms", "service_ms"), "brownouts": ("refuses",)}

_ROWS_AT_A_TIME = 1000


def upgrade_tables(connection: Connection, revision: str) -> None:
    """Brings the tables of a revision up to date, with their rows."""
    _drop(connection, "INDEX", _CHANGED_INDEXES)
    for step_revision, step in _STEPS_BEFORE_ADDITIONS:
        if revision < step_revision:
            step(connection)
    metadata.create_all(connection)
    _add_missing_columns(connection)
    for step_revision, step in _STEPS_AFTER_ADDITIONS:
        if revision < step_revision:
            step(connection)
    _drop(connection, "TABLE", _UNUSED_TABLES)
    for name, unused_names in _UNUSED_COLUMNS.items():
        for unused_name in {*unused_names} & _list_columns(connection, name):
            connection.execute(text(f"ALTER TABLE {name} DROP COLUMN {unused_name}"))
    for each in metadata.sorted_tables:
        for index in each.indexes:
            index.create(connection, checkfirst=True)


def _drop(connection: Connection, kind: str, names: Iterable[str]) -> None:
    for name in names:
        connection.execute(text(f"DROP {kind} IF EXISTS {name}"))


def _list_columns(connection: Connection, name: str) -> set[str]:
    return {each["name"] for each in inspect(connection).get_columns(name)}


def _rename_tables_and_columns(connection: Connection) -> None:
    for old_name, name in _RENAMED_TABLES.items():
        connection.execute(text(f"ALTER TABLE {old_name} RENAME TO {name}"))
    for name, columns in _RENAMED_COLUMNS.items():
        for old_column, new_column in columns.items():
            rename = f"ALTER TABLE {name} RENAME COLUMN {old_column} TO {new_column}"
            connection.execute(text(rename))
    if connection.dialect.name == "postgresql":
        connection.execute(text("ALTER SEQUENCE journal_numbers RENAME TO operation_numbers"))
        for old_name, name in _RENAMED_TABLES.items():
            rename = f"ALTER TABLE {name} RENAME CONSTRAINT pk_{old_name} TO pk_{name}"
            connection.execute(text(rename))


def _change_key_of_operations(connection: Connection) -> None:
    """Makes the number the key of operations; on SQLite, stores the rows of a write in fewer pages."""
    # Operations of the first versions have no number. Below the others, which must not change: a
    # lower maximum would mean that the database was restored.
    connection.execute(
        text(
            "UPDATE operations SET number = numbered.place - 1 -"
            " (SELECT count(*) FROM operations WHERE number IS NULL)"
            " FROM (SELECT id, row_number() OVER (ORDER BY started_at, id) AS place"
            " FROM operations WHERE number IS NULL) AS numbered WHERE numbered.id = operations.id"
        )
    )
    if connection.dialect.name == "postgresql":
        key = inspect(connection).get_pk_constraint("operations")["name"]
        connection.execute(
            text(
                f"ALTER TABLE operations DROP CONSTRAINT {key},"
                " DROP CONSTRAINT uq_journal_key_id_idempotency,"
                " ADD CONSTRAINT pk_operations PRIMARY KEY (number),"
                " ADD CONSTRAINT uq_operations_id UNIQUE (id)"
            )
        )
        return
    state_tables = [state.table for state in STATE_TABLES.values()]
    names = inspect(connection).get_table_names()
    for each in (operations, operation_objects, operation_steps, upstream_writes, *state_tables):
        if each.name in names:
            _copy_table(connection, each)


def _copy_table(connection: Connection, new_table: Table) -> None:
    """Copies a table of SQLite into one with the newest definition, in the order of its key."""
    name, key = new_table.name, ", ".join(new_table.primary_key.columns.keys())
    columns = ", ".join(_list_columns(connection, name) & {*new_table.columns.keys()})
    connection.execute(text(f"ALTER TABLE {name} RENAME TO old_{name}"))
    connection.execute(CreateTable(new_table))
    connection.execute(
        text(
            f"INSERT INTO {name} ({columns}) SELECT {columns} FROM old_{name} ORDER BY {key}"  # noqa: S608 - names
        )
    )
    connection.execute(text(f"DROP TABLE old_{name}"))


def _add_missing_columns(connection: Connection) -> None:
    for each in metadata.sorted_tables:
        known_names = _list_columns(connection, each.name)
        for missing in (own for own in each.columns if own.name not in known_names):
            definition = CreateColumn(missing).compile(dialect=connection.dialect)
            connection.execute(text(f"ALTER TABLE {each.name} ADD COLUMN {definition}"))


_STARTS: Mapping[str, Sequence[str]] = {
    # SQLite has text for times.
    "sqlite": ("strftime('%Y-%m-%d %H:00:00.000000', began_at)", "day || ' 00:00:00.000000'"),
    "postgresql": (
        "date_trunc('hour', began_at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'",
        "day::timestamp AT TIME ZONE 'UTC'",
    ),
}
"""Start of the hour of a row of ``traffic``, and of the day of a row of ``usage``."""


def _sum_up_request_counts(connection: Connection) -> None:
    """Counts usage and traffic in one table, by minute, hour and day."""
    hour, day = _STARTS[connection.dialect.name]
    buckets = [name for names in BUCKET_COLUMNS.values() for name in names]
    counted = (
        f"INSERT INTO {request_counts.name} (seconds, began_at, merchant, environment, key,"
        " operation, requests, refused, failed, slowest_ms, first_at, last_at"
    )
    sums = ", ".join(f"sum({name})" for name in ("requests", "refused", "failed"))
    bucket_sums = ", ".join(f"sum({name})" for name in buckets)
    # Spans of five minutes: the plots of the last hours show them as one minute of each.
    for seconds, start in ((60, "began_at"), (3600, hour)):
        query = (
            f"{counted}, {', '.join(buckets)}) SELECT {seconds}, {start}, merchant, environment,"  # noqa: S608 - names of columns
            f" '', operation, {sums}, max(slowest_ms), min(began_at), max(began_at), {bucket_sums}"
            f" FROM traffic GROUP BY {start}, merchant, environment, operation"
        )
        connection.exec_driver_sql(query)
    connection.exec_driver_sql(
        f"{counted}) SELECT 86400, {day}, merchant, environment, key, operation, requests,"  # noqa: S608
        " refused, failed, 0, first_at, last_at FROM usage"
    )


_OLD_STATES = table(
    "object_states",
    *(column(name, Text) for name in ("merchant", "environment", "id", "kind", "facts")),
    column("updated_at", UTCDateTime),
)


def _move_object_states(connection: Connection) -> None:
    """Moves the state of objects into a table for each kind, with a column for each fact."""
    key_columns = _OLD_STATES.c.merchant, _OLD_STATES.c.environment, _OLD_STATES.c.id
    for kind, state in STATE_TABLES.items():
        if state.is_encrypted:
            # The columns are filled by whoever has the key; until then all facts are in ``others``.
            connection.execute(
                text(
                    f"INSERT INTO {state.table.name} (merchant, environment, id, {state.others},"  # noqa: S608 - names
                    " updated_at) SELECT merchant, environment, id, facts, updated_at"
                    f" FROM object_states WHERE kind = '{kind}'"
                )
            )
            continue
        if kind == "signed":  # see the step of 0024
            continue
        query = select(_OLD_STATES).where(_OLD_STATES.c.kind == kind)
        query, last_key = query.order_by(*key_columns).limit(_ROWS_AT_A_TIME), ("", "", "")
        while rows := connection.execute(query.where(tuple_(*key_columns) > last_key)).all():
            last_key = rows[-1][:3]
            connection.execute(state.table.insert(), [_build_state_row(state, row) for row in rows])


def _build_state_row(state: StateTable, row: Any) -> dict[str, Any]:
    """Builds a row of the new table; in Python, because services may send any text."""
    facts = simplejson.loads(row.facts, use_decimal=True)
    others = {state.others: row.facts} if state.others else {}
    key = {"merchant": row.merchant, "environment": row.environment, "id": row.id}
    return {**key, **state.encode_columns(facts), **others, "updated_at": row.updated_at}


def _delete_counting_brownouts(connection: Connection) -> None:
    # They only counted requests; without the column they would refuse them.
    brownouts = table("brownouts", column("refuses", Boolean))
    connection.execute(brownouts.delete().where(~brownouts.c.refuses))


_STEPS_BEFORE_ADDITIONS: Sequence[tuple[str, Callable[[Connection], None]]] = (
    ("0020", _rename_tables_and_columns),
    # Signed changes had times after which they counted as ended, and none is under way now.
    ("0024", lambda connection: _drop(connection, "TABLE", ["signed_changes"])),
    ("0025", _change_key_of_operations),
    # Instances register themselves when they start.
    ("0030", lambda connection: _drop(connection, "TABLE", ["instances"])),
)
_STEPS_AFTER_ADDITIONS: Sequence[tuple[str, Callable[[Connection], None]]] = (
    ("0021", _sum_up_request_counts),
    ("0023", _move_object_states),
    ("0029", _delete_counting_brownouts),
)
"""Steps, each for the tables of revisions before the one that it belongs to."""
