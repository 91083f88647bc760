"""Collects differences by kind, each with the shortest sequence that shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.proof.sequences import Asking
from tests.proof.worlds import Unexplained

Kind = tuple[str, str, str]


@dataclass
class Findings:
    """What was found after a sequence, and how often: an answer counts by its first difference."""

    first: dict[Kind, tuple[int, list[Unexplained], list[Asking]]] = field(default_factory=dict)
    """The first of each kind: its seed, the differences and the sequence."""
    count: Counter[Kind] = field(default_factory=Counter)

    def add(self, seed: int, found: list[Unexplained], askings: list[Asking]) -> None:
        if found:
            kind = found[0].kind
            self.count[kind] += 1
            self.first.setdefault(kind, (seed, found, askings))


async def shortest(
    askings: list[Asking], shows: Callable[[list[Asking]], Awaitable[bool]]
) -> list[Asking]:
    """The sequence without each that can be left out; tried as often as it is long."""
    left = askings
    for place in reversed(range(len(askings))):
        tried = [*left[:place], *left[place + 1 :]]
        if await shows(tried):
            left = tried
    return left
