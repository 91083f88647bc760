"""An index of operations with an Idempotency-Key, which the retention task reads every minute."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    is_named = sa.text("idempotency IS NOT NULL")
    op.create_index(
        "ix_journal_named",
        "journal",
        ["began_at"],
        sqlite_where=is_named,
        postgresql_where=is_named,
    )
