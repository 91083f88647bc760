"""Legacy ids of objects."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "ids",
        sa.Column("merchant", sa.Text, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("legacy_id", sa.Text, nullable=False),
        sa.Column("current_id", sa.Text, nullable=False),
        sa.Column("imported", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("merchant", "environment", "legacy_id", name="pk_ids"),
    )
    op.create_index(
        "ix_ids_merchant_environment_current_id", "ids", ["merchant", "environment", "current_id"]
    )
