"""What is written at one time is committed together, and what one does wrong is nobody else's."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from sqlalchemy import bindparam, select

from gateway.config.settings import State
from gateway.storage import Ledger, Store, StoreUnavailable, Tenant, open_store
from gateway.storage.database import Body, Transaction
from gateway.storage.engine import parsed, sqlite_file
from gateway.storage.sql import Statement, upsert
from gateway.storage.tables import learned
from mappings.effects import CompareAndSet
from tests.states import fetch
from tests.test_state_faults import full, locked

ACME = Tenant("acme", "live")

PUT = upsert(learned, ("environment", "name"), ("value", "learned_at"))
READ = Statement(lambda _kind: select(learned.c.value).where(learned.c.name == bindparam("name")))


class Wrong(Exception):
    pass


def learn(store: Store, name: str, value: Any = "1") -> dict[str, Any]:
    key = {"environment": "live", "name": name}
    return {**key, "value": value, "learned_at": store.clock()}


def adds(store: Store, name: str) -> Body[None]:
    """Counts on from what it reads."""

    async def add(tx: Transaction) -> None:
        await tx.lock(name)
        count = int(await tx.fetch_value(READ, {"name": name}) or 0)
        await tx.execute(PUT, learn(store, name, str(count + 1)))

    return add


def fails(store: Store, *, after: bool) -> Body[None]:
    async def fail(tx: Transaction) -> None:
        await tx.fetch(READ, {"name": "a"})
        if after:
            await tx.execute(PUT, learn(store, "half"))
        raise Wrong

    return fail


async def values(store: Store) -> dict[str, str]:
    return dict(await fetch(store, select(learned.c.name, learned.c.value)))


async def test_those_that_have_a_lock_in_common_do_not_see_each_other_half_done(
    state: State,
) -> None:
    async with open_store(state) as store, open_store(state) as other:
        both = (store, other) * 10
        await asyncio.gather(*(one.write(adds(one, "count")) for one in both))
        assert await values(store) == {"count": "20"}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after it changed something"])
async def test_one_that_fails_is_taken_back_alone(state: State, after: bool) -> None:
    async with open_store(state) as store:
        works = [adds(store, "a"), fails(store, after=after), adds(store, "b")]
        told = await asyncio.gather(*map(store.write, works), return_exceptions=True)
        assert [type(one) for one in told] == [type(None), Wrong, type(None)]
        assert await values(store) == {"a": "1", "b": "1"}


async def test_one_that_the_database_refuses_is_told_so_alone(state: State) -> None:
    async with open_store(state) as store:

        async def unfit(tx: Transaction) -> None:
            await tx.execute(PUT, learn(store, "unfit", None))

        works = [adds(store, "a"), unfit, adds(store, "b")]
        told = await asyncio.gather(*map(store.write, works), return_exceptions=True)
        assert isinstance(told[1], Exception)
        assert await values(store) == {"a": "1", "b": "1"}


async def test_of_two_that_find_the_same_fact_one_gets_it(state: State) -> None:
    async with open_store(state) as store, open_store(state) as other:
        first = CompareAndSet("batch", "B-1", {"phase": "started"}, {"phase": None})
        told = await asyncio.gather(
            *(Ledger(one).record_all(ACME, [first]) for one in (store, other) * 4),
            return_exceptions=True,
        )
        assert sorted(type(one).__name__ for one in told) == ["Conflict"] * 7 + ["NoneType"]
        assert await Ledger(store).recall(ACME, "batch", "B-1") == {"phase": "started"}


@pytest.mark.parametrize("is_brief", [False, True])
async def test_whoever_finds_another_process_at_the_file_waits_for_it(
    sqlite: State, is_brief: bool
) -> None:
    file = sqlite_file(parsed(sqlite.url))
    assert file is not None
    async with open_store(sqlite) as store:
        await store.write(adds(store, "a"))

        async def read(tx: Transaction) -> Any:
            return await tx.fetch_value(READ, {"name": "a"})

        assert await store.read(read, is_brief=is_brief) == "1"
        async with locked(file):
            adding = asyncio.ensure_future(store.write(adds(store, "b")))
            reading = asyncio.ensure_future(store.read(read, is_brief=is_brief))
            await asyncio.sleep(0.1)
            assert [adding.done(), reading.done()] == [False, False]
        await adding
        assert await reading == "1"
        assert await values(store) == {"a": "1", "b": "1"}


async def test_who_has_waited_for_a_locked_file_does_not_wait_as_long_again(
    sqlite: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.storage.sqlite_database.BUSY_SECONDS", 1.5)
    file = sqlite_file(parsed(sqlite.url))
    assert file is not None
    async with open_store(sqlite) as store:
        async with locked(file):
            began = time.monotonic()
            asked: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(store.write(adds(store, "a")))
            ]
            await asyncio.sleep(0.5)
            asked += [asyncio.ensure_future(store.write(adds(store, name))) for name in "bc"]
            asked += [asyncio.ensure_future(values(store))]
            told = await asyncio.gather(*asked, return_exceptions=True)
            took = time.monotonic() - began
        assert [type(one) for one in told] == [StoreUnavailable] * 4
        assert took < 2.5
        assert await values(store) == {}


async def test_nobody_is_told_of_what_could_not_be_committed(sqlite: State) -> None:
    file = sqlite_file(parsed(sqlite.url))
    assert file is not None
    async with open_store(sqlite) as store:
        await store.write(adds(store, "a"))
        async with full(file):
            told = await asyncio.gather(
                *(store.write(adds(store, name)) for name in "bc"), return_exceptions=True
            )
        assert [type(one) for one in told] == [StoreUnavailable] * 2
        await store.write(adds(store, "d"))
        assert await values(store) == {"a": "1", "d": "1"}
