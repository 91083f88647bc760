"""Decides which connections are closed, at the limit and after a timeout.

At the limit, a new connection replaces another one, but never one with a running request.
Connections of unauthenticated clients and those of tenants form two groups. The larger group loses
a connection: of the address or tenant with the most connections, the one without progress for the
longest time. So neither group can starve the other, however often its closed connections are opened
again. Under pressure, when more than half of the connections are in use, the timeouts are shorter.
``ConnectionTracker`` closes connections whose clients do not read their responses.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

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
    group: dict[Any, float] | None = None
    """The connections of one tenant or address, of which one may be closed for others."""
    groups: Any = None
    holder: Hashable = None
    """The groups of which this is one, and its key in them."""


class ConnectionTable(Generic[ConnectionT]):
    """The open connections and their phases. ``now`` is in seconds and never goes backwards."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self._bounds = bounds
        self._pressed_until = float("-inf")
        self._states: dict[ConnectionT, _ConnectionState] = {}
        # Connections that may be closed, by address or tenant, the longest without progress first.
        self._unauthenticated: dict[Hashable, dict[ConnectionT, float]] = {}
        self._authenticated: dict[Hashable, dict[ConnectionT, float]] = {}

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
        state = self._states[connection] = _ConnectionState(address, phase, now)
        self._change_phase(connection, state, phase, now)
        self._extend_pressure_if_crowded(now)
        return replaced

    def mark_handshake_complete(self, connection: ConnectionT, now: float) -> None:
        if (state := self._states.get(connection)) is not None:
            self._change_phase(connection, state, ConnectionPhase.SILENT, now)

    def mark_header_started(self, connection: ConnectionT, now: float) -> None:
        """Records the first bytes of a header; further bytes do not extend its timeout."""
        state = self._states.get(connection)
        if state is not None and state.phase is not ConnectionPhase.HEAD:
            # Without the tenant: a proxy may send requests of several clients on one connection.
            self._change_phase(connection, state, ConnectionPhase.HEAD, now)

    def start_request(self, connection: ConnectionT, now: float) -> None:
        """Records a complete header, or more of the body, which counts as progress."""
        state = self._states.get(connection)
        if state is None or state.phase is WORK:
            return
        if state.phase is IDLE:
            # It stays in its group until its request is known to be of a tenant, or is answered:
            # for most requests that is at once.
            state.phase, state.since, state.tenant = REQUEST, now, None
            return
        tenant = state.tenant if state.phase is REQUEST else None
        self._change_phase(connection, state, REQUEST, now, tenant)

    def assign_tenant(self, connection: ConnectionT, tenant: Hashable, now: float) -> None:
        """Moves a connection to the group of a tenant, once its request is authenticated."""
        state = self._states.get(connection)
        # Only in this phase: any other connection has been closed or carries another request.
        if state is not None and state.phase is REQUEST:
            # Progress is that of the phase, and a check of a key is none.
            since = state.since
            self._change_phase(connection, state, REQUEST, now, tenant)
            state.since = since

    def mark_request_running(
        self, connection: ConnectionT, now: float, tenant: Hashable = None
    ) -> None:
        # Written out, because each request does both.
        if (state := self._states.get(connection)) is not None:
            if state.group is not None:
                self._leave_group(connection, state)
            state.phase, state.since, state.tenant = WORK, now, tenant or state.tenant

    def mark_response_in_progress(self, connection: ConnectionT, now: float) -> None:
        """Records that the response is being sent, or that the client read some of it."""
        state = self._states.get(connection)
        # A connection that was closed or became idle in the meantime must not count as busy again.
        if state is not None and (state.phase is WORK or state.phase is REQUEST):
            self._change_phase(connection, state, REQUEST, now, state.tenant)

    def mark_connection_idle(self, connection: ConnectionT, now: float) -> None:
        if (state := self._states.get(connection)) is not None:
            if state.group is not None:
                self._leave_group(connection, state)
            state.phase, state.since = IDLE, now
            self._join_group(connection, state)

    def close(self, connection: ConnectionT) -> None:
        if (state := self._states.pop(connection, None)) is not None:
            # As a running request's, it is in no group.
            self._change_phase(connection, state, WORK, 0.0)

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
        unauthenticated, authenticated = (
            self._unauthenticated.values(),
            self._authenticated.values(),
        )
        # Equal numbers go against unknown clients, which can open connections without a key.
        groups = (
            unauthenticated
            if sum(map(len, unauthenticated)) >= sum(map(len, authenticated))
            else authenticated
        )
        if not groups:
            return None
        largest = max(groups, key=lambda group: (len(group), -next(iter(group.values()))))
        return next(iter(largest))

    def _change_phase(
        self,
        connection: ConnectionT,
        state: _ConnectionState,
        phase: ConnectionPhase,
        now: float,
        tenant: Hashable = None,
    ) -> None:
        """Changes the phase and the tenant, and with them the group of a connection."""
        if state.group is not None:
            self._leave_group(connection, state)
        state.phase, state.since, state.tenant = phase, now, tenant
        # A running request may move money, so its connection is in no group and is never replaced.
        if phase is not WORK:
            self._join_group(connection, state)

    def _leave_group(self, connection: ConnectionT, state: _ConnectionState) -> None:
        group, state.group = state.group or {}, None
        del group[connection]
        if not group:
            del state.groups[state.holder]

    def _join_group(self, connection: ConnectionT, state: _ConnectionState) -> None:
        groups, holder = (
            (self._unauthenticated, state.address)
            if state.tenant is None
            else (self._authenticated, state.tenant)
        )
        group = groups.get(holder)
        if group is None:
            group = groups[holder] = {}
        state.group, state.groups, state.holder = group, groups, holder
        group[connection] = state.since
