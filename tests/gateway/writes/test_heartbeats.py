"""Heartbeats of instances that share a state and read them concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.config.settings import State
from gateway.storage import Store, open_store
from gateway.storage.tables import instances
from gateway.writes.instance_leases import Heartbeats


class DelayedStore:
    """A store that returns its first read only when the test allows it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.has_read, self.may_continue = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        is_first = not self.has_read.is_set()
        async with self._store.read() as connection:
            yield connection
        if is_first:
            self.has_read.set()
            await self.may_continue.wait()


async def test_stale_read_does_not_report_new_instance_as_expired(
    state: State,
) -> None:
    async with open_store(state) as store:
        late = DelayedStore(store)
        looking = Heartbeats(cast("Store", late), "this")
        first = asyncio.ensure_future(looking.refresh())
        await late.has_read.wait()
        async with store.write() as connection:
            row = {"id": "new", "beats": 0, "began_at": store.clock()}
            await connection.execute(insert(instances).values(**row))
        await looking.refresh()
        assert looking.is_alive("new")
        late.may_continue.set()
        await first
        assert looking.is_alive("new")
