"""The ids that legacy clients know objects by, of one merchant and environment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.dialects import postgresql, sqlite

from gateway.store.tables import ids

if TYPE_CHECKING:
    from gateway.store.ledger import Owner
    from gateway.store.store import Store

_AT_ONCE = 500
"""Ids asked for in one statement; SQLite takes no more than some thousand parameters."""


class Collision(Exception):
    """A legacy id that stands for another object already; it is never served for this one."""

    def __init__(self, legacy_id: str) -> None:
        super().__init__(f"{legacy_id} stands for another object already")
        self.legacy_id = legacy_id


async def current_ids(store: Store, owner: Owner, legacy_ids: Iterable[str]) -> dict[str, str]:
    """Legacy id to current id, for those that are known."""
    found: dict[str, str] = {}
    async with store.read() as connection:
        for some in _slices(sorted(legacy_ids)):
            those = select(ids).where(_of(owner), ids.c.legacy_id.in_(some))
            rows = await connection.execute(those)
            found |= {row.legacy_id: row.current_id for row in rows}
    return found


async def legacy_ids(store: Store, owner: Owner, current: Iterable[str]) -> dict[str, str]:
    """Current id to legacy id, for those that are known; an imported one before a stand-in."""
    found: dict[str, str] = {}
    async with store.read() as connection:
        for some in _slices(sorted(current)):
            those = (
                select(ids).where(_of(owner), ids.c.current_id.in_(some)).order_by(ids.c.imported)
            )
            rows = await connection.execute(those)
            found |= {row.current_id: row.legacy_id for row in rows}
    return found


async def keep(
    store: Store, owner: Owner, names: Mapping[str, str], *, imported: bool = False
) -> None:
    """Keeps legacy id to current id; raises Collision, and then keeps none."""
    common = {
        "merchant": owner.merchant,
        "environment": owner.environment,
        "imported": imported,
        "created_at": store.clock(),
    }
    async with store.write() as connection:
        insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        for some in _slices(sorted(names)):
            rows = [{**common, "legacy_id": name, "current_id": names[name]} for name in some]
            await connection.execute(insert(ids).on_conflict_do_nothing(), rows)
            those = select(ids).where(_of(owner), ids.c.legacy_id.in_(some))
            for row in await connection.execute(those):
                if row.current_id != names[row.legacy_id]:
                    raise Collision(row.legacy_id)


def _of(owner: Owner) -> ColumnElement[bool]:
    return and_(ids.c.merchant == owner.merchant, ids.c.environment == owner.environment)


def _slices(those: Sequence[str]) -> Iterator[Sequence[str]]:
    return (those[start : start + _AT_ONCE] for start in range(0, len(those), _AT_ONCE))
