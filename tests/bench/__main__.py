"""``python -m tests.bench``: measures the gateway beside other proxies in one run.

Everybody is asked the same, in turns: each round has every contestant once for each work, so that
what else the machine does meanwhile meets all of them.
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
from tests.bench.figures import DIRECT, Measured, Round, compute_percentile
from tests.bench.workloads import WORKLOADS, Workload

MIN_REQUESTS = 4
"""Least number of requests of a round."""

SINGLE_CLIENT_SHARE = 0.4
"""Share of a round in which a single client sends requests."""

VARYING_FIELDS = frozenset({"id"})
"""Fields whose values differ between gateways."""


async def measure(one: Contestant, work: Workload, seconds: float) -> Round:
    alone = await load.run_clients(one.port, work, 1, seconds * SINGLE_CLIENT_SHARE)
    before = machine.read_cpu_seconds(one.pid)
    heard = await load.run_clients(one.port, work, work.clients, seconds, MIN_REQUESTS)
    used = machine.read_cpu_seconds(one.pid) - before
    count = len(heard.took)
    return Round(
        alone_p50=compute_percentile(alone.took, 50),
        cpu=1e6 * used / count,
        per_second=count / heard.seconds,
        p50=compute_percentile(heard.took, 50),
        p99=compute_percentile(heard.took, 99),
    )


async def measure_service(port: int, work: Workload, seconds: float) -> Round:
    heard = await load.run_clients(port, work, 1, seconds * SINGLE_CLIENT_SHARE)
    return Round(alone_p50=compute_percentile(heard.took, 50))


async def run_rounds(
    contestants: Sequence[Contestant],
    service_port: int,
    works: Sequence[Workload],
    options: argparse.Namespace,
) -> Measured:
    names = [DIRECT, *(one.name for one in contestants)]
    measured: dict[tuple[str, str], list[Round]] = {
        (work.name, name): [] for work in works for name in names
    }
    for number in range(1, options.rounds + 1):
        for work in works:
            print(f"round {number} of {options.rounds}: {work.name}", flush=True)
            found = await measure_service(service_port, work, options.seconds)
            measured[work.name, DIRECT].append(found)
            for one in contestants:
                found = await measure(one, work, options.seconds)
                measured[work.name, one.name].append(found)
    return measured


async def warm_up(contestants: Sequence[Contestant], works: Sequence[Workload]) -> None:
    for one in contestants:
        print(f"warming up {one.name}", flush=True)
        for work in works:
            least = 2 * work.among if work.among < 1000 else 1
            await load.run_clients(
                one.port, work, work.clients, 0.6 if work.clients > 2 else 0, least
            )


async def check_same_answers(contestants: Sequence[Contestant], works: Sequence[Workload]) -> None:
    """Checks that all translating contestants answer alike, or the comparison means nothing."""
    for work in works:
        answers = {
            one.name: _remove_varying(json.loads(await load.fetch_once(one.port, work)))
            for one in contestants
            if one.name != contestant_processes.PASSING
        }
        expected = answers[contestant_processes.GATEWAY]
        for name, answer in answers.items():
            if answer != expected:
                raise SystemExit(f"{name} answers {work.name} with\n{answer}\nand not\n{expected}")


def _remove_varying(value: Any) -> Any:
    """Drops ids and request numbers, which differ."""
    if isinstance(value, dict):
        return {
            name: _remove_varying(one) for name, one in value.items() if name not in VARYING_FIELDS
        }
    if isinstance(value, list):
        return [_remove_varying(one) for one in value]
    return value if not isinstance(value, str) else value.rstrip("0123456789")


async def run_bench(options: argparse.Namespace) -> None:
    _server, beside = machine.select_cores()
    where = "pinned: servers on one core, load and service on another"
    print(where if machine.is_pinned() else "not pinned: everything shares what there is")
    print(f"load before: {os.getloadavg()[0]:.2f}", flush=True)
    with tempfile.TemporaryDirectory() as name, machine.pin_to_cores(beside):
        async with (
            contestant_processes.start_service() as port,
            contestant_processes.start_contestants(Path(name), port, options.postgres) as (
                contestants,
                missing,
            ),
        ):
            works = [work for work in WORKLOADS if work.name in (options.only or work.name)]
            await check_same_answers(contestants, works)
            await warm_up(contestants, works)
            measured = await run_rounds(contestants, port, works, options)
            goals = [await logging_cost.measure_share(Path(name) / "telling", port, options.rounds)]
        scaled = f"left out: several workers: {missing.get(contestant_processes.ON_POSTGRES)}"
        if options.postgres:
            folder = Path(name) / contestant_processes.ON_POSTGRES
            scaled = await scaling.run_bench(folder, options.rounds, options.seconds, options.redis)
    print(f"\n{report.format_table(measured, missing, goals)}")
    print(f"\n{scaled}")
    told = {"rounds": options.rounds, "seconds": options.seconds}
    report.write_report(
        options.output, measured, report.build_document(measured, missing, told, goals)
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
        choices=[work.name for work in WORKLOADS],
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
