"""The in-process rate limiter, and the interface that all rate limiters implement."""

import math
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

WINDOW_SECONDS = 3_600
RETAINED_SECONDS = WINDOW_SECONDS + 1
"""Seconds for which the count of a second is stored: the window and the current second."""


class Admission(msgspec.Struct, frozen=True):
    """The decision for a request, and the values of its rate limit headers.

    ``reset_seconds`` is the time until ``remaining`` grows again; 0 if nothing is counted. A client
    that waits exactly that long is admitted, provided that it is the only one that uses the key.
    """

    is_admitted: bool
    limit: int
    remaining: int
    reset_seconds: int


MAX_ADDRESSES = 65_536
"""Maximum number of addresses that are counted. An attacker may have any number of them."""


class RateLimiter(Protocol):
    async def admit(self, key: str, limit: int) -> Admission:
        """Counts a request of ``key`` if ``limit`` allows it; a refused request does not count."""
        ...

    async def list_window_request_counts(self, keys: Sequence[str]) -> list[int] | None:
        """Returns the number of requests in the current window for each key.

        Returns None if the numbers of all processes are not available.
        """
        ...

    async def find_limiter_problem(self) -> str | None:
        """Returns a message for the operator if the limiter works differently than configured."""
        ...


class _RequestWindow:
    """The admitted requests of one key, by second.

    The two arrays have four bytes per entry. At most 3,601 entries are in use, and as many are not
    yet removed: less than 70 KB, independent of the limit.
    """

    __slots__ = ("_head", "_seconds", "counts", "newest_second", "oldest_second", "total")

    def __init__(self) -> None:
        self._seconds = array("I")
        self.counts = array("I")
        self._head = 0
        self.total = 0
        self.oldest_second = 0
        """The second of the oldest counted request."""
        self.newest_second = -1

    def drop_expired(self, now: int) -> None:
        oldest = now - RETAINED_SECONDS
        while self._head < len(self._seconds) and self._seconds[self._head] <= oldest:
            self.total -= self.counts[self._head]
            self._head += 1
        # Removed only when half is expired: each removal copies the rest, so this keeps the average
        # cost constant.
        if self._head > len(self._seconds) // 2:
            del self._seconds[: self._head], self.counts[: self._head]
            self._head = 0
        if self._head < len(self._seconds):
            self.oldest_second = self._seconds[self._head]

    def start_second(self, now: int) -> None:
        self.newest_second = now
        self._seconds.append(now)
        self.counts.append(0)

    def calculate_wait_seconds(self, max_count: int, now: int) -> int:
        """Returns the seconds until at most ``max_count`` requests are counted; 0 if so already."""
        remaining_count, position = self.total, self._head
        wait_seconds = 0
        # Runs more than once only after the key's limit was lowered.
        while remaining_count > max_count:
            wait_seconds = self._seconds[position] + RETAINED_SECONDS - now
            remaining_count -= self.counts[position]
            position += 1
        return wait_seconds


class InProcessRateLimiter:
    """Counts requests in this process. ``clock`` returns seconds and never goes backwards.

    Keys without a request in the last hour are dropped. If there are more than ``max_keys``, the
    key with the oldest last admission is dropped.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, max_keys: int | None = None
    ) -> None:
        self._clock = clock
        self._max_keys = max_keys
        self._started_at = math.floor(clock())
        self._last_cleanup = 0
        """The second in which idle keys were last dropped."""
        self._windows: OrderedDict[str, _RequestWindow] = OrderedDict()

    async def admit(self, key: str, limit: int) -> Admission:
        # Relative to the start, so that a second fits into the four bytes of an array entry.
        now = math.floor(self._clock()) - self._started_at
        if now != self._last_cleanup:
            self._drop_idle_keys(now)
            self._last_cleanup = now
        # Stored only if the request is admitted: refused keys must not fill the memory.
        window = self._windows.get(key) or _RequestWindow()
        if window.oldest_second + RETAINED_SECONDS <= now:
            window.drop_expired(now)
        if window.total >= limit:
            wait_seconds = RETAINED_SECONDS
            if limit > 0:
                wait_seconds = window.calculate_wait_seconds(limit - 1, now)
            return Admission(False, limit, 0, wait_seconds)
        if not window.total:
            window.oldest_second = now
        if window.newest_second < now:
            window.start_second(now)
            self._windows[key] = window
            # Both kinds of eviction rely on the order of last admissions, in seconds.
            self._windows.move_to_end(key)
            if self._max_keys is not None and len(self._windows) > self._max_keys:
                self._windows.popitem(last=False)
        window.total += 1
        window.counts[-1] += 1
        # The oldest request leaves the window first.
        reset_seconds = window.oldest_second + RETAINED_SECONDS - now
        return Admission(True, limit, limit - window.total, reset_seconds)

    async def list_window_request_counts(self, keys: Sequence[str]) -> list[int] | None:
        now = math.floor(self._clock()) - self._started_at
        counts = []
        for key in keys:
            if window := self._windows.get(key):
                window.drop_expired(now)
            counts.append(window.total if window else 0)
        return counts

    async def find_limiter_problem(self) -> str | None:
        return None

    def _drop_idle_keys(self, now: int) -> None:
        # Keys are in the order of their last admission, so this stops at the first that is not
        # idle.
        while self._windows:
            key, window = next(iter(self._windows.items()))
            if window.newest_second + RETAINED_SECONDS > now:
                return
            del self._windows[key]
