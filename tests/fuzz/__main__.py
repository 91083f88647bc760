"""Runs a target under atheris: ``python -m tests.fuzz flows -max_total_time=60``.

The corpus that is kept is replayed; what else is found goes to ``.fuzz``, a failure too, which
belongs into the corpus together with what mends it.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import atheris

HERE = Path(__file__).parent


def main() -> None:
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["gateway", "mappings"]):
        target = importlib.import_module(f"tests.fuzz.{name}")
    found = Path(".fuzz") / name
    found.mkdir(parents=True, exist_ok=True)
    words = HERE / f"{name}.dict"
    options += ["-artifact_prefix=.fuzz/", *([f"-dict={words}"] if words.exists() else [])]
    corpus = [str(found), str(HERE / "corpus" / name)]
    atheris.Setup([sys.argv[0], *options, *corpus], target.check)
    atheris.Fuzz()


main()
