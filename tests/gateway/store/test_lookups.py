from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import text

from gateway.config.settings import State
from gateway.storage import Ledger, StoreUnavailable, Tenant, open_store
from gateway.storage.engine import parsed, sqlite_file
from gateway.storage.id_rows import Collision, current_ids, keep, legacy_ids
from tests.states import execute

ACME, OTHER = Tenant("acme", "live"), Tenant("other", "live")


@pytest.mark.parametrize("count", [1, 2, 16, 17, 501])
async def test_as_many_ids_as_are_asked_for_are_found(state: State, count: int) -> None:
    names = {f"R-{number:016}": f"R-{number:022}" for number in range(count)}
    async with open_store(state) as store:
        await keep(store, ACME, names)
        assert await current_ids(store, ACME, [*names, "R-UNKNOWN"]) == names
        spelled = {current: legacy for legacy, current in names.items()}
        assert await legacy_ids(store, ACME, [*spelled, "R-UNKNOWN"]) == spelled
        assert await current_ids(store, OTHER, names) == {}
        assert await current_ids(store, ACME, []) == {}


async def test_an_object_has_one_imported_name_and_perhaps_a_stand_in(state: State) -> None:
    async with open_store(state) as store:
        await keep(store, ACME, {"R-STANDIN": "R-REAL"})
        for _ in range(2):
            await keep(store, ACME, {"R-FIRST": "R-REAL"}, imported=True)
        with pytest.raises(Collision, match="R-SECOND is of what was imported as R-FIRST already"):
            await keep(store, ACME, {"R-SECOND": "R-REAL"}, imported=True)
        await keep(store, OTHER, {"R-SECOND": "R-REAL"}, imported=True)
        assert await legacy_ids(store, ACME, ["R-REAL"]) == {"R-REAL": "R-FIRST"}
        assert await legacy_ids(store, OTHER, ["R-REAL"]) == {"R-REAL": "R-SECOND"}


async def test_what_cannot_be_looked_up_is_told(sqlite: State) -> None:
    file = sqlite_file(parsed(sqlite.url))
    assert file is not None
    async with open_store(sqlite) as store:
        ledger = Ledger(store)
        assert await ledger.recall(ACME, "recipient", "R-1") == {}
        file.write_bytes(b"no database " * 4096)
        with pytest.raises(StoreUnavailable, match="file is not a database"):
            await ledger.recall(ACME, "recipient", "R-1")


async def test_what_is_looked_up_keeps_nobody_from_a_change(sqlite: State) -> None:
    file = sqlite_file(parsed(sqlite.url))
    assert file is not None

    def elsewhere() -> None:
        connection = sqlite3.connect(file)
        connection.execute("UPDATE ids SET current_id = 'R-ELSEWHERE'")
        connection.commit()
        connection.close()

    async with open_store(sqlite) as store:
        await keep(store, ACME, {"R-1": "R-2"})
        assert await current_ids(store, ACME, ["R-1"]) == {"R-1": "R-2"}
        await asyncio.to_thread(elsewhere)
        assert await current_ids(store, ACME, ["R-1"]) == {"R-1": "R-ELSEWHERE"}
        await keep(store, ACME, {"R-3": "R-4"})
        assert await current_ids(store, ACME, ["R-3"]) == {"R-3": "R-4"}


async def test_what_is_looked_up_after_nothing_was_waits_for_another_process(sqlite: State) -> None:
    """A transaction has its lock from its first statement on."""
    file = sqlite_file(parsed(sqlite.url))
    assert file is not None
    async with open_store(sqlite) as store:
        await keep(store, ACME, {"R-1": "R-2"})
        assert await current_ids(store, ACME, []) == {}
        with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            looking = asyncio.ensure_future(current_ids(store, ACME, ["R-1"]))
            await asyncio.sleep(0.1)
            other.execute("COMMIT")
        assert await looking == {"R-1": "R-2"}


async def test_what_was_prepared_outlives_a_change_of_its_table(postgres: State) -> None:
    """Another process may bring the tables up to date while this one runs."""
    async with open_store(postgres) as store:
        await keep(store, ACME, {"R-1": "R-2"})
        for kind in ("varchar(99)", "text"):
            assert await current_ids(store, ACME, ["R-1"]) == {"R-1": "R-2"}
            await execute(store, text(f"ALTER TABLE ids ALTER current_id TYPE {kind}"))
        assert await current_ids(store, ACME, ["R-1"]) == {"R-1": "R-2"}
