"""Connection limits: which connection is closed at the limit, and which deadlines apply."""

from __future__ import annotations

import pytest

from gateway.admission.load.connections import PRESSURE_SECONDS, ConnectionBounds, ConnectionTable

BOUNDS = ConnectionBounds(max_connections=4, head_seconds=10, idle_seconds=75, pressed_seconds=5)
LARGE_BOUNDS = ConnectionBounds(
    max_connections=1000, head_seconds=10, idle_seconds=75, pressed_seconds=5
)


def open_connections(*names: str) -> ConnectionTable[str]:
    """Open connections up to the limit, one second apart.

    The first word of a name is its phase, the second its tenant, or its address if it has not authenticated.
    """
    connections: ConnectionTable[str] = ConnectionTable(BOUNDS)
    for now, name in enumerate(names):
        phase, merchant = name.split()[:2]
        connections.add_and_return_displaced_connection(
            name, now, merchant, shakes_hands=phase == "handshake"
        )
        if phase == "head":
            connections.mark_header_started(name, now)
        if phase in ("stranger", "body", "work", "response", "idle"):
            connections.start_request(name, now)
        if phase in ("body", "work", "response", "idle"):
            connections.assign_tenant(name, merchant)
        if phase in ("work", "response"):
            connections.mark_request_running(name, now)
        if phase == "response":
            connections.mark_response_in_progress(name, now)
        if phase == "idle":
            connections.mark_connection_idle(name, now)
    return connections


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
    connections = open_connections(*names)
    assert connections.add_and_return_displaced_connection("new", 10, "z") == replaced_name
    assert len(connections) == BOUNDS.max_connections


def test_body_bytes_count_as_progress_and_header_bytes_do_not() -> None:
    connections = open_connections("body acme 1", "body acme 2", "body acme 3", "body acme 4")
    connections.start_request("body acme 1", 5)
    assert connections.add_and_return_displaced_connection("new", 10, "x") == "body acme 2"
    connections = open_connections("head x 1", "head x 2", "head x 3", "head x 4")
    connections.mark_header_started("head x 1", 5)
    assert connections.add_and_return_displaced_connection("new", 10, "x") == "head x 1"


def test_connection_belongs_to_tenant_of_its_latest_request() -> None:
    connections = open_connections("idle acme 1", "idle acme 2", "body bolt 1", "body bolt 2")
    connections.start_request("body bolt 1", 5)  # more of the body
    connections.start_request("idle acme 1", 5)
    connections.assign_tenant("idle acme 1", "bolt")
    assert connections.add_and_return_displaced_connection("new", 10, "x") == "body bolt 2"


def test_reconnecting_clients_displace_only_their_own_connections() -> None:
    bounds = ConnectionBounds(
        max_connections=10, head_seconds=10, idle_seconds=75, pressed_seconds=5
    )
    connections: ConnectionTable[str] = ConnectionTable(bounds)
    for number in range(10):
        connections.add_and_return_displaced_connection(f"acme {number}", number, "x")
        connections.start_request(f"acme {number}", number)
        connections.assign_tenant(f"acme {number}", "acme")
    connections.add_and_return_displaced_connection("bolt", 10, "y")
    for number in range(10, 14):  # these have not authenticated yet, unlike "bolt"
        assert (
            connections.add_and_return_displaced_connection(f"acme {number}", number, "x")
            == f"acme {number - 9}"
        )


def test_nothing_is_closed_below_the_limit() -> None:
    connections: ConnectionTable[int] = ConnectionTable(BOUNDS)
    assert [connections.add_and_return_displaced_connection(number, 0) for number in range(5)] == [
        None
    ] * 4 + [0]


def test_header_deadline_counts_from_first_byte() -> None:
    connections: ConnectionTable[str] = ConnectionTable(LARGE_BOUNDS)
    connections.add_and_return_displaced_connection("slow", 0)
    for now in range(5, 15):
        connections.mark_header_started("slow", now)
    assert connections.pop_overdue_connections(14.9) == []
    assert connections.pop_overdue_connections(15) == ["slow"]
    assert len(connections) == 0


def test_handshake_deadline_equals_header_deadline() -> None:
    connections: ConnectionTable[str] = ConnectionTable(LARGE_BOUNDS)
    connections.add_and_return_displaced_connection("shakes", 0, shakes_hands=True)
    connections.add_and_return_displaced_connection("shook", 0, shakes_hands=True)
    connections.mark_handshake_complete("shook", 9)
    assert connections.pop_overdue_connections(10) == ["shakes"]
    assert connections.pop_overdue_connections(9 + 75) == ["shook"]


def test_idle_time_is_limited_separately_and_work_is_not_counted() -> None:
    connections: ConnectionTable[str] = ConnectionTable(LARGE_BOUNDS)
    connections.add_and_return_displaced_connection("one", 0)
    connections.start_request("one", 1)
    connections.mark_request_running("one", 1)
    assert connections.pop_overdue_connections(1000) == []
    connections.mark_response_in_progress("one", 1000)
    assert connections.pop_overdue_connections(2000) == []
    connections.mark_connection_idle("one", 2000)
    assert connections.pop_overdue_connections(2074) == []
    assert connections.pop_overdue_connections(2075) == ["one"]


def test_pressure_shortens_every_deadline() -> None:
    connections = open_connections("idle acme", "silent x", "work acme")
    assert connections.pop_overdue_connections(5) == ["idle acme"]
    assert connections.pop_overdue_connections(6) == ["silent x"]
    assert connections.pop_overdue_connections(60) == []


def test_pressure_ends_some_time_after_connections_close() -> None:
    connections = open_connections("idle acme", "silent x", "head x")
    connections.close("head x")
    connections.close("silent x")
    assert connections.is_under_connection_pressure(2 + PRESSURE_SECONDS - 1)
    assert not connections.is_under_connection_pressure(2 + PRESSURE_SECONDS)
    assert connections.pop_overdue_connections(5) == ["idle acme"]


def test_closed_connection_is_not_tracked_again() -> None:
    connections = open_connections("head x", "work acme 1", "work acme 2", "work acme 3")
    assert connections.add_and_return_displaced_connection("new", 5) == "head x"
    connections.start_request("head x", 6)
    connections.assign_tenant("head x", "acme")
    connections.mark_request_running("head x", 6)
    connections.mark_connection_idle("head x", 6)
    assert len(connections) == BOUNDS.max_connections
    assert connections.list_connections_with_request() == [
        "work acme 1",
        "work acme 2",
        "work acme 3",
    ]
