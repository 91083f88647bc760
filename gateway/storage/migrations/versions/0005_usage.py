"""Usage statistics."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage",
        sa.Column("merchant", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("refused", sa.BigInteger, nullable=False),
        sa.Column("failed", sa.BigInteger, nullable=False),
        sa.Column("ms", sa.BigInteger, nullable=False),
        sa.Column("service_ms", sa.BigInteger, nullable=False),
        sa.Column("first_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint(
            "merchant", "environment", "key", "operation", "day", name="pk_usage"
        ),
    )
