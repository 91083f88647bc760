"""``python -m tests.bench``: measures the gateway beside other proxies in one run.

All contestants get the same requests, in turns: each round measures every contestant once for each workload, so
that other load of the machine affects all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from tests.bench import (
    contestant_processes,
    large_batch,
    large_batch_bodies,
    list_queries,
    load,
    logging_cost,
    machine,
    report,
    scaling,
    shadow_traffic,
)
from tests.bench.contestant_processes import Contestant
from tests.bench.figures import DIRECT, Round, RoundsByWorkload, compute_percentile
from tests.bench.workloads import WORKLOADS, Workload

MIN_REQUESTS = 4
"""Least number of requests of a round."""

SINGLE_CLIENT_SHARE = 0.4
"""Share of a round in which a single client sends requests."""

VARYING_FIELDS = frozenset({"id"})
"""Fields whose values differ between gateways."""


async def measure(contestant: Contestant, workload: Workload, seconds: float) -> Round:
    single_client_result = await load.run_clients(
        contestant.port, workload, 1, seconds * SINGLE_CLIENT_SHARE
    )
    cpu_before = machine.read_cpu_seconds(contestant.pid)
    result = await load.run_clients(
        contestant.port, workload, workload.clients, seconds, MIN_REQUESTS
    )
    cpu_seconds = machine.read_cpu_seconds(contestant.pid) - cpu_before
    count = len(result.durations)
    return Round(
        alone_p50=compute_percentile(single_client_result.durations, 50),
        cpu=1e6 * cpu_seconds / count,
        per_second=count / result.seconds,
        p50=compute_percentile(result.durations, 50),
        p99=compute_percentile(result.durations, 99),
    )


async def measure_service(port: int, workload: Workload, seconds: float) -> Round:
    result = await load.run_clients(port, workload, 1, seconds * SINGLE_CLIENT_SHARE)
    return Round(alone_p50=compute_percentile(result.durations, 50))


async def run_rounds(
    contestants: Sequence[Contestant],
    service_port: int,
    workloads: Sequence[Workload],
    options: argparse.Namespace,
) -> RoundsByWorkload:
    names = [DIRECT, *(contestant.name for contestant in contestants)]
    rounds_by_workload: dict[tuple[str, str], list[Round]] = {
        (workload.name, name): [] for workload in workloads for name in names
    }
    for number in range(1, options.rounds + 1):
        for workload in workloads:
            print(f"round {number} of {options.rounds}: {workload.name}", flush=True)
            round_result = await measure_service(service_port, workload, options.seconds)
            rounds_by_workload[workload.name, DIRECT].append(round_result)
            for contestant in contestants:
                round_result = await measure(contestant, workload, options.seconds)
                rounds_by_workload[workload.name, contestant.name].append(round_result)
    return rounds_by_workload


async def warm_up(contestants: Sequence[Contestant], workloads: Sequence[Workload]) -> None:
    for contestant in contestants:
        print(f"warming up {contestant.name}", flush=True)
        for workload in workloads:
            min_requests = 2 * workload.number_count if workload.number_count < 1000 else 1
            await load.run_clients(
                contestant.port,
                workload,
                workload.clients,
                0.6 if workload.clients > 2 else 0,
                min_requests,
            )


async def check_same_answers(
    contestants: Sequence[Contestant], workloads: Sequence[Workload]
) -> None:
    """Checks that all translating contestants answer alike, or the comparison means nothing."""
    for workload in workloads:
        responses = {
            contestant.name: _remove_varying(
                json.loads(await load.fetch_once(contestant.port, workload))
            )
            for contestant in contestants
            if contestant.name != contestant_processes.PASSING
        }
        expected_response = responses[contestant_processes.GATEWAY]
        for name, response in responses.items():
            if response != expected_response:
                raise SystemExit(
                    f"{name} answers {workload.name} with\n{response}\nand not\n{expected_response}"
                )


def _remove_varying(value: Any) -> Any:
    """Drops ids and request numbers, which differ."""
    if isinstance(value, dict):
        return {
            name: _remove_varying(item)
            for name, item in value.items()
            if name not in VARYING_FIELDS
        }
    if isinstance(value, list):
        return [_remove_varying(item) for item in value]
    return value if not isinstance(value, str) else value.rstrip("0123456789")


async def run_bench(options: argparse.Namespace) -> None:
    _server, client_cores = machine.select_cores()
    placement = "pinned: servers on one core, load and service on another"
    print(placement if machine.is_pinned() else "not pinned: everything shares what there is")
    print(f"load before: {os.getloadavg()[0]:.2f}", flush=True)
    with tempfile.TemporaryDirectory() as name, machine.pin_to_cores(client_cores):
        async with (
            contestant_processes.start_service() as port,
            contestant_processes.start_contestants(Path(name), port, options.postgres) as (
                contestants,
                missing,
            ),
        ):
            workloads = [
                workload
                for workload in WORKLOADS
                if workload.name in (options.only or workload.name)
            ]
            await check_same_answers(contestants, workloads)
            await warm_up(contestants, workloads)
            rounds_by_workload = await run_rounds(contestants, port, workloads, options)
            goals = [await logging_cost.measure_share(Path(name) / "telling", port, options.rounds)]
        scaling_table = (
            f"left out: several workers: {missing.get(contestant_processes.ON_POSTGRES)}"
        )
        if options.postgres:
            folder = Path(name) / contestant_processes.ON_POSTGRES
            scaling_table = await scaling.run_bench(
                folder, options.rounds, options.seconds, options.redis
            )
    print(f"\n{report.format_table(rounds_by_workload, missing, goals)}")
    print(f"\n{scaling_table}")
    document = {"rounds": options.rounds, "seconds": options.seconds}
    report.write_report(
        options.output,
        rounds_by_workload,
        report.build_document(rounds_by_workload, missing, document, goals),
    )
    print(f"\n{options.output}/bench.json and bench.svg have it too")


def create_folder(name: str) -> Path:
    """Creates the output first, so that a path that cannot be written fails at once."""
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{name} cannot be made ({error.strerror})") from None
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument(
        "--only",
        action="append",
        choices=[workload.name for workload in WORKLOADS],
        help="this work alone; may be given again for more",
    )
    parser.add_argument("--postgres", help="URL of an empty database, to be measured too")
    parser.add_argument(
        "--redis", default="redis://127.0.0.1:6379/9", help="for several workers on it"
    )
    parser.add_argument(
        "--big", action="store_true", help="instead: one batch of very many payments, and back"
    )
    parser.add_argument(
        "--comparing", action="store_true", help="instead: what a live comparison adds to an answer"
    )
    parser.add_argument("--payments", type=int, default=large_batch_bodies.COUNT, help="of --big")
    parser.add_argument(
        "--lists", action="store_true", help="instead: lists over ever more recipients"
    )
    parser.add_argument(
        "--recipients", type=int, nargs="+", default=list_queries.SIZES, help="of --lists"
    )
    parser.add_argument("--output", type=create_folder, default=contestant_processes.INSTALLED)
    options = parser.parse_args()
    contestant_processes.INSTALLED.mkdir(exist_ok=True)
    if options.big:
        uvloop.run(large_batch.run_bench(options.payments))
    elif options.comparing:
        uvloop.run(shadow_traffic.run_bench(options.rounds, options.seconds))
    elif options.lists:
        uvloop.run(list_queries.run_bench(options.recipients))
    else:
        uvloop.run(run_bench(options))


if __name__ == "__main__":
    main()
