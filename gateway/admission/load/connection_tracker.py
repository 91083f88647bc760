"""Clients' connections: counted, and closed if they take too long or others need the room."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

import structlog

from gateway.admission.load.connections import Bounds, Connections

LONGEST_SWEEP = 1.0
"""Seconds between two looks for connections that take too long."""

PAUSE = 3.0
"""Seconds without such a look after which the process was stopped, or kept from running."""

log = structlog.get_logger()


class ClientConnection(Protocol):
    def end(self) -> None:
        """At once."""

    def is_stalled(self, now: float) -> bool:
        """Whether its client has long read nothing of what was written to it."""


One = TypeVar("One", bound=ClientConnection)


class ConnectionTracker(Generic[One]):
    """The clients' connections; closes those that take too long, or that others need the room of.

    ``clock`` is the loop's.
    """

    def __init__(self, bounds: Bounds, clock: Callable[[], float]) -> None:
        self.connections: Connections[One] = Connections(bounds)
        self.shed: Counter[str] = Counter()
        """How many connections were closed, by reason."""
        self._now = clock
        self._ticks: tuple[float, ...] = ()
        """When the last two sweeps began."""
        self._told = 0
        self._every = min(LONGEST_SWEEP, min(bounds.head_seconds, bounds.pressed_seconds) / 4)

    def open(self, one: One, address: Hashable, *, shakes_hands: bool = False) -> None:
        now = self._now()
        if replaced := self.connections.open(one, now, address, shakes_hands=shakes_hands):
            self.shed["for_others"] += 1
            replaced.end()

    def end_handshake(self, one: One) -> None:
        self.connections.end_handshake(one, self._now())

    def start_head(self, one: One) -> None:
        self.connections.start_head(one, self._now())

    def start_request(self, one: One) -> None:
        self.connections.start_request(one, self._now())

    def authenticate(self, one: One, tenant: Hashable) -> None:
        self.connections.authenticate(one, tenant, self._now())

    def start_work(self, one: One) -> None:
        self.connections.start_work(one, self._now())

    def end_work(self, one: One) -> None:
        self.connections.end_work(one, self._now())

    def become_idle(self, one: One) -> None:
        self.connections.become_idle(one, self._now())

    def close(self, one: One) -> None:
        self.connections.close(one)

    def estimate_arrival(self) -> float:
        """When a request that is read now may have come: before a pause of the process, if there was one.

        The system takes bytes while a process is stopped. What comes in the second after a pause cannot be
        told apart from that.
        """
        now = self._now()
        times = (*self._ticks, now)
        paused = (before for before, after in pairwise(times) if after - before > PAUSE)
        return next(paused, now)

    async def sweep(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(self._every)
            now = self._now()
            self._ticks = (*self._ticks[-1:], now)
            for one in self.connections.pop_overdue(now):
                self.shed["overdue"] += 1
                one.end()
            for one in self.connections.list_with_request():
                if one.is_stalled(now):
                    self.shed["unread"] += 1
                    one.end()
            self._tell()

    def _tell(self) -> None:
        """Of many; that a client waits in vain for its next request is nothing."""
        if self.connections.is_pressed(self._now()) and self.shed.total() > self._told:
            log.warning(
                "connections_shed",
                connections=len(self.connections),
                closed_since_start=dict(self.shed),
                reason="too many connections; those without progress for longest are closed",
            )
        self._told = self.shed.total()
