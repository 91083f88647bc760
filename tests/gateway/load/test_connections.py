"""Which connections are ended: those that keep others waiting, and those that take too long."""

from __future__ import annotations

import pytest

from gateway.admission.load.connections import PRESSED_FOR, Bounds, Connections

BOUNDS = Bounds(most=4, head_seconds=10, idle_seconds=75, pressed_seconds=5)
ROOMY = Bounds(most=1000, head_seconds=10, idle_seconds=75, pressed_seconds=5)


def full(*kinds: str) -> Connections[str]:
    """As many connections as there may be, opened one second after the other."""
    connections: Connections[str] = Connections(BOUNDS)
    for now, name in enumerate(kinds):
        connections.opened(name, now, shakes_hands=name.startswith("shaking"))
        if name.startswith("head"):
            connections.begins_a_head(name, now)
        elif name.startswith(("busy", "idle")):
            connections.has_a_request(name, now)
            connections.is_authenticated(name, now)
        if name.startswith("unproven"):
            connections.has_a_request(name, now)
        if name.startswith("idle"):
            connections.waits_for_the_next(name, now)
    return connections


@pytest.mark.parametrize(
    ("there", "goes"),
    [
        (("idle 1", "head", "busy", "idle 2"), "head"),
        (("idle 1", "shaking", "head", "silent"), "shaking"),
        (("idle 1", "silent", "busy", "shaking"), "silent"),
        (("idle 1", "idle 2", "busy 1", "busy 2"), "idle 1"),
        (("busy 1", "busy 2", "busy 3", "idle"), "idle"),
        (("busy 1", "busy 2", "busy 3", "busy 4"), "new"),
        (("busy 1", "idle", "unproven 1", "unproven 2"), "unproven 1"),
    ],
)
def test_for_a_new_one_goes_who_waits_longest_and_never_one_with_a_request(
    there: tuple[str, ...], goes: str
) -> None:
    connections = full(*there)
    assert connections.opened("new", 10) == goes
    assert len(connections) == BOUNDS.most


def test_while_there_is_room_nobody_goes() -> None:
    connections: Connections[int] = Connections(BOUNDS)
    assert [connections.opened(number, 0) for number in range(5)] == [None] * 4 + [0]


def test_a_header_has_its_seconds_from_its_first_byte_however_it_drips() -> None:
    connections: Connections[str] = Connections(ROOMY)
    connections.opened("slow", 0)
    for now in range(5, 15):
        connections.begins_a_head("slow", now)
    assert connections.overdue(14.9) == []
    assert connections.overdue(15) == ["slow"]
    assert len(connections) == 0


def test_a_handshake_has_no_more_time_than_a_header() -> None:
    connections: Connections[str] = Connections(ROOMY)
    connections.opened("shakes", 0, shakes_hands=True)
    connections.opened("shook", 0, shakes_hands=True)
    connections.shook_hands("shook", 9)
    assert connections.overdue(10) == ["shakes"]
    assert connections.overdue(9 + 75) == ["shook"]


def test_silence_between_requests_is_patiently_borne_and_work_is_not_counted() -> None:
    connections: Connections[str] = Connections(ROOMY)
    connections.opened("one", 0)
    connections.has_a_request("one", 1)
    assert connections.overdue(1000) == []
    connections.waits_for_the_next("one", 1000)
    assert connections.overdue(1074) == []
    assert connections.overdue(1075) == ["one"]


def test_under_pressure_nobody_takes_its_time() -> None:
    connections = full("idle", "silent", "busy")
    assert connections.overdue(5) == ["idle"]
    assert connections.overdue(6) == ["silent"]
    assert connections.overdue(60) == []


def test_pressure_lasts_until_those_that_made_it_are_gone() -> None:
    connections = full("idle", "silent", "head")
    connections.closed("head")
    connections.closed("silent")
    assert connections.is_pressed(2 + PRESSED_FOR - 1)
    assert not connections.is_pressed(2 + PRESSED_FOR)
    assert connections.overdue(5) == ["idle"]


def test_one_that_was_ended_does_not_come_back() -> None:
    connections = full("head", "busy 1", "busy 2", "busy 3")
    assert connections.opened("new", 5) == "head"
    connections.has_a_request("head", 6)
    assert len(connections) == BOUNDS.most
