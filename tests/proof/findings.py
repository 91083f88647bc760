"""Collects differences by kind, each with the shortest sequence that shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.proof.sequences import ProofRequest
from tests.proof.worlds import UnexplainedDifference

Kind = tuple[str, str, str]


@dataclass
class Findings:
    """What was found after a sequence, and how often: an answer counts by its first difference."""

    first: dict[Kind, tuple[int, list[UnexplainedDifference], list[ProofRequest]]] = field(
        default_factory=dict
    )
    """The first of each kind: its seed, the differences and the sequence."""
    count: Counter[Kind] = field(default_factory=Counter)

    def add(
        self, seed: int, differences: list[UnexplainedDifference], askings: list[ProofRequest]
    ) -> None:
        if differences:
            kind = differences[0].kind
            self.count[kind] += 1
            self.first.setdefault(kind, (seed, differences, askings))


async def shorten_sequence(
    askings: list[ProofRequest], shows: Callable[[list[ProofRequest]], Awaitable[bool]]
) -> list[ProofRequest]:
    """The sequence without each that can be left out; tried as often as it is long."""
    remaining = askings
    for place in reversed(range(len(askings))):
        tried = [*remaining[:place], *remaining[place + 1 :]]
        if await shows(tried):
            remaining = tried
    return remaining
