"""Opens the rate limiter that ``[limits] url`` configures."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.admission.limits.in_process import InProcessRateLimiter, RateLimiter
from gateway.config.settings import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from gateway.config.settings import Settings


def find_rate_limit_setting_problems(settings: Settings) -> Iterator[str]:
    """Yields the settings with which the limit would not hold, as messages for the operator."""
    limits, server = settings.limits, settings.server
    if not limits.url.startswith("memory://"):
        from gateway.admission.limits.redis_connection import find_redis_url_problems  # noqa: PLC0415 - see the package

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
