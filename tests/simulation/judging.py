"""Compares, at the end of a seed, the service, the journal and the clients' responses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tests.audit import UNSEEN
from tests.simulation.database import list_open_operations, list_writes
from tests.simulation.network import Network
from tests.simulation.stories import Story
from tests.state import StoredWrite

if TYPE_CHECKING:
    from tests.simulation.seeds import Town


async def judged(town: Town, stories: Sequence[Story], at_rest: float) -> list[str]:
    wrong = await _settled(town, at_rest)
    for story in stories:
        wrong += story.wrong()
    wrong += _started_once(town.network)
    wrong += against_books(await list_writes(town.engine), town.network)
    return wrong


async def _settled(town: Town, seconds: float) -> list[str]:
    """Waits until no operation is open; returns those that remain."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while left := await list_open_operations(town.engine):
        if loop.time() >= end:
            break
        await asyncio.sleep(10)
    town.counts["left"] = len(left)
    return [f"not settled: {one}" for one in left]


def _started_once(network: Network) -> Iterator[str]:
    for id_, times in Counter(one.batch_id for one in network.service.starts).items():
        if times > 1:
            yield f"{id_} was started {times} times"


def against_books(lines: list[StoredWrite], network: Network) -> Iterator[str]:
    """Differences between the journal and the service."""
    executed = Counter(_what(one.method, one.path) for one in network.done())
    known = Counter((line.method, line.path) for line in lines if line.is_executed)
    open_ = Counter((line.method, line.path) for line in lines if line.may_exist)
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
    yield from (f"lost: {line}" for line in lines if line.is_open and not line.has_open_operation)


def _what(method: str, path: str) -> tuple[str, str]:
    return method, path.removeprefix("/v1")
