"""Stores modes: which service answers a key's requests, by group of operations.

A row stays when its mode is set back to ``translate``: it shows that the legacy service may own
batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import delete, select

from gateway.storage.audit_log import record_audit_event
from gateway.storage.change_poller import increment_change_count
from gateway.storage.database import Transaction
from gateway.storage.sql import build_upsert_statement
from gateway.storage.store import Store
from gateway.storage.tables import modes
from gateway.storage.tenants import Tenant

Mode = Literal["translate", "forward", "compare"]
TRANSLATE: Mode = "translate"
FORWARD: Mode = "forward"
COMPARE: Mode = "compare"
MODES = (TRANSLATE, FORWARD, COMPARE)

Group = Literal["recipients", "batches", "balances", "geography", "payments"]
GROUPS: tuple[Group, ...] = ("recipients", "batches", "balances", "geography", "payments")

SWITCHED_PREFIX = "switched to"
"""The beginning of its audit log entries."""

CHANGES = "modes"
"""The name of their change count."""


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

    Running gateways poll for the change. A mode that is set already keeps its date. A mode for
    every key replaces the modes of single keys; returns the names of these keys.
    """
    common = {**tenant._asdict(), "key": key, "mode": mode, "since": store.clock()}

    async def upsert_modes(tx: Transaction) -> list[str]:
        await increment_change_count(tx, CHANGES)
        single_keys = delete(modes).filter_by(**tenant._asdict())
        single_keys = single_keys.where(modes.c.part.in_(list(groups)), modes.c.key != "")
        rows = [] if key else await tx.fetch(single_keys.returning(modes.c.key))
        same_mode = select(modes.c.part).filter_by(**tenant._asdict(), key=key, mode=mode)
        unchanged = {row.part for row in await tx.fetch(same_mode)}
        for group in groups:
            if group not in unchanged:
                await tx.execute(_UPSERT_MODE, {**common, "part": group})
        keys = f"key {key}" if key else "every key"
        await record_audit_event(
            store, tx, f"{SWITCHED_PREFIX} {mode}: {', '.join(groups)} of {keys}", tenant
        )
        return sorted({row.key for row in rows})

    return await store.write(upsert_modes)


_UPSERT_MODE = build_upsert_statement(modes, ("mode", "since"))


async def copy_modes(tx: Transaction, tenant: Tenant, key: str, new_name: str) -> None:
    """Copies the modes of a renamed key to its new name.

    The old name keeps its modes, because a running gateway may learn the new name later.
    """
    query = select(modes.c.part, modes.c.mode, modes.c.since)
    query = query.filter_by(**tenant._asdict(), key=key)
    await increment_change_count(tx, CHANGES)
    for row in await tx.fetch(query):
        await tx.execute(_UPSERT_MODE, {**tenant._asdict(), "key": new_name, **row._asdict()})


async def list_mode_switches(store: Store) -> list[ModeSwitch]:
    rows = select(modes).order_by(modes.c.merchant, modes.c.environment, modes.c.key, modes.c.part)
    return [
        ModeSwitch(Tenant(row.merchant, row.environment), row.key, row.part, row.mode, row.since)
        for row in await store.fetch(rows)
    ]
