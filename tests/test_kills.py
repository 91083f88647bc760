"""A gateway killed at any step of a write neither repeats nor loses it."""

from __future__ import annotations

import os

import pytest

from tests.killed_gateways import KINDS, run_all

GROUPS = 4
RUNS = int(os.environ.get("KILLS", "200"))
"""Each run starts a gateway, which takes most of the time; `make soak` does 600."""

_IN_A_GROUP = RUNS // GROUPS


@pytest.mark.parametrize("group", range(GROUPS))
async def test_killed_gateway_carries_write_out_once(group: int) -> None:
    first_seed = group * _IN_A_GROUP
    counts = await run_all(range(first_seed, first_seed + _IN_A_GROUP))
    assert sum(counts[kind] for kind in KINDS) == _IN_A_GROUP
    assert all(counts[name] > 0 for name in (*KINDS, "seen", "executed", "answered")), counts
