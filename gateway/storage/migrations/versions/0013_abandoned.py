"""An index of superseded batches, which are few among the aliases of all edited payments."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    is_abandoned = sa.text("""kind = 'alias' AND facts LIKE '%"abandoned"_true%'""")
    op.create_index(
        "ix_remembered_abandoned",
        "remembered",
        ["kind", "merchant", "environment"],
        sqlite_where=is_abandoned,
        postgresql_where=is_abandoned,
    )
