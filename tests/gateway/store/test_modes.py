"""Switches as the database has them, and a gateway's modes that follow."""

from __future__ import annotations

import asyncio

from gateway.config.settings import State
from gateway.migration.modes import Modes, find_mode_group
from gateway.storage import Ledger, Tenant, open_store
from gateway.storage.alias_ids import Ids
from gateway.storage.audit_log import acts_of
from gateway.storage.mode_rows import GROUPS, all_switches, count_of_switches, set_mode
from gateway.writes.batch_routing import BEGUN, LEGACY, BatchRouting
from mappings import OPERATIONS, UNLISTED
from tests.operating import eventually

ACME = Tenant("acme", "live")


async def test_what_is_said_of_every_key_takes_the_place_of_what_was_said_of_one(
    state: State,
) -> None:
    async with open_store(state) as store:
        assert await count_of_switches(store) == 0
        assert await set_mode(store, ACME, "shop", ["batches", "balances"], "forward") == []
        assert await set_mode(store, ACME, "", ["batches"], "translate") == ["shop"]
        found = {(one.key, one.group): one.mode for one in await all_switches(store)}
        assert found == {("", "batches"): "translate", ("shop", "balances"): "forward"}
        assert await count_of_switches(store) == 2
        whats = [one.what for one in await acts_of(store, ACME)]
        assert whats == [
            "switched to forward: batches, balances of key shop",
            "switched to translate: batches of every key",
        ]


async def test_switches_made_at_once_are_all_counted(state: State) -> None:
    async with open_store(state) as store:
        those = [set_mode(store, ACME, f"key {n}", ["batches"], "forward") for n in range(8)]
        await asyncio.gather(*those)
        assert await count_of_switches(store) == 8
        assert len(await all_switches(store)) == 8


async def test_a_gateway_hears_of_what_another_process_switches(state: State) -> None:
    async with open_store(state) as store, Modes(store) as modes:
        assert not modes.has_switches(ACME)
        async with open_store(state) as other:
            await set_mode(other, ACME, "", GROUPS, "forward")

        async def heard() -> bool:
            return modes.has_switches(ACME)

        await eventually(heard)


def test_every_operation_is_in_a_group() -> None:
    groups = {one.name: find_mode_group(one) for one in (*OPERATIONS, *UNLISTED)}
    assert set(groups.values()) == set(GROUPS)
    of_a_batch = {one.name for one in OPERATIONS if one.path.startswith("/batches")}
    assert {groups[name] for name in of_a_batch} == {"batches"}
    assert groups["create_payout_method"] == groups["create_recipient"] == "recipients"


async def test_where_a_batch_is(state: State) -> None:
    async with open_store(state) as store:
        ledger = Ledger(store)
        begun = BatchRouting(ledger, Ids(store, "all"))
        assert await begun.side(ACME, "B-1") is None
        facts = {"phase": "sent", "version": 1, "imported": 1}
        await ledger.record(ACME, "batch", "B-1", facts)
        assert await begun.side(ACME, "B-1") is None
        for change in ({"version": 2}, {"version": 1, "phase": "draft"}, {"imported": None}):
            await ledger.record(ACME, "batch", "B-1", {**facts, **change})
            assert await begun.side(ACME, "B-1") == "current"
        for one in ("B-1", "B-2"):
            await ledger.record(ACME, BEGUN, one, LEGACY)
        assert await ledger.recall(ACME, BEGUN, "B-2") == LEGACY
        assert await begun.side(ACME, "B-1") == "legacy"
        assert await begun.side(Tenant("other", "live"), "B-1") is None
        await ledger.record(ACME, "alias", "B-9", {"abandoned": True})
        assert await begun.side(ACME, "B-9") == "current"
