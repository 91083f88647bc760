"""alembic's scripts; ``gateway.storage.upgrade`` runs them."""

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent


@cache
def newest() -> str:
    """The last step's revision: it is what the name of its file begins with."""
    return max(file.name for file in FOLDER.glob("versions/*.py")).partition("_")[0]
