"""Stores the legacy ids of a tenant's objects: alias ids, and ids that were imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import ModuleType
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, select

from gateway.storage.database import FEW, Transaction
from gateway.storage.sql import AnyOf, Statement, build_insert_if_absent_statement
from gateway.storage.store import Store
from gateway.storage.tables import legacy_ids, operation_objects, operations, upstream_writes
from gateway.storage.tenants import Tenant
from mappings.forwarded_writes import FORWARDED_PREFIX

MAX_ROWS_PER_STATEMENT = 500
"""Maximum number of rows that are built and inserted at a time."""


class IdCollisionError(Exception):
    """A legacy id cannot stand for an object.

    It stands for another object already, or an import gave the object the legacy id ``another``:
    which of the two a client sees would be chance.
    """

    def __init__(self, legacy_id: str, another: str | None = None) -> None:
        why = f"is of the object imported as {another}" if another else "stands for another object"
        super().__init__(f"{legacy_id} {why} already")
        self.legacy_id = legacy_id


async def load_current_ids_by_legacy_id(
    store: Store, owner: Tenant, legacy_ids: Iterable[str]
) -> dict[str, str]:
    """Loads current ids by legacy id, for the legacy ids that are known."""
    return dict(await _load_id_pairs(store, owner, _BY_LEGACY, legacy_ids))


async def load_legacy_ids(store: Store, owner: Tenant, current: Iterable[str]) -> dict[str, str]:
    """Loads legacy ids by current id, if known; an imported one takes precedence, then the oldest."""
    rows = await _load_id_pairs(store, owner, _BY_CURRENT, current)
    return {current_id: legacy_id for legacy_id, current_id in rows}


async def _load_id_pairs(
    store: Store, owner: Tenant, statements: _IdPairStatements, wanted: Iterable[str]
) -> Sequence[Any]:
    """Loads rows of legacy and current id; imported ones come last, newer ones first."""
    if not (names := tuple(sorted(set(wanted)))):
        return ()
    statement, values = statements.select_some, {**owner._asdict(), "names": names}
    if len(names) == 1:
        statement, values = statements.select_one, {**owner._asdict(), "name": names[0]}
    rows = store.database.fetch_now(statement, values) if len(names) <= FEW else None
    return await store.fetch(statement, values) if rows is None else rows


_IS_TENANT = and_(*(legacy_ids.c[name] == bindparam(name) for name in ("merchant", "environment")))


def _build_id_pairs_query(*conditions: ColumnElement[bool]) -> Select[Any]:
    pairs = select(legacy_ids.c.legacy_id, legacy_ids.c.current_id).where(_IS_TENANT, *conditions)
    return pairs.order_by(legacy_ids.c.imported, legacy_ids.c.created_at.desc())


class _IdPairStatements:
    def __init__(self, column: ColumnElement[str]) -> None:
        # For a list of values, SQLite builds a table each time.
        self.select_one = Statement(_build_id_pairs_query(column == bindparam("name")))
        self.select_some = Statement(_build_id_pairs_query(AnyOf(column, "names")))


_BY_LEGACY = _IdPairStatements(legacy_ids.c.legacy_id)
_BY_CURRENT = _IdPairStatements(legacy_ids.c.current_id)
_IMPORTED = Statement(
    _build_id_pairs_query(AnyOf(legacy_ids.c.current_id, "names"), legacy_ids.c.imported)
)

_CREATED = Statement(
    # The ids of objects that requests created at the current service.
    select(operation_objects.c.object_id)
    .join(
        upstream_writes,
        and_(
            upstream_writes.c.operation_id == operation_objects.c.operation_id,
            upstream_writes.c.object_id == operation_objects.c.object_id,
        ),
    )
    .join(operations, operations.c.id == operation_objects.c.operation_id)
    .where(
        *(operation_objects.c[name] == bindparam(name) for name in ("merchant", "environment")),
        AnyOf(operation_objects.c.object_id, "names"),
        ~operations.c.operation.startswith(FORWARDED_PREFIX),
    )
)

_INSERT = build_insert_if_absent_statement(
    legacy_ids,
    ("merchant", "environment", "legacy_id", "current_id", "imported", "created_at"),
    legacy_ids.c.legacy_id,
)


def _build_operation_object_copy_insert(kind: ModuleType) -> Any:
    its = operation_objects.c
    by_both = select(
        its.merchant,
        its.environment,
        bindparam("current_id", type_=its.object_id.type),
        its.operation_id,
    ).where(
        *(its[name] == bindparam(name) for name in ("merchant", "environment")),
        its.object_id == bindparam("legacy_id"),
    )
    names = ["merchant", "environment", "object_id", "operation_id"]
    return kind.insert(operation_objects).from_select(names, by_both).on_conflict_do_nothing()


_COPY_OBJECTS = Statement(_build_operation_object_copy_insert)
"""Lets operations that name an object by its legacy id name it by its current id too, so that a
write in doubt at the legacy service blocks requests with either id."""


async def save_legacy_ids(
    store: Store, owner: Tenant, names: Mapping[str, str], *, imported: bool = False
) -> None:
    """Saves current ids by legacy id, all or none; raises IdCollisionError."""
    now = store.clock()
    if names:
        await store.write(lambda tx: insert_legacy_ids(tx, owner, names, now, imported=imported))


async def insert_legacy_ids(
    tx: Transaction,
    owner: Tenant,
    names: Mapping[str, str],
    now: datetime,
    *,
    imported: bool = False,
) -> None:
    """Like ``save_legacy_ids``, as part of a transaction."""
    common = {**owner._asdict(), "created_at": now}
    created: set[str] = set()
    if imported:
        values = {**owner._asdict(), "names": sorted(names.values())}
        created = {id_ for (id_,) in await tx.fetch(_CREATED, values)}
    # Always in the same order: two transactions that insert the same ids must not deadlock.
    rows = [
        {
            **common,
            "legacy_id": name,
            "current_id": names[name],
            # Clients know a created object by its alias, which answers go on to show.
            "imported": imported and names[name] not in created,
        }
        for name in sorted(names)
    ]
    for start in range(0, len(rows), MAX_ROWS_PER_STATEMENT):
        slice_rows = rows[start : start + MAX_ROWS_PER_STATEMENT]
        inserted = await tx.fetch(_INSERT, *slice_rows)
        existing = {row["legacy_id"] for row in slice_rows} - {name for (name,) in inserted}
        values = {**owner._asdict(), "names": sorted(existing)}
        for name, current_id in await tx.fetch(_BY_LEGACY.select_some, values) if existing else ():
            # The same pair again is no collision: a resumed flow saves its ids once more.
            if current_id != names[name]:
                raise IdCollisionError(name)
        if imported:
            legacy_by_current = {row["current_id"]: row["legacy_id"] for row in slice_rows}
            values = {**owner._asdict(), "names": sorted(legacy_by_current)}
            for another, current_id in await tx.fetch(_IMPORTED, values):
                if another != legacy_by_current[current_id]:
                    raise IdCollisionError(legacy_by_current[current_id], another)
            # A request that names another object by the service's id would be about this one.
            values = {**owner._asdict(), "names": sorted(legacy_by_current.values())}
            known_ids = {id_ for _, id_ in await tx.fetch(_BY_CURRENT.select_some, values)}
            # A short id of the service's own has no alias.
            known_ids |= {id_ for (id_,) in await tx.fetch(_CREATED, values)}
            for current_id in sorted(known_ids):
                if names.get(current_id) != current_id:
                    raise IdCollisionError(current_id)
            await tx.execute(_COPY_OBJECTS, *slice_rows)
