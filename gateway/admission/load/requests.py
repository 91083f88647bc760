"""Bounds on requests: the memory for their bodies, and how many of them run."""

import asyncio
from collections import Counter, deque
from collections.abc import Hashable
from contextlib import suppress
from math import ceil
from typing import Literal
from weakref import WeakValueDictionary

import msgspec

from gateway.admission.load.connections import TrackedConnection
from gateway.config.settings import Load as LoadSettings
from mappings import errors
from mappings.failures import Halted

WaiterState = Literal["waiting", "running", "shed", "finished"]


class Waiter(msgspec.Struct, eq=False):
    merchant: str
    sequence_number: int
    state: WaiterState = "waiting"
    wakeup: asyncio.Future[None] | None = None
    """Ends with the state in which the request waits."""

    def change_state(self, state: WaiterState) -> None:
        self.state = state
        # A timeout may have ended the wait in the same round of the event loop.
        if self.wakeup is not None and not self.wakeup.done():
            self.wakeup.set_result(None)


class FairLimiter:
    """Decides which requests run, wait or are shed, in a way that is fair between merchants.

    Requests of one merchant run in the order of their arrival. Among merchants, the one with the
    fewest running requests is next, so slow requests of one merchant delay only that merchant's.
    """

    def __init__(self, limits: LoadSettings) -> None:
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
            waiter.state = "running"
        elif not self._can_wait(merchant):
            waiter.state = "shed"
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
        waiter.change_state("finished")
        if state == "waiting":
            self._remove_from_queue(waiter)
        elif state == "running":
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
            or max(map(len, self._queues.values()), default=0) > queue_length + 1
        )

    def _shed_newest_of_longest_queue(self) -> None:
        """Sheds the newest request of the longest queue, so that the busiest merchant gives way."""
        longest_queue = max(self._queues.values(), key=len)
        waiter = longest_queue[-1]
        self._remove_from_queue(waiter)
        waiter.change_state("shed")

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
            waiter.change_state("running")


SMALL_BODY_BYTES = 64 * 1024


class MemoryBudget:
    """A budget of bytes for request bodies in memory.

    A body counts with its declared length before any of it is read, or else as its bytes arrive.
    One merchant gets at most half of the budget. The last eighth is reserved for small bodies, so
    that a few large, slow bodies cannot keep other clients from sending a payment.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.max_bytes_per_merchant = max_bytes // 2
        self._bytes_by_merchant: dict[str, int] = {}
        self.reserved_bytes = 0

    def try_reserve(self, merchant: str, size: int, reserved: int = 0) -> bool:
        """Reserves ``size`` bytes for a body that already has ``reserved``; False without room."""
        is_small = size + reserved <= SMALL_BODY_BYTES
        # Large bodies cannot use the last eighth.
        available_bytes = self._max_bytes if is_small else self._max_bytes - self._max_bytes // 8
        merchant_bytes = self._bytes_by_merchant.get(merchant, 0) + size
        if (
            self.reserved_bytes + size > available_bytes
            or merchant_bytes > self.max_bytes_per_merchant
        ):
            return False
        self._bytes_by_merchant[merchant] = merchant_bytes
        self.reserved_bytes += size
        return True

    def release(self, merchant: str, size: int) -> None:
        self.reserved_bytes -= size
        self._bytes_by_merchant[merchant] -= size
        # Removed at zero, so that the dict does not grow with every merchant ever served.
        if not self._bytes_by_merchant[merchant]:
            del self._bytes_by_merchant[merchant]


TOO_MANY_REASON = "too many requests wait"


class Overloaded(Halted):
    """The gateway is overloaded, and nothing was sent to the service; ``reason`` is for the log."""

    error_type = "overloaded"

    def __init__(self, reason: str, retry_after: int) -> None:
        super().__init__(errors.OVERLOADED, retry_after=retry_after)
        self.reason = reason


class LoadShedder:
    """The load limits of one process and their current use."""

    def __init__(self, settings: LoadSettings) -> None:
        self.settings = settings
        self.memory_budget = MemoryBudget(settings.held_bytes)
        self.limiter = FairLimiter(settings)
        self.shed_counts: Counter[str] = Counter()
        """Rejected requests, by reason."""
        self._read_slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def find_read_slots(self, merchant: str) -> asyncio.Semaphore:
        """Finds the semaphore of all parallel reads of a merchant.

        A request may make several at once, so that a bound on requests would not keep a merchant
        from using all connections to the service.
        """
        slots = asyncio.Semaphore(self.settings.in_flight_per_merchant)
        return self._read_slots.setdefault(merchant, slots)

    def count_shed_and_build_error(self, reason: str) -> Overloaded:
        self.shed_counts[reason] += 1
        # After this time every request that waits now has started or was rejected.
        return Overloaded(reason, max(1, ceil(self.settings.queue_seconds)))

    async def wait_for_turn(self, waiter: Waiter) -> None:
        """Waits until the waiter may run; raises Overloaded if it may not in time."""
        waiter.wakeup = asyncio.get_running_loop().create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.queue_seconds):
                await waiter.wakeup
        if shed_reason := _SHED_REASONS.get(waiter.state):
            raise self.count_shed_and_build_error(shed_reason)


_SHED_REASONS = {
    "shed": "displaced by merchants with shorter queues",
    "finished": "the client disconnected while the request waited",
    "waiting": "waited longer than load.queue_seconds",
}


class AdmissionSlot(msgspec.Struct, eq=False):
    """The slot of one request; the caller must release it in any case.

    ``holder`` is the merchant, or the client's address, that the body's memory counts for. The
    connection is attributed to the ``tenant`` when the request runs.
    """

    _load: LoadShedder
    _holder: str
    _connection: TrackedConnection | None = None
    _tenant: Hashable = None
    _reserved_bytes: int = 0
    _waiter: Waiter | None = None
    _merchant: str = ""
    """The merchant whose running requests include this one, if it did not have to wait."""

    def check_capacity(self, merchant: str) -> None:
        """Raises Overloaded if the request would be rejected after its body is read."""
        if self._load.limiter.would_shed(merchant):
            raise self._load.count_shed_and_build_error(TOO_MANY_REASON)

    @property
    def max_bytes(self) -> int:
        """The largest body that can be admitted at all, even if no other is in memory."""
        return self._load.memory_budget.max_bytes_per_merchant

    def reserve_bytes(self, size: int) -> None:
        """Reserves memory for a part of the body; raises Overloaded."""
        budget = self._load.memory_budget
        if size and not budget.try_reserve(self._holder, size, self._reserved_bytes):
            raise self._load.count_shed_and_build_error("request bodies exceed load.held_bytes")
        # Counted only after the budget accepted it, so that ``release`` returns no more than was
        # reserved.
        self._reserved_bytes += size

    def try_acquire(self, merchant: str) -> bool:
        """Takes a place among the running requests; False if none is free."""
        if not self._load.limiter.try_start(merchant):
            return False
        self._merchant = merchant
        if self._connection:
            # From here on the connection is not closed in favour of others: the request may change
            # something.
            self._connection.mark_request_running(self._tenant)
        return True

    async def acquire(self, merchant: str) -> None:
        """Waits for a place among the running requests; raises Overloaded."""
        waiter = self._waiter = self._load.limiter.admit_or_queue(merchant)
        # Shed immediately: neither a place to run nor one to wait is free.
        if waiter.state == "shed":
            raise self._load.count_shed_and_build_error(TOO_MANY_REASON)
        if waiter.state == "waiting":
            await self._load.wait_for_turn(waiter)
        if self._connection:
            self._connection.mark_request_running(self._tenant)

    def cancel_wait(self) -> None:
        """Cancels the wait of a request whose client disconnected; a running request continues."""
        if self._waiter is not None and self._waiter.state == "waiting":
            self._load.limiter.remove(self._waiter)

    def release(self) -> None:
        if self._reserved_bytes:
            self._load.memory_budget.release(self._holder, self._reserved_bytes)
            self._reserved_bytes = 0
        if self._merchant:
            self._load.limiter.end(self._merchant)
            self._merchant = ""
        elif self._waiter is not None:
            self._load.limiter.remove(self._waiter)
            self._waiter = None
