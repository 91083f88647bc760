"""Tracks client connections; closes those that are too slow or are replaced at the limit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

import structlog

from gateway.admission.load.connections import ConnectionBounds, ConnectionTable

MAX_SWEEP_INTERVAL_SECONDS = 1.0
"""The longest interval between two searches for connections that are too slow."""

log = structlog.get_logger()


class ClientConnection(Protocol):
    def abort(self) -> None:
        """Closes immediately, without waiting for buffered data."""

    def is_stalled(self, now: float) -> bool:
        """Whether the client has stopped reading its response."""


ConnectionT = TypeVar("ConnectionT", bound=ClientConnection)


class ConnectionTracker(Generic[ConnectionT]):
    """Tracks the phases of connections, and closes those that are overdue or replaced.

    ``clock`` is the event loop's.
    """

    def __init__(self, bounds: ConnectionBounds, clock: Callable[[], float]) -> None:
        self.connections: ConnectionTable[ConnectionT] = ConnectionTable(bounds)
        self.closed_counts: Counter[str] = Counter()
        """Number of closed connections, by reason."""
        self._clock = clock
        self._logged_closed_count = 0
        self._sweep_interval_seconds = min(
            MAX_SWEEP_INTERVAL_SECONDS, min(bounds.head_seconds, bounds.pressed_seconds) / 4
        )

    def register_connection(
        self, connection: ConnectionT, address: Hashable, *, shakes_hands: bool = False
    ) -> None:
        now = self._clock()
        if replaced := self.connections.add_and_return_displaced_connection(
            connection, now, address, shakes_hands=shakes_hands
        ):
            self.closed_counts["for_others"] += 1
            replaced.abort()

    async def close_slow_connections_periodically(self) -> None:
        """Closes slow connections periodically, until cancelled."""
        while True:
            await asyncio.sleep(self._sweep_interval_seconds)
            now = self._clock()
            for connection in self.connections.pop_overdue_connections(now):
                self.closed_counts["overdue"] += 1
                connection.abort()
            for connection in self.connections.list_connections_with_request():
                if connection.is_stalled(now):
                    self.closed_counts["unread"] += 1
                    connection.abort()
            self._log_closed_connections()

    def _log_closed_connections(self) -> None:
        """Logs closed connections only under pressure: an idle timeout alone is normal."""
        if (
            self.connections.is_under_connection_pressure(self._clock())
            and self.closed_counts.total() > self._logged_closed_count
        ):
            log.warning(
                "connections_shed",
                connections=len(self.connections),
                closed_since_start=dict(self.closed_counts),
                reason="too many connections; those without progress for longest are closed",
            )
        self._logged_closed_count = self.closed_counts.total()
