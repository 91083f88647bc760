"""The recipient caches of a process, one for each tenant that needs one, within bounds."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import structlog

from gateway.observability import metrics
from gateway.payloads.worker_thread import run_in_thread
from gateway.reads.index.recipient_cache import (
    Dropped,
    Elsewhere,
    RecipientCache,
    list_no_processes,
)
from gateway.reads.index.rows import Entry
from gateway.reads.index.scan import Make, select_page
from gateway.reads.index.synchronization import NoIndex, Reading
from gateway.storage.audit_log import covers
from gateway.storage.ttl_cache import TtlCache
from mappings.effects import ListPage, ListQuery

if TYPE_CHECKING:
    from gateway.config.settings import Lists
    from gateway.storage.tenants import Tenant

IDLE_SECONDS = 300.0
"""A cache that was not used for this time may be evicted to make room for another."""

REFRESHED_AT = 0.75
"""The fraction of the maximum age after which a cache in use is refreshed in the background."""

_MOST_WITHOUT = 10_000

log = structlog.get_logger()

Ordered = Callable[[ListQuery, Sequence[Entry]], Awaitable[ListQuery]]
"""Returns a query with the sort key for these rows, if the key depends on the rows."""


async def _as_it_is(question: ListQuery, _rows: Sequence[Entry]) -> ListQuery:
    return question


class Figures(NamedTuple):
    """The number of caches of an environment and of their recipients, and the age of the oldest."""

    indexes: int
    recipients: int
    oldest_seconds: float


class Indexes:
    """The caches of all tenants; ``create_remote_changes`` is described in ``remote_changes``."""

    def __init__(
        self,
        settings: Lists,
        elsewhere: Callable[[Tenant], Elsewhere] = lambda _owner: list_no_processes,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._elsewhere = elsewhere
        self._monotonic = monotonic
        self._wall = wall
        self._held: dict[Tenant, RecipientCache] = {}
        self._dropping: set[asyncio.Task[None]] = set()
        # Tenants whose recipients cannot be cached; caching is tried again after a while.
        self._without: TtlCache[Tenant, bool] = TtlCache(
            _MOST_WITHOUT, settings.index_seconds, monotonic
        )

    def may_have(self, owner: Tenant) -> bool:
        return self._settings.index and not self._without.get(owner)

    def has(self, owner: Tenant) -> bool:
        held = self._held.get(owner)
        return held is not None and held.is_whole

    @property
    def recipients(self) -> int:
        """The number of recipients in all caches."""
        return sum(len(one.rows) for one in self._held.values())

    def figures(self, environment: str) -> Figures:
        its = [one for owner, one in self._held.items() if owner.environment == environment]
        ages = (one.age for one in its if one.age < math.inf)
        return Figures(len(its), sum(len(one.rows) for one in its), max(ages, default=0.0))

    async def find(
        self, question: ListQuery, make: Make, owner: Tenant, ordered: Ordered = _as_it_is
    ) -> ListPage:
        """Return the page that a query asks for; raises CacheUnavailable and the errors of a call."""
        held = self._held.get(owner)
        if held is None:
            its = self._settings.index_seconds, self._fits, self._elsewhere(owner)
            held = self._held[owner] = RecipientCache(
                owner, *its, monotonic=self._monotonic, wall=self._wall
            )
        reading = Reading(question, make, self._monotonic, held.page_size)
        try:
            await held.sync(reading, question.excluded_ids)
        # Somebody dropped the cache during its refresh; the query starts again with a new one.
        except Dropped:
            return await self.find(question, make, owner, ordered)
        except NoIndex as why:
            self._drop(owner, held)
            self._without.put(owner, True)
            log.info("recipient_cache_not_used", **owner._asdict(), reason=str(why))
            raise
        held.page_size = reading.page_size
        metrics.cache_calls.labels(owner.environment).observe(reading.calls)
        if held.age > REFRESHED_AT * self._settings.index_seconds:
            # In the background, so that no query has to wait for the refresh.
            held.begin(
                Reading(question, make, self._monotonic, held.page_size), question.excluded_ids
            )
        rows = [*held.rows.values()]
        return await run_in_thread(_page, await ordered(question, rows), rows)

    async def lists_hidden(self, question: ListQuery, owner: Tenant) -> bool:
        """Return whether the service lists rows that clients must not see, as far as known."""
        held = self._held.get(owner)
        return held is None or await run_in_thread(_any_hidden, question, [*held.rows.values()])

    async def close(self) -> None:
        """Cancel background refreshes."""
        await asyncio.gather(*self._dropping, *(held.drop() for held in self._held.values()))

    def changed(self, owner: Tenant, id_: str) -> None:
        """Record that this process may have changed a recipient; it is read again before it is shown."""
        if held := self._held.get(owner):
            held.changed.add(id_)

    def drop(self, scope: Tenant) -> None:
        """Drop the caches of a scope; an empty merchant or environment means all."""
        for owner, held in [*self._held.items()]:
            if covers(scope, owner):
                self._drop(owner, held)

    def drop_old(self) -> None:
        """Drop idle caches that are too old to be used without a refresh."""
        for owner, held in [*self._held.items()]:
            if not held.is_whole and self._is_idle(held):
                self._drop(owner, held)

    def _drop(self, owner: Tenant, held: RecipientCache) -> None:
        if self._held.get(owner) is held:
            del self._held[owner]
            # The event loop has only weak references to tasks, so the set keeps them alive.
            self._dropping.add(its := asyncio.create_task(held.drop()))
            its.add_done_callback(self._dropping.discard)

    def _is_idle(self, held: RecipientCache) -> bool:
        return self._monotonic() - held.used_at >= IDLE_SECONDS

    def _fits(self, held: RecipientCache, n: int) -> bool:
        """Evict idle caches if necessary; return whether ``count`` recipients fit."""
        most = self._settings.index_recipients
        others = {owner: one for owner, one in self._held.items() if one is not held}
        there = sum(max(one.expected, len(one.rows)) for one in others.values())
        for owner, one in sorted(others.items(), key=lambda item: item[1].used_at):
            if there + n <= most or n > most or not self._is_idle(one):
                break
            there -= max(one.expected, len(one.rows))
            self._drop(owner, one)
        return there + n <= most


def _any_hidden(question: ListQuery, kept: Sequence[Entry]) -> bool:
    return any(map(question.is_hidden, kept))


def _page(question: ListQuery, kept: Sequence[Entry]) -> ListPage:
    found = select_page(question, kept)
    return ListPage([row.whole() for row in found.rows], found.pages, found.records)
