"""An empty state with tables on each database; PostgreSQL's is made for the run and dropped after it."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Connection, make_url, text

from gateway.config.settings import State
from gateway.storage.engine import (
    find_sqlite_file,
    open_database,
    parse_state_url,
    run_in_sqlalchemy_transaction,
)
from gateway.storage.key_file import create_key_file
from gateway.storage.migrate import NEWEST_REVISION, migrate
from gateway.storage.store import Store, utc_now
from gateway.storage.tables import metadata
from tests.state import create_database

POSTGRES_URL = os.environ.get(
    "PAYOUT_GATEWAY_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/postgres"
)

OLD_SCHEMAS = {
    name: Path(__file__).with_name(f"schema_{name}.sql").read_text() for name in ("0017", "0022")
}
"""The tables of revisions, 0017 being the oldest that is upgraded, as SQLite names their types."""

UNDO_STATEMENTS = {
    "0029": (
        "DROP TABLE instances",
        "CREATE TABLE instances (id TEXT PRIMARY KEY, beats BIGINT NOT NULL, began_at DATETIME)",
        "DROP INDEX ix_operations_repetitions",
        "ALTER TABLE operations DROP COLUMN repetition",
        "ALTER TABLE upstream_writes DROP COLUMN changed_at",
    ),
    "0025": (
        "ALTER TABLE instances ADD COLUMN large TEXT DEFAULT '' NOT NULL",
        "ALTER TABLE request_counts ADD COLUMN ms BIGINT DEFAULT 0 NOT NULL",
        "ALTER TABLE request_counts ADD COLUMN service_ms BIGINT DEFAULT 0 NOT NULL",
        "ALTER TABLE brownouts ADD COLUMN refuses BOOLEAN DEFAULT TRUE NOT NULL",
        "CREATE TABLE brownout_hits (brownout TEXT NOT NULL PRIMARY KEY)",
        "DROP TABLE draft_payments",
        "ALTER TABLE batch_payments DROP COLUMN payment_count",
    ),
}
"""Statements that make the tables of a revision from those of the next one here, or the newest."""


def run_statements(dsn: str, *statements: str) -> Any:
    """Returns the first value of the last one."""

    async def execute_all() -> Any:
        connection: Any = await asyncpg.connect(dsn, timeout=60)
        try:
            for statement in statements[:-1]:
                await connection.execute(statement)
            return await connection.fetchval(statements[-1])
        finally:
            await connection.close()

    return asyncio.run(execute_all())


RECREATE_SCHEMA = ("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")

_IDENTIFY_SCHEMA = """
    WITH relations AS (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace),
    parts AS (
        SELECT oid::text || relname AS part FROM pg_class WHERE oid IN (SELECT oid FROM relations)
        UNION ALL SELECT attrelid::text || attname || atttypid || attisdropped FROM pg_attribute
            WHERE attrelid IN (SELECT oid FROM relations)
        UNION ALL SELECT oid::text FROM pg_constraint WHERE conrelid IN (SELECT oid FROM relations)
        UNION ALL SELECT oid::text FROM pg_trigger WHERE tgrelid IN (SELECT oid FROM relations)
        UNION ALL SELECT oid::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace)
    SELECT md5(string_agg(part, ',' ORDER BY part)) FROM parts"""
"""A value that changes with any table, column, constraint, trigger or function."""

_identities: dict[str, str] = {}
"""The value of each database with new tables."""


def empty_database(dsn: str) -> None:
    """Deletes all rows, because new tables take longer than most tests; creates them if they were changed."""
    if dsn not in _identities or run_statements(dsn, _IDENTIFY_SCHEMA) != _identities[dsn]:
        run_statements(dsn, *RECREATE_SCHEMA)
        upgrade = run_in_sqlalchemy_transaction(
            parse_state_url(dsn), lambda connection: migrate(connection, dsn)
        )
        asyncio.run(upgrade)
        _identities[dsn] = run_statements(dsn, _IDENTIFY_SCHEMA)
        return
    tables = [table.name for table in reversed(metadata.sorted_tables)]
    run_statements(
        dsn,
        ";".join(f"DELETE FROM {name}" for name in tables),
        "ALTER SEQUENCE operation_numbers RESTART",
        "INSERT INTO counters (name, value) VALUES ('keys', 0)",
        f"UPDATE alembic_version SET version_num = '{NEWEST_REVISION}'",
    )


def create_temporary_database() -> Iterator[str]:
    """Yield the URL of a temporary database; skip the test if none can be created."""
    name = f"payout_gateway_{secrets.token_hex(6)}"
    try:
        run_statements(POSTGRES_URL, f"CREATE DATABASE {name}")
    except (OSError, TimeoutError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL at {make_url(POSTGRES_URL).host}: {error}")
    yield make_url(POSTGRES_URL).set(database=name).render_as_string(hide_password=False)
    run_statements(POSTGRES_URL, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    yield from create_temporary_database()


def build_empty_sqlite_state(folder: Path) -> State:
    """A SQLite state without a file, as before the first start."""
    return State(url=f"sqlite:///{folder}/gateway.db", encryption_key_file=folder / "gateway.key")


@pytest.fixture
def sqlite(tmp_path: Path) -> State:
    return create_database(build_empty_sqlite_state(tmp_path))


@pytest.fixture
def postgres(database: str, tmp_path: Path) -> State:
    empty_database(database)
    create_key_file(tmp_path / "gateway.key")
    return State(url=database, encryption_key_file=tmp_path / "gateway.key")


@pytest.fixture(params=["sqlite", "postgres"])
def state(request: pytest.FixtureRequest) -> State:
    fixture_state = request.getfixturevalue(request.param)
    assert isinstance(fixture_state, State)
    return fixture_state


@asynccontextmanager
async def open_store_at_revision(state: State, revision: str) -> AsyncIterator[Store]:
    """Open a store on the schema of an earlier revision."""
    address = parse_state_url(state.url)
    if file := find_sqlite_file(address):
        file.unlink(missing_ok=True)

    def create_tables(connection: Connection) -> None:
        statements = [] if file else [*RECREATE_SCHEMA]
        if schema := OLD_SCHEMAS.get("0017" if revision == "0019" else revision):
            statements += schema.split(";\n")[:-1]
            sequence = "journal_numbers" if revision < "0020" else "operation_numbers"
            statements += [] if file else [f"CREATE SEQUENCE {sequence}"]
            statements.append(
                "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"
            )
            statements.append("INSERT INTO alembic_version VALUES ('')")
        for statement in statements:
            connection.execute(text(_translate_types(statement, is_sqlite=bool(file))))
        if not schema:
            migrate(connection, "")
        for undone_revision, undo_statements in UNDO_STATEMENTS.items():
            for statement in undo_statements if not schema and revision <= undone_revision else ():
                connection.execute(text(_translate_types(statement, is_sqlite=bool(file))))
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))

    await run_in_sqlalchemy_transaction(address, create_tables)
    store = Store(open_database(address), utc_now)
    yield store
    await store.database.close()


def _translate_types(statement: str, *, is_sqlite: bool) -> str:
    if is_sqlite:
        return statement
    statement = re.sub(r" DATETIME\b", " TIMESTAMP WITH TIME ZONE", statement)
    return statement.replace(" BLOB ", " BYTEA ")
