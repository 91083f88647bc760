"""Deletes the counts of signed batch changes in progress, which are tracked by name now."""

from __future__ import annotations

from alembic import op
from sqlalchemy import column, delete, table

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    remembered = table("remembered", column("kind"))
    op.execute(delete(remembered).where(remembered.c.kind == "signed"))
