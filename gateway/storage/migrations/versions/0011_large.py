"""Large requests in flight of each instance, saved with its heartbeat for the console."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A default, because a process of the previous version does not set it.
    op.add_column(
        "instances", sa.Column("large", sa.Text, nullable=False, server_default=sa.text("''"))
    )
