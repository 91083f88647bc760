"""Deletes data that has expired (``[retention]``), and erases a recipient's data on request.

Data that prevents double payments is kept while it is needed. Data without personal content that
keeps payments correct stays: ids, the outcome of writes for the configured time, and whether a
recipient is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import and_, delete, exists, func, or_, select, tuple_

from gateway.config.settings import Retention
from gateway.storage import Ledger, Store, Tenant
from gateway.storage.audit_log import ERASED, note
from gateway.storage.id_rows import current_ids, legacy_ids
from gateway.storage.periodic_tasks import PeriodicTask
from gateway.storage.tables import (
    acts,
    brownout_hits,
    brownouts,
    journal,
    journal_steps,
    journal_subjects,
    pieces,
    remembered,
    usage,
    writes,
)
from gateway.storage.traffic_rows import forget_traffic
from gateway.storage.undertakings import ANSWERED, SENT, UNDONE, OperationRepository
from mappings.drafts import SIGNED
from mappings.grammar import Conflict, Record
from mappings.rows import map_rows

EVERY_SECONDS = 3600.0

AT_ONCE = 200
"""Rows deleted in one transaction: on SQLite, every other write waits for it."""

WATCHED_SECONDS, PAUSE_SECONDS = 5.0, 0.25

LOOKED_AT = 1000
"""Oldest operations to examine in one pass. Those that never end stay among them."""

SETTLED_PHASES = ("sent", "deleted")
"""Phases of a batch in which nothing stored about its payments will be sent."""

STAYS = ("deleted", "still_there", "status")
"""Facts of a recipient that are not personal: whether it may be paid or shown."""

log = structlog.get_logger()


class InUse(Exception):
    """A recipient cannot be erased yet. The message is one line for the operator."""


@dataclass(frozen=True, slots=True)
class Erased:
    """Counts of erased data. ``answers``: stored answers that remain and expire within a day."""

    payments: int
    batches: int
    facts: int
    answers: int


class Forgetting(PeriodicTask):
    """Deletes expired data every hour while it is open."""

    def __init__(self, store: Store, settings: Retention) -> None:
        super().__init__("retention", EVERY_SECONDS, self._sweep, at_its_end=False)
        self._store = store
        self._settings = settings

    async def _sweep(self) -> None:
        # Each step checks whether the gateway is stopping, so that shutdown does not wait for a
        # sweep.
        gone = await delete_expired(self._store, self._settings, lambda: self.is_ending)
        await forget_traffic(self._store)
        await delete_expired_signed_changes(self._store, lambda: self.is_ending)
        if any(gone.values()):
            log.info("retention_deleted", **{f"{name}_rows": count for name, count in gone.items()})


# Expiry


async def delete_expired(
    store: Store, settings: Retention, is_ending: Callable[[], bool] = lambda: False
) -> dict[str, int]:
    """Deletes expired data. Returns the number of rows by kind; raises StoreUnavailable."""
    gone: dict[str, int] = {}
    for name, days, forget in (
        ("journal", settings.journal_days, _journal),
        ("texts", settings.texts_days, _texts),
        ("usage", settings.usage_days, _usage),
        ("audit", settings.audit_days, _audit),
    ):
        gone[name] = await _by_and_by(forget, store, days, is_ending) if days else 0
    return gone


async def _by_and_by(
    forget: Callable[[Store, datetime], Awaitable[int]],
    store: Store,
    days: int,
    is_ending: Callable[[], bool],
) -> int:
    """Deletes in steps of ``MAX_ROWS_PER_TRANSACTION`` rows. Returns the number of deleted rows."""
    before, gone = store.clock() - timedelta(days=days), 0
    while not is_ending():
        some = await forget(store, before)
        gone += some
        if some < AT_ONCE:
            break
        await asyncio.sleep(0)  # let waiting writers proceed
    return gone


async def _journal(store: Store, before: datetime) -> int:
    """Deletes ended operations and their writes, except the newest: the high-water mark depends on
    it.
    """
    open_ = exists().where(writes.c.undertaking == journal.c.id, writes.c.state == SENT)
    last = select(func.max(journal.c.number)).scalar_subquery()
    # Numbers increase with the start time, so the oldest come first. Limited: there may be
    # millions.
    first = select(journal.c.id).order_by(journal.c.number).limit(LOOKED_AT).subquery()
    over = and_(
        journal.c.id.in_(select(first.c.id)),
        journal.c.state.in_((ANSWERED, UNDONE)),
        journal.c.began_at < before,
        or_(journal.c.number.is_(None), journal.c.number != last),
        ~open_,
    )
    async with store.write() as connection:
        ids = list(await connection.scalars(select(journal.c.id).where(over).limit(AT_ONCE)))
        for table in (journal_steps, journal_subjects, writes):
            await connection.execute(delete(table).where(table.c.undertaking.in_(ids)))
        await connection.execute(delete(pieces).where(pieces.c.holder.in_(ids)))
        await connection.execute(delete(journal).where(journal.c.id.in_(ids)))
    return len(ids)


async def _texts(store: Store, before: datetime) -> int:
    """Deletes names, addresses and memos of payments in batches that were not changed since."""
    table = remembered.c
    old = select(table.merchant, table.environment, table.id).where(
        table.kind == "payments", table.updated_at < before
    )
    async with store.read() as connection:
        rows = (await connection.execute(old.order_by(table.updated_at).limit(AT_ONCE))).all()
    ledger, done = Ledger(store), 0
    for row in rows:
        owner = Tenant(row.merchant, row.environment)
        with suppress(Conflict):  # changed concurrently, so it is not old any more
            facts = await ledger.recall(owner, "payments", row.id)
            entries = facts.get("entries", [])
            # Written even if nothing is removed: the new timestamp keeps it out of the next passes.
            kept = (
                map_rows(strip_personal_data, entries)
                if await _rests(ledger, owner, row.id)
                else entries
            )
            await ledger.record(owner, "payments", row.id, {"entries": kept}, {"entries": entries})
            done += 1
    return done


async def _rests(ledger: Ledger, owner: Tenant, batch: str) -> bool:
    phase = (await ledger.recall(owner, "batch", batch)).get("phase", "sent")
    return phase in SETTLED_PHASES


def strip_personal_data(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A payment without personal data: the memo and all recipient fields but the id are removed."""
    kept = {name: value for name, value in entry.items() if name != "memo"}
    payee = {name: id_ for name, id_ in entry["recipient"].items() if name == "id"}
    return {**kept, "recipient": payee}


async def delete_expired_signed_changes(
    store: Store, is_ending: Callable[[], bool] = lambda: False
) -> None:
    """Deletes records of signed changes after a day, when each has long ended."""
    await _by_and_by(_signed, store, 1, is_ending)


async def _signed(store: Store, before: datetime) -> int:
    table = remembered.c
    named = (table.merchant, table.environment, table.id)
    is_old = and_(table.kind == SIGNED, table.updated_at < before)
    some = tuple_(*named).in_(select(*named).where(is_old).limit(AT_ONCE))
    async with store.write() as connection:
        return (await connection.execute(delete(remembered).where(is_old, some))).rowcount


async def _usage(store: Store, before: datetime) -> int:
    async with store.write() as connection:
        ended = select(brownouts.c.id).where(brownouts.c.ends_at < before)
        await connection.execute(delete(brownout_hits).where(brownout_hits.c.brownout.in_(ended)))
        await connection.execute(delete(brownouts).where(brownouts.c.ends_at < before))
        await connection.execute(delete(usage).where(usage.c.day < before.date()))
    return 0


async def _audit(store: Store, before: datetime) -> int:
    async with store.write() as connection:
        await connection.execute(delete(acts).where(acts.c.at < before))
    return 0


# Erasure on request


async def erase_recipient(store: Store, owner: Tenant, recipient: str) -> Erased:
    """Erases a recipient's personal data of one tenant. Raises RecipientInUse or StoreUnavailable.

    Ids stay, and whether the recipient is deleted or may not be paid.
    """
    ledger = Ledger(store)
    names = await _names(store, owner, recipient)
    await _none_under_way(store, owner)
    answers = await _kept_answers(store, owner, names)
    found = await ledger.recall_all(owner, "payments")
    its = {
        batch: [one for one in facts.get("entries", []) if one["recipient"].get("id") in names]
        for batch, facts in found.items()
    }
    its = {batch: entries for batch, entries in its.items() if entries}
    # The payments of a draft are still to be sent, and the service needs the memo and the name.
    drafts = [batch for batch in its if not await _rests(ledger, owner, batch)]
    if drafts:
        raise InUse(
            f"draft batches contain this recipient: {', '.join(sorted(drafts))}; "
            "remove the payments, or start or delete the batches first"
        )
    # Each batch with a compare-and-set: a client may edit it right now.
    for batch in its:
        await _without(ledger, owner, batch, names)
    facts = sum([await _fewer_facts(ledger, owner, name) for name in sorted(names)])
    # Last: if a step above fails, the audit log must not say that the data was erased.
    async with store.write() as connection:
        await note(store, connection, ERASED, owner)
    return Erased(sum(map(len, its.values())), len(its), facts, answers)


async def _names(store: Store, owner: Tenant, recipient: str) -> frozenset[str]:
    """All ids of a recipient: the given one, the service's and the legacy one."""
    real = (await current_ids(store, owner, [recipient])).get(recipient, recipient)
    known = await legacy_ids(store, owner, [real])
    return frozenset({recipient, real, *known.values()})


async def _none_under_way(store: Store, owner: Tenant) -> None:
    """Waits for the tenant's unfinished operations, because one could write erased data again, and
    its recipient may not be known yet. Raises RecipientInUse if they do not end in time.
    """
    rows = OperationRepository(store, Ledger(store))
    waited, left = 0.0, {one.id for one in await rows.unfinished() if one.owner == owner}
    while left and waited < WATCHED_SECONDS:
        await asyncio.sleep(PAUSE_SECONDS)
        waited += PAUSE_SECONDS
        left &= {one.id for one in await rows.unfinished()}
    if left:
        raise InUse(
            "writes of this merchant are in progress or in doubt and may concern this recipient; "
            "see `writes unsettled`, and try again when there are none"
        )


async def _kept_answers(store: Store, owner: Tenant, names: Iterable[str]) -> int:
    its = await OperationRepository(store, Ledger(store)).of_object(owner, names)
    return sum(one.answer is not None for one in its)


async def _without(ledger: Ledger, owner: Tenant, batch: str, names: frozenset[str]) -> None:
    entries: Sequence[Mapping[str, Any]]
    entries = (await ledger.recall(owner, "payments", batch)).get("entries", [])
    kept = map_rows(
        lambda one: strip_personal_data(one) if one["recipient"].get("id") in names else one,
        entries,
    )
    try:
        await ledger.record(owner, "payments", batch, {"entries": kept}, {"entries": entries})
    except Conflict:
        raise InUse(f"batch {batch} is being changed right now; try again") from None


async def _fewer_facts(ledger: Ledger, owner: Tenant, name: str) -> int:
    facts = await ledger.recall(owner, "recipient", name)
    gone = {fact: None for fact in facts if fact not in STAYS}
    if gone:
        await ledger.record_all(owner, [Record("recipient", name, gone)])
    return len(gone)
