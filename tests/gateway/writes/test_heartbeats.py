"""Heartbeats of instances that share a state and read them concurrently."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from sqlalchemy import insert

from gateway.config.settings import State
from gateway.storage import Store, open_store
from gateway.storage.database import build_instance_lock_key
from gateway.storage.tables import instances
from gateway.writes.instance_leases import Heartbeats
from tests.gateway.storage import conftest
from tests.state import execute

database, postgres = conftest.database, conftest.postgres


class DelayedStore:
    """A store that returns its first read only when the test allows it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.has_read, self.may_continue = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, body: Any) -> Any:
        is_first = not self.has_read.is_set()
        result = await self._store.read(body)
        if is_first:
            self.has_read.set()
            await self.may_continue.wait()
        return result


async def test_stale_read_does_not_report_new_instance_as_expired(
    state: State,
) -> None:
    async with open_store(state) as store:
        delayed_store = DelayedStore(store)
        heartbeats = Heartbeats(cast("Store", delayed_store), "this")
        first = asyncio.ensure_future(heartbeats.refresh())
        await delayed_store.has_read.wait()
        instance_row = {"id": "new", "beats": 0, "began_at": store.clock()}
        await execute(store, insert(instances).values(**instance_row))
        await heartbeats.refresh()
        assert heartbeats.is_instance_alive("new")
        delayed_store.may_continue.set()
        await first
        assert heartbeats.is_instance_alive("new")


async def test_lease_of_killed_process_expires_sooner_than_that_of_paused_one(
    postgres: State,
) -> None:
    now = 0.0
    async with open_store(postgres) as paused_store, open_store(postgres) as store:
        heartbeats = Heartbeats(store, "this", clock=lambda: now)
        await heartbeats.register()
        for name in ("paused", "killed"):
            instance_row = {"id": name, "beats": 0, "began_at": store.clock()}
            await execute(store, insert(instances).values(**instance_row))
        await paused_store.database.hold_instance_lock(build_instance_lock_key("paused"))
        alive_at = {}
        for _ in range(6):
            await heartbeats.refresh()
            alive_at[now] = [
                name for name in ("paused", "killed") if heartbeats.is_instance_alive(name)
            ]
            now += heartbeats.beat_seconds
        assert alive_at == {
            0.0: ["paused", "killed"],
            0.5: ["paused", "killed"],
            1.0: ["paused"],
            1.5: ["paused"],
            2.0: ["paused"],
            2.5: [],
        }
