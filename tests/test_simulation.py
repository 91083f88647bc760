"""Random failures in simulated time neither repeat a write nor lose one silently."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.seeds import played

SEEDS, GROUPS = 200, 4
WITHIN = 15
"""Seeds in which each planted mistake must be found."""


@pytest.mark.parametrize("group", range(GROUPS))
def test_whatever_fails_nothing_is_done_twice_and_nothing_is_lost(group: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(group, SEEDS, GROUPS):
        result = played(seed)
        assert result.wrong == [], f"python -m tests.simulation --seeds {seed} --shown"
        counts.update(result.counts)
    assert all(counts[what] for what in ("writes", "kills", "ends", "holds", "jumps")), counts


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.__name__.strip("_"))
def test_it_finds_a_mistake_that_the_product_could_have(mutation: Callable[..., Any]) -> None:
    with mutated(mutation):
        for seed in range(WITHIN):
            if played(seed, **MUTATIONS[mutation]).wrong:
                return
    pytest.fail(f"nothing was found wrong in {WITHIN} seeds")


def test_a_seed_is_the_same_wherever_it_is_played() -> None:
    asked = (3, 12, 30)
    program = "import sys; from tests.simulation.seeds import played\n"
    program += f"print([played(seed).trace for seed in {asked[::-1]}][::-1])"
    root = Path(__file__).parents[1]
    paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": paths}
    other = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        env=variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert other.stdout.strip() == str([played(seed).trace for seed in asked])
