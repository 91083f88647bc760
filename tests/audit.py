"""Compares the gateway's journal with what its service executed."""

from __future__ import annotations

from collections import Counter

from gateway.config.settings import Settings
from tests.judge import Judge, tally
from tests.state import StoredWrite, stored_writes

UNSEEN = ("/generate-quote",)
"""Writes that cannot be read back, and may be repeated: quotes."""


async def audit(settings: Settings, judge: Judge) -> Counter[str]:
    """Fails if the journal contradicts the service; returns how many writes are in each state.

    Every write that the service executed is marked as such, or as one of unknown outcome; no write
    is marked as executed that was not, and none was sent that was not entered.
    """
    lines = await stored_writes(settings)
    entered = {(line.method, line.path) for line in lines}
    sent = {(one.method, one.path.removeprefix("/v1")) for one in judge.writes()}
    assert sent <= entered, sent - entered
    executed = tally(judge.done())
    known = Counter((line.method, line.path) for line in lines if line.is_executed)
    open_ = Counter((line.method, line.path) for line in lines if line.is_open)
    for what, times in executed.items():
        if not what[1].endswith(UNSEEN):
            told = (what, times, known[what], open_[what])
            assert times <= known[what] + open_[what], f"executed, and not marked so: {told}"
    for what, times in known.items():
        assert times <= executed[what], f"marked as executed, and was not: {what}"
    _made_once(lines, judge)
    for line in lines:
        if line.is_open:
            assert line.has_open_operation, line
        if line.has_closed_operation:
            assert not line.is_open, line
    return Counter(line.state for line in lines)


def _made_once(lines: list[StoredWrite], judge: Judge) -> None:
    """Every created object belongs to one write, or to one in doubt."""
    made = Counter(line.made for line in lines if line.made)
    assert not [id_ for id_, times in made.items() if times > 1], "claimed by two"
    there = {one.made: one for one in judge.done() if one.made}
    assert made.keys() <= there.keys(), "claimed, and not made"
    open_ = {(line.method, line.path) for line in lines if line.is_open}
    for id_, one in there.items():
        what = (one.method, one.path.removeprefix("/v1"))
        assert id_ in made or what in open_, f"made, and nobody knows: {what} {id_}"
