"""Measures how late the event loop is, which no other metric shows: all requests wait then."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Self

from gateway.observability import metrics

INTERVAL_SECONDS = 0.25


class EventLoopLagMonitor:
    """Measures at an interval; an async context manager."""

    async def __aenter__(self) -> Self:
        self._schedule()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()

    def _schedule(self) -> None:
        # Not the loop's clock, which is read once for each round and in whole milliseconds.
        self._due_at = perf_counter() + INTERVAL_SECONDS
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_SECONDS, self._measure)

    def _measure(self) -> None:
        metrics.traffic.event_loop_lag.observe(max(perf_counter() - self._due_at, 0.0))
        # Not only at a scrape, of which there may be none.
        metrics.summarize_records()
        self._schedule()
