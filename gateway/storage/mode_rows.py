"""Modes in the database: which service answers a key's requests, by group of operations.

A row stays when its mode is set back to ``translate``: it shows that the legacy service may own
batches. The table ``counters`` counts the changes, so that a gateway can poll for changes without
reading every row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from sqlalchemy import and_, delete, func, select

from gateway.storage.audit_log import note
from gateway.storage.ledger import put_row
from gateway.storage.statements import Statement, Transaction, rows_of
from gateway.storage.tables import counters, modes
from gateway.storage.tenants import Tenant

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from gateway.storage.store import Store

Mode = Literal["translate", "forward", "compare"]
TRANSLATE: Mode = "translate"
FORWARD: Mode = "forward"
COMPARE: Mode = "compare"
MODES = (TRANSLATE, FORWARD, COMPARE)

Group = Literal["recipients", "batches", "balances", "geography", "payments"]
GROUPS: tuple[Group, ...] = ("recipients", "batches", "balances", "geography", "payments")

SWITCHED = "switched to"
"""The beginning of its audit log entries."""

_COUNT = "modes"


@dataclass(frozen=True, slots=True)
class Switch:
    """The mode of a key and group; an empty key stands for every key of the tenant without its own."""

    owner: Tenant
    key: str
    group: Group
    mode: Mode
    since: datetime


async def set_mode(
    store: Store, owner: Tenant, key: str, groups: Sequence[Group], mode: Mode
) -> list[str]:
    """Sets the mode of groups, for a key or (empty key) for every key of a tenant.

    Running gateways follow. A mode for every key replaces the modes of single keys; returns the names
    of these keys.
    """
    async with store.write() as connection:
        await store.one_at_a_time(connection, _COUNT)
        displaced = [] if key else await _displaced(connection, owner, groups)
        for group in groups:
            row = {**owner._asdict(), "key": key, "part": group}
            await put_row(connection, modes, row, {"mode": mode, "since": store.clock()})
        await _count_on(connection)
        whose = f"key {key}" if key else "every key"
        await note(store, connection, f"{SWITCHED} {mode}: {', '.join(groups)} of {whose}", owner)
        return displaced


async def _displaced(
    connection: AsyncConnection, owner: Tenant, groups: Iterable[Group]
) -> list[str]:
    those = and_(
        modes.c.merchant == owner.merchant,
        modes.c.environment == owner.environment,
        modes.c.part.in_(list(groups)),
        modes.c.key != "",
    )
    names = await connection.scalars(select(modes.c.key).where(those).distinct())
    found = sorted(names)
    await connection.execute(delete(modes).where(those))
    return found


async def keep_modes(
    store: Store, connection: AsyncConnection, owner: Tenant, key: str, renamed: str
) -> None:
    """Copies the modes of a renamed key to its new name.

    The old name keeps its modes, because a running gateway may learn the new name later.
    """
    those = select(modes.c.part, modes.c.mode, modes.c.since).where(
        modes.c.merchant == owner.merchant,
        modes.c.environment == owner.environment,
        modes.c.key == key,
    )
    await store.one_at_a_time(connection, _COUNT)
    if not (rows := (await connection.execute(those)).all()):
        return
    for row in rows:
        named = {**owner._asdict(), "key": renamed, "part": row.part}
        await put_row(connection, modes, named, {"mode": row.mode, "since": row.since})
    await _count_on(connection)


async def count_of_switches(store: Store) -> int:
    """The number of changes so far; if it differs from before, modes have changed."""
    rows = await store.looked_up(Transaction(lambda: rows_of(_COUNTED)))
    return int(rows[0][0]) if rows else 0


_COUNTED = Statement(lambda _kind: select(counters.c.value).where(counters.c.name == _COUNT))


async def _count_on(connection: AsyncConnection) -> None:
    """Increments the counter by which running gateways notice a change."""
    counted = select(func.max(counters.c.value)).where(counters.c.name == _COUNT)
    count = int(await connection.scalar(counted) or 0)
    await put_row(connection, counters, {"name": _COUNT}, {"value": count + 1})


async def all_switches(store: Store) -> list[Switch]:
    rows = select(modes).order_by(modes.c.merchant, modes.c.environment, modes.c.key, modes.c.part)
    async with store.read() as connection:
        return [
            Switch(Tenant(row.merchant, row.environment), row.key, row.part, row.mode, row.since)
            for row in await connection.execute(rows)
        ]
