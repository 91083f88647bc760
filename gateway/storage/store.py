"""The open store: connections, keys to what is sealed in it, and a clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from weakref import WeakKeyDictionary

from sqlalchemy import URL, Connection, insert, select, text

from gateway.config.settings import State
from gateway.storage import engine as engines
from gateway.storage.database import Body, Database, Result
from gateway.storage.encryption import EncryptionKeys, Place
from gateway.storage.errors import StoreUnavailable
from gateway.storage.keyfile import make_key_file, missing, read_key_file
from gateway.storage.migrate import migrate
from gateway.storage.postgresql_database import ADVISORY_LOCKS
from gateway.storage.process_lock import alone_with
from gateway.storage.tables import encryption_keys

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


class Store:
    """One database; made by ``open_store``."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database = database
        self.clock = clock
        self.encryption: EncryptionKeys

    @property
    def where(self) -> str:
        return self.database.where

    @property
    def unwritten(self) -> StoreUnavailable | None:
        """Why the last change could not be written; None again after one was."""
        return self.database.unwritten

    @property
    def is_of_one_process(self) -> bool:
        """Whether no more than one gateway may run on it at a time."""
        return self.database.dialect == "sqlite"

    async def read(self, body: Body[Result], *, is_brief: bool = False) -> Result:
        """See ``Database.read``."""
        return await self.database.read(body, is_brief=is_brief)

    async def write(self, body: Body[Result]) -> Result:
        """See ``Database.write``."""
        return await self.database.write(body)

    async def close(self) -> None:
        await self.database.close()


@asynccontextmanager
async def open_store(
    state: State,
    *,
    create: bool = True,
    serves: bool = False,
    as_it_is: bool = False,
    clock: Clock = utc_now,
) -> AsyncIterator[Store]:
    """Opens the state, brings its tables up to date and sees that the key file fits.

    ``create=False`` is for commands that have nothing to say about a state that is not there,
    ``serves`` for a gateway, of which there is one at a time on SQLite. ``as_it_is`` leaves out the
    tables and the key: of what is about to be replaced nothing is changed.
    Raises StoreUnavailable.
    """
    address = engines.parsed(state.url)
    file = engines.sqlite_file(address)
    if file is not None:
        engines.make_sqlite_file(file, create=create)
        engines.refuse_unwritable(file)
    store = Store(engines.open_database(address), clock)
    try:
        with alone_with(file) if serves and file else nullcontext():
            if not as_it_is:
                store.encryption = await _make_ready(store, address, state.encryption_key_file)
            yield store
    finally:
        await store.close()


async def _make_ready(store: Store, address: URL, key_file: Path) -> EncryptionKeys:
    """In one transaction: with a key that does not fit, the tables stay as they are too."""

    def make_ready(connection: Connection) -> EncryptionKeys:
        if not store.is_of_one_process:
            # Of processes that start at once, one migrates, and the others wait.
            lock = select(text("pg_advisory_xact_lock(:class, hashtext(''))"))
            connection.execute(lock, {"class": ADVISORY_LOCKS})
        migrate(connection, store.where)
        return _find_fitting_keys(store, connection, key_file)

    # alembic's ``context`` and ``op`` are one for the whole process.
    async with _migrations.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        return await engines.run_with_sqlalchemy(address, make_ready)


_migrations: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


def _find_fitting_keys(store: Store, connection: Connection, key_file: Path) -> EncryptionKeys:
    there = connection.execute(select(encryption_keys)).all()
    checks = {row.id: row.check_value for row in there}
    keys = read_key_file(key_file)
    # Never for a state that was used before: a new key would hide that the old one is lost.
    if keys is None and store.is_of_one_process and not checks:
        make_key_file(key_file)
        keys = read_key_file(key_file)
    if keys is None:
        raise missing(key_file)
    if lost := sorted(set(checks) - set(keys.ids)):
        raise _misfit(key_file, store.where, f"has no key {', '.join(lost)}")
    for key_id, check in checks.items():
        _check(keys, key_id, check, key_file, store.where)
    new = [key_id for key_id in keys.ids if key_id not in checks]
    if new:
        connection.execute(insert(encryption_keys), _checks(keys, new, store.clock()))
    if there:
        # Not by the file: whoever puts another key last, to have it encrypt, may move the first.
        keys.oldest = min(there, key=lambda row: (row.created_at, keys.ids.index(row.id))).id
    return keys


def _checks(keys: EncryptionKeys, ids: list[str], now: datetime) -> list[dict[str, object]]:
    return [
        {
            "id": key_id,
            "check_value": keys.seal("", _check_place(key_id), key_id=key_id),
            "created_at": now,
        }
        for key_id in ids
    ]


def _check(keys: EncryptionKeys, key_id: str, check: str, key_file: Path, where: str) -> None:
    try:
        keys.unseal(check, _check_place(key_id))
    except StoreUnavailable:
        raise _misfit(key_file, where, f"has another key under the id {key_id}") from None


def _check_place(key_id: str) -> Place:
    return Place("encryption_keys", key_id, "", "check_value")


def _misfit(key_file: Path, where: str, what: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"key file {key_file} {what}, with which the state at {where} was encrypted",
        means="it is not this state's key file, or lines of it are gone, "
        "and stored secrets cannot be decrypted",
        do="restore the file; keys may be added to it, but none removed",
    )
