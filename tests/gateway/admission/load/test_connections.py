"""Connection limits: which connection is closed at the limit, and which deadlines apply."""

from __future__ import annotations

import pytest

from gateway.admission.load.connections import (
    PRESSURE_SECONDS,
    ConnectionBounds,
    ConnectionTracker,
    TrackedConnection,
)

BOUNDS = ConnectionBounds(
    max_connections=4, head_seconds=10, idle_seconds=75, pressed_seconds=5, response_bytes=100
)
LARGE_BOUNDS = ConnectionBounds(
    max_connections=1000, head_seconds=10, idle_seconds=75, pressed_seconds=5, response_bytes=100
)


class FakeConnection(TrackedConnection):
    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True

    def is_stalled(self, now: float) -> bool:
        return False


class Tracker:
    """A tracker and its connections by name; ``now`` is its clock."""

    def __init__(self, bounds: ConnectionBounds = BOUNDS) -> None:
        self.now = 0.0
        self.tracker = ConnectionTracker(bounds, self.read_clock)
        self._connections: dict[str, FakeConnection] = {}

    def read_clock(self) -> float:
        return self.now

    def __getitem__(self, name: str) -> FakeConnection:
        return self._connections[name]

    def open(self, name: str, address: str = "", *, shakes_hands: bool = False) -> list[str]:
        """Open a connection; return the names of those that are closed for it."""
        connection = self._connections[name] = FakeConnection(self.read_clock)
        self.tracker.register_connection(connection, address, shakes_hands=shakes_hands)
        return self.pop_closed_names()

    def close_slow_ones(self, now: float) -> list[str]:
        self.now = now
        self.tracker.close_slow_connections()
        return self.pop_closed_names()

    def pop_closed_names(self) -> list[str]:
        names = [name for name, each in self._connections.items() if each.is_aborted]
        for name in names:
            del self._connections[name]
        return names


def open_connections(*names: str) -> Tracker:
    """Open connections up to the limit, one second apart.

    The first word of a name is its phase, the second its tenant, or its address if it has not authenticated.
    """
    tracker = Tracker()
    for now, name in enumerate(names):
        tracker.now = now
        phase, merchant = name.split()[:2]
        tracker.open(name, merchant, shakes_hands=phase == "handshake")
        connection = tracker[name]
        if phase == "head":
            connection.mark_header_started()
        if phase in ("stranger", "body", "work", "response", "idle"):
            connection.start_request()
        if phase in ("body", "work", "response", "idle"):
            connection.attribute_to_tenant(merchant)
        if phase in ("work", "response"):
            connection.mark_request_running()
        if phase == "response":
            connection.mark_response_in_progress()
        if phase == "idle":
            connection.mark_idle()
    return tracker


@pytest.mark.parametrize(
    ("names", "replaced_name"),
    [
        (("idle acme", "head x", "work acme", "stranger x"), "head x"),
        (("handshake x", "silent x", "head x", "stranger x"), "handshake x"),
        (("idle acme", "silent x", "work acme", "handshake y"), "silent x"),
        (("work acme 1", "idle acme 1", "idle acme 2", "work acme 2"), "idle acme 1"),
        (("work acme", "work bolt", "work acme 2", "idle acme"), "idle acme"),
        (("work acme", "work bolt", "work acme 2", "work bolt 2"), "new"),
        (("idle bolt", "body acme 1", "body acme 2", "silent x"), "body acme 1"),
        (("idle bolt", "response acme 1", "response acme 2", "silent x"), "response acme 1"),
        (("body acme", "idle bolt", "response acme", "body bolt"), "body acme"),
        (("idle bolt", "silent y", "silent x 1", "stranger x 2"), "silent x 1"),
        (("silent x", "idle acme 1", "idle acme 2", "idle acme 3"), "idle acme 1"),
    ],
)
def test_largest_holder_loses_connection_with_longest_stall(
    names: tuple[str, ...], replaced_name: str
) -> None:
    tracker = open_connections(*names)
    tracker.now = 10
    assert tracker.open("new", "z") == [replaced_name]
    assert len(tracker.tracker.connections) == BOUNDS.max_connections


def test_body_bytes_count_as_progress_and_header_bytes_do_not() -> None:
    tracker = open_connections("body acme 1", "body acme 2", "body acme 3", "body acme 4")
    tracker.now = 5
    tracker["body acme 1"].start_request()
    assert tracker.open("new", "x") == ["body acme 2"]
    tracker = open_connections("head x 1", "head x 2", "head x 3", "head x 4")
    tracker.now = 5
    tracker["head x 1"].mark_header_started()
    assert tracker.open("new", "x") == ["head x 1"]


def test_connection_belongs_to_tenant_of_its_latest_request() -> None:
    tracker = open_connections("idle acme 1", "idle acme 2", "body bolt 1", "body bolt 2")
    tracker.now = 5
    tracker["body bolt 1"].start_request()  # more of the body
    tracker["idle acme 1"].start_request()
    tracker["idle acme 1"].attribute_to_tenant("bolt")
    assert tracker.open("new", "x") == ["body bolt 2"]


def test_reconnecting_clients_displace_only_their_own_connections() -> None:
    tracker = Tracker(
        ConnectionBounds(
            max_connections=10,
            head_seconds=10,
            idle_seconds=75,
            pressed_seconds=5,
            response_bytes=100,
        )
    )
    for number in range(10):
        tracker.now = number
        tracker.open(f"acme {number}", "x")
        tracker[f"acme {number}"].start_request()
        tracker[f"acme {number}"].attribute_to_tenant("acme")
    tracker.now = 10
    assert tracker.open("bolt", "y") == ["acme 0"]
    for number in range(10, 14):  # these have not authenticated yet, unlike "bolt"
        tracker.now = number
        assert tracker.open(f"acme {number}", "x") == [f"acme {number - 9}"]


def test_nothing_is_closed_below_the_limit() -> None:
    tracker = Tracker()
    for tracker.now, name in enumerate("abcd"):
        assert tracker.open(name) == []
    assert tracker.open("e") == ["a"]


def test_header_deadline_counts_from_first_byte() -> None:
    tracker = Tracker(LARGE_BOUNDS)
    tracker.open("slow")
    for now in range(5, 15):
        tracker.now = now
        tracker["slow"].mark_header_started()
    assert tracker.close_slow_ones(14.9) == []
    assert tracker.close_slow_ones(15) == ["slow"]
    assert len(tracker.tracker.connections) == 0


def test_handshake_deadline_equals_header_deadline() -> None:
    tracker = Tracker(LARGE_BOUNDS)
    tracker.open("shakes", shakes_hands=True)
    tracker.open("shook", shakes_hands=True)
    tracker.now = 9
    tracker["shook"].mark_handshake_complete()
    assert tracker.close_slow_ones(10) == ["shakes"]
    assert tracker.close_slow_ones(9 + 75) == ["shook"]


def test_idle_time_is_limited_separately_and_work_is_not_counted() -> None:
    tracker = Tracker(LARGE_BOUNDS)
    tracker.open("one")
    tracker["one"].start_request()
    tracker["one"].mark_request_running()
    assert tracker.close_slow_ones(1000) == []
    tracker["one"].mark_response_in_progress()
    assert tracker.close_slow_ones(2000) == []
    tracker["one"].mark_idle()
    assert tracker.close_slow_ones(2074) == []
    assert tracker.close_slow_ones(2075) == ["one"]


def test_pressure_shortens_every_deadline() -> None:
    tracker = open_connections("idle acme", "silent x", "work acme")
    assert tracker.close_slow_ones(5) == ["idle acme"]
    assert tracker.close_slow_ones(6) == ["silent x"]
    assert tracker.close_slow_ones(60) == []


def test_pressure_ends_some_time_after_connections_close() -> None:
    tracker = open_connections("idle acme", "silent x", "head x")
    for name in ("head x", "silent x"):
        tracker.tracker.connections.discard(tracker[name])
    assert tracker.close_slow_ones(5) == ["idle acme"]
    pressure_end = 2 + PRESSURE_SECONDS
    tracker.now = pressure_end - BOUNDS.pressed_seconds - 1
    tracker.open("early")
    tracker.now += 1
    tracker.open("late")
    assert tracker.close_slow_ones(pressure_end - 1) == ["early"]
    assert tracker.close_slow_ones(pressure_end) == []


def test_closed_connection_is_not_tracked_again() -> None:
    tracker = open_connections("head x", "work acme 1", "work acme 2", "work acme 3")
    tracker.now = 5
    closed = tracker["head x"]
    assert tracker.open("new") == ["head x"]
    closed.start_request()
    closed.attribute_to_tenant("acme")
    closed.mark_request_running()
    closed.mark_idle()
    working = [tracker[f"work acme {number}"] for number in (1, 2, 3)]
    assert tracker.tracker.connections == {*working, tracker["new"]}


def test_stalled_readers_are_closed_if_responses_exceed_the_memory() -> None:
    tracker = open_connections("response c", "response a", "response b")
    for now, name in enumerate(("response c", "response a", "response b")):
        tracker.now = tracker[name].since = now + 5
        tracker[name].response_bytes = 50
    assert tracker.close_slow_ones(8) == [], "all of them read"
    assert tracker.close_slow_ones(12) == ["response c"], "the one without progress for longest"
    tracker["response b"].response_bytes = 1000
    assert tracker.close_slow_ones(12) == ["response a"]
    assert tracker.close_slow_ones(12) == [], "a single response may be longer"
