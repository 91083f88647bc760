"""Brownouts as a running gateway reads them, twice a second."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gateway.config.settings import State
from gateway.storage import open_store
from gateway.storage.brownout_rows import add_brownout, end_brownouts, new_brownout, open_brownouts

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


async def test_what_is_open_is_read_as_it_was_written(state: State) -> None:
    """With its operations: one of which they cannot be read meets no request."""
    one = new_brownout(
        begins_at=NOW,
        ends_at=NOW + timedelta(hours=1),
        merchant="acme",
        key="shop",
        operations=("create_batch", "start_batch"),
        refuses=False,
    )
    async with open_store(state) as store:
        await add_brownout(store, one)
        assert await open_brownouts(store, NOW) == [one]
        await end_brownouts(store, NOW, one.id)
        assert await open_brownouts(store, NOW) == []
