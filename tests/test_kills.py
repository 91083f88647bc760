"""A gateway killed at any step of a write neither repeats nor loses it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from gateway.config.settings import State
from tests.gateway.storage import conftest
from tests.killed_gateways import KINDS, run_all

database, postgres = conftest.database, conftest.postgres

GROUPS = 2
RUNS = int(os.environ.get("KILLS", "40"))
"""Each run starts a gateway, which takes most of the time; `make soak` does 600, and as many on PostgreSQL."""

_IN_A_GROUP = RUNS // GROUPS


# With few runs, tests/test_kill_points.py alone kills gateways on PostgreSQL, where each run takes seconds.
@pytest.fixture(params=["SQLite", "PostgreSQL"] if RUNS > 200 else ["SQLite"])
def state(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("postgres") if request.param == "PostgreSQL" else None


@pytest.mark.parametrize("group", range(GROUPS))
async def test_killed_gateway_carries_write_out_once(group: int, state: State | None) -> None:
    seeds = range(group * _IN_A_GROUP, (group + 1) * _IN_A_GROUP)
    counts = await run_all(seeds, 1 if state else 2, state)
    assert sum(counts[kind] for kind in KINDS) == _IN_A_GROUP
    assert all(counts[name] > 0 for name in (*KINDS, "seen", "executed", "answered")), counts
