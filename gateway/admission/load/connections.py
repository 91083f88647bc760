"""Decides which connections are closed, at the limit and after a timeout.

At the limit, a new connection replaces another one, but never one with a running request. Connections
of unauthenticated clients and those of tenants form two groups. The larger group loses a connection: of
the address or tenant with the most connections, the one without progress for the longest time. So neither
group can starve the other, however often its closed connections are opened again. Under pressure, when
more than half of the connections are in use, the timeouts are shorter. ``ConnectionTracker`` closes
connections whose clients do not read their responses.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

PRESSED_FOR = 30
"""Pressure lasts this long after the last excess, so that the clients that caused it go too."""

One = TypeVar("One")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limit of connections, and the timeouts for a header, when idle, and under pressure."""

    most: int
    head_seconds: float
    idle_seconds: float
    pressed_seconds: float


class Phase(Enum):
    HANDSHAKE = "TLS handshake"
    SILENT = "no request yet"
    HEAD = "the head of a request is incomplete"
    REQUEST = "a request is received, waits for admission, or its response is sent"
    WORK = "a request is carried out"
    IDLE = "between requests"


@dataclass(slots=True)
class _State:
    """``since`` is the start of the phase; ``tenant`` is set once the request is authenticated."""

    address: Hashable
    phase: Phase
    since: float
    tenant: Hashable = None


class Connections(Generic[One]):
    """The open connections and their phases. ``now`` is in seconds and never goes backwards."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._pressed_until = float("-inf")
        self._states: dict[One, _State] = {}
        # Connections that may be closed, by address or tenant, the longest without progress first.
        self._strangers: dict[Hashable, dict[One, float]] = {}
        self._tenants: dict[Hashable, dict[One, float]] = {}

    def __len__(self) -> int:
        return len(self._states)

    def open(
        self, one: One, now: float, address: Hashable = None, *, shakes_hands: bool = False
    ) -> One | None:
        """Add a connection; return the one to close for it, which may be the new one itself."""
        replaced = None
        if len(self) >= self._bounds.most:
            replaced = self._choose_replaceable()
            if replaced is None:
                return one
            self.close(replaced)
        phase = Phase.HANDSHAKE if shakes_hands else Phase.SILENT
        state = self._states[one] = _State(address, phase, now)
        self._join_group(one, state, now)
        self._update_pressure(now)
        return replaced

    def end_handshake(self, one: One, now: float) -> None:
        self._move(one, Phase.SILENT, now)

    def start_head(self, one: One, now: float) -> None:
        """Record the first bytes of a header; further bytes do not extend its timeout."""
        if self._phase(one) is not Phase.HEAD:
            self._move(one, Phase.HEAD, now, is_other_request=True)

    def start_request(self, one: One, now: float) -> None:
        """Record a complete header, or more of the body, which counts as progress."""
        phase = self._phase(one)
        if phase is not Phase.WORK:
            self._move(one, Phase.REQUEST, now, is_other_request=phase is not Phase.REQUEST)

    def authenticate(self, one: One, tenant: Hashable, now: float) -> None:
        state = self._states.get(one)
        if state is not None and state.phase is Phase.REQUEST:
            self._leave_group(one, state)
            state.tenant = tenant
            self._join_group(one, state, now)

    def start_work(self, one: One, now: float) -> None:
        self._move(one, Phase.WORK, now)

    def end_work(self, one: One, now: float) -> None:
        """Record that the response is being sent, or that the client read some of it."""
        if self._phase(one) in (Phase.WORK, Phase.REQUEST):
            self._move(one, Phase.REQUEST, now)

    def become_idle(self, one: One, now: float) -> None:
        self._move(one, Phase.IDLE, now)

    def close(self, one: One) -> None:
        if state := self._states.pop(one, None):
            self._leave_group(one, state)

    def list_with_request(self) -> list[One]:
        phases = (Phase.REQUEST, Phase.WORK)
        return [one for one, state in self._states.items() if state.phase in phases]

    def pop_overdue(self, now: float) -> list[One]:
        """Remove and return the connections whose phase has timed out."""
        self._update_pressure(now)
        most = self._bounds.pressed_seconds if self.is_pressed(now) else float("inf")
        head, idle = min(most, self._bounds.head_seconds), min(most, self._bounds.idle_seconds)
        seconds = {
            Phase.HANDSHAKE: head,
            Phase.HEAD: head,
            Phase.SILENT: idle,
            Phase.IDLE: idle,
        }
        found = [
            one
            for one, state in self._states.items()
            if now - state.since >= seconds.get(state.phase, float("inf"))
        ]
        for one in found:
            self.close(one)
        return found

    def is_pressed(self, now: float) -> bool:
        return now < self._pressed_until

    def _update_pressure(self, now: float) -> None:
        if len(self) * 2 > self._bounds.most:
            self._pressed_until = now + PRESSED_FOR

    def _choose_replaceable(self) -> One | None:
        strangers, tenants = self._strangers.values(), self._tenants.values()
        groups = strangers if sum(map(len, strangers)) >= sum(map(len, tenants)) else tenants
        if not groups:
            return None
        largest = max(groups, key=lambda group: (len(group), -next(iter(group.values()))))
        return next(iter(largest))

    def _phase(self, one: One) -> Phase | None:
        state = self._states.get(one)
        return None if state is None else state.phase

    def _move(self, one: One, phase: Phase, now: float, *, is_other_request: bool = False) -> None:
        state = self._states.get(one)
        if state is None:  # it was closed meanwhile
            return
        self._leave_group(one, state)
        state.phase, state.since = phase, now
        if is_other_request:
            state.tenant = None  # a proxy may send requests of several clients on one connection
        self._join_group(one, state, now)

    def _join_group(self, one: One, state: _State, now: float) -> None:
        if state.phase is not Phase.WORK:
            groups, holder = self._find_groups(state)
            groups.setdefault(holder, {})[one] = now

    def _leave_group(self, one: One, state: _State) -> None:
        groups, holder = self._find_groups(state)
        group = groups.get(holder, {})
        group.pop(one, None)
        if not group:
            groups.pop(holder, None)

    def _find_groups(self, state: _State) -> tuple[dict[Hashable, dict[One, float]], Hashable]:
        if state.tenant is None:
            return self._strangers, state.address
        return self._tenants, state.tenant
