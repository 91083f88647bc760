"""Which connections are kept, and which are ended to make place or because they take too long.

A connection with a request under way whose client has proven who it is gives no place to others. Of
the others those go first that have proven nothing (still in their TLS handshake, silent, in the middle of
a header, or with a request that is not authenticated), and then those that wait for their next one; in
each case whoever has waited longest. Under pressure, when more than half of the connections are taken,
none of them may take its time. A client that does not read its answer is ended by ``Guests``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, TypeVar

PRESSED_FOR = 30
"""Seconds that pressure lasts after there were too many: who came with them goes with them."""

One = TypeVar("One")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many connections, and the seconds for a header, between requests, and under pressure."""

    most: int
    head_seconds: float
    idle_seconds: float
    pressed_seconds: float


class Connections(Generic[One]):
    """``now`` is any clock's, in seconds; it never goes back."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._pressed_until = float("-inf")
        # Each in the order of since when: the first has been there the longest.
        self._shaking: dict[One, float] = {}
        self._silent: dict[One, float] = {}
        self._heads: dict[One, float] = {}
        self._idle: dict[One, float] = {}
        self._unproven: dict[One, float] = {}
        """With a request under way whose client has not proven who it is."""
        self._busy: dict[One, float] = {}
        self._where: dict[One, dict[One, float]] = {}
        """In which of them each one is."""

    def __len__(self) -> int:
        return len(self._where)

    def opened(self, one: One, now: float, *, shakes_hands: bool = False) -> One | None:
        """A new connection; the one that is to be ended for it, which may be itself."""
        ended = self._longest_waiting() if len(self) >= self._bounds.most else None
        if len(self) >= self._bounds.most and ended is None:
            return one
        if ended is not None:
            self.closed(ended)
        self._puts(one, self._shaking if shakes_hands else self._silent, now)
        self._feel(now)
        return ended

    def shook_hands(self, one: One, now: float) -> None:
        self._moves(one, self._silent, now)

    def begins_a_head(self, one: One, now: float) -> None:
        """Some of a request came; that more of it comes gives it no more time."""
        if one not in self._heads:
            self._moves(one, self._heads, now)

    def has_a_request(self, one: One, now: float) -> None:
        """More of its body, or another request behind it, changes nothing."""
        if one not in self._busy and one not in self._unproven:
            self._moves(one, self._unproven, now)

    def is_authenticated(self, one: One, now: float) -> None:
        if one in self._unproven:
            self._moves(one, self._busy, now)

    def with_a_request(self) -> list[One]:
        return [*self._unproven, *self._busy]

    def waits_for_the_next(self, one: One, now: float) -> None:
        self._moves(one, self._idle, now)

    def closed(self, one: One) -> None:
        if (kind := self._where.pop(one, None)) is not None:
            del kind[one]

    def overdue(self, now: float) -> list[One]:
        """Those that took too long; they are not among the connections any more."""
        self._feel(now)
        found = list(self._overdue(now))
        for one in found:
            self.closed(one)
        return found

    def is_pressed(self, now: float) -> bool:
        return now < self._pressed_until

    def _feel(self, now: float) -> None:
        if len(self) * 2 > self._bounds.most:
            self._pressed_until = now + PRESSED_FOR

    def _overdue(self, now: float) -> Iterator[One]:
        bounds = self._bounds
        most = bounds.pressed_seconds if self.is_pressed(now) else float("inf")
        head, idle = min(most, bounds.head_seconds), min(most, bounds.idle_seconds)
        for kind, seconds in (
            (self._shaking, head),
            (self._heads, head),
            (self._silent, idle),
            (self._idle, idle),
        ):
            yield from takewhile(lambda one: now - kind[one] >= seconds, kind)  # noqa: B023 - used at once

    def _longest_waiting(self) -> One | None:
        kinds = (self._shaking, self._silent, self._heads, self._unproven)
        strangers = [kind for kind in kinds if kind]
        firsts = [next(iter(kind.items())) for kind in strangers]
        if firsts:
            return min(firsts, key=lambda one: one[1])[0]
        return next(iter(self._idle), None)

    def _moves(self, one: One, kind: dict[One, float], now: float) -> None:
        if (before := self._where.get(one)) is not None:  # and not one that was ended meanwhile
            del before[one]
            self._puts(one, kind, now)

    def _puts(self, one: One, kind: dict[One, float], now: float) -> None:
        kind[one] = now
        self._where[one] = kind
