"""Checks that the database can be written, with a write that is rolled back."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import insert
from sqlalchemy.exc import DBAPIError

from gateway.storage.errors import StoreUnavailable, describe_database_error
from gateway.storage.store import Store
from gateway.storage.tables import counters


class _RollBack(Exception):
    pass


async def check_writable(store: Store) -> None:
    """Raises StoreUnavailable if the database cannot be written."""
    try:
        with suppress(_RollBack):
            await _write_and_roll_back(store)
    except DBAPIError as error:
        reason = describe_database_error(error)
    else:
        return
    raise StoreUnavailable(
        f"the database at {store.where} cannot be written ({reason})",
        means="every write of a client is refused",
        do="grant the gateway's database user write access to its tables (GRANT ALL ON ALL TABLES IN "
        "SCHEMA public), or make its operating system user the owner of the file and its directory",
    )


async def _write_and_roll_back(store: Store) -> None:
    async with store.write() as connection:
        await connection.execute(insert(counters).values(name="doctor", value=0))
        raise _RollBack
