"""Batch routing: which service has a batch, found by any of its ids."""

from __future__ import annotations

import asyncio

import pytest

from gateway.config.settings import State
from gateway.storage import ObjectStateStore, Tenant, open_store
from gateway.storage.alias_ids import AliasIds
from gateway.storage.id_rows import save_legacy_ids
from gateway.writes.batch_routing import (
    BACKEND_KIND,
    LEGACY_MARK,
    BatchRoutedElsewhereError,
    BatchRouting,
)
from mappings.effects import CompareAndSet
from mappings.failures import Conflict

ACME = Tenant("acme", "live")


async def test_batch_started_at_legacy_service_stays_there_by_either_id(
    state: State,
) -> None:
    async with open_store(state) as store:
        object_states = ObjectStateStore(store)
        routing = BatchRouting(object_states, AliasIds(store, "all"))
        await save_legacy_ids(store, ACME, {"B-KNOWN": "B-REAL"}, imported=True)
        batch_state = {"phase": "sent", "version": 1, "imported": 1}
        await object_states.compare_and_set(ACME, "batch", "B-REAL", batch_state)
        assert [
            await routing.find_backend(ACME, batch_id) for batch_id in ("B-KNOWN", "B-REAL")
        ] == [
            None,
            None,
        ]
        await object_states.compare_and_set(ACME, BACKEND_KIND, "B-KNOWN", LEGACY_MARK)
        # An edit under the previous mode ended after the start was forwarded.
        await object_states.compare_and_set(
            ACME, "batch", "B-REAL", {"phase": "draft", "version": 2}
        )
        assert [
            await routing.find_backend(ACME, batch_id) for batch_id in ("B-KNOWN", "B-REAL")
        ] == ["legacy"] * 2


@pytest.mark.parametrize("name", ["B-KNOWN", "B-REAL"])
async def test_second_service_to_change_a_batch_is_refused(name: str, state: State) -> None:
    async with open_store(state) as store:
        object_states = ObjectStateStore(store)
        routing = BatchRouting(object_states, AliasIds(store, "all"))
        await save_legacy_ids(store, ACME, {"B-KNOWN": "B-REAL"}, imported=True)
        batch_state = {"phase": "sent", "version": 1, "imported": 1}
        await object_states.compare_and_set(ACME, "batch", "B-REAL", batch_state)
        unmarked_checks = await routing.build_not_routed_to_legacy_checks(ACME, ["B-REAL"])
        change = CompareAndSet("batch", "B-REAL", {"phase": "editing"})
        await object_states.compare_and_set_all(
            ACME, await routing.build_legacy_routing_marks(ACME, [name], "one")
        )
        assert await object_states.load(ACME, "batch", "B-REAL") == batch_state
        with pytest.raises(Conflict):
            await object_states.compare_and_set_all(ACME, [*unmarked_checks, change])
        await routing.delete_legacy_routing_marks(ACME, [name])
        await object_states.compare_and_set_all(ACME, [*unmarked_checks, change])
        with pytest.raises(BatchRoutedElsewhereError):
            await routing.build_legacy_routing_marks(ACME, [name], "one")
        assert await routing.find_backend(ACME, name) == "current"


async def test_batch_changed_here_first_is_not_marked(
    state: State,
) -> None:
    async with open_store(state) as store:
        object_states = ObjectStateStore(store)
        routing = BatchRouting(object_states, AliasIds(store, "all"))
        legacy_marks = await routing.build_legacy_routing_marks(ACME, ["B-1"], "one")
        await object_states.compare_and_set(
            ACME, "batch", "B-1", {"phase": "editing", "version": 0}
        )
        with pytest.raises(Conflict):
            await object_states.compare_and_set_all(ACME, legacy_marks)
        assert await object_states.load(ACME, BACKEND_KIND, "B-1") == {}


async def test_mark_is_withdrawn_unless_another_write_followed(state: State) -> None:
    async with open_store(state) as store:
        object_states = ObjectStateStore(store)
        routing = BatchRouting(object_states, AliasIds(store, "all"))

        async def begin_change(request_id: str) -> None:
            await object_states.compare_and_set_all(
                ACME, await routing.build_legacy_routing_marks(ACME, ["B-1"], request_id)
            )

        await begin_change("one")
        await routing.revert_marks(ACME, ["B-1"], "another")
        assert await routing.find_backend(ACME, "B-1") == "legacy"
        await routing.revert_marks(ACME, ["B-1"], "one")
        assert await routing.find_backend(ACME, "B-1") is None
        # Neither change saw the mark; the second must find that the mark is shared.
        concurrent_marks = [
            await routing.build_legacy_routing_marks(ACME, ["B-1"], request_id)
            for request_id in ("two", "three")
        ]
        await object_states.compare_and_set_all(ACME, concurrent_marks[0])
        with pytest.raises(Conflict):
            await object_states.compare_and_set_all(ACME, concurrent_marks[1])
        later_marks = await routing.build_legacy_routing_marks(ACME, ["B-1"], "three")
        await routing.revert_marks(ACME, ["B-1"], "two")
        with pytest.raises(Conflict):
            await object_states.compare_and_set_all(ACME, later_marks)
        await begin_change("four")
        await begin_change("five")
        await routing.revert_marks(ACME, ["B-1"], "four")
        assert await routing.find_backend(ACME, "B-1") == "legacy"
        await routing.delete_legacy_routing_marks(ACME, ["B-1"])
        assert await object_states.load(ACME, BACKEND_KIND, "B-1") == {}


async def test_one_of_two_instances_changes_a_batch(state: State) -> None:
    async with open_store(state) as first_store, open_store(state) as second_store:
        object_states, routing = (
            ObjectStateStore(first_store),
            BatchRouting(ObjectStateStore(second_store), AliasIds(second_store, "all")),
        )

        async def change(batch: str, seconds: float) -> None:
            unmarked_checks = await BatchRouting(
                object_states, AliasIds(first_store, "all")
            ).build_not_routed_to_legacy_checks(ACME, [batch])
            await asyncio.sleep(seconds)
            edit_record = CompareAndSet(
                "batch", batch, {"phase": "editing"}, expected={"phase": None}
            )
            await object_states.compare_and_set_all(ACME, [*unmarked_checks, edit_record])

        async def mark_batch(batch: str) -> None:
            await ObjectStateStore(second_store).compare_and_set_all(
                ACME, await routing.build_legacy_routing_marks(ACME, [batch], "one")
            )

        for number in range(20):
            batch = f"B-{number}"
            change_error, mark_error = await asyncio.gather(
                change(batch, 0.001 * (number % 3)),
                mark_batch(batch),
                return_exceptions=True,
            )
            assert (change_error is None) is isinstance(
                mark_error, Conflict | BatchRoutedElsewhereError
            )
            assert (mark_error is None) is isinstance(change_error, Conflict)
            assert await routing.find_backend(ACME, batch) == (
                "current" if change_error is None else "legacy"
            )
