"""How the facts of each kind of object are stored: in columns, or as one JSON text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, bindparam, delete, select, text

from gateway.payloads import json_codec
from gateway.storage.database import FEW
from gateway.storage.sql import AnyOf, Parameters, Statement, build_upsert_statement
from gateway.storage.tables import (
    IS_SUPERSEDED,
    complete_batches,
    id_redirects,
    object_states,
    recipient_states,
)

_OWNER_COLUMNS = ("merchant", "environment")


def _match_columns(table: Table, *names: str) -> ColumnElement[bool]:
    return and_(*(table.c[name] == bindparam(name) for name in names))


@dataclass(frozen=True, slots=True, eq=False)
class StateTable:
    """A table of facts, with its statements, which take the columns of its primary key.

    Each statement that reads selects the id and then the columns of the facts.
    """

    table: Table
    columns_by_fact: Mapping[str, str]
    """Empty if the facts are JSON in the column ``facts``, and the kind is in the primary key."""
    find: Statement = field(init=False)
    find_all: Statement = field(init=False)
    find_first: Statement = field(init=False)
    find_some: Statement = field(init=False)
    upsert: Statement = field(init=False)
    delete: Statement = field(init=False)

    def __post_init__(self) -> None:
        table, columns = self.table, tuple(self.columns_by_fact.values()) or ("facts",)
        owner = _OWNER_COLUMNS if self.columns_by_fact else (*_OWNER_COLUMNS, "kind")
        is_owned, is_this = _match_columns(table, *owner), _match_columns(table, *owner, "id")

        def build_query(condition: ColumnElement[bool]) -> Select[Any]:
            return select(table.c.id, *(table.c[name] for name in columns)).where(condition)

        for name, statement in {
            "find": Statement(lambda _dialect: build_query(is_this)),
            "find_all": Statement(lambda _dialect: build_query(is_owned)),
            "find_first": Statement(lambda _dialect: build_query(is_owned).limit(FEW + 1)),
            "find_some": Statement(
                lambda _dialect: build_query(is_owned & AnyOf(table.c.id, "ids"))
            ),
            "upsert": build_upsert_statement(table, (*owner, "id"), (*columns, "updated_at")),
            "delete": Statement(lambda _dialect: delete(table).where(is_this)),
        }.items():
            object.__setattr__(self, name, statement)

    def build_facts(self, values: Sequence[Any]) -> dict[str, Any]:
        """Returns the facts in the columns of a row, without the id before them."""
        pairs = zip(self.columns_by_fact, values, strict=True)
        return {
            name: json_codec.loads_trusted(value) if name in _JSON_FACTS else value
            for name, value in pairs
            if value is not None
        }

    def build_columns(self, facts: Mapping[str, Any]) -> Parameters:
        """Returns the values of the columns; raises KeyError for a fact without a column."""
        if unknown_facts := facts.keys() - self.columns_by_fact.keys():
            raise KeyError(*unknown_facts)
        columns: dict[str, Any] = dict.fromkeys(self.columns_by_fact.values())
        for name, fact in facts.items():
            is_json = name in _JSON_FACTS
            columns[self.columns_by_fact[name]] = (
                json_codec.dumps_trusted(fact).decode() if is_json else fact
            )
        return columns


_JSON_FACTS = frozenset({"autoswitch", "holdup"})
"""Objects that a client sent, with exact decimals."""

_JSON_TABLE = StateTable(object_states, {})

_TABLES_BY_KIND = {
    "alias": StateTable(
        id_redirects,
        {
            "id": "first_id",
            "createdAt": "first_created_at",
            "batch": "batch_id",
            "gone": "is_deleted",
            "abandoned": "is_superseded",
            "started": "started_at",
        },
    ),
    "recipient": StateTable(
        recipient_states,
        {
            "status": "status",
            "deleted": "is_deleted",
            "still_there": "is_deletion_pending",
            "autoswitch": "autoswitch",
            "holdup": "holdup",
        },
    ),
    "complete": StateTable(
        complete_batches, {"payments": "payment_count", "newest": "newest_payment_at"}
    ),
}


STATE_TABLES = (object_states, *(each.table for each in _TABLES_BY_KIND.values()))
"""All tables of facts."""


def find_state_table(kind: str) -> StateTable:
    """Returns the table that holds the facts of a kind."""
    return _TABLES_BY_KIND.get(kind, _JSON_TABLE)


FIND_SUPERSEDED = Statement(
    lambda _dialect: select(
        id_redirects.c.id,
        *(id_redirects.c[name] for name in find_state_table("alias").columns_by_fact.values()),
    ).where(_match_columns(id_redirects, *_OWNER_COLUMNS), text(IS_SUPERSEDED))
)
