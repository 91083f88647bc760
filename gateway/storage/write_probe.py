"""Checks that the database can be written, with a write that is rolled back."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import insert

from gateway.storage.database import Transaction
from gateway.storage.errors import StoreUnavailable
from gateway.storage.store import Store
from gateway.storage.tables import counters


class _RollBack(Exception):
    pass


async def check_database_writable(store: Store) -> None:
    """Raises StoreUnavailable if the database cannot be written."""
    try:
        with suppress(_RollBack):
            await store.write(_write_and_roll_back)
    except StoreUnavailable as error:
        raise StoreUnavailable(
            (store.write_error or error).happened,
            means="every write of a client is refused",
            do="grant the gateway's database user write access to its tables (GRANT ALL ON ALL "
            "TABLES IN SCHEMA public), or make its operating system user the owner of the file "
            "and its directory",
        ) from None


async def _write_and_roll_back(tx: Transaction) -> None:
    await tx.execute(insert(counters).values(name="doctor", value=0))
    raise _RollBack
