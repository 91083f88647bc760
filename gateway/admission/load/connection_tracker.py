"""Tracks client connections; closes those that are too slow or are replaced at the limit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

import structlog

from gateway.admission.load.connections import Bounds, Connections

LONGEST_SWEEP = 1.0
"""The longest interval between two searches for connections that are too slow."""

PAUSE = 3.0
"""If two searches are further apart than this, the process was stopped or starved of CPU."""

log = structlog.get_logger()


class ClientConnection(Protocol):
    def end(self) -> None:
        """Close immediately, without waiting for buffered data."""

    def is_stalled(self, now: float) -> bool:
        """Return whether the client has stopped reading its response."""


One = TypeVar("One", bound=ClientConnection)


class ConnectionTracker(Generic[One]):
    """Tracks the phases of connections and closes those that have to go.

    ``clock`` is the event loop's.
    """

    def __init__(self, bounds: Bounds, clock: Callable[[], float]) -> None:
        self.connections: Connections[One] = Connections(bounds)
        self.shed: Counter[str] = Counter()
        """How many connections were closed, by reason."""
        self._now = clock
        self._ticks: tuple[float, ...] = ()
        """Start times of the last two sweeps."""
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
        """Return the earliest time at which a request that is read now can have arrived.

        The kernel accepts bytes while the process is stopped. Bytes that are read within a second after
        a pause may have arrived before it.
        """
        now = self._now()
        times = (*self._ticks, now)
        paused = (before for before, after in pairwise(times) if after - before > PAUSE)
        return next(paused, now)

    async def sweep(self) -> None:
        """Close slow connections periodically, until cancelled."""
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
        """Log closed connections only under pressure: an idle timeout alone is normal."""
        if self.connections.is_pressed(self._now()) and self.shed.total() > self._told:
            log.warning(
                "connections_shed",
                connections=len(self.connections),
                closed_since_start=dict(self.shed),
                reason="too many connections; those without progress for longest are closed",
            )
        self._told = self.shed.total()
