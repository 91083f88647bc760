from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from sqlalchemy import func, select

from gateway.config.settings import State
from gateway.storage import Ledger, Store, Tenant, open_store
from gateway.storage.tables import remembered
from tests.states import fetch

ACME = Tenant("acme", "live")
NOW = datetime(2026, 11, 20, 12, 30, 15, 123456, tzinfo=UTC)


@pytest.fixture
async def store(state: State) -> AsyncIterator[Store]:
    async with open_store(state, clock=lambda: NOW) as store:
        yield store


@pytest.fixture
def ledger(store: Store) -> Ledger:
    return Ledger(store)


async def test_what_was_never_recorded_has_no_facts(ledger: Ledger) -> None:
    assert await ledger.recall(ACME, "recipient", "R-1") == {}
    assert await ledger.recall_all(ACME, "recipient") == {}
    assert await ledger.learned("live") == {}


async def test_facts_are_merged(ledger: Ledger) -> None:
    await ledger.record(ACME, "recipient", "R-1", {"word": "inactive", "holdup": {"limit": 5}})
    await ledger.record(ACME, "recipient", "R-1", {"word": "disabled"})
    assert await ledger.recall(ACME, "recipient", "R-1") == {
        "word": "disabled",
        "holdup": {"limit": 5},
    }


async def test_a_fact_of_none_is_forgotten_and_the_row_with_the_last(
    ledger: Ledger, store: Store
) -> None:
    await ledger.record(ACME, "recipient", "R-1", {"a": 1, "b": 2})
    await ledger.record(ACME, "recipient", "R-1", {"a": None})
    assert await ledger.recall(ACME, "recipient", "R-1") == {"b": 2}
    await ledger.record(ACME, "recipient", "R-1", {"b": None, "c": None})
    assert await fetch(store, select(func.count()).select_from(remembered)) == [(0,)]


async def test_false_zero_and_empty_are_facts(ledger: Ledger) -> None:
    facts = {"false": False, "zero": 0, "text": "", "list": [], "object": {}}
    await ledger.record(ACME, "recipient", "R-1", facts)
    assert await ledger.recall(ACME, "recipient", "R-1") == facts


async def test_decimals_and_texts_come_back_as_they_were(ledger: Ledger) -> None:
    facts = {
        "amount": Decimal("1000000000000000.10"),
        "name": "Zoë \u0000 \U0001f600",
        "n": 2**70,
    }
    await ledger.record(ACME, "payment", "P-1", facts)
    found = await ledger.recall(ACME, "payment", "P-1")
    assert found == facts
    assert str(found["amount"]) == "1000000000000000.10"


@pytest.mark.parametrize("other", [Tenant("acme", "sandbox"), Tenant("bolt", "live")])
async def test_no_owner_sees_the_facts_of_another(ledger: Ledger, other: Tenant) -> None:
    await ledger.record(ACME, "recipient", "R-1", {"mine": 1})
    await ledger.record(other, "recipient", "R-1", {"theirs": 1})
    assert await ledger.recall(ACME, "recipient", "R-1") == {"mine": 1}
    assert await ledger.recall_all(other, "recipient") == {"R-1": {"theirs": 1}}


async def test_all_objects_of_a_kind_are_recalled_by_id(ledger: Ledger) -> None:
    for number in (1, 2):
        await ledger.record(ACME, "recipient", f"R-{number}", {"n": number})
    await ledger.record(ACME, "batch", "B-1", {"n": 3})
    assert await ledger.recall_all(ACME, "recipient") == {"R-1": {"n": 1}, "R-2": {"n": 2}}


async def test_aliases_of_abandoned_batches_are_recalled_apart_from_the_others(
    ledger: Ledger,
) -> None:
    other = Tenant("acme", "sandbox")
    await ledger.record(ACME, "alias", "B-1", {"abandoned": True})
    await ledger.record(ACME, "alias", "B-2", {"id": "B-1", "abandoned": True})
    await ledger.record(ACME, "alias", "P-1", {"id": '"abandoned":true', "batch": "B-2"})
    await ledger.record(ACME, "batch", "B-3", {"abandoned": ["B-2"]})
    await ledger.record(other, "alias", "B-4", {"abandoned": True})
    assert await ledger.abandoned(ACME) == {
        "B-1": {"abandoned": True},
        "B-2": {"id": "B-1", "abandoned": True},
    }
    await ledger.record(ACME, "alias", "B-1", {"abandoned": None})
    assert [*await ledger.abandoned(ACME)] == ["B-2"]


async def test_records_at_the_same_time_lose_nothing(ledger: Ledger, state: State) -> None:
    async with open_store(state) as second:
        ledgers = [ledger, Ledger(second)]
        await asyncio.gather(
            *(
                ledgers[number % 2].record(ACME, "batch", "B-1", {f"fact {number}": number})
                for number in range(40)
            )
        )
    assert len(await ledger.recall(ACME, "batch", "B-1")) == 40


async def test_forgetting_and_recording_at_the_same_time_end_in_one_of_two_ways(
    ledger: Ledger, state: State
) -> None:
    async with open_store(state) as second:
        other = Ledger(second)
        for number in range(15):
            await ledger.record(ACME, "batch", "B-1", {"old": number})
            await asyncio.gather(
                ledger.record(ACME, "batch", "B-1", {"old": None}),
                other.record(ACME, "batch", "B-1", {"new": number}),
            )
            assert await ledger.recall(ACME, "batch", "B-1") == {"new": number}


async def test_what_is_learned_is_kept_with_its_moment_and_replaced(ledger: Ledger) -> None:
    await ledger.learn("live", "signed_target", "path")
    await ledger.learn("live", "signed_target", "path-and-query")
    await ledger.learn("sandbox", "signed_target", None)
    assert await ledger.learned("live") == {"signed_target": ("path-and-query", NOW)}
    assert await ledger.learned("sandbox") == {"signed_target": (None, NOW)}
