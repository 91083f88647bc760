"""What is written at one time is committed together, and what one does wrong is nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import bindparam, func, select

from gateway.config.settings import State
from gateway.storage import ObjectStateStore, Store, StoreUnavailable, Tenant, open_store
from gateway.storage.engine import parsed, sqlite_file
from gateway.storage.statements import Rows, Statement, Steps, Transaction, put, rows_of
from gateway.storage.tables import learned
from mappings.effects import CompareAndSet
from tests.test_database_faults import fill_disk, lock_database

ACME = Tenant("acme", "live")

PUT_STATEMENT = put(learned, ("environment", "name"), ("value", "learned_at"))
READ_STATEMENT = Statement(
    lambda _kind: select(learned.c.value).where(learned.c.name == bindparam("name"))
)


class StepError(Exception):
    pass


def build_learned_row(store: Store, name: str, value: str = "1") -> dict[str, Any]:
    key = {"environment": "live", "name": name}
    return {**key, "value": value, "learned_at": store.clock()}


def build_increment(store: Store, name: str) -> Transaction[None]:
    """Counts on from what it reads."""

    def steps() -> Steps[None]:
        rows = yield READ_STATEMENT.of({"name": name})
        yield PUT_STATEMENT.of(
            build_learned_row(store, name, str(int(rows[0][0]) + 1 if rows else 1))
        )

    return Transaction(steps, frozenset({name}))


def build_failing_transaction(store: Store, *, after: bool) -> Transaction[None]:
    def steps() -> Steps[None]:
        yield READ_STATEMENT.of({"name": "a"})
        if after:
            yield PUT_STATEMENT.of(build_learned_row(store, "half"))
        raise StepError

    return Transaction(steps)


async def load_values(store: Store) -> dict[str, str]:
    async with store.read() as connection:
        rows = await connection.execute(select(learned.c.name, learned.c.value))
        return {row.name: row.value for row in rows}


async def test_waiting_transactions_share_the_next_commit(state: State) -> None:
    async with open_store(state) as store:
        before = store.changes.transactions
        await asyncio.gather(
            *(store.carried_out(build_increment(store, f"n{n}")) for n in range(40))
        )
        assert await load_values(store) == {f"n{n}": "1" for n in range(40)}
        assert store.changes.works == 40
        assert store.changes.transactions - before <= 3


async def test_deferred_transaction_joins_another_or_commits_at_its_deadline(state: State) -> None:
    async with open_store(state) as store:
        before = store.changes.transactions
        waits = asyncio.ensure_future(store.carried_out(build_increment(store, "a"), within=60))
        await asyncio.sleep(0)
        await store.carried_out(build_increment(store, "b"))
        await waits
        assert store.changes.transactions - before == 1
        await store.carried_out(build_increment(store, "c"), within=0.01)
        left = asyncio.ensure_future(store.carried_out(build_increment(store, "d"), within=60))
        await asyncio.sleep(0)
        await store.changes.end()
        await left
        assert await load_values(store) == dict.fromkeys("abcd", "1")


async def test_transactions_with_a_common_lock_are_isolated(
    state: State,
) -> None:
    async with open_store(state) as store, open_store(state) as other:
        stores = (store, other) * 10
        await asyncio.gather(
            *(outcome.carried_out(build_increment(outcome, "count")) for outcome in stores)
        )
        assert await load_values(store) == {"count": "20"}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after it changed something"])
async def test_failed_transaction_is_rolled_back_alone(state: State, after: bool) -> None:
    async with open_store(state) as store:
        works = [
            build_increment(store, "a"),
            build_failing_transaction(store, after=after),
            build_increment(store, "b"),
        ]
        outcomes = await asyncio.gather(*map(store.carried_out, works), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), StepError, type(None)]
        assert await load_values(store) == {"a": "1", "b": "1"}


async def test_failure_on_slow_database_does_not_reach_other_waiters(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose flow took it for its own: a write that had happened was sent once more."""
    monkeypatch.setattr("gateway.storage.group_commit.PATIENCE_SECONDS", 0)
    async with open_store(state) as store:
        wrong = Transaction(
            build_failing_transaction(store, after=True).steps, frozenset({"a"})
        )  # so that it goes alone
        works = [wrong, *(build_increment(store, "a") for _ in range(20))]
        outcomes = await asyncio.gather(*map(store.carried_out, works), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StepError, *[type(None)] * 20]
        assert await load_values(store) == {"a": "20"}


async def test_transaction_refused_by_database_fails_alone(state: State) -> None:
    async with open_store(state) as store:
        unfit = Transaction(
            lambda: rows_of(PUT_STATEMENT, {**build_learned_row(store, "unfit"), "value": None})
        )
        works: Sequence[Transaction[Any]] = [
            build_increment(store, "a"),
            unfit,
            build_increment(store, "b"),
        ]
        outcomes = await asyncio.gather(*map(store.carried_out, works), return_exceptions=True)
        assert isinstance(outcomes[1], Exception)
        assert await load_values(store) == {"a": "1", "b": "1"}


async def test_one_of_several_concurrent_compare_and_sets_succeeds(state: State) -> None:
    async with open_store(state) as store, open_store(state) as other:
        first = CompareAndSet("batch", "B-1", {"phase": "started"}, {"phase": None})
        outcomes = await asyncio.gather(
            *(
                ObjectStateStore(one).compare_and_set_all(ACME, [first])
                for one in (store, other) * 4
            ),
            return_exceptions=True,
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict"] * 7 + [
            "NoneType"
        ]
        assert await ObjectStateStore(store).load(ACME, "batch", "B-1") == {"phase": "started"}


async def test_transaction_of_cancelled_caller_is_committed(state: State) -> None:
    async with open_store(state) as store:
        asking = asyncio.ensure_future(store.carried_out(build_increment(store, "a")))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await store.carried_out(build_increment(store, "b"))
        await store.changes.end()  # on PostgreSQL two transactions are under way at a time
        assert await load_values(store) == {"a": "1", "b": "1"}


@pytest.mark.parametrize("is_brief", [False, True])
async def test_writer_waits_for_lock_of_another_process(sqlite: State, is_brief: bool) -> None:
    file = sqlite_file(parsed(sqlite.url))
    assert file is not None
    async with open_store(sqlite) as store:
        await store.carried_out(build_increment(store, "a"))
        async with lock_database(file):
            work = Transaction(build_increment(store, "b").steps, is_brief=is_brief)
            adding = asyncio.ensure_future(store.carried_out(work))
            read = Transaction(lambda: rows_of(READ_STATEMENT, {"name": "a"}), is_brief=is_brief)
            reading = asyncio.ensure_future(store.looked_up(read))
            await asyncio.sleep(0.1)
            assert [adding.done(), reading.done()] == [False, False]
        await adding
        assert await reading == [("1",)]
        assert await load_values(store) == {"a": "1", "b": "1"}


async def test_failed_commit_is_reported_to_every_caller(sqlite: State) -> None:
    file = sqlite_file(parsed(sqlite.url))
    assert file is not None
    async with open_store(sqlite) as store:
        await store.carried_out(build_increment(store, "a"))
        async with fill_disk(file):
            outcomes = await asyncio.gather(
                *(store.carried_out(build_increment(store, name)) for name in "bc"),
                return_exceptions=True,
            )
        assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 2
        await store.carried_out(build_increment(store, "d"))
        assert await load_values(store) == {"a": "1", "d": "1"}


async def test_rows_are_read_as_written(state: State) -> None:
    async with open_store(state) as store:
        row = build_learned_row(store, "a")
        await store.carried_out(Transaction(lambda: rows_of(PUT_STATEMENT, row)))
        whole = Statement(lambda _kind: select(learned, func.count().over()))
        found: Rows = await store.looked_up(Transaction(lambda: rows_of(whole)))
        assert found == [("live", "a", "1", row["learned_at"], 1)]
