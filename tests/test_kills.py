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
    first = group * _IN_A_GROUP
    told = await run_all(range(first, first + _IN_A_GROUP))
    assert sum(told[kind] for kind in KINDS) == _IN_A_GROUP
    assert all(told[what] > 0 for what in (*KINDS, "seen", "executed", "answered")), told
