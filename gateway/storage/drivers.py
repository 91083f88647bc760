"""The drivers by which works are carried out, without SQLAlchemy between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from sqlalchemy import URL

from gateway.storage import engine as engines
from gateway.storage.group_commit import Database
from gateway.storage.on_postgresql import OnPostgresql
from gateway.storage.on_sqlite import File, OnSqlite


@dataclass(frozen=True, slots=True)
class Drivers:
    """``lanes`` is how many transactions may be under way at a time."""

    changing: Database
    reading: Database
    lanes: int
    close: Callable[[], Awaitable[None]]


def drivers_of(address: URL) -> Drivers:
    """Nothing is connected yet."""
    path = engines.sqlite_file(address)
    if path is not None:
        file = File(partial(engines.sqlite_connection, path), engines.BUSY_SECONDS)
        return Drivers(OnSqlite(file, "BEGIN IMMEDIATE"), OnSqlite(file, "BEGIN"), 1, file.close)
    connect = engines.postgresql_connecting(address)
    changing, reading = OnPostgresql(connect), OnPostgresql(connect, is_reading=True)

    async def close() -> None:
        await changing.close()
        await reading.close()

    return Drivers(changing, reading, _LANES, close)


_LANES = 2
"""While one transaction is being committed, the next one collects and goes."""
