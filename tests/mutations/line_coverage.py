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
from tests.proof.coverage import coverage
from tests.proof.worlds import ComparedServices

Reach = Mapping[str, list[int]]
"""``module:line`` to the places of the sequences in ``coverage()``."""


async def measure_reach(worlds: ComparedServices) -> dict[str, list[int]]:
    """Plays every sequence once; raises AssertionError if a response differs."""
    found: dict[str, list[int]] = {}
    for place, (_tag, askings) in enumerate(coverage()):
        with _trace_lines() as lines:
            differs = await worlds.play(askings)
        assert not differs, str(differs[0])
        for module, line in sorted(lines):
            found.setdefault(f"{module}:{line}", []).append(place)
    return found


@contextmanager
def _trace_lines() -> Iterator[set[tuple[str, int]]]:
    lines: set[tuple[str, int]] = set()
    folder = str(Path(mappings.__file__).parent)
    modules: dict[CodeType, str] = {}

    def called(frame: FrameType, _event: str, _value: Any) -> Any:
        code = frame.f_code
        if code not in modules:
            path = code.co_filename
            modules[code] = Path(path).stem if path.startswith(folder) else ""
        if not (module := modules[code]):
            return None

        def lined(frame: FrameType, event: str, _value: Any) -> Any:
            if event == "line":
                lines.add((module, frame.f_lineno))
            return lined

        lines.add((module, frame.f_lineno))
        return lined

    before = sys.gettrace()
    sys.settrace(called)
    try:
        yield lines
    finally:
        sys.settrace(before)


def select_sequences(mutant: Mutant, reach: Reach) -> set[int] | None:
    """The sequences that execute the mutant's lines or users of its table; None if all may."""
    if not reach or mutant.is_read_at_start:
        return None
    if mutant.is_flow:
        return {
            place
            for line in range(mutant.line, mutant.end + 1)
            for place in reach.get(f"{mutant.module}:{line}", ())
        }
    users = list_using_lines(mutant)
    if users is None:
        return None
    return {place for at in users for place in reach.get(at, ())}
