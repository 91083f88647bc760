"""The audit log, and a number for each operation, by which a restored database is detected."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

NUMBERS = "journal_numbers"


def upgrade() -> None:
    op.create_table(
        "acts",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("merchant", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("about", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_acts"),
    )
    op.create_index("ix_acts_at", "acts", ["at"])
    op.add_column("journal", sa.Column("number", sa.BigInteger))
    op.execute(
        "UPDATE journal SET number = numbered.number FROM ("
        "SELECT id, row_number() OVER (ORDER BY began_at, id) AS number FROM journal"
        ") AS numbered WHERE numbered.id = journal.id"
    )
    op.create_index("ix_journal_number", "journal", ["number"])
    is_sent = sa.text("state = 'sent'")
    op.create_index(
        "ix_writes_sent",
        "writes",
        ["merchant", "environment"],
        sqlite_where=is_sent,
        postgresql_where=is_sent,
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(sa.schema.CreateSequence(sa.Sequence(NUMBERS)))
        op.execute(
            f"SELECT setval('{NUMBERS}', (SELECT max(number) FROM journal)) "  # noqa: S608
            "WHERE EXISTS (SELECT 1 FROM journal)"
        )
