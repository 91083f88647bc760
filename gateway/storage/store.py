"""The store: a database, its encryption keys, and a clock."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import URL, Connection, insert, select, text

from gateway.config.settings import State
from gateway.observability import metrics
from gateway.storage import engine as engines
from gateway.storage.database import Body, Database, Result, build_instance_lock_key
from gateway.storage.database_clock import DatabaseClock
from gateway.storage.encryption import EncryptionContext, EncryptionKeys
from gateway.storage.errors import StoreUnavailable
from gateway.storage.key_file import build_missing_key_file_error, create_key_file, read_key_file
from gateway.storage.migrate import find_schema_revision, migrate
from gateway.storage.postgresql_database import ADVISORY_LOCKS
from gateway.storage.sql import Parameters, Statement
from gateway.storage.sqlite_database import PROCESS_LOCK, is_served
from gateway.storage.tables import encryption_keys, instances

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


class Store:
    """An open database; created by ``open_store``."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database = database
        self.is_of_one_process = database.dialect == "sqlite"
        """Whether only one gateway may use the database at a time."""
        self.database_clock = DatabaseClock(database, clock)
        self.clock = clock if self.is_of_one_process else self.database_clock.now
        """Returns the current time by the clock of the database, which on SQLite is this machine's.

        Every time that is stored comes from it, because other machines, whose clocks differ, compare
        it with the current time.
        """
        self.encryption: EncryptionKeys

    def compute_end_time(self) -> datetime:
        """Returns the end of an operation whose response is sent once that is stored.

        The latest that the database's clock can show now: requests that came before it at another
        process are copies. The client has the response later than that, as storing it takes a round
        trip, and the uncertainty is half of one.
        """
        return self.clock() + self.database_clock.uncertainty

    def compute_time_before(self, age: timedelta) -> datetime:
        """Returns the latest time of what is old; see ``DatabaseClock.compute_time_before``."""
        return self.database_clock.compute_time_before(age)

    async def read(self, body: Body[Result], *, is_brief: bool = False) -> Result:
        """Runs a transaction that only reads; see ``Database.read``."""
        started_at = perf_counter()
        try:
            return await self.database.read(body, is_brief=is_brief)
        finally:
            metrics.traffic.database_durations["read"].observe(perf_counter() - started_at)

    def fetch(self, statement: Any, *parameter_sets: Parameters) -> Awaitable[list[Any]]:
        """Reads with one statement in a transaction of its own; see ``Transaction.fetch``."""
        return self.read(lambda tx: tx.fetch(statement, *parameter_sets))

    async def fetch_by_key(self, statement: Statement, parameters: Parameters) -> Sequence[Any]:
        """Selects rows by their key; see ``Database.fetch_by_key``."""
        started_at = perf_counter()
        try:
            return await self.database.fetch_by_key(statement, parameters)
        finally:
            metrics.traffic.database_durations["read"].observe(perf_counter() - started_at)

    def write(
        self, body: Body[Result], *, is_brief: bool = False, is_single: bool = False
    ) -> Awaitable[Result]:
        """Runs a transaction that writes; see ``Database.write``, which measures it."""
        return self.database.write(body, is_brief=is_brief, is_single=is_single)

    def execute(self, statement: Any, *parameter_sets: Parameters) -> Awaitable[int]:
        """Runs one statement in a transaction of its own; see ``Transaction.execute``."""
        return self.write(lambda tx: tx.execute(statement, *parameter_sets), is_single=True)

    async def list_live_instances(self) -> set[str]:
        """Lists the instances of the gateways that run on the database."""
        ids = {row.id for row in await self.fetch(select(instances.c.id))}
        if self.is_of_one_process:
            return ids if is_served(self.database.location) else set()
        held_keys = await self.database.list_instance_locks() or ()
        return {id_ for id_ in ids if build_instance_lock_key(id_) in held_keys}


@asynccontextmanager
async def open_store(
    state: State,
    *,
    create: bool = True,
    serves: bool = False,
    clock: Clock = utc_now,
) -> AsyncIterator[Store]:
    """Opens the database, migrates it and checks that the key file fits; raises StoreUnavailable.

    ``create=False`` is for commands that need an existing database, ``serves`` for a gateway, of
    which SQLite allows one at a time.
    """
    address = engines.parse_state_url(state.url)
    file = engines.find_sqlite_file(address)
    if file is not None:
        engines.create_sqlite_file(file, create=create)
    store = Store(engines.open_database(address), clock)
    try:
        # A second gateway would take over the operations that the first one is executing. The
        # operating system releases the lock when the process ends, even by a crash.
        if serves and file and not await store.database.acquire_lock(PROCESS_LOCK):
            raise StoreUnavailable(
                f"another gateway serves the database {file}",
                means="two gateways on one SQLite file would execute requests twice",
                do="stop the other one first, or use PostgreSQL for several instances",
            )
        store.encryption = await _migrate_and_load_keys(store, address, state.encryption_key_file)
        yield store
    finally:
        await store.database.close()


_MICROSECOND = timedelta(microseconds=1)


async def load_schema_revision(state: State) -> str | None:
    """Loads the revision of the tables; None if there are none. Raises StoreUnavailable."""
    address = engines.parse_state_url(state.url)
    file = engines.find_sqlite_file(address)
    # Opening a missing file would create it.
    if file is not None and not file.is_file():
        return None
    return await engines.run_in_sqlalchemy_transaction(address, find_schema_revision)


async def _migrate_and_load_keys(store: Store, address: URL, key_file: Path) -> EncryptionKeys:
    """Migrates and checks the keys in one transaction: if one does not fit, nothing changes."""

    def migrate_under_lock(connection: Connection) -> EncryptionKeys:
        if not store.is_of_one_process:
            # Of processes that start at the same time, one migrates while the others wait.
            lock = select(text("pg_advisory_xact_lock(:class, hashtext(''))"))
            connection.execute(lock, {"class": ADVISORY_LOCKS})
        migrate(connection, store.database.location)
        return _load_and_verify_keys(store, connection, key_file)

    # alembic's ``context`` and ``op`` are global, so migrations run one at a time.
    async with _migrations.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        return await engines.run_in_sqlalchemy_transaction(address, migrate_under_lock)


_migrations: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


def _load_and_verify_keys(store: Store, connection: Connection, key_file: Path) -> EncryptionKeys:
    rows = connection.execute(select(encryption_keys)).all()
    checks = {row.id: row.check_value for row in rows}
    keys = read_key_file(key_file)
    # Not for a database that was used before: a new key would hide that the old one is lost.
    if keys is None and store.is_of_one_process and not checks:
        create_key_file(key_file)
        keys = read_key_file(key_file)
    if keys is None:
        raise build_missing_key_file_error(key_file)
    if lost := sorted(set(checks) - set(keys.ids)):
        raise _build_key_mismatch_error(
            key_file, store.database.location, f"has no key {', '.join(lost)}"
        )
    for key_id, check in checks.items():
        try:
            keys.decrypt(check, _build_key_check_encryption_context(key_id))
        except StoreUnavailable:
            raise _build_key_mismatch_error(
                key_file, store.database.location, f"has another key under the id {key_id}"
            ) from None
    # One after the other, although the clock may have been ahead before: see below.
    created_at = max([store.clock(), *(row.created_at + _MICROSECOND for row in rows)])
    new_rows = [
        {
            "id": id_,
            "check_value": keys.encrypt("", _build_key_check_encryption_context(id_), key_id=id_),
            "created_at": created_at + number * _MICROSECOND,
        }
        for number, id_ in enumerate(keys.ids)
        if id_ not in checks
    ]
    if new_rows:
        connection.execute(insert(encryption_keys), new_rows)
    if rows:
        # By the time of first use, because an operator may reorder the lines of the file.
        keys.oldest = min(rows, key=lambda row: (row.created_at, keys.ids.index(row.id))).id
    return keys


def _build_key_check_encryption_context(key_id: str) -> EncryptionContext:
    return EncryptionContext("encryption_keys", key_id, "", "check_value")


def _build_key_mismatch_error(key_file: Path, where: str, what: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"key file {key_file} {what}, with which the database at {where} was encrypted",
        means="it is not this database's key file, or lines of it are missing, "
        "and stored secrets cannot be decrypted",
        do="restore the file; keys may be added to it, but none removed",
    )
