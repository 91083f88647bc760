"""A state of each kind, empty; PostgreSQL's is a database made for the run and dropped after it."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import make_url

from gateway.settings import State
from gateway.store.keyfile import make_key_file

POSTGRES = os.environ.get(
    "PAYOUT_GATEWAY_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/postgres"
)


def administer(dsn: str, *statements: str) -> None:
    async def run() -> None:
        connection: Any = await asyncpg.connect(dsn, timeout=5)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run())


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    name = f"payout_gateway_{secrets.token_hex(6)}"
    try:
        administer(POSTGRES, f"CREATE DATABASE {name}")
    except (OSError, TimeoutError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL at {make_url(POSTGRES).host}: {error}")
    yield make_url(POSTGRES).set(database=name).render_as_string(hide_password=False)
    administer(POSTGRES, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def sqlite(tmp_path: Path) -> State:
    return State(
        url=f"sqlite:///{tmp_path}/gateway.db", encryption_key_file=tmp_path / "gateway.key"
    )


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
