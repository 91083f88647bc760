"""The ids that legacy clients know objects by, of one merchant and environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, select

from gateway.storage.statements import (
    AT_ONCE,
    FEW,
    Listed,
    Rows,
    Statement,
    Steps,
    Transaction,
    put_new,
)
from gateway.storage.tables import ids, journal_subjects

if TYPE_CHECKING:
    from gateway.storage.store import Store
    from gateway.storage.tenants import Tenant


class IdCollisionError(Exception):
    """A legacy id that stands for another object already, and is never served for this one; or one
    of an object that has ``another`` by an import: which of the two answers gave would be chance.
    """

    def __init__(self, legacy_id: str, another: str | None = None) -> None:
        why = f"is of what was imported as {another}" if another else "stands for another object"
        super().__init__(f"{legacy_id} {why} already")
        self.legacy_id = legacy_id


async def load_current_ids(
    store: Store, owner: Tenant, legacy_ids: Iterable[str]
) -> dict[str, str]:
    """Legacy id to current id, for those that are known."""
    rows = await store.looked_up(_build_lookup(owner, _BY_LEGACY, legacy_ids))
    return dict(rows)


async def load_legacy_ids(store: Store, owner: Tenant, current: Iterable[str]) -> dict[str, str]:
    """Current id to legacy id, for those that are known; an imported one before a stand-in."""
    rows = await store.looked_up(_build_lookup(owner, _BY_CURRENT, current))
    return {current_id: legacy_id for legacy_id, current_id in rows}


def _build_lookup(owner: Tenant, by: Listed, those: Iterable[str]) -> Transaction[Rows]:
    """Rows of a legacy and a current id, imported ones last."""
    wanted = set(those)
    return Transaction(lambda: by.rows(wanted, owner._asdict()), is_brief=len(wanted) <= FEW)


_IS_TENANT = and_(*(ids.c[name] == bindparam(name) for name in ("merchant", "environment")))


def _build_query(among: ColumnElement[bool]) -> Select[Any]:
    return (
        select(ids.c.legacy_id, ids.c.current_id).where(_IS_TENANT, among).order_by(ids.c.imported)
    )


def _build_imported_query(among: ColumnElement[bool]) -> Select[Any]:
    return _build_query(and_(among, ids.c.imported))


_BY_LEGACY, _BY_CURRENT = (
    Listed(ids.c.legacy_id, _build_query),
    Listed(ids.c.current_id, _build_query),
)
_IMPORTED = Listed(ids.c.current_id, _build_imported_query)

_INSERT = put_new(
    ids,
    ("merchant", "environment", "legacy_id", "current_id", "imported", "created_at"),
    ids.c.legacy_id,
)


def _build_object_copy(kind: ModuleType) -> Any:
    its = journal_subjects.c
    by_both = select(
        its.merchant,
        its.environment,
        bindparam("current_id", type_=its.object.type),
        its.undertaking,
    ).where(
        *(its[name] == bindparam(name) for name in ("merchant", "environment")),
        its.object == bindparam("legacy_id"),
    )
    names = ["merchant", "environment", "object", "undertaking"]
    return kind.insert(journal_subjects).from_select(names, by_both).on_conflict_do_nothing()


_COPY_OBJECTS = Statement(_build_object_copy)
"""What named an object by its legacy id before that was known names it by the current one as well:
a write that was lost at the legacy service is minded by whoever names it so."""


async def save_legacy_ids(
    store: Store, owner: Tenant, names: Mapping[str, str], *, imported: bool = False
) -> None:
    """Keeps legacy id to current id; raises Collision, and then keeps none."""
    now = store.clock()
    work = Transaction(
        lambda: insert_legacy_ids(owner, names, now, imported=imported), is_brief=len(names) <= FEW
    )
    if names:
        await store.carried_out(work)


def insert_legacy_ids(
    owner: Tenant, names: Mapping[str, str], now: datetime, *, imported: bool = False
) -> Steps[None]:
    """The same, as a part of a work."""
    common = {**owner._asdict(), "imported": imported, "created_at": now}
    # In one order everywhere: two that keep the same must not wait for each other.
    rows = [{**common, "legacy_id": name, "current_id": names[name]} for name in sorted(names)]
    for start in range(0, len(rows), AT_ONCE):
        some = rows[start : start + AT_ONCE]
        new = yield _INSERT.of(*some)
        there = {row["legacy_id"] for row in some} - {name for (name,) in new}
        for name, current_id in (yield from _BY_LEGACY.rows(there, owner._asdict())):
            if current_id != names[name]:
                raise IdCollisionError(name)
        if imported:
            its = {row["current_id"]: row["legacy_id"] for row in some}
            for another, current_id in (yield from _IMPORTED.rows(its, owner._asdict())):
                if another != its[current_id]:
                    raise IdCollisionError(its[current_id], another)
            yield _COPY_OBJECTS.of(*some)


async def count_ids(store: Store, owner: Tenant) -> int:
    """How many objects clients know by an id that is not the service's."""
    those = select(func.count(ids.c.current_id.distinct())).where(
        _is_of_tenant(owner), ids.c.current_id != ids.c.legacy_id
    )
    async with store.read() as connection:
        return int((await connection.execute(those)).scalar_one())


def _is_of_tenant(owner: Tenant) -> ColumnElement[bool]:
    return and_(ids.c.merchant == owner.merchant, ids.c.environment == owner.environment)
