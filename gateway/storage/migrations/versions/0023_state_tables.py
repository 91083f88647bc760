"""Stores the state of objects in a table for each kind, with a column for each fact."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import simplejson
import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"

ROWS_AT_A_TIME = 1000

LOCK_PHASES = "'editing', 'making', 'quoting', 'starting', 'deleting'"
TEXT, NUMBER, JSON, FLAG, BOOLEAN = "text", "number", "json", "flag", "boolean"
COLUMNS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "alias": {
        "id": ("first_id", TEXT),
        "batch": ("batch_id", TEXT),
        "createdAt": ("created_at", TEXT),
        "started": ("started_at", TEXT),
        "abandoned": ("is_superseded", FLAG),
        "gone": ("is_removed", FLAG),
    },
    "recipient": {
        "status": ("status", TEXT),
        "deleted": ("is_deleted", FLAG),
        "still_there": ("is_still_there", FLAG),
        "autoswitch": ("autoswitch", JSON),
        "holdup": ("holdup", JSON),
        "imported": ("imported", JSON),
    },
    "payout turn": {"holder": ("operation_id", TEXT)},
    "begun": {"at": ("service", TEXT), "by": ("operation_id", TEXT)},
    "cutover": {"at": ("imported_at", TEXT)},
    "complete": {"payments": ("payment_count", NUMBER), "newest": ("newest_created_at", TEXT)},
    "country": {"account_number": ("needs_account_number", FLAG)},
    "signed": {"last": ("last_name", TEXT), "lost": ("lost_at", TEXT)},
    "signed adds": {},
    "batch": {
        "phase": ("phase", TEXT),
        "since": ("since", TEXT),
        "version": ("version", NUMBER),
        "upstream": ("upstream_id", TEXT),
        "is_new": ("is_new", FLAG),
        "elsewhere": ("is_external", FLAG),
        "imported": ("imported_version", NUMBER),
        "started": ("started_at", TEXT),
        "currency": ("currency", TEXT),
        "createdAt": ("created_at", TEXT),
        "updatedAt": ("changed_at", TEXT),
        "completedAt": ("completed_at", TEXT),
        "abandoned": ("superseded_ids", JSON),
        "has_memos": ("has_memos", BOOLEAN),
        "together": ("deletion_request", TEXT),
    },
    "payments": {},
}
"""Column and type of each fact, by kind."""

TABLES = {
    "alias": "id_redirects",
    "recipient": "recipient_states",
    "payout turn": "recipient_locks",
    "begun": "batch_services",
    "cutover": "cutover_imports",
    "complete": "complete_batches",
    "country": "account_countries",
    "signed": "signed_changes",
    "signed adds": "signed_adds",
    "batch": "batches",
    "payments": "batch_payments",
}
OTHERS = {
    "signed": "started_at_by_name",
    "signed adds": "payments",
    "batch": "sealed",
    "payments": "sealed",
}
"""The column of facts without a column of their own."""

ENCRYPTED_KINDS = ("batch", "payments")
CHECKS = {
    "begun": {"service": "service = 'legacy'"},
    "batch": {
        "phase": f"phase IN ('draft', 'sent', 'deleted', {LOCK_PHASES})",
        "since": f"since IS NULL OR phase IN ({LOCK_PHASES})",
        "draft": "phase <> 'draft' OR upstream_id IS NULL",
    },
}


def convert_text(fact: Any) -> str:
    return str(fact).replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    TEXT: convert_text,
    NUMBER: int,
    JSON: lambda fact: simplejson.dumps(fact, use_decimal=True, separators=(",", ":")),
    FLAG: bool,
    BOOLEAN: bool,
}


old_states = sa.table(
    "object_states",
    sa.column("merchant", sa.Text),
    sa.column("environment", sa.Text),
    sa.column("kind", sa.Text),
    sa.column("id", sa.Text),
    sa.column("facts", sa.Text),
    sa.column("updated_at", sa.DateTime(timezone=True)),
)


def upgrade() -> None:
    for kind, name in TABLES.items():
        table = op.create_table(name, *_build_columns(kind, name))
        if kind in ENCRYPTED_KINDS:
            # The columns are filled by whoever has the key; until then all facts are in ``sealed``.
            op.execute(
                f"INSERT INTO {name} (merchant, environment, id, sealed, updated_at) "  # noqa: S608 - names
                "SELECT merchant, environment, id, facts, updated_at FROM object_states "
                f"WHERE kind = '{kind}'"
            )
            continue
        for rows in _iterate_rows(kind):
            op.get_bind().execute(table.insert(), rows)
    op.drop_table("object_states")


def _build_columns(kind: str, table: str) -> Iterator[Any]:
    for name in ("merchant", "environment", "id"):
        yield sa.Column(name, sa.Text, nullable=False)
    types = {NUMBER: sa.Integer, BOOLEAN: sa.Boolean}
    for name, type_ in COLUMNS[kind].values():
        if type_ == FLAG:
            yield sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())
        else:
            yield sa.Column(name, types.get(type_, sa.Text))
    if kind in OTHERS:
        yield sa.Column(OTHERS[kind], sa.Text)
    yield sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False)
    yield sa.PrimaryKeyConstraint("merchant", "environment", "id", name=f"pk_{table}")
    for name, condition in CHECKS.get(kind, {}).items():
        yield sa.CheckConstraint(condition, name=name)


def _iterate_rows(kind: str) -> Iterator[list[dict[str, Any]]]:
    """Iterates over rows of the new table; in Python, because services may send any text."""
    query, key = sa.select(old_states).where(old_states.c.kind == kind), ("", "", "")
    names = (old_states.c.merchant, old_states.c.environment, old_states.c.id)
    query = query.order_by(*names).limit(ROWS_AT_A_TIME)
    while rows := op.get_bind().execute(query.where(sa.tuple_(*names) > sa.tuple_(*key))).all():
        yield [_build_row(kind, row) for row in rows]
        key = (rows[-1].merchant, rows[-1].environment, rows[-1].id)


def _build_row(kind: str, row: Any) -> dict[str, Any]:
    facts = simplejson.loads(row.facts, use_decimal=True)
    columns = {
        column: CONVERSIONS[type_](facts[fact]) if facts.get(fact) is not None else None
        for fact, (column, type_) in COLUMNS[kind].items()
    }
    flags = {name: bool(columns[name]) for name, type_ in COLUMNS[kind].values() if type_ == FLAG}
    others = {OTHERS[kind]: row.facts} if kind in OTHERS else {}
    key = {"merchant": row.merchant, "environment": row.environment, "id": row.id}
    return {**key, **columns, **flags, **others, "updated_at": row.updated_at}
