"""Mistakes that the product could have: with each of them, the simulation has to find something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gateway.storage import undertakings
from gateway.storage.undertakings import OperationRepository, Write
from gateway.writes import journal, settler
from gateway.writes.journal import Journal, OperationExecution
from gateway.writes.once import IdempotencyGuard
from gateway.writes.player import Player
from gateway.writes.settler import Settler
from mappings import batches, drafts
from mappings.batch_views import Batch
from tests.simulation.network import FATES
from tests.simulation.stories import a_contested_batch, a_recipient


async def _nothing(*_: Any) -> None:
    pass


def _a_retry_is_another_request() -> Iterator[tuple[Any, str, Any]]:
    yield IdempotencyGuard, "_is_same", lambda *_: False
    yield undertakings, "_refuse_identical", _nothing


def _a_write_is_entered_after_it_was_sent() -> Iterator[tuple[Any, str, Any]]:
    async def enter(course: OperationExecution, call: Any) -> None:
        alike, now = course.journal.alike(call), course.journal.stamp(course.one.owner.environment)
        write = Write(course._position, call.method, call.path, alike, now)
        course.writes[write.number] = write
        course.is_sending = True

    async def sent(player: Player, call: Any, caller: Any, course: OperationExecution) -> Any:
        await enter(course, call)
        try:
            given = await player._any_call(call, caller)
        finally:
            await course._keep(enters=course.writes[course._position])
        course.told(call, given)
        return given

    yield Player, "_sent", sent


def _what_is_not_seen_did_not_happen() -> Iterator[tuple[Any, str, Any]]:
    yield Settler, "seconds_until_sure", lambda *_: 0
    yield settler, "PAUSE", 0.0


def _what_another_made_is_claimed() -> Iterator[tuple[Any, str, Any]]:
    async def none(*_: Any) -> set[str]:
        return set()

    async def alone(*_: Any) -> list[Any]:
        return []

    yield OperationRepository, "_claim", _nothing
    yield OperationRepository, "claimed", none
    yield OperationRepository, "rivals", alone


def _a_turn_that_was_taken_is_still_ones_own() -> Iterator[tuple[Any, str, Any]]:
    yield OperationRepository, "_fence", _nothing


def _what_was_never_answered_is_refused() -> Iterator[tuple[Any, str, Any]]:
    plain = OperationExecution.told

    async def left(course: OperationExecution, _why: str) -> None:
        for number, write in list(course.writes.items()):
            course.writes[number] = replace(write, state="unsent")
            course._settled.append(course.writes[number])
        await course.close("undone")

    yield OperationExecution, "leave", left
    yield OperationExecution, "told", plain


def _an_idempotency_key_says_nothing() -> Iterator[tuple[Any, str, Any]]:
    yield Journal, "name", lambda *_: None


def _whoever_writes_to_a_batch_holds_nothing() -> Iterator[tuple[Any, str, Any]]:
    """Not to start it, nor to quote it; nor does the record of the write look at what it names."""
    plain = drafts.acquire_batch_lock

    def taken(batch: Batch, phase: str, *more: Any) -> Any:
        if phase not in ("starting", "quoting"):
            yield from plain(batch, phase, *more)

    yield batches, "taken", taken
    yield journal, "_guard", lambda _call: []


def _those(*names: str) -> tuple[Any, ...]:
    return tuple(fate for fate in FATES if fate.name in names)


_LOST = {"network": 0.5, "fates": _those("lost after", "silent", "half json")}
_LATE = {
    "kinds": (a_recipient,),
    "stories": 8,
    "twins": 0.0,
    "keys": 0.0,
    "network": 0.8,
    "fates": _those("late", "cut, and late"),
}
_HELD = {"gateways": 2, "holds": 1.0, "kills": 0.0, "storm": 60.0, "at_rest": 150.0}
_TWINS = {"kinds": (a_recipient,), "twins": 1.0, "keys": 0.0, "at_rest": 150.0}
_CONTESTED = {
    "gateways": 2,
    "stories": 3,
    "kinds": (a_contested_batch,),
    "snags": 1.0,
    "network": 0.0,
    "state": 0.0,
    "kills": 0.0,
    "keys": 0.0,
    "switches": {"inferred": False, "answers": "full"},
}

MUTATIONS: dict[Callable[[], Iterator[tuple[Any, str, Any]]], dict[str, Any]] = {
    _a_retry_is_another_request: {**_LOST, **_TWINS, "twins": 0.0},
    _a_write_is_entered_after_it_was_sent: {"kills": 1.0},
    _what_is_not_seen_did_not_happen: _LATE,
    _what_another_made_is_claimed: {
        **_TWINS,
        "network": 0.6,
        "fates": _those("lost after", "lost before"),
    },
    _a_turn_that_was_taken_is_still_ones_own: _HELD,
    _what_was_never_answered_is_refused: _LOST,
    _an_idempotency_key_says_nothing: {**_TWINS, "keys": 1.0},
    _whoever_writes_to_a_batch_holds_nothing: _CONTESTED,
}
"""Each with the temper in which it is met soonest."""


@contextmanager
def mutated(mutation: Callable[[], Iterator[tuple[Any, str, Any]]]) -> Iterator[None]:
    """The product with this mistake."""
    changes = list(mutation())
    before = [(of, what, getattr(of, what)) for of, what, _ in changes]
    try:
        for of, what, other in changes:
            setattr(of, what, other)
        yield
    finally:
        for of, what, plain in before:
            setattr(of, what, plain)
