"""Group commit: concurrent transactions are committed together, and each fails alone."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import bindparam, select, text

from gateway.config.settings import State
from gateway.storage import ObjectStateStore, Store, StoreUnavailable, Tenant, engine, open_store
from gateway.storage.database import Body, Transaction
from gateway.storage.engine import find_sqlite_file, parse_state_url
from gateway.storage.sql import Statement, build_upsert_statement
from gateway.storage.sqlite_driver import JOURNAL_MODE, sqlite3
from gateway.storage.tables import capabilities
from mappings.effects import CompareAndSet
from tests.state import fetch
from tests.test_database_faults import fill_disk, lock_database

ACME = Tenant("acme", "live")

PUT_STATEMENT = build_upsert_statement(capabilities, ("value", "learned_at"))
READ_STATEMENT = Statement(
    select(capabilities.c.value).where(capabilities.c.name == bindparam("name"))
)


class StepError(Exception):
    pass


def build_learned_row(store: Store, name: str, value: Any = "1") -> dict[str, Any]:
    key = {"environment": "live", "name": name}
    return {**key, "value": value, "learned_at": store.clock()}


def build_increment(store: Store, name: str) -> Body[None]:
    """Build a transaction that reads the value of a name and writes the next number."""

    async def increment(tx: Transaction) -> None:
        await tx.lock(name)
        count = int(await tx.fetch_value(READ_STATEMENT, {"name": name}) or 0)
        await tx.execute(PUT_STATEMENT, build_learned_row(store, name, str(count + 1)))

    return increment


def build_failing_transaction(store: Store, *, fails_late: bool) -> Body[None]:
    async def write_and_fail(tx: Transaction) -> None:
        await tx.fetch(READ_STATEMENT, {"name": "a"})
        if fails_late:
            await tx.execute(PUT_STATEMENT, build_learned_row(store, "half"))
        raise StepError

    return write_and_fail


async def load_values(store: Store) -> dict[str, str]:
    return dict(await fetch(store, select(capabilities.c.name, capabilities.c.value)))


async def test_transactions_with_a_common_lock_are_isolated(
    state: State,
) -> None:
    async with open_store(state) as store, open_store(state) as second_store:
        stores = (store, second_store) * 10
        await asyncio.gather(
            *(outcome.write(build_increment(outcome, "count")) for outcome in stores)
        )
        assert await load_values(store) == {"count": "20"}


@pytest.mark.parametrize("fails_late", [False, True], ids=["before", "after it changed something"])
async def test_failed_transaction_is_rolled_back_alone(state: State, fails_late: bool) -> None:
    async with open_store(state) as store:
        transactions = [
            build_increment(store, "a"),
            build_failing_transaction(store, fails_late=fails_late),
            build_increment(store, "b"),
        ]
        outcomes = await asyncio.gather(*map(store.write, transactions), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), StepError, type(None)]
        assert await load_values(store) == {"a": "1", "b": "1"}


async def test_failure_on_slow_database_does_not_reach_other_waiters(state: State) -> None:
    """Each caller would take the failure for its own, and a flow might repeat a write."""
    async with open_store(state) as store:
        store.database.patience_seconds = 0
        failing_transaction = build_failing_transaction(store, fails_late=True)
        transactions = [failing_transaction, *(build_increment(store, "a") for _ in range(20))]
        outcomes = await asyncio.gather(*map(store.write, transactions), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StepError, *[type(None)] * 20]
        assert await load_values(store) == {"a": "20"}


async def test_waiting_transactions_share_the_next_commit(
    sqlite: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    open_connection = engine.open_sqlite_connection

    def open_traced(path: Path, seconds: float) -> sqlite3.Connection:
        connection = open_connection(path, seconds)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(engine, "open_sqlite_connection", open_traced)
    async with open_store(sqlite) as store:
        await asyncio.gather(*(store.write(build_increment(store, f"n{n}")) for n in range(40)))
        assert len(await load_values(store)) == 40
        assert statements.count("BEGIN IMMEDIATE") <= 3


async def test_faulty_statement_fails_alone(sqlite: State) -> None:
    async with open_store(sqlite) as store:

        async def execute_faulty(tx: Transaction) -> None:
            await tx.execute(PUT_STATEMENT, build_learned_row(store, "half"))
            await tx.execute(text("SELECT json('{')"))

        transactions = [build_increment(store, "a"), execute_faulty, build_increment(store, "b")]
        outcomes = await asyncio.gather(*map(store.write, transactions), return_exceptions=True)
        expected = [type(None), StoreUnavailable, type(None)]
        assert [type(outcome) for outcome in outcomes] == expected
        assert await load_values(store) == {"a": "1", "b": "1"}


async def test_commit_without_changes_does_not_hide_that_a_write_failed(sqlite: State) -> None:
    """A commit without changes succeeds even on a full disk."""
    file = find_sqlite_file(parse_state_url(sqlite.url))
    assert file is not None
    async with open_store(sqlite) as store:
        await store.write(build_increment(store, "a"))
        async with fill_disk(file):
            with pytest.raises(StoreUnavailable):
                await store.write(build_increment(store, "b"))

        async def change_nothing(tx: Transaction) -> None:
            await tx.fetch_value(READ_STATEMENT, {"name": "a"})

        await store.write(change_nothing)
        assert store.database.write_error is not None
        store.database.clear_write_error()
        assert store.database.write_error is None


async def test_transaction_refused_by_database_fails_alone(state: State) -> None:
    async with open_store(state) as store:

        async def write_unfit_value(tx: Transaction) -> None:
            await tx.execute(PUT_STATEMENT, build_learned_row(store, "unfit", None))

        transactions = [build_increment(store, "a"), write_unfit_value, build_increment(store, "b")]
        outcomes = await asyncio.gather(*map(store.write, transactions), return_exceptions=True)
        assert isinstance(outcomes[1], Exception)
        assert await load_values(store) == {"a": "1", "b": "1"}


async def test_one_of_several_concurrent_compare_and_sets_succeeds(state: State) -> None:
    async with open_store(state) as store, open_store(state) as second_store:
        first = CompareAndSet("batch", "B-1", {"phase": "sent"}, {"phase": None})
        outcomes = await asyncio.gather(
            *(
                ObjectStateStore(each_store).compare_and_set_all(ACME, [first])
                for each_store in (store, second_store) * 4
            ),
            return_exceptions=True,
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict"] * 7 + [
            "NoneType"
        ]
        assert await ObjectStateStore(store).load(ACME, "batch", "B-1") == {"phase": "sent"}


@pytest.mark.parametrize("is_brief", [False, True])
async def test_writer_waits_for_lock_of_another_process(sqlite: State, is_brief: bool) -> None:
    file = find_sqlite_file(parse_state_url(sqlite.url))
    assert file is not None
    async with open_store(sqlite) as store:
        await store.write(build_increment(store, "a"))

        async def load_value(tx: Transaction) -> Any:
            return await tx.fetch_value(READ_STATEMENT, {"name": "a"})

        assert await store.read(load_value, is_brief=is_brief) == "1"
        async with lock_database(file):
            increment_task = asyncio.ensure_future(store.write(build_increment(store, "b")))
            read_task = asyncio.ensure_future(store.read(load_value, is_brief=is_brief))
            await asyncio.sleep(0.1)
            # With a WAL, reads do not wait for a writer; the thread takes one after another.
            reads_at_once = is_brief and JOURNAL_MODE == "WAL"
            assert [increment_task.done(), read_task.done()] == [False, reads_at_once]
        await increment_task
        assert await read_task == "1"
        assert await load_values(store) == {"a": "1", "b": "1"}


async def test_locked_file_fails_waiting_callers_after_one_timeout(
    sqlite: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.storage.sqlite_database.BUSY_SECONDS", 1.5)
    file = find_sqlite_file(parse_state_url(sqlite.url))
    assert file is not None
    async with open_store(sqlite) as store:
        async with lock_database(file):
            started_at = time.monotonic()
            requests: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(store.write(build_increment(store, "a")))
            ]
            await asyncio.sleep(0.5)
            requests += [
                asyncio.ensure_future(store.write(build_increment(store, name))) for name in "bc"
            ]
            requests += [asyncio.ensure_future(load_values(store))]
            outcomes = await asyncio.gather(*requests, return_exceptions=True)
            elapsed_seconds = time.monotonic() - started_at
        assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 4
        assert elapsed_seconds < 2.5
        assert await load_values(store) == {}


async def test_failed_commit_is_reported_to_every_caller(sqlite: State) -> None:
    file = find_sqlite_file(parse_state_url(sqlite.url))
    assert file is not None
    async with open_store(sqlite) as store:
        await store.write(build_increment(store, "a"))
        async with fill_disk(file):
            outcomes = await asyncio.gather(
                *(store.write(build_increment(store, name)) for name in "bc"),
                return_exceptions=True,
            )
        assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 2
        await store.write(build_increment(store, "d"))
        assert await load_values(store) == {"a": "1", "d": "1"}
