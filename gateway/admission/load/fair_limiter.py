"""A concurrency limiter that is fair between merchants.

Requests of one merchant run in the order of their arrival. Among merchants, the one with the fewest
running requests is next, so slow requests of one merchant delay only that merchant's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum

import msgspec

from gateway.config.settings import Load


class WaiterState(Enum):
    WAITING = "waits"
    RUNNING = "goes"
    SHED = "shed"
    FINISHED = "over"


# Finding a member of an enumeration runs Python code, several times for each request.
WAITING, RUNNING = WaiterState.WAITING, WaiterState.RUNNING
SHED, FINISHED = WaiterState.SHED, WaiterState.FINISHED


class Waiter(msgspec.Struct, eq=False):
    merchant: str
    sequence_number: int
    state: WaiterState = WAITING
    wakeup: asyncio.Future[None] | None = None
    """Ends with the state in which the request waits."""

    def change_state(self, state: WaiterState) -> None:
        self.state = state
        # A timeout may have ended the wait in the same round of the event loop.
        if self.wakeup is not None and not self.wakeup.done():
            self.wakeup.set_result(None)


class FairLimiter:
    """Decides which requests run, wait or are shed."""

    def __init__(self, limits: Load) -> None:
        self._limits = limits
        self._last_sequence_number = 0
        self.running_count = 0
        """Running requests of all merchants."""
        # No Counter, whose deletion runs Python code.
        self._running_by_merchant: dict[str, int] = {}
        self._queues: dict[str, deque[Waiter]] = {}

    @property
    def waiting_count(self) -> int:
        return sum(map(len, self._queues.values()))

    def would_shed(self, merchant: str) -> bool:
        """Whether a request that arrives now would be rejected."""
        return not self._can_run(merchant) and not self._can_wait(merchant)

    def try_start(self, merchant: str) -> bool:
        """Starts a request, if it need not wait; ``end`` has to follow."""
        # A request cannot overtake others: while a merchant below its maximum waits, all places
        # are taken.
        limits, running_here = self._limits, self._running_by_merchant.get(merchant, 0)
        if self.running_count >= limits.in_flight or running_here >= limits.in_flight_per_merchant:
            return False
        self.running_count += 1
        self._running_by_merchant[merchant] = running_here + 1
        return True

    def end(self, merchant: str) -> None:
        """Ends a running request, so that others may start."""
        self.running_count -= 1
        if (count := self._running_by_merchant[merchant] - 1) > 0:
            self._running_by_merchant[merchant] = count
        else:
            del self._running_by_merchant[merchant]
        if self._queues:
            self._start_waiters()

    def admit_or_queue(self, merchant: str) -> Waiter:
        self._last_sequence_number += 1
        waiter = Waiter(merchant, self._last_sequence_number)
        if self.try_start(merchant):
            waiter.state = RUNNING
        elif not self._can_wait(merchant):
            waiter.state = SHED
        else:
            # If the queue is full, the merchant with the longest queue gives up a place to this
            # one.
            if self.waiting_count >= self._limits.queue:
                self._shed_newest_of_longest_queue()
            self._queues.setdefault(merchant, deque()).append(waiter)
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """Removes a finished or cancelled request, so that others may start."""
        state = waiter.state
        waiter.change_state(FINISHED)
        if state is WAITING:
            self._remove_from_queue(waiter)
        elif state is RUNNING:
            self.end(waiter.merchant)

    def _can_run(self, merchant: str) -> bool:
        return (
            self.running_count < self._limits.in_flight
            and self._running_by_merchant.get(merchant, 0) < self._limits.in_flight_per_merchant
        )

    def _can_wait(self, merchant: str) -> bool:
        # A merchant's own maximum applies even while the total queue is empty.
        queue_length = len(self._queues.get(merchant, ()))
        if queue_length >= self._limits.queue_per_merchant:
            return False
        return (
            self.waiting_count < self._limits.queue
            or self._get_longest_queue_length() > queue_length + 1
        )

    def _get_longest_queue_length(self) -> int:
        return max(map(len, self._queues.values()), default=0)

    def _shed_newest_of_longest_queue(self) -> None:
        """Sheds the newest request of the longest queue, so that the busiest merchant gives way."""
        longest_queue = max(self._queues.values(), key=len)
        waiter = longest_queue[-1]
        self._remove_from_queue(waiter)
        waiter.change_state(SHED)

    def _remove_from_queue(self, waiter: Waiter) -> None:
        queue = self._queues[waiter.merchant]
        queue.remove(waiter)
        if not queue:
            del self._queues[waiter.merchant]

    def _start_waiters(self) -> None:
        while merchants := [merchant for merchant in self._queues if self._can_run(merchant)]:
            # Sorted by running requests first, or a merchant with a long queue would get most
            # places.
            next_merchant = min(
                merchants,
                key=lambda merchant: (
                    self._running_by_merchant.get(merchant, 0),
                    self._queues[merchant][0].sequence_number,
                ),
            )
            waiter = self._queues[next_merchant][0]
            self._remove_from_queue(waiter)
            self.try_start(next_merchant)
            waiter.change_state(RUNNING)
