"""Who else runs on the same state, where several look at a time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from sqlalchemy import insert

from gateway.config.settings import State
from gateway.storage import Store, open_store
from gateway.storage.tables import instances
from gateway.writes.instances import Heartbeats
from tests.states import execute


class Late:
    """A store; the first of its readings is handed over when it is let go."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.has_read, self.let_go = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, body: Any) -> Any:
        is_first = not self.has_read.is_set()
        result = await self._store.read(body)
        if is_first:
            self.has_read.set()
            await self.let_go.wait()
        return result


async def test_what_was_read_before_an_instance_began_does_not_say_that_it_has_gone(
    state: State,
) -> None:
    async with open_store(state) as store:
        late = Late(store)
        looking = Heartbeats(cast("Store", late), "this")
        first = asyncio.ensure_future(looking.look())
        await late.has_read.wait()
        row = {"id": "new", "beats": 0, "began_at": store.clock()}
        await execute(store, insert(instances).values(**row))
        await looking.look()
        assert looking.is_alive("new")
        late.let_go.set()
        await first
        assert looking.is_alive("new")
