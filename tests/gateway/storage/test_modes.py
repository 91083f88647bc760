"""Mode switches in the database, and their effect on a running gateway."""

from __future__ import annotations

import asyncio

from gateway.config.settings import State
from gateway.migration.modes import find_mode_group
from gateway.storage import ObjectStateStore, Tenant, open_store
from gateway.storage.alias_ids import AliasIds
from gateway.storage.audit_log import list_audit_events
from gateway.storage.change_poller import load_change_counts
from gateway.storage.mode_rows import GROUPS, list_mode_switches, set_mode
from gateway.writes.batch_routing import BatchRouting
from mappings import OPERATIONS, UNLISTED
from mappings.forwarded_writes import LEGACY_MARK, ROUTING_KIND
from tests.state import compare_and_set

ACME = Tenant("acme", "live")


async def test_mode_for_all_keys_replaces_mode_of_one_key(
    state: State,
) -> None:
    async with open_store(state) as store:
        assert await load_change_counts(store) == {"keys": 0}
        assert await set_mode(store, ACME, "shop", ["batches", "balances"], "forward") == []
        assert await set_mode(store, ACME, "", ["batches"], "translate") == ["shop"]
        modes_by_group = {
            (switch.key, switch.group): switch.mode for switch in await list_mode_switches(store)
        }
        assert modes_by_group == {("", "batches"): "translate", ("shop", "balances"): "forward"}
        assert (await load_change_counts(store))["modes"] == 2
        audited_actions = [event.action for event in await list_audit_events(store, ACME)]
        assert audited_actions == [
            "switched to forward: batches, balances of key shop",
            "switched to translate: batches of every key",
        ]


async def test_mode_that_is_set_again_keeps_its_date(state: State) -> None:
    async with open_store(state) as store:
        for groups in (["batches"], ["batches", "balances"]):
            await set_mode(store, ACME, "", groups, "forward")
        balances, batches = await list_mode_switches(store)
        await set_mode(store, ACME, "", ["batches"], "compare")
        _, switched_batches = await list_mode_switches(store)
        assert batches.since < balances.since < switched_batches.since


async def test_concurrent_switches_are_all_recorded(state: State) -> None:
    async with open_store(state) as store:
        switches = [set_mode(store, ACME, f"key {n}", ["batches"], "forward") for n in range(8)]
        await asyncio.gather(*switches)
        assert (await load_change_counts(store))["modes"] == 8
        assert len(await list_mode_switches(store)) == 8


def test_every_operation_is_in_a_group() -> None:
    groups = {operation.name: find_mode_group(operation) for operation in (*OPERATIONS, *UNLISTED)}
    assert set(groups.values()) == set(GROUPS)
    batch_operations = {
        operation.name for operation in OPERATIONS if operation.path.startswith("/batches")
    }
    assert {groups[name] for name in batch_operations} == {"batches"}
    assert groups["create_payout_method"] == groups["create_recipient"] == "recipients"


async def test_batch_routing_finds_service_of_a_batch(state: State) -> None:
    async with open_store(state) as store:
        object_states = ObjectStateStore(store)
        routing = BatchRouting(object_states, AliasIds(store, "all"))
        assert await routing.find_backend(ACME, "B-1") is None
        batch_state = {"phase": "sent", "version": 1, "imported": 1}
        await compare_and_set(object_states, ACME, "batch", "B-1", batch_state)
        assert await routing.find_backend(ACME, "B-1") is None
        for change in ({"version": 2}, {"version": 1, "phase": "draft"}, {"imported": None}):
            await compare_and_set(object_states, ACME, "batch", "B-1", {**batch_state, **change})
            assert await routing.find_backend(ACME, "B-1") == "current"
        for batch_id in ("B-1", "B-2"):
            await compare_and_set(object_states, ACME, ROUTING_KIND, batch_id, LEGACY_MARK)
        assert await object_states.load(ACME, ROUTING_KIND, "B-2") == LEGACY_MARK
        assert await routing.find_backend(ACME, "B-1") == "legacy"
        assert await routing.find_backend(Tenant("other", "live"), "B-1") is None
        await compare_and_set(object_states, ACME, "alias", "B-9", {"abandoned": True})
        assert await routing.find_backend(ACME, "B-9") == "current"
