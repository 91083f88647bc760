"""Logs an orderly shutdown, with the uptime and the work that it waited for."""

from __future__ import annotations

import time

import structlog

log = structlog.get_logger()


class Lifetime:
    """Measures the uptime from its creation, and the duration of the shutdown."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()
        self._waited_for: dict[str, int] = {}

    def ends(self, **waited_for: int) -> None:
        """Record the start of the shutdown, and the counts of what it waits for."""
        self._told = time.monotonic()
        self._waited_for = waited_for

    def ended(self) -> None:
        now = time.monotonic()
        log.info(
            "shutdown_complete",
            uptime_seconds=round(self._told - self._began),
            **self._waited_for,
            drain_seconds=round(now - self._told, 1),
        )
