"""Finds a recently delivered response by its request: its connection may have been reset."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_journal_answered", "journal")
    is_kept = sa.text("answer IS NOT NULL AND idempotency IS NULL AND state = 'answered'")
    op.create_index(
        "ix_journal_answered",
        "journal",
        ["fingerprint"],
        sqlite_where=is_kept,
        postgresql_where=is_kept,
    )
    has_key = sa.text("idempotency IS NOT NULL")
    op.create_index(
        "ix_journal_named_requests",
        "journal",
        ["fingerprint"],
        sqlite_where=has_key,
        postgresql_where=has_key,
    )
