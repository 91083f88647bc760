"""What was found out of mutants, kept in a folder so that a run can be taken up again.

It is of one state of the sources: where these are others, what is there is thrown away.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = ("mappings", "gateway", "tests/proof", "tests/mutations", "tests/running_gateway.py")


class ResultsFile:
    """``tried`` maps a mutant's name to what found it and how long that took."""

    def __init__(self, folder: Path) -> None:
        self.known = folder / "known.json"
        """The results without a mutant: ``runner.Baseline``."""
        self.tried: dict[str, dict[str, Any]] = {}
        self._tried, of = folder / "tried.jsonl", folder / "of"
        sources = _sources()
        if not of.is_file() or of.read_text() != sources:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            of.write_text(sources)
        elif self._tried.exists():
            told = map(json.loads, self._tried.read_text("utf-8").splitlines())
            self.tried = {result["name"]: result for result in told}

    def add(self, result: dict[str, Any]) -> None:
        self.tried[result["name"]] = result
        with self._tried.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(result)}\n")


def _sources() -> str:
    """A digest of all that a verdict hangs on; the list of survivors (TOML) is none of it."""
    digest = hashlib.sha256()
    for name in SOURCES:
        whole = ROOT / name
        files = [whole] if whole.is_file() else sorted(whole.rglob("*"))
        for file in files:
            if file.suffix in (".py", ".json"):
                digest.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return digest.hexdigest()
