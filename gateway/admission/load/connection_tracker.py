"""Tracks client connections; closes those that are too slow or are replaced at the limit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

import structlog

from gateway.admission.load.connections import ConnectionBounds, ConnectionTable

MAX_SWEEP_INTERVAL_SECONDS = 1.0
"""The longest interval between two searches for connections that are too slow."""

PROCESS_PAUSE_SECONDS = 3.0
"""If two searches are further apart than this, the process was stopped or starved of CPU."""

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
        self._sweep_times: tuple[float, ...] = ()
        """Start times of the last two sweeps."""
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

    def mark_handshake_complete(self, connection: ConnectionT) -> None:
        self.connections.mark_handshake_complete(connection, self._clock())

    def mark_header_started(self, connection: ConnectionT) -> None:
        self.connections.mark_header_started(connection, self._clock())

    def start_request(self, connection: ConnectionT) -> None:
        self.connections.start_request(connection, self._clock())

    def attribute_to_tenant(self, connection: ConnectionT, tenant: Hashable) -> None:
        self.connections.assign_tenant(connection, tenant, self._clock())

    def mark_request_running(self, connection: ConnectionT) -> None:
        self.connections.mark_request_running(connection, self._clock())

    def mark_response_in_progress(self, connection: ConnectionT) -> None:
        self.connections.mark_response_in_progress(connection, self._clock())

    def mark_connection_idle(self, connection: ConnectionT) -> None:
        self.connections.mark_connection_idle(connection, self._clock())

    def close(self, connection: ConnectionT) -> None:
        self.connections.close(connection)

    def estimate_earliest_request_arrival(self) -> float:
        """Returns the earliest time at which a request that is read now can have arrived.

        The kernel accepts bytes while the process is stopped, so bytes that are read within a
        second after a pause may have arrived during it.
        """
        now = self._clock()
        times = (*self._sweep_times, now)
        times_before_pause = (
            earlier for earlier, later in pairwise(times) if later - earlier > PROCESS_PAUSE_SECONDS
        )
        return next(times_before_pause, now)

    async def close_slow_connections_periodically(self) -> None:
        """Closes slow connections periodically, until cancelled."""
        while True:
            await asyncio.sleep(self._sweep_interval_seconds)
            now = self._clock()
            # Two times are stored, because the next request must still see a pause that ended just
            # before this sweep.
            self._sweep_times = (*self._sweep_times[-1:], now)
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
