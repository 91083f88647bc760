"""How the answers of two services differ, counted by key, operation and place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import ModuleType
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, delete, func, select
from sqlalchemy.dialects import postgresql

from gateway.storage.audit_log import note
from gateway.storage.database import Transaction
from gateway.storage.sql import Statement
from gateway.storage.store import Store
from gateway.storage.tables import comparisons, found_differences
from gateway.storage.tenants import Tenant

FORGOT = "forgot what was compared"

Place = tuple[str, str]
"""The kind of a difference, and where it is, in normal form."""

_SUMS = ("compared", "different", "failed", "dropped")


@dataclass(frozen=True, slots=True)
class Asked:
    owner: Tenant
    key: str
    operation: str


@dataclass(slots=True)
class Tally:
    """``places`` counts in how many answers each difference is."""

    compared: int = 0
    different: int = 0
    failed: int = 0
    dropped: int = 0
    places: dict[Place, int] = field(default_factory=dict)
    first_at: datetime | None = None
    last_at: datetime | None = None


async def add_tallies(store: Store, tallies: Mapping[Asked, Tally]) -> None:
    """Adds to what was counted before; all of it or none. StoreUnavailable."""
    if not tallies:
        return
    rows = [_row(asked, tally) for asked, tally in tallies.items()]
    places = [row for asked, tally in tallies.items() for row in _places(asked, tally)]

    async def add(tx: Transaction) -> None:
        await _add(tx, comparisons, _ADD_SUMS, rows)
        await _add(tx, found_differences, _ADD_ANSWERS, places)

    await store.write(add)


def _adding(table: Table, sums: Iterable[str], kind: ModuleType) -> Any:
    new = kind.insert(table)
    most = func.greatest if kind is postgresql else func.max
    added: dict[str, Any] = {name: table.c[name] + new.excluded[name] for name in sums}
    added["last_at"] = most(table.c.last_at, new.excluded.last_at)
    keys = [column.name for column in table.primary_key]
    return new.on_conflict_do_update(index_elements=keys, set_=added)


_ADD_SUMS = Statement(
    partial(_adding, comparisons, _SUMS), [column.name for column in comparisons.c]
)
_ADD_ANSWERS = Statement(
    partial(_adding, found_differences, ("answers",)),
    [column.name for column in found_differences.c],
)


async def _add(
    tx: Transaction, table: Table, statement: Statement, rows: list[dict[str, Any]]
) -> None:
    keys = [column.name for column in table.primary_key]
    # In one order everywhere: two instances adding to the same rows must not wait in a ring.
    rows = sorted(rows, key=lambda row: [row[name] for name in keys])
    if rows:
        await tx.execute(statement, *rows)


def _whose(asked: Asked) -> dict[str, Any]:
    return {**asked.owner._asdict(), "key": asked.key, "operation": asked.operation}


def _row(asked: Asked, tally: Tally) -> dict[str, Any]:
    named = (*_SUMS, "first_at", "last_at")
    return {**_whose(asked), **{name: getattr(tally, name) for name in named}}


def _places(asked: Asked, tally: Tally) -> list[dict[str, Any]]:
    when = {"first_at": tally.first_at, "last_at": tally.last_at}
    return [
        {**_whose(asked), "kind": kind, "place": place, "answers": answers, **when}
        for (kind, place), answers in tally.places.items()
    ]


async def all_tallies(store: Store) -> dict[Asked, Tally]:
    """By merchant, environment, key and operation; StoreUnavailable."""
    keys = list(comparisons.primary_key)
    found: dict[Asked, Tally] = {}

    async def load(tx: Transaction) -> tuple[list[Any], list[Any]]:
        sums = await tx.fetch(select(comparisons).order_by(*keys))
        return sums, await tx.fetch(select(found_differences))

    sums, places = await store.read(load)
    for row in sums:
        counted = {name: getattr(row, name) for name in (*_SUMS, "first_at", "last_at")}
        found[_asked(row)] = Tally(**counted)
    for row in places:
        if tally := found.get(_asked(row)):
            tally.places[row.kind, row.place] = row.answers
    return found


def _asked(row: Any) -> Asked:
    return Asked(Tenant(row.merchant, row.environment), row.key, row.operation)


async def forget_tallies(store: Store, owner: Tenant, key: str) -> None:
    """What was compared of a key counts no more: it is counted anew from here."""

    async def forget(tx: Transaction) -> None:
        await tx.execute(delete(comparisons).where(_of(comparisons, owner, key)))
        its = _of(found_differences, owner, key)
        await tx.execute(delete(found_differences).where(its))
        await note(store, tx, f"{FORGOT} of key {key}", owner)

    await store.write(forget)


def _of(table: Table, owner: Tenant, key: str) -> ColumnElement[bool]:
    is_owners = and_(table.c.merchant == owner.merchant, table.c.environment == owner.environment)
    return and_(is_owners, table.c.key == key)
