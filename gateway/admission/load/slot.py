"""The admission of a request: the memory for its body and a place among the running requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from math import ceil
from typing import TYPE_CHECKING, Protocol

from gateway.admission.load.fair_limiter import FairLimiter, LimiterCapacity, Waiter, WaiterState
from gateway.admission.load.memory_budget import MemoryBudget
from mappings import errors
from mappings.failures import Halted

if TYPE_CHECKING:
    from gateway.config.settings import Load as LoadSettings

TOO_MANY = "too many requests wait"


class Overloaded(Halted):
    """The gateway is overloaded; nothing was sent to the service. ``reason`` is for the log."""

    error_type = "overloaded"

    def __init__(self, why: str, retry_after: int) -> None:
        super().__init__(errors.OVERLOADED, retry_after=retry_after)
        self.why = why


class RequestConnection(Protocol):
    """The connection of a request. It is not closed for others between these two calls."""

    def start_work(self) -> None: ...
    def end_work(self) -> None: ...


class Load:
    """The load limits of one process and their current use."""

    def __init__(self, settings: LoadSettings) -> None:
        self.settings = settings
        self.held = MemoryBudget(settings.held_bytes)
        self.shares = FairLimiter(
            LimiterCapacity(
                settings.in_flight,
                settings.in_flight_per_merchant,
                settings.queue,
                settings.queue_per_merchant,
            )
        )
        self.shed: Counter[str] = Counter()
        """Rejected requests, by reason."""
        self._turns: dict[Waiter, asyncio.Future[str]] = {}

    def stay(self, holder: str, connection: RequestConnection | None = None) -> AdmissionSlot:
        """Create the slot of a request; the caller must release it in any case.

        ``holder`` is the merchant, or the client's address, that the body's memory counts for.
        """
        return AdmissionSlot(self, holder, connection)

    def overloaded(self, why: str) -> Overloaded:
        self.shed[why] += 1
        # After this time every request that waits now has started or was rejected.
        return Overloaded(why, max(1, ceil(self.settings.queue_seconds)))

    def ask(self, merchant: str) -> Waiter:
        ticket, displaced = self.shares.ask(merchant)
        for one in displaced:
            self.tell(one, "displaced by merchants with shorter queues")
        return ticket

    async def turn(self, ticket: Waiter) -> None:
        """Wait until the waiter may run; raises Overloaded if it may not in time."""
        turn = self._turns[ticket] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self.settings.queue_seconds):
                why = await turn
        except TimeoutError:
            why = "waited longer than load.queue_seconds"
        finally:
            del self._turns[ticket]
        if why:
            raise self.overloaded(why)

    def tell(self, ticket: Waiter, why: str = "") -> None:
        """Wake a waiter to run, or to fail if there is a reason."""
        turn = self._turns.get(ticket)
        if turn is not None and not turn.done():
            turn.set_result(why)

    def leave(self, ticket: Waiter) -> None:
        for one in self.shares.leave(ticket):
            self.tell(one)


class AdmissionSlot:
    """The slot of one request; see ``LoadShedder.create_slot``."""

    def __init__(self, load: Load, holder: str, connection: RequestConnection | None) -> None:
        self._load = load
        self._holder = holder
        self._connection = connection
        self._bytes = 0
        self._ticket: Waiter | None = None

    def check(self, merchant: str) -> None:
        """Raise Overloaded if the request would be rejected anyway, before its body is read."""
        if self._load.shares.would_shed(merchant):
            raise self._load.overloaded(TOO_MANY)

    @property
    def most_bytes(self) -> int:
        """The largest body that can be admitted at all, even if no other is in memory."""
        return self._load.held.most_per_merchant

    def hold(self, size: int) -> None:
        """Reserve memory for a part of the body; raises Overloaded."""
        if size and not self._load.held.take(self._holder, size, self._bytes):
            raise self._load.overloaded("request bodies exceed load.held_bytes")
        self._bytes += size

    async def begin(self, merchant: str) -> None:
        """Wait for a place among the running requests; raises Overloaded."""
        ticket = self._ticket = self._load.ask(merchant)
        # Shed immediately: neither a place to run nor one to wait is free.
        if ticket.standing is WaiterState.SHED:
            raise self._load.overloaded(TOO_MANY)
        if ticket.standing is WaiterState.WAITS:
            await self._load.turn(ticket)
        if self._connection:
            self._connection.start_work()

    def forsake(self) -> None:
        """Cancel the wait of a request whose client disconnected; a running request continues."""
        if self._ticket is not None:
            self._load.tell(self._ticket, "the client disconnected while the request waited")

    def end(self) -> None:
        if self._bytes:
            self._load.held.give_back(self._holder, self._bytes)
            self._bytes = 0
        if self._ticket is not None:
            self._load.leave(self._ticket)
            self._ticket = None
            if self._connection:
                self._connection.end_work()
