"""Differences between the answers of two services, counted by key, operation and place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.storage.audit_log import note
from gateway.storage.store import Store
from gateway.storage.tables import comparisons, found_differences
from gateway.storage.tenants import Tenant

FORGOT = "forgot what was compared"

Place = tuple[str, str]
"""The kind of a difference, and its path in the body, without list indexes."""

_SUMS = ("compared", "different", "failed", "dropped")


@dataclass(frozen=True, slots=True)
class Asked:
    owner: Tenant
    key: str
    operation: str


@dataclass(slots=True)
class Tally:
    """Counters of compared answers; ``places`` counts the answers with each difference."""

    compared: int = 0
    different: int = 0
    failed: int = 0
    dropped: int = 0
    places: dict[Place, int] = field(default_factory=dict)
    first_at: datetime | None = None
    last_at: datetime | None = None


async def add_tallies(store: Store, tallies: Mapping[Asked, Tally]) -> None:
    """Adds to the stored counters in one transaction; raises StoreUnavailable."""
    if not tallies:
        return
    rows = [_row(asked, tally) for asked, tally in tallies.items()]
    places = [row for asked, tally in tallies.items() for row in _places(asked, tally)]
    async with store.write() as connection:
        await _add(connection, comparisons, _SUMS, rows)
        await _add(connection, found_differences, ("answers",), places)


async def _add(
    connection: AsyncConnection, table: Table, sums: Iterable[str], rows: list[dict[str, Any]]
) -> None:
    if not rows:
        return
    is_postgresql = connection.dialect.name == "postgresql"
    new = (postgresql if is_postgresql else sqlite).insert(table)
    most = func.greatest if is_postgresql else func.max
    added: dict[str, Any] = {name: table.c[name] + new.excluded[name] for name in sums}
    added["last_at"] = most(table.c.last_at, new.excluded.last_at)
    keys = [column.name for column in table.primary_key]
    # Always in the same order: two instances that update the same rows must not deadlock.
    rows = sorted(rows, key=lambda row: [row[name] for name in keys])
    await connection.execute(new.on_conflict_do_update(index_elements=keys, set_=added), rows)


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
    """Loads every tally, ordered by merchant, environment, key and operation; StoreUnavailable."""
    keys = list(comparisons.primary_key)
    found: dict[Asked, Tally] = {}
    async with store.read() as connection:
        for row in await connection.execute(select(comparisons).order_by(*keys)):
            counted = {name: getattr(row, name) for name in (*_SUMS, "first_at", "last_at")}
            found[_asked(row)] = Tally(**counted)
        for row in await connection.execute(select(found_differences)):
            if tally := found.get(_asked(row)):
                tally.places[row.kind, row.place] = row.answers
    return found


def _asked(row: Any) -> Asked:
    return Asked(Tenant(row.merchant, row.environment), row.key, row.operation)


async def forget_tallies(store: Store, owner: Tenant, key: str) -> None:
    """Deletes the tallies of a key, so that counting starts again from zero."""
    async with store.write() as connection:
        await connection.execute(delete(comparisons).where(_of(comparisons, owner, key)))
        its = _of(found_differences, owner, key)
        await connection.execute(delete(found_differences).where(its))
        await note(store, connection, f"{FORGOT} of key {key}", owner)


def _of(table: Table, owner: Tenant, key: str) -> ColumnElement[bool]:
    is_owners = and_(table.c.merchant == owner.merchant, table.c.environment == owner.environment)
    return and_(is_owners, table.c.key == key)
