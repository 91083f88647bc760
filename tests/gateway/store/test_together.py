"""What is written at one time is committed together, and what one does wrong is nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import bindparam, func, select

from gateway.config.settings import State
from gateway.storage import Ledger, Store, StoreUnavailable, Tenant, open_store
from gateway.storage.engine import parsed, sqlite_file
from gateway.storage.statements import Rows, Statement, Steps, Transaction, put, rows_of
from gateway.storage.tables import learned
from mappings.effects import CompareAndSet
from tests.test_state_faults import full, locked

ACME = Tenant("acme", "live")

PUT = put(learned, ("environment", "name"), ("value", "learned_at"))
READ = Statement(lambda _kind: select(learned.c.value).where(learned.c.name == bindparam("name")))


class Wrong(Exception):
    pass


def learn(store: Store, name: str, value: str = "1") -> dict[str, Any]:
    key = {"environment": "live", "name": name}
    return {**key, "value": value, "learned_at": store.clock()}


def adds(store: Store, name: str) -> Transaction[None]:
    """Counts on from what it reads."""

    def steps() -> Steps[None]:
        rows = yield READ.of({"name": name})
        yield PUT.of(learn(store, name, str(int(rows[0][0]) + 1 if rows else 1)))

    return Transaction(steps, frozenset({name}))


def fails(store: Store, *, after: bool) -> Transaction[None]:
    def steps() -> Steps[None]:
        yield READ.of({"name": "a"})
        if after:
            yield PUT.of(learn(store, "half"))
        raise Wrong

    return Transaction(steps)


async def values(store: Store) -> dict[str, str]:
    async with store.read() as connection:
        rows = await connection.execute(select(learned.c.name, learned.c.value))
        return {row.name: row.value for row in rows}


async def test_what_comes_while_a_transaction_is_under_way_shares_the_next(state: State) -> None:
    async with open_store(state) as store:
        before = store.changes.transactions
        await asyncio.gather(*(store.carried_out(adds(store, f"n{n}")) for n in range(40)))
        assert await values(store) == {f"n{n}": "1" for n in range(40)}
        assert store.changes.works == 40
        assert store.changes.transactions - before <= 3


async def test_what_is_in_no_hurry_goes_with_another_or_in_time_by_itself(state: State) -> None:
    async with open_store(state) as store:
        before = store.changes.transactions
        waits = asyncio.ensure_future(store.carried_out(adds(store, "a"), within=60))
        await asyncio.sleep(0)
        await store.carried_out(adds(store, "b"))
        await waits
        assert store.changes.transactions - before == 1
        await store.carried_out(adds(store, "c"), within=0.01)
        left = asyncio.ensure_future(store.carried_out(adds(store, "d"), within=60))
        await asyncio.sleep(0)
        await store.changes.end()
        await left
        assert await values(store) == dict.fromkeys("abcd", "1")


async def test_those_that_have_a_lock_in_common_do_not_see_each_other_half_done(
    state: State,
) -> None:
    async with open_store(state) as store, open_store(state) as other:
        both = (store, other) * 10
        await asyncio.gather(*(one.carried_out(adds(one, "count")) for one in both))
        assert await values(store) == {"count": "20"}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after it changed something"])
async def test_one_that_fails_is_taken_back_alone(state: State, after: bool) -> None:
    async with open_store(state) as store:
        works = [adds(store, "a"), fails(store, after=after), adds(store, "b")]
        told = await asyncio.gather(*map(store.carried_out, works), return_exceptions=True)
        assert [type(one) for one in told] == [type(None), Wrong, type(None)]
        assert await values(store) == {"a": "1", "b": "1"}


async def test_what_one_does_wrong_on_a_slow_database_is_nobody_else_s_who_waits(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose flow took it for its own: a write that had happened was sent once more."""
    monkeypatch.setattr("gateway.storage.group_commit.PATIENCE_SECONDS", 0)
    async with open_store(state) as store:
        wrong = Transaction(
            fails(store, after=True).steps, frozenset({"a"})
        )  # so that it goes alone
        works = [wrong, *(adds(store, "a") for _ in range(20))]
        told = await asyncio.gather(*map(store.carried_out, works), return_exceptions=True)
        assert [type(one) for one in told] == [Wrong, *[type(None)] * 20]
        assert await values(store) == {"a": "20"}


async def test_one_that_the_database_refuses_is_told_so_alone(state: State) -> None:
    async with open_store(state) as store:
        unfit = Transaction(lambda: rows_of(PUT, {**learn(store, "unfit"), "value": None}))
        works: Sequence[Transaction[Any]] = [adds(store, "a"), unfit, adds(store, "b")]
        told = await asyncio.gather(*map(store.carried_out, works), return_exceptions=True)
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


async def test_it_is_carried_out_although_whoever_asked_has_gone(state: State) -> None:
    async with open_store(state) as store:
        asking = asyncio.ensure_future(store.carried_out(adds(store, "a")))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await store.carried_out(adds(store, "b"))
        await store.changes.end()  # on PostgreSQL two transactions are under way at a time
        assert await values(store) == {"a": "1", "b": "1"}


@pytest.mark.parametrize("is_brief", [False, True])
async def test_whoever_finds_another_process_at_the_file_waits_for_it(
    sqlite: State, is_brief: bool
) -> None:
    file = sqlite_file(parsed(sqlite.url))
    assert file is not None
    async with open_store(sqlite) as store:
        await store.carried_out(adds(store, "a"))
        async with locked(file):
            work = Transaction(adds(store, "b").steps, is_brief=is_brief)
            adding = asyncio.ensure_future(store.carried_out(work))
            read = Transaction(lambda: rows_of(READ, {"name": "a"}), is_brief=is_brief)
            reading = asyncio.ensure_future(store.looked_up(read))
            await asyncio.sleep(0.1)
            assert [adding.done(), reading.done()] == [False, False]
        await adding
        assert await reading == [("1",)]
        assert await values(store) == {"a": "1", "b": "1"}


async def test_nobody_is_told_of_what_could_not_be_committed(sqlite: State) -> None:
    file = sqlite_file(parsed(sqlite.url))
    assert file is not None
    async with open_store(sqlite) as store:
        await store.carried_out(adds(store, "a"))
        async with full(file):
            told = await asyncio.gather(
                *(store.carried_out(adds(store, name)) for name in "bc"), return_exceptions=True
            )
        assert [type(one) for one in told] == [StoreUnavailable] * 2
        await store.carried_out(adds(store, "d"))
        assert await values(store) == {"a": "1", "d": "1"}


async def test_what_is_read_is_as_it_was_written(state: State) -> None:
    async with open_store(state) as store:
        row = learn(store, "a")
        await store.carried_out(Transaction(lambda: rows_of(PUT, row)))
        whole = Statement(lambda _kind: select(learned, func.count().over()))
        found: Rows = await store.looked_up(Transaction(lambda: rows_of(whole)))
        assert found == [("live", "a", "1", row["learned_at"], 1)]
