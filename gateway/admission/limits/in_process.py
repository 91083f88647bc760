"""The limit of one process, and what every limit answers."""

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
"""Seconds for which a second's count is kept."""


@frozen_dataclass(frozen=True, slots=True)
class Admission:
    """Whether a request is let in, and what its answer says of the limit.

    ``reset_seconds`` is when ``remaining`` begins to grow again; 0 where nothing is counted.
    ``retry_after`` is None for an admitted request. A client that waits exactly that many
    seconds, alone on its key, is admitted.
    """

    admitted: bool
    limit: int
    remaining: int
    reset_seconds: int
    retry_after: int | None


STRANGERS = 65_536
"""How many of those are counted who have no key: anybody has as many addresses, or makes up as many keys."""


class Limits(Protocol):
    async def admit(self, key: str, limit: int) -> Admission:
        """Counts a request of ``key`` where ``limit`` allows it; a refused one does not count."""
        ...

    async def counted(self, keys: Sequence[str]) -> list[int] | None:
        """How many requests of each key count at this moment; counts none itself.

        None where nobody can say it for all processes.
        """
        ...

    async def fault(self) -> str | None:
        """What is wrong with it, in words for an operator; None where all is well."""
        ...


class _Tally:
    """The admitted requests of one key, by second.

    Two arrays of four bytes an entry, at most 3,601 of which are in use: below 70 KB with as
    many that are not cut off yet, whatever the limit.
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
        """How long until no more than ``most`` are counted; 0 where that is so already."""
        counted, at = self.total, self._head
        wait = 0
        while counted > most:  # more than one turn only after the key's limit was lowered
            wait = self._seconds[at] + KEPT - now
            counted -= self._counts[at]
            at += 1
        return wait


class InProcess:
    """The limit of one process. ``clock`` gives seconds from anywhere, never backwards.

    A key without a request in the last hour is forgotten, and of more than ``most`` keys the one that
    was admitted longest ago.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, most: int | None = None
    ) -> None:
        self._clock = clock
        self._most = most
        self._began = math.floor(clock())
        self._tidied = 0
        """The second in which those without a request were last forgotten."""
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
        # Ordered by each key's last admission, so that only those to be dropped are looked at.
        while self._tallies:
            key, tally = next(iter(self._tallies.items()))
            if tally.newest + KEPT > now:
                return
            del self._tallies[key]
