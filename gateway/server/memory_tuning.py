"""Tunes garbage collection and malloc, and returns free memory to the system."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from contextlib import suppress
from functools import partial

from gateway.storage.periodic_tasks import PeriodicTask

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
