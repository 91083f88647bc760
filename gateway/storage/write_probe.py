"""Whether the state takes a write: one is made, and rolled back."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import insert

from gateway.storage.database import Transaction
from gateway.storage.errors import StoreUnavailable
from gateway.storage.store import Store
from gateway.storage.tables import counters


class _RolledBack(Exception):
    pass


async def refuse_read_only(store: Store) -> None:
    """Raises StoreUnavailable."""
    try:
        with suppress(_RolledBack):
            await store.write(_write)
    except StoreUnavailable as error:
        raise StoreUnavailable(
            (store.unwritten or error).happened,
            means="every write of a client is refused",
            do="let the gateway's database user write its tables (GRANT ALL ON ALL TABLES IN SCHEMA "
            "public), or give the file and its folder to the user that it runs as",
        ) from None


async def _write(tx: Transaction) -> None:
    await tx.execute(insert(counters).values(name="doctor", value=0))
    raise _RolledBack
