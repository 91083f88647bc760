"""Who is carried out now, who waits, and who is sent away: by merchant, and fair between them.

Whoever comes first waits first among its own merchant's requests. Among merchants the next place
goes to the one that has the fewest: one whose requests take long keeps its own waiting, and no
other's.
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
    """How many requests may go and wait: in all, and of one merchant."""

    going: int
    going_per_merchant: int
    waiting: int
    waiting_per_merchant: int


class FairLimiter:
    """Every method that changes the standing of others' tickets returns these."""

    def __init__(self, room: LimiterCapacity) -> None:
        self._room = room
        self._numbers = 0
        self.going = 0
        """How many go, of all merchants."""
        self._going: Counter[str] = Counter()
        self._queues: dict[str, deque[Waiter]] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def would_shed(self, merchant: str) -> bool:
        """Whether a request that came now would be sent away."""
        return not self._may_go(merchant) and not self._may_wait(merchant)

    def ask(self, merchant: str) -> tuple[Waiter, list[Waiter]]:
        """A new request's ticket, and those that it displaced."""
        self._numbers += 1
        ticket = Waiter(merchant, self._numbers)
        if self._may_go(merchant):
            self._go(ticket)
            return ticket, []
        if not self._may_wait(merchant):
            ticket.standing = WaiterState.SHED
            return ticket, []
        displaced = [self._displace()] if self.waiting >= self._room.waiting else []
        self._queues.setdefault(merchant, deque()).append(ticket)
        return ticket, displaced

    def leave(self, ticket: Waiter) -> list[Waiter]:
        """It is done, or does not want to wait any more; those that may go now."""
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
        # Where somebody waits of whom more may go, all places are taken.
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
        """The newest of the longest queue: whoever asks for most gives way to who asks for little."""
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
