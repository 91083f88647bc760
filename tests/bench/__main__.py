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
    big,
    big_batch,
    comparing,
    lists,
    load,
    machine,
    report,
    scaling,
    starting,
    telling,
)
from tests.bench.figures import DIRECT, Measured, Round, part_of
from tests.bench.starting import Contestant
from tests.bench.work import WORKS, Work

LEAST = 4
"""Least number of requests of a round."""

ALONE = 0.4
"""Share of a round in which a single client sends requests."""

OWN = frozenset({"id"})
"""Fields whose values differ between gateways."""


async def measure(one: Contestant, work: Work, seconds: float) -> Round:
    alone = await load.ask(one.port, work, 1, seconds * ALONE)
    before = machine.cpu_seconds(one.pid)
    heard = await load.ask(one.port, work, work.clients, seconds, LEAST)
    used = machine.cpu_seconds(one.pid) - before
    count = len(heard.took)
    return Round(
        alone_p50=part_of(alone.took, 50),
        cpu=1e6 * used / count,
        per_second=count / heard.seconds,
        p50=part_of(heard.took, 50),
        p99=part_of(heard.took, 99),
    )


async def direct(port: int, work: Work, seconds: float) -> Round:
    heard = await load.ask(port, work, 1, seconds * ALONE)
    return Round(alone_p50=part_of(heard.took, 50))


async def rounds(
    contestants: Sequence[Contestant],
    service_port: int,
    works: Sequence[Work],
    options: argparse.Namespace,
) -> Measured:
    names = [DIRECT, *(one.name for one in contestants)]
    measured: dict[tuple[str, str], list[Round]] = {
        (work.name, name): [] for work in works for name in names
    }
    for number in range(1, options.rounds + 1):
        for work in works:
            print(f"round {number} of {options.rounds}: {work.name}", flush=True)
            found = await direct(service_port, work, options.seconds)
            measured[work.name, DIRECT].append(found)
            for one in contestants:
                found = await measure(one, work, options.seconds)
                measured[work.name, one.name].append(found)
    return measured


async def warm(contestants: Sequence[Contestant], works: Sequence[Work]) -> None:
    for one in contestants:
        print(f"warming up {one.name}", flush=True)
        for work in works:
            least = 2 * work.among if work.among < 1000 else 1
            await load.ask(one.port, work, work.clients, 0.6 if work.clients > 2 else 0, least)


async def same_job(contestants: Sequence[Contestant], works: Sequence[Work]) -> None:
    """Checks that all translating contestants answer alike, or the comparison means nothing."""
    for work in works:
        answers = {
            one.name: _comparable(json.loads(await load.one(one.port, work)))
            for one in contestants
            if one.name != starting.PASSING
        }
        expected = answers[starting.GATEWAY]
        for name, answer in answers.items():
            if answer != expected:
                raise SystemExit(f"{name} answers {work.name} with\n{answer}\nand not\n{expected}")


def _comparable(value: Any) -> Any:
    """Drops ids and request numbers, which differ."""
    if isinstance(value, dict):
        return {name: _comparable(one) for name, one in value.items() if name not in OWN}
    if isinstance(value, list):
        return [_comparable(one) for one in value]
    return value if not isinstance(value, str) else value.rstrip("0123456789")


async def bench(options: argparse.Namespace) -> None:
    _server, beside = machine.cores()
    where = "pinned: servers on one core, load and service on another"
    print(where if machine.is_pinned() else "not pinned: everything shares what there is")
    print(f"load before: {os.getloadavg()[0]:.2f}", flush=True)
    with tempfile.TemporaryDirectory() as name, machine.on(beside):
        async with (
            starting.service() as port,
            starting.all_of_them(Path(name), port, options.postgres) as (contestants, missing),
        ):
            works = [work for work in WORKS if work.name in (options.only or work.name)]
            await same_job(contestants, works)
            await warm(contestants, works)
            measured = await rounds(contestants, port, works, options)
            goals = [await telling.share(Path(name) / "telling", port, options.rounds)]
        scaled = f"left out: several workers: {missing.get(starting.ON_POSTGRES)}"
        if options.postgres:
            folder = Path(name) / starting.ON_POSTGRES
            scaled = await scaling.bench(folder, options.rounds, options.seconds, options.redis)
    print(f"\n{report.table(measured, missing, goals)}")
    print(f"\n{scaled}")
    told = {"rounds": options.rounds, "seconds": options.seconds}
    report.write(options.output, measured, report.document(measured, missing, told, goals))
    print(f"\n{options.output}/bench.json and bench.svg have it too")


def made_folder(name: str) -> Path:
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
        choices=[work.name for work in WORKS],
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
    parser.add_argument("--payments", type=int, default=big_batch.COUNT, help="of --big")
    parser.add_argument(
        "--lists", action="store_true", help="instead: lists over ever more recipients"
    )
    parser.add_argument("--recipients", type=int, nargs="+", default=lists.SIZES, help="of --lists")
    parser.add_argument("--output", type=made_folder, default=starting.INSTALLED)
    options = parser.parse_args()
    starting.INSTALLED.mkdir(exist_ok=True)
    if options.big:
        uvloop.run(big.bench(options.payments))
    elif options.comparing:
        uvloop.run(comparing.bench(options.rounds, options.seconds))
    elif options.lists:
        uvloop.run(lists.bench(options.recipients))
    else:
        uvloop.run(bench(options))


if __name__ == "__main__":
    main()
