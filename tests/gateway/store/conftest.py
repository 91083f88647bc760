"""A state of each kind, without anything in it.

SQLite's has its tables; PostgreSQL's is a database made for the run and dropped after it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from alembic import command
from sqlalchemy import Connection, make_url

from gateway.config.settings import State
from gateway.storage.engine import open_database, parsed, run_with_sqlalchemy, sqlite_file
from gateway.storage.keyfile import make_key_file
from gateway.storage.store import Store, utc_now
from gateway.storage.upgrade import configuration
from tests.states import lay_out

POSTGRES = os.environ.get(
    "PAYOUT_GATEWAY_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/postgres"
)


def administer(dsn: str, *statements: str) -> None:
    async def run() -> None:
        connection: Any = await asyncpg.connect(dsn, timeout=60)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run())


def made_database() -> Iterator[str]:
    """The address of a database of one's own, dropped afterwards; skips where there can be none."""
    name = f"payout_gateway_{secrets.token_hex(6)}"
    try:
        administer(POSTGRES, f"CREATE DATABASE {name}")
    except (OSError, TimeoutError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL at {make_url(POSTGRES).host}: {error}")
    yield make_url(POSTGRES).set(database=name).render_as_string(hide_password=False)
    administer(POSTGRES, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    yield from made_database()


def nothing_yet(folder: Path) -> State:
    """For what a first start on SQLite does."""
    return State(url=f"sqlite:///{folder}/gateway.db", encryption_key_file=folder / "gateway.key")


@pytest.fixture
def sqlite(tmp_path: Path) -> State:
    return lay_out(nothing_yet(tmp_path))


@pytest.fixture
def postgres(database: str, tmp_path: Path) -> State:
    administer(database, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    make_key_file(tmp_path / "gateway.key")
    return State(url=database, encryption_key_file=tmp_path / "gateway.key")


@pytest.fixture(params=["sqlite", "postgres"])
def state(request: pytest.FixtureRequest) -> State:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, State)
    return found


@asynccontextmanager
async def at_revision(state: State, revision: str) -> AsyncIterator[Store]:
    """A state as an earlier version left it."""
    address = parsed(state.url)
    if file := sqlite_file(address):
        file.unlink(missing_ok=True)

    def upgrade(connection: Connection) -> None:
        command.upgrade(configuration(connection), revision)

    await run_with_sqlalchemy(address, upgrade)
    store = Store(open_database(address), utc_now)
    yield store
    await store.close()
