"""A request's stay: the bytes of its body, and a place among those that are carried out."""

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
    """There is more to do than can be done; nothing was sent. ``why`` is for the log."""

    error_type = "overloaded"

    def __init__(self, why: str, retry_after: int) -> None:
        super().__init__(errors.OVERLOADED, retry_after=retry_after)
        self.why = why


class RequestConnection(Protocol):
    """The connection of a request. While that is carried out it is not closed to make room."""

    def start_work(self) -> None: ...
    def end_work(self) -> None: ...


class Load:
    """What one process has to do at once."""

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
        """How many requests were sent away, by why."""
        self._turns: dict[Waiter, asyncio.Future[str]] = {}

    def stay(self, holder: str, connection: RequestConnection | None = None) -> AdmissionSlot:
        """A request's, for whom its body is held; to be ended, whatever becomes of it."""
        return AdmissionSlot(self, holder, connection)

    def overloaded(self, why: str) -> Overloaded:
        self.shed[why] += 1
        # By then everybody who waits now has gone, or was sent away.
        return Overloaded(why, max(1, ceil(self.settings.queue_seconds)))

    def ask(self, merchant: str) -> Waiter:
        ticket, displaced = self.shares.ask(merchant)
        for one in displaced:
            self.tell(one, "others wait who ask for less")
        return ticket

    async def turn(self, ticket: Waiter) -> None:
        """Returns when it is this ticket's; raises Overloaded."""
        turn = self._turns[ticket] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self.settings.queue_seconds):
                why = await turn
        except TimeoutError:
            why = "it waited too long"
        finally:
            del self._turns[ticket]
        if why:
            raise self.overloaded(why)

    def tell(self, ticket: Waiter, why: str = "") -> None:
        """That it is its turn, or why it will not be."""
        turn = self._turns.get(ticket)
        if turn is not None and not turn.done():
            turn.set_result(why)

    def leave(self, ticket: Waiter) -> None:
        for one in self.shares.leave(ticket):
            self.tell(one)


class AdmissionSlot:
    """Made by ``Load.stay``."""

    def __init__(self, load: Load, holder: str, connection: RequestConnection | None) -> None:
        self._load = load
        self._holder = holder
        self._connection = connection
        self._bytes = 0
        self._ticket: Waiter | None = None

    def check(self, merchant: str) -> None:
        """Raises Overloaded where there is no use in reading the body first."""
        if self._load.shares.would_shed(merchant):
            raise self._load.overloaded(TOO_MANY)

    @property
    def most_bytes(self) -> int:
        """What a request can hold at most: more is refused however little others hold."""
        return self._load.held.most_per_merchant

    def hold(self, size: int) -> None:
        """Raises Overloaded."""
        if size and not self._load.held.take(self._holder, size, self._bytes):
            raise self._load.overloaded("too many bytes of bodies are held")
        self._bytes += size

    async def begin(self, merchant: str) -> None:
        """Returns when it is this request's turn; raises Overloaded."""
        ticket = self._ticket = self._load.ask(merchant)
        if ticket.standing is WaiterState.SHED:
            raise self._load.overloaded(TOO_MANY)
        if ticket.standing is WaiterState.WAITS:
            await self._load.turn(ticket)
        if self._connection:
            self._connection.start_work()

    def forsake(self) -> None:
        """Its client does not wait any more: it gives up its turn, but not what is under way."""
        if self._ticket is not None:
            self._load.tell(self._ticket, "its client went away while it waited")

    def end(self) -> None:
        if self._bytes:
            self._load.held.give_back(self._holder, self._bytes)
            self._bytes = 0
        if self._ticket is not None:
            self._load.leave(self._ticket)
            self._ticket = None
            if self._connection:
                self._connection.end_work()
