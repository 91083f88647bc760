"""Traffic of the last days, in spans of a few minutes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "traffic",
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("merchant", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("refused", sa.BigInteger, nullable=False),
        sa.Column("failed", sa.BigInteger, nullable=False),
        sa.Column("ms", sa.BigInteger, nullable=False),
        sa.Column("service_ms", sa.BigInteger, nullable=False),
        sa.Column("slowest_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint(
            "began_at", "merchant", "environment", "operation", name="pk_traffic"
        ),
    )
