"""A process's end, told in the log: that it came in order, after how long, and what it waited for."""

from __future__ import annotations

import time

import structlog

log = structlog.get_logger()


class Lifetime:
    """From when it is made. What does not end in order has other lines, or none."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()
        self._waited_for: dict[str, int] = {}

    def ends(self, **waited_for: int) -> None:
        """It was told to: of what there is still so much under way."""
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
