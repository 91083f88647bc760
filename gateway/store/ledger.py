"""What the gateway remembers of objects, because the current interface has no place for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import simplejson
from sqlalchemy import ColumnElement, and_, delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.crypto import Place
from gateway.store.tables import ids, learned, remembered
from mappings.grammar import Conflict, Record

if TYPE_CHECKING:
    from sqlalchemy import Table

    from gateway.store.store import Store


SEALED = frozenset({"batch", "payments"})
"""Kinds whose facts are encrypted: descriptions and memos are written by people, about people."""


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
        self._writing: set[asyncio.Future[None]] = set()

    async def recall(self, owner: Owner, kind: str, id: str) -> dict[str, Any]:  # noqa: A002 - the documents' word
        """An object's facts; empty where there are none."""
        async with self._store.read() as connection:
            return await self._facts(connection, _is(owner, kind, id), owner, kind)

    async def recall_all(self, owner: Owner, kind: str) -> dict[str, dict[str, Any]]:
        """The facts of every object of a kind that has any, by id."""
        table = remembered.c
        those = select(table.id, table.facts).where(
            table.merchant == owner.merchant,
            table.environment == owner.environment,
            table.kind == kind,
        )
        async with self._store.read() as connection:
            rows = await connection.execute(those)
            return {row.id: self._opened(owner, kind, row.facts) for row in rows}

    async def legacy_ids(self, owner: Owner) -> dict[str, str]:
        """Every id that clients know by another name: current id to legacy id."""
        those = select(ids).where(
            ids.c.merchant == owner.merchant, ids.c.environment == owner.environment
        )
        async with self._store.read() as connection:
            rows = await connection.execute(those.order_by(ids.c.imported))
            return {row.current_id: row.legacy_id for row in rows}

    async def record(
        self,
        owner: Owner,
        kind: str,
        id: str,  # noqa: A002
        facts: Mapping[str, Any],
        find: Mapping[str, Any] | None = None,
    ) -> None:
        """Merges facts into an object's; None forgets a fact, and the object with its last one.

        A fact is replaced as a whole: what is inside of it is not merged. Raises Conflict where
        the facts are not those to ``find``, of which None is one that there is not.
        """
        await self.record_all(owner, [Record(kind, id, facts, find or {})])

    async def record_all(self, owner: Owner, records: Sequence[Record]) -> None:
        """Several objects' facts, all of them or none."""
        # Whoever asks may be cancelled half-way; a transaction left open would lock everybody out.
        writing = asyncio.ensure_future(self._record_all(owner, records))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        await asyncio.shield(writing)

    async def _record_all(self, owner: Owner, records: Sequence[Record]) -> None:
        async with self._store.write() as connection:
            for record in sorted(records, key=lambda one: (one.kind, one.id)):
                await self._merge(connection, owner, record)

    async def _merge(self, connection: AsyncConnection, owner: Owner, record: Record) -> None:
        row = {**owner._asdict(), "kind": record.kind, "id": record.id}
        # A row's own lock would not do: two may be about to make the same one.
        await self._store.one_at_a_time(connection, _dumps(["remembered", *row.values()]))
        where = _is(owner, record.kind, record.id)
        facts = await self._facts(connection, where, owner, record.kind)
        if any(facts.get(name) != fact for name, fact in record.find.items()):
            raise Conflict(record.kind)
        kept = {name: fact for name, fact in {**facts, **record.facts}.items() if fact is not None}
        if not kept:
            await connection.execute(delete(remembered).where(where))
            return
        values = {
            "facts": self._sealed(owner, record.kind, kept),
            "updated_at": self._store.clock(),
        }
        await _put(connection, remembered, row, values)

    async def _facts(
        self, connection: AsyncConnection, where: ColumnElement[bool], owner: Owner, kind: str
    ) -> dict[str, Any]:
        facts = await connection.scalar(select(remembered.c.facts).where(where))
        return self._opened(owner, kind, facts) if facts else {}

    def _sealed(self, owner: Owner, kind: str, facts: Mapping[str, Any]) -> str:
        text = _dumps(facts)
        return self._store.encryption.seal(text, _place(owner, kind)) if kind in SEALED else text

    def _opened(self, owner: Owner, kind: str, text: str) -> dict[str, Any]:
        if kind in SEALED:
            text = self._store.encryption.unseal(text, _place(owner, kind))
        facts: dict[str, Any] = _loads(text)
        return facts

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


def _place(owner: Owner, kind: str) -> Place:
    return Place("remembered", owner.merchant, owner.environment, f"facts of a {kind}")


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
