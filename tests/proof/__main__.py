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

from tests.proof.findings import Findings, Kind, shorten_sequence
from tests.proof.known_differences import KNOWN_DIFFERENCES
from tests.proof.seeded_draw import draw_from_seed
from tests.proof.sequences import ProofRequest, sequences
from tests.proof.worlds import (
    OWN_WORDS,
    ComparedServices,
    Tally,
    format_differences,
    open_compared_services,
)

AT_A_TIME = 100
"""Sequences before both services are replaced."""
SPEAKS_EVERY_SECONDS = 300
IN_MEMORY = Path("/dev/shm")
"""Databases need not survive a power failure, and a disk would slow the proof down."""

LONG = sequences(least=10, most=40)
"""Long sequences, because some effects show late."""

Found = TypeVar("Found")


def main() -> int:
    arguments = argparse.ArgumentParser(prog="tests.proof", description=__doc__)
    arguments.add_argument("--seconds", type=float, default=3600)
    arguments.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    options = arguments.parse_args()
    tally, findings = Tally(), Findings()
    began = time.monotonic()
    click.echo(f"from seed {options.seed} on, for {options.seconds:g} s")
    spoken, seed = began, options.seed
    while (now := time.monotonic()) < began + options.seconds:
        if now > spoken + SPEAKS_EVERY_SECONDS:
            spoken = now
            click.echo(f"{now - began:.0f} s: {tally.compared} answers compared")
        for kind in _some(seed, tally, findings, began + options.seconds):
            click.echo(f"seed {seed}: {' '.join(kind)}")
        seed += 1
    _tell(tally, time.monotonic() - began)
    for kind, (its_seed, differences, askings) in findings.first.items():
        click.echo(f"\n{findings.count[kind]} times, first with seed {its_seed}, after")
        shortest = _shortest(its_seed, kind, askings)
        click.echo("\n".join(map(str, shortest)))
        click.echo(format_differences(differences))
    return 1 if findings.first else 0


def _some(seed: int, tally: Tally, findings: Findings, ends: float) -> list[Kind]:
    """Plays sequences of a seed; returns the new differences."""
    known = set(findings.first)

    async def plays(worlds: ComparedServices) -> None:
        worlds.tally = tally
        for number in range(AT_A_TIME):
            if time.monotonic() > ends:
                return
            askings = draw_from_seed(LONG, f"{seed} {number}")
            findings.add(seed, await worlds.play(askings), askings)

    _in_worlds(seed, AT_A_TIME, plays)
    return [kind for kind in findings.first if kind not in known]


def _in_worlds(
    seed: int, merchants: int, plays: Callable[[ComparedServices], Awaitable[Found]]
) -> Found:
    async def within(folder: Path) -> Found:
        # Every other time the service has its own vocabulary.
        words = OWN_WORDS if seed % 2 else {}
        async with open_compared_services(folder, merchants, words) as worlds:
            return await plays(worlds)

    memory = IN_MEMORY if IN_MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(dir=memory) as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(within(Path(folder)))


def _shortest(seed: int, kind: Kind, askings: list[ProofRequest]) -> list[ProofRequest]:
    """The shortest part of a sequence that still shows this kind of difference."""

    async def plays(worlds: ComparedServices) -> list[ProofRequest]:
        async def shows(tried: list[ProofRequest]) -> bool:
            found = await worlds.play(tried)
            return bool(found) and found[0].kind == kind

        return await shorten_sequence(askings, shows)

    return _in_worlds(seed, len(askings), plays)


def _tell(tally: Tally, seconds: float) -> None:
    click.echo(f"\n{tally.compared} answers compared in {seconds:.0f} s")
    for name, count in tally.operations.most_common():
        click.echo(f"{count:8}  {name}")
    click.echo(
        "statuses: " + ", ".join(f"{status} {count}" for status, count in tally.statuses.items())
    )
    click.echo("differences that are named:")
    for one in KNOWN_DIFFERENCES:
        click.echo(f"{tally.named[one.name]:8}  {one.name} ({one.section}): {one.because}")


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    sys.exit(main())
