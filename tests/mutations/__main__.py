"""`make mutants`: tries every mutant and lists the survivors.

Exits with 1 if a mutant survived that `survivors.toml` does not list, or a listed one was found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from tests.mutations.zygote import GatewayForker

FEW = 20
"""With fewer mutants, measuring line coverage first does not pay."""

Told = dict[str, Any]
"""A mutant's name, what found it (``by``, empty if nothing did), and how long that took."""


def main() -> int:
    arguments = argparse.ArgumentParser(prog="tests.mutations", description=__doc__)
    arguments.add_argument("--processes", type=int, default=2)
    arguments.add_argument("--only", default="", help="mutants whose name has this pattern in it")
    arguments.add_argument("--names", default="", help="a file with the names of those to be tried")
    arguments.add_argument("--sample", type=int, default=0, help="so many of them, by --seed")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--survivors", action="store_true", help="only those that are listed")
    arguments.add_argument("--list", action="store_true", help="name the mutants, and try none")
    arguments.add_argument("--keep", default="", help="a folder: a run that was stopped goes on")
    arguments.add_argument("--thorough", action="store_true", help="ask all that comes to one")
    arguments.add_argument("--known", default="", help=argparse.SUPPRESS)
    arguments.add_argument("--part", type=int, default=-1, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.part >= 0:
        return _part(options)
    chosen = _chosen(options)
    if options.list:
        click.echo("\n".join(one.name for one in chosen))
        return 0
    began = time.monotonic()
    click.echo(f"{len(chosen)} mutants, {options.processes} processes")
    with tempfile.TemporaryDirectory() as folder:
        told = _tried(options, [one.name for one in chosen], Path(options.keep or folder, "kept"))
    return _tell(_Outcome.of([one.name for one in chosen], told), told, time.monotonic() - began)


def _chosen(options: argparse.Namespace) -> list[Any]:
    from tests.mutations.mutants import list_mutants
    from tests.mutations.survivors import load_reasons

    every = [one for one in list_mutants() if re.search(options.only, one.name)]
    if options.names:
        known = {one.name: one for one in every}
        named = Path(options.names).read_text("utf-8").splitlines()
        every = [known[name] for name in named if name in known]
    if options.survivors:
        every = [one for one in every if one.name in load_reasons()]
    elif options.sample:
        every = [one for one in every if one.name not in load_reasons()]
    if options.sample:
        every = random.Random(options.seed).sample(every, min(options.sample, len(every)))
    return every


# Trying


def _tried(options: argparse.Namespace, names: list[str], folder: Path) -> list[Told]:
    """Tries the mutants without a result, in some processes; returns the results of all."""
    from tests.mutations.results_file import ResultsFile

    results = ResultsFile(folder)
    left = [name for name in names if name not in results.tried]
    is_brief = len(left) <= FEW
    if left and (is_brief or not results.known.exists()):
        results.known.write_text(json.dumps(asdict(_known(is_brief=is_brief))))
    todo = folder / "todo"
    todo.write_text("\n".join(left), "utf-8")
    if left:
        _in_parts(options, results, todo, len(left))
    if is_brief:
        results.known.unlink(missing_ok=True)
    return [results.tried[name] for name in names if name in results.tried]


def _known(*, is_brief: bool) -> Any:
    import structlog

    from tests.mutations.runner import measure_baseline

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    return asyncio.run(measure_baseline(is_brief=is_brief))


def _in_parts(options: argparse.Namespace, results: Any, todo: Path, count: int) -> None:
    command = [sys.executable, "-m", "tests.mutations", "--names", str(todo)]
    command += ["--known", str(results.known), "--processes", str(options.processes)]
    command += ["--thorough"] if options.thorough else []
    parts = [
        subprocess.Popen([*command, "--part", str(part)], stdout=subprocess.PIPE, text=True)
        for part in range(options.processes)
    ]
    with (
        click.progressbar(length=count, file=sys.stderr) as bar,
        selectors.DefaultSelector() as selector,
    ):
        for one in parts:
            assert one.stdout is not None
            selector.register(one.stdout, selectors.EVENT_READ, one.stdout)
        while selector.get_map():
            for key, _ in selector.select():
                if line := key.data.readline():
                    results.add(json.loads(line))
                    bar.update(1)
                else:
                    selector.unregister(key.data)
    for one in parts:
        one.wait()


def _part(options: argparse.Namespace) -> int:
    zygote = GatewayForker()  # before the gateway is imported
    import structlog

    from tests.mutations.runner import Baseline, MutantRunner, select_share

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))

    async def tries() -> None:
        known = Baseline(**json.loads(Path(options.known).read_text()))
        async with MutantRunner(zygote, known, thoroughly=options.thorough) as bench:
            for mutant in select_share(_chosen(options), options.part, options.processes):
                try:
                    done = await bench.run_mutant(mutant)
                except Exception as error:  # noqa: BLE001 - it is told as not tried
                    click.echo(f"{mutant.name}: {type(error).__name__} {error}", err=True)
                    continue
                told = {"name": mutant.name, "by": done.found_by, "seconds": round(done.seconds, 2)}
                click.echo(json.dumps(told | {"line": mutant.line}))

    asyncio.run(tries())
    zygote.end()
    return 0


# Telling


@dataclass(frozen=True, slots=True)
class _Outcome:
    """``unlisted`` survived without a reason, ``outdated`` have a reason and were found."""

    defined: int
    found: list[str]
    listed: list[str]
    unlisted: list[str]
    outdated: list[str]
    untried: list[str]

    @classmethod
    def of(cls, names: list[str], told: list[Told]) -> _Outcome:
        from tests.mutations.mutants import list_mutants
        from tests.mutations.survivors import load_reasons

        found = [one["name"] for one in told if one["by"]]
        survived = [one["name"] for one in told if not one["by"]]
        return cls(
            len(list_mutants()),
            found,
            [one for one in survived if one in load_reasons()],
            [one for one in survived if one not in load_reasons()],
            [one for one in found if one in load_reasons()],
            sorted(set(names) - {one["name"] for one in told}),
        )

    @property
    def is_good(self) -> bool:
        return not (self.unlisted or self.outdated or self.untried)


def _tell(outcome: _Outcome, told: list[Told], seconds: float) -> int:
    from tests.mutations.survivors import load_reasons

    click.echo()
    survived = Counter(one["name"].partition(".")[0] for one in told if not one["by"])
    for module, count in Counter(one["name"].partition(".")[0] for one in told).most_common():
        click.echo(f"{count:6} {survived[module]:5} survived  {module}")
    for reason, count in Counter(load_reasons()[one] for one in outcome.listed).most_common():
        click.echo(f"{count:6} survived: {reason}")
    for name in outcome.unlisted:
        click.echo(f"survived, and not listed: {name}")
    for name in outcome.outdated:
        click.echo(f"listed as a survivor, and found: {name}")
    for name in outcome.untried:
        click.echo(f"not tried: {name}")
    click.echo(
        f"{outcome.defined} defined, {len(told)} tried, {len(outcome.found)} found,"
        f" {len(outcome.listed)} listed, {len(outcome.unlisted)} unlisted,"
        f" in {seconds / 60:.1f} minutes"
    )
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
