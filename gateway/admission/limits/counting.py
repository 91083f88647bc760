"""Reads the current request counts from Redis, for displays and reports.

It uses a connection of its own, so that no client request waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gateway.admission.limits.redis_line import create_redis_client

SCRIPT = Path(__file__).with_name("counted.lua").read_text("utf-8")

TOGETHER = 100
"""Keys in one script call. This is about a millisecond of Redis's time, for which requests wait."""

SECONDS = 3.0


async def fetch_request_counts(url: str, names: Sequence[str]) -> list[int]:
    """Return the number of requests in the current window for each Redis key.

    Raises one of ``REDIS_ERRORS``.
    """
    redis = create_redis_client(url)
    try:
        async with asyncio.timeout(SECONDS):
            found: list[int] = []
            for at in range(0, len(names), TOGETHER):
                some = names[at : at + TOGETHER]
                found += map(int, await redis.eval(SCRIPT, len(some), *some))
            return found
    finally:
        await redis.aclose()
