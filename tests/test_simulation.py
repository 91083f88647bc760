"""Random failures in simulated time neither repeat a write nor lose one silently."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.mutations import MISTAKES, apply_mistake, compare_clocks_twice
from tests.simulation.scenarios import SCENARIOS, Kind
from tests.simulation.seeds import play_seed

SEEDS, GROUPS = 100, 2
MAX_SEEDS_TO_FIND = 15
"""Seeds in which each planted mistake must be found."""
STEPS_BETWEEN_KILLS = max(1, 1000 // int(os.environ.get("KILLS", "30")))
"""With more than 500, a gateway is killed at every step of its requests, as by `make soak`."""
MIN_STEPS = 40
CALM: dict[str, Any] = {
    "scenarios": 1, "disturbance_seconds": 30.0, "network": 0.0, "state": 0.0, "kill_rate": 0.0,
    "pause_rate": 0.0, "clock_jumps": (), "interruption_rate": 0.0, "outage_rate": 0.0,
    "freeze_rate": 0.0,
}  # fmt: skip
"""Conditions without disturbances."""
FOUND_FAULTS = {
    "an unsaved response of a paused process reaches a retry": (330046, 7),
    "a created batch is forgotten by a takeover that cannot be read": (933380, 7),
    "a copy comes while a process whose estimate is late replays the response": (119958, 10),
}
"""Seeds that showed a fault of the gateway, now mended, and of how many scenarios they drew then."""


@pytest.mark.parametrize("group", range(GROUPS))
def test_failures_neither_repeat_nor_lose_writes(group: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(group, SEEDS, GROUPS):
        result = play_seed(seed)
        assert result.problems == [], f"python -m tests.simulation --seeds {seed} --shown"
        counts.update(result.counts)
    assert all(counts[name] for name in ("writes", "kills", "ends", "holds", "jumps")), counts


@pytest.mark.parametrize(("seed", "kinds"), FOUND_FAULTS.values(), ids=FOUND_FAULTS)
def test_mended_fault_does_not_return(seed: int, kinds: int) -> None:
    with apply_mistake(compare_clocks_twice):
        assert play_seed(seed, outage_rate=0.0, kinds=SCENARIOS[:kinds]).problems == []


@pytest.mark.parametrize("mutation", MISTAKES, ids=lambda mistake: mistake.__name__.strip("_"))
def test_planted_mistake_is_found(mutation: Callable[..., Any]) -> None:
    with apply_mistake(mutation):
        for seed in range(MAX_SEEDS_TO_FIND):
            if play_seed(seed, **MISTAKES[mutation]).problems:
                return
    pytest.fail(f"nothing was found wrong in {MAX_SEEDS_TO_FIND} seeds")


@pytest.mark.parametrize("kind", dict.fromkeys(SCENARIOS), ids=lambda kind: kind.__name__)
def test_kill_between_any_two_steps_neither_repeats_nor_loses_a_write(kind: Kind) -> None:
    for number in itertools.count(1):
        step = 1 + (number - 1) * STEPS_BETWEEN_KILLS
        result = play_seed(number, kinds=(kind,), kill_step=step, gateways=1 + number % 2, **CALM)
        assert result.problems == [], f"killed at step {step}"
        if not result.counts["kills"]:
            assert step > MIN_STEPS
            return


def test_seed_plays_alike_in_another_process() -> None:
    arguments = (3, 12, 30)
    program = "import sys; from tests.simulation.seeds import play_seed\n"
    program += f"print([play_seed(seed).trace for seed in {arguments[::-1]}][::-1])"
    root = Path(__file__).parents[1]
    paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": paths}
    process = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        env=variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert process.stdout.strip() == str([play_seed(seed).trace for seed in arguments])
