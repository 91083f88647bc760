"""``python -m tests.simulation --seeds 0:5000`` runs many seeds; ``--seeds 17 --shown`` prints one."""

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
    options = parser.parse_args()
    first_seed, _, last_seed = options.seeds.partition(":")
    seeds = range(int(first_seed), int(last_seed or int(first_seed) + 1))
    counts: Counter[str] = Counter()
    start_time, failed_count = time.process_time(), 0
    for seed in seeds:
        result = play_seed(seed, is_printed=options.shown)
        counts.update(result.counts)
        if result.problems:
            failed_count += 1
            say(f"seed {seed}: " + "\n    ".join(result.problems))
    seconds = time.process_time() - start_time
    say(f"{len(seeds)} seeds, {failed_count} with faults, {seconds:.0f} s: {dict(counts)}")
    return 1 if failed_count else 0


if __name__ == "__main__":
    sys.exit(main())
