"""SQLite states as a first start leaves them, made once in a process: it takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from sqlalchemy import create_engine

from gateway.config.settings import State
from gateway.storage import Store
from gateway.storage.database import Transaction
from gateway.storage.engine import parsed, sqlite_file
from gateway.storage.sqlite_database import SqliteTransaction
from gateway.storage.upgrade import upgrade


@cache
def _tables() -> bytes:
    """The file as the migrations make it."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "gateway.db"
        engine = create_engine(f"sqlite:///{file}")
        with engine.begin() as connection:
            upgrade(connection, "")
        engine.dispose()
        return file.read_bytes()


def files_of(state: State) -> list[Path]:
    """What a state is; nothing for PostgreSQL's."""
    file = sqlite_file(parsed(state.url))
    return [file, state.encryption_key_file] if file else []


def put(file: Path, data: bytes) -> None:
    """For its owner only, as the product makes it."""
    file.touch(0o600)
    file.write_bytes(data)


def lay_out(state: State) -> State:
    """With its tables, where there is nothing yet; its first start has nothing to migrate then."""
    for file in files_of(state)[:1]:
        if not file.exists():
            put(file, _tables())
    return state


async def fetch(store: Store, statement: Any) -> list[Any]:
    return await store.read(lambda tx: tx.fetch(statement))


async def execute(store: Store, *statements: Any) -> None:
    """In one transaction."""

    async def body(tx: Transaction) -> None:
        for statement in statements:
            await tx.execute(statement)

    await store.write(body)


@contextmanager
def recorded_statements(word: str = "") -> Iterator[list[tuple[str, list[Any]]]]:
    """The statements with this word that SQLite runs meanwhile, with their parameters."""
    recorded: list[tuple[str, list[Any]]] = []
    plain_fetch, plain_execute = SqliteTransaction._fetch, SqliteTransaction._execute

    def record(compiled: Any, those: Sequence[Any]) -> None:
        if word in compiled.text:
            recorded.extend((compiled.text, compiled.arguments(one)) for one in those)

    async def _fetch(tx: SqliteTransaction, compiled: Any, those: Sequence[Any]) -> Any:
        record(compiled, those)
        return await plain_fetch(tx, compiled, those)

    async def _execute(tx: SqliteTransaction, compiled: Any, those: Sequence[Any]) -> int:
        record(compiled, those)
        return await plain_execute(tx, compiled, those)

    with (
        patch.object(SqliteTransaction, "_fetch", _fetch),
        patch.object(SqliteTransaction, "_execute", _execute),
    ):
        yield recorded
