"""Logs an orderly shutdown, with the uptime and the work that it waited for."""

from __future__ import annotations

import time

import structlog

log = structlog.get_logger()


class ProcessLifetime:
    """Measures the uptime from its creation, and the duration of the shutdown."""

    def __init__(self) -> None:
        self._started_at = self._shutdown_at = time.monotonic()
        self._pending_counts: dict[str, int] = {}

    def record_shutdown_start(self, **pending_counts: int) -> None:
        """Record the start of the shutdown, and the counts of what it waits for."""
        self._shutdown_at = time.monotonic()
        self._pending_counts = pending_counts

    def log_shutdown_complete(self) -> None:
        now = time.monotonic()
        log.info(
            "shutdown_complete",
            uptime_seconds=round(self._shutdown_at - self._started_at),
            **self._pending_counts,
            drain_seconds=round(now - self._shutdown_at, 1),
        )
