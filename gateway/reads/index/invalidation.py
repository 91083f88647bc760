"""Drops recipient caches: at the end of their age, by operators, and when a recipient is erased.

Operators' commands are entries of the audit log in the database, which every process polls.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from gateway.reads.index.indexes import Indexes
from gateway.storage.audit_log import ERASED, acts_since, note
from gateway.storage.periodic_tasks import PeriodicTask
from gateway.storage.store import Store
from gateway.storage.tenants import Tenant

EVERY_SECONDS = 2.0

APART = timedelta(hours=1)
"""Covers differences of clocks between processes, and an unavailable database."""

DROPPED = "dropped the index"


class Dropping(PeriodicTask):
    """Drops caches on request, while entered with ``async with``."""

    def __init__(self, indexes: Indexes, store: Store, seconds: float = EVERY_SECONDS) -> None:
        super().__init__("recipient_cache_invalidation", seconds, self._look, at_its_end=False)
        self._indexes = indexes
        self._store = store
        self._seen: set[str] | None = None

    async def __aenter__(self) -> Self:
        await self._look()
        return await super().__aenter__()

    async def _look(self) -> None:
        self._indexes.drop_old()
        acts = await acts_since(self._store, (DROPPED, ERASED), self._store.clock() - APART)
        seen, self._seen = self._seen, set(acts)
        for id_ in self._seen - (self._seen if seen is None else seen):
            self._indexes.drop(acts[id_])


async def invalidate_indexes(store: Store, scope: Tenant) -> None:
    """Make every running gateway drop the caches of a scope, by an entry in the audit log."""
    async with store.write() as connection:
        await note(store, connection, DROPPED, scope)
