"""Runs a target under atheris: ``python -m tests.fuzz flows -max_total_time=60``.

The stored corpus is replayed; new inputs and failures are written to ``.fuzz``. Add a failure to the corpus
together with its fix.
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
    findings_folder = Path(".fuzz") / name
    findings_folder.mkdir(parents=True, exist_ok=True)
    dictionary = HERE / f"{name}.dict"
    options += [
        "-artifact_prefix=.fuzz/",
        *([f"-dict={dictionary}"] if dictionary.exists() else []),
    ]
    corpus = [str(findings_folder), str(HERE / "corpus" / name)]
    atheris.Setup([sys.argv[0], *options, *corpus], target.check)
    atheris.Fuzz()


main()
