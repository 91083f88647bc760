"""A process's memory: what it has at its start stays, and what is free goes back to the machine."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from contextlib import suppress

from gateway.storage.periodic_tasks import PeriodicTask

YOUNG_OBJECTS = 10_000
"""More of them than were thrown away since garbage was last looked for, and it is looked for again."""

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
"""glibc's words for them (``malloc.h``)."""

LARGE_BLOCK = 128 * 1024
"""What is larger has memory of its own: it grows without being copied, and goes back when it is free.
What is not should be above the 87 KB that SQLite takes, and gives back, several times in a write.
"""

TRIM_SECONDS = 60
"""A millisecond's work, so often."""


def tune_gc() -> None:
    """What a process has now stays: to look through it for garbage again and again holds requests up.

    And what a request makes is gone with it, mostly by itself: there is less to look for than Python
    looks out for.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    with suppress(AttributeError, OSError):  # a system whose C library has no such thing
        ours = ctypes.CDLL(None).mallopt
        ours(_MMAP_THRESHOLD, LARGE_BLOCK)
        # One thread at a time runs Python: what one has freed, another is to use again.
        ours(_ARENA_MAX, 1)


def create_trim_task() -> PeriodicTask:
    """``async with`` it: a crowd leaves holes, and glibc keeps all that lies below what is in use."""
    return PeriodicTask("heap_trim", TRIM_SECONDS, _trim, at_its_end=False)


async def _trim() -> None:
    await asyncio.to_thread(trim_malloc)


def trim_malloc() -> None:
    """Whole pages of what is free."""
    with suppress(AttributeError, OSError):  # as above
        ctypes.CDLL(None).malloc_trim(0)
