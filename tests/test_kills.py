"""A gateway killed at any step of a write neither repeats nor loses it."""

from __future__ import annotations

import os

import pytest

from tests.kills import KINDS, runs

GROUPS = 4
RUNS = int(os.environ.get("KILLS", "200"))
"""Each run starts a gateway, which takes most of the time; `make soak` does 600."""

_IN_A_GROUP = RUNS // GROUPS


@pytest.mark.parametrize("group", range(GROUPS))
async def test_a_gateway_killed_at_any_step_of_a_write_carries_it_out_once(group: int) -> None:
    first = group * _IN_A_GROUP
    told = await runs(range(first, first + _IN_A_GROUP))
    assert sum(told[kind] for kind in KINDS) == _IN_A_GROUP
    assert all(told[what] > 0 for what in (*KINDS, "seen", "executed", "answered")), told
