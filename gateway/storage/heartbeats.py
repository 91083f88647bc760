"""Whether anybody runs on a state: beats that are counted go on, whatever the clocks say."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sqlalchemy import select

from gateway.storage.tables import instances

if TYPE_CHECKING:
    from gateway.storage.store import Store

BEAT_SECONDS = 2.0
WATCHED_SECONDS = BEAT_SECONDS + 6
"""Whoever runs has counted on within this, also where a disk holds it up for some seconds."""

_LOOKS = 0.25


async def beats(store: Store) -> dict[str, int]:
    """How far each instance has counted; one that was killed is among them."""
    rows = await store.read(lambda tx: tx.fetch(select(instances)))
    return {row.id: row.beats for row in rows}


async def is_used(store: Store) -> bool:
    """Watches for as long as it takes to see it."""
    first, loop = await beats(store), asyncio.get_running_loop()
    until = loop.time() + WATCHED_SECONDS
    while first and loop.time() < until:
        if any(count != first.get(id_) for id_, count in (await beats(store)).items()):
            return True
        await asyncio.sleep(_LOOKS)
    return False
