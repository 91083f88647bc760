"""The gateway's journal held against the books of the service that it stands before."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import select

from gateway.config.settings import Settings
from gateway.storage import open_store
from gateway.storage.tables import journal, writes
from gateway.storage.undertakings import ANSWERED, DONE, HAPPENED, RUNNING, SENT, UNDONE, UNSETTLED
from tests.judge import Judge, tally
from tests.states import fetch

DONE_THERE = (ANSWERED, HAPPENED)
"""States of a write that the gateway knows to have been executed."""

UNSEEN = ("/generate-quote",)
"""What may be made again where it cannot be seen: a quote."""


@dataclass(frozen=True, slots=True)
class Line:
    """A write as the journal has it, and the state of the undertaking that it is of."""

    method: str
    path: str
    state: str
    made: str | None
    of: str


async def lines_of(settings: Settings) -> list[Line]:
    columns = (writes.c.method, writes.c.path, writes.c.state, writes.c.made)
    those = select(*columns, journal.c.state.label("of")).join(
        journal, journal.c.id == writes.c.undertaking
    )
    async with open_store(settings.state, create=False) as store:
        return [Line(**row._asdict()) for row in await fetch(store, those)]


async def states_of(settings: Settings) -> Counter[str]:
    """How many undertakings are in each state."""
    async with open_store(settings.state, create=False) as store:
        return Counter(row.state for row in await fetch(store, select(journal.c.state)))


async def audit(settings: Settings, judge: Judge) -> Counter[str]:
    """Fails where the journal says what is not so; returns how many writes are in each state.

    Every write that the service executed is marked as such, or as one of unknown outcome; no write
    is marked as executed that was not, and none was sent that was not entered.
    """
    lines = await lines_of(settings)
    entered = {(line.method, line.path) for line in lines}
    sent = {(one.method, one.path.removeprefix("/v1")) for one in judge.writes()}
    assert sent <= entered, sent - entered
    executed = tally(judge.done())
    known = Counter((line.method, line.path) for line in lines if line.state in DONE_THERE)
    open_ = Counter((line.method, line.path) for line in lines if line.state == SENT)
    for what, times in executed.items():
        if not what[1].endswith(UNSEEN):
            told = (what, times, known[what], open_[what])
            assert times <= known[what] + open_[what], f"executed, and not marked so: {told}"
    for what, times in known.items():
        assert times <= executed[what], f"marked as executed, and was not: {what}"
    _made_once(lines, judge)
    for line in lines:
        if line.state == SENT:
            assert line.of in (RUNNING, UNSETTLED), line
        if line.of in (DONE, ANSWERED, UNDONE):
            assert line.state != SENT, line
    return Counter(line.state for line in lines)


def _made_once(lines: list[Line], judge: Judge) -> None:
    """What was made is known to have been made by one write, or by one of unknown outcome."""
    made = Counter(line.made for line in lines if line.made)
    assert not [id_ for id_, times in made.items() if times > 1], "claimed by two"
    there = {one.made: one for one in judge.done() if one.made}
    assert made.keys() <= there.keys(), "claimed, and not made"
    open_ = {(line.method, line.path) for line in lines if line.state == SENT}
    for id_, one in there.items():
        what = (one.method, one.path.removeprefix("/v1"))
        assert id_ in made or what in open_, f"made, and nobody knows: {what} {id_}"
