"""Object states with many entries: stored compressed and encrypted, and compared on update."""

from __future__ import annotations

import base64
import os
import zlib
from typing import Any

import pytest
from sqlalchemy import and_, delete, func, insert, select, update

from gateway.config.settings import State
from gateway.payloads import json_codec
from gateway.payloads.stored_json import COMPRESSED_PART_BYTES
from gateway.storage import EncryptionContext, ObjectStateStore, Store, StoreUnavailable, open_store
from gateway.storage.state_tables import batch_payments
from gateway.storage.tables import text_chunks
from gateway.storage.tenants import Tenant
from mappings.failures import Conflict
from mappings.lazy_sequences import SerializedSequence, map_rows
from tests.state import compare_and_set, execute, fetch

TENANT = Tenant("demo", "sandbox")
ENTRIES = [
    {"recipient": {"id": f"R-{number}"}, "sourceAmount": f"{number}.00", "memo": "für Ada " * 10}
    for number in range(3000)
]


async def reduce_to_recipients(state_store: ObjectStateStore, loaded_entries: Any) -> None:
    """Replaces the stored entries by their recipients, made from them one by one."""
    entries = map_rows(lambda entry: {"recipient": entry["recipient"]}, loaded_entries)
    await compare_and_set(
        state_store,
        TENANT,
        "payments",
        "B-1",
        {"entries": entries},
        find={"entries": loaded_entries},
    )


async def test_many_entries_round_trip(state: State) -> None:
    assert len(json_codec.dumps(ENTRIES)) > json_codec.LARGE_BYTES
    async with open_store(state) as store:
        state_store = ObjectStateStore(store)
        await compare_and_set(
            state_store, TENANT, "payments", "B-1", {"entries": SerializedSequence(ENTRIES)}
        )
        loaded_entries = (await state_store.load(TENANT, "payments", "B-1"))["entries"]
        assert isinstance(loaded_entries, SerializedSequence)
        assert loaded_entries == ENTRIES
        ((stored_text,),) = await fetch(store, select(batch_payments.c.sealed))
        assert "für Ada" not in stored_text
        assert len(stored_text) < len(json_codec.dumps(ENTRIES)) / 2


async def test_many_entries_are_updated_only_if_unchanged(
    state: State,
) -> None:
    async with open_store(state) as store:
        state_store = ObjectStateStore(store)
        await compare_and_set(
            state_store, TENANT, "payments", "B-1", {"entries": SerializedSequence(ENTRIES)}
        )
        loaded_entries = (await state_store.load(TENANT, "payments", "B-1"))["entries"]
        await reduce_to_recipients(state_store, loaded_entries)
        now = (await state_store.load(TENANT, "payments", "B-1"))["entries"]
        assert [*now] == [{"recipient": entry["recipient"]} for entry in ENTRIES]
        with pytest.raises(Conflict):
            await compare_and_set(
                state_store,
                TENANT,
                "payments",
                "B-1",
                {"entries": None},
                find={"entries": loaded_entries},
            )


async def test_many_entries_stored_as_plain_json_are_loaded(state: State) -> None:
    async with open_store(state) as store:
        state_store = ObjectStateStore(store)
        await compare_and_set(state_store, TENANT, "payments", "B-1", {"entries": ENTRIES})
        assert (await state_store.load(TENANT, "payments", "B-1"))["entries"] == ENTRIES


async def count_chunks_by_holder(store: Store) -> dict[str, int]:
    """Return the number of chunks per holder."""
    query = select(text_chunks.c.holder, func.count()).group_by(text_chunks.c.holder)
    return {row[0]: row[1] for row in await fetch(store, query)}


async def test_replacing_many_entries_deletes_their_old_chunks(
    state: State,
) -> None:
    async with open_store(state) as store:
        state_store = ObjectStateStore(store)
        await compare_and_set(
            state_store, TENANT, "payments", "B-1", {"entries": SerializedSequence(ENTRIES * 2)}
        )
        (chunk_count_before,) = (await count_chunks_by_holder(store)).values()
        await compare_and_set(
            state_store, TENANT, "payments", "B-2", {"entries": SerializedSequence(ENTRIES)}
        )
        await compare_and_set(
            state_store, TENANT, "payments", "B-1", {"entries": SerializedSequence(ENTRIES)}
        )
        assert chunk_count_before > 2
        assert len(await count_chunks_by_holder(store)) == 2
        assert max((await count_chunks_by_holder(store)).values()) < chunk_count_before
        await compare_and_set(state_store, TENANT, "payments", "B-1", {"entries": ENTRIES[:1]})
        await compare_and_set(state_store, TENANT, "payments", "B-2", {"entries": None})
        assert await count_chunks_by_holder(store) == {}
        assert await state_store.load_facts_by_id(TENANT, "payments") == {
            "B-1": {"entries": ENTRIES[:1]}
        }


async def test_chunks_are_bounded_and_encrypted(
    state: State,
) -> None:
    random_entries = [{"memo": os.urandom(100).hex()} for _ in range(30_000)]
    async with open_store(state) as store:
        await compare_and_set(
            ObjectStateStore(store),
            TENANT,
            "payments",
            "B-1",
            {"entries": SerializedSequence(random_entries)},
        )
        ciphertexts = [
            row.ciphertext for row in await fetch(store, select(text_chunks.c.ciphertext))
        ]
        assert len(ciphertexts) > 10
        assert max(map(len, ciphertexts)) < 2 * COMPRESSED_PART_BYTES
        with pytest.raises(zlib.error):
            zlib.decompress(ciphertexts[0])
        assert (await ObjectStateStore(store).load(TENANT, "payments", "B-1"))[
            "entries"
        ] == random_entries


@pytest.mark.parametrize("damage", ["one is gone", "two change places", "one is another batch's"])
async def test_tampered_or_moved_chunks_are_rejected(state: State, damage: str) -> None:
    async with open_store(state) as store:
        state_store = ObjectStateStore(store)
        for id_ in ("B-1", "B-2"):
            await compare_and_set(
                state_store, TENANT, "payments", id_, {"entries": SerializedSequence(ENTRIES)}
            )
        chunk_query = (
            select(text_chunks)
            .where(text_chunks.c.holder.contains("B-1"))
            .order_by(text_chunks.c.number)
        )
        first, second = (await fetch(store, chunk_query))[:2]
        other_batch_query = (
            select(text_chunks.c.ciphertext).where(text_chunks.c.holder.contains("B-2")).limit(1)
        )
        first_chunk = and_(text_chunks.c.name == first.name, text_chunks.c.number == first.number)
        if damage == "one is gone":
            await execute(store, delete(text_chunks).where(first_chunk))
        else:
            is_foreign = damage == "one is another batch's"
            ciphertext = (
                (await fetch(store, other_batch_query))[0].ciphertext
                if is_foreign
                else second.ciphertext
            )
            await execute(
                store, update(text_chunks).where(first_chunk).values(ciphertext=ciphertext)
            )
        with pytest.raises(StoreUnavailable, match=r"missing|cannot be decrypted"):
            await state_store.load(TENANT, "payments", "B-1")
        assert (await state_store.load(TENANT, "payments", "B-2"))["entries"] == ENTRIES


async def test_many_entries_stored_in_one_value_are_loaded_and_replaced(
    state: State,
) -> None:
    text = "z" + base64.b64encode(zlib.compress(json_codec.dumps({"entries": ENTRIES}), 1)).decode()
    async with open_store(state) as store:
        encryption_context = EncryptionContext("remembered", *TENANT, "facts of a payments")
        key_columns = {
            **TENANT._asdict(),
            "id": "B-1",
            "updated_at": store.clock(),
        }
        ciphertext = store.encryption.encrypt(text, encryption_context)
        await execute(store, insert(batch_payments).values(**key_columns, sealed=ciphertext))
        state_store = ObjectStateStore(store)
        loaded_entries = (await state_store.load(TENANT, "payments", "B-1"))["entries"]
        assert loaded_entries == ENTRIES
        await reduce_to_recipients(state_store, loaded_entries)
        now = (await state_store.load(TENANT, "payments", "B-1"))["entries"]
        assert now == [{"recipient": entry["recipient"]} for entry in ENTRIES]
