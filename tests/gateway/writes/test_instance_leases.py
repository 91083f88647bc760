"""Leases of instances that share a state and read them concurrently."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from sqlalchemy import insert, update

from gateway.config.settings import State
from gateway.storage import Store, open_store
from gateway.storage.database import build_instance_lock_key
from gateway.storage.tables import instances
from gateway.writes.instance_leases import InstanceLeases
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

    async def fetch(self, statement: Any) -> Any:
        is_first = not self.has_read.is_set()
        result = await self._store.fetch(statement)
        if is_first:
            self.has_read.set()
            await self.may_continue.wait()
        return result


async def test_stale_read_does_not_report_new_instance_as_expired(
    state: State,
) -> None:
    async with open_store(state) as store:
        delayed_store = DelayedStore(store)
        leases = InstanceLeases(cast("Store", delayed_store), "this")
        first = asyncio.ensure_future(leases.refresh())
        await delayed_store.has_read.wait()
        row = {"id": "new", "renewed_at": store.clock()}
        await execute(store, insert(instances).values(**row))
        second = asyncio.ensure_future(leases.refresh_if_any_unknown(["new"]))
        await asyncio.sleep(0.01)
        delayed_store.may_continue.set()
        await second
        assert leases.is_instance_alive("new")
        await first
        assert leases.is_instance_alive("new")


@pytest.mark.parametrize("is_later", [False, True])
async def test_lease_of_killed_process_ends_sooner_than_that_of_paused_one(
    postgres: State, is_later: bool
) -> None:
    alive_by_age = {}
    async with open_store(postgres) as paused_store, open_store(postgres) as store:
        leases = InstanceLeases(store, "this")
        await leases.register()
        await paused_store.database.hold_instance_lock(build_instance_lock_key("paused"))
        for name in ("paused", "killed"):
            row = {"id": name, "renewed_at": store.clock()}
            await execute(store, insert(instances).values(**row))
        for age in (0.0, 1.7, 3600.0):
            # A time that is still to come is one from before the clock was set back.
            now = await store.database.read_clock()
            assert now is not None
            renewed_at = now + timedelta(seconds=age if is_later and age else -age)
            await execute(
                store,
                update(instances).where(instances.c.id != "this").values(renewed_at=renewed_at),
            )
            await leases.refresh()
            alive_by_age[age] = [
                name for name in ("paused", "killed") if leases.is_instance_alive(name)
            ]
    assert alive_by_age == {
        0.0: ["paused", "killed"],
        1.7: ["paused"],
        3600.0: [],
    }
