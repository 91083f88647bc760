"""What is counted as unsettled, and what is listed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gateway.operator.in_doubt_writes import load_in_doubt_writes
from gateway.operator.metrics_page import load_gauges
from gateway.storage import Store, open_store
from gateway.storage.tables import journal, writes
from gateway.storage.undertakings import DONE, RUNNING, SENT, UNSETTLED
from tests.house import settings_for
from tests.states import execute

LONG_AGO = timedelta(minutes=10)


async def begun(store: Store, state: str, why: str | None, its: list[str]) -> None:
    """An undertaking of ten minutes ago, and its writes."""
    at, owner = store.clock() - LONG_AGO, {"merchant": "demo", "environment": "sandbox"}
    row = {
        **owner,
        "id": "0" * 32,
        "key_id": "k",
        "key_name": "k",
        "operation": "start_batch",
        "request_id": "r",
        "fingerprint": "f",
        "state": state,
        "why": why,
        "instance": "gone",
        "turn": 1,
        "deserted": False,
        "began_at": at,
    }
    path = "/batches/B-AAAAAAAAAAAAAAAAAAAAAA/start-processing"
    sent = [
        writes.insert().values(
            **owner,
            undertaking=row["id"],
            number=number,
            method="POST",
            path=path,
            alike="",
            entered_at=at,
            state=one,
        )
        for number, one in enumerate(its)
    ]
    await execute(store, journal.insert().values(row), *sent)


@pytest.mark.parametrize(
    ("state", "why", "its", "number"),
    [
        (UNSETTLED, "cannot tell", [SENT], 1),
        (RUNNING, "cannot tell", [SENT], 1),
        (UNSETTLED, "the service cannot be read", ["answered", "answered"], 1),
        (RUNNING, "the service cannot be read", ["answered", "answered"], 1),
        (RUNNING, None, ["answered"], 0),
        (UNSETTLED, "the service cannot be read", [], 0),
        (DONE, None, ["answered"], 0),
    ],
)
async def test_what_is_looked_at_again_is_still_unsettled(
    state: str, why: str | None, its: list[str], number: int, tmp_path: Path
) -> None:
    async with open_store(settings_for(tmp_path, "http://127.0.0.1:9").state) as store:
        await begun(store, state, why, its)
        found = await load_gauges(store)
        listed = await load_in_doubt_writes(store, watch_seconds=0)
    assert found.unsettled == len(listed) == number
    assert (found.unsettled_seconds >= LONG_AGO.total_seconds()) == bool(number)
