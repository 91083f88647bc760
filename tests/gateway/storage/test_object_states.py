from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from sqlalchemy import func, select

from gateway.config.settings import State
from gateway.storage import ObjectStateStore, Store, Tenant, open_store
from gateway.storage.capability_cache import load_capabilities
from gateway.storage.state_tables import STATE_TABLES
from tests.state import compare_and_set, fetch

ACME = Tenant("acme", "live")
NOW = datetime(2026, 11, 20, 12, 30, 15, 123456, tzinfo=UTC)


@pytest.fixture
async def store(state: State) -> AsyncIterator[Store]:
    async with open_store(state, clock=lambda: NOW) as store:
        yield store


@pytest.fixture
def state_store(store: Store) -> ObjectStateStore:
    return ObjectStateStore(store)


async def test_null_fact_is_deleted_and_last_one_deletes_row(
    state_store: ObjectStateStore, store: Store
) -> None:
    await compare_and_set(state_store, ACME, "recipient", "R-1", {"status": "s", "deleted": True})
    await compare_and_set(state_store, ACME, "recipient", "R-1", {"status": None})
    assert await state_store.load(ACME, "recipient", "R-1") == {"deleted": True}
    await compare_and_set(
        state_store, ACME, "recipient", "R-1", {"deleted": None, "still_there": None}
    )
    assert await fetch(
        store, select(func.count()).select_from(STATE_TABLES["recipient"].table)
    ) == [(0,)]


async def test_false_zero_and_empty_are_facts(state_store: ObjectStateStore) -> None:
    object_facts = {
        "has_memos": False,
        "version": 0,
        "currency": "",
        "abandoned": [],
        "false": False,
        "zero": 0,
        "object": {},
    }
    await compare_and_set(state_store, ACME, "batch", "B-1", object_facts)
    assert await state_store.load(ACME, "batch", "B-1") == object_facts


async def test_decimals_and_texts_round_trip(state_store: ObjectStateStore) -> None:
    object_facts = {
        "amount": Decimal("1000000000000000.10"),
        "name": "Zoë \u0000 \U0001f600",
        "n": 2**70,
    }
    await compare_and_set(state_store, ACME, "batch", "B-1", object_facts)
    loaded_facts = await state_store.load(ACME, "batch", "B-1")
    assert loaded_facts == object_facts
    assert str(loaded_facts["amount"]) == "1000000000000000.10"


async def test_aliases_of_superseded_batches_are_loaded_separately(
    state_store: ObjectStateStore,
) -> None:
    other_tenant = Tenant("acme", "sandbox")
    await compare_and_set(state_store, ACME, "alias", "B-1", {"abandoned": True})
    await compare_and_set(state_store, ACME, "alias", "B-2", {"id": "B-1", "abandoned": True})
    await compare_and_set(
        state_store, ACME, "alias", "P-1", {"id": '"abandoned":true', "batch": "B-2"}
    )
    await compare_and_set(state_store, ACME, "batch", "B-3", {"abandoned": ["B-2"]})
    await compare_and_set(state_store, other_tenant, "alias", "B-4", {"abandoned": True})
    assert await state_store.load_superseded_batch_aliases(ACME) == {
        "B-1": {"abandoned": True},
        "B-2": {"id": "B-1", "abandoned": True},
    }
    await compare_and_set(state_store, ACME, "alias", "B-1", {"abandoned": None})
    assert [*await state_store.load_superseded_batch_aliases(ACME)] == ["B-2"]


async def test_concurrent_records_lose_nothing(state_store: ObjectStateStore, state: State) -> None:
    async with open_store(state) as second:
        state_stores = [state_store, ObjectStateStore(second)]
        await asyncio.gather(
            *(
                compare_and_set(
                    state_stores[number % 2], ACME, "batch", "B-1", {f"fact {number}": number}
                )
                for number in range(40)
            )
        )
    assert len(await state_store.load(ACME, "batch", "B-1")) == 40


async def test_concurrent_delete_and_record_end_consistently(
    state_store: ObjectStateStore, state: State
) -> None:
    async with open_store(state) as second:
        second_state_store = ObjectStateStore(second)
        for number in range(15):
            await compare_and_set(state_store, ACME, "batch", "B-1", {"old": number})
            await asyncio.gather(
                compare_and_set(state_store, ACME, "batch", "B-1", {"old": None}),
                compare_and_set(second_state_store, ACME, "batch", "B-1", {"new": number}),
            )
            assert await state_store.load(ACME, "batch", "B-1") == {"new": number}


async def test_learned_capability_is_stored_and_replaced(store: Store) -> None:
    capabilities = await load_capabilities(store)
    assert capabilities.get("live", "signed_target") is None
    for environment, value in (("live", "path"), ("live", "path-and-query"), ("sandbox", None)):
        await capabilities.put(environment, "signed_target", value)
    reloaded = await load_capabilities(store)
    found = [reloaded.get(environment, "signed_target") for environment in ("live", "sandbox")]
    assert found == ["path-and-query", None]
