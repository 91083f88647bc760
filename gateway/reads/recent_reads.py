"""Answers to reads that are used again for a short time.

``RecentReads`` caches answers to recipient reads until the merchant changes something.
Recipients are cached by email address and id, because a large batch pays few of them. A change
through this gateway invalidates all entries of the merchant; a change elsewhere is seen after the
TTL. Results with no recipient or several are not cached. If other processes share the database,
nothing is cached: this process would miss their changes, and the payee must not depend on which
process answers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable

from cachetools import TTLCache

from gateway.storage.tenants import Tenant
from mappings.effects import JSON, Call

TTL_SECONDS = 60
_MAX_ENTRIES = 20_000

_CacheKey = tuple[Tenant, str, tuple[tuple[str, str], ...]]


class RecentReads:
    """The cache; ``on_change`` is called with each recipient that this process changes."""

    def __init__(
        self,
        *,
        is_single_process: bool = True,
        on_change: Callable[[Tenant, str], None] = lambda _owner, _id: None,
    ) -> None:
        self._is_single_process = is_single_process
        self._on_change = on_change
        self._answers: TTLCache[_CacheKey, tuple[int, JSON]] = TTLCache(_MAX_ENTRIES, TTL_SECONDS)
        self._change_counts: Counter[Tenant] = Counter()

    def get(self, tenant: Tenant, call: Call) -> JSON | None:
        count, body = self._answers.get(_build_cache_key(tenant, call), (-1, None))
        # Comparing counters invalidates all answers of a tenant without searching for them.
        return body if count == self.count_changes(tenant) else None

    def put(self, tenant: Tenant, call: Call, body: JSON, change_count: int) -> None:
        """Stores an answer; ``change_count`` is the count before the call.

        If it has changed since, the answer may be from before a change and is not used.
        """
        if self._is_single_process and _has_single_recipient(body):
            # With the count from before the call: an answer that a change overtook is then never
            # used.
            self._answers[_build_cache_key(tenant, call)] = (change_count, body)

    def invalidate(self, tenant: Tenant, recipient_id: str = "") -> None:
        """Invalidates all answers of a tenant; ``recipient_id`` is the changed one, if known."""
        self._change_counts[tenant] += 1
        if recipient_id:
            self._on_change(tenant, recipient_id)

    def count_changes(self, tenant: Tenant) -> int:
        return self._change_counts[tenant]


def _has_single_recipient(body: JSON) -> bool:
    """Whether the answer has exactly one recipient.

    No or several recipients make a batch fail. The client corrects that elsewhere and retries
    immediately, so such an answer must not be cached.
    """
    recipients = body.get("recipients")
    return recipients is None or len(recipients) == 1


def _build_cache_key(tenant: Tenant, call: Call) -> _CacheKey:
    return tenant, call.path, tuple(sorted(call.query.items()))


MAX_PAGE_AGE_SECONDS = 2.0
_MAX_PAGES = 100


class RecentPages:
    """Pages of the list of batches, in which several writes in doubt are looked for.

    After an outage every create in doubt would otherwise read the whole list for itself.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._pages: TTLCache[_CacheKey, tuple[float, JSON]] = TTLCache(
            _MAX_PAGES, MAX_PAGE_AGE_SECONDS, monotonic
        )

    async def read(
        self,
        tenant: Tenant,
        call: Call,
        max_age_seconds: float,
        send: Callable[[], Awaitable[JSON]],
    ) -> JSON:
        """Returns the answer to a call that was sent at most ``max_age_seconds`` ago."""
        key, now = _build_cache_key(tenant, call), self._monotonic()
        sent_at, body = self._pages.get(key, (-math.inf, None))
        if now - sent_at > max_age_seconds:
            body = await send()
            # The next reading may find an answer that can be read.
            if isinstance(body.get("batches"), list):
                self._pages[key] = now, body
        return body
