"""What the gateway remembers of objects, because the current interface has no place for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, NamedTuple

import simplejson
from sqlalchemy import and_, bindparam, delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway import texts, wire
from gateway.aside import aside
from gateway.store.crypto import Place
from gateway.store.statements import (
    FEW,
    Asked,
    Listed,
    Statement,
    Steps,
    Work,
    changed,
    put,
    rows_of,
)
from gateway.store.tables import ids, learned, remembered
from mappings.grammar import Conflict, Record

if TYPE_CHECKING:
    from sqlalchemy import Table

    from gateway.store.store import Store


LONG = 16 * 1024
"""Characters from which facts are opened aside."""

SEALED = frozenset({"batch", "payments"})
"""Kinds whose facts are encrypted: descriptions and memos are written by people, about people."""


_KIND = and_(
    *(remembered.c[name] == bindparam(name) for name in ("merchant", "environment", "kind"))
)
_THIS = and_(_KIND, remembered.c.id == bindparam("id"))

_FACTS = Statement(lambda _kind: select(remembered.c.facts).where(_THIS))
_FACTS_OF = Statement(
    lambda _kind: select(remembered.c.kind, remembered.c.id, remembered.c.facts).where(_THIS)
)
_ALL_FACTS = Statement(lambda _kind: select(remembered.c.id, remembered.c.facts).where(_KIND))
_SOME_FACTS = Listed(
    remembered.c.id,
    lambda among: select(remembered.c.id, remembered.c.facts).where(_KIND, among),
)
_FORGET = Statement(lambda _kind: delete(remembered).where(_THIS))
_PUT = put(remembered, ("merchant", "environment", "kind", "id"), ("facts", "updated_at"))


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
        row = {**owner._asdict(), "kind": kind, "id": id}
        rows = await self._store.looked_up(Work(lambda: rows_of(_FACTS, row), is_brief=True))
        if not rows:
            return {}
        (text,) = rows[0]
        if len(text) > LONG:
            return await aside(self._opened, owner, kind, text)
        return self._opened(owner, kind, text)

    async def is_anyones(self, environment: str, kind: str, id: str, fact: str) -> bool:  # noqa: A002
        """Whether any merchant of an environment has an object of this id with this fact.

        For whoever is not known here, and of a kind that is not sealed.
        """
        table = remembered.c
        those = select(table.facts).where(
            table.environment == environment, table.kind == kind, table.id == id
        )
        async with self._store.read() as connection:
            return any(_loads(facts).get(fact) for facts in await connection.scalars(those))

    async def recall_all(
        self, owner: Owner, kind: str, among: Sequence[str] | None = None
    ) -> dict[str, dict[str, Any]]:
        """The facts of every object of a kind that has any, by id; or of those among some."""
        those = {**owner._asdict(), "kind": kind}
        if among is None:
            work = Work(lambda: rows_of(_ALL_FACTS, those))
        elif wanted := set(among):
            work = Work(lambda: _SOME_FACTS.rows(wanted, those), is_brief=len(wanted) <= FEW)
        else:
            return {}
        rows = await self._store.looked_up(work)
        return {id_: self._opened(owner, kind, facts) for id_, facts in rows}

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
        locks = self.locks(owner, records)
        is_long = are_long(records)
        brief = not is_long and are_few(records)
        work = Work(lambda: self.merged(owner, records), locks, brief, is_long)
        await self._store.carried_out(work)

    def locks(self, owner: Owner, records: Sequence[Record]) -> frozenset[str]:
        """What is held while they are merged. A row's own would not do: two may be about to make it."""
        return frozenset(_lock(*owner, one.kind, one.id) for one in records)

    def merged(self, owner: Owner, records: Sequence[Record]) -> Steps[None]:
        """The same, as a part of a work that has the ``locks``."""
        yield from changed((yield from self.merging(owner, records)))

    def merging(self, owner: Owner, records: Sequence[Record]) -> Steps[list[Asked]]:
        """What has to be changed to that end; raises Conflict."""
        rows = {
            (one.kind, one.id): {**owner._asdict(), "kind": one.kind, "id": one.id}
            for one in records
        }
        if not rows:
            return []
        found = {
            (kind, id_): self._opened(owner, kind, facts)
            for kind, id_, facts in (yield _FACTS_OF.of(*rows.values()))
        }
        for record in records:
            facts = found.get((record.kind, record.id), {})
            if any(facts.get(name) != fact for name, fact in record.find.items()):
                raise Conflict(record.kind)
            both = {**facts, **record.facts}
            kept = {name: fact for name, fact in both.items() if fact is not None}
            found[record.kind, record.id] = kept
        now = self._store.clock()
        return [
            _PUT.of({**row, "facts": self._sealed(owner, kind, kept), "updated_at": now})
            if (kept := found[kind, id_])
            else _FORGET.of(row)
            for (kind, id_), row in rows.items()
        ]

    def _sealed(self, owner: Owner, kind: str, facts: Mapping[str, Any]) -> str:
        text = texts.of(facts) if wire.has_rows(facts) else wire.again(facts).decode()
        return self._store.encryption.seal(text, _place(owner, kind)) if kind in SEALED else text

    def _opened(self, owner: Owner, kind: str, text: str) -> dict[str, Any]:
        if kind in SEALED:
            text = self._store.encryption.unseal(text, _place(owner, kind))
        facts: dict[str, Any] = texts.value(text) if texts.is_packed(text) else _loads(text)
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
            await put_row(connection, learned, row, {"value": _dumps(value), "learned_at": now})


def are_few(records: Sequence[Record]) -> bool:
    """Whether to merge them is a brief work; a batch may have any number of payments."""
    lists = (fact for one in records for fact in one.facts.values() if isinstance(fact, list))
    return len(records) + sum(map(len, lists)) <= FEW


def are_long(records: Sequence[Record]) -> bool:
    """Whether it takes long to seal them."""
    return any(wire.has_rows(record.facts) for record in records)


def _place(owner: Owner, kind: str) -> Place:
    return Place("remembered", owner.merchant, owner.environment, f"facts of a {kind}")


async def put_row(
    connection: AsyncConnection, table: Table, row: dict[str, Any], values: dict[str, Any]
) -> None:
    """Inserts a row by its key, or gives the one that there is these values."""
    new = _insert(connection, table).values(**row, **values)
    await connection.execute(new.on_conflict_do_update(index_elements=list(row), set_=values))


def _insert(connection: AsyncConnection, table: Table) -> Any:
    kind = postgresql if connection.dialect.name == "postgresql" else sqlite
    return kind.insert(table)


def _lock(*named: str) -> str:
    """A JSON array, because parts that are merely joined can be cut apart elsewhere."""
    return f'["remembered",{",".join(map(encode_basestring_ascii, named))}]'


_DECODER = simplejson.JSONDecoder(parse_float=Decimal)
"""Made once: the library's own function makes one each time."""


def _dumps(value: Any) -> str:
    return simplejson.dumps(value, use_decimal=True, allow_nan=False, separators=(",", ":"))


def _loads(text: str) -> Any:
    return _DECODER.decode(text)
