"""Facts with very many rows: kept packed and sealed, recalled as rows, and held against each other."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from gateway import wire
from gateway.settings import State
from gateway.store import Ledger, open_store
from gateway.store.ledger import Owner
from gateway.store.tables import remembered
from mappings.grammar import Conflict
from mappings.rows import Packed, each

OWNER = Owner("demo", "sandbox")
ENTRIES = [
    {"recipient": {"id": f"R-{number}"}, "sourceAmount": f"{number}.00", "memo": "für Ada " * 10}
    for number in range(3000)
]


async def test_very_many_entries_are_recalled_as_they_were_recorded(state: State) -> None:
    assert len(wire.write(ENTRIES)) > wire.LARGE
    async with open_store(state) as store:
        ledger = Ledger(store)
        await ledger.record(OWNER, "payments", "B-1", {"entries": Packed(ENTRIES)})
        there = (await ledger.recall(OWNER, "payments", "B-1"))["entries"]
        assert isinstance(there, Packed)
        assert there == ENTRIES
        async with store.read() as connection:
            kept = str(await connection.scalar(select(remembered.c.facts)))
        assert "für Ada" not in kept
        assert len(kept) < len(wire.write(ENTRIES)) / 2


async def test_very_many_entries_are_changed_by_whoever_found_them_as_they_are(
    state: State,
) -> None:
    async with open_store(state) as store:
        ledger = Ledger(store)
        await ledger.record(OWNER, "payments", "B-1", {"entries": Packed(ENTRIES)})
        there = (await ledger.recall(OWNER, "payments", "B-1"))["entries"]
        bare = each(lambda one: {"recipient": one["recipient"]}, there)
        await ledger.record(OWNER, "payments", "B-1", {"entries": bare}, {"entries": there})
        now = (await ledger.recall(OWNER, "payments", "B-1"))["entries"]
        assert [*now] == [{"recipient": one["recipient"]} for one in ENTRIES]
        with pytest.raises(Conflict):
            await ledger.record(OWNER, "payments", "B-1", {"entries": None}, {"entries": there})


async def test_very_many_entries_that_were_kept_as_plain_json_are_recalled(state: State) -> None:
    async with open_store(state) as store:
        ledger = Ledger(store)
        await ledger.record(OWNER, "payments", "B-1", {"entries": ENTRIES})
        assert (await ledger.recall(OWNER, "payments", "B-1"))["entries"] == ENTRIES
