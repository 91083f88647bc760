"""Writes in doubt: the gauges and the list agree."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gateway.operator.in_doubt_writes import load_in_doubt_writes
from gateway.operator.state_gauges import load_state_gauges
from gateway.storage import Store, open_store
from gateway.storage.tables import operations, upstream_writes
from gateway.writes.states import DONE, IN_DOUBT, RUNNING, SENT
from tests.running_gateway import build_settings
from tests.state import execute

LONG_AGO = timedelta(minutes=10)


async def insert_operation(
    store: Store, state: str, reason: str | None, write_states: list[str]
) -> None:
    """Insert an operation that began ten minutes ago, and its writes."""
    long_ago, tenant_columns = (
        store.clock() - LONG_AGO,
        {"merchant": "demo", "environment": "sandbox"},
    )
    operation_row = {
        **tenant_columns,
        "id": "0" * 32,
        "key_id": "k",
        "key_name": "k",
        "operation": "start_batch",
        "request_id": "r",
        "fingerprint": "f",
        "state": state,
        "reason": reason,
        "instance": "gone",
        "fence": 1,
        "is_client_disconnected": False,
        "started_at": long_ago,
    }
    path = "/batches/B-AAAAAAAAAAAAAAAAAAAAAA/start-processing"
    write_rows = [
        upstream_writes.insert().values(
            **tenant_columns,
            operation_id=operation_row["id"],
            number=number,
            method="POST",
            path=path,
            call_digest="",
            recorded_at=long_ago,
            state=write_state,
        )
        for number, write_state in enumerate(write_states)
    ]
    await execute(store, operations.insert().values(operation_row), *write_rows)


@pytest.mark.parametrize(
    ("state", "reason", "write_states", "number"),
    [
        (IN_DOUBT, "cannot tell", [SENT], 1),
        (RUNNING, "cannot tell", [SENT], 1),
        (IN_DOUBT, "the service cannot be read", ["answered", "answered"], 1),
        (RUNNING, "the service cannot be read", ["answered", "answered"], 1),
        (RUNNING, None, ["answered"], 0),
        (IN_DOUBT, "the service cannot be read", [], 0),
        (DONE, None, ["answered"], 0),
    ],
)
async def test_write_under_repeated_probing_is_still_in_doubt(
    state: str, reason: str | None, write_states: list[str], number: int, tmp_path: Path
) -> None:
    async with open_store(build_settings(tmp_path, "http://127.0.0.1:9").state) as store:
        await insert_operation(store, state, reason, write_states)
        gauges = await load_state_gauges(store)
        in_doubt_writes = await load_in_doubt_writes(store)
    assert gauges.in_doubt_writes == len(in_doubt_writes) == number
    assert gauges.open_operations == int(state != DONE)
    assert (gauges.in_doubt_seconds >= LONG_AGO.total_seconds()) == bool(number)
