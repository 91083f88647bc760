"""What the gateway remembers of objects, because the current interface has no place for it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import simplejson
from sqlalchemy import ColumnElement, and_, delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.tables import learned, remembered

if TYPE_CHECKING:
    from sqlalchemy import Table

    from gateway.store.store import Store


class Owner(NamedTuple):
    """Whose an object is: facts of one owner are never seen by another."""

    merchant: str
    environment: str

    def __str__(self) -> str:
        return f"{self.merchant} {self.environment}"


class Ledger:
    """Facts of objects, by owner, kind and id; every method raises StoreUnavailable.

    Values are JSON; decimals come back as decimals, never as floats.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def recall(self, owner: Owner, kind: str, id: str) -> dict[str, Any]:  # noqa: A002 - the documents' word
        """An object's facts; empty where there are none."""
        async with self._store.read() as connection:
            return await _facts(connection, _is(owner, kind, id))

    async def recall_all(self, owner: Owner, kind: str) -> dict[str, dict[str, Any]]:
        """The facts of every object of a kind that has any, by id."""
        table = remembered.c
        those = select(table.id, table.facts).where(
            table.merchant == owner.merchant,
            table.environment == owner.environment,
            table.kind == kind,
        )
        async with self._store.read() as connection:
            return {row.id: _loads(row.facts) for row in await connection.execute(those)}

    async def record(self, owner: Owner, kind: str, id: str, facts: Mapping[str, Any]) -> None:  # noqa: A002
        """Merges facts into an object's; None forgets a fact, and the object with its last one.

        A fact is replaced as a whole: what is inside of it is not merged.
        """
        row = {"merchant": owner.merchant, "environment": owner.environment, "kind": kind, "id": id}
        async with self._store.write() as connection:
            # A row's own lock would not do: two may be about to make the same one.
            await self._store.one_at_a_time(connection, _dumps(["remembered", *row.values()]))
            merged = {**await _facts(connection, _is(owner, kind, id)), **facts}
            kept = {name: fact for name, fact in merged.items() if fact is not None}
            if not kept:
                await connection.execute(delete(remembered).where(_is(owner, kind, id)))
                return
            now = self._store.clock()
            await _put(connection, remembered, row, {"facts": _dumps(kept), "updated_at": now})

    async def learned(self, environment: str) -> dict[str, tuple[Any, datetime]]:
        """What was found out about an environment's service, and when, by name."""
        those = select(learned).where(learned.c.environment == environment)
        async with self._store.read() as connection:
            rows = await connection.execute(those)
            return {row.name: (_loads(row.value), row.learned_at) for row in rows}

    async def learn(self, environment: str, name: str, value: Any) -> None:
        """Keeps what was found out, in place of what was known by that name."""
        row = {"environment": environment, "name": name}
        async with self._store.write() as connection:
            now = self._store.clock()
            await _put(connection, learned, row, {"value": _dumps(value), "learned_at": now})


def _is(owner: Owner, kind: str, object_id: str) -> ColumnElement[bool]:
    table = remembered.c
    return and_(
        table.merchant == owner.merchant,
        table.environment == owner.environment,
        table.kind == kind,
        table.id == object_id,
    )


async def _facts(connection: AsyncConnection, where: ColumnElement[bool]) -> dict[str, Any]:
    facts = await connection.scalar(select(remembered.c.facts).where(where))
    return _loads(facts) if facts else {}


async def _put(
    connection: AsyncConnection, table: Table, row: dict[str, Any], values: dict[str, Any]
) -> None:
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    put = insert(table).values(**row, **values)
    await connection.execute(put.on_conflict_do_update(index_elements=list(row), set_=values))


def _dumps(value: Any) -> str:
    return simplejson.dumps(value, use_decimal=True, allow_nan=False, separators=(",", ":"))


def _loads(text: str) -> Any:
    return simplejson.loads(text, use_decimal=True)
