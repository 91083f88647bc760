"""The mutants that may survive, and why: `survivors.toml`, each by its name."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("survivors.toml")


@cache
def load_reasons() -> dict[str, str]:
    """Mutant's name to the reason why no request can distinguish it from the original."""
    entries = tomllib.loads(FILE.read_text("utf-8")).get("survivors", [])
    return {name: entry["because"] for entry in entries for name in entry["mutants"]}
