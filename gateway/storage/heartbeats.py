"""Detects whether a gateway uses the database: its heartbeat counter increases."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sqlalchemy import select

from gateway.storage.tables import instances

if TYPE_CHECKING:
    from gateway.storage.store import Store

BEAT_SECONDS = 2.0
WATCHED_SECONDS = BEAT_SECONDS + 6
"""Seconds in which every live gateway increases its counter, even if a slow disk delays it."""

_LOOKS = 0.25


async def beats(store: Store) -> dict[str, int]:
    """Loads the heartbeat counters of all instances, including dead ones."""
    async with store.read() as connection:
        return {row.id: row.beats for row in await connection.execute(select(instances))}


async def is_used(store: Store) -> bool:
    """Watches the counters for up to ``WATCH_SECONDS``."""
    first, loop = await beats(store), asyncio.get_running_loop()
    until = loop.time() + WATCHED_SECONDS
    while first and loop.time() < until:
        if any(count != first.get(id_) for id_, count in (await beats(store)).items()):
            return True
        await asyncio.sleep(_LOOKS)
    return False
