"""Finds a recently delivered response by its request: its connection may have been reset."""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("DROP INDEX ix_journal_answered")
    op.execute(
        "CREATE INDEX ix_journal_answered ON journal (fingerprint)"
        " WHERE answer IS NOT NULL AND idempotency IS NULL AND state = 'answered'"
    )
    op.execute(
        "CREATE INDEX ix_journal_named_requests ON journal (fingerprint)"
        " WHERE idempotency IS NOT NULL"
    )
