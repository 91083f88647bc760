"""What a strategy gives, evenly.

Hypothesis looks for what is small and for what resembles the cases before: half of what it asks it has
asked already. That finds a single fault soon, and is no use to a proof that runs for an hour.
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
