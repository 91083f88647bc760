"""Indexes of responses that are kept for a minute, and of batches that may exist."""

from __future__ import annotations

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "CREATE INDEX ix_journal_answered ON journal (ended_at)"
        " WHERE answer IS NOT NULL AND idempotency IS NULL AND state = 'answered'"
    )
    op.execute("CREATE INDEX ix_writes_may_exist ON writes (entered_at) WHERE state = 'may exist'")
