"""What has indexes dropped: their age, an operator's word, and a recipient that is erased.

An operator's word is an act in the state, which every process that shares it looks for.
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
"""How much the clocks of those who share a state may differ, and for how long it may be gone."""

DROPPED = "dropped the index"


class Dropping(PeriodicTask):
    """``async with`` it: indexes are dropped on request from then on."""

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
    """Has every running gateway drop the indexes of a scope; it is noted who wanted that."""
    await store.write(lambda tx: note(store, tx, DROPPED, scope))
