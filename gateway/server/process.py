"""The process: the signals and time limits of its shutdown, garbage collection, and malloc."""

import asyncio
import ctypes
import gc
import signal
import time
from contextlib import suppress
from functools import partial

import structlog

from gateway.config.settings import Settings
from gateway.storage.periodic_tasks import PeriodicTask
from gateway.upstream.http_connection import VERSION

log = structlog.get_logger()

_VERSION_FIELD = {"service.version": VERSION}

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


GC_THRESHOLD_OBJECTS = 10_000
"""The generation 0 threshold of the garbage collector, in allocations less deallocations."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Parameter numbers of ``mallopt`` in glibc's ``malloc.h``."""

LARGE_BLOCK_BYTES = 1024 * 1024
"""Larger blocks get their own mapping: they grow without a copy, and freeing returns the memory.

Each page of a new mapping costs a page fault, which takes longer than filling it. So it must be above
the 87 KB that SQLite allocates several times for each write, and the slices of large bodies.
"""

MAX_FREE_TOP_BYTES = 16 * LARGE_BLOCK_BYTES
"""Free memory at the end of the heap above which freeing returns it: the next slice needs it again."""

TRIM_SECONDS = 60
"""Interval of ``malloc_trim``, which takes about a millisecond."""


def tune_garbage_collector_and_malloc() -> None:
    """Freezes the current objects and collects garbage less often.

    Objects that exist after the start stay alive, and scanning them again delays requests. Most
    objects of a request are freed by reference counting, so that the default threshold is too low.
    """
    # Collects first, so that no garbage is frozen.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD_OBJECTS)
    with suppress(AttributeError, OSError):  # the C library is not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, MAX_FREE_TOP_BYTES)
        # Only one thread at a time runs Python, so one arena suffices and freed memory is reused.
        mallopt(_M_ARENA_MAX, 1)


def create_trim_task() -> PeriodicTask:
    """Creates a task, for ``async with``, that trims the heap.

    After a burst of requests glibc keeps all free memory below the highest block in use.
    """
    return PeriodicTask(
        "heap_trim", TRIM_SECONDS, partial(asyncio.to_thread, trim_malloc), runs_at_stop=False
    )


def trim_malloc() -> None:
    """Returns free pages to the system."""
    with suppress(AttributeError, OSError):  # the C library is not glibc
        ctypes.CDLL(None).malloc_trim(0)
