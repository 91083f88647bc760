"""Closes client connections: at the limit, after a timeout, and those that read no response.

At the limit, a new connection replaces another one, but never one with a running request.
Connections of unauthenticated clients and those of tenants form two groups. The larger group loses
a connection: of the address or tenant with the most connections, the one without progress for the
longest time. So neither group can starve the other, however often its closed connections are opened
again. Under pressure, when more than half of the connections are in use, the timeouts are shorter.
"""

import asyncio
import resource
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from heapq import nsmallest
from operator import itemgetter
from typing import Literal

import structlog

PRESSURE_SECONDS = 30
"""Seconds of pressure after the last excess, so that connections that caused it are closed too."""

MAX_SWEEP_INTERVAL_SECONDS = 1.0
"""The longest interval between two searches for connections that are too slow."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """The limit of connections, the timeouts for a header, when idle, and under pressure, and the
    limit of long responses in memory.
    """

    max_connections: int
    head_seconds: float
    idle_seconds: float
    pressed_seconds: float
    response_bytes: int


ConnectionPhase = Literal["handshake", "silent", "head", "request", "work", "idle"]
"""During the TLS handshake; without a request yet; while a head is incomplete; while a request is
received, waits for admission, or its response is sent; while it is executed; between requests."""


class TrackedConnection:
    """A connection and its phase, which began at ``since`` by ``clock``, that of the event loop.

    ``tenant`` is that of the latest request, once this is authenticated.
    """

    address: Hashable = None
    tenant: Hashable = None
    response_bytes = 0
    """Size of the long response that is sent, all of which stays in memory until its end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.phase: ConnectionPhase = "silent"
        self.since = clock()

    @abstractmethod
    def abort(self) -> None:
        """Closes immediately, without waiting for buffered data."""

    @abstractmethod
    def is_stalled(self, now: float) -> bool:
        """Whether the client has stopped reading its response."""

    def mark_handshake_complete(self) -> None:
        self.phase, self.since = "silent", self._clock()

    def mark_header_started(self) -> None:
        """Records the first bytes of a header; further bytes do not extend its timeout."""
        if self.phase != "head":
            # Without the tenant: a proxy may send requests of several clients on one connection.
            self.phase, self.since, self.tenant = "head", self._clock(), None

    def start_request(self) -> None:
        """Records a complete header, or more of the body, which counts as progress."""
        if self.phase != "work":
            if self.phase != "request":
                self.phase, self.tenant = "request", None
            self.since = self._clock()

    def attribute_to_tenant(self, tenant: Hashable) -> None:
        """Attributes the connection to a tenant; until then it counts for its client's address."""
        if self.phase == "request":
            # A check of a key is no progress.
            self.tenant = tenant

    def mark_request_running(self, tenant: Hashable = None) -> None:
        """Protects it from being closed for others; attributes it to the tenant unless None.

        The protection ends when the response is sent, or waits for the client.
        """
        self.phase, self.since, self.tenant = "work", self._clock(), tenant or self.tenant

    def mark_response_in_progress(self) -> None:
        """Records that the response is being sent, or that the client read some of it."""
        # A connection that became idle in the meantime must not count as busy again.
        if self.phase in ("work", "request"):
            self.phase, self.since = "request", self._clock()

    def mark_idle(self) -> None:
        self.phase, self.since = "idle", self._clock()


class ConnectionTracker:
    """Tracks the open connections, and closes those that are overdue or replaced.

    ``clock`` is the event loop's.
    """

    def __init__(self, bounds: ConnectionBounds, clock: Callable[[], float]) -> None:
        self.connections: set[TrackedConnection] = set()
        self.closed_counts: Counter[str] = Counter()
        """Number of closed connections, by reason."""
        self._bounds = bounds
        self._clock = clock
        self._pressed_until = float("-inf")
        self._found_to_replace: list[tuple[float, TrackedConnection]] = []
        self._logged_closed_count = 0

    def register_connection(
        self, connection: TrackedConnection, address: Hashable, *, shakes_hands: bool = False
    ) -> None:
        """Tracks a new connection; at the limit another one is aborted for it, or it is itself."""
        connection.address = address
        if shakes_hands:
            connection.phase = "handshake"
        if len(self.connections) >= self._bounds.max_connections:
            replaced = self._select_connection_to_replace()
            self._abort(replaced or connection, "for_others")
            if replaced is None:
                return
        self.connections.add(connection)
        self._extend_pressure_if_crowded(self._clock())

    async def close_slow_connections_periodically(self) -> None:
        """Closes slow connections periodically, until cancelled."""
        shortest = min(self._bounds.head_seconds, self._bounds.pressed_seconds)
        while True:
            await asyncio.sleep(min(MAX_SWEEP_INTERVAL_SECONDS, shortest / 4))
            self.close_slow_connections()

    def close_slow_connections(self) -> None:
        now = self._clock()
        self._extend_pressure_if_crowded(now)
        seconds = self._bounds.pressed_seconds if now < self._pressed_until else float("inf")
        head_seconds = min(seconds, self._bounds.head_seconds)
        idle_seconds = min(seconds, self._bounds.idle_seconds)
        timeouts = {
            "handshake": head_seconds,
            "head": head_seconds,
            "silent": idle_seconds,
            "idle": idle_seconds,
        }
        for connection in list(self.connections):
            timeout = timeouts.get(connection.phase)
            if timeout is None:
                if connection.is_stalled(now):
                    self._abort(connection, "unread")
            elif now - connection.since >= timeout:
                self._abort(connection, "overdue")
        self._close_stalled_readers(now)
        self._log_closed_connections(now)

    def _close_stalled_readers(self, now: float) -> None:
        """Closes readers that have stopped, for longest first, until long responses fit into memory."""
        readers = [each for each in self.connections if each.response_bytes]
        held_bytes = sum(each.response_bytes for each in readers)
        # Not the last one: a single response may be of any size.
        for connection in sorted(readers, key=lambda each: each.since)[:-1]:
            is_stalled = now - connection.since >= self._bounds.pressed_seconds
            if held_bytes <= self._bounds.response_bytes or not is_stalled:
                return
            held_bytes -= connection.response_bytes
            self._abort(connection, "unread")

    def _abort(self, connection: TrackedConnection, reason: str) -> None:
        self.closed_counts[reason] += 1
        self.connections.discard(connection)
        connection.abort()

    def _log_closed_connections(self, now: float) -> None:
        """Logs closed connections only under pressure: an idle timeout alone is normal."""
        if now < self._pressed_until and self.closed_counts.total() > self._logged_closed_count:
            log.warning(
                "connections_shed",
                connections=len(self.connections),
                closed_since_start=dict(self.closed_counts),
                reason="too many connections; those without progress for longest are closed",
            )
        self._logged_closed_count = self.closed_counts.total()

    def _extend_pressure_if_crowded(self, now: float) -> None:
        if len(self.connections) * 2 > self._bounds.max_connections:
            self._pressed_until = now + PRESSURE_SECONDS

    def _select_connection_to_replace(self) -> TrackedConnection | None:
        while True:
            # A few are found at once, so that in a flood not each connection costs a search.
            if not self._found_to_replace:
                self._found_to_replace = self._find_connections_to_replace()
            if not self._found_to_replace:
                return None
            since, connection = self._found_to_replace.pop()
            is_unchanged = connection in self.connections and connection.since == since
            if is_unchanged and connection.phase != "work":
                return connection

    def _find_connections_to_replace(self) -> list[tuple[float, TrackedConnection]]:
        """Finds some connections of the largest groups, with their times; the oldest is last."""
        # A running request may move money, so its connection is never replaced.
        closable = [each for each in self.connections if each.phase != "work"]
        # Equal numbers go against unknown clients, which can open connections without a key.
        is_authenticated = sum(each.tenant is not None for each in closable) * 2 > len(closable)
        group = [
            (each.tenant or each.address, each.since, each)
            for each in closable
            if (each.tenant is not None) is is_authenticated
        ]
        counts = Counter(each[0] for each in group)
        most = max(counts.values(), default=0)
        candidates = [each[1:] for each in group if counts[each[0]] == most]
        count = max(1, self._bounds.max_connections // 100)
        return nsmallest(count, candidates, key=itemgetter(0))[::-1]


OTHER_DESCRIPTORS = 128
"""Descriptors for everything else: the database, logs, listening sockets."""


def raise_file_limit_and_cap_connections(connections: int, upstream_connections: int) -> int:
    """Returns the number of client connections that are possible, at most ``connections``.

    Raises the soft limit of this process as far as the hard limit allows.
    """
    wanted_descriptors = connections + upstream_connections + OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted_descriptors:
        soft = (
            wanted_descriptors if hard == resource.RLIM_INFINITY else min(wanted_descriptors, hard)
        )
        # Raising the soft limit up to the hard one needs no privilege.
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted_descriptors:
        return connections
    # Clients get at least a quarter of the descriptors, even if the upstream pools need more.
    available_connections = max(soft // 4, soft - upstream_connections - OTHER_DESCRIPTORS)
    log.warning(
        "open_file_limit_too_low",
        configured_connections=connections,
        effective_connections=available_connections,
        open_file_limit=soft,
        hint="raise the process's limit of open files (LimitNOFILE, ulimit -n), or set load.connections lower",
    )
    return available_connections
