"""Drops recipient caches: at the end of their age, and when a recipient is erased.

An erasure is an entry of the audit log in the database, which every process polls.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from gateway.reads.recipient_cache.caches import RecipientCaches
from gateway.storage.audit_log import RECIPIENT_ERASED, load_scopes_by_event_id
from gateway.storage.periodic_tasks import PeriodicTask
from gateway.storage.store import Store

POLL_SECONDS = 2.0

MAX_CLOCK_SKEW = timedelta(hours=1)
"""Covers differences of clocks between processes, and an unavailable database."""


class CacheInvalidation(PeriodicTask):
    """Drops caches whose data must go, while entered with ``async with``."""

    def __init__(
        self, caches: RecipientCaches, store: Store, seconds: float = POLL_SECONDS
    ) -> None:
        super().__init__(
            "recipient_cache_invalidation",
            seconds,
            self._drop_invalidated_caches,
            runs_at_stop=False,
        )
        self._caches = caches
        self._store = store
        self._seen_ids: set[str] | None = None

    async def __aenter__(self) -> Self:
        await self._drop_invalidated_caches()
        return await super().__aenter__()

    async def _drop_invalidated_caches(self) -> None:
        self._caches.drop_expired()
        scopes_by_id = await load_scopes_by_event_id(
            self._store, (RECIPIENT_ERASED,), self._store.clock() - MAX_CLOCK_SKEW
        )
        # At the first poll there are no caches yet, so its entries are only remembered.
        seen_ids, self._seen_ids = self._seen_ids, set(scopes_by_id)
        for id_ in self._seen_ids - (self._seen_ids if seen_ids is None else seen_ids):
            self._caches.drop_caches_in_scope(scopes_by_id[id_])
