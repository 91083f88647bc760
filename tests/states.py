"""SQLite states as a first start leaves them, made once in a process: it takes longer than most tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import create_engine

from gateway.config.settings import State
from gateway.storage.engine import parsed, sqlite_file
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
