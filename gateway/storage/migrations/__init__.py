"""Alembic scripts, run by ``gateway.storage.schema_upgrade``."""

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent


@cache
def find_newest_revision() -> str:
    """Returns the newest revision, with which the name of the last script begins."""
    return max(file.name for file in FOLDER.glob("versions/*.py")).partition("_")[0]
