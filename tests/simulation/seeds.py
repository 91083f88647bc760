"""Plays one seed: clients, gateways and a failing service, then recovery and checks."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import structlog

from tests.simulation import checks
from tests.simulation.assembly import (
    LEASE_SECONDS,
    Gateway,
    freeze_all_writes,
    settle_forwarded_writes,
    start_gateway,
    unfreeze_all_writes,
)
from tests.simulation.database import (
    Connection,
    SimulatedStore,
    empty_database,
    is_superseded,
    open_database,
)
from tests.simulation.event_loop import SimulatedEventLoop, SimulationStuck
from tests.simulation.network import (
    FAULTY_DELIVERIES,
    LEGACY_DELIVERIES,
    Delivery,
    LegacyNetwork,
    Network,
    build_service,
)
from tests.simulation.process import Process, ProcessKilled
from tests.simulation.scenarios import SCENARIOS, Kind, Scenario, build_person, build_wallet

MAX_SECONDS = 4000.0
"""Seconds of simulated time in which every client must have its response."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a seed."""

    gateways: int
    scenarios: int
    disturbance_seconds: float
    network: float
    state: float
    kill_rate: float
    pause_rate: float
    clock_jumps: tuple[float, ...]
    service_options: Mapping[str, Any]
    deliveries: tuple[Delivery, ...] = FAULTY_DELIVERIES
    kinds: tuple[Kind, ...] = SCENARIOS
    interruption_rate: float = 0.0
    """Share of batch creates after which the process is paused or killed."""
    outage_rate: float = 0.0
    """Share of recipient creates after which the service is down for a while."""
    freeze_rate: float = 0.0
    """How probable it is, in each pause between two freezes, that an operator freezes the writes."""
    duplicate_rate: float = 0.3
    """Share of requests that two clients send at once."""
    keys: float = 0.25
    kill_step: int | None = None
    """The step at which the first gateway is killed, counted from the first client's request."""
    at_rest: float = 800.0
    """Seconds of simulated time after which nothing may be in doubt that can be reconciled."""

    @classmethod
    def draw(cls, rng: random.Random) -> Conditions:
        return cls(
            gateways=rng.choice((1, 2, 2)),
            scenarios=rng.choice((1, 1, 2)),
            disturbance_seconds=rng.choice((2.0, 5.0, 10.0)),
            network=rng.choice((0.0, 0.1, 0.3, 0.6)),
            state=rng.choice((0.0, 0.0, 0.0, 0.03, 0.1)),
            kill_rate=rng.choice((0.0, 0.3, 1.0)),
            pause_rate=rng.choice((0.0, 0.0, 0.0, 0.3)),
            clock_jumps=rng.choice((*(((),) * 20), (29.0, -29.0), (31.0, -31.0), (300.0, -300.0))),
            service_options={
                "inferred": rng.random() < 0.5,
                "answers": rng.choice(("full", "bare")),
            },
            interruption_rate=rng.choice((0.0, 0.3, 1.0)),
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
    legacy_network: LegacyNetwork
    connection: Connection
    lease_seconds: float = LEASE_SECONDS
    is_undisturbed: bool = False
    gateways: list[Gateway] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    trace: Any = field(default_factory=hashlib.sha256)
    is_printed: bool = False

    def log(self, *words: Any) -> None:
        now = asyncio.get_running_loop().time()
        line = f"{now:.4f} {' '.join(map(str, words))}"
        self.trace.update(line.encode())
        if self.is_printed:
            sys.stdout.write(f"{line}\n")

    # Gateways

    async def start_gateway(self, gateway_index: int) -> None:
        gateway = await start_gateway(
            self.network,
            self.legacy_network,
            self.connection,
            self.random_source,
            self.problems.append,
            shared=self.conditions.gateways > 1,
            lease_seconds=self.lease_seconds,
        )
        gateway.state.memory_database.fault_rate = (
            0.0 if self.is_undisturbed else self.conditions.state
        )
        if gateway_index < len(self.gateways):
            gateway.process.clock_offset_seconds = self.gateways[
                gateway_index
            ].process.clock_offset_seconds
            self.gateways[gateway_index] = gateway
        else:
            self.gateways.append(gateway)
        self.log("open", gateway_index)

    async def _disturb(self, gateway_index: int) -> None:
        """Kills, stops and pauses one gateway, and replaces it."""
        rng, conditions = self.random_source, self.conditions
        while not self.is_undisturbed:
            gateway = self.gateways[gateway_index]
            if rng.random() < conditions.kill_rate:
                gateway.process.dies_at = gateway.process.steps + rng.randrange(1, 120)
            await asyncio.sleep(rng.uniform(0.05, 3.0))
            if gateway.process.is_dead:
                self.counts["kills"] += 1
            elif rng.random() < conditions.kill_rate * 0.2:
                await self._shut_down(gateway)
            if rng.random() < conditions.pause_rate:
                gateway.process.hold(rng.uniform(3, 60))
                self.counts["holds"] += 1
            if conditions.clock_jumps and rng.random() < 0.3:
                gateway.process.clock_offset_seconds += rng.choice(conditions.clock_jumps)
                self.counts["jumps"] += 1
            if gateway.process.is_dead:
                await asyncio.sleep(rng.choice((0.0, 0.1, 2.0, 10.0)))
                await self.start_gateway(gateway_index)

    async def _shut_down(self, gateway: Gateway) -> None:
        self.counts["ends"] += 1
        with contextlib.suppress(ProcessKilled, asyncio.CancelledError):
            await gateway.process.start_task(gateway.close())
        gateway.process.kill()

    async def stop_disturbances(self) -> None:
        self.is_undisturbed, self.legacy_network.fault_rate = True, 0.0
        self.network.recover()
        for gateway_index, gateway in enumerate(self.gateways):
            gateway.state.memory_database.fault_rate, gateway.process.dies_at = 0.0, None
            while (
                self.gateways[gateway_index].process.is_dead
                or not self.gateways[gateway_index].is_open
            ):
                await self.start_gateway(gateway_index)
        self.log("calm")

    async def _freeze_writes(self) -> None:
        """Freezes all writes now and then, as an operator does, and unfreezes them."""
        rng = random.Random(f"freezes {self.seed}")
        store = SimulatedStore(Process(rng), self.connection, shared=True)
        networks = (self.network, self.legacy_network)
        while not self.is_undisturbed:
            await asyncio.sleep(rng.uniform(0.0, 2.0))
            if rng.random() >= self.conditions.freeze_rate:
                continue
            await freeze_all_writes(store)
            self.counts["freezes"] += 1
            self.log("frozen")
            for network in networks:
                network.frozen_at = asyncio.get_running_loop().time()
            await asyncio.sleep(rng.choice((0.1, 1.0, 5.0, 30.0)))
            for network in networks:
                network.frozen_at = None
            await unfreeze_all_writes(store)
            self.log("unfrozen")

    async def _settle_forwarded_writes(self) -> None:
        """Settles what only an operator can settle, for as long as clients wait."""
        store = SimulatedStore(Process(random.Random(self.seed)), self.connection, shared=True)
        while True:
            await asyncio.sleep(10)
            await settle_forwarded_writes(store, self.legacy_network)

    # Scenarios

    def _build_scenario(self, tag: str, payee: str) -> Scenario:
        rng, conditions = random.Random(self.random_source.random()), self.conditions
        return Scenario(
            self,
            self.network,
            self.legacy_network,
            tag,
            payee,
            rng,
            duplicate_rate=conditions.duplicate_rate,
            keys=conditions.keys,
        )

    async def create_payee(self) -> str:
        scenario = self._build_scenario("payee", "")
        address = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
        body = build_person("payee", address=address, payout=build_wallet("payee"))
        return str((await scenario.request_body("create_recipient", body))["recipient"]["id"])

    async def run(self) -> list[Scenario]:
        self.is_undisturbed = True
        for gateway_index in range(self.conditions.gateways):
            await self.start_gateway(gateway_index)
        payee = await self.create_payee()
        self.is_undisturbed, self.network.fault_rate = False, self.conditions.network
        self.legacy_network.fault_rate = self.conditions.network
        self.network.pause_rate = self.conditions.interruption_rate
        self.network.outage_rate = self.conditions.outage_rate
        for gateway in self.gateways:
            gateway.state.memory_database.fault_rate = self.conditions.state
        if self.conditions.kill_step is not None:
            process = self.gateways[0].process
            process.dies_at = process.steps + self.conditions.kill_step
        disturbance_tasks = [
            asyncio.create_task(self._disturb(gateway_index))
            for gateway_index in range(self.conditions.gateways)
        ]
        disturbance_tasks.append(asyncio.create_task(self._freeze_writes()))
        names = [f"story-{number}-end" for number in range(self.conditions.scenarios)]
        scenarios = [self._build_scenario(name, payee) for name in names]
        kinds = self.conditions.kinds
        tasks = [
            asyncio.create_task(self.random_source.choice(kinds)(scenario))
            for scenario in scenarios
        ]
        await asyncio.sleep(self.conditions.disturbance_seconds)
        self.is_undisturbed = True
        await asyncio.gather(*disturbance_tasks)
        await self.stop_disturbances()
        async with asyncio.timeout(MAX_SECONDS):
            await asyncio.gather(*tasks)
        return scenarios


async def _play_seed(
    seed: int, connection: Connection, changes: Mapping[str, Any], *, is_printed: bool
) -> Result:
    rng = random.Random(seed)
    random.seed(seed)  # for the random numbers of the product
    # Drawn apart, so that the other conditions of a seed stay what they were.
    outage_rate = random.Random(f"outage {seed}").choice((0.0, 0.0, 0.3, 1.0))
    freeze_rate = random.Random(f"freeze {seed}").choice((0.0, 0.0, 0.3, 1.0))
    changes = {"outage_rate": outage_rate, "freeze_rate": freeze_rate, **changes}
    conditions = replace(Conditions.draw(rng), **changes)
    network = Network(
        build_service(rng, **conditions.service_options),
        random.Random(rng.random()),
        deliveries=conditions.deliveries,
    )
    legacy_network = LegacyNetwork(
        network.service, random.Random(rng.random()), deliveries=LEGACY_DELIVERIES
    )
    simulation = Simulation(
        seed, rng, conditions, network, legacy_network, connection, is_printed=is_printed
    )
    empty_database(connection)
    network.log, network.is_superseded = simulation.log, partial(is_superseded, connection)
    legacy_network.log = simulation.log
    if is_printed:
        sys.stdout.write(f"{conditions}\n")
    lines: list[Mapping[str, Any]] = []
    _capture_log(lines)
    operator_task = asyncio.create_task(simulation._settle_forwarded_writes())
    try:
        scenarios = await simulation.run()
        simulation.problems += await checks.list_problems(simulation, scenarios, conditions.at_rest)
    except TimeoutError:
        simulation.problems.append("clients wait for ever")
    operator_task.cancel()
    for gateway in simulation.gateways:
        gateway.process.kill()
    await asyncio.sleep(100)
    simulation.problems += network.problems
    simulation.problems += [f"logged: {line}" for line in lines if _is_unforeseen(line)]
    simulation.counts["writes"] = len(network.list_executed_writes())
    simulation.counts["requests"] = len(network.requests)
    simulation.counts["forwarded"] = len(legacy_network.list_executed_writes())
    return Result(seed, simulation.problems, simulation.counts, simulation.trace.hexdigest())


def _capture_log(lines: list[Mapping[str, Any]]) -> None:
    def record_line(_logger: Any, _method: str, line: Any) -> Any:
        lines.append(dict(line))
        raise structlog.DropEvent

    structlog.configure(processors=[record_line], cache_logger_on_first_use=False)


def _is_unforeseen(line: Mapping[str, Any]) -> bool:
    """Whether an unforeseen exception was logged."""
    return "raised_at" in line


def play_seed(seed: int, *, is_printed: bool = False, **changes: Any) -> Result:
    """Plays a seed; the result depends on nothing else.

    ``changes`` replace fields of its conditions.
    """
    connection = open_database()
    loop = SimulatedEventLoop()
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(
            _play_seed(seed, connection, changes, is_printed=is_printed)
        )
        result.problems += loop.problems
    except SimulationStuck as stuck:
        result = Result(seed, [f"{stuck}"], Counter(), "")
    finally:
        loop.close()
        asyncio.set_event_loop(None)
        structlog.reset_defaults()
    return result
