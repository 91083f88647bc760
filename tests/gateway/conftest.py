from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.settings import State
from tests.state import create_database


@pytest.fixture
def state(tmp_path: Path) -> State:
    """An SQLite state with its tables."""
    state = State(url=f"sqlite:///{tmp_path}/gateway.db", encryption_key_file=tmp_path / "key")
    return create_database(state)
