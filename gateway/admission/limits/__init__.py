"""The rate limit: a sliding window of 3,600 seconds for each API key.

Time is counted in whole seconds. A request counts from its admission until the start of the 3,601st
second after its own. So no 3,600-second window ever contains more than ``limit`` requests, and a
request is refused only if ``limit`` requests were admitted in the last 3,601 s. The error of up to
one second is on the strict side.

``memory://`` counts in one process. ``redis://`` counts for all processes on all hosts, by Redis's
own clock; ``in_redis`` describes the guarantees during a Redis outage. That module is imported only
if Redis is configured, because its client accounts for a tenth of the start-up time.

Requests without a valid key are counted by client address, in each process separately and apart
from the keys. At most ``MAX_ADDRESSES`` are kept, so a million addresses can neither exhaust the
memory, nor evict the counts of keys, nor fill Redis.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from gateway.admission.limits.in_process import (
    MAX_ADDRESSES,
    Admission,
    InProcessRateLimiter,
    RateLimiter,
)
from gateway.config.settings import ConfigurationError, Settings

__all__ = [
    "MAX_ADDRESSES",
    "Admission",
    "InProcessRateLimiter",
    "RateLimiter",
    "find_rate_limit_setting_problems",
    "open_rate_limiter",
]


def find_rate_limit_setting_problems(settings: Settings) -> Iterator[str]:
    """Yields the settings with which the limit would not hold, as messages for the operator."""
    limits, server = settings.limits, settings.server
    if not limits.url.startswith("memory://"):
        from gateway.admission.limits.in_redis import find_redis_url_problems  # noqa: PLC0415 - see the package

        yield from (f"limits.url: {problem}" for problem in find_redis_url_problems(limits.url))
    elif server.workers > 1 or limits.hosts > 1:
        setting = "server.workers" if server.workers > 1 else "limits.hosts"
        yield (
            f"{setting}: memory:// counts in each process separately; for several, set limits.url "
            f"to a redis:// address, or {setting} to 1"
        )


@asynccontextmanager
async def open_rate_limiter(settings: Settings, naming_key: bytes) -> AsyncIterator[RateLimiter]:
    """Opens the configured rate limiter; raises ConfigurationError.

    ``naming_key`` keys the digests that are used as Redis keys.
    """
    if problems := list(find_rate_limit_setting_problems(settings)):
        raise ConfigurationError(problems)
    limits = settings.limits
    if limits.url.startswith("memory://"):
        yield InProcessRateLimiter()
    else:
        from gateway.admission.limits.in_redis import RedisRateLimiter  # noqa: PLC0415 - see the package

        process_count = settings.server.workers * limits.hosts
        async with RedisRateLimiter(limits.url, naming_key, process_count) as limiter:
            yield limiter
