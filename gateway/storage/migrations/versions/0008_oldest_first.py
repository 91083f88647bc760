"""An index of object state by kind and age, for retention and for metrics."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_remembered_kind_updated_at", "remembered", ["kind", "updated_at"])
