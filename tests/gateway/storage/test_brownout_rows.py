"""Storage of brownouts, which a running gateway reads twice a second."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gateway.config.settings import State
from gateway.storage import open_store
from gateway.storage.brownout_rows import (
    build_brownout_with_new_id,
    end_brownouts,
    insert_brownout,
    list_planned_and_active_brownouts,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


async def test_active_brownouts_are_read_as_written(state: State) -> None:
    """A brownout is read with its operations: without them it would apply to no request."""
    brownout = build_brownout_with_new_id(
        begins_at=NOW,
        ends_at=NOW + timedelta(hours=1),
        merchant="acme",
        key="shop",
        operations=("create_batch", "start_batch"),
        refuses=False,
    )
    async with open_store(state) as store:
        await insert_brownout(store, brownout)
        assert await list_planned_and_active_brownouts(store, NOW) == [brownout]
        await end_brownouts(store, NOW, brownout.id)
        assert await list_planned_and_active_brownouts(store, NOW) == []
