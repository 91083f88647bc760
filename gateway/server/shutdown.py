"""Start and shutdown: the signals that request it, its time limits, and the log lines of both."""

from __future__ import annotations

import asyncio
import signal
import time

import structlog

from gateway.config.settings import Settings
from gateway.upstream.http_connection import USER_AGENT

log = structlog.get_logger()

_VERSION_FIELD = {"service.version": USER_AGENT.partition("/")[2]}

SHUTDOWN_MARGIN_SECONDS = 5
"""Seconds that a shutdown waits for requests in flight, beyond the timeout of an upstream call."""


def install_shutdown_event() -> asyncio.Event:
    """Returns an event that SIGTERM and SIGINT set.

    Call it before readiness is announced: the signal may follow immediately.
    """
    shutdown_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        # signal.signal is not used, because its handler could run in the middle of a callback.
        loop.add_signal_handler(signal_number, shutdown_requested.set)
    return shutdown_requested


def calculate_max_request_seconds(settings: Settings) -> float:
    """Returns the time that a running request may take."""
    return settings.upstream.timeout_seconds + SHUTDOWN_MARGIN_SECONDS


def calculate_max_shutdown_seconds(settings: Settings) -> float:
    """Returns the maximum duration of a shutdown: some requests may still wait for admission."""
    return calculate_max_request_seconds(settings) + settings.load.queue_seconds


class ProcessLifetime:
    """Measures the uptime from its creation, and the duration of the shutdown."""

    def __init__(self) -> None:
        self._started_at = self._shutdown_at = time.monotonic()
        self._pending_counts: dict[str, int] = {}

    def log_startup_complete(self, **addresses: str) -> None:
        log.info("startup_complete", **_VERSION_FIELD, **addresses)

    def record_shutdown_start(self, **pending_counts: int) -> None:
        """Records the start of the shutdown, and the counts of requests that it waits for."""
        self._shutdown_at = time.monotonic()
        self._pending_counts = pending_counts

    def log_shutdown_complete(self) -> None:
        now = time.monotonic()
        log.info(
            "shutdown_complete",
            **_VERSION_FIELD,
            uptime_seconds=round(self._shutdown_at - self._started_at),
            **self._pending_counts,
            drain_seconds=round(now - self._shutdown_at, 1),
        )
