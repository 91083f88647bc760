"""Brownouts, and the requests that they affected."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "brownouts",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("begins_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("merchant", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("operations", sa.JSON, nullable=False),
        sa.Column("refuses", sa.Boolean, nullable=False),
        sa.Column("ended", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_brownouts"),
    )
    op.create_table(
        "brownout_hits",
        sa.Column("brownout", sa.Text, nullable=False),
        sa.Column("merchant", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint(
            "brownout", "merchant", "environment", "key", "operation", name="pk_brownout_hits"
        ),
    )
