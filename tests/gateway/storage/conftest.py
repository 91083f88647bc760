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
from alembic import command
from sqlalchemy import Connection, make_url, text

from gateway.config.settings import State
from gateway.storage.engine import (
    find_sqlite_file,
    open_database,
    parse_state_url,
    run_in_sqlalchemy_transaction,
)
from gateway.storage.key_file import create_key_file
from gateway.storage.migrate import build_alembic_config, find_newest_revision, migrate
from gateway.storage.store import Store, utc_now
from gateway.storage.tables import metadata
from tests.state import create_database

POSTGRES_URL = os.environ.get(
    "PAYOUT_GATEWAY_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/postgres"
)

OLDEST_SCHEMA = Path(__file__).with_name("schema_0017.sql")
"""The tables of revision 0017, the oldest that are upgraded, as SQLite names their types."""


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
        f"UPDATE alembic_version SET version_num = '{find_newest_revision()}'",
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
    """Open a store on the schema of an earlier revision, from 0017 on."""
    address = parse_state_url(state.url)
    if file := find_sqlite_file(address):
        file.unlink(missing_ok=True)

    def upgrade(connection: Connection) -> None:
        script = OLDEST_SCHEMA.read_text()
        if file is None:
            for statement in RECREATE_SCHEMA:
                connection.execute(text(statement))
            script = re.sub(r" DATETIME\b", " TIMESTAMP WITH TIME ZONE", script)
            script = script.replace(" BLOB ", " BYTEA ") + "CREATE SEQUENCE journal_numbers;\n"
        for statement in script.split(";\n")[:-1]:
            connection.execute(text(statement))
        command.stamp(build_alembic_config(connection), "0017")
        command.upgrade(build_alembic_config(connection), revision)

    await run_in_sqlalchemy_transaction(address, upgrade)
    store = Store(open_database(address), utc_now)
    yield store
    await store.database.close()
