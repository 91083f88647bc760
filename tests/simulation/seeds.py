"""One seed: a town of clients, gateways and a failing service, until all is well again, and judged."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import sqlite3
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import structlog

from tests.simulation import judging
from tests.simulation.gateway import Gateway, opened
from tests.simulation.loop import Loop
from tests.simulation.machine import Killed
from tests.simulation.network import FATES, Fate, Network, service
from tests.simulation.state import database, emptied, is_superseded
from tests.simulation.stories import STORIES, Kind, Story, person, wallet

LONGEST = 4000.0
"""Seconds of simulated time in which every client has been told, or something stands still."""


@dataclass(frozen=True, slots=True)
class Temper:
    """What a seed does to its town."""

    gateways: int
    stories: int
    storm: float
    network: float
    state: float
    kills: float
    holds: float
    jumps: tuple[float, ...]
    switches: Mapping[str, Any]
    fates: tuple[Fate, ...] = FATES
    kinds: tuple[Kind, ...] = STORIES
    snags: float = 0.0
    """Of the batches that are made, after how many whoever made one is paused or killed."""
    twins: float = 0.3
    """Of what may be wanted by two at once, how much is."""
    keys: float = 0.25
    at_rest: float = 800.0
    """Seconds of simulated time after which nothing is left that can be settled."""

    @classmethod
    def of(cls, dice: random.Random) -> Temper:
        return cls(
            gateways=dice.choice((1, 2, 2)),
            stories=dice.choice((1, 1, 2)),
            storm=dice.choice((2.0, 5.0, 10.0)),
            network=dice.choice((0.0, 0.1, 0.3, 0.6)),
            state=dice.choice((0.0, 0.0, 0.0, 0.03, 0.1)),
            kills=dice.choice((0.0, 0.3, 1.0)),
            holds=dice.choice((0.0, 0.0, 0.0, 0.3)),
            jumps=dice.choice((*(((),) * 20), (29.0, -29.0), (31.0, -31.0), (300.0, -300.0))),
            switches={
                "inferred": dice.random() < 0.5,
                "answers": dice.choice(("full", "bare")),
            },
            snags=dice.choice((0.0, 0.3, 1.0)),
        )


@dataclass
class Result:
    seed: int
    wrong: list[str]
    counts: Counter[str]
    trace: str


@dataclass
class Town:
    seed: int
    dice: random.Random
    temper: Temper
    network: Network
    connection: sqlite3.Connection
    gone_seconds: float = 8.0
    is_calm: bool = False
    gateways: list[Gateway] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    trace: Any = field(default_factory=hashlib.sha256)
    shown: bool = False

    def told(self, *what: Any) -> None:
        now = asyncio.get_running_loop().time()
        line = f"{now:.4f} {' '.join(map(str, what))}"
        self.trace.update(line.encode())
        if self.shown:
            sys.stdout.write(f"{line}\n")

    # Its gateways

    async def open(self, at: int) -> None:
        gateway = await opened(
            self.network,
            self.connection,
            self.dice,
            self.wrong.append,
            shared=self.temper.gateways > 1,
            gone_seconds=self.gone_seconds,
        )
        gateway.state.memory.part = 0.0 if self.is_calm else self.temper.state
        if at < len(self.gateways):
            gateway.process.off = self.gateways[at].process.off
            self.gateways[at] = gateway
        else:
            self.gateways.append(gateway)
        self.told("open", at)

    async def _minded(self, at: int) -> None:
        """Kills, ends and holds one of them, and has another in its place."""
        dice, temper = self.dice, self.temper
        while not self.is_calm:
            gateway = self.gateways[at]
            if dice.random() < temper.kills:
                gateway.process.dies_at = gateway.process.steps + dice.randrange(1, 120)
            await asyncio.sleep(dice.uniform(0.05, 3.0))
            if gateway.process.is_dead:
                self.counts["kills"] += 1
            elif dice.random() < temper.kills * 0.2:
                await self._ended(gateway)
            if dice.random() < temper.holds:
                gateway.process.hold(dice.uniform(3, 60))
                self.counts["holds"] += 1
            if temper.jumps and dice.random() < 0.3:
                gateway.process.off += dice.choice(temper.jumps)
                self.counts["jumps"] += 1
            if gateway.process.is_dead:
                await asyncio.sleep(dice.choice((0.0, 0.1, 2.0, 10.0)))
                await self.open(at)

    async def _ended(self, gateway: Gateway) -> None:
        self.counts["ends"] += 1
        with contextlib.suppress(Killed, asyncio.CancelledError):
            await gateway.process.begin(gateway.close())
        gateway.process.kill()

    async def calm(self) -> None:
        self.is_calm, self.network.part, self.network.snags = True, 0.0, 0.0
        for at, gateway in enumerate(self.gateways):
            gateway.state.memory.part, gateway.process.dies_at = 0.0, None
            while self.gateways[at].process.is_dead or not self.gateways[at].is_open:
                await self.open(at)
        self.told("calm")

    # Its stories

    def _story(self, mark: str, payee: str) -> Story:
        dice, temper = random.Random(self.dice.random()), self.temper
        return Story(self, self.network, mark, payee, dice, twins=temper.twins, keys=temper.keys)

    async def payee(self) -> str:
        story = self._story("payee", "")
        address = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
        body = person("payee", address=address, payout=wallet("payee"))
        return str((await story.ask("create_recipient", body))["recipient"]["id"])

    async def play(self) -> list[Story]:
        self.is_calm = True
        for at in range(self.temper.gateways):
            await self.open(at)
        payee = await self.payee()
        self.is_calm, self.network.part = False, self.temper.network
        self.network.snags = self.temper.snags
        for gateway in self.gateways:
            gateway.state.memory.part = self.temper.state
        minded = [asyncio.create_task(self._minded(at)) for at in range(self.temper.gateways)]
        names = [f"story-{number}-end" for number in range(self.temper.stories)]
        stories = [self._story(name, payee) for name in names]
        kinds = self.temper.kinds
        told = [asyncio.create_task(self.dice.choice(kinds)(story)) for story in stories]
        await asyncio.sleep(self.temper.storm)
        self.is_calm = True
        await asyncio.gather(*minded)
        await self.calm()
        async with asyncio.timeout(LONGEST):
            await asyncio.gather(*told)
        return stories


async def _seed(
    seed: int, connection: sqlite3.Connection, changes: Mapping[str, Any], *, shown: bool
) -> Result:
    dice = random.Random(seed)
    random.seed(seed)  # what the product draws for itself
    temper = replace(Temper.of(dice), **changes)
    network = Network(
        service(dice, **temper.switches), random.Random(dice.random()), fates=temper.fates
    )
    town = Town(seed, dice, temper, network, connection, shown=shown)
    emptied(connection)
    network.told, network.is_superseded = town.told, partial(is_superseded, connection)
    if shown:
        sys.stdout.write(f"{temper}\n")
    lines: list[Mapping[str, Any]] = []
    _hears(lines)
    try:
        stories = await town.play()
        town.wrong += await judging.judged(town, stories, temper.at_rest)
    except TimeoutError:
        town.wrong.append("clients wait for ever")
    for gateway in town.gateways:
        gateway.process.kill()
    await asyncio.sleep(100)
    town.wrong += network.wrong
    town.wrong += [f"logged: {line}" for line in lines if _is_odd(line)]
    town.counts["writes"] = len(network.done())
    town.counts["requests"] = len(network.heard)
    return Result(seed, town.wrong, town.counts, town.trace.hexdigest())


def _hears(lines: list[Mapping[str, Any]]) -> None:
    def note(_logger: Any, _method: str, line: Any) -> Any:
        lines.append(dict(line))
        raise structlog.DropEvent

    structlog.configure(processors=[note], cache_logger_on_first_use=False)


def _is_odd(line: Mapping[str, Any]) -> bool:
    """Whether something raised what nobody had thought of."""
    return "raised_at" in line


def played(seed: int, *, shown: bool = False, **changes: Any) -> Result:
    """The same for the same seed, whenever and wherever it is played.

    ``changes`` are of its temper.
    """
    connection = database()
    loop = Loop()
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(_seed(seed, connection, changes, shown=shown))
        result.wrong += loop.wrong
        return result
    finally:
        loop.close()
        asyncio.set_event_loop(None)
        structlog.reset_defaults()
