"""Records the lines of `mappings/` that each sequence executes; only these sequences can reveal a mutant there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import mappings
from tests.mutations.mutants import Mutant, list_using_lines
from tests.proof.compared_services import ComparedServices
from tests.proof.coverage import coverage

LineCoverage = Mapping[str, list[int]]
"""``module:line`` to the indexes of the sequences in ``coverage()`` that execute it."""


async def measure_reach(services: ComparedServices) -> dict[str, list[int]]:
    """Plays every sequence once; raises AssertionError if a response differs."""
    coverage_by_line: dict[str, list[int]] = {}
    for index, (_tag, requests) in enumerate(coverage()):
        with trace_lines() as lines:
            differences = await services.compare_sequence(requests)
        assert not differences, str(differences[0])
        for module, line in sorted(lines):
            coverage_by_line.setdefault(f"{module}:{line}", []).append(index)
    return coverage_by_line


@contextmanager
def trace_lines() -> Iterator[set[tuple[str, int]]]:
    lines: set[tuple[str, int]] = set()
    folder = str(Path(mappings.__file__).parent)
    modules: dict[CodeType, str] = {}

    def trace_call(frame: FrameType, _event: str, _value: Any) -> Any:
        code = frame.f_code
        if code not in modules:
            path = code.co_filename
            modules[code] = Path(path).stem if path.startswith(folder) else ""
        if not (module := modules[code]):
            return None

        def trace_line(frame: FrameType, event: str, _value: Any) -> Any:
            if event == "line":
                lines.add((module, frame.f_lineno))
            return trace_line

        lines.add((module, frame.f_lineno))
        return trace_line

    original_trace = sys.gettrace()
    sys.settrace(trace_call)
    try:
        yield lines
    finally:
        sys.settrace(original_trace)


def select_sequences(mutant: Mutant, line_coverage: LineCoverage) -> set[int] | None:
    """The sequences that execute the mutant's lines or users of its table; None if all may."""
    if not line_coverage or mutant.is_read_at_start:
        return None
    if mutant.is_flow:
        return {
            index
            for line in range(mutant.line, mutant.end_line + 1)
            for index in line_coverage.get(f"{mutant.module}:{line}", ())
        }
    using_lines = list_using_lines(mutant)
    if using_lines is None:
        return None
    return {index for line_key in using_lines for index in line_coverage.get(line_key, ())}
