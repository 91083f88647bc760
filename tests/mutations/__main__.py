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

MAX_BRIEF_COUNT = 20
"""With fewer mutants, measuring line coverage first does not pay."""

ResultRow = dict[str, Any]
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
        return _run_part(options)
    mutants = _select_mutants(options)
    if options.list:
        click.echo("\n".join(mutant.name for mutant in mutants))
        return 0
    start_time = time.monotonic()
    click.echo(f"{len(mutants)} mutants, {options.processes} processes")
    with tempfile.TemporaryDirectory() as folder:
        results = _run_missing(
            options, [mutant.name for mutant in mutants], Path(options.keep or folder, "kept")
        )
    return _print_outcome(
        _Outcome.classify([mutant.name for mutant in mutants], results),
        results,
        time.monotonic() - start_time,
    )


def _select_mutants(options: argparse.Namespace) -> list[Any]:
    from tests.mutations.mutants import list_mutants
    from tests.mutations.survivors import load_reasons

    mutants = [mutant for mutant in list_mutants() if re.search(options.only, mutant.name)]
    if options.names:
        mutants_by_name = {mutant.name: mutant for mutant in mutants}
        selected_names = Path(options.names).read_text("utf-8").splitlines()
        mutants = [mutants_by_name[name] for name in selected_names if name in mutants_by_name]
    if options.survivors:
        mutants = [mutant for mutant in mutants if mutant.name in load_reasons()]
    elif options.sample:
        mutants = [mutant for mutant in mutants if mutant.name not in load_reasons()]
    if options.sample:
        mutants = random.Random(options.seed).sample(mutants, min(options.sample, len(mutants)))
    return mutants


# Trying


def _run_missing(options: argparse.Namespace, names: list[str], folder: Path) -> list[ResultRow]:
    """Tries the mutants without a result, in some processes; returns the results of all."""
    from tests.mutations.results_file import ResultsFile

    results = ResultsFile(folder)
    missing_names = [name for name in names if name not in results.results]
    is_brief = len(missing_names) <= MAX_BRIEF_COUNT
    if missing_names and (is_brief or not results.baseline_file.exists()):
        results.baseline_file.write_text(json.dumps(asdict(_measure_baseline(is_brief=is_brief))))
    names_file = folder / "todo"
    names_file.write_text("\n".join(missing_names), "utf-8")
    if missing_names:
        _run_processes(options, results, names_file, len(missing_names))
    if is_brief:
        results.baseline_file.unlink(missing_ok=True)
    return [results.results[name] for name in names if name in results.results]


def _measure_baseline(*, is_brief: bool) -> Any:
    import structlog

    from tests.mutations.runner import measure_baseline

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    return asyncio.run(measure_baseline(is_brief=is_brief))


def _run_processes(options: argparse.Namespace, results: Any, names_file: Path, count: int) -> None:
    command = [sys.executable, "-m", "tests.mutations", "--names", str(names_file)]
    command += ["--known", str(results.baseline_file), "--processes", str(options.processes)]
    command += ["--thorough"] if options.thorough else []
    processes = [
        subprocess.Popen([*command, "--part", str(part_number)], stdout=subprocess.PIPE, text=True)
        for part_number in range(options.processes)
    ]
    with (
        click.progressbar(length=count, file=sys.stderr) as bar,
        selectors.DefaultSelector() as selector,
    ):
        for process in processes:
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, process.stdout)
        while selector.get_map():
            for key, _ in selector.select():
                if line := key.data.readline():
                    results.add(json.loads(line))
                    bar.update(1)
                else:
                    selector.unregister(key.data)
    for process in processes:
        process.communicate()  # closes the pipe too


def _run_part(options: argparse.Namespace) -> int:
    zygote = GatewayForker()  # before the gateway is imported
    import structlog

    from tests.mutations.runner import Baseline, MutantRunner, select_share

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))

    async def run_mutants() -> None:
        baseline = Baseline(**json.loads(Path(options.known).read_text()))
        async with MutantRunner(zygote, baseline, is_thorough=options.thorough) as runner:
            for mutant in select_share(_select_mutants(options), options.part, options.processes):
                try:
                    result = await runner.run_mutant(mutant)
                except Exception as error:  # noqa: BLE001 - it is reported as not tried
                    click.echo(f"{mutant.name}: {type(error).__name__} {error}", err=True)
                    continue
                row = {
                    "name": mutant.name,
                    "by": result.found_by,
                    "seconds": round(result.seconds, 2),
                }
                click.echo(json.dumps(row | {"line": mutant.line}))

    asyncio.run(run_mutants())
    zygote.close()
    return 0


# Reporting


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
    def classify(cls, names: list[str], results: list[ResultRow]) -> _Outcome:
        from tests.mutations.mutants import list_mutants
        from tests.mutations.survivors import load_reasons

        found_names = [row["name"] for row in results if row["by"]]
        survivors = [row["name"] for row in results if not row["by"]]
        return cls(
            len(list_mutants()),
            found_names,
            [row for row in survivors if row in load_reasons()],
            [row for row in survivors if row not in load_reasons()],
            [row for row in found_names if row in load_reasons()],
            sorted(set(names) - {row["name"] for row in results}),
        )

    @property
    def is_good(self) -> bool:
        return not (self.unlisted or self.outdated or self.untried)


def _print_outcome(outcome: _Outcome, results: list[ResultRow], seconds: float) -> int:
    from tests.mutations.survivors import load_reasons

    click.echo()
    survivor_counts = Counter(row["name"].partition(".")[0] for row in results if not row["by"])
    for module, count in Counter(row["name"].partition(".")[0] for row in results).most_common():
        click.echo(f"{count:6} {survivor_counts[module]:5} survived  {module}")
    for reason, count in Counter(load_reasons()[row] for row in outcome.listed).most_common():
        click.echo(f"{count:6} survived: {reason}")
    for name in outcome.unlisted:
        click.echo(f"survived, and not listed: {name}")
    for name in outcome.outdated:
        click.echo(f"listed as a survivor, and found: {name}")
    for name in outcome.untried:
        click.echo(f"not tried: {name}")
    click.echo(
        f"{outcome.defined} defined, {len(results)} tried, {len(outcome.found)} found,"
        f" {len(outcome.listed)} listed, {len(outcome.unlisted)} unlisted,"
        f" in {seconds / 60:.1f} minutes"
    )
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
