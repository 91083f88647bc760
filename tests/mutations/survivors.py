"""The mutants that may survive, and why: `survivors.toml`, each by its name."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("survivors.toml")


@cache
def load_reasons() -> dict[str, str]:
    """Mutant's name to the reason why nothing that is asked can tell it from what it was made of."""
    listed = tomllib.loads(FILE.read_text("utf-8")).get("survivors", [])
    return {name: one["because"] for one in listed for name in one["mutants"]}
