"""Modes as the database has them: which service answers a key's requests of a group.

A row is kept when it is set back to ``translate``: it tells that something may have been begun at
the legacy service. ``counters`` counts the changes, so that a gateway need not read all of it to
see that there was none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from sqlalchemy import and_, delete, select

from gateway.storage.audit_log import note
from gateway.storage.sql import Statement, upsert
from gateway.storage.tables import counters, modes
from gateway.storage.tenants import Tenant

if TYPE_CHECKING:
    from gateway.storage.database import Transaction
    from gateway.storage.store import Store

Mode = Literal["translate", "forward", "compare"]
TRANSLATE: Mode = "translate"
FORWARD: Mode = "forward"
COMPARE: Mode = "compare"
MODES = (TRANSLATE, FORWARD, COMPARE)

Group = Literal["recipients", "batches", "balances", "geography", "payments"]
GROUPS: tuple[Group, ...] = ("recipients", "batches", "balances", "geography", "payments")

SWITCHED = "switched to"
"""How what is noted of it begins."""

_COUNT = "modes"


@dataclass(frozen=True, slots=True)
class Switch:
    """An empty ``key`` is every key of the owner that has no switch of its own for the group."""

    owner: Tenant
    key: str
    group: Group
    mode: Mode
    since: datetime


async def set_mode(
    store: Store, owner: Tenant, key: str, groups: Sequence[Group], mode: Mode
) -> list[str]:
    """Switches groups of a key, or of every key of an owner; running gateways follow.

    What is said of every key holds for those that had a switch of their own, too; their names.
    """
    common = {**owner._asdict(), "key": key, "mode": mode, "since": store.clock()}

    async def switch(tx: Transaction) -> list[str]:
        await tx.lock(_COUNT)
        displaced = [] if key else await _displaced(tx, owner, groups)
        for group in groups:
            await tx.execute(_PUT, {**common, "part": group})
        await _count_on(tx)
        whose = f"key {key}" if key else "every key"
        await note(store, tx, f"{SWITCHED} {mode}: {', '.join(groups)} of {whose}", owner)
        return displaced

    return await store.write(switch)


_PUT = upsert(modes, ("merchant", "environment", "key", "part"), ("mode", "since"))
_PUT_COUNT = upsert(counters, ("name",), ("value",))


async def _displaced(tx: Transaction, owner: Tenant, groups: Iterable[Group]) -> list[str]:
    those = and_(
        modes.c.merchant == owner.merchant,
        modes.c.environment == owner.environment,
        modes.c.part.in_(list(groups)),
        modes.c.key != "",
    )
    rows = await tx.fetch(select(modes.c.key).where(those).distinct())
    await tx.execute(delete(modes).where(those))
    return sorted(row.key for row in rows)


async def keep_modes(tx: Transaction, owner: Tenant, key: str, renamed: str) -> None:
    """Has a key that was renamed go on as it was switched.

    The name that it had keeps its modes, too: a gateway may hear of the key's new name after this.
    """
    those = select(modes.c.part, modes.c.mode, modes.c.since).where(
        modes.c.merchant == owner.merchant,
        modes.c.environment == owner.environment,
        modes.c.key == key,
    )
    await tx.lock(_COUNT)
    if not (rows := await tx.fetch(those)):
        return
    for row in rows:
        await tx.execute(_PUT, {**owner._asdict(), "key": renamed, **row._asdict()})
    await _count_on(tx)


async def count_of_switches(store: Store) -> int:
    """How often any was set; another number than before tells that one was."""
    return int(await store.read(lambda tx: tx.fetch_value(_COUNTED)) or 0)


_COUNTED = Statement(lambda _kind: select(counters.c.value).where(counters.c.name == _COUNT))


async def _count_on(tx: Transaction) -> None:
    """Running gateways see by it that something was switched."""
    count = int(await tx.fetch_value(_COUNTED) or 0)
    await tx.execute(_PUT_COUNT, {"name": _COUNT, "value": count + 1})


async def all_switches(store: Store) -> list[Switch]:
    rows = select(modes).order_by(modes.c.merchant, modes.c.environment, modes.c.key, modes.c.part)
    return [
        Switch(Tenant(row.merchant, row.environment), row.key, row.part, row.mode, row.since)
        for row in await store.read(lambda tx: tx.fetch(rows))
    ]
