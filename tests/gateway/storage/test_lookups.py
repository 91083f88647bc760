from __future__ import annotations

import asyncio
from contextlib import closing

import pytest
from sqlalchemy import text

from gateway.config.settings import State
from gateway.storage import ObjectStateStore, StoreUnavailable, Tenant, open_store
from gateway.storage.engine import find_sqlite_file, parse_state_url
from gateway.storage.id_rows import (
    IdCollisionError,
    load_current_ids_by_legacy_id,
    load_legacy_ids,
    save_legacy_ids,
)
from gateway.storage.sqlite_database import CHECK_SECONDS
from gateway.storage.sqlite_driver import sqlite3
from tests.state import execute

ACME, OTHER_TENANT = Tenant("acme", "live"), Tenant("other", "live")


@pytest.mark.parametrize("count", [1, 2, 16, 17, 501])
async def test_any_number_of_ids_is_resolved(state: State, count: int) -> None:
    names = {f"R-{number:016}": f"R-{number:022}" for number in range(count)}
    async with open_store(state) as store:
        await save_legacy_ids(store, ACME, names)
        assert await load_current_ids_by_legacy_id(store, ACME, [*names, "R-UNKNOWN"]) == names
        legacy_ids = {current_id: legacy for legacy, current_id in names.items()}
        assert await load_legacy_ids(store, ACME, [*legacy_ids, "R-UNKNOWN"]) == legacy_ids
        assert await load_current_ids_by_legacy_id(store, OTHER_TENANT, names) == {}
        assert await load_current_ids_by_legacy_id(store, ACME, []) == {}


async def test_object_has_one_imported_id_and_at_most_one_alias(state: State) -> None:
    async with open_store(state) as store:
        await save_legacy_ids(store, ACME, {"R-STANDIN": "R-REAL"})
        for _ in range(2):
            await save_legacy_ids(store, ACME, {"R-FIRST": "R-REAL"}, imported=True)
        with pytest.raises(
            IdCollisionError, match="R-SECOND is of the object imported as R-FIRST already"
        ):
            await save_legacy_ids(store, ACME, {"R-SECOND": "R-REAL"}, imported=True)
        await save_legacy_ids(store, OTHER_TENANT, {"R-SECOND": "R-REAL"}, imported=True)
        assert await load_legacy_ids(store, ACME, ["R-REAL"]) == {"R-REAL": "R-FIRST"}
        assert await load_legacy_ids(store, OTHER_TENANT, ["R-REAL"]) == {"R-REAL": "R-SECOND"}


async def test_lookup_in_unusable_database_raises_store_unavailable(sqlite: State) -> None:
    file = find_sqlite_file(parse_state_url(sqlite.url))
    assert file is not None
    async with open_store(sqlite) as store:
        object_states = ObjectStateStore(store)
        assert await object_states.load(ACME, "recipient", "R-1") == {}
        file.write_bytes(b"no database " * 4096)
        with pytest.raises(StoreUnavailable, match="the file is damaged or not a database"):
            await object_states.load(ACME, "recipient", "R-2")


async def test_lookup_does_not_block_a_change(sqlite: State) -> None:
    file = find_sqlite_file(parse_state_url(sqlite.url))
    assert file is not None

    def look_up_in_thread() -> None:
        connection = sqlite3.connect(file)
        connection.execute("UPDATE legacy_ids SET current_id = 'R-ELSEWHERE'")
        connection.commit()
        connection.close()

    async with open_store(sqlite) as store:
        await save_legacy_ids(store, ACME, {"R-1": "R-2"})
        assert await load_current_ids_by_legacy_id(store, ACME, ["R-1"]) == {"R-1": "R-2"}
        await asyncio.to_thread(look_up_in_thread)
        await asyncio.sleep(CHECK_SECONDS)
        assert await load_current_ids_by_legacy_id(store, ACME, ["R-1"]) == {"R-1": "R-ELSEWHERE"}
        await save_legacy_ids(store, ACME, {"R-3": "R-4"})
        assert await load_current_ids_by_legacy_id(store, ACME, ["R-3"]) == {"R-3": "R-4"}


async def test_first_lookup_waits_for_another_process(sqlite: State) -> None:
    """A transaction takes its lock with its first statement."""
    file = find_sqlite_file(parse_state_url(sqlite.url))
    assert file is not None
    async with open_store(sqlite) as store:
        await save_legacy_ids(store, ACME, {"R-1": "R-2"})
        assert await load_current_ids_by_legacy_id(store, ACME, []) == {}
        with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as other_connection:
            other_connection.execute("BEGIN EXCLUSIVE")
            lookup_task = asyncio.ensure_future(load_current_ids_by_legacy_id(store, ACME, ["R-1"]))
            await asyncio.sleep(0.1)
            other_connection.execute("COMMIT")
        assert await lookup_task == {"R-1": "R-2"}


async def test_prepared_statement_survives_table_change(postgres: State) -> None:
    """Another process may migrate the tables while this one starts."""
    async with open_store(postgres) as store:
        await save_legacy_ids(store, ACME, {"R-1": "R-2"})
        for kind in ("varchar(99)", "text"):
            assert await load_current_ids_by_legacy_id(store, ACME, ["R-1"]) == {"R-1": "R-2"}
            await execute(store, text(f"ALTER TABLE legacy_ids ALTER current_id TYPE {kind}"))
        assert await load_current_ids_by_legacy_id(store, ACME, ["R-1"]) == {"R-1": "R-2"}
