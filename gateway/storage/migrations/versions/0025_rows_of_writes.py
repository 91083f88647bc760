"""Stores the rows of a write in fewer pages: SQLite writes each page that a commit changes."""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

HAS_KEY = "idempotency IS NOT NULL"
IS_UNREAD_ANSWER = "response IS NOT NULL AND idempotency IS NULL AND state = 'answered'"
IS_OPEN = "state <> 'answered' AND state <> 'undone'"
WITHOUT_ROWID = (
    "operation_objects",
    "operation_steps",
    "upstream_writes",
    "recipient_states",
    "recipient_locks",
    "batch_services",
    "cutover_imports",
    "complete_batches",
    "account_countries",
    "signed_changes",
    "signed_adds",
)
"""Tables whose primary key is most of a row."""


def upgrade() -> None:
    # Operations of the first versions have none. Below the others, which must not change: a lower
    # maximum would mean that the database was restored.
    op.execute(
        "UPDATE operations SET number = numbered.place - 1 -"
        " (SELECT count(*) FROM operations WHERE number IS NULL)"
        " FROM (SELECT id, row_number() OVER (ORDER BY started_at, id) AS place"
        " FROM operations WHERE number IS NULL) AS numbered WHERE numbered.id = operations.id"
    )
    op.drop_index("ix_operations_number", "operations")
    op.drop_index("ix_operations_open", "operations")
    op.drop_index("ix_upstream_writes_sent", "upstream_writes")
    if op.get_bind().dialect.name == "sqlite":
        _copy_operations()
        for table in WITHOUT_ROWID:
            _copy_table(table, " WITHOUT ROWID")
        _copy_table("batches")
    else:
        key = sa.inspect(op.get_bind()).get_pk_constraint("operations")["name"]
        op.drop_constraint(str(key), "operations")
        op.drop_constraint("uq_journal_key_id_idempotency", "operations")
        op.create_primary_key("pk_operations", "operations", ["number"])
        op.create_unique_constraint("uq_operations_id", "operations", ["id"])
    is_open, has_key = sa.text(IS_OPEN), sa.text(HAS_KEY)
    op.create_index(
        "ix_operations_open",
        "operations",
        ["merchant", "environment"],
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
    op.create_index(
        "ix_operations_idempotency_key_id",
        "operations",
        ["idempotency", "key_id"],
        unique=True,
        sqlite_where=has_key,
        postgresql_where=has_key,
    )


def _copy_operations() -> None:
    op.rename_table("operations", "old_operations")
    op.create_table(
        "operations",
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("merchant", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("key_name", sa.Text, nullable=False),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("idempotency", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("is_client_disconnected", sa.Boolean, nullable=False),
        sa.Column("request", sa.Text),
        sa.Column("response", sa.Text),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("number", name="pk_operations"),
        sa.UniqueConstraint("id", name="uq_operations_id"),
    )
    columns = (
        "number, id, merchant, environment, key_id, key_name, operation, request_id, fingerprint,"
        " idempotency, state, reason, instance, fence, is_client_disconnected, request, response,"
        " started_at, ended_at"
    )
    op.execute(
        f"INSERT INTO operations ({columns}) SELECT {columns} FROM old_operations ORDER BY number"  # noqa: S608
    )
    op.drop_table("old_operations")
    for name, column, condition in (
        ("ix_operations_named", "started_at", HAS_KEY),
        ("ix_operations_named_requests", "fingerprint", HAS_KEY),
        ("ix_operations_answered", "fingerprint", IS_UNREAD_ANSWER),
    ):
        op.execute(f"CREATE INDEX {name} ON operations ({column}) WHERE {condition}")


def _copy_table(table: str, options: str = "") -> None:
    query = sa.text("SELECT sql FROM sqlite_master WHERE tbl_name = :table AND sql IS NOT NULL")
    statements = list(op.get_bind().scalars(query, {"table": table}))
    op.rename_table(table, f"old_{table}")
    indexes = [statement for statement in statements if not statement.startswith("CREATE TABLE")]
    (creation,) = (statement for statement in statements if statement not in indexes)
    # For a condition with IN, SQLite builds a table with each row that it inserts or updates.
    creation = re.sub(r"phase IN \(([^()]*)\)", _replace_in, creation)
    op.execute(sa.text(f"{creation}{options}".replace(":", r"\:")))
    op.execute(f"INSERT INTO {table} SELECT * FROM old_{table}")  # noqa: S608
    op.drop_table(f"old_{table}")
    for statement in indexes:
        op.execute(sa.text(statement.replace(":", r"\:")))


def _replace_in(condition: re.Match[str]) -> str:
    return " OR ".join(f"phase = {phase}" for phase in condition[1].split(", "))
