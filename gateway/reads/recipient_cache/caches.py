"""The recipient caches of a process, one for each tenant that needs one, within bounds."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import structlog

from gateway.config.settings import Lists
from gateway.observability import metrics
from gateway.reads.recipient_cache.cache import RecipientCache
from gateway.reads.recipient_cache.date_reader import CacheUnavailable, ServiceListReader
from gateway.reads.recipient_cache.entry import RecipientEntry
from gateway.reads.recipient_cache.remote_changes import RemoteChanges
from gateway.reads.recipient_cache.scan import CallService
from gateway.storage import Store
from gateway.storage.change_poller import ChangeCounts, build_erasure_count_name
from gateway.storage.tenants import Tenant
from gateway.storage.ttl_cache import TtlCache
from mappings.effects import ListQuery

EVICTABLE_AFTER_SECONDS = 300.0
"""A cache that was not used for this time may be evicted to make room for another."""

REFRESH_AGE_FRACTION = 0.75
"""The fraction of the maximum age after which a cache in use is refreshed in the background."""

_MAX_UNCACHEABLE = 10_000

log = structlog.get_logger()


class CacheFigures(NamedTuple):
    """The number of caches of an environment and of their recipients, and the age of the oldest."""

    caches: int
    recipients: int
    oldest_age_seconds: float


class RecipientCaches:
    """The caches of all tenants; ``store`` has the changes of other processes."""

    def __init__(
        self,
        settings: Lists,
        store: Store | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._shared_store = None if store and store.is_of_one_process else store
        self._monotonic = monotonic
        self._wall_clock = wall_clock
        self._caches: dict[Tenant, RecipientCache] = {}
        self._change_counts: ChangeCounts = {}
        self._refresh_tasks: set[asyncio.Task[None]] = set()
        # Tenants whose recipients cannot be cached; caching is tried again after a while.
        self._uncacheable: TtlCache[Tenant, bool] = TtlCache(
            _MAX_UNCACHEABLE, settings.index_seconds, monotonic
        )

    def can_cache(self, tenant: Tenant) -> bool:
        return self._settings.index and not self._uncacheable.get(tenant)

    def has_fresh_cache(self, tenant: Tenant) -> bool:
        cache = self._caches.get(tenant)
        return cache is not None and cache.is_refresh_recent

    def calculate_cache_statistics(self, environment: str) -> CacheFigures:
        caches = [
            cache for tenant, cache in self._caches.items() if tenant.environment == environment
        ]
        ages_seconds = (
            cache.refresh_age_seconds for cache in caches if cache.refresh_age_seconds < math.inf
        )
        return CacheFigures(
            len(caches), sum(len(cache.rows) for cache in caches), max(ages_seconds, default=0.0)
        )

    async def load_recipients(
        self, question: ListQuery, call_service: CallService, tenant: Tenant
    ) -> list[RecipientEntry]:
        """Returns all recipients as the service has them now.

        Raises CacheUnavailable and the errors of a call.
        """
        cache = self._caches.get(tenant)
        if cache is None:
            store = self._shared_store
            cache = self._caches[tenant] = RecipientCache(
                tenant,
                self._settings.index_seconds,
                self._evict_idle_caches_to_fit,
                self._refresh_tasks,
                RemoteChanges(store, tenant) if store else None,
                self._monotonic,
                self._wall_clock,
            )
        reader = ServiceListReader(question, call_service, cache.page_size)
        try:
            await cache.sync(reader, question.excluded_ids)
        except CacheUnavailable as error:
            self._drop_cache(cache)
            # Remembered, or each query would start and give up another refresh.
            self._uncacheable.put(tenant, True)
            log.info("recipient_cache_not_used", **tenant._asdict(), reason=str(error))
            raise
        cache.page_size = reader.page_size
        metrics.cache_calls.labels(tenant.environment).observe(reader.call_count)
        if cache.refresh_age_seconds > REFRESH_AGE_FRACTION * self._settings.index_seconds:
            # In the background, so that no query has to wait for the refresh.
            cache.start_refresh(
                ServiceListReader(question, call_service, cache.page_size), question.excluded_ids
            )
        # A copy: other requests may change the cache while a thread filters and sorts.
        return [*cache.rows]

    async def close(self) -> None:
        """Cancels the running refreshes."""
        tasks = [*self._refresh_tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def record_changed_recipient(self, tenant: Tenant, recipient_id: str) -> None:
        """Records that this process may have changed a recipient, which is then read again.

        The id is empty for a call that names none.
        """
        if recipient_id and (cache := self._caches.get(tenant)):
            cache.record_changes([recipient_id])

    async def drop_expired_and_erased(self, counts: ChangeCounts) -> None:
        """Listens to the change poller.

        Drops idle caches that are too old to be used without a refresh, and those of tenants of whom
        a recipient was erased.
        """
        earlier_counts, self._change_counts = self._change_counts, counts
        for tenant, cache in [*self._caches.items()]:
            name = build_erasure_count_name(tenant)
            is_expired = not cache.is_refresh_recent and self._is_cache_idle(cache)
            if is_expired or counts.get(name) != earlier_counts.get(name):
                self._drop_cache(cache)

    def _drop_cache(self, cache: RecipientCache) -> None:
        if self._caches.get(cache.tenant) is cache:
            del self._caches[cache.tenant]

    def _is_cache_idle(self, cache: RecipientCache) -> bool:
        return self._monotonic() - cache.used_at >= EVICTABLE_AFTER_SECONDS

    def _evict_idle_caches_to_fit(self, cache: RecipientCache, count: int) -> bool:
        """Evicts idle caches if necessary; returns whether ``count`` recipients fit."""
        others = [other for other in self._caches.values() if other is not cache]
        free = self._settings.index_recipients - sum(other.expected_count for other in others)
        for other in sorted(others, key=lambda other: other.used_at):
            # Nothing is evicted in vain, nor a cache that is in use.
            is_in_vain = count > self._settings.index_recipients
            if count <= free or is_in_vain or not self._is_cache_idle(other):
                break
            free += other.expected_count
            self._drop_cache(other)
        return count <= free
