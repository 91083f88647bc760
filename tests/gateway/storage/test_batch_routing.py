"""Batch routing: which service has a batch, found by any of its ids."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from gateway.config.settings import State
from gateway.storage import ObjectStateStore, Tenant, open_store
from gateway.storage.alias_ids import AliasIds
from gateway.storage.id_rows import save_legacy_ids
from gateway.storage.operation_records import Checkpoint, OperationRecord
from gateway.storage.operations import OperationRepository
from gateway.writes.batch_routing import BatchRoutedElsewhereError, BatchRouting
from gateway.writes.states import UNDONE
from mappings.batch_locks import identify_lock
from mappings.change_releases import build_change_release
from mappings.effects import CompareAndSet, Request
from mappings.failures import Conflict
from mappings.forwarded_writes import LEGACY_MARK, NO_MARK, ROUTING_KIND
from tests.state import compare_and_set

ACME = Tenant("acme", "live")


async def test_batch_started_at_legacy_service_stays_there_by_either_id(
    state: State,
) -> None:
    async with open_store(state) as store:
        object_states = ObjectStateStore(store)
        routing = BatchRouting(object_states, AliasIds(store, "all"))
        await save_legacy_ids(store, ACME, {"B-KNOWN": "B-REAL"}, imported=True)
        batch_state = {"phase": "sent", "version": 1, "imported": 1}
        await compare_and_set(object_states, ACME, "batch", "B-REAL", batch_state)
        assert [
            await routing.find_backend(ACME, batch_id) for batch_id in ("B-KNOWN", "B-REAL")
        ] == [
            None,
            None,
        ]
        await compare_and_set(object_states, ACME, ROUTING_KIND, "B-KNOWN", LEGACY_MARK)
        # An edit under the previous mode ended after the start was forwarded.
        await compare_and_set(
            object_states, ACME, "batch", "B-REAL", {"phase": "draft", "version": 2}
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
        await compare_and_set(object_states, ACME, "batch", "B-REAL", batch_state)
        unmarked_checks = await routing.build_not_routed_to_legacy_checks(ACME, ["B-REAL"])
        change = CompareAndSet("batch", "B-REAL", {"phase": "editing"})
        await object_states.compare_and_set_all(
            ACME, await routing.build_legacy_routing_marks(ACME, [name], "one")
        )
        assert await object_states.load(ACME, "batch", "B-REAL") == batch_state
        with pytest.raises(Conflict):
            await object_states.compare_and_set_all(ACME, [*unmarked_checks, change])
        # A request that was routed before, and that might end without a change.
        with pytest.raises(BatchRoutedElsewhereError):
            await routing.build_not_routed_to_legacy_checks(ACME, ["B-REAL"])
        await compare_and_set(object_states, ACME, ROUTING_KIND, name, NO_MARK)
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
        await compare_and_set(
            object_states, ACME, "batch", "B-1", {"phase": "editing", "version": 0}
        )
        with pytest.raises(Conflict):
            await object_states.compare_and_set_all(ACME, legacy_marks)
        assert await object_states.load(ACME, ROUTING_KIND, "B-1") == {}


async def test_mark_is_deleted_with_its_operation_unless_another_write_followed(
    state: State,
) -> None:
    async with open_store(state) as store:
        object_states = ObjectStateStore(store)
        routing = BatchRouting(object_states, AliasIds(store, "all"))
        operations = OperationRepository(store, object_states)

        async def begin_change(operation_id: str) -> OperationRecord:
            record = build_forwarded_record(operation_id)
            marks = await routing.build_legacy_routing_marks(ACME, ["B-1"], operation_id)
            await operations.save_checkpoint(record, Checkpoint(True, object_changes=marks))
            return record

        async def undo_change(record: OperationRecord) -> None:
            undone = Checkpoint(column_values={"state": UNDONE}, deletes_routing_marks=True)
            await operations.save_checkpoint(record, undone)

        first = await begin_change("one")
        assert await routing.find_backend(ACME, "B-1") == "legacy"
        await undo_change(first)
        assert await routing.find_backend(ACME, "B-1") is None
        # Neither change saw the mark; the second must find that the mark is shared.
        concurrent_marks = [
            await routing.build_legacy_routing_marks(ACME, ["B-1"], operation_id)
            for operation_id in ("two", "three")
        ]
        await object_states.compare_and_set_all(ACME, concurrent_marks[0])
        with pytest.raises(Conflict):
            await object_states.compare_and_set_all(ACME, concurrent_marks[1])
        await compare_and_set(object_states, ACME, ROUTING_KIND, "B-1", NO_MARK)
        fourth = await begin_change("four")
        later_marks = await routing.build_legacy_routing_marks(ACME, ["B-1"], "five")
        await undo_change(fourth)
        with pytest.raises(Conflict):
            await object_states.compare_and_set_all(ACME, later_marks)
        sixth = await begin_change("six")
        await begin_change("seven")
        await undo_change(sixth)
        assert await routing.find_backend(ACME, "B-1") == "legacy"


def build_forwarded_record(operation_id: str) -> OperationRecord:
    return OperationRecord(
        operation_id,
        ACME,
        "key",
        "acme",
        "forwarded update_batch",
        "request",
        operation_id,
        datetime.now(UTC),
        object_ids=("B-1",),
    )


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
            # Either may see the other's row, or conflict with it.
            refusals = Conflict | BatchRoutedElsewhereError
            assert (change_error is None) is isinstance(mark_error, refusals)
            assert (mark_error is None) is isinstance(change_error, refusals)
            assert await routing.find_backend(ACME, batch) == (
                "current" if change_error is None else "legacy"
            )


async def test_imported_batch_is_unrouted_after_a_change_that_sent_nothing(state: State) -> None:
    """Its process was killed, or an operator closed it: both end its lock by this record."""
    async with open_store(state) as store:
        object_states = ObjectStateStore(store)
        routing = BatchRouting(object_states, AliasIds(store, "all"))
        request = Request(datetime.now(UTC), "seed")
        locked = {"phase": "editing", "since": identify_lock(request), "upstream": "B-1"}
        locked |= {"version": 3, "imported": 3}
        await compare_and_set(object_states, ACME, "batch", "B-1", locked)
        release = build_change_release(request, "B-1", locked, {})
        assert release is not None
        await object_states.compare_and_set_all(ACME, [release])
        assert await routing.find_backend(ACME, "B-1") is None
        assert (await object_states.load(ACME, "batch", "B-1"))["phase"] == "sent"
