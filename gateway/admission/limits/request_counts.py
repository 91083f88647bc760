"""Reads the current request counts from Redis, for displays and reports.

It uses its own connection, so that no client request waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gateway.admission.limits.redis_connection import create_redis_client

COUNT_SCRIPT = Path(__file__).with_name("count.lua").read_text("utf-8")

COUNT_BATCH_SIZE = 100
"""Keys in one script call. This is about a millisecond of Redis's time, for which requests wait."""

COUNT_TIMEOUT_SECONDS = 3.0


async def fetch_request_counts(url: str, names: Sequence[str]) -> list[int]:
    """Returns the number of requests in the current window for each Redis key.

    Raises one of ``REDIS_ERRORS``.
    """
    # Closed after each use: reports are rare, and Redis limits its connections.
    redis = create_redis_client(url)
    try:
        async with asyncio.timeout(COUNT_TIMEOUT_SECONDS):
            counts: list[int] = []
            for start in range(0, len(names), COUNT_BATCH_SIZE):
                batch = names[start : start + COUNT_BATCH_SIZE]
                counts += map(int, await redis.eval(COUNT_SCRIPT, len(batch), *batch))
            return counts
    finally:
        await redis.aclose()
