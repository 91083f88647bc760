"""``python -m tests.simulation --seeds 0:5000`` plays many seeds; ``--seeds 17 --shown`` prints one."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.seeds import play_seed


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="one, or from:to")
    parser.add_argument("--shown", action="store_true", help="tells everything that happens")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition(":")
    seeds = range(int(first), int(last or int(first) + 1))
    counts: Counter[str] = Counter()
    began, bad = time.process_time(), 0
    for seed in seeds:
        result = play_seed(seed, shown=asked.shown)
        counts.update(result.counts)
        if result.problems:
            bad += 1
            say(f"seed {seed}: " + "\n    ".join(result.problems))
    seconds = time.process_time() - began
    say(f"{len(seeds)} seeds, {bad} with faults, {seconds:.0f} s: {dict(counts)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
