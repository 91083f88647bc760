"""Transactions on PostgreSQL whose connection is lost, or whose server does not respond."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Text, bindparam, column, make_url, select, table, text

from gateway.storage.database import FaultyStatement, Transaction
from gateway.storage.errors import StoreUnavailable
from gateway.storage.postgresql_database import POOL_SIZE, PostgresqlDatabase
from gateway.storage.sql import Statement
from tests.tcp_proxy import TcpProxy, open_tcp_proxy

COUNT = text("SELECT count(*) FROM event")


@asynccontextmanager
async def open_proxied_database(
    dsn: str, **options: Any
) -> AsyncIterator[tuple[PostgresqlDatabase, TcpProxy]]:
    await execute_directly(dsn, "DROP TABLE IF EXISTS event", "CREATE TABLE event (id text)")
    address = make_url(dsn)
    async with open_tcp_proxy(address.host or "127.0.0.1", address.port or 5432) as proxy:
        proxied_address = address.set(host="127.0.0.1", port=proxy.port)
        url = proxied_address.render_as_string(hide_password=False)
        database = PostgresqlDatabase("a database", url, **options)
        yield database, proxy
        await database.close()


async def execute_directly(dsn: str, *statements: str) -> None:
    connection: Any = await asyncpg.connect(dsn)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


async def insert_event(tx: Transaction) -> None:
    await tx.execute(text("INSERT INTO event VALUES ('a')"))


async def count_events(database: PostgresqlDatabase) -> int:
    count: int = await database.read(lambda tx: tx.fetch_value(COUNT))
    return count


async def test_lost_response_of_commit_is_reported_and_never_repeated(database: str) -> None:
    """The transaction is committed; a repetition would execute it twice."""
    async with open_proxied_database(database) as (proxied_database, proxy):
        await execute_directly(
            database,
            "CREATE OR REPLACE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END'",
            "CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON event"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()",
        )
        write_task = asyncio.ensure_future(proxied_database.write(insert_event))
        await asyncio.sleep(0.3)
        proxy.disconnect()
        with pytest.raises(StoreUnavailable):
            await write_task
        assert proxied_database.write_error is not None
        await asyncio.sleep(0.5)
        proxy.restore()
        assert await count_events(proxied_database) == 1
        await proxied_database.write(insert_event)
        assert await count_events(proxied_database) == 2


async def test_read_is_repeated_on_another_connection(database: str) -> None:
    async with open_proxied_database(database) as (proxied_database, _proxy):
        attempts: list[str] = []

        async def count_with_retry(tx: Transaction) -> int:
            attempts.append("an attempt")
            if len(attempts) == 1:
                await tx.fetch(text("SELECT pg_terminate_backend(pg_backend_pid())"))
            count: int = await tx.fetch_value(COUNT)
            return count

        assert await proxied_database.read(count_with_retry) == 0
        assert len(attempts) == 2


async def test_write_is_not_repeated_after_a_lost_connection(database: str) -> None:
    async with open_proxied_database(database) as (proxied_database, _proxy):
        attempts: list[str] = []

        async def write(tx: Transaction) -> None:
            attempts.append("an attempt")
            await insert_event(tx)
            await tx.fetch(text("SELECT pg_terminate_backend(pg_backend_pid())"))

        with pytest.raises(StoreUnavailable):
            await proxied_database.write(write)
        assert len(attempts) == 1
        assert await count_events(proxied_database) == 0


async def test_deadlocked_transactions_are_repeated(database: str) -> None:
    async with open_proxied_database(database) as (proxied_database, _proxy):

        async def lock_in_order(tx: Transaction, *names: str) -> None:
            for name in names:
                await tx.lock(name)
                await tx.fetch(text("SELECT pg_sleep(0.2)"))
            await insert_event(tx)

        await asyncio.gather(
            proxied_database.write(lambda tx: lock_in_order(tx, "a", "b")),
            proxied_database.write(lambda tx: lock_in_order(tx, "b", "a")),
        )
        assert await count_events(proxied_database) == 2


@pytest.mark.parametrize("is_connected", [False, True], ids=["new", "idle connections"])
async def test_hung_server_fails_all_callers_after_one_timeout(
    database: str, is_connected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the callers would wait for one timeout each, one after another."""
    monkeypatch.setattr("gateway.storage.postgresql_database.BEGIN_SECONDS", 1)
    options = {"timeout": 1, "command_timeout": 1}
    async with open_proxied_database(database, **options) as (proxied_database, proxy):
        proxied_database.patience_seconds = 0.5
        if is_connected:
            await asyncio.gather(*(proxied_database.write(insert_event) for _ in range(POOL_SIZE)))
        events_before = await count_events(proxied_database)
        proxy.hang()
        started_at = time.monotonic()
        callers = [proxied_database.write(insert_event) for _ in range(3 * POOL_SIZE)]
        read_calls = [count_events(proxied_database) for _ in range(POOL_SIZE)]
        outcomes = await asyncio.gather(*callers, *read_calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
        assert time.monotonic() - started_at < 3.5
        proxy.disconnect()
        proxy.restore()
        assert await count_events(proxied_database) == events_before
        await proxied_database.write(insert_event)


async def test_reads_by_key_that_share_a_failure_can_be_repeated(database: str) -> None:
    statement = Statement(
        lambda _dialect: (
            select(column("id", Text))
            .select_from(table("event"))
            .where(column("id", Text) == bindparam("wanted"))
        )
    )
    async with open_proxied_database(database, timeout=2, command_timeout=2) as (
        proxied_database,
        proxy,
    ):

        async def fetch() -> list[Any]:
            return [*await proxied_database.fetch_by_key(statement, {"wanted": "a"})]

        await proxied_database.write(insert_event)
        for is_connected in (True, False):
            proxy.hang()
            outcomes = await asyncio.gather(*(fetch() for _ in range(3)), return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 3, is_connected
        cancelled, other = asyncio.ensure_future(fetch()), asyncio.ensure_future(fetch())
        await asyncio.sleep(0)
        proxy.disconnect()
        proxy.restore()
        cancelled.cancel()
        assert await other == [("a",)]
        assert await asyncio.gather(fetch(), fetch()) == [[("a",)]] * 2


async def test_locks_of_a_timed_out_transaction_are_released(database: str) -> None:
    async with open_proxied_database(database, command_timeout=1.5) as (proxied_database, _proxy):

        async def wait_with_lock(tx: Transaction) -> None:
            await tx.lock("a")
            await tx.fetch(text("SELECT pg_sleep(2)"))

        with pytest.raises(StoreUnavailable):
            await proxied_database.write(wait_with_lock)
        await asyncio.sleep(1)  # the server notices the closed connection after the statement

        async def lock_and_insert(tx: Transaction) -> None:
            await tx.lock("a")
            await insert_event(tx)

        await proxied_database.write(lock_and_insert)
        assert await count_events(proxied_database) == 1


async def test_commit_of_a_failed_transaction_is_no_success(database: str) -> None:
    """PostgreSQL answers such a COMMIT with ROLLBACK, which is no error."""
    async with open_proxied_database(database) as (proxied_database, _proxy):

        async def swallow_error(tx: Transaction) -> None:
            await insert_event(tx)
            with suppress(asyncpg.DivisionByZeroError):
                await tx.execute(text("SELECT 1 / 0"))

        with pytest.raises(StoreUnavailable):
            await proxied_database.write(swallow_error)
        assert await count_events(proxied_database) == 0


@pytest.mark.parametrize("value", ["'a secret'", "NULL"])
async def test_value_that_does_not_fit_is_not_quoted(database: str, value: str) -> None:
    async with open_proxied_database(database) as (proxied_database, _proxy):
        await execute_directly(
            database, "ALTER TABLE event ADD CHECK (id <> 'a secret'), ALTER id SET NOT NULL"
        )
        statement = text(f"INSERT INTO event VALUES ({value})")
        with pytest.raises(FaultyStatement) as raised_error:
            await proxied_database.write(lambda tx: tx.execute(statement))
        error_text = traceback.format_exception(raised_error.value)[-1]
        assert error_text.startswith("gateway.storage.database.FaultyStatement: ")
        assert "secret" not in error_text


async def test_cancelled_reads_leave_usable_connections(database: str) -> None:
    async with open_proxied_database(database) as (proxied_database, _proxy):

        async def read_slowly(tx: Transaction) -> None:
            await tx.fetch(text("SELECT pg_sleep(5)"))

        read_tasks = [
            asyncio.ensure_future(proxied_database.read(read_slowly)) for _ in range(2 * POOL_SIZE)
        ]
        await asyncio.sleep(0.3)
        for task in read_tasks:
            task.cancel()
        await asyncio.gather(*read_tasks, return_exceptions=True)
        async with asyncio.timeout(3):
            await asyncio.gather(
                *(proxied_database.write(insert_event) for _ in range(2 * POOL_SIZE))
            )
        assert await count_events(proxied_database) == 2 * POOL_SIZE
