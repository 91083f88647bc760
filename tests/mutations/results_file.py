"""Stores the results of mutants in a folder, so that an interrupted run can be continued.

The results belong to one state of the sources; if the sources changed, the stored results are deleted.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = (
    *("mappings", "gateway", "tests/proof", "tests/cases", "tests/mutations"),
    *("tests/running_gateway.py", "tests/transcripts.py", "tests/transcripts_in_process.py"),
)


class ResultsFile:
    """``results`` maps a mutant's name to what found it and how long that took."""

    def __init__(self, folder: Path) -> None:
        self.baseline_file = folder / "known.json"
        """The results without a mutant: ``runner.Baseline``."""
        self.results: dict[str, dict[str, Any]] = {}
        self._results_file, sources_file = folder / "tried.jsonl", folder / "of"
        sources = _digest_sources()
        if not sources_file.is_file() or sources_file.read_text() != sources:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            sources_file.write_text(sources)
        elif self._results_file.exists():
            rows = map(json.loads, self._results_file.read_text("utf-8").splitlines())
            self.results = {result["name"]: result for result in rows}

    def add(self, result: dict[str, Any]) -> None:
        self.results[result["name"]] = result
        with self._results_file.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(result)}\n")


def _digest_sources() -> str:
    """A digest of all files that a result depends on; the list of survivors (TOML) is not one of them."""
    digest = hashlib.sha256()
    for name in SOURCES:
        source = ROOT / name
        files = [source] if source.is_file() else sorted(source.rglob("*"))
        for file in files:
            if file.suffix in (".py", ".json"):
                digest.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return digest.hexdigest()
