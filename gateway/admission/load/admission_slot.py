"""The admission of a request: the memory for its body and a place among the running requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING

import msgspec

from gateway.admission.load.connections import TrackedConnection
from gateway.admission.load.fair_limiter import (
    FINISHED,
    SHED,
    WAITING,
    FairLimiter,
    Waiter,
)
from mappings import errors
from mappings.failures import Halted

if TYPE_CHECKING:
    from gateway.config.settings import Load as LoadSettings


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
        self._bytes_by_merchant: Counter[str] = Counter()
        self.reserved_bytes = 0

    def try_reserve(self, merchant: str, size: int, reserved: int = 0) -> bool:
        """Reserves ``size`` bytes for a body that already has ``reserved``; False without room."""
        is_small = size + reserved <= SMALL_BODY_BYTES
        # Large bodies cannot use the last eighth.
        available_bytes = self._max_bytes if is_small else self._max_bytes - self._max_bytes // 8
        if (
            self.reserved_bytes + size > available_bytes
            or self._bytes_by_merchant[merchant] + size > self.max_bytes_per_merchant
        ):
            return False
        self._bytes_by_merchant[merchant] += size
        self.reserved_bytes += size
        return True

    def release(self, merchant: str, size: int) -> None:
        self.reserved_bytes -= size
        self._bytes_by_merchant[merchant] -= size
        # Removed at zero, so that the counter does not grow with every merchant ever served.
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
    SHED: "displaced by merchants with shorter queues",
    FINISHED: "the client disconnected while the request waited",
    WAITING: "waited longer than load.queue_seconds",
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
        if waiter.state is SHED:
            raise self._load.count_shed_and_build_error(TOO_MANY_REASON)
        if waiter.state is WAITING:
            await self._load.wait_for_turn(waiter)
        if self._connection:
            self._connection.mark_request_running(self._tenant)

    def cancel_wait(self) -> None:
        """Cancels the wait of a request whose client disconnected; a running request continues."""
        if self._waiter is not None and self._waiter.state is WAITING:
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
