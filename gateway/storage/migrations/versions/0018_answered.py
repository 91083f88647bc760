"""Indexes of responses that are kept for a minute, and of batches that may exist."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    is_kept = sa.text("answer IS NOT NULL AND idempotency IS NULL AND state = 'answered'")
    op.create_index(
        "ix_journal_answered",
        "journal",
        ["ended_at"],
        sqlite_where=is_kept,
        postgresql_where=is_kept,
    )
    may_exist = sa.text("state = 'may exist'")
    op.create_index(
        "ix_writes_may_exist",
        "writes",
        ["entered_at"],
        sqlite_where=may_exist,
        postgresql_where=may_exist,
    )
