"""Plays one seed: clients, gateways and a failing service, then recovery and checks."""

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

from tests.simulation import checks
from tests.simulation.assembly import LEASE_SECONDS, Gateway, start_gateway
from tests.simulation.database import empty_database, is_superseded, open_database
from tests.simulation.event_loop import SimulatedEventLoop
from tests.simulation.network import FATES, Fate, Network, build_service
from tests.simulation.process import ProcessKilled
from tests.simulation.scenarios import SCENARIOS, Kind, Scenario, build_person, build_wallet

MAX_SECONDS = 4000.0
"""Seconds of simulated time in which every client must have its response."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a seed."""

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
    kinds: tuple[Kind, ...] = SCENARIOS
    snags: float = 0.0
    """Share of batch creates after which the process is paused or killed."""
    twins: float = 0.3
    """Share of requests that two clients send at once."""
    keys: float = 0.25
    at_rest: float = 800.0
    """Seconds of simulated time after which nothing may be in doubt that can be reconciled."""

    @classmethod
    def draw(cls, dice: random.Random) -> Conditions:
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
    problems: list[str]
    counts: Counter[str]
    trace: str


@dataclass
class Simulation:
    seed: int
    random_source: random.Random
    conditions: Conditions
    network: Network
    connection: sqlite3.Connection
    lease_seconds: float = LEASE_SECONDS
    is_calm: bool = False
    gateways: list[Gateway] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    trace: Any = field(default_factory=hashlib.sha256)
    is_printed: bool = False

    def log(self, *what: Any) -> None:
        now = asyncio.get_running_loop().time()
        line = f"{now:.4f} {' '.join(map(str, what))}"
        self.trace.update(line.encode())
        if self.is_printed:
            sys.stdout.write(f"{line}\n")

    # Gateways

    async def start_gateway(self, at: int) -> None:
        gateway = await start_gateway(
            self.network,
            self.connection,
            self.random_source,
            self.problems.append,
            shared=self.conditions.gateways > 1,
            lease_seconds=self.lease_seconds,
        )
        gateway.state.memory_database.fault_rate = 0.0 if self.is_calm else self.conditions.state
        if at < len(self.gateways):
            gateway.process.clock_offset_seconds = self.gateways[at].process.clock_offset_seconds
            self.gateways[at] = gateway
        else:
            self.gateways.append(gateway)
        self.log("open", at)

    async def _disturb(self, at: int) -> None:
        """Kills, stops and pauses one gateway, and replaces it."""
        dice, temper = self.random_source, self.conditions
        while not self.is_calm:
            gateway = self.gateways[at]
            if dice.random() < temper.kills:
                gateway.process.dies_at = gateway.process.steps + dice.randrange(1, 120)
            await asyncio.sleep(dice.uniform(0.05, 3.0))
            if gateway.process.is_dead:
                self.counts["kills"] += 1
            elif dice.random() < temper.kills * 0.2:
                await self._shut_down(gateway)
            if dice.random() < temper.holds:
                gateway.process.hold(dice.uniform(3, 60))
                self.counts["holds"] += 1
            if temper.jumps and dice.random() < 0.3:
                gateway.process.clock_offset_seconds += dice.choice(temper.jumps)
                self.counts["jumps"] += 1
            if gateway.process.is_dead:
                await asyncio.sleep(dice.choice((0.0, 0.1, 2.0, 10.0)))
                await self.start_gateway(at)

    async def _shut_down(self, gateway: Gateway) -> None:
        self.counts["ends"] += 1
        with contextlib.suppress(ProcessKilled, asyncio.CancelledError):
            await gateway.process.start_task(gateway.close())
        gateway.process.kill()

    async def calm(self) -> None:
        self.is_calm, self.network.fault_rate, self.network.pause_rate = True, 0.0, 0.0
        for at, gateway in enumerate(self.gateways):
            gateway.state.memory_database.fault_rate, gateway.process.dies_at = 0.0, None
            while self.gateways[at].process.is_dead or not self.gateways[at].is_open:
                await self.start_gateway(at)
        self.log("calm")

    # Scenarios

    def _build_story(self, mark: str, payee: str) -> Scenario:
        dice, temper = random.Random(self.random_source.random()), self.conditions
        return Scenario(self, self.network, mark, payee, dice, twins=temper.twins, keys=temper.keys)

    async def create_payee(self) -> str:
        story = self._build_story("payee", "")
        address = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
        body = build_person("payee", address=address, payout=build_wallet("payee"))
        return str((await story.request_body("create_recipient", body))["recipient"]["id"])

    async def play(self) -> list[Scenario]:
        self.is_calm = True
        for at in range(self.conditions.gateways):
            await self.start_gateway(at)
        payee = await self.create_payee()
        self.is_calm, self.network.fault_rate = False, self.conditions.network
        self.network.pause_rate = self.conditions.snags
        for gateway in self.gateways:
            gateway.state.memory_database.fault_rate = self.conditions.state
        disturbances = [
            asyncio.create_task(self._disturb(at)) for at in range(self.conditions.gateways)
        ]
        names = [f"story-{number}-end" for number in range(self.conditions.stories)]
        stories = [self._build_story(name, payee) for name in names]
        kinds = self.conditions.kinds
        tasks = [asyncio.create_task(self.random_source.choice(kinds)(story)) for story in stories]
        await asyncio.sleep(self.conditions.storm)
        self.is_calm = True
        await asyncio.gather(*disturbances)
        await self.calm()
        async with asyncio.timeout(MAX_SECONDS):
            await asyncio.gather(*tasks)
        return stories


async def _play_seed(
    seed: int, connection: sqlite3.Connection, changes: Mapping[str, Any], *, shown: bool
) -> Result:
    dice = random.Random(seed)
    random.seed(seed)  # for the random numbers of the product
    conditions = replace(Conditions.draw(dice), **changes)
    network = Network(
        build_service(dice, **conditions.switches),
        random.Random(dice.random()),
        fates=conditions.fates,
    )
    simulation = Simulation(seed, dice, conditions, network, connection, is_printed=shown)
    empty_database(connection)
    network.log, network.is_superseded = simulation.log, partial(is_superseded, connection)
    if shown:
        sys.stdout.write(f"{conditions}\n")
    lines: list[Mapping[str, Any]] = []
    _capture_log(lines)
    try:
        stories = await simulation.play()
        simulation.problems += await checks.list_problems(simulation, stories, conditions.at_rest)
    except TimeoutError:
        simulation.problems.append("clients wait for ever")
    for gateway in simulation.gateways:
        gateway.process.kill()
    await asyncio.sleep(100)
    simulation.problems += network.problems
    simulation.problems += [f"logged: {line}" for line in lines if _is_unforeseen(line)]
    simulation.counts["writes"] = len(network.list_executed_writes())
    simulation.counts["requests"] = len(network.requests)
    return Result(seed, simulation.problems, simulation.counts, simulation.trace.hexdigest())


def _capture_log(lines: list[Mapping[str, Any]]) -> None:
    def note(_logger: Any, _method: str, line: Any) -> Any:
        lines.append(dict(line))
        raise structlog.DropEvent

    structlog.configure(processors=[note], cache_logger_on_first_use=False)


def _is_unforeseen(line: Mapping[str, Any]) -> bool:
    """Whether an unforeseen exception was logged."""
    return "raised_at" in line


def play_seed(seed: int, *, shown: bool = False, **changes: Any) -> Result:
    """Plays a seed; the result depends on nothing else.

    ``changes`` replace fields of its conditions.
    """
    connection = open_database()
    loop = SimulatedEventLoop()
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(_play_seed(seed, connection, changes, shown=shown))
        result.problems += loop.problems
        return result
    finally:
        loop.close()
        asyncio.set_event_loop(None)
        structlog.reset_defaults()
