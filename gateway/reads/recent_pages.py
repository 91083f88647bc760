"""Pages of the list of batches that are used again for a short time."""

import math
from collections.abc import Awaitable, Callable

from cachetools import TTLCache

from gateway.storage.tenants import Tenant
from mappings.effects import JSON, Call

MAX_PAGE_AGE_SECONDS = 2.0
_MAX_PAGES = 100

_CacheKey = tuple[Tenant, str, tuple[tuple[str, str], ...]]


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
        key, now = (tenant, call.path, tuple(sorted(call.query.items()))), self._monotonic()
        sent_at, body = self._pages.get(key, (-math.inf, None))
        if now - sent_at > max_age_seconds:
            body = await send()
            # The next reading may find an answer that can be read.
            if isinstance(body.get("batches"), list):
                self._pages[key] = now, body
        return body
