"""From ``state.url`` to a database connection, SQLite's manners included."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import asyncpg
from sqlalchemy import URL, Connection, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from gateway.storage.errors import StoreUnavailable

BUSY_SECONDS = 5
_CONNECT_SECONDS = 5
_COMMAND_SECONDS = 30
_CONNECTIONS = 10
_STATEMENTS = 256
"""How many statements SQLite's driver keeps prepared."""
CACHE_KIB = 16 * 1024
_JOURNAL_BYTES = 4 * 1024 * 1024
"""How much of a journal is kept: what one large transaction needed is not kept for good."""

WRITES = "payout_gateway_writes"
"""The execution option of a connection whose transaction is going to write."""


def parsed(url: str) -> URL:
    """A state URL; StoreUnavailable where it is none. No message ever holds its password."""
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        raise _no_address("it cannot be read as a URL") from None
    if address.drivername == "sqlite":
        _refuse_odd_file(address)
    return address


def _refuse_odd_file(address: URL) -> None:
    if address.host:
        raise _no_address("it has two slashes where three belong (sqlite:///gateway.db)")
    if address.query:
        raise _no_address("an SQLite address takes no parameters")
    if not address.database or address.database == ":memory:":
        raise _no_address("it names no file, and keys have to outlive the process")


def _no_address(what: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"state.url is not an address of a database ({what})",
        means="there is no place for keys and ledger",
        do="write sqlite:///gateway.db, sqlite:////absolute/path.db or "
        "postgresql://user@host/database",
    )


def shown(address: URL) -> str:
    """The address as operators may see it: without password and parameters."""
    if address.drivername == "sqlite":
        return str(address.database)
    return address.set(query={}, password=None).render_as_string()


def sqlite_file(address: URL) -> Path | None:
    """SQLite's file; None for PostgreSQL."""
    return Path(str(address.database)) if address.drivername == "sqlite" else None


def make_sqlite_file(path: Path, *, create: bool) -> None:
    """Makes the file, for its owner only, unless it is there; StoreUnavailable."""
    if not create and not path.is_file():
        raise StoreUnavailable(
            f"there is no database {path.absolute()}",
            means="no key was ever imported there",
            do="import keys; if that was done, run this where the gateway runs, or give its --config",
        )
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreUnavailable(
            f"database {path.absolute()} cannot be opened or made ({error.strerror})",
            means="there is no place for keys and ledger",
            do="see that its folder exists and that the gateway's user may write there "
            f"(uid {os.geteuid()}), or name another place in state.url",
        ) from None


def refuse_unwritable(path: Path) -> None:
    """SQLite keeps a journal beside its file: the folder has to be writable too."""
    folder = path.absolute().parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreUnavailable(
            f"folder {folder} cannot be written by this user (uid {os.geteuid()})",
            means="the database in it can be neither changed nor safely read",
            do="give the folder to the gateway's user, or run this as the user who owns it",
        )


class _Closed(sqlite3.Connection):
    """One that is closed lets go of the file, whatever is left of a statement.

    Where somebody is cancelled between a statement and its rows, its cursor lives on in the trace of
    that until the garbage is collected, and SQLite keeps the lock as long as it.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def cursor(self, *args: Any, **named: Any) -> Any:
        cursor = super().cursor(*args, **named)
        self._cursors.add(cursor)
        return cursor

    def close(self) -> None:
        for cursor in list(self._cursors):
            cursor.close()
        super().close()


def sqlite_engine(path: Path) -> AsyncEngine:
    """Rollback journal, foreign keys, patience with other processes, and transactions as told."""
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(path)),
        hide_parameters=True,
        pool_size=_CONNECTIONS,
        max_overflow=0,
        connect_args={"timeout": BUSY_SECONDS, "factory": _Closed},
    )
    event.listen(engine.sync_engine, "connect", _manners)
    event.listen(engine.sync_engine, "begin", _begin)
    return engine


def _manners(connection: Any, _record: object = None) -> None:
    # The driver's own idea of when a transaction begins leaves reads and table changes outside.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    # Not WAL: before 3.51.3 a reset of it can lose writes when several connections have it open.
    cursor.execute("PRAGMA journal_mode = DELETE")
    # The folder too: a power failure that brings the journal back takes the transaction back.
    cursor.execute("PRAGMA synchronous = EXTRA")
    cursor.close()


def sqlite_connection(path: Path) -> sqlite3.Connection:
    """The driver's own connection, which waits for nobody; one thread at a time may use it."""
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, check_same_thread=False, cached_statements=_STATEMENTS
    )
    _manners(connection)
    # To make the journal invalid where it lies is half the work for the disk of making it anew.
    connection.execute("PRAGMA journal_mode = PERSIST")
    connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute("PRAGMA busy_timeout = 0")
    return connection


def close_sqlite(connection: sqlite3.Connection) -> None:
    """Leaves no journal behind, unless somebody else has the file at this moment."""
    with suppress(sqlite3.Error):
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()


def _begin(connection: Connection) -> None:
    # A write takes its lock at once: one that began by reading could not get it afterwards.
    writes = connection.get_execution_options().get(WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def postgresql_connecting(address: URL) -> Callable[[], Awaitable[Any]]:
    """What opens the driver's own connections.

    The driver reads the address itself, with every parameter that libpq knows (sslmode…).
    """
    dsn = address.render_as_string(hide_password=False)

    async def connect() -> Any:
        return await asyncpg.connect(
            dsn,
            timeout=_CONNECT_SECONDS,
            command_timeout=_COMMAND_SECONDS,
            server_settings={"application_name": "payout-gateway"},
        )

    return connect


def postgresql_engine(address: URL) -> AsyncEngine:
    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=postgresql_connecting(address),
        hide_parameters=True,
        pool_size=_CONNECTIONS,
        max_overflow=0,
        pool_timeout=_COMMAND_SECONDS,
        pool_pre_ping=True,  # a database that was restarted costs no request
    )
