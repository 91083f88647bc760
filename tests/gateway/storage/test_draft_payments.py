"""Payments of drafts in rows of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from gateway.config.settings import State
from gateway.payloads import json_codec
from gateway.storage import ObjectStateStore, Store, StoreUnavailable, Tenant, open_store
from gateway.storage.state_tables import batch_payments, draft_payments
from gateway.storage.tables import text_chunks
from mappings.effects import LoadFacts
from mappings.lazy_sequences import SerializedSequence
from tests.state import compare_and_set, execute, fetch

TENANT = Tenant("demo", "sandbox")
OTHER_TENANT = Tenant("other", "sandbox")


def build_entries(count: int) -> list[dict[str, Any]]:
    return [
        {"id": f"P-{number}", "recipient": {"id": f"R-{number}"}, "memo": "for Ada's knee " * 20}
        for number in range(count)
    ]


async def load_entries(store: Store, batch: str = "B-1") -> list[Any]:
    return list((await ObjectStateStore(store).load(TENANT, "payments", batch))["entries"])


async def change_payments(store: Store, facts: dict[str, Any], batch: str = "B-1") -> None:
    await compare_and_set(ObjectStateStore(store), TENANT, "draft payments", batch, facts)


def map_by_id(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {entry["id"]: entry for entry in entries}


@pytest.mark.parametrize("count", [3, 3000], ids=["few", "in slices"])
@pytest.mark.parametrize("is_older", [False, True], ids=["in rows", "of an older version"])
async def test_changed_payments_keep_their_order(state: State, count: int, is_older: bool) -> None:
    entries = build_entries(count)
    async with open_store(state) as store:
        if is_older:
            value = SerializedSequence(entries) if count > 1000 else entries
            await compare_and_set(
                ObjectStateStore(store), TENANT, "payments", "B-1", {"entries": value}
            )
        else:
            await change_payments(store, map_by_id(entries))
        changed, added = {**entries[0], "memo": "another"}, {"id": "P-NEW", "recipient": {}}
        await change_payments(store, {"P-NEW": added, "P-1": None, "P-0": changed, "P-?": None})
        assert await load_entries(store) == [changed, *entries[2:], added]
        assert len(await fetch(store, select(draft_payments))) == count
        assert not await fetch(store, select(text_chunks))
        ids = ("P-NEW", "P-1", "P-0")
        found = await ObjectStateStore(store).load_facts(TENANT, LoadFacts("payments", "B-1", ids))
        assert found == {"entries": [changed, added]}


async def test_payments_of_an_older_version_with_one_id_all_move_into_rows(state: State) -> None:
    entries = [{"id": "P-1", "memo": "first"}, {"id": "P-1", "memo": "second"}]
    async with open_store(state) as store:
        await compare_and_set(
            ObjectStateStore(store), TENANT, "payments", "B-1", {"entries": entries}
        )
        await change_payments(store, {"P-2": {"id": "P-2"}})
        assert await load_entries(store) == [*entries, {"id": "P-2"}]


async def test_payments_are_stored_as_one_value_again(state: State) -> None:
    async with open_store(state) as store:
        for batch in ("B-1", "B-2"):
            await change_payments(store, map_by_id(build_entries(3)), batch)
        stored = [{"id": "P-0", "upstream": "P-9"}]
        await compare_and_set(
            ObjectStateStore(store), TENANT, "payments", "B-1", {"entries": stored}
        )
        assert await load_entries(store) == stored
        assert await load_entries(store, "B-2") == build_entries(3)
        rows = await fetch(store, select(draft_payments.c.batch_id))
        assert [row.batch_id for row in rows] == ["B-2"] * 3


async def test_last_payment_of_a_draft_is_removed(state: State) -> None:
    async with open_store(state) as store:
        await change_payments(store, {"P-1": {"id": "P-1"}})
        await change_payments(store, {"P-1": None})
        assert await load_entries(store) == []


@pytest.mark.parametrize(
    "damage", ["one is gone", "two change places", "one is another batch's", "one more"]
)
async def test_tampered_rows_are_rejected(state: State, damage: str) -> None:
    is_first = draft_payments.c.payment_id == "P-0"
    async with open_store(state) as store:
        for batch in ("B-1", "B-2"):
            await change_payments(store, map_by_id(build_entries(3)), batch)
        is_damaged = (draft_payments.c.batch_id == "B-1") & is_first
        source = "B-2" if damage == "one is another batch's" else "B-1"
        other_row = select(draft_payments.c.sealed).where(
            draft_payments.c.batch_id == source,
            draft_payments.c.payment_id == ("P-0" if source == "B-2" else "P-1"),
        )
        if damage == "one is gone":
            await execute(store, delete(draft_payments).where(is_damaged))
        elif damage == "one more":
            of_batch = batch_payments.c.id == "B-1"
            await execute(store, update(batch_payments).where(of_batch).values(payment_count=2))
        else:
            ((sealed,),) = await fetch(store, other_row)
            await execute(store, update(draft_payments).where(is_damaged).values(sealed=sealed))
        with pytest.raises(StoreUnavailable, match=r"missing|cannot be decrypted"):
            await load_entries(store)
        assert await load_entries(store, "B-2") == build_entries(3)


async def test_rows_are_encrypted_and_of_one_tenant(state: State) -> None:
    entries = build_entries(1)
    async with open_store(state) as store:
        await change_payments(store, map_by_id(entries))
        ((sealed,),) = await fetch(store, select(draft_payments.c.sealed))
        assert b"Ada" not in sealed
        assert json_codec.dumps(entries[0]) not in sealed
        assert await ObjectStateStore(store).load(OTHER_TENANT, "payments", "B-1") == {}
