"""Stores modes: which service answers a key's requests, by group of operations.

A row stays when its mode is set back to ``translate``: it shows that the legacy service may own
batches. The table ``counters`` counts the changes, so that a gateway can poll for changes without
reading every row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from sqlalchemy import and_, delete, select

from gateway.storage.audit_log import record_audit_event
from gateway.storage.sql import Statement, build_upsert_statement
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

SWITCHED_PREFIX = "switched to"
"""The beginning of its audit log entries."""

_COUNTER = "modes"


@dataclass(frozen=True, slots=True)
class ModeSwitch:
    """The mode of a key and group.

    An empty key stands for every key of the tenant without a mode of its own.
    """

    tenant: Tenant
    key: str
    group: Group
    mode: Mode
    since: datetime


async def set_mode(
    store: Store, tenant: Tenant, key: str, groups: Sequence[Group], mode: Mode
) -> list[str]:
    """Sets the mode of groups, for a key or (empty key) for every key of a tenant.

    Running gateways poll for the change. A mode for every key replaces the modes of single keys;
    returns the names of these keys.
    """
    common = {**tenant._asdict(), "key": key, "mode": mode, "since": store.clock()}

    async def upsert_modes(tx: Transaction) -> list[str]:
        # Two changes at a time could leave one count, and hide one of them from gateways.
        await tx.lock(_COUNTER)
        displaced_keys = [] if key else await _delete_modes_of_single_keys(tx, tenant, groups)
        for group in groups:
            await tx.execute(_UPSERT_MODE, {**common, "part": group})
        await _increment_mode_switch_count(tx)
        keys = f"key {key}" if key else "every key"
        await record_audit_event(
            store, tx, f"{SWITCHED_PREFIX} {mode}: {', '.join(groups)} of {keys}", tenant
        )
        return displaced_keys

    return await store.write(upsert_modes)


_UPSERT_MODE = build_upsert_statement(
    modes, ("merchant", "environment", "key", "part"), ("mode", "since")
)
_UPSERT_COUNT = build_upsert_statement(counters, ("name",), ("value",))


async def _delete_modes_of_single_keys(
    tx: Transaction, tenant: Tenant, groups: Iterable[Group]
) -> list[str]:
    is_displaced = and_(
        modes.c.merchant == tenant.merchant,
        modes.c.environment == tenant.environment,
        modes.c.part.in_(list(groups)),
        modes.c.key != "",
    )
    rows = await tx.fetch(select(modes.c.key).where(is_displaced).distinct())
    await tx.execute(delete(modes).where(is_displaced))
    return sorted(row.key for row in rows)


async def copy_modes(tx: Transaction, tenant: Tenant, key: str, new_name: str) -> None:
    """Copies the modes of a renamed key to its new name.

    The old name keeps its modes, because a running gateway may learn the new name later.
    """
    query = select(modes.c.part, modes.c.mode, modes.c.since).where(
        modes.c.merchant == tenant.merchant,
        modes.c.environment == tenant.environment,
        modes.c.key == key,
    )
    await tx.lock(_COUNTER)
    if not (rows := await tx.fetch(query)):
        return
    for row in rows:
        await tx.execute(_UPSERT_MODE, {**tenant._asdict(), "key": new_name, **row._asdict()})
    await _increment_mode_switch_count(tx)


async def load_mode_switch_count(store: Store) -> int:
    """Returns the number of changes so far; if it differs from before, modes have changed."""
    return int(await store.read(lambda tx: tx.fetch_value(_SELECT_COUNT)) or 0)


_SELECT_COUNT = Statement(lambda _kind: select(counters.c.value).where(counters.c.name == _COUNTER))


async def _increment_mode_switch_count(tx: Transaction) -> None:
    """Increments the counter by which running gateways notice a change."""
    count = int(await tx.fetch_value(_SELECT_COUNT) or 0)
    await tx.execute(_UPSERT_COUNT, {"name": _COUNTER, "value": count + 1})


async def list_mode_switches(store: Store) -> list[ModeSwitch]:
    rows = select(modes).order_by(modes.c.merchant, modes.c.environment, modes.c.key, modes.c.part)
    return [
        ModeSwitch(Tenant(row.merchant, row.environment), row.key, row.part, row.mode, row.since)
        for row in await store.read(lambda tx: tx.fetch(rows))
    ]
