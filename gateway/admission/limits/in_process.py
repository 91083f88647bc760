"""The in-process rate limiter, and the interface that all rate limiters implement."""

from __future__ import annotations

import math
import time
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from mappings.frozen import frozen_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WINDOW = 3_600
KEPT = WINDOW + 1
"""Seconds for which the count of a second is kept: the window and the second that is not over."""


@frozen_dataclass(frozen=True, slots=True)
class Admission:
    """The decision for a request, and the values of its rate limit headers.

    ``reset_seconds`` is the time until ``remaining`` grows again; 0 if nothing is counted.
    ``retry_after_seconds`` is None for an admitted request. A client that waits exactly that long
    is admitted, provided that it is the only one that uses the key.
    """

    admitted: bool
    limit: int
    remaining: int
    reset_seconds: int
    retry_after: int | None


STRANGERS = 65_536
"""Addresses that are counted at a time. An attacker has any number of them, so there is a bound."""


class Limits(Protocol):
    async def admit(self, key: str, limit: int) -> Admission:
        """Count a request of ``key`` if ``limit`` allows it; a refused request does not count."""
        ...

    async def counted(self, keys: Sequence[str]) -> list[int] | None:
        """Return the number of requests in the current window for each key.

        Returns None if the numbers of all processes are not available.
        """
        ...

    async def fault(self) -> str | None:
        """Return a message for the operator if the limiter does not work as configured, else None."""
        ...


class _Tally:
    """The admitted requests of one key, by second.

    Two arrays of four bytes an entry. At most 3,601 entries are in use and as many are not cut off
    yet: less than 70 KB, independent of the limit.
    """

    __slots__ = ("_counts", "_head", "_seconds", "total")

    def __init__(self) -> None:
        self._seconds = array("I")
        self._counts = array("I")
        self._head = 0
        self.total = 0

    @property
    def newest(self) -> int:
        return self._seconds[-1]

    def forget(self, now: int) -> None:
        while self._head < len(self._seconds) and self._seconds[self._head] + KEPT <= now:
            self.total -= self._counts[self._head]
            self._head += 1
        if self._head > len(self._seconds) // 2:
            del self._seconds[: self._head], self._counts[: self._head]
            self._head = 0

    def add(self, now: int) -> None:
        self.total += 1
        if self._seconds and self._seconds[-1] >= now:
            self._counts[-1] += 1
        else:
            self._seconds.append(now)
            self._counts.append(1)

    def seconds_until(self, most: int, now: int) -> int:
        """Return the seconds until at most ``max_count`` requests are counted; 0 if that is so now."""
        counted, at = self.total, self._head
        wait = 0
        while counted > most:  # loops more than once only after the key's limit was lowered
            wait = self._seconds[at] + KEPT - now
            counted -= self._counts[at]
            at += 1
        return wait


class InProcess:
    """Counts requests in this process. ``clock`` returns seconds and never goes backwards.

    Keys without a request in the last hour are dropped. If there are more than ``max_keys``, the key
    with the oldest last admission is dropped.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, most: int | None = None
    ) -> None:
        self._clock = clock
        self._most = most
        self._began = math.floor(clock())
        self._tidied = 0
        """The second in which idle keys were last dropped."""
        self._tallies: OrderedDict[str, _Tally] = OrderedDict()

    async def admit(self, key: str, limit: int) -> Admission:
        now = math.floor(self._clock()) - self._began
        if now != self._tidied:
            self._forget_idle(now)
            self._tidied = now
        tally = self._tallies.get(key) or _Tally()
        tally.forget(now)
        if tally.total >= limit:
            wait = tally.seconds_until(limit - 1, now) if limit > 0 else KEPT
            return Admission(False, limit, 0, wait, wait)
        tally.add(now)
        self._tallies[key] = tally
        # Both kinds of eviction rely on the order of last admissions.
        self._tallies.move_to_end(key)
        if self._most is not None and len(self._tallies) > self._most:
            self._tallies.popitem(last=False)
        reset = tally.seconds_until(tally.total - 1, now)
        return Admission(True, limit, limit - tally.total, reset, None)

    async def counted(self, keys: Sequence[str]) -> list[int] | None:
        now = math.floor(self._clock()) - self._began
        found = []
        for key in keys:
            if tally := self._tallies.get(key):
                tally.forget(now)
            found.append(tally.total if tally else 0)
        return found

    async def fault(self) -> str | None:
        return None

    def _forget_idle(self, now: int) -> None:
        # Keys are in the order of their last admission, so this stops at the first to be kept.
        while self._tallies:
            key, tally = next(iter(self._tallies.items()))
            if tally.newest + KEPT > now:
                return
            del self._tallies[key]
