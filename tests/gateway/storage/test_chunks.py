"""Facts with very many rows: kept packed and sealed, recalled as rows, and held against each other."""

from __future__ import annotations

import base64
import os
import zlib

import pytest
from sqlalchemy import and_, delete, func, insert, select, update

from gateway.config.settings import State
from gateway.payloads import json_codec
from gateway.payloads.compressed_buffer import COMPRESSED_PART_BYTES
from gateway.storage import EncryptionContext, ObjectStateStore, Store, StoreUnavailable, open_store
from gateway.storage.tables import object_states, text_chunks
from gateway.storage.tenants import Tenant
from mappings.failures import Conflict
from mappings.lazy_sequences import CompressedSequence, map_rows
from tests.state import execute, fetch

OWNER = Tenant("demo", "sandbox")
ENTRIES = [
    {"recipient": {"id": f"R-{number}"}, "sourceAmount": f"{number}.00", "memo": "für Ada " * 10}
    for number in range(3000)
]


async def test_many_entries_round_trip(state: State) -> None:
    assert len(json_codec.dumps(ENTRIES)) > json_codec.LARGE_BYTES
    async with open_store(state) as store:
        ledger = ObjectStateStore(store)
        await ledger.compare_and_set(
            OWNER, "payments", "B-1", {"entries": CompressedSequence(ENTRIES)}
        )
        stored = (await ledger.load(OWNER, "payments", "B-1"))["entries"]
        assert isinstance(stored, CompressedSequence)
        assert stored == ENTRIES
        ((kept,),) = await fetch(store, select(object_states.c.facts))
        assert "für Ada" not in kept
        assert len(kept) < len(json_codec.dumps(ENTRIES)) / 2


async def test_many_entries_are_updated_only_if_unchanged(
    state: State,
) -> None:
    async with open_store(state) as store:
        ledger = ObjectStateStore(store)
        await ledger.compare_and_set(
            OWNER, "payments", "B-1", {"entries": CompressedSequence(ENTRIES)}
        )
        stored = (await ledger.load(OWNER, "payments", "B-1"))["entries"]
        bare = map_rows(lambda one: {"recipient": one["recipient"]}, stored)
        await ledger.compare_and_set(
            OWNER, "payments", "B-1", {"entries": bare}, {"entries": stored}
        )
        now = (await ledger.load(OWNER, "payments", "B-1"))["entries"]
        assert [*now] == [{"recipient": one["recipient"]} for one in ENTRIES]
        with pytest.raises(Conflict):
            await ledger.compare_and_set(
                OWNER, "payments", "B-1", {"entries": None}, {"entries": stored}
            )


async def test_many_entries_stored_as_plain_json_are_loaded(state: State) -> None:
    async with open_store(state) as store:
        ledger = ObjectStateStore(store)
        await ledger.compare_and_set(OWNER, "payments", "B-1", {"entries": ENTRIES})
        assert (await ledger.load(OWNER, "payments", "B-1"))["entries"] == ENTRIES


async def count_chunks_by_holder(store: Store) -> dict[str, int]:
    """How many pieces each holder has."""
    counts = select(text_chunks.c.holder, func.count()).group_by(text_chunks.c.holder)
    return {row[0]: row[1] for row in await fetch(store, counts)}


async def test_replacing_many_entries_deletes_their_old_chunks(
    state: State,
) -> None:
    async with open_store(state) as store:
        ledger = ObjectStateStore(store)
        await ledger.compare_and_set(
            OWNER, "payments", "B-1", {"entries": CompressedSequence(ENTRIES * 2)}
        )
        (before,) = (await count_chunks_by_holder(store)).values()
        await ledger.compare_and_set(
            OWNER, "payments", "B-2", {"entries": CompressedSequence(ENTRIES)}
        )
        await ledger.compare_and_set(
            OWNER, "payments", "B-1", {"entries": CompressedSequence(ENTRIES)}
        )
        assert before > 2
        assert len(await count_chunks_by_holder(store)) == 2
        assert max((await count_chunks_by_holder(store)).values()) < before
        await ledger.compare_and_set(OWNER, "payments", "B-1", {"entries": ENTRIES[:1]})
        await ledger.compare_and_set(OWNER, "payments", "B-2", {"entries": None})
        assert await count_chunks_by_holder(store) == {}
        assert await ledger.load_facts_by_id(OWNER, "payments") == {"B-1": {"entries": ENTRIES[:1]}}


async def test_chunks_are_bounded_and_encrypted(
    state: State,
) -> None:
    odd = [{"memo": os.urandom(100).hex()} for _ in range(30_000)]
    async with open_store(state) as store:
        await ObjectStateStore(store).compare_and_set(
            OWNER, "payments", "B-1", {"entries": CompressedSequence(odd)}
        )
        sealed = [row.ciphertext for row in await fetch(store, select(text_chunks.c.ciphertext))]
        assert len(sealed) > 10
        assert max(map(len, sealed)) < 2 * COMPRESSED_PART_BYTES
        with pytest.raises(zlib.error):
            zlib.decompress(sealed[0])
        assert (await ObjectStateStore(store).load(OWNER, "payments", "B-1"))["entries"] == odd


@pytest.mark.parametrize("harm", ["one is gone", "two change places", "one is another batch's"])
async def test_tampered_or_moved_chunks_are_rejected(state: State, harm: str) -> None:
    async with open_store(state) as store:
        ledger = ObjectStateStore(store)
        for id_ in ("B-1", "B-2"):
            await ledger.compare_and_set(
                OWNER, "payments", id_, {"entries": CompressedSequence(ENTRIES)}
            )
        of = (
            select(text_chunks)
            .where(text_chunks.c.holder.contains("B-1"))
            .order_by(text_chunks.c.number)
        )
        first, second = (await fetch(store, of))[:2]
        other = (
            select(text_chunks.c.ciphertext).where(text_chunks.c.holder.contains("B-2")).limit(1)
        )
        this = and_(text_chunks.c.name == first.name, text_chunks.c.number == first.number)
        if harm == "one is gone":
            await execute(store, delete(text_chunks).where(this))
        else:
            is_foreign = harm == "one is another batch's"
            sealed = (await fetch(store, other))[0].ciphertext if is_foreign else second.ciphertext
            await execute(store, update(text_chunks).where(this).values(ciphertext=sealed))
        with pytest.raises(StoreUnavailable, match=r"missing|cannot be decrypted"):
            await ledger.load(OWNER, "payments", "B-1")
        assert (await ledger.load(OWNER, "payments", "B-2"))["entries"] == ENTRIES


async def test_many_entries_stored_in_one_value_are_loaded_and_replaced(
    state: State,
) -> None:
    text = "z" + base64.b64encode(zlib.compress(json_codec.dumps({"entries": ENTRIES}), 1)).decode()
    async with open_store(state) as store:
        place = EncryptionContext("remembered", *OWNER, "facts of a payments")
        row = {**OWNER._asdict(), "kind": "payments", "id": "B-1", "updated_at": store.clock()}
        sealed = store.encryption.encrypt(text, place)
        await execute(store, insert(object_states).values(**row, facts=sealed))
        ledger = ObjectStateStore(store)
        stored = (await ledger.load(OWNER, "payments", "B-1"))["entries"]
        assert stored == ENTRIES
        bare = map_rows(lambda one: {"recipient": one["recipient"]}, stored)
        await ledger.compare_and_set(
            OWNER, "payments", "B-1", {"entries": bare}, {"entries": stored}
        )
        now = (await ledger.load(OWNER, "payments", "B-1"))["entries"]
        assert now == [{"recipient": one["recipient"]} for one in ENTRIES]
