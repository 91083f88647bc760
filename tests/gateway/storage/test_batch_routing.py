"""At which service a batch is, by whichever of its ids."""

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
        ledger = ObjectStateStore(store)
        routing = BatchRouting(ledger, AliasIds(store, "all"))
        await save_legacy_ids(store, ACME, {"B-KNOWN": "B-REAL"}, imported=True)
        facts = {"phase": "sent", "version": 1, "imported": 1}
        await ledger.compare_and_set(ACME, "batch", "B-REAL", facts)
        assert [await routing.find_backend(ACME, word) for word in ("B-KNOWN", "B-REAL")] == [
            None,
            None,
        ]
        await ledger.compare_and_set(ACME, BACKEND_KIND, "B-KNOWN", LEGACY_MARK)
        # An edit that met another mode came to its end after the start that was forwarded.
        await ledger.compare_and_set(ACME, "batch", "B-REAL", {"phase": "draft", "version": 2})
        assert [await routing.find_backend(ACME, word) for word in ("B-KNOWN", "B-REAL")] == [
            "legacy"
        ] * 2


@pytest.mark.parametrize("name", ["B-KNOWN", "B-REAL"])
async def test_second_service_to_change_a_batch_is_refused(name: str, state: State) -> None:
    async with open_store(state) as store:
        ledger = ObjectStateStore(store)
        routing = BatchRouting(ledger, AliasIds(store, "all"))
        await save_legacy_ids(store, ACME, {"B-KNOWN": "B-REAL"}, imported=True)
        facts = {"phase": "sent", "version": 1, "imported": 1}
        await ledger.compare_and_set(ACME, "batch", "B-REAL", facts)
        untouched = await routing.build_unmarked_checks(ACME, ["B-REAL"])
        change = CompareAndSet("batch", "B-REAL", {"phase": "editing"})
        await ledger.compare_and_set_all(ACME, await routing.build_marks(ACME, [name], "one"))
        assert await ledger.load(ACME, "batch", "B-REAL") == facts
        with pytest.raises(Conflict):
            await ledger.compare_and_set_all(ACME, [*untouched, change])
        await routing.delete_marks(ACME, [name])
        await ledger.compare_and_set_all(ACME, [*untouched, change])
        with pytest.raises(BatchRoutedElsewhereError):
            await routing.build_marks(ACME, [name], "one")
        assert await routing.find_backend(ACME, name) == "current"


async def test_batch_changed_here_first_is_not_marked(
    state: State,
) -> None:
    async with open_store(state) as store:
        ledger = ObjectStateStore(store)
        routing = BatchRouting(ledger, AliasIds(store, "all"))
        marks = await routing.build_marks(ACME, ["B-1"], "one")
        await ledger.compare_and_set(ACME, "batch", "B-1", {"phase": "editing", "version": 0})
        with pytest.raises(Conflict):
            await ledger.compare_and_set_all(ACME, marks)
        assert await ledger.load(ACME, BACKEND_KIND, "B-1") == {}


async def test_mark_is_withdrawn_unless_another_write_followed(state: State) -> None:
    async with open_store(state) as store:
        ledger = ObjectStateStore(store)
        routing = BatchRouting(ledger, AliasIds(store, "all"))

        async def begins(by: str) -> None:
            await ledger.compare_and_set_all(ACME, await routing.build_marks(ACME, ["B-1"], by))

        await begins("one")
        await routing.revert_marks(ACME, ["B-1"], "another")
        assert await routing.find_backend(ACME, "B-1") == "legacy"
        await routing.revert_marks(ACME, ["B-1"], "one")
        assert await routing.find_backend(ACME, "B-1") is None
        # Who saw no mark, and who was to see that it is not only the first one's.
        marks = [await routing.build_marks(ACME, ["B-1"], by) for by in ("two", "three")]
        await ledger.compare_and_set_all(ACME, marks[0])
        with pytest.raises(Conflict):
            await ledger.compare_and_set_all(ACME, marks[1])
        shared = await routing.build_marks(ACME, ["B-1"], "three")
        await routing.revert_marks(ACME, ["B-1"], "two")
        with pytest.raises(Conflict):
            await ledger.compare_and_set_all(ACME, shared)
        await begins("four")
        await begins("five")
        await routing.revert_marks(ACME, ["B-1"], "four")
        assert await routing.find_backend(ACME, "B-1") == "legacy"
        await routing.delete_marks(ACME, ["B-1"])
        assert await ledger.load(ACME, BACKEND_KIND, "B-1") == {}


async def test_one_of_two_instances_changes_a_batch(state: State) -> None:
    async with open_store(state) as first_store, open_store(state) as second_store:
        ledger, routing = (
            ObjectStateStore(first_store),
            BatchRouting(ObjectStateStore(second_store), AliasIds(second_store, "all")),
        )

        async def change(batch: str, seconds: float) -> None:
            untouched = await BatchRouting(
                ledger, AliasIds(first_store, "all")
            ).build_unmarked_checks(ACME, [batch])
            await asyncio.sleep(seconds)
            editing = CompareAndSet("batch", batch, {"phase": "editing"}, expected={"phase": None})
            await ledger.compare_and_set_all(ACME, [*untouched, editing])

        async def begin(batch: str) -> None:
            await ObjectStateStore(second_store).compare_and_set_all(
                ACME, await routing.build_marks(ACME, [batch], "one")
            )

        for number in range(20):
            batch = f"B-{number}"
            changed, began = await asyncio.gather(
                change(batch, 0.001 * (number % 3)),
                begin(batch),
                return_exceptions=True,
            )
            assert (changed is None) is isinstance(began, Conflict | BatchRoutedElsewhereError)
            assert (began is None) is isinstance(changed, Conflict)
            assert await routing.find_backend(ACME, batch) == (
                "current" if changed is None else "legacy"
            )
