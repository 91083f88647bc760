"""Opens the database of ``state.url``, and creates and checks the file of SQLite."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
from sqlalchemy import URL, Connection, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from gateway.storage.database import Database
from gateway.storage.errors import StoreUnavailable, find_sqlite_code, translate_database_errors
from gateway.storage.postgresql_database import PostgresqlDatabase
from gateway.storage.sqlite_database import BUSY_SECONDS, SqliteDatabase
from gateway.storage.sqlite_driver import JOURNAL_MODE, sqlite3

Result = TypeVar("Result")

_CONNECT_SECONDS = 5
_COMMAND_SECONDS = 30
LOCK_POLL_SECONDS = 0.005

_STATEMENTS = 256
"""Number of statements that a driver keeps prepared."""
CACHE_KIB = 16 * 1024
READ_CACHE_KIB = 4 * 1024
"""Smaller than the cache for writing, because each change by another connection empties it."""
_JOURNAL_BYTES = 4 * 1024 * 1024
"""Bytes to which the journal is truncated after a large transaction."""


def parse_state_url(url: str) -> URL:
    """Parses ``state.url``; raises StoreUnavailable, whose text never contains the password."""
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        raise _build_address_error("it cannot be read as a URL") from None
    if address.drivername == "sqlite":
        if address.host:
            raise _build_address_error("it has two slashes instead of three (sqlite:///gateway.db)")
        if address.query:
            raise _build_address_error("an SQLite address takes no parameters")
        if not address.database or address.database == ":memory:":
            raise _build_address_error("it names no file, and stored keys must outlive the process")
    # Otherwise the rest of the password would be shown as a part of the address.
    elif "@" in f"{address.host}{address.database}":
        raise _build_address_error("in a password, write @ as %40")
    return address


def _build_address_error(what: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"state.url is not the URL of a database ({what})",
        means="API keys and operations cannot be stored",
        do="set it to sqlite:///gateway.db, sqlite:////absolute/path.db or "
        "postgresql://user@host/database",
    )


def format_address(address: URL) -> str:
    """Formats an address for operators, without password and parameters."""
    if address.drivername == "sqlite":
        return str(address.database)
    return address.set(query={}, password=None).render_as_string()


def find_sqlite_file(address: URL) -> Path | None:
    """Returns the path of the SQLite file; None for PostgreSQL."""
    return Path(str(address.database)) if address.drivername == "sqlite" else None


def create_sqlite_file(path: Path, *, create: bool) -> None:
    """Creates the file for its owner only, unless it exists; raises StoreUnavailable.

    Its directory must be writable, because SQLite creates its journal there.
    """
    if not create and not path.is_file():
        raise _build_missing_file_error(path.absolute())
    try:
        # Created here, because SQLite would create it with the permissions of the umask.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreUnavailable(
            f"database {path.absolute()} cannot be opened or created ({error.strerror})",
            means="API keys and operations cannot be stored",
            do="check that its directory exists and that the gateway's user may write there "
            f"(uid {os.geteuid()}), or set state.url to another path",
        ) from None
    folder = path.absolute().parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreUnavailable(
            f"directory {folder} cannot be written by this user (uid {os.geteuid()})",
            means="the database in it can be neither changed nor safely read",
            do="make the gateway's user the owner of the directory, or run this as its owner",
        )


def _build_missing_file_error(path: Path) -> StoreUnavailable:
    if not path.parent.is_dir():
        return StoreUnavailable(
            f"there is no directory {path.parent}",
            means="the database of state.url cannot be opened",
            do="correct state.url, or mount or create the directory",
        )
    # A gateway creates the lock file, which is never deleted.
    if path.with_name(f"{path.name}.lock").exists():
        return StoreUnavailable(
            f"there is no database {path}, although a gateway has served one there",
            means="it was moved or deleted, and the next start would create an empty one",
            do="stop the gateway and put the database back, with the files whose names begin with "
            "its name, or run `payout-gateway restore` with a backup",
        )
    return StoreUnavailable(
        f"there is no database {path}",
        means="no API key was ever imported there",
        do="run `payout-gateway keys import`; if that was done, run this where the gateway runs, or "
        "pass its --config",
    )


def open_sqlite_connection(path: Path, seconds: float) -> sqlite3.Connection:
    """Opens the file, for use by one thread at a time.

    ``seconds`` is how long statements wait for a lock; 0 is a connection that only reads.
    """
    connection = sqlite3.connect(
        path,
        timeout=seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_STATEMENTS,
    )
    connection.execute("PRAGMA foreign_keys = ON")
    _set_journal_mode(connection, seconds)
    connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}")
    # On disk before it is acknowledged: a write to the service leaves only after its record.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB if seconds else READ_CACHE_KIB}")
    return connection


def _set_journal_mode(connection: sqlite3.Connection, seconds: float) -> None:
    """Sets the mode of the file, with a wait of our own: SQLite waits for no lock to change it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode = {JOURNAL_MODE}")
        except sqlite3.OperationalError as error:
            is_locked = find_sqlite_code(error) == sqlite3.SQLITE_BUSY
            if not is_locked or time.monotonic() > deadline:
                raise
            time.sleep(LOCK_POLL_SECONDS)
        else:
            return


def open_database(address: URL) -> Database:
    """Creates the database of an address, which connects with its first transaction."""
    if (path := find_sqlite_file(address)) is not None:
        return SqliteDatabase(
            format_address(address), lambda seconds: open_sqlite_connection(path, seconds)
        )
    # The driver reads the address itself, with every parameter that libpq knows (sslmode…).
    dsn = address.render_as_string(hide_password=False)
    return PostgresqlDatabase(format_address(address), dsn, **_POSTGRESQL_OPTIONS)


_POSTGRESQL_OPTIONS: Mapping[str, Any] = {
    "timeout": _CONNECT_SECONDS,
    "command_timeout": _COMMAND_SECONDS,
    # The statements are few and fixed, so none needs to be prepared again.
    "statement_cache_size": _STATEMENTS,
    "max_cached_statement_lifetime": 0,
    "server_settings": {"application_name": "payout-gateway"},
}


async def run_in_sqlalchemy_transaction(
    address: URL, function: Callable[[Connection], Result]
) -> Result:
    """Calls a function in a transaction that writes, as alembic needs it.

    Raises StoreUnavailable.
    """
    with translate_database_errors(format_address(address)):
        if (path := find_sqlite_file(address)) is not None:
            return await asyncio.to_thread(_run_on_sqlite, path, function)
        # It loads SQLAlchemy's ORM, which commands on SQLite need not wait for.
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

        dsn = address.render_as_string(hide_password=False)
        engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=lambda: asyncpg.connect(dsn, **_POSTGRESQL_OPTIONS),
            hide_parameters=True,
            poolclass=NullPool,
        )
        async with engine.begin() as connection:
            return await connection.run_sync(function)


def _run_on_sqlite(path: Path, function: Callable[[Connection], Result]) -> Result:
    engine = create_engine(
        "sqlite://", module=sqlite3, creator=lambda: sqlite3.connect(path), hide_parameters=True
    )
    event.listen(engine, "connect", _configure_connection)
    # IMMEDIATE, because a transaction that begins with a read may not get the lock afterwards.
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    try:
        with engine.begin() as connection:
            return function(connection)
    finally:
        engine.dispose()


def _configure_connection(connection: sqlite3.Connection, _record: object) -> None:
    # The driver's own transactions would leave reads and schema changes outside.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {1000 * BUSY_SECONDS}")
    connection.execute("PRAGMA foreign_keys = ON")
    # EXTRA also syncs the directory: a journal that reappears would undo the transaction.
    connection.execute("PRAGMA synchronous = EXTRA")
