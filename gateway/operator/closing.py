"""Giving up an undertaking that cannot be carried on: what it held is free again.

That is so of one that an earlier version of the program began and this one would carry on
differently. An operator finishes by hand what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from gateway.operator.in_doubt_writes import NotSettled, find_in_doubt_write, resolve_first_id
from gateway.storage import Ledger, Store
from gateway.storage.undertakings import (
    ANSWERED,
    DID_NOT,
    HAPPENED,
    RUNNING,
    SENT,
    TOLD,
    UNDONE,
    UNSETTLED,
    OperationRecord,
    OperationRepository,
    Overtaken,
    Point,
    Write,
)
from mappings.drafts import release_stale_lock
from mappings.grammar import Conflict, Record

CLOSED = "closed"

TRIES, PAUSE = 20, 0.25
"""A running gateway looks at what is unsettled again and again, each time for a moment."""


async def close_in_doubt_operation(store: Store, named: str) -> None:
    """Raises NotSettled, also where somebody goes on looking at it."""
    for _ in range(TRIES):
        if await _is_closed(store, named):
            return
        await asyncio.sleep(PAUSE)
    raise NotSettled(f"{named} is being looked at just now; try again in a minute")


async def _is_closed(store: Store, named: str) -> bool:
    """False where somebody is looking at it at this moment; raises NotSettled."""
    one, _write = await find_in_doubt_write(store, named)
    if one.state == RUNNING and one.why is not None:
        return False
    if one.state != UNSETTLED:
        raise NotSettled(f"{named} belongs to a request that is {one.state}; it needs no closing")
    ledger = Ledger(store)
    rows = OperationRepository(store, ledger)
    its = (await rows.writes_of(one.id))[one.id]
    if any(write.state == SENT and write.told is None for write in its):
        raise NotSettled(f"it is not known whether {named} happened; say so with `writes settle`")
    settled = [_as_told(write, store) for write in its if write.state == SENT]
    ended = {write.number: write for write in [*its, *settled]}
    happened = any(write.state in (ANSWERED, HAPPENED) for write in ended.values())
    point = Point(
        settled=settled,
        made=[write.made for write in settled if write.made],
        records=await _freed(store, one, list(ended.values())),
        changes={"state": ANSWERED if happened else UNDONE, "why": None},
        drops=True,
        act=CLOSED,
    )
    try:
        await rows.keep(one, point)
    except (Overtaken, Conflict):
        return False
    return True


def _as_told(write: Write, store: Store) -> Write:
    state = DID_NOT if write.told == DID_NOT else HAPPENED
    made = None if write.told in TOLD else write.told
    return replace(write, state=state, made=made, settled_at=store.clock())


async def _freed(store: Store, one: OperationRecord, its: Sequence[Write]) -> list[Record]:
    """The batches that it took, as its last write left them."""
    found: dict[str, Record] = {}
    last, ledger = its[-1], Ledger(store)
    happened = last.state in (ANSWERED, HAPPENED)
    when = f"{last.entered_at:%Y-%m-%dT%H:%M:%S.000Z}"
    for named in one.subjects:
        batch_id = await resolve_first_id(store, one.owner, named)
        facts = await ledger.recall(one.owner, "batch", batch_id)
        if record := release_stale_lock(batch_id, facts, when if happened else None, last.made):
            found[batch_id] = record
    return list(found.values())
