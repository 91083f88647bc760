"""A concurrency limiter that is fair between merchants.

Requests of one merchant run in the order of their arrival. Among merchants, the one with the fewest
running requests is next, so slow requests of one merchant delay only that merchant's.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class WaiterState(Enum):
    WAITS = "waits"
    GOES = "goes"
    SHED = "shed"
    OVER = "over"


@dataclass(eq=False, slots=True)
class Waiter:
    merchant: str
    number: int
    standing: WaiterState = WaiterState.WAITS


@dataclass(frozen=True, slots=True)
class LimiterCapacity:
    """The maximum of running and waiting requests, in total and for each merchant."""

    going: int
    going_per_merchant: int
    waiting: int
    waiting_per_merchant: int


class FairLimiter:
    """Methods return the waiters of other requests whose state they changed."""

    def __init__(self, room: LimiterCapacity) -> None:
        self._room = room
        self._numbers = 0
        self.going = 0
        """Running requests of all merchants."""
        self._going: Counter[str] = Counter()
        self._queues: dict[str, deque[Waiter]] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def would_shed(self, merchant: str) -> bool:
        """Return whether a request that arrives now would be rejected."""
        return not self._may_go(merchant) and not self._may_wait(merchant)

    def ask(self, merchant: str) -> tuple[Waiter, list[Waiter]]:
        """Add a request; return its waiter, and the waiters that it displaced."""
        self._numbers += 1
        ticket = Waiter(merchant, self._numbers)
        if self._may_go(merchant):
            self._go(ticket)
            return ticket, []
        if not self._may_wait(merchant):
            ticket.standing = WaiterState.SHED
            return ticket, []
        # At a full queue the longest queue of a merchant gives a place to this shorter one.
        displaced = [self._displace()] if self.waiting >= self._room.waiting else []
        self._queues.setdefault(merchant, deque()).append(ticket)
        return ticket, displaced

    def leave(self, ticket: Waiter) -> list[Waiter]:
        """Remove a finished or cancelled request; return the waiters that start instead."""
        if ticket.standing is WaiterState.WAITS:
            self._drop(ticket)
        elif ticket.standing is WaiterState.GOES:
            self.going -= 1
            self._going[ticket.merchant] -= 1
            if not self._going[ticket.merchant]:
                del self._going[ticket.merchant]
        ticket.standing = WaiterState.OVER
        return list(self._called()) if self._queues else []

    def _may_go(self, merchant: str) -> bool:
        # A request cannot overtake others: while a merchant below its maximum waits, all places
        # are taken.
        room = self._room
        return self.going < room.going and self._going[merchant] < room.going_per_merchant

    def _may_wait(self, merchant: str) -> bool:
        own = len(self._queues.get(merchant, ()))
        if own >= self._room.waiting_per_merchant:
            return False
        return self.waiting < self._room.waiting or self._longest() > own + 1

    def _longest(self) -> int:
        return max(map(len, self._queues.values()), default=0)

    def _displace(self) -> Waiter:
        """Shed the newest request of the longest queue, so that the busiest merchant gives way."""
        longest = max(self._queues.values(), key=len)
        ticket = longest[-1]
        self._drop(ticket)
        ticket.standing = WaiterState.SHED
        return ticket

    def _drop(self, ticket: Waiter) -> None:
        queue = self._queues[ticket.merchant]
        queue.remove(ticket)
        if not queue:
            del self._queues[ticket.merchant]

    def _go(self, ticket: Waiter) -> None:
        self.going += 1
        self._going[ticket.merchant] += 1
        ticket.standing = WaiterState.GOES

    def _called(self) -> Iterator[Waiter]:
        while merchants := [one for one in self._queues if self._may_go(one)]:
            next_ = min(merchants, key=lambda one: (self._going[one], self._queues[one][0].number))
            ticket = self._queues[next_][0]
            self._drop(ticket)
            self._go(ticket)
            yield ticket
