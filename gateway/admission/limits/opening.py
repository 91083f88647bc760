"""Opens the rate limiter that ``[limits] url`` configures."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.admission.limits.in_process import InProcess, Limits
from gateway.config.settings import Misconfigured

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from gateway.config.settings import Settings


def find_limit_problems(settings: Settings) -> Iterator[str]:
    """Yield the settings with which the limit would not hold, as messages for the operator."""
    limits, server = settings.limits, settings.server
    if not limits.url.startswith("memory://"):
        from gateway.admission.limits.redis_line import find_redis_url_problems  # noqa: PLC0415 - see the package

        yield from (f"limits.url: {problem}" for problem in find_redis_url_problems(limits.url))
    elif server.workers > 1 or limits.hosts > 1:
        alone = "server.workers" if server.workers > 1 else "limits.hosts"
        yield (
            f"{alone}: memory:// counts in each process separately; for several, set limits.url "
            f"to a redis:// address, or {alone} to 1"
        )


@asynccontextmanager
async def open_limits(settings: Settings, naming_key: bytes) -> AsyncIterator[Limits]:
    """Open the configured rate limiter; raises ConfigurationError.

    ``naming_key`` keys the digests that are used as Redis keys.
    """
    if found := list(find_limit_problems(settings)):
        raise Misconfigured(found)
    limits = settings.limits
    if limits.url.startswith("memory://"):
        yield InProcess()
    else:
        from gateway.admission.limits.in_redis import InRedis  # noqa: PLC0415 - see the package

        processes = settings.server.workers * limits.hosts
        async with InRedis(limits.url, naming_key, processes) as shared:
            yield shared
