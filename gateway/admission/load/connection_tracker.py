"""Clients' connections, looked after: counted as they come and go, and ended where they have to be."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import structlog

from gateway.admission.load.connections import Bounds, Connections

LONGEST_SWEEP = 1.0
"""Seconds between two looks for connections that take too long."""

log = structlog.get_logger()


class Ends(Protocol):
    def end(self) -> None:
        """At once."""

    def is_stalled(self, now: float) -> bool:
        """Whether its client has long read nothing of what was written to it."""


One = TypeVar("One", bound=Ends)


class ConnectionTracker(Generic[One]):
    """The connections there are; ends those that take too long, or are in the way of others.

    ``clock`` is the loop's.
    """

    def __init__(self, bounds: Bounds, clock: Callable[[], float]) -> None:
        self.connections: Connections[One] = Connections(bounds)
        self.shed: Counter[str] = Counter()
        """How many connections were ended, by why."""
        self._now = clock
        self._told = 0
        self._every = min(LONGEST_SWEEP, min(bounds.head_seconds, bounds.pressed_seconds) / 4)

    def opened(self, one: One, *, shakes_hands: bool = False) -> None:
        if ended := self.connections.opened(one, self._now(), shakes_hands=shakes_hands):
            self.shed["for_others"] += 1
            ended.end()

    def shook_hands(self, one: One) -> None:
        self.connections.shook_hands(one, self._now())

    def begins(self, one: One) -> None:
        self.connections.begins_a_head(one, self._now())

    def busy(self, one: One) -> None:
        self.connections.has_a_request(one, self._now())

    def authenticated(self, one: One) -> None:
        self.connections.is_authenticated(one, self._now())

    def waits(self, one: One) -> None:
        self.connections.waits_for_the_next(one, self._now())

    def closed(self, one: One) -> None:
        self.connections.closed(one)

    async def sweep(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(self._every)
            now = self._now()
            for one in self.connections.overdue(now):
                self.shed["overdue"] += 1
                one.end()
            for one in self.connections.with_a_request():
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
                reason="too many connections; those idle longest are closed",
            )
        self._told = self.shed.total()
