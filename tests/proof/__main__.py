"""`make proof`: compares random sequences for a given time, and prints how much was compared.

It continues after a difference, reports each kind once, and prints the shortest sequence that shows it at
the end.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click
import structlog
import uvloop

from tests.proof.compared_services import (
    OWN_WORDS,
    ComparedServices,
    Tally,
    format_differences,
    open_compared_services,
)
from tests.proof.findings import Findings, Kind, shorten_sequence
from tests.proof.known_differences import KNOWN_DIFFERENCES
from tests.proof.seeded_draw import draw_from_seed
from tests.proof.sequences import ProofRequest, sequences

SEQUENCES_PER_SERVICE = 100
"""Sequences before both services are replaced."""
REPORT_SECONDS = 300
IN_MEMORY = Path("/dev/shm")
"""Databases need no durability here, and a disk would slow the proof down."""

LONG_SEQUENCES = sequences(min_requests=10, max_requests=40)
"""Long sequences, because some effects show late."""

Result = TypeVar("Result")


def main() -> int:
    arguments = argparse.ArgumentParser(prog="tests.proof", description=__doc__)
    arguments.add_argument("--seconds", type=float, default=3600)
    arguments.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    options = arguments.parse_args()
    tally, findings = Tally(), Findings()
    start_time = time.monotonic()
    click.echo(f"from seed {options.seed} on, for {options.seconds:g} s")
    last_report, seed = start_time, options.seed
    while (now := time.monotonic()) < start_time + options.seconds:
        if now > last_report + REPORT_SECONDS:
            last_report = now
            click.echo(f"{now - start_time:.0f} s: {tally.compared_count} answers compared")
        for kind in _compare_seed(seed, tally, findings, start_time + options.seconds):
            click.echo(f"seed {seed}: {' '.join(kind)}")
        seed += 1
    _print_tally(tally, time.monotonic() - start_time)
    for kind, (first_seed, differences, requests) in findings.first_by_kind.items():
        click.echo(f"\n{findings.count[kind]} times, first with seed {first_seed}, after")
        shortest = _find_shortest(first_seed, kind, requests)
        click.echo("\n".join(map(str, shortest)))
        click.echo(format_differences(differences))
    return 1 if findings.first_by_kind else 0


def _compare_seed(seed: int, tally: Tally, findings: Findings, end_time: float) -> list[Kind]:
    """Plays sequences of a seed; returns the new differences."""
    known_kinds = set(findings.first_by_kind)

    async def compare_sequences(services: ComparedServices) -> None:
        services.tally = tally
        for number in range(SEQUENCES_PER_SERVICE):
            if time.monotonic() > end_time:
                return
            requests = draw_from_seed(LONG_SEQUENCES, f"{seed} {number}")
            findings.add(seed, await services.compare_sequence(requests), requests)

    _run_with_services(seed, SEQUENCES_PER_SERVICE, compare_sequences)
    return [kind for kind in findings.first_by_kind if kind not in known_kinds]


def _run_with_services(
    seed: int, merchants: int, use_services: Callable[[ComparedServices], Awaitable[Result]]
) -> Result:
    async def run_in_folder(folder: Path) -> Result:
        # Every other time the service has its own vocabulary.
        vocabulary = OWN_WORDS if seed % 2 else {}
        async with open_compared_services(folder, merchants, vocabulary) as services:
            return await use_services(services)

    memory = IN_MEMORY if IN_MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(dir=memory) as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(run_in_folder(Path(folder)))


def _find_shortest(seed: int, kind: Kind, requests: list[ProofRequest]) -> list[ProofRequest]:
    """The shortest part of a sequence that still shows this kind of difference."""

    async def find_shortest(services: ComparedServices) -> list[ProofRequest]:
        async def shows_difference(candidate_requests: list[ProofRequest]) -> bool:
            differences = await services.compare_sequence(candidate_requests)
            return bool(differences) and differences[0].kind == kind

        return await shorten_sequence(requests, shows_difference)

    return _run_with_services(seed, len(requests), find_shortest)


def _print_tally(tally: Tally, seconds: float) -> None:
    click.echo(f"\n{tally.compared_count} answers compared in {seconds:.0f} s")
    for name, count in tally.operations.most_common():
        click.echo(f"{count:8}  {name}")
    click.echo(
        "statuses: " + ", ".join(f"{status} {count}" for status, count in tally.statuses.items())
    )
    click.echo("differences that are named:")
    for known_difference in KNOWN_DIFFERENCES:
        click.echo(
            f"{tally.known_counts[known_difference.name]:8}  {known_difference.name} ({known_difference.section}): {known_difference.reason}"
        )


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    sys.exit(main())
