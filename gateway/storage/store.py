"""The open store: connections, keys to what is sealed in it, and a clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.config.settings import State
from gateway.storage import engine as engines
from gateway.storage.drivers import Drivers, drivers_of
from gateway.storage.encryption import EncryptionContext, EncryptionKeys
from gateway.storage.errors import (
    StoreUnavailable,
    build_unwritable_error,
    translate_database_errors,
)
from gateway.storage.group_commit import GroupCommit
from gateway.storage.key_file import build_missing_error, create_key_file, read_key_file
from gateway.storage.migrate import migrate
from gateway.storage.on_postgresql import LOCKS
from gateway.storage.process_lock import hold_process_lock
from gateway.storage.statements import Made, Transaction
from gateway.storage.tables import encryption_keys

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


class Store:
    """One database; made by ``open_store``."""

    def __init__(
        self, engine: AsyncEngine, where: str, clock: Clock, drivers: Drivers | None = None
    ) -> None:
        self.engine = engine
        self.where = where
        self.clock = clock
        self.encryption: EncryptionKeys
        self.unwritten: StoreUnavailable | None = None
        """Why something could not be written; None again when something was, see ``wrote``."""
        # SQLite has one writer: waiting for one's turn here is fair and has no time limit,
        # waiting in SQLite is neither.
        self._turn: AbstractAsyncContextManager[object] = (
            asyncio.Lock() if engine.dialect.name == "sqlite" else nullcontext()
        )
        if drivers is not None:
            self.changes = GroupCommit(
                drivers.changing, where, self._turn, drivers.lanes, self._was_not_written
            )
            self.readings = GroupCommit(drivers.reading, where, nullcontext(), drivers.lanes)
        self._drivers = drivers

    @property
    def is_of_one_process(self) -> bool:
        """Whether no more than one gateway may run on it at a time."""
        return self.engine.dialect.name == "sqlite"

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that reads; StoreUnavailable."""
        with translate_database_errors(self.where):
            async with self.engine.connect() as connection, connection.begin():
                yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that may write, committed at the end; StoreUnavailable.

        Not to be nested, and nothing but the database is to be waited for inside: on SQLite there
        is one at a time.
        """
        async with self._turn:
            with translate_database_errors(self.where, self._was_not_written):
                async with self.engine.connect() as plain:
                    connection = await plain.execution_options(**{engines.WRITES: True})
                    async with connection.begin():
                        yield connection

    def _was_not_written(self, why: str) -> None:
        self.unwritten = build_unwritable_error(self.where, why)

    def wrote(self) -> None:
        """Told by whoever has changed something for certain: to commit nothing takes no room."""
        self.unwritten = None

    async def looked_up(self, work: Transaction[Made]) -> Made:
        """What came of a work that changes nothing; StoreUnavailable."""
        return await self.readings.carry_out(work)

    async def carried_out(self, work: Transaction[Made], *, within: float = 0.0) -> Made:
        """What came of a work, as soon as all that it did is committed; StoreUnavailable.

        Carried out with others that come at the same time, or within some seconds where it is in no
        hurry, and also where whoever asks is cancelled.
        """
        return await self.changes.carry_out(work, within)

    async def one_at_a_time(self, connection: AsyncConnection, what: str = "") -> None:
        """Until the transaction ends, has this database's other instances wait for ``what``."""
        if self.engine.dialect.name == "postgresql":
            lock = select(text("pg_advisory_xact_lock(:room, hashtext(:what))"))
            await connection.execute(lock, {"room": LOCKS, "what": what})

    async def close(self) -> None:
        if self._drivers is not None:
            await self.changes.end()
            await self.readings.end()
            await self._drivers.close()
        await self.engine.dispose()


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
        engine = engines.sqlite_engine(file)
    else:
        engine = engines.postgresql_engine(address)
    store = Store(engine, engines.shown(address), clock, drivers_of(address))
    try:
        with hold_process_lock(file) if serves and file else nullcontext():
            if not as_it_is:
                await _make_ready(store, state.encryption_key_file, makes_key=file is not None)
            yield store
    finally:
        await store.close()


async def _make_ready(store: Store, key_file: Path, *, makes_key: bool) -> None:
    async with store.write() as connection:
        await store.one_at_a_time(connection)
        await migrate(connection, store.where)
        store.encryption = await _fitting_keys(store, connection, key_file, makes_key=makes_key)


async def _fitting_keys(
    store: Store, connection: AsyncConnection, key_file: Path, *, makes_key: bool
) -> EncryptionKeys:
    there = (await connection.execute(select(encryption_keys))).all()
    checks = {row.id: row.check_value for row in there}
    keys = read_key_file(key_file)
    # Never for a state that was used before: a new key would hide that the old one is lost.
    if keys is None and makes_key and not checks:
        create_key_file(key_file)
        keys = read_key_file(key_file)
    if keys is None:
        raise build_missing_error(key_file)
    if lost := sorted(set(checks) - set(keys.ids)):
        raise _misfit(key_file, store.where, f"has no key {', '.join(lost)}")
    for key_id, check in checks.items():
        _check(keys, key_id, check, key_file, store.where)
    new = [key_id for key_id in keys.ids if key_id not in checks]
    if new:
        await connection.execute(insert(encryption_keys), _checks(keys, new, store.clock()))
    if there:
        # Not by the file: whoever puts another key last, to have it encrypt, may move the first.
        keys.oldest = min(there, key=lambda row: (row.created_at, keys.ids.index(row.id))).id
    return keys


def _checks(keys: EncryptionKeys, ids: list[str], now: datetime) -> list[dict[str, object]]:
    return [
        {
            "id": key_id,
            "check_value": keys.encrypt("", _check_place(key_id), key_id=key_id),
            "created_at": now,
        }
        for key_id in ids
    ]


def _check(keys: EncryptionKeys, key_id: str, check: str, key_file: Path, where: str) -> None:
    try:
        keys.decrypt(check, _check_place(key_id))
    except StoreUnavailable:
        raise _misfit(key_file, where, f"has another key under the id {key_id}") from None


def _check_place(key_id: str) -> EncryptionContext:
    return EncryptionContext("encryption_keys", key_id, "", "check_value")


def _misfit(key_file: Path, where: str, what: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"key file {key_file} {what}, with which the state at {where} was encrypted",
        means="it is not this state's key file, or lines of it are gone, "
        "and stored secrets cannot be decrypted",
        do="restore the file; keys may be added to it, but none removed",
    )
