"""Decides which connections are closed, at the limit and after a timeout.

At the limit, a new connection replaces another one, but never one with a running request.
Connections of unauthenticated clients and those of tenants form two groups. The larger group loses
a connection: of the address or tenant with the most connections, the one without progress for the
longest time. So neither group can starve the other, however often its closed connections are opened
again. Under pressure, when more than half of the connections are in use, the timeouts are shorter.
``ConnectionTracker`` closes connections whose clients do not read their responses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from heapq import nsmallest
from operator import itemgetter
from typing import Generic, TypeVar

PRESSURE_SECONDS = 30
"""Seconds of pressure after the last excess, so that connections that caused it are closed too."""

ConnectionT = TypeVar("ConnectionT")


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """The limit of connections, and the timeouts for a header, when idle, and under pressure."""

    max_connections: int
    head_seconds: float
    idle_seconds: float
    pressed_seconds: float


class ConnectionPhase(Enum):
    HANDSHAKE = "TLS handshake"
    SILENT = "no request yet"
    HEAD = "the head of a request is incomplete"
    REQUEST = "a request is received, waits for admission, or its response is sent"
    WORK = "a request is executed"
    IDLE = "between requests"


# Finding a member of an enumeration runs Python code, several times for each request.
REQUEST, WORK, IDLE = ConnectionPhase.REQUEST, ConnectionPhase.WORK, ConnectionPhase.IDLE


@dataclass(slots=True)
class _ConnectionState:
    """A connection's phase and its start; ``tenant`` is set once the request is authenticated."""

    address: Hashable
    phase: ConnectionPhase
    since: float
    tenant: Hashable = None

    def change_phase(self, phase: ConnectionPhase, now: float, tenant: Hashable = None) -> None:
        self.phase, self.since, self.tenant = phase, now, tenant


class ConnectionTable(Generic[ConnectionT]):
    """The open connections and their phases. ``now`` is in seconds and never goes backwards."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self._bounds = bounds
        self._pressed_until = float("-inf")
        self._states: dict[ConnectionT, _ConnectionState] = {}
        self._found_to_replace: list[tuple[float, ConnectionT]] = []

    def __len__(self) -> int:
        return len(self._states)

    def add_and_return_displaced_connection(
        self,
        connection: ConnectionT,
        now: float,
        address: Hashable = None,
        *,
        shakes_hands: bool = False,
    ) -> ConnectionT | None:
        """Adds a connection; returns the one to close for it, which may be the new one itself."""
        replaced = None
        if len(self) >= self._bounds.max_connections:
            replaced = self._select_connection_to_replace()
            if replaced is None:
                return connection
            self.close(replaced)
        phase = ConnectionPhase.HANDSHAKE if shakes_hands else ConnectionPhase.SILENT
        self._states[connection] = _ConnectionState(address, phase, now)
        self._extend_pressure_if_crowded(now)
        return replaced

    def mark_handshake_complete(self, connection: ConnectionT, now: float) -> None:
        if (state := self._states.get(connection)) is not None:
            state.change_phase(ConnectionPhase.SILENT, now)

    def mark_header_started(self, connection: ConnectionT, now: float) -> None:
        """Records the first bytes of a header; further bytes do not extend its timeout."""
        state = self._states.get(connection)
        if state is not None and state.phase is not ConnectionPhase.HEAD:
            # Without the tenant: a proxy may send requests of several clients on one connection.
            state.change_phase(ConnectionPhase.HEAD, now)

    def start_request(self, connection: ConnectionT, now: float) -> None:
        """Records a complete header, or more of the body, which counts as progress."""
        state = self._states.get(connection)
        if state is not None and state.phase is not WORK:
            state.change_phase(REQUEST, now, state.tenant if state.phase is REQUEST else None)

    def assign_tenant(self, connection: ConnectionT, tenant: Hashable) -> None:
        """Attributes a connection to a tenant, once its request is authenticated."""
        state = self._states.get(connection)
        # Only in this phase: any other connection has been closed or carries another request.
        if state is not None and state.phase is REQUEST:
            # A check of a key is no progress.
            state.tenant = tenant

    def mark_request_running(
        self, connection: ConnectionT, now: float, tenant: Hashable = None
    ) -> None:
        if (state := self._states.get(connection)) is not None:
            state.phase, state.since, state.tenant = WORK, now, tenant or state.tenant

    def mark_response_in_progress(self, connection: ConnectionT, now: float) -> None:
        """Records that the response is being sent, or that the client read some of it."""
        state = self._states.get(connection)
        # A connection that was closed or became idle in the meantime must not count as busy again.
        if state is not None and (state.phase is WORK or state.phase is REQUEST):
            state.phase, state.since = REQUEST, now

    def mark_connection_idle(self, connection: ConnectionT, now: float) -> None:
        if (state := self._states.get(connection)) is not None:
            state.phase, state.since = IDLE, now

    def close(self, connection: ConnectionT) -> None:
        self._states.pop(connection, None)

    def list_connections_with_request(self) -> list[ConnectionT]:
        phases = (ConnectionPhase.REQUEST, ConnectionPhase.WORK)
        return [connection for connection, state in self._states.items() if state.phase in phases]

    def pop_overdue_connections(self, now: float) -> list[ConnectionT]:
        """Removes and returns the connections whose phase has timed out."""
        self._extend_pressure_if_crowded(now)
        max_seconds = (
            self._bounds.pressed_seconds if self.is_under_connection_pressure(now) else float("inf")
        )
        head_seconds, idle_seconds = (
            min(max_seconds, self._bounds.head_seconds),
            min(max_seconds, self._bounds.idle_seconds),
        )
        max_seconds_by_phase = {
            ConnectionPhase.HANDSHAKE: head_seconds,
            ConnectionPhase.HEAD: head_seconds,
            ConnectionPhase.SILENT: idle_seconds,
            ConnectionPhase.IDLE: idle_seconds,
        }
        overdue = [
            connection
            for connection, state in self._states.items()
            if now - state.since >= max_seconds_by_phase.get(state.phase, float("inf"))
        ]
        for connection in overdue:
            self.close(connection)
        return overdue

    def is_under_connection_pressure(self, now: float) -> bool:
        return now < self._pressed_until

    def _extend_pressure_if_crowded(self, now: float) -> None:
        if len(self) * 2 > self._bounds.max_connections:
            self._pressed_until = now + PRESSURE_SECONDS

    def _select_connection_to_replace(self) -> ConnectionT | None:
        while True:
            # A few are found at once, so that in a flood not each connection costs a search.
            if not self._found_to_replace:
                self._found_to_replace = self._find_connections_to_replace()
            if not self._found_to_replace:
                return None
            since, connection = self._found_to_replace.pop()
            state = self._states.get(connection)
            if state is not None and state.since == since and state.phase is not WORK:
                return connection

    def _find_connections_to_replace(self) -> list[tuple[float, ConnectionT]]:
        """Finds some connections of the largest groups, with their times; the oldest is last."""
        # A running request may move money, so its connection is never replaced.
        closable = [
            (state.tenant is not None, state.tenant or state.address, state.since, connection)
            for connection, state in self._states.items()
            if state.phase is not WORK
        ]
        # Equal numbers go against unknown clients, which can open connections without a key.
        is_authenticated = sum(each[0] for each in closable) * 2 > len(closable)
        group = [each for each in closable if each[0] is is_authenticated]
        counts = Counter(each[1] for each in group)
        most = max(counts.values(), default=0)
        candidates = [each[2:] for each in group if counts[each[1]] == most]
        count = max(1, self._bounds.max_connections // 100)
        return nsmallest(count, candidates, key=itemgetter(0))[::-1]
