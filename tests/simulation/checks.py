"""Compares, at the end of a seed, the service, the journal and the clients' responses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tests.journal_check import UNVERIFIABLE_SUFFIXES
from tests.simulation.database import list_open_operations, list_writes, take_forbidden_changes
from tests.simulation.network import SIGNED_BY_CLIENT, LegacyNetwork, Network
from tests.simulation.scenarios import Scenario
from tests.state import StoredWrite

if TYPE_CHECKING:
    from tests.simulation.seeds import Simulation


async def list_problems(
    simulation: Simulation, scenarios: Sequence[Scenario], at_rest: float
) -> list[str]:
    problems = await _wait_until_settled(simulation, at_rest)
    for scenario in scenarios:
        problems += scenario.list_problems()
    forbidden_changes = take_forbidden_changes(simulation.connection)
    problems += [f"forbidden change of {change}" for change in forbidden_changes]
    networks = (simulation.network, simulation.legacy_network)
    problems += _check_sent_once(*networks)
    problems += compare_with_service(list_writes(simulation.connection), *networks)
    return problems


async def _wait_until_settled(simulation: Simulation, seconds: float) -> list[str]:
    """Waits until no operation is open; returns those that remain."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while remaining := list_open_operations(simulation.connection):
        if loop.time() >= deadline:
            break
        await asyncio.sleep(10)
    simulation.counts["left"] = len(remaining)
    return [f"not settled: {operation}" for operation in remaining]


def _check_sent_once(network: Network, legacy_network: LegacyNetwork) -> Iterator[str]:
    starts = Counter([*network.list_starts(), *legacy_network.list_starts()])
    yield from (f"{id_} was started {times} times" for id_, times in starts.items() if times > 1)
    forwarded = Counter(
        request.headers["X-Request-Id"] for request in legacy_network.requests if request.is_write
    )
    yield from (
        f"{id_} was forwarded {times} times" for id_, times in forwarded.items() if times > 1
    )


def compare_with_service(stored_writes: list[StoredWrite], *networks: Network) -> Iterator[str]:
    """Differences between the journal and the services."""
    executed_writes = [
        request for network in networks for request in network.list_executed_writes()
    ]
    executed_counts = Counter(
        _build_target(request.method, request.path) for request in executed_writes
    )
    known_counts = Counter(
        (stored_write.method, stored_write.path)
        for stored_write in stored_writes
        if stored_write.is_executed
    )
    open_counts = Counter(
        (stored_write.method, stored_write.path)
        for stored_write in stored_writes
        if stored_write.may_exist
    )
    for target, times in executed_counts.items():
        # A replaced account is deleted by a cleanup, which counts as refused without a response.
        is_cleanup = target[0] == "DELETE" and "/accounts/" in target[1]
        if (
            not (is_cleanup or target[1].endswith(UNVERIFIABLE_SUFFIXES))
            and times > known_counts[target] + open_counts[target]
        ):
            yield f"executed {times} times, and known {known_counts[target]} times: {target}"
    for target, times in known_counts.items():
        if times > executed_counts[target]:
            yield f"marked as executed, and was not: {target}"
    claimed_counts = Counter(
        stored_write.object_id for stored_write in stored_writes if stored_write.object_id
    )
    yield from (
        f"{id_} is claimed by {times}" for id_, times in claimed_counts.items() if times > 1
    )
    created_requests = {
        request.created_id: request for request in executed_writes if request.created_id
    }
    yield from (
        f"{id_} is claimed, and was not made"
        for id_ in claimed_counts.keys() - created_requests.keys()
    )
    for id_, request in created_requests.items():
        if (
            id_ not in claimed_counts
            # Their clients know what they have made, whether or not the response came.
            and SIGNED_BY_CLIENT not in request.headers
            and not open_counts[_build_target(request.method, request.path)]
        ):
            yield f"{id_} was made, and nobody knows"
    yield from (
        f"{id_} was started, and nobody knows it"
        for network in networks
        for id_ in network.list_starts()
        if id_ not in claimed_counts
    )
    yield from (
        f"lost: {stored_write}"
        for stored_write in stored_writes
        if stored_write.is_open and not stored_write.has_open_operation
    )


def _build_target(method: str, path: str) -> tuple[str, str]:
    return method, path.removeprefix("/v1")
