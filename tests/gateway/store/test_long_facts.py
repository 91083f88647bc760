"""Facts with very many rows: kept packed and sealed, recalled as rows, and held against each other."""

from __future__ import annotations

import base64
import os
import zlib

import pytest
from sqlalchemy import and_, delete, func, insert, select, update

from gateway.config.settings import State
from gateway.payloads import json_codec
from gateway.payloads.compressed_buffer import PART
from gateway.storage import Ledger, Place, Store, StoreUnavailable, open_store
from gateway.storage.tables import pieces, remembered
from gateway.storage.tenants import Tenant
from mappings.effects import Conflict
from mappings.lazy_sequences import CompressedSequence, map_rows
from tests.states import execute, fetch

OWNER = Tenant("demo", "sandbox")
ENTRIES = [
    {"recipient": {"id": f"R-{number}"}, "sourceAmount": f"{number}.00", "memo": "für Ada " * 10}
    for number in range(3000)
]


async def test_very_many_entries_are_recalled_as_they_were_recorded(state: State) -> None:
    assert len(json_codec.dumps(ENTRIES)) > json_codec.LARGE
    async with open_store(state) as store:
        ledger = Ledger(store)
        await ledger.record(OWNER, "payments", "B-1", {"entries": CompressedSequence(ENTRIES)})
        there = (await ledger.recall(OWNER, "payments", "B-1"))["entries"]
        assert isinstance(there, CompressedSequence)
        assert there == ENTRIES
        ((kept,),) = await fetch(store, select(remembered.c.facts))
        assert "für Ada" not in kept
        assert len(kept) < len(json_codec.dumps(ENTRIES)) / 2


async def test_very_many_entries_are_changed_by_whoever_found_them_as_they_are(
    state: State,
) -> None:
    async with open_store(state) as store:
        ledger = Ledger(store)
        await ledger.record(OWNER, "payments", "B-1", {"entries": CompressedSequence(ENTRIES)})
        there = (await ledger.recall(OWNER, "payments", "B-1"))["entries"]
        bare = map_rows(lambda one: {"recipient": one["recipient"]}, there)
        await ledger.record(OWNER, "payments", "B-1", {"entries": bare}, {"entries": there})
        now = (await ledger.recall(OWNER, "payments", "B-1"))["entries"]
        assert [*now] == [{"recipient": one["recipient"]} for one in ENTRIES]
        with pytest.raises(Conflict):
            await ledger.record(OWNER, "payments", "B-1", {"entries": None}, {"entries": there})


async def test_very_many_entries_that_were_kept_as_plain_json_are_recalled(state: State) -> None:
    async with open_store(state) as store:
        ledger = Ledger(store)
        await ledger.record(OWNER, "payments", "B-1", {"entries": ENTRIES})
        assert (await ledger.recall(OWNER, "payments", "B-1"))["entries"] == ENTRIES


async def held(store: Store) -> dict[str, int]:
    """How many pieces each holder has."""
    counts = select(pieces.c.holder, func.count()).group_by(pieces.c.holder)
    return {row[0]: row[1] for row in await fetch(store, counts)}


async def test_what_takes_the_place_of_very_many_entries_leaves_none_of_their_pieces(
    state: State,
) -> None:
    async with open_store(state) as store:
        ledger = Ledger(store)
        await ledger.record(OWNER, "payments", "B-1", {"entries": CompressedSequence(ENTRIES * 2)})
        (before,) = (await held(store)).values()
        await ledger.record(OWNER, "payments", "B-2", {"entries": CompressedSequence(ENTRIES)})
        await ledger.record(OWNER, "payments", "B-1", {"entries": CompressedSequence(ENTRIES)})
        assert before > 2
        assert len(await held(store)) == 2
        assert max((await held(store)).values()) < before
        await ledger.record(OWNER, "payments", "B-1", {"entries": ENTRIES[:1]})
        await ledger.record(OWNER, "payments", "B-2", {"entries": None})
        assert await held(store) == {}
        assert await ledger.recall_all(OWNER, "payments") == {"B-1": {"entries": ENTRIES[:1]}}


async def test_no_value_of_very_many_entries_is_long_and_none_says_what_is_in_it(
    state: State,
) -> None:
    odd = [{"memo": os.urandom(100).hex()} for _ in range(30_000)]
    async with open_store(state) as store:
        await Ledger(store).record(OWNER, "payments", "B-1", {"entries": CompressedSequence(odd)})
        sealed = [row.sealed for row in await fetch(store, select(pieces.c.sealed))]
        assert len(sealed) > 10
        assert max(map(len, sealed)) < 2 * PART
        with pytest.raises(zlib.error):
            zlib.decompress(sealed[0])
        assert (await Ledger(store).recall(OWNER, "payments", "B-1"))["entries"] == odd


@pytest.mark.parametrize("harm", ["one is gone", "two change places", "one is another batch's"])
async def test_pieces_that_are_not_as_they_were_put_are_never_read(state: State, harm: str) -> None:
    async with open_store(state) as store:
        ledger = Ledger(store)
        for id_ in ("B-1", "B-2"):
            await ledger.record(OWNER, "payments", id_, {"entries": CompressedSequence(ENTRIES)})
        of = select(pieces).where(pieces.c.holder.contains("B-1")).order_by(pieces.c.number)
        first, second = (await fetch(store, of))[:2]
        other = select(pieces.c.sealed).where(pieces.c.holder.contains("B-2")).limit(1)
        this = and_(pieces.c.name == first.name, pieces.c.number == first.number)
        if harm == "one is gone":
            await execute(store, delete(pieces).where(this))
        else:
            is_foreign = harm == "one is another batch's"
            sealed = (await fetch(store, other))[0].sealed if is_foreign else second.sealed
            await execute(store, update(pieces).where(this).values(sealed=sealed))
        with pytest.raises(StoreUnavailable, match=r"missing|cannot be decrypted"):
            await ledger.recall(OWNER, "payments", "B-1")
        assert (await ledger.recall(OWNER, "payments", "B-2"))["entries"] == ENTRIES


async def test_very_many_entries_that_were_kept_in_one_value_are_recalled_and_replaced(
    state: State,
) -> None:
    text = "z" + base64.b64encode(zlib.compress(json_codec.dumps({"entries": ENTRIES}), 1)).decode()
    async with open_store(state) as store:
        place = Place("remembered", *OWNER, "facts of a payments")
        row = {**OWNER._asdict(), "kind": "payments", "id": "B-1", "updated_at": store.clock()}
        sealed = store.encryption.seal(text, place)
        await execute(store, insert(remembered).values(**row, facts=sealed))
        ledger = Ledger(store)
        there = (await ledger.recall(OWNER, "payments", "B-1"))["entries"]
        assert there == ENTRIES
        bare = map_rows(lambda one: {"recipient": one["recipient"]}, there)
        await ledger.record(OWNER, "payments", "B-1", {"entries": bare}, {"entries": there})
        now = (await ledger.recall(OWNER, "payments", "B-1"))["entries"]
        assert now == [{"recipient": one["recipient"]} for one in ENTRIES]
