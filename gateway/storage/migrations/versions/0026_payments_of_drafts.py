"""Stores the payments of drafts in rows; those of existing drafts move there at their next edit.

Moving them needs the encryption keys.
"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.add_column("batch_payments", sa.Column("payment_count", sa.Integer))
    op.create_table(
        "draft_payments",
        sa.Column("merchant", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("batch_id", sa.Text, nullable=False),
        sa.Column("payment_id", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint(
            "merchant", "environment", "batch_id", "payment_id", name="pk_draft_payments"
        ),
        sa.UniqueConstraint(
            "merchant",
            "environment",
            "batch_id",
            "position",
            name="uq_draft_payments_merchant_environment_batch_id_position",
        ),
        sqlite_with_rowid=False,
    )
