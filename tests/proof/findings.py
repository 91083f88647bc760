"""Collects differences by kind, each with the shortest sequence that shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.proof.compared_services import UnexplainedDifference
from tests.proof.sequences import ProofRequest

Kind = tuple[str, str, str]


@dataclass
class Findings:
    """What was found after a sequence, and how often: an answer counts by its first difference."""

    first_by_kind: dict[Kind, tuple[int, list[UnexplainedDifference], list[ProofRequest]]] = field(
        default_factory=dict
    )
    """The first of each kind: its seed, the differences and the sequence."""
    count: Counter[Kind] = field(default_factory=Counter)

    def add(
        self, seed: int, differences: list[UnexplainedDifference], requests: list[ProofRequest]
    ) -> None:
        if differences:
            kind = differences[0].kind
            self.count[kind] += 1
            self.first_by_kind.setdefault(kind, (seed, differences, requests))


async def shorten_sequence(
    requests: list[ProofRequest], shows_difference: Callable[[list[ProofRequest]], Awaitable[bool]]
) -> list[ProofRequest]:
    """Removes each request that is not needed to show the difference, trying each once."""
    remaining = requests
    for index in reversed(range(len(requests))):
        candidate_requests = [*remaining[:index], *remaining[index + 1 :]]
        if await shows_difference(candidate_requests):
            remaining = candidate_requests
    return remaining
