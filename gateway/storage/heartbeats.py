"""Detects whether a gateway uses the database: its heartbeat counter increases."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sqlalchemy import select

from gateway.storage.tables import instances

if TYPE_CHECKING:
    from gateway.storage.store import Store

WATCH_SECONDS = 8.0
"""Seconds in which every live gateway increases its counter, even if a slow disk delays it."""

_POLL_SECONDS = 0.25


async def load_heartbeat_counts_by_instance(store: Store) -> dict[str, int]:
    """Loads the heartbeat counters of all instances, including dead ones."""
    rows = await store.read(lambda tx: tx.fetch(select(instances)))
    return {row.id: row.beats for row in rows}


async def is_database_in_use(store: Store) -> bool:
    """Whether a gateway uses the database: a counter changes within ``WATCH_SECONDS``."""
    first_counts, loop = await load_heartbeat_counts_by_instance(store), asyncio.get_running_loop()
    deadline = loop.time() + WATCH_SECONDS
    while first_counts and loop.time() < deadline:
        # A new instance is a change too: a gateway that has just started.
        if any(
            count != first_counts.get(id_)
            for id_, count in (await load_heartbeat_counts_by_instance(store)).items()
        ):
            return True
        await asyncio.sleep(_POLL_SECONDS)
    return False
