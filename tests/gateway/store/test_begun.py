"""At which service a batch is, by whichever of its ids."""

from __future__ import annotations

import asyncio

import pytest

from gateway.config.settings import State
from gateway.storage import Ledger, Tenant, open_store
from gateway.storage.alias_ids import Ids
from gateway.storage.id_rows import keep
from gateway.writes.batch_routing import BEGUN, LEGACY, BatchRouting, DecidedOtherwise
from mappings.effects import CompareAndSet
from mappings.failures import Conflict

ACME = Tenant("acme", "live")


async def test_what_was_begun_there_stays_there_by_either_id_whatever_was_under_way_here(
    state: State,
) -> None:
    async with open_store(state) as store:
        ledger = Ledger(store)
        begun = BatchRouting(ledger, Ids(store, "all"))
        await keep(store, ACME, {"B-KNOWN": "B-REAL"}, imported=True)
        facts = {"phase": "sent", "version": 1, "imported": 1}
        await ledger.record(ACME, "batch", "B-REAL", facts)
        assert [await begun.side(ACME, one) for one in ("B-KNOWN", "B-REAL")] == [None, None]
        await ledger.record(ACME, BEGUN, "B-KNOWN", LEGACY)
        # An edit that met another mode came to its end after the start that was forwarded.
        await ledger.record(ACME, "batch", "B-REAL", {"phase": "draft", "version": 2})
        assert [await begun.side(ACME, one) for one in ("B-KNOWN", "B-REAL")] == ["legacy"] * 2


@pytest.mark.parametrize("name", ["B-KNOWN", "B-REAL"])
async def test_who_touches_a_batch_second_finds_that_the_other_was_first(
    name: str, state: State
) -> None:
    async with open_store(state) as store:
        ledger = Ledger(store)
        begun = BatchRouting(ledger, Ids(store, "all"))
        await keep(store, ACME, {"B-KNOWN": "B-REAL"}, imported=True)
        facts = {"phase": "sent", "version": 1, "imported": 1}
        await ledger.record(ACME, "batch", "B-REAL", facts)
        untouched = await begun.nowhere(ACME, ["B-REAL"])
        change = CompareAndSet("batch", "B-REAL", {"phase": "editing"})
        await ledger.record_all(ACME, await begun.marks(ACME, [name], "one"))
        assert await ledger.recall(ACME, "batch", "B-REAL") == facts
        with pytest.raises(Conflict):
            await ledger.record_all(ACME, [*untouched, change])
        await begun.unmark(ACME, [name])
        await ledger.record_all(ACME, [*untouched, change])
        with pytest.raises(DecidedOtherwise):
            await begun.marks(ACME, [name], "one")
        assert await begun.side(ACME, name) == "current"


async def test_a_batch_changed_here_before_its_mark_is_recorded_is_not_marked(
    state: State,
) -> None:
    async with open_store(state) as store:
        ledger = Ledger(store)
        begun = BatchRouting(ledger, Ids(store, "all"))
        marks = await begun.marks(ACME, ["B-1"], "one")
        await ledger.record(ACME, "batch", "B-1", {"phase": "editing", "version": 0})
        with pytest.raises(Conflict):
            await ledger.record_all(ACME, marks)
        assert await ledger.recall(ACME, BEGUN, "B-1") == {}


async def test_a_mark_is_taken_back_unless_another_write_came_meanwhile(state: State) -> None:
    async with open_store(state) as store:
        ledger = Ledger(store)
        begun = BatchRouting(ledger, Ids(store, "all"))

        async def begins(by: str) -> None:
            await ledger.record_all(ACME, await begun.marks(ACME, ["B-1"], by))

        await begins("one")
        await begun.take_back(ACME, ["B-1"], "another")
        assert await begun.side(ACME, "B-1") == "legacy"
        await begun.take_back(ACME, ["B-1"], "one")
        assert await begun.side(ACME, "B-1") is None
        # Who saw no mark, and who was to see that it is not only the first one's.
        marks = [await begun.marks(ACME, ["B-1"], by) for by in ("two", "three")]
        await ledger.record_all(ACME, marks[0])
        with pytest.raises(Conflict):
            await ledger.record_all(ACME, marks[1])
        shared = await begun.marks(ACME, ["B-1"], "three")
        await begun.take_back(ACME, ["B-1"], "two")
        with pytest.raises(Conflict):
            await ledger.record_all(ACME, shared)
        await begins("four")
        await begins("five")
        await begun.take_back(ACME, ["B-1"], "four")
        assert await begun.side(ACME, "B-1") == "legacy"
        await begun.unmark(ACME, ["B-1"])
        assert await ledger.recall(ACME, BEGUN, "B-1") == {}


async def test_of_two_instances_that_touch_a_batch_at_once_one_does(state: State) -> None:
    async with open_store(state) as here, open_store(state) as there:
        ledger, begun = Ledger(here), BatchRouting(Ledger(there), Ids(there, "all"))

        async def change(batch: str, seconds: float) -> None:
            untouched = await BatchRouting(ledger, Ids(here, "all")).nowhere(ACME, [batch])
            await asyncio.sleep(seconds)
            editing = CompareAndSet("batch", batch, {"phase": "editing"}, expected={"phase": None})
            await ledger.record_all(ACME, [*untouched, editing])

        async def begin(batch: str) -> None:
            await Ledger(there).record_all(ACME, await begun.marks(ACME, [batch], "one"))

        for number in range(20):
            batch = f"B-{number}"
            changed, began = await asyncio.gather(
                change(batch, 0.001 * (number % 3)),
                begin(batch),
                return_exceptions=True,
            )
            assert (changed is None) is isinstance(began, Conflict | DecidedOtherwise)
            assert (began is None) is isinstance(changed, Conflict)
            assert await begun.side(ACME, batch) == ("current" if changed is None else "legacy")
