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
from gateway.writes.instances import Heartbeats


class Late:
    """A store that returns its first read only when the test allows it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.has_read, self.let_go = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        is_first = not self.has_read.is_set()
        async with self._store.read() as connection:
            yield connection
        if is_first:
            self.has_read.set()
            await self.let_go.wait()


async def test_what_was_read_before_an_instance_began_does_not_say_that_it_has_gone(
    state: State,
) -> None:
    async with open_store(state) as store:
        late = Late(store)
        looking = Heartbeats(cast("Store", late), "this")
        first = asyncio.ensure_future(looking.look())
        await late.has_read.wait()
        async with store.write() as connection:
            row = {"id": "new", "beats": 0, "began_at": store.clock()}
            await connection.execute(insert(instances).values(**row))
        await looking.look()
        assert looking.is_alive("new")
        late.let_go.set()
        await first
        assert looking.is_alive("new")
