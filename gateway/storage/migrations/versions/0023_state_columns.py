"""Moves facts of redirects, recipients and complete batches from JSON to columns."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

TABLES = {
    "alias": (
        "id_redirects",
        (
            sa.Column("first_id", sa.Text),
            sa.Column("first_created_at", sa.Text),
            sa.Column("batch_id", sa.Text),
            sa.Column("is_deleted", sa.Boolean),
            sa.Column("is_superseded", sa.Boolean),
            sa.Column("started_at", sa.Text),
        ),
        ("id", "createdAt", "batch", "gone", "abandoned", "started"),
    ),
    "recipient": (
        "recipient_states",
        (
            sa.Column("status", sa.Text),
            sa.Column("is_deleted", sa.Boolean),
            sa.Column("is_deletion_pending", sa.Boolean),
            sa.Column("autoswitch", sa.Text),
            sa.Column("holdup", sa.Text),
        ),
        ("status", "deleted", "still_there", "autoswitch", "holdup"),
    ),
    "complete": (
        "complete_batches",
        (
            sa.Column("payment_count", sa.Integer, nullable=False),
            sa.Column("newest_payment_at", sa.Text, nullable=False),
        ),
        ("payments", "newest"),
    ),
}
"""Table, columns and their facts, by kind."""


def upgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    op.drop_index("ix_object_states_abandoned", "object_states")
    for kind, (table, columns, facts) in TABLES.items():
        op.create_table(
            table,
            *(sa.Column(name, sa.Text, nullable=False) for name in ("merchant", "environment")),
            sa.Column("id", sa.Text, nullable=False),
            *columns,
            sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
            sa.PrimaryKeyConstraint("merchant", "environment", "id", name=f"pk_{table}"),
        )
        values = [
            f"json_extract(facts, '$.{fact}')"
            if is_sqlite
            else f"CAST(CAST(facts AS json) ->> '{fact}' AS {column.type})"
            for column, fact in zip(columns, facts, strict=True)
        ]
        names = ", ".join(column.name for column in columns)
        op.execute(
            f"INSERT INTO {table} (merchant, environment, id, {names}, updated_at) "  # noqa: S608 - names of columns
            f"SELECT merchant, environment, id, {', '.join(values)}, updated_at "
            f"FROM object_states WHERE kind = '{kind}'"
        )
        op.execute(f"DELETE FROM object_states WHERE kind = '{kind}'")  # noqa: S608 - as above
    op.create_index(
        "ix_id_redirects_superseded",
        "id_redirects",
        ["merchant", "environment"],
        sqlite_where=sa.text("is_superseded"),
        postgresql_where=sa.text("is_superseded"),
    )
