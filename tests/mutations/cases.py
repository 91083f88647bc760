"""Plays the transcripts of ``tests/cases`` with a mutant: they find most mutants in milliseconds."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutations.line_coverage import LineCoverage, select_sequences, trace_lines
from tests.mutations.mutants import Mutant
from tests.mutations.patching import apply_mutant
from tests.state import State
from tests.transcripts import name_of
from tests.transcripts_in_process import FILES_IN_PROCESS, check_case

MAX_SECONDS = 8
"""Limit for one case, because a mutant may wait forever."""

MAX_CPU_SECONDS = 20
"""CPU time for one case or sequence, which takes less than a second."""

_NUMBERS = itertools.count(1)


async def measure_case_coverage(state: State) -> dict[str, list[int]]:
    """Plays every case once: ``module:line`` to the indexes of the cases that execute it."""
    coverage_by_line: dict[str, list[int]] = {}
    for index, file in enumerate(FILES_IN_PROCESS):
        with trace_lines() as lines:
            await _play_case(file, state)
        for module, line in sorted(lines):
            coverage_by_line.setdefault(f"{module}:{line}", []).append(index)
    return coverage_by_line


async def find_failing_case(mutant: Mutant, case_coverage: LineCoverage, state: State) -> str:
    """Returns the first case that fails with the mutant and not without it; empty if none does."""
    indexes = select_sequences(mutant, case_coverage)
    files = [
        file for index, file in enumerate(FILES_IN_PROCESS) if indexes is None or index in indexes
    ]
    try:
        with apply_mutant(mutant):
            failing_file, failure = await _find_first_failure(files, state)
    except Exception as error:  # noqa: BLE001 - any exception reveals the mutant
        return f"cannot be loaded: {type(error).__name__}"
    if failing_file is None:
        return ""
    try:
        await _play_case(failing_file, state)
    except Exception as error:
        raise AssertionError(f"{name_of(failing_file)} fails without a mutant") from error
    return f"{name_of(failing_file)}: {failure}"


async def _find_first_failure(files: list[Path], state: State) -> tuple[Path | None, str]:
    for file in files:
        try:
            with limit_cpu_time():
                await _play_case(file, state)
        except Exception as error:  # noqa: BLE001 - any exception reveals the mutant
            return file, type(error).__name__
    return None, ""


async def _play_case(file: Path, state: State) -> None:
    async with asyncio.timeout(MAX_SECONDS):
        await check_case(file, state, f"{name_of(file)} {next(_NUMBERS)}")


def install_cpu_time_handler() -> None:
    """Lets ``limit_cpu_time`` raise TimeoutError."""

    def raise_timeout(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGVTALRM, raise_timeout)


@contextmanager
def limit_cpu_time() -> Iterator[None]:
    """Ends a loop without waiting, which no timeout of the event loop does."""
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
