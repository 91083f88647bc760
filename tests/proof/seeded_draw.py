"""Draws uniformly from a strategy.

Hypothesis prefers small values and variations of earlier examples, so that half of its examples are repeated.
That finds a single fault soon, but does not suit a proof that runs for an hour.
"""

from __future__ import annotations

from random import Random
from typing import TypeVar

from hypothesis.control import BuildContext
from hypothesis.errors import StopTest
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.strategies import SearchStrategy

Drawn = TypeVar("Drawn")


def draw_from_seed(strategy: SearchStrategy[Drawn], seed: str) -> Drawn:
    """Always the same for a seed."""
    random = Random(seed)
    while True:
        data = ConjectureData(random=random, prefix=())
        try:
            with BuildContext(data, wrapped_test=draw_from_seed):
                return data.draw(strategy)
        except StopTest:  # more than Hypothesis takes of one case
            continue
