"""The index of superseded batches without the kind, for which SQLite planned every lookup again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_remembered_abandoned", "remembered")
    is_abandoned = sa.text("""facts LIKE '%"abandoned"_true%'""")
    op.create_index(
        "ix_remembered_abandoned",
        "remembered",
        ["kind", "merchant", "environment"],
        sqlite_where=is_abandoned,
        postgresql_where=is_abandoned,
    )
