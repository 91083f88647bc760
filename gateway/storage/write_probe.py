"""Whether the state takes a write: one is made, and taken back."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import insert
from sqlalchemy.exc import DBAPIError

from gateway.storage.errors import StoreUnavailable, reason
from gateway.storage.store import Store
from gateway.storage.tables import counters


class _TakenBack(Exception):
    pass


async def refuse_read_only(store: Store) -> None:
    """Raises StoreUnavailable."""
    try:
        with suppress(_TakenBack):
            await _write(store)
    except DBAPIError as error:
        why = reason(error)
    else:
        return
    raise StoreUnavailable(
        f"the state at {store.where} cannot be written ({why})",
        means="every write of a client is refused",
        do="let the gateway's database user write its tables (GRANT ALL ON ALL TABLES IN SCHEMA "
        "public), or give the file and its folder to the user that it runs as",
    )


async def _write(store: Store) -> None:
    async with store.write() as connection:
        await connection.execute(insert(counters).values(name="doctor", value=0))
        raise _TakenBack
