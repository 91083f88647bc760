"""Drops recipient caches: at the end of their age, by operators, and when a recipient is erased.

Operators' commands are entries of the audit log in the database, which every process polls.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from gateway.reads.recipient_cache.caches import RecipientCaches
from gateway.storage.audit_log import RECIPIENT_ERASED, load_scopes_by_event_id, record_audit_event
from gateway.storage.periodic_tasks import PeriodicTask
from gateway.storage.store import Store
from gateway.storage.tenants import Tenant

POLL_SECONDS = 2.0

MAX_CLOCK_SKEW = timedelta(hours=1)
"""Covers differences of clocks between processes, and an unavailable database."""

DROP_ACTION = "dropped the index"


class CacheInvalidation(PeriodicTask):
    """Drops caches on request, while entered with ``async with``."""

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
            self._store, (DROP_ACTION, RECIPIENT_ERASED), self._store.clock() - MAX_CLOCK_SKEW
        )
        # At the first poll there are no caches yet, so its entries are only remembered.
        seen_ids, self._seen_ids = self._seen_ids, set(scopes_by_id)
        for id_ in self._seen_ids - (self._seen_ids if seen_ids is None else seen_ids):
            self._caches.drop_caches_in_scope(scopes_by_id[id_])


async def invalidate_recipient_caches(store: Store, scope: Tenant) -> None:
    """Makes every running gateway drop the caches of a scope, by an entry in the audit log."""
    await store.write(lambda tx: record_audit_event(store, tx, DROP_ACTION, scope))
