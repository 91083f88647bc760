"""Gives up an operation that cannot be continued, and releases its locks.

For example, one that an earlier version of the gateway started and this version would continue
differently. An operator completes the missing steps by hand.
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
"""Retries and seconds between them: a running gateway briefly claims an operation in doubt each
time it tries to resolve it.
"""


async def close_in_doubt_operation(store: Store, named: str) -> None:
    """Closes the operation of a write. Raises WriteCommandRefused if it cannot be closed or stays
    busy.
    """
    for _ in range(TRIES):
        if await _is_closed(store, named):
            return
        await asyncio.sleep(PAUSE)
    raise NotSettled(f"a running gateway is resolving {named} right now; try again in a minute")


async def _is_closed(store: Store, named: str) -> bool:
    """Tries once. False if a running gateway claims the operation; raises WriteCommandRefused."""
    one, _write = await find_in_doubt_write(store, named)
    # A gateway has claimed it to resolve it, which takes only a moment. Its result may change the
    # answer, so wait.
    if one.state == RUNNING and one.why is not None:
        return False
    if one.state != UNSETTLED:
        raise NotSettled(
            f"{named} belongs to a request that is {one.state}; it does not need to be closed"
        )
    ledger = Ledger(store)
    rows = OperationRepository(store, ledger)
    its = (await rows.writes_of(one.id))[one.id]
    # Closing frees the batches. If an unknown write had started one, a retry would pay it again.
    if any(write.state == SENT and write.told is None for write in its):
        raise NotSettled(
            f"it is not known whether {named} happened; record that with `writes settle` first"
        )
    settled = [_as_told(write, store) for write in its if write.state == SENT]
    ended = {write.number: write for write in [*its, *settled]}
    happened = any(write.state in (ANSWERED, HAPPENED) for write in ended.values())
    point = Point(
        settled=settled,
        made=[write.made for write in settled if write.made],
        records=await _freed(store, one, list(ended.values())),
        changes={"state": ANSWERED if happened else UNDONE, "why": None},
        # Nothing continues the operation, so its encrypted request and steps are no longer needed.
        drops=True,
        act=CLOSED,
    )
    try:
        await rows.keep(one, point)
    # Another process claimed the operation, or a client changed one of its batches, since the read.
    except (Overtaken, Conflict):
        return False
    return True


def _as_told(write: Write, store: Store) -> Write:
    state = DID_NOT if write.told == DID_NOT else HAPPENED
    made = None if write.told in TOLD else write.told
    return replace(write, state=state, made=made, settled_at=store.clock())


async def _freed(store: Store, one: OperationRecord, its: Sequence[Write]) -> list[Record]:
    """Records that unlock the operation's batches, with the effect of its last write."""
    found: dict[str, Record] = {}
    last, ledger = its[-1], Ledger(store)
    happened = last.state in (ANSWERED, HAPPENED)
    # The format of the service's timestamps, which the batch record uses.
    when = f"{last.entered_at:%Y-%m-%dT%H:%M:%S.000Z}"
    for named in one.subjects:
        batch_id = await resolve_first_id(store, one.owner, named)
        facts = await ledger.recall(one.owner, "batch", batch_id)
        if record := release_stale_lock(batch_id, facts, when if happened else None, last.made):
            found[batch_id] = record
    return list(found.values())
