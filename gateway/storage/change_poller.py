"""Polls for changes by other processes, with one statement for everything that is cached.

The table ``counters`` counts the changes of API keys, modes, brownouts and capabilities, and the
recipients of each tenant that were erased. What a count belongs to is loaded again only if the
count differs, so an idle gateway reads one small table, and on SQLite only the modification time of
the file.
"""

from collections.abc import Awaitable, Callable, Mapping

from sqlalchemy import select

from gateway.storage.database import Transaction
from gateway.storage.periodic_tasks import PeriodicTask
from gateway.storage.sql import Statement, build_upsert_statement
from gateway.storage.store import Store
from gateway.storage.tables import counters
from gateway.storage.tenants import Tenant

POLL_SECONDS = 0.5
"""Modes and brownouts are promised to take effect within a second."""

ChangeCounts = Mapping[str, int]
"""Numbers of changes by name; a name is missing until its first change."""

_SELECT_COUNTS = Statement(select(counters.c.name, counters.c.value))


def build_erasure_count_name(tenant: Tenant) -> str:
    """Builds the name of the number of a tenant's recipients that were erased."""
    return f"erased {tenant}"


async def load_change_counts(store: Store) -> ChangeCounts:
    """Loads all change counts; raises StoreUnavailable."""
    return dict(await store.fetch(_SELECT_COUNTS))


async def increment_change_count(tx: Transaction, name: str) -> int:
    """Increments and returns a count, by which running gateways notice a change.

    Call it before the change: other writers wait until the transaction ends, so a reader of the
    count sees every change up to it.
    """
    return int(await tx.fetch_value(_INCREMENT_COUNT, {"name": name, "value": 1}))


_INCREMENT_COUNT = build_upsert_statement(counters, summed=("value",), returned=counters.c.value)


class ChangePoller(PeriodicTask):
    """Gives the change counts to its listeners, while entered with ``async with``."""

    def __init__(self, store: Store, seconds: float = POLL_SECONDS) -> None:
        super().__init__("change_poll", seconds, self.poll, runs_at_stop=False)
        self._store = store
        self._listeners: list[Callable[[ChangeCounts], Awaitable[None]]] = []

    def add_listener(self, listener: Callable[[ChangeCounts], Awaitable[None]]) -> None:
        """Awaits the listener at every poll; it loads again what has changed."""
        self._listeners.append(listener)

    async def poll(self) -> None:
        """Polls once; raises StoreUnavailable, or the first error of a listener."""
        rows = self._store.database.fetch_now(_SELECT_COUNTS, {})
        counts = await load_change_counts(self._store) if rows is None else dict(rows)
        first_error: Exception | None = None
        for listener in self._listeners:
            try:
                await listener(counts)
            except Exception as error:  # noqa: BLE001 - a failing listener must not stop the others
                first_error = first_error or error
        if first_error:
            raise first_error
