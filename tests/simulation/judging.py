"""The end of a seed: what the service did, what the journal says, and what the clients were told."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import and_, select

from gateway.storage.tables import journal, writes
from gateway.storage.undertakings import MAY_EXIST, RUNNING, SENT, UNSETTLED
from tests.audit import DONE_THERE, UNSEEN, Line
from tests.simulation.network import Network
from tests.simulation.state import rows_of
from tests.simulation.stories import Story

if TYPE_CHECKING:
    from tests.simulation.seeds import Town


async def judged(town: Town, stories: Sequence[Story], at_rest: float) -> list[str]:
    wrong = await _settled(town, at_rest)
    for story in stories:
        wrong += story.wrong()
    wrong += _started_once(town.network)
    wrong += against_books(lines_of(town.connection), town.network)
    return wrong


async def _settled(town: Town, seconds: float) -> list[str]:
    """Waits until nothing is left; says what is."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while left := _left(town.connection):
        if loop.time() >= end:
            break
        await asyncio.sleep(10)
    town.counts["left"] = len(left)
    return [f"not settled: {one}" for one in left]


@dataclass(frozen=True, slots=True)
class Left:
    """An undertaking that is not over, and the write of which nobody knows what became."""

    state: str
    operation: str
    why: str | None
    path: str | None


def _left(connection: sqlite3.Connection) -> list[Left]:
    unanswered = and_(writes.c.undertaking == journal.c.id, writes.c.state == SENT)
    those = (
        select(journal.c.state, journal.c.operation, journal.c.why, writes.c.path)
        .join(writes, unanswered, isouter=True)
        .where(journal.c.state.in_((RUNNING, UNSETTLED)))
    )
    return [Left(*row) for row in rows_of(connection, those)]


def _started_once(network: Network) -> Iterator[str]:
    for id_, times in Counter(one.batch_id for one in network.service.starts).items():
        if times > 1:
            yield f"{id_} was started {times} times"


def lines_of(connection: sqlite3.Connection) -> list[Line]:
    columns = (writes.c.method, writes.c.path, writes.c.state, writes.c.made)
    those = select(*columns, journal.c.state.label("of")).join(
        journal, journal.c.id == writes.c.undertaking
    )
    return [Line(**row._asdict()) for row in rows_of(connection, those)]


def against_books(lines: list[Line], network: Network) -> Iterator[str]:
    """What the journal says that is not so, and what it does not know."""
    executed = Counter(_what(one.method, one.path) for one in network.done())
    known = Counter((line.method, line.path) for line in lines if line.state in DONE_THERE)
    open_ = Counter((line.method, line.path) for line in lines if line.state in (SENT, MAY_EXIST))
    for what, times in executed.items():
        if not what[1].endswith(UNSEEN) and times > known[what] + open_[what]:
            yield f"executed {times} times, and known {known[what]} times: {what}"
    for what, times in known.items():
        if times > executed[what]:
            yield f"marked as executed, and was not: {what}"
    made = Counter(line.made for line in lines if line.made)
    yield from (f"{id_} is claimed by {times}" for id_, times in made.items() if times > 1)
    there = {one.made: one for one in network.done() if one.made}
    yield from (f"{id_} is claimed, and was not made" for id_ in made.keys() - there.keys())
    for id_, one in there.items():
        if id_ not in made and not open_[_what(one.method, one.path)]:
            yield f"{id_} was made, and nobody knows"
    yield from (
        f"{one.batch_id} was started, and nobody knows it"
        for one in network.service.starts
        if one.batch_id not in made
    )
    yield from (
        f"lost: {line}"
        for line in lines
        if line.state == SENT and line.of not in (RUNNING, UNSETTLED)
    )


def _what(method: str, path: str) -> tuple[str, str]:
    return method, path.removeprefix("/v1")
